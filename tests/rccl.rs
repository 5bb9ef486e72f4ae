//! AMD's RCCL: NCCL's functions of some years ago, a few of its own, and null communicators that it reads from.
//!
//! No RCCL runs here. A shared object that says and lacks what RCCL 2.21.5 (of AMD's 6.3) does goes through the real
//! loader; and the CPU implementation, cut down to its functions, does the work.
#![cfg(all(feature = "dlopen", target_os = "linux"))]
#![allow(unsafe_code)]

#[path = "common/load.rs"]
mod load;

use std::path::{Path, PathBuf};
use std::process::Command;

use libnccl::sys::{self, Functions, ncclResult_t};
use libnccl::{
    Backend, Communicator, Config, DeviceSlice, DeviceSliceMut, Error, MemorySpace, Nccl, ReduceOp, Result,
    ShrinkMode, StreamRef, Version,
};
use load::load_with;

/// RCCL counts releases as NCCL does, by the one that it was made from.
const VERSION: Version = Version::new(2, 21, 5);
const STREAM: StreamRef<'static> = StreamRef::DEFAULT;

/// What RCCL has: NCCL's functions up to that release, and two that it had before NCCL, with the same signatures.
fn has(function: &str) -> bool {
    sys::since(function).is_some_and(|since| since <= VERSION.code())
        || ["ncclGather", "ncclScatter"].contains(&function)
}

unsafe extern "C" fn version(out: *mut std::ffi::c_int) -> ncclResult_t {
    // SAFETY: the facade's own int.
    unsafe { *out = VERSION.code().cast_signed() };
    ncclResult_t::ncclSuccess
}

macro_rules! define_table {
    ($(fn $name:ident($($argument:ident: $type:ty),*) $(-> $returned:ty)?;)*) => {
        /// The CPU implementation with RCCL's functions.
        fn table() -> Functions {
            let cpu = libnccl_cpu::TABLE;
            let table = Functions { $($name: cpu.$name.filter(|_| has(stringify!($name)))),* };
            Functions { ncclGetVersion: Some(version), ..table }
        }
    };
}
libnccl::for_each_function!(define_table);

fn in_process() -> Nccl {
    // SAFETY: functions of the CPU implementation, which is linked into this program.
    unsafe { Nccl::from_table("RCCL in this process", table()) }.unwrap()
}

fn send<T>(slice: &[T]) -> DeviceSlice<'_, T> {
    // SAFETY: the library says that its memory is a GPU's, and it is the host's.
    unsafe { DeviceSlice::from_raw_parts(slice.as_ptr(), slice.len()) }
}

fn recv<T>(slice: &mut [T]) -> DeviceSliceMut<'_, T> {
    // SAFETY: as above.
    unsafe { DeviceSliceMut::from_raw_parts(slice.as_mut_ptr(), slice.len()) }
}

/// What each of two ranks does with its two numbers and its room for four.
type Act = dyn Fn(&Communicator, &[i32; 2], &mut [i32; 4]) -> Result<()> + Sync;

/// Each operation on two ranks, whether RCCL has a function for it or not.
#[test]
fn operations() {
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
    // Named `ncclAllToAll` there, so that it is sends and receives here.
    assert_eq!(
        both(&|comm, mine, got| comm.all_to_all(send(mine), recv(&mut got[..2]), STREAM)),
        [[0, 10, -1, -1], [1, 11, -1, -1]]
    );
    assert_eq!(
        both(&|comm, mine, got| comm.gather(send(mine), recv(&mut got[..]), 1, STREAM)),
        [[-1; 4], [0, 1, 10, 11]]
    );
    assert_eq!(
        both(&|comm, mine, got| comm.scatter(send(mine), recv(&mut got[..1]), 0, STREAM)),
        [[0, -1, -1, -1], [1, -1, -1, -1]]
    );
    assert_eq!(
        both(&|comm, mine, got| comm.all_reduce(send(mine), recv(&mut got[..2]), ReduceOp::Sum, STREAM)),
        [[10, 12, -1, -1]; 2]
    );
}

