//! Memory and events that processes share.

#![allow(unsafe_code)]

use std::fs;
use std::ptr;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::thread;
use std::time::Duration;

use cudarc::driver::sys::CUresult;
use rustix::param::page_size;

use crate::error::Result;
use crate::handle::ContextId;
use crate::mapping::{Exported, ImportLock, Mapping};
use crate::message;

/// The kind of what a handle stands for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Shared {
    /// Memory of a device, of so many bytes.
    Memory { device: u32, length: u64 },
    /// An event.
    Event,
}

/// A handle, as programs pass it between processes: what another process needs to map what it stands for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct IpcHandle {
    /// The memory or event that it stands for.
    pub(crate) shared: Shared,
    /// Its place in the file.
    pub(crate) place: Exported,
}

impl IpcHandle {
    const MAGIC: u32 = 0x6c6e_6363;

    /// Returns the bytes that CUDA has for it.
    pub(crate) fn to_bytes(self) -> [u8; 64] {
        let (device, length) = match self.shared {
            Shared::Memory { device, length } => (device, length),
            Shared::Event => (0, 0),
        };
        let Exported { process, file, inode, offset } = self.place;
        let mut bytes = [0; 64];
        for (at, number) in [Self::MAGIC, device, process, file].into_iter().enumerate() {
            bytes[4 * at..][..4].copy_from_slice(&number.to_ne_bytes());
        }
        for (at, number) in [length, inode, offset].into_iter().enumerate() {
            bytes[16 + 8 * at..][..8].copy_from_slice(&number.to_ne_bytes());
        }
        bytes
    }

    /// Reads a handle.
    ///
    /// # Errors
    /// The bytes are no handle, or it is that of something else.
    pub(crate) fn of_bytes(bytes: &[u8; 64], is_event: bool) -> Result<Self> {
        let half = |at: usize| bytes[at..].first_chunk().map_or(0, |four| u32::from_ne_bytes(*four));
        let word = |at: usize| bytes[at..].first_chunk().map_or(0, |eight| u64::from_ne_bytes(*eight));
        let length = word(16);
        if half(0) != Self::MAGIC || (length == 0) != is_event {
            return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
        }
        let shared = if is_event { Shared::Event } else { Shared::Memory { device: half(4), length } };
        let place = Exported { process: half(8), file: half(12), inode: word(24), offset: word(32) };
        Ok(Self { shared, place })
    }
}

/// Memory of another process that a context has opened.
#[derive(Debug)]
pub(crate) struct Import {
    /// The context.
    pub(crate) context: ContextId,
    /// The memory.
    pub(crate) place: Exported,
    /// The address that programs see.
    pub(crate) address: u64,
    /// The number of times that it was opened and not closed.
    pub(crate) count: usize,
    /// Shows the process that allocated the memory that it is open here.
    pub(crate) _lock: ImportLock,
}

/// The state of an event that processes share, in memory that all have.
#[derive(Debug)]
#[repr(C)]
struct EventState {
    /// The number of records.
    recorded: AtomicU64,
    /// The last record that is complete.
    completed: AtomicU64,
    /// The process that made the last record, and the time of its start.
    process: AtomicU64,
    start: AtomicU64,
}

/// An event that processes share.
#[derive(Debug)]
pub(crate) struct SharedEvent {
    memory: Mapping,
}

impl SharedEvent {
    /// Creates an event that was never recorded.
    pub(crate) fn new() -> Result<Self> {
        Ok(Self { memory: Mapping::device(page_size())? })
    }

    /// Opens an event of another process.
    pub(crate) fn open(place: &Exported) -> Result<Self> {
        Ok(Self { memory: Mapping::import(place, page_size())?.0 })
    }

    /// Returns what another process needs to open it, or nothing if it cannot.
    pub(crate) fn export(&self) -> Option<Exported> {
        self.memory.export()
    }

    fn state(&self) -> &EventState {
        // SAFETY: a page of the mapping, aligned, and zero is a value; all processes change it by atomics alone.
        unsafe { &*ptr::with_exposed_provenance(self.memory.alias()) }
    }

    /// Notes that it is recorded by this process; returns the number of the record.
    pub(crate) fn record(&self) -> u64 {
        let process = std::process::id();
        let state = self.state();
        state.start.store(start(process.into()).unwrap_or(0), Relaxed);
        state.process.store(process.into(), Relaxed);
        state.recorded.fetch_add(1, Release) + 1
    }

    /// Notes that a record is complete.
    pub(crate) fn complete(&self, record: u64) {
        self.state().completed.fetch_max(record, Release);
    }

    /// The number of the last record, if another process made it.
    pub(crate) fn last_of_another_process(&self) -> Option<u64> {
        let state = self.state();
        let last = state.recorded.load(Acquire);
        (last > 0 && state.process.load(Relaxed) != u64::from(std::process::id())).then_some(last)
    }

    /// Returns whether a record is complete, or will never be, as its process is gone.
    pub(crate) fn is_over(&self, record: u64) -> bool {
        let state = self.state();
        if state.completed.load(Acquire) >= record {
            return true;
        }
        let process = state.process.load(Relaxed);
        if start(process) == Some(state.start.load(Relaxed)) {
            return false;
        }
        // It may have completed it at last.
        if state.completed.fetch_max(record, Acquire) < record {
            message::write(&format!(
                "libnccl: process {process} has ended before its record of an event that processes share was complete: \
                 nothing waits for it\n"
            ));
        }
        true
    }

    /// Waits until a record is over.
    pub(crate) fn wait(&self, record: u64) {
        let mut pause = Duration::from_micros(20);
        while !self.is_over(record) {
            thread::sleep(pause);
            pause = (2 * pause).min(Duration::from_millis(2));
        }
    }
}

/// The time at which a process was started, in the kernel's units, if it has not ended.
fn start(process: u64) -> Option<u64> {
    let text = fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
    // The name, in parentheses, may have any letters.
    let mut fields = text.rsplit_once(')')?.1.split_whitespace();
    let state = fields.next()?;
    fields.nth(18)?.parse().ok().filter(|_| !matches!(state, "Z" | "X"))
}
