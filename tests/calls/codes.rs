//! Result codes, at the end of every wait of every method.

use std::iter;

use libnccl::Error;
use libnccl::error::ResultCode;
use libnccl_test_support::fake_nccl::{FakeNccl, IN_PROGRESS, SUCCESS};

use crate::fixture::Fixture;
use crate::methods::{self, Case};

/// The header's codes, and one that it does not know.
pub(crate) const CODES: [u32; 11] = [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 77];

/// Functions after which the facade has nothing to wait for, or no communicator to poll.
const NOT_WAITED_FOR: &[&str] = &[
    "ncclCommAbort",
    "ncclCommCount",
    "ncclCommCuDevice",
    "ncclCommDeregister",
    "ncclCommDestroy",
    "ncclCommGetAsyncError",
    "ncclCommMemStats",
    "ncclCommUserRank",
    "ncclCommWindowDeregister",
    "ncclRedOpDestroy",
    "ncclWinGetUserPtr",
];

/// Returns the function of each call, its number among those of the function, and the depth of groups.
fn positions(calls: &[String]) -> Vec<(&'static str, usize, u32)> {
    let mut depth = 0;
    let mut positions: Vec<(&'static str, usize, u32)> = Vec::new();
    for call in calls {
        let name = call.split('(').next().unwrap();
        let name = *libnccl::sys::Functions::NAMES.iter().find(|known| **known == name).unwrap();
        let before = positions.iter().filter(|(function, ..)| *function == name).count();
        match name {
            "ncclGroupStart" => depth += 1,
            "ncclGroupEnd" | "ncclGroupSimulateEnd" => depth -= 1,
            _ => {}
        }
        positions.push((name, before, depth));
    }
    positions
}

/// Returns whether a method waits after a call that is in progress.
fn waits(case: &Case, call: &str, (function, _, depth): (&str, usize, u32)) -> bool {
    let with_a_communicator = call.contains("comm") || function.starts_with("ncclCommInit");
    let ends_with_members = function == "ncclGroupEnd" && case.calls.iter().any(|call| call.contains("comm"));
    depth == 0
        && (ends_with_members || function == "ncclCommGrow" || with_a_communicator)
        && !NOT_WAITED_FOR.contains(&function)
        && !case.ignores.contains(&function)
        && !case.name.contains("without a color")
}

// Regression: cudarc takes a communicator in progress for ready.
// Regression: baracuda fails and leaks on a nonblocking initialisation.
#[test]
fn every_wait_some_final_codes_are_reported() {
    end_waits(2);
}

#[test]
#[ignore = "takes seconds of a processor: .ci/long"]
fn every_wait_any_final_code_is_reported() {
    end_waits(CODES.len() - 2);
}

/// Ends every wait, after every call after which a method waits, with a success and with so many failures; the next one with the
/// next failures.
fn end_waits(count: usize) {
    let failures = CODES.into_iter().filter(|code| ![SUCCESS, IN_PROGRESS].contains(code));
    let mut failures = failures.cycle();
    for case in methods::all() {
        for (call, position) in case.calls.iter().zip(positions(&case.calls)) {
            if !waits(&case, call, position) {
                continue;
            }
            for code in iter::once(SUCCESS).chain(failures.by_ref().take(count)) {
                let (function, before, _) = position;
                let context = format!("{}: {function} ends with {code}", case.name);
                let fixture = Fixture::of_release(case.version);
                fixture.fake.answer_once(function, before, IN_PROGRESS);
                fixture.fake.set_async_states([IN_PROGRESS, code], SUCCESS);
                let result = (case.act)(&fixture);
                assert_eq!(fixture.fake.async_states_left(), 0, "{context}: the method did not wait");
                if code == SUCCESS {
                    assert!(result.is_ok(), "{context}: {:?}", result.err());
                    drop(result);
                    fixture.close(&context);
                    continue;
                }
                let Err(Error::Nccl { call, code: found, .. }) = &result else {
                    panic!("{context}: {:?}", result.err())
                };
                assert_eq!(found.as_raw().0, code, "{context}");
                assert!(!call.starts_with("nccl"), "{context}: {call} is not the method");
                drop(result);
                fixture.close(&context);
            }
        }
    }
}

#[test]
fn unique_id_failure_is_reported_and_not_retried() {
    for code in CODES.into_iter().filter(|code| ![SUCCESS, IN_PROGRESS].contains(code)) {
        let fake = FakeNccl::new();
        fake.answer("ncclGetUniqueId", code);
        let nccl = fake.nccl();
        for _ in 0..2 {
            let error = nccl.unique_id().unwrap_err();
            assert_eq!(error.code().map(ResultCode::as_raw).map(|raw| raw.0), Some(code), "{error}");
        }
        // NCCL up to 2.21.5 hangs in a second call after a failure.
        assert_eq!(fake.take_log(), ["ncclGetUniqueId(&)"]);
    }
    assert!(FakeNccl::new().nccl().unique_id().is_ok());
}
