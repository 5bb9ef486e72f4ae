//! What a library says of itself, before it is used.

use libnccl::{Error, LoadError, MemorySpace};

use crate::fake_nccl::Output;
use crate::fault::{CODES, Fault};
use crate::methods;
use crate::run::{Timing, run};

#[test]
fn every_answer_of_ncclgetversion() {
    for code in CODES {
        for output in Output::ALL {
            let context = format!("code {code}, {output:?}");
            let loaded = Fault { code, output, ..Fault::of(("ncclGetVersion", 0)) }.library().load();
            let is_positive = [Output::Correct, Output::Huge, Output::Partial].contains(&output);
            match loaded {
                Ok(nccl) => {
                    assert!(code == 0 && is_positive, "{context}");
                    assert!(nccl.version().to_string().split('.').count() == 3, "{context}");
                }
                Err(error @ LoadError::NoVersion { .. }) => {
                    assert!(code != 0 || !is_positive, "{context}: {error}");
                    let text = error.to_string();
                    assert!(
                        text.contains("ncclGetVersion: it answered") && text.contains(&format!("({code})"))
                    );
                }
                Err(error) => panic!("{context}: {error}"),
            }
        }
    }
}

#[test]
fn a_library_without_ncclgetversion() {
    let loaded = Fault { is_absent: true, ..Fault::of(("ncclGetVersion", 0)) }.library().load();
    assert!(matches!(loaded, Err(LoadError::NoVersion { .. })), "{loaded:?}");
}

#[test]
fn every_answer_to_where_its_memory_is() {
    for code in CODES {
        for output in Output::ALL {
            let fault = Fault { code, output, ..Fault::of(("ncclParamGetParameter", 0)) };
            let nccl = fault.library().load().unwrap();
            assert_eq!(nccl.memory_space(), MemorySpace::Device);
        }
    }
}

/// Then all that a library can be refused is what that release does not have.
#[test]
fn every_method_of_a_library_of_any_version() {
    for version in [1, 999, 2_804, 9_999, 10_000, 21_304, 22_105, 29_999, 1_000_000, i32::MAX] {
        for method in methods::all() {
            let fault = Fault { version, ..Fault::of(("ncclCommAbort", usize::MAX)) };
            match run(&method, Timing::Timeout, Some(fault)).result {
                Ok(()) | Err(Error::Unsupported { .. }) => {}
                Err(error) => panic!("{} of {version}: {error}", method.name),
            }
        }
    }
}
