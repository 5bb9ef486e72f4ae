//! Data-parallel training: every rank has the same model and a share of the data, and the ranks average their gradients, a bucket
//! at a time. The losses agree with the losses of one rank with all the data, and are drawn as a curve.
//!
//! ```console
//! $ cargo run --release --example ddp -- 4        # writes target/ddp.svg
//! ```

mod common;

use std::ops::Range;
use std::path::Path;

use common::{Machine, Random, Rank, ranks};
use libnccl::{NcclBuffer, ReduceOp, Result};

/// The number of samples.
const SAMPLES: usize = 512;
/// The number of blocks whose gradients are summed separately; also the maximum number of ranks.
const BLOCKS: usize = 8;
const HIDDEN: usize = 32;
const STEPS: usize = 400;
const RATE: f32 = 0.03;

/// The maximum number of parameters in a bucket.
const BUCKET: usize = 64;

/// The maximum relative difference between the losses of several ranks and of one rank. Sums of floats depend on the order of the
/// additions. Two ranks add in the same order as one rank, which sums halves; more ranks add around NCCL's ring.
const BOUND: f32 = 1e-5;

fn main() -> Result<()> {
    let ranks = ranks(4);
    assert!(BLOCKS.is_multiple_of(ranks), "{BLOCKS} blocks of data cannot be divided among {ranks} ranks");
    let several = Machine::new(ranks).run(ranks, train)?;
    let one = Machine::new(1).run(1, train)?.remove(0);

    let first = &several[0];
    assert!(several.iter().all(|losses| losses == first), "the ranks' models differ");
    let share = |(one, other): (&f32, &f32)| (one - other).abs() / one;
    let difference = one.iter().zip(first).map(share).fold(0.0, f32::max);
    println!(
        "loss after {STEPS} steps: {:.9} with {ranks} ranks, {:.9} with one",
        first[STEPS - 1],
        one[STEPS - 1]
    );
    println!("largest difference of a step: {difference:.1e} of the loss; bound {BOUND:.0e}");
    assert!(if ranks <= 2 { difference == 0.0 } else { difference <= BOUND });
    let path = Path::new("target/ddp.svg");
    plot(path, ranks, first, &one).expect("a picture");
    println!("{}", path.display());
    Ok(())
}

/// Trains the model, and returns the loss of each step.
fn train(rank: &Rank<'_>) -> Result<Vec<f32>> {
    let (own, size) = (rank.comm.rank(), rank.comm.size());
    let blocks = own * BLOCKS / size..(own + 1) * BLOCKS / size;
    let mut model = Model::new();
    let buckets = buckets(model.0.len());
    let mut buffers =
        buckets.iter().map(|bucket| rank.buffer(&vec![0.0; bucket.len()])).collect::<Result<Vec<_>>>()?;
    let mut losses = Vec::with_capacity(STEPS);
    for _ in 0..STEPS {
        let mut gradient = model.gradient(blocks.clone());
        average(rank, &buckets, &mut buffers, &mut gradient)?;
        let loss = gradient.pop().expect("the loss comes last");
        losses.push(loss);
        model.0.iter_mut().zip(&gradient).for_each(|(weight, slope)| *weight -= RATE * slope);
    }
    Ok(losses)
}

/// Divides the parameters and the loss into buckets, the last layer's first, as its gradients are known first.
fn buckets(parameters: usize) -> Vec<Range<usize>> {
    let end = parameters + 1;
    let starts = (0..end).step_by(BUCKET);
    starts.map(|start| start..(start + BUCKET).min(end)).rev().collect()
}

/// Replaces a sum over this rank's samples by the mean over all samples.
fn average(
    rank: &Rank<'_>,
    buckets: &[Range<usize>],
    buffers: &mut [NcclBuffer<f32>],
    gradient: &mut [f32],
) -> Result<()> {
    for (bucket, buffer) in buckets.iter().zip(&mut *buffers) {
        rank.write(buffer, &gradient[bucket.clone()]);
        rank.comm.all_reduce_in_place(buffer, ReduceOp::Sum, rank.stream())?;
    }
    for (bucket, buffer) in buckets.iter().zip(buffers) {
        let sums = rank.read(buffer);
        gradient[bucket.clone()].iter_mut().zip(sums).for_each(|(to, sum)| *to = sum / SAMPLES as f32);
    }
    Ok(())
}

