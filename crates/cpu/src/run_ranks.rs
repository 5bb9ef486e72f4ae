use std::panic;
use std::thread;

use libnccl::{Communicator, Result};

/// Runs `each` on the ranks of one communicator, each on a thread of its own, and returns the error of the lowest rank that
/// has one: for examples, and tests.
///
/// ```
/// use libnccl::{ReduceOp, StreamRef};
///
/// # fn main() -> libnccl::Result<()> {
/// libnccl_cpu::run_ranks(3, |comm| {
///     let mut sum = [comm.rank() as u32];
///     comm.all_reduce_in_place(&mut sum, ReduceOp::Sum, StreamRef::DEFAULT)?;
///     assert_eq!(sum, [3]);
///     Ok(())
/// })
/// # }
/// ```
///
/// # Errors
/// The errors of `each`; [`Error::Nccl`](libnccl::Error::Nccl) if `ranks` is 0.
///
/// # Panics
/// If `each` panics on a rank, once all others have ended.
pub fn run_ranks(ranks: usize, each: impl Fn(Communicator) -> Result<()> + Sync) -> Result<()> {
    let devices: Vec<i32> = (0..).take(ranks).collect();
    let comms = crate::nccl().init_all(&devices)?;
    thread::scope(|scope| {
        let each = &each;
        let threads: Vec<_> = comms.into_iter().map(|comm| scope.spawn(move || each(comm))).collect();
        let ended = threads.into_iter().map(|thread| thread.join());
        ended
            .map(|ended| ended.unwrap_or_else(|panicked| panic::resume_unwind(panicked)))
            .fold(Ok(()), Result::and)
    })
}
