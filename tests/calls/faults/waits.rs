//! Nonblocking work that never completes, fails, or reports contradictory states.

use libnccl::{Error, Version};
use libnccl_test_support::fake_nccl::{IN_PROGRESS, Output};

use super::fault::{Fault, Progress};
use super::run::{TIMEOUT, Timing, baseline, run};
use crate::methods;

/// Cases that create blocking communicators, which have no timeout.
const BLOCKING: [&str; 6] = [
    "init",
    "init with defaults",
    "init by one id of several",
    "init_all",
    "init_in",
    "into_raw and from_raw",
];

#[test]
fn every_endless_wait_ends_at_its_timeout() {
    let mut timeouts = 0;
    for case in methods::all().iter().filter(|case| case.version == Version::HEADER) {
        let name = case.name.as_str();
        if BLOCKING.contains(&name) {
            continue;
        }
        for call in baseline(case, Timing::Timeout).numbered_calls() {
            for output in [None, Some(Output::Zeros)] {
                let fault = Fault { code: IN_PROGRESS, output, progress: Progress::Never, ..Fault::of(call) };
                let outcome = run(case, Timing::Timeout, Some(fault));
                if let Err(Error::Timeout { call: method, elapsed, .. }) = outcome.result {
                    // Or what the case does before.
                    let is_named =
                        name.contains(method) || ["pre_mul_sum_device", "register_window"].contains(&method);
                    assert!(is_named, "{name}, {call:?}: {method} times out");
                    assert!(elapsed >= TIMEOUT, "{name}, {call:?}: {elapsed:?}");
                    assert!(outcome.took >= elapsed, "{name}, {call:?}: {:?}", outcome.took);
                    timeouts += 1;
                }
            }
        }
    }
    assert!(timeouts > 100, "{timeouts} waits");
}

#[test]
fn every_endless_wait_without_timeout_ends_on_abort() {
    let mut aborts = 0;
    for case in methods::all() {
        // There is no abort handle of a new communicator yet: only a timeout ends the wait.
        if ["init", "into_raw"].iter().any(|new| case.name.starts_with(new)) {
            continue;
        }
        for call in baseline(&case, Timing::None).numbered_calls() {
            let fault = Fault { code: IN_PROGRESS, progress: Progress::Never, ..Fault::of(call) };
            let outcome = run(&case, Timing::Abort, Some(fault));
            aborts += usize::from(matches!(outcome.result, Err(Error::Aborted { .. })));
        }
    }
    assert!(aborts > 50, "{aborts} waits");
}

#[test]
fn every_wait_any_final_code_or_wavering_ends() {
    // `codes.rs` has the others. Every wait ends with one of these, the next wait with the next.
    let mut ends = [1, 8, u32::MAX].map(Progress::EndsWith).into_iter().cycle();
    for case in methods::all() {
        for (call, end) in baseline(&case, Timing::Timeout).numbered_calls().into_iter().zip(&mut ends) {
            for progress in [end, Progress::Done, Progress::Wavers] {
                let fault = Fault { code: IN_PROGRESS, progress, ..Fault::of(call) };
                let outcome = run(&case, Timing::Timeout, Some(fault));
                if let (Progress::EndsWith(expected), Err(Error::Nccl { call, code, .. })) =
                    (progress, &outcome.result)
                {
                    let found = code.as_raw().0;
                    assert!([expected, IN_PROGRESS].contains(&found), "{}, {call}: {found}", case.name);
                }
            }
        }
    }
}
