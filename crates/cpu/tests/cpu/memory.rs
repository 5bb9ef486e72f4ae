//! Resources that memory takes: file descriptors of `ncclMemAlloc`, and the staging memory of a communicator.

use std::ffi::c_void;
use std::fs::File;
use std::ptr;

use crate::common::processes::is_own_process;
use crate::common::{Comm, OK, in_group, init, last_error, receive, send};
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

fn files() -> usize {
    let links = std::fs::read_dir("/proc/self/fd").unwrap().flatten();
    let names = links.flat_map(|link| std::fs::read_link(link.path()));
    names.filter(|name| name.to_string_lossy().starts_with("/memfd:")).count()
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

/// Relies on buffers: with `LIBNCCL_CPU_STRICT=1`, the send waits.
#[test]
fn message_sent_before_suspend_arrives_after_resume() {
    let comms = init(2);
    let (sent, mut received) = ([1, 2, 3], [0; 3]);
    assert_eq!(send(&sent, 1, comms[0].0), OK);
    let suspend = || comms.iter().for_each(|comm| assert_eq!(nccl!(ncclCommSuspend(comm.0, 1)), OK));
    let resume = || comms.iter().for_each(|comm| assert_eq!(nccl!(ncclCommResume(comm.0)), OK));
    assert_eq!([in_group(suspend), in_group(resume)], [OK; 2]);
    assert_eq!((receive(&mut received, 0, comms[1].0), received), (OK, sent));
    comms.into_iter().for_each(Comm::destroy);
}
