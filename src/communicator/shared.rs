//! The part of a communicator that several threads share, and the guard of NCCL calls.
#![allow(unsafe_code)] // Calls ncclCommAbort and ncclCommDestroy.

use std::cell::Cell;
use std::ffi::CStr;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::mpsc::sync_channel;
use std::sync::{Arc, OnceLock};
use std::task::Poll;
use std::thread;
use std::time::{Duration, Instant};

use super::objects::{Deferred, Object};
use super::state::{Left, Purpose, State};
use crate::backend::{Library, call, comm_hash};
use crate::buffer::MemorySpace;
use crate::config::{Config, RawConfig};
use crate::cuda::CudaContext;
use crate::error::{Error, Result, ResultCode};
use crate::observer::{
    Children, CommunicatorEvent, CommunicatorId, Given, Membership, Observers, of_process,
};
use crate::sys;

/// The longest time that an abort keeps its caller waiting.
pub(crate) const ABORT_LIMIT: Duration = Duration::from_secs(5);

/// The properties with which a communicator is created.
#[derive(Debug, Clone, Default)]
pub(crate) struct Origin {
    /// The `commName`, to which NCCL keeps a pointer.
    pub(crate) name: Option<Arc<CStr>>,
    pub(crate) id: Option<CommunicatorId>,
    pub(crate) parent: Option<CommunicatorId>,
    pub(crate) observers: Given,
    /// Set if other code owns the communicator and destroys it. A teardown in this crate then only stops using it.
    pub(crate) is_borrowed: bool,
}

/// The part of a communicator that it shares with its abort handles, its objects, and the thread that tears it down.
pub(crate) struct Shared {
    pub(crate) library: Arc<Library>,
    /// Live until [`State`] is ended.
    pub(crate) raw: sys::ncclComm_t,
    pub(crate) state: State,
    /// The memory space of buffers. Device memory is known from the start. Host memory is fixed by the first call that depends on
    /// it, because the program may load CUDA until then.
    memory_space: OnceLock<MemorySpace>,
    pub(crate) origin: Origin,
    children: Children,
    /// Set once size and rank are known.
    membership: OnceLock<Membership>,
    pub(crate) observers: Observers,
    /// Set if the teardown exceeded its limit and continues in the background, where NCCL may use everything that was passed to
    /// it.
    pub(super) is_ending: AtomicBool,
    /// Set on host memory once the communicator is freed, together with its registrations and windows. (On a GPU, NCCL frees the
    /// objects with the last of the communicator's ranks in the process, which cannot be observed here.)
    is_freed: AtomicBool,
    /// Set once the communicator is finalized: NCCL has stopped the threads that deregistering needs.
    pub(super) is_finalized: AtomicBool,
    pub(super) deferred: Deferred,
}

// SAFETY: `state` lets one thread at a time into NCCL with the pointer.
unsafe impl Send for Shared {}
// SAFETY: as above.
unsafe impl Sync for Shared {}

impl Shared {
    pub(crate) fn new(library: &Arc<Library>, raw: sys::ncclComm_t, origin: Origin) -> Arc<Self> {
        let memory_space = match library.memory_space() {
            MemorySpace::Device => OnceLock::from(MemorySpace::Device),
            MemorySpace::Host => OnceLock::new(),
        };
        Arc::new(Self {
            library: Arc::clone(library),
            raw,
            state: State::default(),
            memory_space,
            origin,
            children: Children::default(),
            membership: OnceLock::new(),
            observers: Observers::default(),
            is_ending: AtomicBool::new(false),
            is_freed: AtomicBool::new(false),
            is_finalized: AtomicBool::new(false),
            deferred: Deferred::default(),
        })
    }

    /// Returns the memory space of buffers. The first call fixes it.
    #[inline]
    pub(crate) fn memory_space(&self) -> MemorySpace {
        *self.memory_space.get_or_init(|| self.library.memory_space())
    }

    /// Returns the memory space of buffers without fixing it.
    pub(crate) fn known_memory_space(&self) -> MemorySpace {
        self.memory_space.get().copied().unwrap_or(MemorySpace::Host)
    }

