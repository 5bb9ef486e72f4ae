//! One run of one method, in a thread of its own and with a deadline.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use libnccl::{AbortHandle, Error, Result};
use libnccl_test_support::fake_nccl::FakeNccl;

use super::fault::Fault;
use super::methods::{Fixture, Method};

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
    pub(crate) calls: Vec<&'static str>,
    /// The number of calls before those that the method is about.
    before: usize,
    pub(crate) was_hit: bool,
    pub(crate) took: Duration,
}

impl Outcome {
    /// Returns the calls that the method is about, each with its number among those of its function.
    pub(crate) fn own_calls(&self, method: &Method) -> Vec<(&'static str, usize)> {
        let numbered = self.calls.iter().enumerate().map(|(index, function)| {
            (*function, self.calls[..index].iter().filter(|called| *called == function).count())
        });
        let is_own = |(function, _): &(&str, usize)| {
            // The communicator's end is tested by the methods that are about it.
            method.is_about_lifecycle || !["ncclCommFinalize", "ncclCommDestroy"].contains(function)
        };
        let before = if method.is_about_lifecycle { 0 } else { self.before };
        // The first two are those of loading, which `versions.rs` tests.
        numbered.skip(before.max(2)).filter(is_own).collect()
    }
}

/// Runs a method without a fault.
pub(crate) fn baseline(method: &Method, timing: Timing) -> Outcome {
    run(method, timing, None)
}

pub(crate) fn run(method: &Method, timing: Timing, fault: Option<Fault>) -> Outcome {
    let context = format!("{}, {timing:?}, {fault:?}", method.name);
    let (sender, receiver) = channel();
    thread::scope(|scope| {
        scope.spawn(|| {
            let sender = sender; // Dropped if it panics.
            let _ = sender.send(outcome(method, timing, fault));
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

fn outcome(method: &Method, timing: Timing, fault: Option<Fault>) -> (Outcome, Vec<String>) {
    let library = fault.as_ref().map_or_else(FakeNccl::new, Fault::library);
    let handles: Arc<Mutex<Vec<AbortHandle>>> = Arc::default();
    let publish = {
        let handles = Arc::clone(&handles);
        move |handle| handles.lock().unwrap_or_else(PoisonError::into_inner).push(handle)
    };
    let timeout = (timing == Timing::Timeout).then_some(TIMEOUT);
    let is_over = AtomicBool::new(false);
    let abort_all = || {
        library.attach();
        while !is_over.load(Ordering::Relaxed) {
            if library.has_deviated() {
                let handles = handles.lock().unwrap_or_else(PoisonError::into_inner).clone();
                handles.iter().for_each(|handle| drop(handle.abort()));
            }
            thread::sleep(Duration::from_micros(200));
        }
    };
    let start = Instant::now();
    let mut before = 0;
    let act = || {
        let fixture = Fixture::new(library.clone(), timeout, Box::new(publish));
        let result = fixture.map_err(Error::from).and_then(|fixture| {
            let result = (method.act)(&fixture);
            before = fixture.before();
            result
        });
        is_over.store(true, Ordering::Relaxed);
        result
    };
    let result = if timing == Timing::Abort {
        thread::scope(|scope| {
            scope.spawn(abort_all);
            act()
        })
    } else {
        act()
    };
    let took = start.elapsed();
    let (calls, was_hit) = (library.calls(), library.has_deviated());
    library.repair();
    let mut violations = library.violations();
    // Whatever has happened, this thread is outside any group.
    if let Err(error) = library.load().map_err(Error::from).and_then(|nccl| nccl.group(|_| Ok(()))) {
        violations.push(format!("a later group fails: {error}"));
    }
    (Outcome { result, calls, before, was_hit, took }, violations)
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
