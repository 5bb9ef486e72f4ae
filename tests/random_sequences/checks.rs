//! Checks after a sequence: no late write, no live communicator, no thread.
#![allow(unsafe_code)] // Queries handles by their numbers.

use std::fs;
use std::ptr;
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use libnccl::Nccl;
use libnccl::sys::{ncclComm_t, ncclResult_t};

/// The value of buffers that nothing may write to any more.
const PATTERN: f32 = -165.5;

/// The buffers whose operation is over, in which nothing may change until the end of the sequence.
#[derive(Default)]
pub(crate) struct Vault(Mutex<Vec<Vec<f32>>>);

impl Vault {
    /// Returns a buffer, which goes to the vault when it is dropped.
    pub(crate) fn buffer(&self, elements: impl Into<Vec<f32>>) -> Borrowed<'_> {
        Borrowed { elements: elements.into(), vault: self }
    }

    /// Fails if a buffer was written to after its operation.
    pub(crate) fn check(self) {
        let kept = self.0.into_inner().unwrap_or_else(PoisonError::into_inner);
        let change = kept.iter().flatten().find(|element| **element != PATTERN);
        assert_eq!(change, None, "a buffer was written to after its operation");
    }
}

/// A buffer that belongs to this rank whenever no operation borrows it.
pub(crate) struct Borrowed<'v> {
    pub(crate) elements: Vec<f32>,
    vault: &'v Vault,
}

impl Drop for Borrowed<'_> {
    fn drop(&mut self) {
        let mut buffer = std::mem::take(&mut self.elements);
        buffer.fill(PATTERN);
        let mut kept = self.vault.0.lock().unwrap_or_else(PoisonError::into_inner);
        // Every fourth is freed immediately, for a sanitizer to see.
        if kept.len() < 200 {
            let is_freed = kept.len() % 4 == 3;
            kept.push(if is_freed { Vec::new() } else { buffer });
        }
    }
}

/// Returns the handles of two new communicators. The CPU backend numbers its handles, and uses none twice.
pub(crate) fn next_handles(nccl: &Nccl) -> [usize; 2] {
    let comms = [(); 2].map(|()| nccl.init_all(&[0]).expect("one rank").remove(0));
    comms.map(|comm| comm.as_raw().addr())
}

/// Fails if a communicator created since `start` is live for longer than a teardown takes.
pub(crate) fn assert_no_live_communicator(nccl: &Nccl, start: [usize; 2]) {
    let [end, _] = next_handles(nccl);
    let live = || {
        let handles = (start[1]..end).step_by(start[1] - start[0]).skip(1);
        handles.filter(|handle| is_live(nccl, ptr::without_provenance_mut(*handle))).count()
    };
    let deadline = Instant::now() + Duration::from_secs(2);
    while live() > 0 && Instant::now() < deadline {
        thread::sleep(Duration::from_millis(1));
    }
    assert_eq!(live(), 0, "communicators are still live");
}

fn is_live(nccl: &Nccl, handle: ncclComm_t) -> bool {
    let get = nccl.as_raw().ncclCommGetAsyncError.expect("the CPU backend has it");
    let mut state = ncclResult_t::ncclSuccess;
    // SAFETY: a valid out-parameter; the CPU backend looks handles up, and refuses unknown ones.
    unsafe { get(handle, &raw mut state) == ncclResult_t::ncclSuccess }
}

/// Fails if threads of a sequence are left after a while: others than the main thread, the test's, and the one that notices a
/// hang.
pub(crate) fn assert_no_threads() {
    let start = Instant::now();
    let threads = || fs::read_dir("/proc/self/task").map_or(0, Iterator::count);
    while threads() > 3 && start.elapsed() < Duration::from_secs(10) {
        thread::sleep(Duration::from_millis(20));
    }
    assert!(threads() <= 3, "{} threads", threads());
}