    /// Returns the communicator's description for observers. The first call creates it from `size` and `rank`.
    pub(crate) fn membership(&self, size: usize, rank: usize) -> &Membership {
        self.membership.get_or_init(|| {
            let Origin { name, id, parent, .. } = &self.origin;
            let mut membership = Membership::new(rank, size, self.known_memory_space(), self.library.version);
            let Library { functions, device_functions, .. } = &*self.library;
            // SAFETY: a live communicator of this library.
            let hash = unsafe { comm_hash(functions, device_functions, self.raw) };
            (membership.id, membership.parent) = (hash.map(CommunicatorId::of_hash).or(*id), *parent);
            membership.library = self.library.backend.path().map(Arc::from);
            membership.name = name.as_ref().map(|name| name.to_string_lossy().into_owned());
            membership
        })
    }

    /// Adds the observers of the options and of the process.
    pub(crate) fn begin_observation(&self, size: usize, rank: usize) {
        let membership = self.membership(size, rank);
        let given = self.origin.observers.0.iter().cloned();
        given.chain(of_process(membership)).for_each(|observer| self.observers.add(membership, observer));
        self.notify(CommunicatorEvent::Created);
    }

    pub(crate) fn notify(&self, event: CommunicatorEvent) {
        self.observers.notify(event);
    }

    /// Returns the origin of the next child. `color` is `None` for a shrink.
    pub(crate) fn origin_of_child(&self, config: &Config, raw: &RawConfig, color: Option<i32>) -> Origin {
        let Origin { name, observers, .. } = &self.origin;
        let parent = self.membership.get().and_then(|membership| membership.id);
        let given = config.observers();
        Origin {
            name: raw.name().or_else(|| name.clone()),
            id: parent.map(|parent| self.children.next(parent, color)),
            parent,
            observers: if given.0.is_empty() { observers } else { given }.clone(),
            is_borrowed: false,
        }
    }

    fn timeout_error(&self, call: &'static str, elapsed: Duration, detail: Box<str>) -> Error {
        let known = self.membership.get();
        // 0 until they are known. NCCL has no more ranks than an i32 can count.
        let (size, rank) = known.map_or((0, 0), |known| (known.size as u32, known.rank as u32));
        let sequence = self.observers.count();
        Error::Timeout { call, elapsed, size, rank, sequence, detail }
    }

    pub(crate) fn poll(&self) -> Result<ResultCode> {
        // Not success, in case a library writes nothing.
        let mut state = sys::ncclResult_t::ncclInternalError;
        // SAFETY: a live communicator and a valid out-parameter.
        unsafe { call!(self.library, ncclCommGetAsyncError(self.raw, &raw mut state)) }?;
        Ok(ResultCode::from_raw(state))
    }

    /// Polls the method named `call`, which began at `start`. The wait also ends when the `parent` is aborted, or after the
    /// `timeout`.
    ///
    /// The caller must have entered NCCL, or nothing else may use the communicator. On host memory, NCCL no longer uses the
    /// call's arguments when this returns `Ready`, because a call in progress is aborted first.
    pub(crate) fn progress(
        self: &Arc<Self>,
        call: &'static str,
        start: Instant,
        timeout: Option<Duration>,
        parent: Option<&State>,
    ) -> Poll<Result<()>> {
        match self.poll() {
            Ok(ResultCode::SUCCESS) => return Poll::Ready(Ok(())),
            Ok(ResultCode::IN_PROGRESS) => {}
            // NCCL has aborted the work in progress when it reports an error.
            Ok(code) => return Poll::Ready(Err(self.library.error(call, code))),
            Err(error) => {
                // The end of the call can no longer be observed.
                let _ = self.abort_unless_ended();
                return Poll::Ready(Err(error));
            }
        }
        // A borrowed communicator is not aborted, and may still use the buffers.
        if self.origin.is_borrowed {
            return Poll::Pending;
        }
        if self.state.is_abort_requested() || parent.is_some_and(State::is_abort_requested) {
            let _ = self.abort_unless_ended();
            return Poll::Ready(Err(Error::Aborted { call }));
        }
        let elapsed = start.elapsed();
        if timeout.is_some_and(|timeout| elapsed >= timeout) {
            return Poll::Ready(Err(self.give_up(call, elapsed)));
        }
        Poll::Pending
    }

