//! One sequence: its ranks, and those that look at them or end them.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::thread;
use std::time::Duration;

use libnccl::{Nccl, Result};
use libnccl_observe::{Answer, Watchdog};
use libnccl_test_support::random_inputs::{Random, mix};

use crate::buffer::panic_twice_on_purpose;
use crate::errand::Errands;
use crate::handles;
use crate::kind::Kind;
use crate::lent::Vault;
use crate::rank::Rank;

/// Runs one sequence. Returns the number of ranks that reached its end.
pub(crate) fn run(nccl: &Nccl, seed: u64) -> usize {
    let mut random = Random(seed);
    let (size, has_timeout) = (1 + random.below(3), random.below(4) > 0);
    let (vault, start) = (Vault::default(), handles::point(nccl));
    let watched = Watched::start(&mut random);
    let id = nccl.unique_id().expect("a unique id");
    let ends: Vec<thread::Result<Result<()>>> = thread::scope(|scope| {
        let errands = Errands::start(scope);
        let ranks: Vec<_> = (0..size)
            .map(|rank| {
                let mut this = Rank {
                    nccl,
                    program: random.clone(),
                    own: Random(mix(seed ^ (rank as u64 + 1))),
                    has_timeout,
                    errands: errands.clone(),
                    vault: &vault,
                    watchdog: watched.as_ref().map(|watched| &watched.watchdog),
                };
                let id = &id;
                scope.spawn(move || this.join(size, rank, id).and_then(|comm| this.live(comm, 0)))
            })
            .collect();
        ranks.into_iter().map(thread::ScopedJoinHandle::join).collect()
    });
    let completed = ends.into_iter().filter(|end| end.as_ref().expect("no assertion fails").is_ok()).count();
    watched.into_iter().for_each(Watched::check);
    vault.check();
    assert_eq!(handles::reap(nccl, start), 0, "communicators were not ended");
    completed
}

/// A watchdog, and what its function owns.
struct Watched {
    watchdog: Watchdog,
    owned: Arc<AtomicUsize>,
}

impl Watched {
    fn start(random: &mut Random) -> Option<Self> {
        let (is_wanted, limit) = (random.once_in(3), Duration::from_millis(2 + random.below(30) as u64));
        if !is_wanted || !Kind::Watchdog.is_on() {
            return None;
        }
        let (owned, mut random) = (Arc::new(AtomicUsize::new(0)), Random(random.next()));
        let calls = Arc::clone(&owned);
        let watchdog = Watchdog::new(limit, move |finding| {
            calls.fetch_add(1, Relaxed);
            if let Some(recorder) = &finding.recorder {
                assert!(recorder.records().len() as u64 <= recorder.count());
            }
            if Kind::PanickingWatchdog.is_on() && random.once_in(4) {
                panic_twice_on_purpose();
            }
            random.pick(&[Answer::Continue, Answer::Continue, Answer::Abort, Answer::AbortAll])
        });
        Some(Self { watchdog: watchdog.expect("a thread"), owned })
    }

    /// Fails if the watchdog has ended by itself: it then owns its function no more.
    fn check(self) {
        assert_eq!(Arc::strong_count(&self.owned), 2, "after {:?} calls, the watchdog has ended", self.owned);
        drop(self.watchdog);
        assert_eq!(Arc::strong_count(&self.owned), 1, "the watchdog goes on after its drop");
    }
}
