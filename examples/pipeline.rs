//! A pipeline: each rank runs one stage of a computation. It receives a micro-batch from the rank before it and sends the result
//! to the rank after it, while the rank before it computes the next micro-batch.
//!
//! ```console
//! $ cargo run --release --example pipeline -- 4
//! ```

mod common;

use common::{Machine, Rank, ranks};
use libnccl::Result;

const BATCHES: usize = 8;
const LENGTH: usize = 1024;

fn main() -> Result<()> {
    let ranks = ranks(4);
    let results = Machine::new(ranks).run(ranks, stage)?;
    let outputs = results.last().expect("at least one rank");
    for (batch, output) in outputs.iter().enumerate() {
        let expected: f32 = (0..ranks).fold(batch as f32, compute);
        assert!(
            output.iter().all(|value| *value == expected),
            "batch {batch}: {}; expected {expected}",
            output[0]
        );
    }
    println!("{} micro-batches of {LENGTH} values went through {ranks} stages", outputs.len());
    Ok(())
}

/// Runs the stage of one rank; the last one returns the outputs.
fn stage(rank: &Rank<'_>) -> Result<Vec<Vec<f32>>> {
    let (own, last) = (rank.comm.rank(), rank.comm.size() - 1);
    let mut outputs = Vec::new();
    let mut activations = rank.buffer(&[0.0; LENGTH])?;
    for batch in 0..BATCHES {
        let input = if own == 0 {
            vec![batch as f32; LENGTH]
        } else {
            rank.comm.recv(&mut activations, own - 1, rank.stream())?;
            rank.read(&activations)
        };
        let output: Vec<f32> = input.into_iter().map(|value| compute(value, own)).collect();
        if own == last {
            outputs.push(output);
        } else {
            rank.write(&mut activations, &output);
            rank.comm.send(&activations, own + 1, rank.stream())?;
        }
    }
    // Sends in progress must complete before the communicator is dropped.
    rank.read(&activations);
    Ok(outputs)
}

/// Computes a stage's function.
fn compute(value: f32, stage: usize) -> f32 {
    2.0 * value + stage as f32
}
