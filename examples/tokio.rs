//! Ranks as tasks of one thread, in a tokio runtime, on the CPU implementation: they join, split and end at the same
//! time, and none blocks the others.
//!
//! ```console
//! $ cargo run --release --example tokio -- 4
//! ```

mod common;

use common::ranks;
use libnccl::{Communicator, Config, Nccl, ReduceOp, Result, StreamRef};
use tokio::runtime::Builder;
use tokio::task::JoinSet;

fn main() -> Result<()> {
    let runtime = Builder::new_current_thread().build().expect("a runtime without drivers");
    runtime.block_on(run(&libnccl_cpu::nccl(), ranks(4)))
}

async fn run(nccl: &Nccl, ranks: usize) -> Result<()> {
    let id = nccl.unique_id()?;
    let config = Config::new();
    let joined = concurrently((0..ranks).map(|rank| nccl.init_rank_async(ranks, rank, &id, &config))).await?;
    println!("{ranks} ranks joined on one thread");

    let halves = concurrently(joined.into_iter().map(|mut comm| async move {
        let half = comm.rank() % 2;
        let part = comm.split_async(Some(half as u32), 0, &Config::new()).await?;
        Ok((comm, part.expect("each rank has a color")))
    }));
    let (joined, halves): (Vec<_>, Vec<_>) = halves.await?.into_iter().unzip();

    // Operations are enqueued, not awaited: one thread starts those of all its ranks in a group.
    for (name, comms) in [("all", &joined), ("half", &halves)] {
        let mut sums: Vec<_> = comms.iter().map(|comm| [1.0, comm.rank() as f32]).collect();
        nccl.group(|g| {
            let mut all = comms.iter().zip(&mut sums);
            all.try_for_each(|(comm, sum)| {
                g.all_reduce_in_place(comm, sum, ReduceOp::Sum, StreamRef::DEFAULT)
            })
        })?;
        for (comm, sum) in comms.iter().zip(&sums) {
            let size = comm.size();
            assert_eq!(*sum, [size as f32, (0..size).sum::<usize>() as f32]);
        }
        println!("{name}: {sums:?}");
    }

    concurrently(halves.into_iter().chain(joined).map(Communicator::destroy_async)).await?;
    Ok(())
}

/// Runs futures as tasks, and returns their results in order.
async fn concurrently<T: Send + 'static>(
    futures: impl IntoIterator<Item = impl Future<Output = Result<T>> + Send + 'static>,
) -> Result<Vec<T>> {
    let mut tasks = JoinSet::new();
    for (index, future) in futures.into_iter().enumerate() {
        tasks.spawn(async move { (index, future.await) });
    }
    let mut results = tasks.join_all().await;
    results.sort_by_key(|(index, _)| *index);
    results.into_iter().map(|(_, result)| result).collect()
}
