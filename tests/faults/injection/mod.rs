//! Fault injection: whatever any C function returns or writes, the safe layer must not panic, hang, use an ended object,
//! or leave a group open; and its errors name the call and the code.
//!
//! Every method runs once to find out which functions it calls, and then once for each of these calls and each fault.
//! So a new function only needs a method in `methods.rs` that calls it, which a test checks.

mod fault;
mod methods;
mod run;
mod texts;
mod versions;
mod waits;

use std::collections::BTreeSet;

use fault::{CODES, Fault};
use libnccl::Error;
use libnccl::sys::Functions;
use libnccl_test_support::fake_nccl::{IN_PROGRESS, Output};
use run::{Outcome, Timing, baseline, run};

/// Functions whose result is ignored: a drop calls them, and cannot return an error.
const IGNORED: [&str; 1] = ["ncclRedOpDestroy"];

#[test]
fn every_function_is_called_by_a_method() {
    let reached: BTreeSet<&str> =
        methods::all().iter().flat_map(|method| baseline(method, Timing::Timeout).calls).collect();
    // `texts.rs` tests the error texts; `ncclBroadcast` replaces `ncclBcast`.
    let elsewhere = ["ncclBcast", "ncclGetErrorString", "ncclGetLastError"];
    let missing: Vec<_> = Functions::NAMES
        .iter()
        .filter(|name| !reached.contains(*name) && !elsewhere.contains(name))
        .collect();
    assert!(missing.is_empty(), "no method in methods.rs reaches {missing:?}");
}

#[test]
fn every_method_without_faults_succeeds() {
    for timing in [Timing::Timeout, Timing::None] {
        for method in methods::all() {
            let Outcome { result, .. } = run(&method, timing, None);
            result.unwrap_or_else(|error| panic!("{}, {timing:?}: {error}", method.name));
        }
    }
}

/// Combines each call and each code with a correct output, no output, and invalid ones. Of these faults, tests one in
/// `step`.
fn inject(step: usize) {
    let mut count = 0;
    for timing in [Timing::Timeout, Timing::None] {
        for method in methods::all() {
            for call in baseline(&method, timing).own_calls(&method) {
                for code in CODES {
                    // Outputs are read only after a success, or while the call is in progress.
                    let is_read = [0, 3, IN_PROGRESS].contains(&code);
                    for output in if is_read { &Output::ALL[..] } else { &Output::ALL[..1] } {
                        count += 1;
                        if count % step != 0 {
                            continue;
                        }
                        let fault = Fault { code, output: *output, ..Fault::of(call) };
                        let outcome = run(&method, timing, Some(fault.clone()));
                        check(&format!("{}, {timing:?}, {fault:?}", method.name), &fault, &outcome);
                    }
                }
            }
        }
    }
    assert!(count > 10_000, "{count} faults");
}

/// Each call has 27 faults: four of them here, and others at the next call.
#[test]
fn every_call_some_codes_and_outputs_are_reported() {
    inject(7);
}

#[test]
#[ignore = "takes 20 s: .ci/long"]
fn every_call_any_code_and_output_is_reported() {
    inject(1);
}

/// Checks that an error code is returned as an error with that call and that code.
fn check(context: &str, fault: &Fault, outcome: &Outcome) {
    assert!(outcome.was_hit, "{context}: the call was not made");
    if [0, IN_PROGRESS].contains(&fault.code) || IGNORED.contains(&fault.function) {
        return;
    }
    // These return no code.
    if ["ncclGetLastError", "ncclParamDumpAll"].contains(&fault.function) {
        return;
    }
    // These codes mean "unknown parameter" and "buffer too small".
    let is_lookup = ["ncclParamBind", "ncclParamGetParameter", "ncclParamGet"].contains(&fault.function);
    if is_lookup && fault.code == 4 {
        return;
    }
    match &outcome.result {
        Err(Error::Nccl { call, code, .. }) => {
            assert_eq!((*call, code.as_raw().0), (fault.function, fault.code), "{context}");
        }
        other => panic!("{context}: {other:?}"),
    }
}

#[test]
fn every_absent_function_is_unsupported() {
    for method in methods::all() {
        let calls: BTreeSet<&'static str> = baseline(&method, Timing::Timeout).calls.into_iter().collect();
        // Without `ncclGetVersion` a library does not load, and without `ncclGroupEnd` a group cannot end.
        for function in calls.into_iter().filter(|name| !["ncclGetVersion", "ncclGroupEnd"].contains(name)) {
            let context = format!("{} without {function}", method.name);
            let fault = Fault { is_absent: true, ..Fault::of((function, 0)) };
            match run(&method, Timing::Timeout, Some(fault)).result {
                // Other functions may replace it, or it may be called by a drop.
                Ok(()) => {}
                Err(Error::Unsupported { function: named, .. }) => {
                    assert!(named.starts_with(function), "{context}: {named}");
                }
                Err(error) => panic!("{context}: {error}"),
            }
        }
    }
}
