//! One sequence: its ranks, and a watchdog that observes or aborts them.

use std::panic::resume_unwind;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::thread;
use std::time::Duration;

use libnccl::{Nccl, Result};
use libnccl_observe::{Action, Watchdog};
use libnccl_test_support::random_inputs::{Random, mix};

use crate::checks::{Vault, assert_no_live_communicator, next_handles};
use crate::rank::Rank;

/// Runs one sequence.
pub(crate) fn run(nccl: &Nccl, seed: u64) {
    let mut random = Random(seed);
    let (size, has_timeout) = (1 + random.below(3), random.below(4) > 0);
    let (vault, start) = (Vault::default(), next_handles(nccl));
    let calls = Arc::new(AtomicUsize::new(0));
    let watchdog = random.once_in(3).then(|| watchdog(&mut random, calls.clone()));
    let id = nccl.unique_id().expect("a unique id");
    thread::scope(|scope| {
        for rank in 0..size {
            let mut this = Rank {
                nccl,
                program: random.clone(),
                own: Random(mix(seed ^ (rank as u64 + 1))),
                has_timeout,
                scope,
                vault: &vault,
                watchdog: watchdog.as_ref(),
            };
            // Errors are expected.
            scope.spawn(move || -> Result<()> {
                let comm = this.join(size, rank, &id)?;
                this.live(comm, 0)
            });
        }
    });
    assert_eq!(Arc::strong_count(&calls), 1 + usize::from(watchdog.is_some()), "after {calls:?} calls");
    drop(watchdog);
    assert_eq!(Arc::strong_count(&calls), 1, "the watchdog runs after its drop");
    vault.check();
    assert_no_live_communicator(nccl, start);
}

/// Starts a watchdog whose function counts its calls, and panics at times.
fn watchdog(random: &mut Random, calls: Arc<AtomicUsize>) -> Watchdog {
    let (limit, mut random) = (Duration::from_millis(2 + random.below(30) as u64), Random(random.next()));
    let watchdog = Watchdog::new(limit, move |finding| {
        calls.fetch_add(1, Relaxed);
        if let Some(recorder) = &finding.recorder
            && recorder.records().len() as u64 > recorder.count()
        {
            eprintln!("more records than operations: {recorder:?}");
            // The watchdog ignores a panic.
            std::process::abort();
        }
        if random.once_in(4) {
            resume_unwind(Box::new(()));
        }
        random.pick(&[Action::Continue, Action::Continue, Action::Abort, Action::AbortAll])
    });
    watchdog.expect("a thread")
}
