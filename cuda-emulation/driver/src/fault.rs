//! Faults: the report of device memory that the host touches, if it is enabled.
//!
//! The [handler](cuda_common::fault_signal) looks for the address in a list of atomics.

use std::ffi::c_int;
use std::iter;
use std::sync::OnceLock;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize};

use cuda_common::fault_signal;
use cuda_common::finding::{self, Finding};
use cudarc::driver::sys::CUresult;

use crate::error::Result;

/// Device memory that the handler finds.
#[derive(Debug)]
struct Entry {
    /// Its first address; 0 if the entry is free, and [`FILLING`] while somebody fills it.
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

    /// Returns the offset of an address, if it is in this memory.
    fn offset(&self, address: usize) -> Option<usize> {
        let start = self.start.load(Acquire);
        let offset = address.checked_sub(start).filter(|_| start != 0)?;
        (offset < self.length.load(Relaxed)).then_some(offset)
    }
}

/// Entries, and more of them if they do not suffice. They stay for as long as the process.
#[derive(Debug)]
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

/// Set if faults are reported.
static IS_REPORTED: AtomicBool = AtomicBool::new(false);

/// Device memory in the list, until this is dropped.
#[derive(Debug)]
pub(crate) struct Listed(Option<&'static Entry>);

impl Listed {
    /// Lists the addresses of an allocation, if faults are reported.
    pub(crate) fn new(start: usize, length: usize, allocation: u64, device: usize) -> Self {
        if !IS_REPORTED.load(Relaxed) {
            return Self(None);
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
                return Self(Some(entry));
            }
            list = list.next.get_or_init(|| Box::new(List::new()));
        }
    }

    /// Notes that it is freed.
    pub(crate) fn free(&self) {
        if let Some(entry) = self.0 {
            entry.is_freed.store(true, Relaxed);
        }
    }
}

impl Drop for Listed {
    fn drop(&mut self) {
        if let Some(entry) = self.0 {
            entry.start.store(0, Release);
        }
    }
}

/// Reports faults from now on.
pub(crate) fn report() -> Result<()> {
    fault_signal::install(say).map_err(|_| CUresult::CUDA_ERROR_OPERATING_SYSTEM)?;
    IS_REPORTED.store(true, Relaxed);
    Ok(())
}

/// Says which device memory an address is in, if it is in any.
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
