//! Fault injection: for any return value and any output of a C function, the safe layer must not panic, hang, use a
//! destroyed object, or leave a group open. Its errors name the call and the code.
//!
//! Every case of `methods.rs` runs once to find out which functions it calls, and then once for each of these calls and
//! each fault. So a new function only needs a case that calls it, which a test checks.

use std::collections::BTreeSet;
use std::ffi::CString;
use std::iter;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread;
use std::time::Duration;

use libnccl::buffer::MemorySpace;
use libnccl::communicator::AbortHandle;
use libnccl::error::{LoadError, ResultCode};
use libnccl::sys::Functions;
use libnccl::{Error, Result, Version};
use libnccl_test_support::fake_nccl::{
    ErrorText, FakeNccl, IN_PROGRESS, INVALID_ARGUMENT, Output, Rule, SUCCESS,
};

use crate::fixture::{Fixture, work};
use crate::methods::{self, Case};
#[cfg(target_os = "linux")]
use crate::own_process::is_own;

/// The header's codes, and some unknown ones.
pub(crate) const CODES: [u32; 12] = [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 1000, u32::MAX];

/// Returns all except success and "in progress", which is not an error.
pub(crate) fn failures() -> impl Iterator<Item = u32> + Clone {
    CODES.into_iter().filter(|code| ![SUCCESS, IN_PROGRESS].contains(code))
}

/// The event that ends a wait for a communicator that never makes progress.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Timing {
    /// The communicators' timeout.
    Timeout,
    /// Nothing: the communicators block.
    None,
    /// An abort handle, used repeatedly by another thread after the fault.
    Abort,
}

const TIMEOUT: Duration = Duration::from_millis(3);
/// The time limit of a run, even on a slow machine.
const DEADLINE: Duration = Duration::from_secs(30);

struct Outcome {
    result: Result<()>,
    /// The functions that the method has called.
    calls: Vec<&'static str>,
    was_hit: bool,
}