    /// Aborts the communicator and its call in progress, unless its teardown has already begun.
    #[cold]
    pub(crate) fn abort_unless_ended(self: &Arc<Self>) -> Result<()> {
        if !self.state.end() {
            return Ok(());
        }
        // SAFETY: the state has chosen this thread to tear it down.
        unsafe { self.abort() }
    }

    /// Aborts the communicator after a wait that exceeded its limit, and returns the error.
    pub(crate) fn give_up(self: &Arc<Self>, call: &'static str, elapsed: Duration) -> Error {
        // Another thread may be freeing it.
        if !self.state.end() {
            return Error::Aborted { call };
        }
        let error = self.timeout_error(call, elapsed, self.library.wait_of(self.raw));
        self.notify(CommunicatorEvent::TimedOut);
        // SAFETY: the state has chosen this thread to tear it down.
        let _ = unsafe { self.abort() };
        error
    }

    pub(crate) fn is_freed(&self) -> bool {
        self.is_freed.load(Acquire)
    }

    /// # Safety
    /// [`State`] must have chosen the caller to tear the communicator down.
    pub(crate) unsafe fn abort(self: &Arc<Self>) -> Result<()> {
        // SAFETY: the caller guarantees it.
        unsafe { Self::abort_all("abort", vec![Arc::clone(self)]) }
    }

    /// Aborts communicators of one library together.
    ///
    /// # Safety
    /// [`State`] must have chosen the caller to tear down each communicator.
    pub(crate) unsafe fn abort_all(call: &'static str, all: Vec<Arc<Self>>) -> Result<()> {
        all.iter().for_each(|shared| shared.notify(CommunicatorEvent::Aborted));
        let abort_each = |all: &[Arc<Self>]| {
            let mut result = Ok(());
            for shared in all {
                // SAFETY: live; the caller guarantees that no other thread enters NCCL with it any more.
                let aborted = unsafe { call!(shared.library, ncclCommAbort(shared.raw)) };
                result = result.and(aborted.map(drop));
            }
            result
        };
        Self::end(call, all, Some(ABORT_LIMIT), move |all| match all {
            // One after the other, the first could wait for work of the second, which is not aborted yet.
            [first, _, ..] if first.known_memory_space() == MemorySpace::Device => {
                // SAFETY: has no arguments; this thread ends the group below.
                unsafe { call!(first.library, ncclGroupStart()) }?;
                let aborted = abort_each(all);
                // SAFETY: has no arguments.
                let ended = unsafe { call!(first.library, ncclGroupEnd()) };
                aborted.and(ended.map(drop))
            }
            _ => abort_each(all),
        })
    }

    /// Calls `ncclCommDestroy`. On a GPU, the call continues in the background after the `limit`.
    ///
    /// # Safety
    /// [`State`] must have chosen the caller to tear the communicator down.
    pub(crate) unsafe fn destroy(self: &Arc<Self>, limit: Option<Duration>) -> Result<()> {
        self.notify(CommunicatorEvent::Ended);
        Self::end("destroy", vec![Arc::clone(self)], limit, |all| {
            all.iter().try_for_each(|shared| {
                // SAFETY: live; the caller guarantees that no other thread enters NCCL with it any more.
                let ended = unsafe { call!(shared.library, ncclCommDestroy(shared.raw)) };
                // An open group of this crate is not leaked.
                if ended.is_err() && !HAS_OPEN_GROUP.get() {
                    shared.library.end_leaked_groups();
                }
                ended.map(drop)
            })
        })
    }

