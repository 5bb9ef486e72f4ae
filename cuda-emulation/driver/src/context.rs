//! Contexts, and the stack of them that each thread has.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::mem::ManuallyDrop;

use cudarc::driver::sys::CUresult;

use crate::capture::Mode;
use crate::error::Result;
use crate::extension::Failure;
use crate::handle::{ContextId, StreamId};
use crate::thread_end;

/// A context.
#[derive(Debug)]
pub(crate) struct Context {
    /// Its device.
    pub(crate) device: usize,
    /// The flags that it was made with.
    pub(crate) flags: u32,
    /// Its default stream.
    pub(crate) default_stream: StreamId,
    /// The default streams of threads, by thread.
    pub(crate) thread_streams: BTreeMap<u64, StreamId>,
    /// The contexts whose memory it may use.
    pub(crate) peers: BTreeSet<ContextId>,
    /// An error that every call returns from now on.
    pub(crate) error: Option<CUresult>,
    /// Errors that every call returns until they are taken back, by the number of whoever does.
    pub(crate) failures: BTreeMap<u64, Failure>,
}

/// The number of a thread, and the function that is called with it when the thread ends.
type Number = (u64, fn(u64));

/// The state of a thread. [`thread_end`] frees it.
#[derive(Debug)]
struct Thread {
    number: Cell<Option<Number>>,
    stack: RefCell<Vec<ContextId>>,
    /// The treatment of captures by its calls.
    capture_mode: Cell<Mode>,
    /// True while it executes a function of the program that is on a stream.
    executes_function: Cell<bool>,
    /// True if its end is watched.
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

/// Frees the state of the calling thread. Later calls of the thread begin with a new one.
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

/// Uses the part of the calling thread's state that has to be freed.
fn with_watched<T>(action: impl FnOnce(&Thread) -> T) -> T {
    THREAD.with(|thread| {
        if !thread.is_watched.replace(true) {
            thread_end::watch();
        }
        action(thread)
    })
}

/// The calling thread's contexts.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Current;

impl Current {
    fn stack<T>(action: impl FnOnce(&mut Vec<ContextId>) -> T) -> T {
        with_watched(|thread| action(&mut thread.stack.borrow_mut()))
    }

    /// The current context, if there is one.
    pub(crate) fn get() -> Option<ContextId> {
        THREAD.with(|thread| thread.stack.borrow().last().copied())
    }

    /// The current context.
    pub(crate) fn require() -> Result<ContextId> {
        Self::get().ok_or(CUresult::CUDA_ERROR_INVALID_CONTEXT)
    }

    /// Replaces the current context; without a new one, it is only taken away.
    pub(crate) fn set(context: Option<ContextId>) {
        Self::stack(|stack| {
            stack.pop();
            stack.extend(context);
        });
    }

    /// Makes a context current, above the one that is.
    pub(crate) fn push(context: ContextId) {
        Self::stack(|stack| stack.push(context));
    }

    /// Takes the current context away.
    pub(crate) fn pop() -> Result<ContextId> {
        Self::stack(Vec::pop).ok_or(CUresult::CUDA_ERROR_INVALID_CONTEXT)
    }

    /// The treatment of captures by the calling thread.
    pub(crate) fn capture_mode() -> Mode {
        THREAD.with(|thread| thread.capture_mode.get())
    }

    /// Changes the treatment of captures by the calling thread; returns the one before.
    pub(crate) fn exchange_capture_mode(mode: Mode) -> Mode {
        THREAD.with(|thread| thread.capture_mode.replace(mode))
    }

    /// Executes a function of the program that is on a stream, on a thread that does nothing else.
    pub(crate) fn execute_function(function: impl FnOnce()) {
        let set = |executes| THREAD.with(|thread| thread.executes_function.set(executes));
        set(true);
        function();
        set(false);
    }

    /// Checks that the calling thread executes no function of the program that is on a stream: such a function must not wait
    /// for streams, of which its own waits for it.
    pub(crate) fn check_is_no_function() -> Result<()> {
        if THREAD.with(|thread| thread.executes_function.get()) {
            return Err(CUresult::CUDA_ERROR_NOT_PERMITTED);
        }
        Ok(())
    }

    /// The number of the calling thread, and the first time a new one, with which `at_end` is called.
    pub(crate) fn thread(fresh: impl FnOnce() -> u64, at_end: fn(u64)) -> u64 {
        with_watched(|thread| {
            let (number, _) = thread.number.get().unwrap_or_else(|| (fresh(), at_end));
            thread.number.set(Some((number, at_end)));
            number
        })
    }
}