/// A function, and the number of the call among those that the method makes of it, from 0.
type Call = (&'static str, usize);

/// Returns the calls of a case without a fault, except those that create ids, whose failures the facade stores for the process.
fn calls_of(case: &Case, timing: Timing) -> Vec<Call> {
    let calls = run(case, timing, |_| {}, None).calls;
    let number = |(index, function): (usize, &&'static str)| {
        (*function, calls[..index].iter().filter(|called| *called == function).count())
    };
    calls.iter().enumerate().map(number).filter(|call| call.0 != "ncclGetUniqueId").collect()
}

/// Makes one call return a code.
fn once((function, at): Call, code: u32) -> Rule {
    Rule::once(function, at, code)
}

/// Makes one call return "in progress", and leaves the communicators in progress.
fn never_done(call: Call) -> Rule {
    Rule { never_ends: true, ..once(call, IN_PROGRESS) }
}

/// Runs a case in a separate thread and with a deadline, with a library prepared before it is loaded, and a fault.
fn run(case: &Case, timing: Timing, prepare: impl Fn(&FakeNccl) + Send, rule: Option<Rule>) -> Outcome {
    let context = format!("{}, {timing:?}, {rule:?}", case.name);
    let (sender, receiver) = channel();
    thread::scope(|scope| {
        let rule = &rule;
        scope.spawn(move || {
            let sender = sender; // Dropped if it panics.
            let library = FakeNccl::of_version(case.version);
            prepare(&library);
            let _ = sender.send((outcome(case, timing, &library, rule), problems(&library, timing, rule)));
        });
        match receiver.recv_timeout(DEADLINE) {
            Ok((outcome, problems)) => {
                assert!(problems.is_empty(), "{context}: {problems:?}, after {:?}", outcome.calls);
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

fn outcome(case: &Case, timing: Timing, library: &FakeNccl, rule: &Option<Rule>) -> Outcome {
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
    let mut before = 0;
    // Before, all communicators block.
    let has_timeout = timing == Timing::Timeout && case.version >= Version::new(2, 14, 3);
    let made = Fixture::of(library.clone(), has_timeout.then_some(TIMEOUT));
    let result = made.and_then(|fixture| {
        before = library.calls().len();
        rule.iter().for_each(|rule| library.add_rule(rule.clone()));
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
    let (calls, was_hit) = (library.calls().split_off(before), library.has_deviated());
    Outcome { result: result.map(drop), calls, was_hit }
}

/// Returns the facade's mistakes in its use of a library after a run.
fn problems(library: &FakeNccl, timing: Timing, rule: &Option<Rule>) -> Vec<String> {
    library.repair();
    library.write_pending_children();
    let mut problems = library.violations();
    let ends_all = |rule: &Rule| {
        // An incomplete child is destroyed by its parent, and a failed teardown may continue in the background.
        let is_over = timing == Timing::None || rule.never_ends;
        is_over && rule.output.is_none() && rule.function != "ncclCommGetAsyncError"
    };
    if rule.as_ref().is_none_or(ends_all) {
        problems.extend(library.leaks());
    }
    // This thread must be outside any group.
    if let Err(error) = library.load().map_err(Error::from).and_then(|nccl| nccl.group(|_| Ok(()))) {
        problems.push(format!("a later group fails: {error}"));
    }
    problems
}

/// Checks that an error names the call, and NCCL's code if it is NCCL's.
fn check_text(context: &str, error: &Error) {
    let text = error.to_string();
    assert!(!text.trim().is_empty(), "{context}: no text");
    assert!(text.len() < 4 << 20, "{context}: {} bytes of text", text.len());
    if let Error::Nccl { call, code, .. } = error {
        // The C function, or the method that waited.
        assert!(!call.starts_with("nccl") || Functions::NAMES.contains(call), "{context}: {call}");
        let (start, code) = (format!("{call} failed: "), format!("(code {})", code.as_raw().0));
        assert!(text.starts_with(&start) && text.contains(&code), "{context}: {text:.200}");
    }
    if let Error::InvalidArgument { call, .. } | Error::InvalidUsage { call, .. } = error {
        assert!(text.starts_with(call), "{context}: {text:.200}");
    }
}

#[test]
fn every_function_is_called_by_a_method() {
    let reached: BTreeSet<&str> = methods::all()
        .iter()
        .flat_map(|case| calls_of(case, Timing::Timeout))
        .map(|(name, _)| name)
        .collect();
    // Loading, ids and errors call these; `ncclBroadcast` replaces `ncclBcast`.
    let elsewhere =
        ["ncclBcast", "ncclGetErrorString", "ncclGetLastError", "ncclGetUniqueId", "ncclGetVersion"];
    let missing: Vec<_> = Functions::NAMES
        .iter()
        .filter(|name| !reached.contains(*name) && !elsewhere.contains(name))
        .collect();
    assert!(missing.is_empty(), "no case in methods.rs reaches {missing:?}");
}

/// Combines each call and each code with the output of NCCL, with none, and with invalid ones. Of these faults, tests one in
/// `step`.
fn inject(step: usize) {
    let mut count = 0;
    for timing in [Timing::Timeout, Timing::None] {
        for case in methods::all() {
            run(&case, timing, |_| {}, None).result.unwrap_or_else(|error| panic!("{}: {error}", case.name));
            for call in calls_of(&case, timing) {
                for code in CODES {
                    let mut outputs = vec![None];
                    // They are read only after a success, or while the call is in progress.
                    if [0, 3, IN_PROGRESS].contains(&code) {
                        outputs.extend(Output::ALL.map(Some));
                    }
                    for output in outputs {
                        count += 1;
                        if count % step == 0 {
                            let rule = Rule { output, ..once(call, code) };
                            let context = format!("{}, {timing:?}, {rule:?}", case.name);
                            check(&context, &case, &rule, &run(&case, timing, |_| {}, Some(rule.clone())));
                        }
                    }
                }
            }
        }
    }
    assert!(count > 10_000, "{count} faults");
}

/// Each call has 24 faults: one of them here, and another one at the next call.
// Regression: cudarc takes an unknown result code for success, or is undefined.
// Regression: cupy raises a KeyError for codes above 6.
// Regression: cupy loses the results of destroy and abort.
// Regression: monarch panics on codes above 7.
#[test]
fn every_call_some_codes_and_outputs_are_reported() {
    inject(25);
}

#[test]
#[ignore = "takes a minute: .ci/run long"]
fn every_call_any_code_and_output_is_reported() {
    inject(1);
}

/// Checks that an error code is returned as an error with that call and that code, and that a call in progress is none.
fn check(context: &str, case: &Case, rule: &Rule, outcome: &Outcome) {
    assert!(outcome.was_hit, "{context}: the call was not made");
    let is_lookup = ["ncclParamBind", "ncclParamGetParameter", "ncclParamGet"].contains(&rule.function);
    let is_success = match rule.code {
        SUCCESS | IN_PROGRESS => true,
        // "Unknown parameter" and "buffer too small".
        INVALID_ARGUMENT if is_lookup => true,
        _ => case.ignores.contains(&rule.function),
    };
    match &outcome.result {
        // Any result is allowed for invalid outputs, and for a simulation that runs.
        _ if is_success && (rule.output.is_some() || rule.function == "ncclGroupSimulateEnd") => {}
        Ok(()) if is_success => {}
        Err(Error::Nccl { call, code, .. }) if !is_success => {
            assert_eq!((*call, code.as_raw().0), (rule.function, rule.code), "{context}");
        }
        other => panic!("{context}: {other:?}"),
    }
}

// Regression: cudarc panics when the library lacks a function.
#[test]
fn every_absent_function_is_unsupported() {
    for case in methods::all() {
        // Without `ncclGetVersion` a library does not load, and without `ncclGroupEnd` a group cannot end.
        let calls = calls_of(&case, Timing::Timeout).into_iter().filter(|(_, at)| *at == 0);
        for (function, _) in calls.filter(|(name, _)| !["ncclGetVersion", "ncclGroupEnd"].contains(name)) {
            let remove = |fake: &FakeNccl| fake.remove_functions(|name| name == function);
            // Never applies, but allows leaked communicators: the function may be the one that destroys them.
            let rule = Rule { output: Some(Output::Correct), ..once((function, usize::MAX), SUCCESS) };
            match run(&case, Timing::Timeout, remove, Some(rule)).result {
                // Other functions may replace it, or it may be called by a drop.
                Ok(()) => {}
                Err(Error::Unsupported { function: named, .. }) if named.starts_with(function) => {}
                Err(error) => panic!("{} without {function}: {error}", case.name),
            }
        }
    }
}

#[test]
fn error_text_of_any_bytes_is_copied() {
    const LENGTH: usize = 64 << 10;
    let long = ErrorText::Of(Box::leak(CString::new("x".repeat(LENGTH)).unwrap().into_boxed_c_str()));
    for (text, expected) in [
        (ErrorText::Null, ""),
        (ErrorText::Of(c""), ""),
        (ErrorText::Of(c"\xff\xfe broken \xc3"), "\u{fffd}\u{fffd} broken \u{fffd}"),
        (long, "xxx"),
        (ErrorText::Changing, "text 0"),
    ] {
        let fixture = Fixture::new();
        fixture.fake.set(|fake| fake.error_text = text);
        fixture.fake.set_code("ncclAllReduce", 3);
        let Err(Error::Nccl { message, detail, .. }) = work(&fixture.comm) else { panic!("{text:?}") };
        for copied in [&message, &detail] {
            assert!(copied.starts_with(expected), "{text:?}: {copied:.200}");
            assert_eq!(copied.is_empty(), expected.is_empty(), "{text:?}: {copied:.200}");
        }
        let differs = [ErrorText::Changing, long].contains(&text);
        assert_eq!(differs, message != detail, "{text:?}");
        assert_eq!(text == long, message.len() == LENGTH, "{text:?}");
        // NCCL's buffer for the last error has no more.
        assert!(detail.len() <= 1024, "{text:?}");
    }
}

#[test]
fn any_result_of_ncclgetversion_loads_or_fails() {
    for (code, output) in CODES.into_iter().flat_map(|code| Output::ALL.map(|output| (code, output))) {
        let library = FakeNccl::new();
        library.add_rule(Rule { output: Some(output), ..once(("ncclParamGetParameter", 0), code) });
        assert_eq!(library.load().unwrap().memory_space(), MemorySpace::Device, "code {code}, {output:?}");
        library.add_rule(Rule { output: Some(output), ..Rule::always("ncclGetVersion", code) });
        match library.load() {
            Ok(nccl) => {
                assert_eq!((code, output, nccl.version()), (SUCCESS, Output::Correct, Version::HEADER));
            }
            Err(error) => {
                assert_ne!((code, output), (SUCCESS, Output::Correct));
                let text = error.to_string();
                assert!(matches!(error, LoadError::VersionQuery { .. }), "{text}");
                assert!(
                    text.contains("ncclGetVersion: it returned") && text.contains(&format!("({code})")),
                    "{text}"
                );
            }
        }
    }
    let library = FakeNccl::new();
    library.remove_functions(|name| name == "ncclGetVersion");
    assert!(matches!(library.load(), Err(LoadError::VersionQuery { .. })));
}

/// Calls may fail only if a library of that version lacks something.
#[test]
fn every_method_of_any_version_succeeds_or_is_unsupported() {
    for version in [1, 2_804, 9_999, 10_000, 22_105, i32::MAX] {
        for case in methods::all().iter().filter(|case| case.version == Version::HEADER) {
            match run(case, Timing::Timeout, |fake| fake.set(|fake| fake.version = version), None).result {
                Ok(()) | Err(Error::Unsupported { .. }) => {}
                Err(error) => panic!("{} of {version}: {error}", case.name),
            }
        }
    }
}

/// NCCL up to 2.21.5 hangs in a second call after a failure. An id is never in progress.
#[cfg(target_os = "linux")]
#[test]
fn unique_id_failure_is_reported_and_not_retried() {
    if !is_own(module_path!(), "unique_id_failure_is_reported_and_not_retried") {
        return;
    }
    let fake = FakeNccl::new();
    fake.set_code("ncclGetUniqueId", IN_PROGRESS);
    let nccl = fake.nccl();
    for _ in 0..2 {
        let error = nccl.unique_id().unwrap_err();
        assert!(matches!(error, Error::Nccl { call: "ncclGetUniqueId", .. }), "{error}");
        assert_eq!(error.code(), Some(ResultCode::IN_PROGRESS));
    }
    assert_eq!(fake.take_log(), ["ncclGetUniqueId(&)"]);
}

#[test]
fn every_endless_wait_ends_at_its_timeout() {
    let mut timeouts = 0;
    for case in methods::all().iter().filter(|case| case.version == Version::HEADER) {
        let name = case.name.as_str();
        // Blocking communicators have no timeout.
        if ["init", "init by one id of several", "init_all", "init_in", "into_raw and from_raw"]
            .contains(&name)
        {
            continue;
        }
        for call in calls_of(case, Timing::Timeout) {
            for output in [None, Some(Output::Zeros)] {
                let rule = Rule { output, ..never_done(call) };
                let outcome = run(case, Timing::Timeout, |_| {}, Some(rule));
                if let Err(Error::Timeout { call: method, elapsed, .. }) = outcome.result {
                    // Or an earlier call of the case.
                    let is_named =
                        name.contains(method) || ["pre_mul_sum_device", "register_window"].contains(&method);
                    assert!(is_named, "{name}, {call:?}: {method} times out");
                    assert!(elapsed >= TIMEOUT, "{name}, {call:?}: {elapsed:?}");
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
        for call in calls_of(&case, Timing::None) {
            let outcome = run(&case, Timing::Abort, |_| {}, Some(never_done(call)));
            aborts += usize::from(matches!(outcome.result, Err(Error::Aborted { .. })));
        }
    }
    assert!(aborts > 50, "{aborts} waits");
}

/// After every call that may be in progress, the method waits, and returns the final code: a success, or some of the failures; at
/// the next call the next failures.
// Regression: cudarc takes a communicator in progress for ready.
// Regression: baracuda fails and leaks on a nonblocking initialization.
#[test]
fn every_wait_reports_the_final_code() {
    let (mut failures, mut waits) = (failures().cycle(), 0);
    for case in methods::all() {
        for call in calls_of(&case, Timing::None) {
            for code in iter::once(SUCCESS).chain(failures.by_ref().take(2)) {
                let context = format!("{}: {call:?} ends with {code}", case.name);
                let fixture = Fixture::of_version(case.version);
                fixture.fake.add_rule(once(call, IN_PROGRESS));
                fixture.fake.set_async_states([IN_PROGRESS, code], SUCCESS);
                let result = (case.act)(&fixture);
                if fixture.fake.async_states_left() > 0 {
                    // There is nothing to wait for, or no communicator to poll.
                    break;
                }
                waits += usize::from(code == SUCCESS);
                match &result {
                    Ok(_) if code == SUCCESS => {}
                    Err(Error::Nccl { call, code: found, .. }) => {
                        assert_eq!(found.as_raw().0, code, "{context}");
                        assert!(!call.starts_with("nccl"), "{context}: {call} is not the method");
                    }
                    _ => panic!("{context}: {:?}", result.err()),
                }
                drop(result);
                fixture.close(&context);
            }
        }
    }
    // A new case adds its calls. With fewer, a method has not waited.
    assert_eq!(waits, 342);
}

/// NCCL returns success, and its own thread completes the call and writes handles.
#[test]
fn call_of_nonblocking_communicator_waits_after_success() {
    let is_polled = |call: &String| call.starts_with("ncclCommGetAsyncError");
    let cases = methods::all().into_iter().filter(|case| case.calls.iter().any(is_polled));
    for case in cases.filter(|case| case.name != "async_error") {
        let fixture = Fixture::of_version(case.version);
        fixture.fake.set_async_states([IN_PROGRESS; 2], SUCCESS);
        let kept = (case.act)(&fixture).unwrap_or_else(|error| panic!("{}: {error}", case.name));
        assert_eq!(fixture.fake.async_states_left(), 0, "{}", case.name);
        drop(kept);
        fixture.close(&case.name);
    }
}
