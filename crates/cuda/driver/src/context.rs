//! Contexts, and the stack of them that each thread has.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::mem::ManuallyDrop;

use cudarc::driver::sys::CUresult;
use cudarc::driver::sys::CUresult::*;

use crate::capture::Mode;
use crate::error::Result;
use crate::extension::Failure;
use crate::handle::{ContextId, StreamId};
use crate::thread_end;

#[derive(Debug)]
pub(crate) struct Context {
    pub(crate) device: usize,
    pub(crate) flags: u32,
    pub(crate) default_stream: StreamId,
    /// Per-thread default streams.
    pub(crate) thread_streams: BTreeMap<u64, StreamId>,
    /// The contexts with peer access from this one.
    pub(crate) peers: BTreeSet<ContextId>,
    /// A sticky error.
    pub(crate) error: Option<CUresult>,
    /// Errors until `libnccl_cuda_recover`, by the number passed to `libnccl_cuda_fail`.
    pub(crate) failures: BTreeMap<u64, Failure>,
}

type Number = (u64, fn(u64));

#[derive(Debug)]
struct Thread {
    number: Cell<Option<Number>>,
    stack: RefCell<Vec<ContextId>>,
    capture_mode: Cell<Mode>,
    /// Whether the thread executes a host function of a stream.
    executes_function: Cell<bool>,
    is_watched: Cell<bool>,
}

thread_local! {
    static THREAD: ManuallyDrop<Thread> = const { ManuallyDrop::new(Thread {
        number: Cell::new(None),
        stack: RefCell::new(Vec::new()),
        capture_mode: Cell::new(Mode::Global),
        executes_function: Cell::new(false),
        is_watched: Cell::new(false),
    }) };
}

const _: () = assert!(!std::mem::needs_drop::<ManuallyDrop<Thread>>(), "it is used after destructors");

/// Frees the state of the calling thread. Later calls on the thread begin with a new state.
pub(crate) fn end_thread() {
    let number = THREAD.with(|thread| {
        thread.is_watched.set(false);
        drop(thread.stack.take());
        thread.number.take()
    });
    if let Some((number, at_end)) = number {
        at_end(number);
    }
}

/// Uses state that must be freed when the thread ends.
fn with_watched<T>(action: impl FnOnce(&Thread) -> T) -> T {
    THREAD.with(|thread| {
        if !thread.is_watched.replace(true) {
            thread_end::watch();
        }
        action(thread)
    })
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct Current;

impl Current {
    fn stack<T>(action: impl FnOnce(&mut Vec<ContextId>) -> T) -> T {
        with_watched(|thread| action(&mut thread.stack.borrow_mut()))
    }

    pub(crate) fn get() -> Option<ContextId> {
        THREAD.with(|thread| thread.stack.borrow().last().copied())
    }

    pub(crate) fn require() -> Result<ContextId> {
        Self::get().ok_or(CUDA_ERROR_INVALID_CONTEXT)
    }

    pub(crate) fn set(context: Option<ContextId>) {
        Self::stack(|stack| {
            stack.pop();
            stack.extend(context);
        });
    }

    pub(crate) fn push(context: ContextId) {
        Self::stack(|stack| stack.push(context));
    }

    pub(crate) fn pop() -> Result<ContextId> {
        Self::stack(Vec::pop).ok_or(CUDA_ERROR_INVALID_CONTEXT)
    }

    pub(crate) fn capture_mode() -> Mode {
        THREAD.with(|thread| thread.capture_mode.get())
    }

    pub(crate) fn exchange_capture_mode(mode: Mode) -> Mode {
        THREAD.with(|thread| thread.capture_mode.replace(mode))
    }

    /// Executes a host function of a stream.
    pub(crate) fn execute_function(function: impl FnOnce()) {
        let set = |executes| THREAD.with(|thread| thread.executes_function.set(executes));
        set(true);
        function();
        set(false);
    }

    /// Checks that the calling thread executes no host function of a stream, which must not wait for its own
    /// stream.
    pub(crate) fn check_is_no_function() -> Result<()> {
        if THREAD.with(|thread| thread.executes_function.get()) {
            return Err(CUDA_ERROR_NOT_PERMITTED);
        }
        Ok(())
    }

    pub(crate) fn thread(fresh: impl FnOnce() -> u64, at_end: fn(u64)) -> u64 {
        with_watched(|thread| {
            let (number, _) = thread.number.get().unwrap_or_else(|| (fresh(), at_end));
            thread.number.set(Some((number, at_end)));
            number
        })
    }
}
