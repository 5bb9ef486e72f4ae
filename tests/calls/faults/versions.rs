//! Answers to the queries that loading makes: the version, and the memory space.

use libnccl::buffer::MemorySpace;
use libnccl::error::LoadError;
use libnccl::{Error, Nccl, Version};
use libnccl_test_support::fake_nccl::Output;

use super::fault::{CODES, Fault};
use super::run::{Timing, run};
use crate::methods;

/// Loads a library with a fault in the first call of a function.
fn load(fault: &Fault) -> Result<Nccl, LoadError> {
    let library = fault.library(Version::HEADER);
    fault.arm(&library);
    library.load()
}

#[test]
fn ncclgetversion_any_answer_loads_or_fails() {
    for code in CODES {
        for output in Output::ALL {
            let context = format!("code {code}, {output:?}");
            let loaded = load(&Fault { code, output: Some(output), ..Fault::of(("ncclGetVersion", 0)) });
            let is_positive = [Output::Correct, Output::Huge, Output::Partial].contains(&output);
            match loaded {
                Ok(nccl) => {
                    assert_eq!((code, is_positive), (0, true), "{context}");
                    assert_eq!(nccl.version().to_string().split('.').count(), 3, "{context}");
                }
                Err(error @ LoadError::VersionQuery { .. }) => {
                    assert!(code != 0 || !is_positive, "{context}: {error}");
                    let text = error.to_string();
                    for part in ["ncclGetVersion: it returned", &format!("({code})")] {
                        assert!(text.contains(part), "{context}: no {part:?} in {text}");
                    }
                }
                Err(error) => panic!("{context}: {error}"),
            }
        }
    }
}

#[test]
fn ncclgetversion_absent_fails_to_load() {
    let loaded = load(&Fault { is_absent: true, ..Fault::of(("ncclGetVersion", 0)) });
    assert!(matches!(loaded, Err(LoadError::VersionQuery { .. })), "{loaded:?}");
}

#[test]
fn memory_space_any_answer_but_host_is_device() {
    for code in CODES {
        for output in Output::ALL {
            let output = Some(output);
            let nccl = load(&Fault { code, output, ..Fault::of(("ncclParamGetParameter", 0)) }).unwrap();
            assert_eq!(nccl.memory_space(), MemorySpace::Device);
        }
    }
}

/// Calls may only fail for what a release of that version lacks.
#[test]
fn every_method_any_version_succeeds_or_is_unsupported() {
    for version in [1, 2_804, 9_999, 10_000, 22_105, i32::MAX] {
        for case in methods::all().iter().filter(|case| case.version == Version::HEADER) {
            let fault = Fault { version: Some(version), ..Fault::of(("ncclCommAbort", usize::MAX)) };
            match run(case, Timing::Timeout, Some(fault)).result {
                Ok(()) | Err(Error::Unsupported { .. }) => {}
                Err(error) => panic!("{} of {version}: {error}", case.name),
            }
        }
    }
}
