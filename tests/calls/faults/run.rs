//! One run of one case, in a thread of its own and with a deadline.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread;
use std::time::{Duration, Instant};

use libnccl::communicator::AbortHandle;
use libnccl::{Error, Result, Version};
use libnccl_test_support::fake_nccl::FakeNccl;

use super::fault::{Fault, Progress};

use crate::fixture::Fixture;
use crate::methods::Case;

/// The event that ends a wait for a communicator that never makes progress.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Timing {
    /// The communicators' timeout.
    Timeout,
    /// Nothing: the communicators block.
    None,
    /// An abort handle, used repeatedly by another thread after the fault.
    Abort,
}

pub(crate) const TIMEOUT: Duration = Duration::from_millis(3);
/// The longest that any run may take, on however slow a machine.
const DEADLINE: Duration = Duration::from_secs(30);

/// The outcome of a run.
pub(crate) struct Outcome {
    pub(crate) result: Result<()>,
    /// The functions that the method has called.
    pub(crate) calls: Vec<&'static str>,
    pub(crate) was_hit: bool,
    pub(crate) took: Duration,
}

impl Outcome {
    /// Returns the calls, each with its number among those of its function.
    pub(crate) fn numbered_calls(&self) -> Vec<(&'static str, usize)> {
        let number = |(index, function): (usize, &&'static str)| {
            (*function, self.calls[..index].iter().filter(|called| *called == function).count())
        };
        self.calls.iter().enumerate().map(number).collect()
    }
}

/// Runs a case without a fault.
pub(crate) fn baseline(case: &Case, timing: Timing) -> Outcome {
    run(case, timing, None)
}

pub(crate) fn run(case: &Case, timing: Timing, fault: Option<Fault>) -> Outcome {
    let context = format!("{}, {timing:?}, {fault:?}", case.name);
    let (sender, receiver) = channel();
    thread::scope(|scope| {
        scope.spawn(|| {
            let sender = sender; // Dropped if it panics.
            let _ = sender.send(outcome(case, timing, fault));
        });
        match receiver.recv_timeout(DEADLINE) {
            Ok((outcome, violations)) => {
                assert!(violations.is_empty(), "{context}: {violations:?}, after {:?}", outcome.calls);
                if let Err(error) = &outcome.result {
                    check_text(&context, error);
                }
                outcome
            }
            Err(RecvTimeoutError::Disconnected) => panic!("{context}: it panicked"),
            Err(RecvTimeoutError::Timeout) => {
                eprintln!("{context}: it does not return");
                // The scope would wait for it.
                std::process::exit(101);
            }
        }
    })
}

fn outcome(case: &Case, timing: Timing, fault: Option<Fault>) -> (Outcome, Vec<String>) {
    let library = match &fault {
        Some(fault) => fault.library(case.version),
        None => FakeNccl::of_release(case.version),
    };
    let arm = || fault.iter().for_each(|fault| fault.arm(&library));
    // Which function creates ids is decided when the library is loaded.
    let is_of_load = fault.as_ref().is_some_and(|fault| fault.function == "ncclGetUniqueId");
    if is_of_load {
        arm();
    }
    let is_over = AtomicBool::new(false);
    let abort_all = |handles: Vec<AbortHandle>| {
        library.attach();
        while !is_over.load(Ordering::Relaxed) {
            if library.has_deviated() {
                handles.iter().for_each(|handle| drop(handle.abort()));
            }
            thread::sleep(Duration::from_micros(200));
        }
    };
    let start = Instant::now();
    let mut before = 0;
    // Before, all communicators block.
    let has_timeout = timing == Timing::Timeout && case.version >= Version::new(2, 14, 3);
    let made = Fixture::of(library.clone(), has_timeout.then_some(TIMEOUT));
    let result = made.and_then(|fixture| {
        before = library.calls().len();
        if !is_of_load {
            arm();
        }
        thread::scope(|scope| {
            if timing == Timing::Abort {
                let handles = fixture.abort_handles();
                scope.spawn(move || abort_all(handles));
            }
            let result = (case.act)(&fixture);
            is_over.store(true, Ordering::Relaxed);
            result.map(|kept| (kept, fixture))
        })
    });
    let took = start.elapsed();
    let (calls, was_hit) = (library.calls().split_off(before), library.has_deviated());
    let result = result.map(drop);
    library.repair();
    library.write_pending_children();
    let mut violations = library.violations();
    let ends_all = |fault: &Fault| {
        // A child may be left incomplete, which its parent ends, and an end that fails may come in the background.
        let is_over = timing == Timing::None || fault.progress == Progress::Never;
        is_over && fault.output.is_none() && !fault.is_absent && fault.function != "ncclCommGetAsyncError"
    };
    if fault.as_ref().is_none_or(ends_all) {
        violations.extend(library.leaks());
    }
    // Whatever has happened, this thread is outside any group.
    if let Err(error) = library.load().map_err(Error::from).and_then(|nccl| nccl.group(|_| Ok(()))) {
        violations.push(format!("a later group fails: {error}"));
    }
    (Outcome { result, calls, was_hit, took }, violations)
}

/// Checks that an error names the call, and NCCL's code if it is NCCL's.
fn check_text(context: &str, error: &Error) {
    let text = error.to_string();
    assert!(!text.trim().is_empty(), "{context}: no text");
    assert!(text.len() < 4 << 20, "{context}: {} bytes of text", text.len());
    if let Error::Nccl { call, code, .. } = error {
        // The C function, or the method that waited.
        let is_known = !call.starts_with("nccl") || libnccl::sys::Functions::NAMES.contains(call);
        assert!(is_known, "{context}: {call} is no function");
        let (start, code) = (format!("{call} failed: "), format!("(code {})", code.as_raw().0));
        assert!(text.starts_with(&start), "{context}: no {start:?} in {text:.200}");
        assert!(text.contains(&code), "{context}: no {code:?} in {text:.200}");
    }
    if let Error::InvalidArgument { call, .. } | Error::InvalidUsage { call, .. } = error {
        assert!(text.starts_with(call), "{context}: {text:.200}");
    }
}
