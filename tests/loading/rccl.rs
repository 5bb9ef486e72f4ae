//! AMD's RCCL: it has the functions of an older NCCL and a few additional ones, and crashes on null communicators.
//!
//! No RCCL runs here: a shared object has the version and the functions of RCCL 2.21.5 (AMD's 6.3). `search.rs` searches for
//! RCCL.
#![allow(unsafe_code)]

use std::path::{Path, PathBuf};

use libnccl::buffer::MemorySpace;
use libnccl::communicator::ShrinkMode;
use libnccl::sys::Functions;
use libnccl::{Backend, Error, Nccl, ReduceOp, SliceMut, StreamRef};

use crate::rccl_library::{VERSION, build, build_without_hip, has};

const STREAM: StreamRef<'static> = StreamRef::DEFAULT;

fn recv<T: libnccl::Element>(slice: &mut [T]) -> SliceMut<'_, T> {
    // SAFETY: the library says that its memory is a GPU's, and it is the host's.
    unsafe { SliceMut::from_device_ptr(slice.as_mut_ptr(), slice.len()) }
}

fn open(path: &Path) -> Nccl {
    // SAFETY: made by `build`.
    unsafe { Nccl::open(path) }.unwrap()
}

#[test]
#[cfg_attr(nccl_linked, ignore = "no other library can be opened in addition to the linked one")]
fn opened_rccl_reports_version_and_functions() {
    let directory = tempfile::tempdir().unwrap();
    let path = build(directory.path(), "librccl.so.1");
    let nccl = open(&path);
    assert_eq!((nccl.version(), nccl.memory_space()), (VERSION, MemorySpace::Device));
    assert!(matches!(nccl.backend(), Backend::Loaded { path: found, .. } if found.ends_with("librccl.so.1")));
    let present: Vec<_> = nccl.functions().filter(|function| function.present).map(|f| f.name).collect();
    let expected: Vec<_> = Functions::NAMES.iter().copied().filter(|name| has(name)).collect();
    assert_eq!(present, expected);
    // RCCL has `ncclGather`, which NCCL got after the version that RCCL reports.
    let gather = nccl.functions().find(|function| function.name == "ncclGather").unwrap();
    assert!(gather.since > VERSION && nccl.require("ncclGather").is_ok(), "{}", gather.since);
    let comm = nccl.communicator(2, 0, &nccl.unique_id().unwrap()).init().unwrap();
    let Err(Error::Unsupported { function, found, .. }) = comm.shrink(&[1], ShrinkMode::Abort).init() else {
        panic!("RCCL has no ncclCommShrink")
    };
    assert_eq!((function, found), ("ncclCommShrink", VERSION));
}

/// Returns the text that the shared object has for an error message, which is the state of its groups.
fn state_of_fake(nccl: &Nccl) -> String {
    let last_error = nccl.as_raw().ncclGetLastError.expect("every version has it");
    // SAFETY: accepts a null communicator, and returns a C string.
    let text = unsafe { std::ffi::CStr::from_ptr(last_error(std::ptr::null_mut())) };
    text.to_string_lossy().into_owned()
}

/// Cancelling the group with a null communicator, as with NCCL, would crash RCCL under any file name, and other libraries.
#[test]
#[cfg_attr(nccl_linked, ignore = "no other library can be opened in addition to the linked one")]
fn failed_group_is_cancelled_without_null_communicator() {
    type Build = fn(&Path, &str) -> PathBuf;
    let libraries: [(Build, &str); 3] =
        [(build, "librccl.so.1"), (build, "renamed.so"), (build_without_hip, "libnccl.so.2")];
    for (build, name) in libraries {
        let directory = tempfile::tempdir().unwrap();
        let nccl = open(&build(directory.path(), name));
        let comm = nccl.communicator(2, 0, &nccl.unique_id().unwrap()).init().unwrap();
        let mut buffer = [0_i32; 2];
        let failed = nccl.group(|g| {
            comm.all_reduce_in_place(recv(&mut buffer), ReduceOp::Sum, g.stream(STREAM))?;
            Err::<(), _>(Error::Aborted { call: "the closure" })
        });
        assert!(matches!(failed, Err(Error::Aborted { call: "the closure" })), "{failed:?}");
        assert_eq!(&*state_of_fake(&nccl), "depth 0, queued 0, launched 0", "{name}");
        drop(comm);
        let comm = nccl.communicator(2, 0, &nccl.unique_id().unwrap()).init().unwrap();
        nccl.group(|g| comm.all_reduce_in_place(recv(&mut buffer), ReduceOp::Sum, g.stream(STREAM))).unwrap();
        assert_eq!(&*state_of_fake(&nccl), "depth 0, queued 0, launched 1", "{name}");
    }
}
