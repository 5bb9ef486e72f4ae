//! A layer that does not fit on one GPU, divided among the ranks: the first matrix by columns, the second one by rows, so that
//! the ranks need only one all-reduce, at the end (Megatron-LM's scheme for a transformer's MLP).
//!
//! ```console
//! $ cargo run --release --example tensor_parallel -- 4
//! ```

mod common;

use common::{Machine, Random, Rank, ranks};
use libnccl::{ReduceOp, Result};

const INPUTS: usize = 24;
const HIDDEN: usize = 192;
const OUTPUTS: usize = 16;

fn main() -> Result<()> {
    let ranks = ranks(4);
    assert!(HIDDEN.is_multiple_of(ranks), "{HIDDEN} hidden units cannot be divided among {ranks} ranks");
    // Every rank makes the whole weights from one seed, and uses its part.
    let mut random = Random(1);
    let input = random.numbers(INPUTS);
    let first = random.numbers(HIDDEN * INPUTS);
    let second = random.numbers(OUTPUTS * HIDDEN);

    let results = Machine::new(ranks).run(ranks, |rank| layer(rank, &input, &first, &second))?;

    let expected = half_layer(&input, &first, &second, 0..HIDDEN);
    let largest =
        results.iter().flatten().zip(expected.iter().cycle()).map(|(one, other)| (one - other).abs());
    let largest = largest.fold(0.0, f32::max);
    println!(
        "{ranks} ranks with {} hidden units each; largest difference from one rank's: {largest:e}",
        HIDDEN / ranks
    );
    assert!(largest < 1e-4, "{largest}");
    Ok(())
}

/// Computes the layer's output: each rank computes the contribution of its share of the hidden units, and the ranks add these.
fn layer(rank: &Rank<'_>, input: &[f32], first: &[f32], second: &[f32]) -> Result<Vec<f32>> {
    let units = HIDDEN / rank.comm.size();
    let own = rank.comm.rank() * units..(rank.comm.rank() + 1) * units;
    // The output is a sum over all hidden units, so each rank's part of it is a term of the sum.
    let mut output = rank.buffer(&half_layer(input, first, second, own))?;
    rank.comm.all_reduce_in_place(&mut output, ReduceOp::Sum, rank.stream())?;
    Ok(rank.read(&output))
}

/// Returns the contribution of some hidden units to the output.
fn half_layer(input: &[f32], first: &[f32], second: &[f32], units: std::ops::Range<usize>) -> Vec<f32> {
    let mut output = vec![0.0; OUTPUTS];
    for unit in units {
        let row = &first[unit * INPUTS..][..INPUTS];
        let hidden = row.iter().zip(input).map(|(weight, value)| weight * value).sum::<f32>().max(0.0);
        for (index, value) in output.iter_mut().enumerate() {
            *value += second[index * HIDDEN + unit] * hidden;
        }
    }
    output
}
