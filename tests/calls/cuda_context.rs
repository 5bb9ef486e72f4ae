//! The CUDA context of the thread that destroys a communicator, with a fake CUDA driver, which the process keeps.
#![allow(unsafe_code)]

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::process::Command;
use std::ptr;

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

unsafe extern "C" {
    fn dlopen(file: *const c_char, flags: c_int) -> *mut c_void;
    fn dlsym(handle: *mut c_void, name: *const c_char) -> *mut c_void;
}

/// Compiles the driver and loads it, as NCCL does.
fn load_driver() -> *mut c_void {
    const RTLD_NOW: c_int = 2;
    let directory = tempfile::tempdir().unwrap();
    let (source, library) = (directory.path().join("cuda.c"), directory.path().join("libcuda.so.1"));
    std::fs::write(&source, DRIVER).unwrap();
    let mut compiler = Command::new("cc");
    compiler.args(["-shared", "-fPIC", "-Wl,-soname,libcuda.so.1", "-o"]).args([&library, &source]);
    assert!(compiler.status().expect("a C compiler, cc").success());
    let library = CString::new(library.to_str().expect("a path of text")).unwrap();
    // SAFETY: the library just compiled.
    let driver = unsafe { dlopen(library.as_ptr(), RTLD_NOW) };
    assert!(!driver.is_null());
    driver
}

fn function(driver: *mut c_void, name: &CStr) -> *mut c_void {
    // SAFETY: the library loaded above.
    let function = unsafe { dlsym(driver, name.as_ptr()) };
    assert!(!function.is_null());
    function
}

/// NCCL makes the thread's device current again, which would be device 0 on a new thread.
#[test]
fn thread_that_destroys_a_communicator_has_the_callers_context() {
    if !is_own(module_path!(), "thread_that_destroys_a_communicator_has_the_callers_context") {
        return;
    }
    let driver = load_driver();
    // SAFETY: the functions above, with their signatures.
    let (set, last, sets) = unsafe {
        (
            std::mem::transmute::<*mut c_void, extern "C" fn(*mut c_void) -> c_int>(function(
                driver,
                c"cuCtxSetCurrent",
            )),
            std::mem::transmute::<*mut c_void, extern "C" fn() -> *mut c_void>(function(driver, c"last_set")),
            std::mem::transmute::<*mut c_void, extern "C" fn() -> c_int>(function(driver, c"number_of_sets")),
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