    /// Runs `end`, which tears down communicators of one library.
    ///
    /// On a GPU, `end` may never return, because NCCL waits for CUDA graphs with work of the communicators. On a thread with an
    /// open group, NCCL would only queue the teardown, and drop it if the group is cancelled. So if there is a `limit`, another
    /// thread runs `end`, and continues after the limit.
    fn end(
        call: &'static str,
        mut all: Vec<Arc<Self>>,
        limit: Option<Duration>,
        end: impl Fn(&[Arc<Self>]) -> Result<()> + Copy + Send + 'static,
    ) -> Result<()> {
        all.retain(|shared| !shared.origin.is_borrowed);
        let Some(first) = all.first() else { return end(&all) };
        let is_on_host = |shared: &Arc<Self>| shared.known_memory_space() == MemorySpace::Host;
        let Some(limit) = limit.filter(|_| !is_on_host(first)) else {
            end(&all)?;
            for shared in all.into_iter().filter(is_on_host) {
                shared.is_freed.store(true, Release);
                shared.deferred.free();
            }
            return Ok(());
        };
        let (start, kept, context) = (Instant::now(), all.clone(), CudaContext::current());
        let ended = run_on_helper_thread(limit, move || {
            context.into_iter().for_each(CudaContext::make_current);
            end(&kept)
        });
        ended.unwrap_or_else(|| {
            all.iter().for_each(|shared| shared.is_ending.store(true, Relaxed));
            // `Library::wait_of` is not called, as the communicator is being freed.
            let detail =
                "NCCL continues the teardown in the background; perhaps a CUDA graph with its work still exists";
            Err(first.timeout_error(call, start.elapsed(), detail.into()))
        })
    }
}

/// Runs a task on another thread, or on this one if no thread can be started. Returns `None` after the `limit`; the task then
/// continues.
fn run_on_helper_thread<R: Send + 'static>(
    limit: Duration,
    task: impl Fn() -> R + Clone + Send + 'static,
) -> Option<R> {
    let (sender, result) = sync_channel(1);
    let thread = thread::Builder::new().name("libnccl-end".into()).spawn({
        let (task, sender) = (task.clone(), sender.clone());
        move || drop(sender.send(task()))
    });
    let thread = thread.inspect_err(|_| drop(sender.send(task()))).ok();
    let result = result.recv_timeout(limit).ok()?;
    // So that the thread has exited when this returns.
    let _ = thread.map(thread::JoinHandle::join);
    Some(result)
}

thread_local! {
    /// Set while this thread has a group of this crate open, with any implementation.
    pub(crate) static HAS_OPEN_GROUP: Cell<bool> = const { Cell::new(false) };
}

/// RAII guard that marks this thread as inside an NCCL call with a communicator.
///
/// Dropping it runs the object teardowns that were deferred meanwhile, and aborts the communicator if that was requested. Memory
/// that NCCL may use must not be freed before the guard is dropped.
pub(crate) struct CallGuard<'s>(pub(super) &'s Arc<Shared>);

impl<'s> CallGuard<'s> {
    #[inline]
    pub(crate) fn new(shared: &'s Arc<Shared>, call: &'static str, purpose: Purpose) -> Result<Self> {
        shared.state.enter(call, purpose)?;
        Ok(Self(shared))
    }

    #[inline]
    pub(crate) fn ungrouped(shared: &'s Arc<Shared>, call: &'static str, purpose: Purpose) -> Result<Self> {
        check_no_open_group(&shared.library, call)?;
        Self::new(shared, call, purpose)
    }

    /// Enters NCCL for a short call on an object of the communicator. The owner waits for this call.
    pub(crate) fn for_object(shared: &'s Arc<Shared>, call: &'static str) -> Result<Self> {
        shared.state.enter_for_object(call)?;
        Ok(Self(shared))
    }
}

impl Drop for CallGuard<'_> {
    #[inline]
    fn drop(&mut self) {
        let left = self.0.state.leave();
        if left != Left::Done {
            finish_leaving(self.0, left);
        }
    }
}

#[cold]
#[inline(never)]
fn finish_leaving(shared: &Arc<Shared>, mut left: Left) {
    let mut destroyed = Vec::new();
    while left == Left::Deferred {
        destroyed.append(&mut shared.deferred.destroy(shared));
        left = shared.state.leave();
    }
    if left == Left::Abort {
        // SAFETY: the state has chosen this thread to tear it down.
        let _ = unsafe { shared.abort() };
    }
    destroyed.into_iter().for_each(Object::free);
}

/// Returns an error if a group is open on this thread: a group of this crate with any implementation, or a group of other code
/// that `library` can detect.
#[inline]
pub(crate) fn check_no_open_group(library: &Library, call: &'static str) -> Result<()> {
    if HAS_OPEN_GROUP.get() { Err(open_error(call)) } else { library.check_open_groups(call, 0) }
}

#[cold]
fn open_error(call: &'static str) -> Error {
    Error::usage(call, "a group is open on this thread; only methods of the group can be called inside it")
}