/// A network with one hidden layer for a function of one number: weights and biases of the hidden units, weights and bias
/// of the output.
struct Model(Vec<f32>);

impl Model {
    /// Returns the model with which every rank begins.
    fn new() -> Self {
        let mut random = Random(7);
        let mut parameters = random.numbers(3 * HIDDEN + 1);
        parameters[..HIDDEN].iter_mut().for_each(|weight| *weight *= 4.0);
        parameters[2 * HIDDEN..].iter_mut().for_each(|weight| *weight /= 4.0);
        Self(parameters)
    }

    /// Returns the gradient of the squared error over blocks of samples, and the error itself after it.
    fn gradient(&self, blocks: Range<usize>) -> Vec<f32> {
        if blocks.len() == 1 {
            return self.gradient_of_block(blocks.start);
        }
        let middle = blocks.start + blocks.len() / 2;
        let (left, right) = (self.gradient(blocks.start..middle), self.gradient(middle..blocks.end));
        left.iter().zip(right).map(|(left, right)| left + right).collect()
    }

    fn gradient_of_block(&self, block: usize) -> Vec<f32> {
        let ([weights, biases, outputs], bias) = self.layers();
        let mut sum = vec![0.0; self.0.len() + 1];
        for sample in block * SAMPLES / BLOCKS..(block + 1) * SAMPLES / BLOCKS {
            let x = 2.0 * sample as f32 / SAMPLES as f32 - 1.0;
            let y = (3.0 * x).sin();
            let hidden: Vec<f32> = weights.iter().zip(biases).map(|(w, b)| (w * x + b).tanh()).collect();
            let error = outputs.iter().zip(&hidden).map(|(v, h)| v * h).sum::<f32>() + bias - y;
            for unit in 0..HIDDEN {
                let slope = 2.0 * error * outputs[unit] * (1.0 - hidden[unit] * hidden[unit]);
                sum[unit] += slope * x;
                sum[HIDDEN + unit] += slope;
                sum[2 * HIDDEN + unit] += 2.0 * error * hidden[unit];
            }
            sum[3 * HIDDEN] += 2.0 * error;
            sum[3 * HIDDEN + 1] += error * error;
        }
        sum
    }

    fn layers(&self) -> ([&[f32]; 3], f32) {
        let layer = |index: usize| &self.0[index * HIDDEN..(index + 1) * HIDDEN];
        ([layer(0), layer(1), layer(2)], self.0[3 * HIDDEN])
    }
}

/// Draws the losses.
fn plot(path: &Path, ranks: usize, several: &[f32], one: &[f32]) -> Result<(), Box<dyn std::error::Error>> {
    use plotters::prelude::*;

    if let Some(directory) = path.parent() {
        std::fs::create_dir_all(directory)?;
    }
    let area = SVGBackend::new(path, (800, 480)).into_drawing_area();
    area.fill(&WHITE)?;
    let highest = several.iter().chain(one).copied().fold(f32::MIN, f32::max);
    let lowest = several.iter().chain(one).copied().fold(f32::MAX, f32::min);
    let mut chart = ChartBuilder::on(&area)
        .caption("Loss of data-parallel training", ("sans-serif", 22))
        .margin(16)
        .x_label_area_size(44)
        .y_label_area_size(70)
        .build_cartesian_2d(0..several.len(), (lowest * 0.8..highest * 1.2).log_scale())?;
    chart.configure_mesh().x_desc("step").y_desc("mean squared error").draw()?;
    let points = |losses: &[f32]| losses.iter().copied().enumerate().collect::<Vec<_>>();
    chart
        .draw_series(LineSeries::new(points(one), BLUE.mix(0.4).stroke_width(7)))?
        .label("1 rank")
        .legend(|(x, y)| PathElement::new([(x, y), (x + 20, y)], BLUE.mix(0.4).stroke_width(7)));
    chart
        .draw_series(LineSeries::new(points(several), BLACK.stroke_width(2)))?
        .label(format!("{ranks} ranks"))
        .legend(|(x, y)| PathElement::new([(x, y), (x + 20, y)], BLACK.stroke_width(2)));
    chart.configure_series_labels().background_style(WHITE).border_style(BLACK).draw()?;
    Ok(area.present()?)
}
