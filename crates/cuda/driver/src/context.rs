//! Contexts, and the stack of them that each thread has.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};

use cudarc::driver::sys::CUresult;

use crate::capture::Mode;
use crate::error::Result;
use crate::extension::Failure;
use crate::handle::{ContextId, StreamId};

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

/// The state of a thread.
#[derive(Debug)]
struct Thread {
    number: Cell<u64>,
    /// Called with the number when the thread ends.
    at_end: Cell<Option<fn(u64)>>,
    stack: RefCell<Vec<ContextId>>,
    /// The treatment of captures by its calls.
    capture_mode: Cell<Mode>,
    /// True while it executes a function of the program that is on a stream.
    executes_function: Cell<bool>,
}

impl Drop for Thread {
    fn drop(&mut self) {
        if let Some(at_end) = self.at_end.get() {
            at_end(self.number.get());
        }
    }
}

thread_local! {
    static THREAD: Thread = const { Thread {
        number: Cell::new(0),
        at_end: Cell::new(None),
        stack: RefCell::new(Vec::new()),
        capture_mode: Cell::new(Mode::Global),
        executes_function: Cell::new(false),
    } };
}

/// The calling thread's contexts.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Current;

impl Current {
    fn stack<T>(action: impl FnOnce(&mut Vec<ContextId>) -> T) -> Result<T> {
        THREAD
            .try_with(|thread| action(&mut thread.stack.borrow_mut()))
            .map_err(|_| CUresult::CUDA_ERROR_DEINITIALIZED)
    }

    /// The current context, if there is one.
    pub(crate) fn get() -> Result<Option<ContextId>> {
        Self::stack(|stack| stack.last().copied())
    }

    /// The current context.
    pub(crate) fn require() -> Result<ContextId> {
        Self::get()?.ok_or(CUresult::CUDA_ERROR_INVALID_CONTEXT)
    }

    /// Replaces the current context; without a new one, it is only taken away.
    pub(crate) fn set(context: Option<ContextId>) -> Result<()> {
        Self::stack(|stack| {
            stack.pop();
            stack.extend(context);
        })
    }

    /// Makes a context current, above the one that is.
    pub(crate) fn push(context: ContextId) -> Result<()> {
        Self::stack(|stack| stack.push(context))
    }

    /// Takes the current context away.
    pub(crate) fn pop() -> Result<ContextId> {
        Self::stack(Vec::pop)?.ok_or(CUresult::CUDA_ERROR_INVALID_CONTEXT)
    }

    /// The treatment of captures by the calling thread.
    pub(crate) fn capture_mode() -> Result<Mode> {
        THREAD.try_with(|thread| thread.capture_mode.get()).map_err(|_| CUresult::CUDA_ERROR_DEINITIALIZED)
    }

    /// Changes the treatment of captures by the calling thread; returns the one before.
    pub(crate) fn exchange_capture_mode(mode: Mode) -> Result<Mode> {
        THREAD
            .try_with(|thread| thread.capture_mode.replace(mode))
            .map_err(|_| CUresult::CUDA_ERROR_DEINITIALIZED)
    }

    /// Executes a function of the program that is on a stream, on a thread that does nothing else.
    pub(crate) fn execute_function(function: impl FnOnce()) {
        let set = |executes| THREAD.try_with(|thread| thread.executes_function.set(executes));
        let _ = set(true);
        function();
        let _ = set(false);
    }

    /// Checks that the calling thread executes no function of the program that is on a stream: such a function must not wait
    /// for streams, of which its own waits for it.
    pub(crate) fn check_is_no_function() -> Result<()> {
        match THREAD.try_with(|thread| thread.executes_function.get()) {
            Ok(true) => Err(CUresult::CUDA_ERROR_NOT_PERMITTED),
            _ => Ok(()),
        }
    }

    /// The number of the calling thread, and the first time a new one, with which `at_end` is called.
    pub(crate) fn thread(fresh: impl FnOnce() -> u64, at_end: fn(u64)) -> Result<u64> {
        THREAD
            .try_with(|thread| {
                if thread.at_end.get().is_none() {
                    thread.number.set(fresh());
                    thread.at_end.set(Some(at_end));
                }
                thread.number.get()
            })
            .map_err(|_| CUresult::CUDA_ERROR_DEINITIALIZED)
    }
}