/// Something that it lacks, and the name of that.
type Lack = (&'static str, fn(&Nccl, &Communicator) -> Result<()>);

const LACKS: [Lack; 8] = [
    ("ncclCommShrink", |_, comm| comm.shrink(&[1], ShrinkMode::Abort, &Config::new()).map(drop)),
    ("ncclCommGrow", |_, comm| comm.grow(9, None, &Config::new()).map(drop)),
    ("ncclCommRevoke", |_, comm| comm.revoke()),
    ("ncclCommSuspend", |_, comm| comm.suspend()),
    ("ncclCommQueryProperties", |_, comm| comm.properties().map(drop)),
    ("ncclGroupSimulateEnd", |nccl, _| nccl.simulate(|_| Ok(())).map(drop)),
    ("ncclParamGetParameter", |nccl, _| nccl.parameters().map(drop)),
    ("ncclConfig_t.commName", |_, comm| comm.split_with(None, 0, &Config::new().name("x")).map(drop)),
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
fn what_it_lacks_is_unsupported() {
    let nccl = in_process();
    check_lacks(&nccl, &nccl.init_all(&[0, 1]).unwrap()[0]);
}

/// A function that RCCL has and NCCL 2.21.5 had not is there, and says when NCCL got it.
#[test]
fn functions_are_what_they_are_not_what_the_version_promises() {
    let nccl = in_process();
    let gather = nccl.functions().find(|function| function.name == "ncclGather").unwrap();
    assert!(gather.present && gather.since > nccl.version());
    assert!(nccl.require("ncclScatter").is_ok() && nccl.require("ncclAlltoAll").is_err());
}

/// The shared object: communicators are numbers in memory, and an operation on null is a crash, as in RCCL. The id
/// comes by value, from one compiler's code to another's, and is refused unless all of it has come.
const SOURCE: &str = r#"
#include <stdio.h>
typedef struct { char bytes[128]; } id;
static int one_rank, depth, failed, queued, launched;
static char last[64];
int ncclGetVersion(int *version) { *version = 22105; return 0; }
const char *ncclGetErrorString(int code) { return code ? "an error" : "no error"; }
const char *ncclGetLastError(void *comm) {
    snprintf(last, sizeof last, "depth %d, queued %d, launched %d", depth, queued, launched);
    return last;
}
static char byte(int index) { return 7 + 3 * index; }
int ncclGetUniqueId(id *out) { for (int i = 0; i < 128; i++) out->bytes[i] = byte(i); return 0; }
int ncclCommInitRank(void **comm, int size, id given, int rank) {
    if (size < 1 || rank < 0 || rank >= size) { failed = depth ? 4 : 0; return 4; }
    for (int i = 0; i < 128; i++) if (given.bytes[i] != byte(i)) return 3;
    *comm = &one_rank;
    return 0;
}
int ncclCommInitRankConfig(void **comm, int size, id given, int rank, void *config) {
    return ncclCommInitRank(comm, size, given, rank);
}
int ncclCommInitAll(void **comms, int count, const int *devices) { return count == 1 ? (*comms = &one_rank, 0) : 4; }
int ncclCommCount(void *comm, int *out) { *out = 2; return 0; }
int ncclCommUserRank(void *comm, int *out) { *out = 0; return 0; }
int ncclCommCuDevice(void *comm, int *out) { *out = 0; return 0; }
int ncclCommGetAsyncError(void *comm, int *out) { *out = 0; return 0; }
int ncclCommSplit(void *comm, int color, int key, void **child, void *config) { *child = 0; return 0; }
int ncclCommDestroy(void *comm) { return 0; }
int ncclCommAbort(void *comm) { return 0; }
int ncclAllReduce(const void *send, void *recv, unsigned long count, int type, int op, int *comm, void *stream) {
    *(volatile int *)comm += 1; /* Null is a crash. */
    if (depth) queued++; else launched++;
    return 0;
}
int ncclGroupStart(void) { depth++; return 0; }
int ncclGroupEnd(void) {
    int code = failed;
    if (!depth) return 5;
    if (--depth) return 0;
    if (!code) launched += queued;
    queued = failed = 0;
    return code;
}
int ncclAllToAll(void) { return 0; }
int ncclAllToAllv(void) { return 0; }
"#;

/// Compiles it, with the rest of RCCL's functions, under a name in a directory.
fn build(directory: &Path, name: &str) -> PathBuf {
    let defined = |function: &str| SOURCE.contains(&format!("{function}("));
    let rest = Functions::NAMES.iter().filter(|name| has(name) && !defined(name));
    let rest: String = rest.map(|name| format!("int {name}(void) {{ return 0; }}\n")).collect();
    let (source, library) = (directory.join("rccl.c"), directory.join(name));
    std::fs::create_dir_all(directory).unwrap();
    std::fs::write(&source, format!("{SOURCE}{rest}")).unwrap();
    let compiled = Command::new("cc")
        .args(["-shared", "-fPIC", "-w", "-Wl,-soname,librccl.so.1", "-o"])
        .args([&library, &source])
        .status()
        .expect("a C compiler, cc");
    assert!(compiled.success(), "cc: {compiled}");
    library
}

fn open(path: &Path) -> Nccl {
    // SAFETY: made by `build`.
    unsafe { Nccl::open(path) }.unwrap()
}

#[test]
fn opened() {
    let directory = tempfile::tempdir().unwrap();
    let path = build(directory.path(), "librccl.so.1");
    let nccl = open(&path);
    assert_eq!((nccl.version(), nccl.memory_space()), (VERSION, MemorySpace::Device));
    assert!(matches!(nccl.backend(), Backend::Loaded { path: found, .. } if found.ends_with("librccl.so.1")));
    let present: Vec<_> = nccl.functions().filter(|function| function.present).map(|f| f.name).collect();
    let expected: Vec<_> = Functions::NAMES.iter().copied().filter(|name| has(name)).collect();
    assert_eq!(present, expected);
    check_lacks(&nccl, &nccl.init_rank(2, 0, &nccl.unique_id().unwrap()).unwrap());
}

/// Nothing of a group that fails is started, and nothing is asked of a null communicator, which would be a crash;
/// whatever the file's name is.
#[test]
fn a_group_is_cancelled_without_a_null_communicator() {
    for name in ["librccl.so.1", "renamed.so"] {
        let directory = tempfile::tempdir().unwrap();
        let nccl = open(&build(directory.path(), name));
        let comm = nccl.init_rank(2, 0, &nccl.unique_id().unwrap()).unwrap();
        let mut buffer = [0_i32; 2];
        let failed = nccl.group(|g| {
            g.all_reduce_in_place(&comm, recv(&mut buffer), ReduceOp::Sum, STREAM)?;
            Err::<(), _>(Error::Aborted { call: "the closure" })
        });
        assert!(matches!(failed, Err(Error::Aborted { call: "the closure" })), "{failed:?}");
        assert_eq!(&*nccl.last_error(), "depth 0, queued 0, launched 0", "{name}");
        drop(comm);
        let comm = nccl.init_rank(2, 0, &nccl.unique_id().unwrap()).unwrap();
        nccl.group(|g| g.all_reduce_in_place(&comm, recv(&mut buffer), ReduceOp::Sum, STREAM)).unwrap();
        assert_eq!(&*nccl.last_error(), "depth 0, queued 0, launched 1", "{name}");
    }
}

#[test]
#[cfg_attr(nccl_linked, ignore = "a linked library is never searched for")]
fn loaded_by_its_path_by_the_dynamic_linker_and_from_rocm() {
    let directory = tempfile::tempdir().unwrap();
    let root = std::fs::canonicalize(directory.path()).unwrap();
    let path = build(&root.join("lib"), "librccl.so.1");
    for (variable, value, source) in [
        ("LIBNCCL_PATH", path.as_path(), "LIBNCCL_PATH"),
        ("LD_LIBRARY_PATH", path.parent().unwrap(), "dynamic linker"),
        ("ROCM_PATH", root.as_path(), "ROCM_PATH"),
    ] {
        let printed = load_with(&[(variable, value)]);
        if variable != "LIBNCCL_PATH" && !printed.contains("librccl") {
            // This system has an NCCL, which comes before.
            assert!(printed.contains("loaded ") && printed.contains("libnccl.so"), "{printed}");
            continue;
        }
        assert!(printed.contains("loaded 2.21.5"), "{variable}: {printed}");
        let expected = format!("path: {path:?}, source: {source:?}");
        assert!(printed.contains(&expected), "{variable}: {expected}\nis not in\n{printed}");
    }
}
