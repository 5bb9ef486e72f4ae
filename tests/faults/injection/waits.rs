//! Nonblocking work that never completes, fails, or reports contradictory states.

use libnccl::Error;
use libnccl_test_support::fake_nccl::{IN_PROGRESS, Output};

use super::fault::{Fault, Progress};
use super::methods;
use super::run::{TIMEOUT, Timing, baseline, run};

/// Methods that wait for a new communicator, for which there is no abort handle yet: only the timeout ends the wait.
const WITHOUT_A_HANDLE: [&str; 7] =
    ["init_rank", "init_rank_with", "init_rank_scalable", "init_all", "grow_rank", "pending", "two pending"];

const QUERIES_OF_INIT: [&str; 4] =
    ["ncclCommGetAsyncError", "ncclCommCount", "ncclCommUserRank", "ncclCommCuDevice"];

#[test]
fn every_endless_wait_ends_at_its_timeout() {
    let mut timeouts = 0;
    for method in methods::all() {
        for call in baseline(&method, Timing::Timeout).own_calls(&method) {
            // These create blocking communicators, which have no timeout.
            if ["init_rank", "init_all", "into_raw and from_raw", "simulate"].contains(&method.name.as_str())
            {
                continue;
            }
            for output in [Output::Correct, Output::Zeros] {
                let fault = Fault { code: IN_PROGRESS, output, progress: Progress::Never, ..Fault::of(call) };
                let outcome = run(&method, Timing::Timeout, Some(fault));
                if let Err(Error::Timeout { elapsed, .. }) = outcome.result {
                    assert!(elapsed >= TIMEOUT, "{}, {call:?}: {elapsed:?}", method.name);
                    assert!(outcome.took >= elapsed, "{}, {call:?}: {:?}", method.name, outcome.took);
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
    for method in methods::all() {
        // The last two create a communicator while there is another one.
        let skipped = [&WITHOUT_A_HANDLE[..], &["into_raw and from_raw", "destroy_all"]].concat();
        if skipped.contains(&method.name.as_str()) {
            continue;
        }
        let outcome = baseline(&method, Timing::None);
        for call in outcome.own_calls(&method) {
            // There is no abort handle yet.
            let is_of_init = method.is_about_lifecycle && QUERIES_OF_INIT.contains(&call.0) && call.1 == 0;
            if is_of_init || call.0.starts_with("ncclCommInit") {
                continue;
            }
            let fault = Fault { code: IN_PROGRESS, progress: Progress::Never, ..Fault::of(call) };
            let outcome = run(&method, Timing::Abort, Some(fault));
            aborts += usize::from(matches!(outcome.result, Err(Error::Aborted { .. })));
        }
    }
    assert!(aborts > 50, "{aborts} waits");
}

#[test]
fn every_wait_any_final_code_or_wavering_ends() {
    let ends = [1, 2, 3, 4, 5, 6, 8, 9, 1000, u32::MAX].map(Progress::EndsWith);
    for method in methods::all() {
        for call in baseline(&method, Timing::Timeout).own_calls(&method) {
            for progress in ends.into_iter().chain([Progress::Done, Progress::Wavers]) {
                let fault = Fault { code: IN_PROGRESS, progress, ..Fault::of(call) };
                let outcome = run(&method, Timing::Timeout, Some(fault));
                if let (Progress::EndsWith(expected), Err(Error::Nccl { call, code, .. })) =
                    (progress, &outcome.result)
                {
                    let found = code.as_raw().0;
                    assert!([expected, IN_PROGRESS].contains(&found), "{}, {call}: {found}", method.name);
                }
            }
        }
    }
}
