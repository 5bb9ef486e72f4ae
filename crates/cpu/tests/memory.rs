//! `ncclMemAlloc` and `ncclMemFree`.

mod common;

use std::ffi::c_void;
use std::ptr;

use common::{ARGUMENT, OK, alone, last_error};
use libnccl::sys::ncclResult_t;

fn allocate(size: usize) -> *mut c_void {
    let mut memory = ptr::null_mut();
    assert_eq!(nccl!(ncclMemAlloc(&mut memory, size)), OK, "{}", last_error());
    memory
}

fn free(memory: *mut c_void) -> ncclResult_t {
    nccl!(ncclMemFree(memory))
}

/// The file descriptors that stand for memory.
fn files() -> usize {
    let links = std::fs::read_dir("/proc/self/fd").unwrap().flatten();
    let names = links.flat_map(|link| std::fs::read_link(link.path()));
    names.filter(|name| name.to_string_lossy().starts_with("/memfd:")).count()
}

#[test]
fn memory_is_aligned_and_zero_and_can_be_written() {
    let _alone = alone();
    for size in [1, 4096, 10_000, 1 << 20, (4 << 20) + 1] {
        // Twice: what was written and freed is not seen again.
        for _ in 0..2 {
            let memory = allocate(size);
            assert_eq!(memory.addr() % 4096, 0);
            // SAFETY: as many bytes as were asked for, which are ours.
            let bytes = unsafe { std::slice::from_raw_parts_mut(memory.cast::<u8>(), size) };
            assert!(bytes.iter().all(|byte| *byte == 0), "{size}");
            bytes.fill(0xA5);
            assert_eq!(free(memory), OK);
        }
    }
}

#[test]
fn no_bytes_are_null() {
    let _alone = alone();
    assert_eq!(allocate(0), ptr::null_mut());
    assert_eq!(free(ptr::null_mut()), OK);
}

#[test]
fn only_what_was_allocated_is_freed_and_once() {
    let _alone = alone();
    let memory = allocate(10_000);
    let mut foreign = 0_u64;
    for wrong in [ptr::from_mut(&mut foreign).cast(), memory.wrapping_byte_add(4096)] {
        assert_eq!(free(wrong), ARGUMENT);
        assert!(last_error().contains(&format!("{wrong:p} is not from ncclMemAlloc")), "{}", last_error());
    }
    assert_eq!(free(memory), OK);
    assert_eq!(free(memory), ARGUMENT);
}

#[test]
fn more_than_there_is_is_refused() {
    let _alone = alone();
    for size in [usize::MAX, usize::MAX - 4096, 1 << 60] {
        let mut memory = ptr::dangling_mut();
        assert_eq!(nccl!(ncclMemAlloc(&mut memory, size)), ncclResult_t::ncclSystemError, "{size}");
        assert_eq!(memory, ptr::dangling_mut(), "written on success only");
    }
}

#[test]
fn a_thousand_allocations_leave_no_file_descriptor() {
    let _alone = alone();
    let before = files();
    let kept: Vec<*mut c_void> = (0..20).map(|_| allocate(4096)).collect();
    assert_eq!(files(), before + 20, "while it is there, memory has one");
    for round in 0..980 {
        assert_eq!(free(allocate(1 + round)), OK);
    }
    assert!(kept.into_iter().all(|memory| free(memory) == OK));
    assert_eq!(files(), before);
}
