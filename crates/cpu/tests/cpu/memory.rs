//! `ncclMemAlloc` and `ncclMemFree`.

use std::ffi::c_void;
use std::fs::File;
use std::ptr;

use crate::common::processes::is_own_process;
use crate::common::{ARGUMENT, OK, alone, assert_last_error, last_error};
use libnccl::sys::ncclResult_t;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

fn allocate(size: usize) -> *mut c_void {
    let mut memory = ptr::null_mut();
    assert_eq!(nccl!(ncclMemAlloc(&mut memory, size)), OK, "{}", last_error());
    memory
}

fn free(memory: *mut c_void) -> ncclResult_t {
    nccl!(ncclMemFree(memory))
}

/// Counts the file descriptors of shared memory.
fn files() -> usize {
    let links = std::fs::read_dir("/proc/self/fd").unwrap().flatten();
    let names = links.flat_map(|link| std::fs::read_link(link.path()));
    names.filter(|name| name.to_string_lossy().starts_with("/memfd:")).count()
}

#[test]
fn mem_alloc_returns_aligned_zeroed_memory() {
    let _alone = alone();
    for size in [1, 4096, 10_000, 1 << 20, (4 << 20) + 1] {
        // Twice: freed contents must not reappear.
        for _ in 0..2 {
            let memory = allocate(size);
            assert_eq!(memory.addr() % 4096, 0);
            // SAFETY: ncclMemAlloc has returned `size` initialized bytes, which only this test uses.
            let bytes = unsafe { std::slice::from_raw_parts_mut(memory.cast::<u8>(), size) };
            assert!(bytes.iter().all(|byte| *byte == 0), "{size}");
            bytes.fill(0xA5);
            assert_eq!(free(memory), OK);
        }
    }
}

#[test]
fn mem_alloc_of_zero_bytes_returns_null() {
    let _alone = alone();
    assert_eq!(allocate(0), ptr::null_mut());
    assert_eq!(nccl!(ncclMemAlloc(ptr::null_mut(), 1)), ARGUMENT);
    assert_eq!(free(ptr::null_mut()), OK);
}

#[test]
fn mem_free_of_foreign_or_freed_pointer_is_invalid_argument() {
    let _alone = alone();
    let memory = allocate(10_000);
    let mut foreign = 0_u64;
    for wrong in [ptr::from_mut(&mut foreign).cast(), memory.wrapping_byte_add(4096)] {
        assert_eq!(free(wrong), ARGUMENT);
        assert_last_error(&format!("{wrong:p} is not from ncclMemAlloc"));
    }
    assert_eq!(free(memory), OK);
    assert_eq!(free(memory), ARGUMENT);
}

#[test]
fn mem_alloc_of_too_many_bytes_is_system_error() {
    let _alone = alone();
    for size in [usize::MAX, usize::MAX - 4096, 1 << 60] {
        let mut memory = ptr::dangling_mut();
        assert_eq!(nccl!(ncclMemAlloc(&mut memory, size)), ncclResult_t::ncclSystemError, "{size}");
        assert_eq!(memory, ptr::dangling_mut(), "the pointer is written on success only");
    }
}

#[test]
fn mem_free_closes_file_descriptors() {
    if !is_own_process() {
        return;
    }
    let before = files();
    let kept: Vec<*mut c_void> = (0..20).map(|_| allocate(4096)).collect();
    assert_eq!(files(), before + 20, "each allocation has one descriptor");
    for round in 0..980 {
        assert_eq!(free(allocate(1 + round)), OK);
    }
    assert!(kept.into_iter().all(|memory| free(memory) == OK));
    assert_eq!(files(), before);
}

#[test]
fn allocation_beyond_the_process_limits_is_private() {
    if !is_own_process() {
        return;
    }
    let limit = |resource, current| {
        let maximum = getrlimit(resource).maximum;
        setrlimit(resource, Rlimit { current: Some(current), maximum }).unwrap();
    };
    let use_memory = |size| {
        // SAFETY: ncclMemAlloc has returned `size` initialized bytes, which only this test uses.
        let bytes = unsafe { std::slice::from_raw_parts_mut(allocate(size).cast::<u8>(), size) };
        assert!(bytes.iter().all(|byte| *byte == 0));
        bytes.fill(1);
    };
    let before = files();
    limit(Resource::Fsize, 8192);
    use_memory(8192);
    use_memory(8193);
    assert_eq!(files(), before + 1, "the second is longer than a file may be");
    limit(Resource::Nofile, 400);
    (0..400).for_each(|_| use_memory(4096));
    assert!((before + 2..=before + 201).contains(&files()), "half of the file descriptors: {}", files());
    limit(Resource::Nofile, 1);
    File::open("/proc/self/exe").expect_err("no file descriptor is left");
    use_memory(4096);
}
