//! The ranks of a process as threads. The first error of a rank ends all.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::channel;
use std::thread;

use anyhow::{Context, Result, anyhow};

use super::Place;

/// Does the work of so many threads, each of which has so many ranks, from those of `first` on.
pub(crate) fn run(
    first: Place,
    threads: usize,
    ranks: usize,
    work: impl Fn(Place) -> Result<()> + Clone + Send + 'static,
) -> Result<()> {
    let (sender, outcomes) = channel();
    for thread in 0..threads {
        let offset = thread * ranks;
        let place = Place { rank: first.rank + offset, local_rank: first.local_rank + offset };
        let (work, sender) = (work.clone(), sender.clone());
        let run = move || {
            let outcome = catch_unwind(AssertUnwindSafe(|| work(place)));
            // The receiver is gone if another rank has failed.
            let _ = sender.send(outcome.unwrap_or_else(|_| Err(anyhow!("rank {} panicked", place.rank))));
        };
        // Not scoped: after an error, the other threads may block in NCCL forever.
        thread::Builder::new()
            .name(format!("rank {}", place.rank))
            .spawn(run)
            .context("cannot start a thread for a rank")?;
    }
    drop(sender);
    outcomes.iter().collect()
}
