//! Sums a vector over all ranks: a minimal program.
//!
//! ```console
//! $ cargo run --release --example all_reduce -- 4
//! ```

mod common;

use common::{Machine, ranks};
use libnccl::{ReduceOp, Result};

fn main() -> Result<()> {
    let ranks = ranks(4);
    let sums = Machine::new(ranks).run(ranks, |rank| {
        let mut buffer = rank.buffer(&[1.0, rank.comm.rank() as f32])?;
        rank.comm.all_reduce_in_place(&mut buffer, ReduceOp::Sum, rank.stream())?;
        Ok(rank.read(&buffer))
    })?;
    let expected = vec![ranks as f32, (0..ranks).sum::<usize>() as f32];
    println!("each of {ranks} ranks has {expected:?}");
    assert!(sums.iter().all(|sum| *sum == expected), "{sums:?}");
    Ok(())
}
