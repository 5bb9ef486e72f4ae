//! AMD's RCCL: it has the functions of an older NCCL and a few additional ones, and crashes on null communicators.
//!
//! No RCCL runs here. A shared object with the version and the functions of RCCL 2.21.5 (AMD's 6.3) is opened by the
//! real loader, and the CPU backend with RCCL's functions moves the data. `search.rs` searches for RCCL.
#![allow(unsafe_code)]

use std::path::{Path, PathBuf};

use libnccl::buffer::MemorySpace;
use libnccl::communicator::ShrinkMode;
use libnccl::sys::{Functions, ncclResult_t};
use libnccl::{Backend, Communicator, Config, Error, Nccl, ReduceOp, Result, Slice, SliceMut, StreamRef};
use libnccl_test_support::restricted;

use crate::rccl_library::{VERSION, build, build_without_hip, has};

const STREAM: StreamRef<'static> = StreamRef::DEFAULT;

unsafe extern "C" fn version(out: *mut std::ffi::c_int) -> ncclResult_t {
    // SAFETY: the facade's own int.
    unsafe { *out = VERSION.code().cast_signed() };
    ncclResult_t::ncclSuccess
}

/// Opens the CPU backend with RCCL's version and functions.
fn in_process() -> Nccl {
    let table = Functions { ncclGetVersion: Some(version), ..restricted(libnccl_cpu::TABLE, has) };
    // SAFETY: functions of the CPU backend, which is linked into this program.
    unsafe { Nccl::from_table("RCCL in this process", table) }.unwrap()
}

fn send<T: libnccl::Element>(slice: &[T]) -> Slice<'_, T> {
    // SAFETY: the library says that its memory is a GPU's, and it is the host's.
    unsafe { Slice::from_device_ptr(slice.as_ptr(), slice.len()) }
}

fn recv<T: libnccl::Element>(slice: &mut [T]) -> SliceMut<'_, T> {
    // SAFETY: as above.
    unsafe { SliceMut::from_device_ptr(slice.as_mut_ptr(), slice.len()) }
}

/// An operation of one of two ranks, on its two numbers and a buffer for four.
type Act = dyn Fn(&Communicator, &[i32; 2], &mut [i32; 4]) -> Result<()> + Sync;

/// Includes operations for which RCCL has no function.
#[test]
fn operations_on_two_ranks_move_the_right_data() {
    let nccl = in_process();
    assert_eq!((nccl.version(), nccl.memory_space()), (VERSION, MemorySpace::Device));
    let both = |act: &Act| {
        std::thread::scope(|scope| {
            let mut threads = Vec::new();
            for comm in nccl.init_all(&[0, 1]).unwrap() {
                threads.push(scope.spawn(move || {
                    let (mine, mut got) = ([comm.rank() as i32 * 10, comm.rank() as i32 * 10 + 1], [-1; 4]);
                    act(&comm, &mine, &mut got).unwrap();
                    comm.destroy().unwrap();
                    got
                }));
            }
            threads.into_iter().map(|thread| thread.join().unwrap()).collect::<Vec<_>>()
        })
    };
    // RCCL's function is named `ncclAllToAll`, so the facade uses sends and receives instead.
    assert_eq!(
        both(&|comm, mine, got| comm.all_to_all(send(mine), recv(&mut got[..2]), STREAM)),
        [[0, 10, -1, -1], [1, 11, -1, -1]]
    );
    assert_eq!(
        both(&|comm, mine, got| comm.gather(send(mine), recv(&mut got[..]), 1, STREAM)),
        [[-1; 4], [0, 1, 10, 11]]
    );
}

/// A call that RCCL cannot make, and the name of the missing function or field.
type Lack = (&'static str, fn(&Nccl, &Communicator) -> Result<()>);

const LACKS: [Lack; 3] = [
    ("ncclCommShrink", |_, comm| comm.shrink(&[1], ShrinkMode::Abort).init().map(drop)),
    ("ncclGroupSimulateEnd", |nccl, _| nccl.simulate(|_| Ok(())).map(drop)),
    ("ncclConfig_t.commName", |_, comm| {
        comm.split(None, 0).config(&Config::new().name("x")).init().map(drop)
    }),
];

fn check_lacks(nccl: &Nccl, comm: &Communicator) {
    for (name, act) in LACKS {
        match act(nccl, comm) {
            Err(Error::Unsupported { function, found, .. }) => assert_eq!((function, found), (name, VERSION)),
            other => panic!("{name}: {other:?}"),
        }
    }
}

#[test]
fn functions_missing_in_rccl_are_unsupported() {
    let nccl = in_process();
    check_lacks(&nccl, &nccl.init_all(&[0, 1]).unwrap()[0]);
}

/// RCCL has `ncclGather`, which NCCL got after the version that RCCL reports.
#[test]
fn function_newer_than_the_version_is_used_if_present() {
    let nccl = in_process();
    let gather = nccl.functions().find(|function| function.name == "ncclGather").unwrap();
    assert!(gather.present);
    assert!(gather.since > nccl.version(), "{}", gather.since);
    assert!(nccl.require("ncclScatter").is_ok());
    assert!(nccl.require("ncclAlltoAll").is_err());
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
    check_lacks(&nccl, &nccl.communicator(2, 0, &nccl.unique_id().unwrap()).init().unwrap());
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
