//! The CUDA context of the thread that destroys a communicator, with a fake CUDA driver, which the process keeps.
#![allow(unsafe_code)]

use std::ffi::{c_int, c_void};
use std::process::Command;
use std::ptr;

use libloading::Library;
use libnccl_test_support::fake_nccl::FakeNccl;

use crate::own_process::is_own;

const DRIVER: &str = "
    static __thread void *current;
    static void *last;
    static int sets;
    int cuCtxGetCurrent(void **context) { *context = current; return 0; }
    int cuCtxSetCurrent(void *context) { current = last = context; sets++; return 0; }
    void *last_set(void) { return last; }
    int number_of_sets(void) { return sets; }
";

/// NCCL makes the thread's device current again, which would be device 0 on a new thread.
#[test]
fn thread_that_destroys_a_communicator_has_the_callers_context() {
    if !is_own(module_path!(), "thread_that_destroys_a_communicator_has_the_callers_context") {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let (source, library) = (directory.path().join("cuda.c"), directory.path().join("libcuda.so.1"));
    std::fs::write(&source, DRIVER).unwrap();
    let mut compiler = Command::new("cc");
    compiler.args(["-shared", "-fPIC", "-Wl,-soname,libcuda.so.1", "-o"]).args([&library, &source]);
    assert!(compiler.status().expect("a C compiler, cc").success());
    // SAFETY: the library just compiled, which NCCL would have loaded.
    let driver = unsafe { Library::new(library) }.unwrap();
    // SAFETY: the functions above, with their signatures.
    let (set, last, sets) = unsafe {
        (
            driver.get::<extern "C" fn(*mut c_void) -> c_int>(b"cuCtxSetCurrent").unwrap(),
            driver.get::<extern "C" fn() -> *mut c_void>(b"last_set").unwrap(),
            driver.get::<extern "C" fn() -> c_int>(b"number_of_sets").unwrap(),
        )
    };
    let fake = FakeNccl::new();
    let mut comms = fake.nccl().init_all(&[0, 1, 2]).unwrap();
    // A thread without a context passes none on.
    drop(comms.pop());
    assert_eq!(sets(), 0);
    let context: *mut c_void = ptr::without_provenance_mut(0x1234);
    set(context);
    drop(comms.pop());
    assert_eq!((sets(), last()), (2, context));
    comms.remove(0).abort().unwrap();
    assert_eq!((sets(), last()), (3, context));
    fake.assert_clean("contexts");
}
