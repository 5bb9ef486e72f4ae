//! Events, of one process or shared by several.

#![allow(unsafe_code)]

use std::fs;
use std::ptr;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::{Arc, OnceLock};
use std::thread;
use std::time::{Duration, Instant};

use rustix::param::page_size;

use crate::capture::CapturedPoint;
use crate::error::{Result, print};
use crate::handle::ContextId;
use crate::mapping::{Exported, Mapping};
use crate::scheduler::Point;

pub(crate) struct Event {
    pub(crate) context: ContextId,
    pub(crate) has_timing: bool,
    pub(crate) last: LastRecord,
    pub(crate) shared: Option<Arc<SharedEvent>>,
}

#[derive(Clone)]
pub(crate) enum LastRecord {
    Never,
    Enqueued(Record),
    Captured(CapturedPoint),
}

#[derive(Clone)]
pub(crate) struct Record {
    pub(crate) point: Point,
    pub(crate) time: Arc<OnceLock<Instant>>,
}

#[repr(C)]
struct EventState {
    recorded: AtomicU64,
    completed: AtomicU64,
    /// The process that made the last record. `start` is the start time of that process.
    process: AtomicU64,
    start: AtomicU64,
}

/// The shared memory of an interprocess event. Records are numbered from 1.
pub(crate) struct SharedEvent(pub(crate) Mapping);

impl SharedEvent {
    pub(crate) fn new() -> Result<Self> {
        Ok(Self(Mapping::device(page_size())?))
    }

    pub(crate) fn open(place: &Exported) -> Result<Self> {
        Ok(Self(Mapping::import(place, page_size())?.0))
    }

    fn state(&self) -> &EventState {
        // SAFETY: a page of the mapping, aligned, and zero is a value; all processes change it by atomics alone.
        unsafe { &*ptr::with_exposed_provenance(self.0.alias()) }
    }

    pub(crate) fn record(&self) -> u64 {
        let process = std::process::id();
        let state = self.state();
        state.start.store(start(process.into()).unwrap_or(0), Relaxed);
        state.process.store(process.into(), Relaxed);
        state.recorded.fetch_add(1, Release) + 1
    }

    pub(crate) fn complete(&self, record: u64) {
        self.state().completed.fetch_max(record, Release);
    }

    pub(crate) fn last_of_another_process(&self) -> Option<u64> {
        let state = self.state();
        let last = state.recorded.load(Acquire);
        (last > 0 && state.process.load(Relaxed) != u64::from(std::process::id())).then_some(last)
    }

    /// Returns whether a record is complete, or will never be because its process has exited.
    pub(crate) fn is_over(&self, record: u64) -> bool {
        let state = self.state();
        if state.completed.load(Acquire) >= record {
            return true;
        }
        let process = state.process.load(Relaxed);
        if start(process) == Some(state.start.load(Relaxed)) {
            return false;
        }
        // The process may have completed it before it exited.
        if state.completed.fetch_max(record, Acquire) < record {
            print(&format!(
                "libnccl: process {process} has ended before its record of an event that processes share was complete: \
                 nothing waits for it\n"
            ));
        }
        true
    }

    pub(crate) fn wait(&self, record: u64) {
        let mut pause = Duration::from_micros(20);
        while !self.is_over(record) {
            thread::sleep(pause);
            pause = (2 * pause).min(Duration::from_millis(2));
        }
    }
}

/// Returns the start time of a running process, in the kernel's units.
fn start(process: u64) -> Option<u64> {
    let text = fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
    // The name, in parentheses, may contain any characters.
    let mut fields = text.rsplit_once(')')?.1.split_whitespace();
    let state = fields.next()?;
    fields.nth(18)?.parse().ok().filter(|_| !matches!(state, "Z" | "X"))
}
