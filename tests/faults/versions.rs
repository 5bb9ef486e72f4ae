//! What a library says of itself, before it is used.

use libnccl::{Error, LoadError, MemorySpace};

use crate::fault::{CODES, Fault, Outs};
use crate::library::Library;
use crate::methods;
use crate::run::{Timing, run};

#[test]
fn every_answer_of_ncclgetversion() {
    for code in CODES {
        for outs in Outs::ALL {
            let context = format!("code {code}, {outs:?}");
            let loaded = Library::new(Some(Fault { code, outs, ..Fault::of(("ncclGetVersion", 0)) })).nccl();
            let is_positive = [Outs::Proper, Outs::Huge, Outs::Part].contains(&outs);
            match loaded {
                Ok(nccl) => {
                    assert!(code == 0 && is_positive, "{context}");
                    assert!(nccl.version().to_string().split('.').count() == 3, "{context}");
                }
                Err(error @ LoadError::VersionQuery { .. }) => {
                    assert!(code != 0 || !is_positive, "{context}: {error}");
                    let text = error.to_string();
                    assert!(
                        text.contains("ncclGetVersion: it returned") && text.contains(&format!("({code})"))
                    );
                }
                Err(error) => panic!("{context}: {error}"),
            }
        }
    }
}

#[test]
fn a_library_without_ncclgetversion() {
    let loaded = Library::new(Some(Fault { is_absent: true, ..Fault::of(("ncclGetVersion", 0)) })).nccl();
    assert!(matches!(loaded, Err(LoadError::VersionQuery { .. })), "{loaded:?}");
}

#[test]
fn every_answer_to_where_its_memory_is() {
    for code in CODES {
        for outs in Outs::ALL {
            let fault = Fault { code, outs, ..Fault::of(("ncclParamGetParameter", 0)) };
            let nccl = Library::new(Some(fault)).nccl().unwrap();
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
