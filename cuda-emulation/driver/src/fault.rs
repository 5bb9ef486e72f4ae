//! Faults: the report of accesses of the host to device memory, if it is enabled.
//!
//! The [handler](cuda_common::fault_signal) looks for the address in a list of atomics.

use std::ffi::c_int;
use std::iter;
use std::sync::OnceLock;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize};

use cudarc::driver::sys::CUresult::*;

use crate::error::Result;
use cuda_common::fault_signal;
use cuda_common::finding::{self, Finding};

struct Entry {
    /// The first address; 0 if the entry is free, [`FILLING`] while it is written.
    start: AtomicUsize,
    length: AtomicUsize,
    allocation: AtomicU64,
    device: AtomicUsize,
    is_freed: AtomicBool,
}

const FILLING: usize = usize::MAX;

impl Entry {
    const fn free() -> Self {
        Self {
            start: AtomicUsize::new(0),
            length: AtomicUsize::new(0),
            allocation: AtomicU64::new(0),
            device: AtomicUsize::new(0),
            is_freed: AtomicBool::new(false),
        }
    }

    fn offset(&self, address: usize) -> Option<usize> {
        let start = self.start.load(Acquire);
        let offset = address.checked_sub(start).filter(|_| start != 0)?;
        (offset < self.length.load(Relaxed)).then_some(offset)
    }
}

struct List {
    entries: [Entry; 64],
    next: OnceLock<Box<List>>,
}

impl List {
    const fn new() -> Self {
        Self { entries: [const { Entry::free() }; 64], next: OnceLock::new() }
    }
}

static LIST: List = List::new();

static IS_REPORTED: AtomicBool = AtomicBool::new(false);

/// An entry of the list, freed when dropped.
pub(crate) struct Listed(&'static Entry);

impl Listed {
    /// Adds an entry, if faults are reported.
    pub(crate) fn new(start: usize, length: usize, allocation: u64, device: usize) -> Option<Self> {
        if !IS_REPORTED.load(Relaxed) {
            return None;
        }
        let mut list = &LIST;
        loop {
            let claim = |entry: &&Entry| entry.start.compare_exchange(0, FILLING, Acquire, Relaxed).is_ok();
            if let Some(entry) = list.entries.iter().find(claim) {
                entry.length.store(length, Relaxed);
                entry.allocation.store(allocation, Relaxed);
                entry.device.store(device, Relaxed);
                entry.is_freed.store(false, Relaxed);
                entry.start.store(start, Release);
                return Some(Self(entry));
            }
            list = list.next.get_or_init(|| Box::new(List::new()));
        }
    }

    pub(crate) fn free(&self) {
        self.0.is_freed.store(true, Relaxed);
    }
}

impl Drop for Listed {
    fn drop(&mut self) {
        self.0.start.store(0, Release);
    }
}

pub(crate) fn report() -> Result<()> {
    fault_signal::install(say).map_err(|_| CUDA_ERROR_OPERATING_SYSTEM)?;
    IS_REPORTED.store(true, Relaxed);
    Ok(())
}

fn say(address: usize, _: c_int, _: c_int) {
    let lists = iter::successors(Some(&LIST), |list| list.next.get().map(|next| &**next));
    let mut entries = lists.flat_map(|list| &list.entries);
    let Some((entry, offset)) = entries.find_map(|entry| Some((entry, entry.offset(address)?))) else {
        return;
    };
    let length = entry.length.load(Relaxed);
    let (allocation, device) = (entry.allocation.load(Relaxed), entry.device.load(Relaxed));
    let state = if entry.is_freed.load(Relaxed) { ", which was freed" } else { "" };
    fault_signal::say(
        Finding::DeviceMemoryTouched.name(),
        "libnccl",
        finding::file(),
        format_args!(
            "the host touched byte {offset} of allocation {allocation}, {length} bytes of device {device}{state}; copy it \
             with cuMemcpyDtoH or cuMemcpyHtoD, or allocate memory that the host can use with cuMemAllocManaged or \
             cuMemAllocHost"
        ),
    );
}
