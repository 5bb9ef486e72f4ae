//! The creation of communicators: by a builder, for all ranks in one process, and in a group.
#![allow(unsafe_code)] // Calls NCCL.

use std::cell::Cell;
use std::fmt;
use std::mem;
use std::ptr;
use std::rc::Rc;
use std::slice;
use std::sync::Arc;
use std::time::Duration;

use super::communicator::Communicator;
use super::objects::OutParam;
use super::shared::{Origin, Shared, check_no_open_group};
use crate::backend::{Library, call};
use crate::buffer::MemorySpace;
use crate::config::{Config, RawConfig};
use crate::cuda::{Context, make_current};
use crate::error::{Error, InvalidArgumentKind, Result, ResultCode};
use crate::nccl::Nccl;
use crate::observer::CommunicatorId;
use crate::sys;
use crate::unique_id::UniqueId;

const INIT_IN: &str = "init_in";

/// A builder for a communicator; see [`Nccl::communicator`].
#[must_use = "`init` creates the communicator"]
pub struct CommunicatorBuilder<'a> {
    library: &'a Arc<Library>,
    size: usize,
    rank: usize,
    ids: &'a [UniqueId],
    grows: bool,
    config: Config,
    context: Option<&'a dyn Context>,
}

impl Nccl {
    /// Returns a builder for a communicator of `size` ranks, in which the caller becomes rank `rank`.
    /// [`init`](CommunicatorBuilder::init) returns when all ranks have joined.
    ///
    /// On a GPU the rank uses the calling thread's current device, or the one set by
    /// [`device`](CommunicatorBuilder::device). Ranks are processes, or threads that call `init` concurrently.
    ///
    /// ```
    /// use std::time::Duration;
    ///
    /// let nccl = libnccl_cpu::nccl();
    /// let id = nccl.unique_id()?;
    /// std::thread::scope(|scope| {
    ///     for rank in 0..2 {
    ///         let (nccl, id) = (&nccl, &id);
    ///         scope.spawn(move || {
    ///             let comm = nccl.communicator(2, rank, id).timeout(Duration::from_secs(30)).init();
    ///             assert_eq!(comm.unwrap().size(), 2);
    ///         });
    ///     }
    /// });
    /// # Ok::<(), libnccl::Error>(())
    /// ```
    #[doc(alias = "ncclCommInitRank")]
    #[doc(alias = "ncclCommInitRankConfig")]
    pub fn communicator<'a>(&'a self, size: usize, rank: usize, id: &'a UniqueId) -> CommunicatorBuilder<'a> {
        let (ids, config) = (slice::from_ref(id), Config::default());
        CommunicatorBuilder { library: &self.library, size, rank, ids, grows: false, config, context: None }
    }

    /// Creates the communicators of all ranks in this process: rank `i` is on device `devices[i]`.
    ///
    /// A single thread that drives several ranks must put their operations into a [`group`](Self::group). On GPUs, NCCL by
    /// default requires different devices; on host memory, the numbers have no meaning. For options or a timeout, use
    /// [`init_in`](CommunicatorBuilder::init_in).
    ///
    /// ```
    /// let comms = libnccl_cpu::nccl().init_all(&[0, 1])?;
    /// assert_eq!(comms[1].rank(), 1);
    /// # Ok::<(), libnccl::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if `devices` is empty or contains a negative number.
    #[doc(alias = "ncclCommInitAll")]
    pub fn init_all(&self, devices: &[i32]) -> Result<Vec<Communicator>> {
        const CALL: &str = "init_all";
        let library = &self.library;
        check_no_open_group(library, CALL)?;
        if devices.is_empty() {
            let problem = "no devices; expected one for each rank";
            return Err(Error::argument(CALL, InvalidArgumentKind::Length, problem));
        }
        if let Some(device) = devices.iter().find(|device| **device < 0) {
            let problem = format!("device {device} is negative");
            return Err(Error::argument(CALL, InvalidArgumentKind::Device, problem));
        }
        let count = to_c_length(CALL, devices.len(), "devices")?;
        let mut raws = vec![ptr::null_mut(); devices.len()];
        // SAFETY: both arrays have `count` elements.
        let created = unsafe { call!(library, ncclCommInitAll(raws.as_mut_ptr(), count, devices.as_ptr())) };
        created.inspect_err(|_| library.end_leaked_groups())?;
        let origin = Origin { id: Some(CommunicatorId::of_this_process()), ..Origin::default() };
        let adopt = |raw: &sys::ncclComm_t| {
            // SAFETY: NCCL has just created the handles, and nothing else has them.
            unsafe { Communicator::from_shared(CALL, Shared::new(library, *raw, origin.clone()), None, None) }
        };
        // Adopt all of them first, so that if one fails, dropping the others tears them down.
        let adopted: Vec<_> = raws.iter().map(adopt).collect();
        let communicators: Result<Vec<Communicator>> = adopted.into_iter().collect();
        // As in `CommunicatorBuilder::init`, NCCL may still use the slots after a failure.
        communicators.inspect_err(|_| mem::forget(raws))
    }
}

impl<'a> CommunicatorBuilder<'a> {
    /// Sets the communicator's options. `config` replaces all earlier options, except that an earlier timeout remains if `config`
    /// has none. Since NCCL 2.14.3.
    pub fn config(mut self, config: &Config) -> Self {
        self.config = config.clone().inherit_timeout(self.config.timeout_duration());
        self
    }

    /// Limits how long the communicator's calls wait; see [`Config::timeout`]. Since NCCL 2.14.3.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.config = self.config.timeout(timeout);
        self
    }

    /// Replaces the id with several ids. Each id should be created by a different rank: these ranks then share the work of the
    /// bootstrap. All ranks must pass the same ids in the same order. Since NCCL 2.23.4; older versions use the first id only.
    ///
    /// ```
    /// let nccl = libnccl_cpu::nccl();
    /// // One process creates both ids here. With 10,000 ranks, every thousandth rank could create one.
    /// let ids = [nccl.unique_id()?, nccl.unique_id()?];
    /// std::thread::scope(|scope| {
    ///     for rank in 0..4 {
    ///         let (nccl, ids) = (&nccl, &ids);
    ///         scope.spawn(move || nccl.communicator(4, rank, &ids[0]).ids(ids).init().unwrap());
    ///     }
    /// });
    /// # Ok::<(), libnccl::Error>(())
    /// ```
    #[doc(alias = "ncclCommInitRankScalable")]
    pub fn ids(mut self, ids: &'a [UniqueId]) -> Self {
        self.ids = ids;
        self
    }

    /// Selects the device of `context`. [`init`](Self::init) makes `context` the calling thread's current context.
    pub fn device(mut self, context: &'a dyn Context) -> Self {
        self.context = Some(context);
        self
    }

    /// Makes [`init`](Self::init) join an existing communicator, whose ranks call [`Communicator::grow`] with the same size.
    /// Since NCCL 2.29.2.
    #[doc(alias = "ncclCommGrow")]
    pub fn grow(mut self) -> Self {
        self.grows = true;
        self
    }

    /// Creates the communicator, and waits until all ranks have joined.
    ///
    /// # Errors
    /// - [`Error::InvalidArgument`] if `rank` is not less than `size`, if the list of [`ids`](Self::ids) is empty, or if it has
    ///   several ids and [`grow`](Self::grow) was called.
    /// - [`Error::Unsupported`] if the library lacks an option.
    /// - [`Error::InvalidUsage`] if the [context](Self::device) cannot be made current, or while a group is open on this thread.
    /// - [`Error::Timeout`] if the other ranks did not join before the timeout.
    /// - [`Error::Nccl`] if NCCL fails.
    pub fn init(self) -> Result<Communicator> {
        const CALL: &str = "init";
        let library = self.library;
        check_no_open_group(library, CALL)?;
        let mut raw_config = self.prepare(CALL)?;
        // Initialized to null, as some versions read it when they fail.
        let slot = OutParam::new(library);
        // SAFETY: NCCL writes the handle to the slot before the call returns; 2.14.3 reads it until the communicator is
        // complete, and writes it if that fails; `ncclCommGrow` writes it again then. The communicator keeps the name alive.
        let called = unsafe { self.call_init(slot.as_mut_ptr(), &mut raw_config) };
        let created = called.inspect_err(|_| library.end_leaked_groups()).and_then(|_| {
            let shared = Shared::new(library, slot.get(), self.origin(&raw_config));
            // For the error of a rank that never joins.
            shared.membership(self.size, self.rank);
            // SAFETY: NCCL has just created the handle, and nothing else has it.
            unsafe { Communicator::from_shared(CALL, shared, self.config.timeout_duration(), None) }
        });
        // SAFETY: this was the last use.
        unsafe { slot.free_after(&created) };
        created
    }

    /// Begins the creation in the group that is open on this thread.
    ///
    /// # Safety
    /// The group must keep the [handle](PendingCommunicator::handle) of the result until the group has ended.
    pub(crate) unsafe fn begin_pending(&self, library: &Arc<Library>) -> Result<PendingCommunicator> {
        if !self.library.is_same(library) {
            let problem = "the communicator and the group belong to different libraries";
            return Err(Error::argument(INIT_IN, InvalidArgumentKind::Communicator, problem));
        }
        if self.grows {
            let problem = "a rank cannot join a communicator that grows in a group; use `init`";
            return Err(Error::usage(INIT_IN, problem));
        }
        let mut raw_config = self.prepare(INIT_IN)?;
        let (origin, timeout) = (self.origin(&raw_config), self.config.timeout_duration());
        let state = Cell::new(PendingState::GroupOpen);
        let (library, slot) = (Arc::clone(library), OutParam::new(library));
        let handle = Rc::new(PendingHandle { library, slot, state, origin });
        // SAFETY: the slot is not freed before NCCL is known to be done with it, which is after the group has ended, as the
        // caller guarantees; NCCL drops it if the call fails. The handle keeps the name alive.
        unsafe { self.call_init(handle.slot.as_mut_ptr(), &mut raw_config) }?;
        Ok(PendingCommunicator { handle, size: self.size, rank: self.rank, timeout })
    }

    /// Checks the arguments, and makes the context current.
    fn prepare(&self, call: &'static str) -> Result<RawConfig> {
        to_c_size_and_rank(call, self.size, self.rank)?;
        let problem = match self.ids {
            [] => Some("no unique ids; expected at least one".to_string()),
            [_, _, ..] if self.grows => Some(format!("{} unique ids; expected one to grow", self.ids.len())),
            _ => None,
        };
        if let Some(problem) = problem {
            return Err(Error::argument(call, InvalidArgumentKind::Length, problem));
        }
        to_c_length(call, self.ids.len(), "unique ids")?;
        let raw_config = self.config.to_raw(call, self.library.version, &self.library.backend.to_string())?;
        self.context.map_or(Ok(()), |context| make_current(call, context))?;
        Ok(raw_config)
    }

    fn origin(&self, raw_config: &RawConfig) -> Origin {
        let id = self.ids.first().filter(|_| !self.grows).map(CommunicatorId::of_unique_id);
        let observers = self.config.observers().clone();
        Origin { name: raw_config.name(), id, observers, ..Origin::default() }
    }

    /// Calls NCCL. NCCL reads the ids and the options only during the call, but the name also afterwards.
    ///
    /// # Safety
    /// `out` must be valid until NCCL no longer uses it. The name in the options must be valid until the communicator is torn
    /// down.
    unsafe fn call_init(&self, out: *mut sys::ncclComm_t, config: &mut RawConfig) -> Result<ResultCode> {
        let (library, config) = (self.library, config.as_mut_ptr());
        // `prepare` has checked that they fit.
        let (size, rank) = (self.size as i32, self.rank as i32);
        let mut ids: Vec<_> = self.ids.iter().map(|id| id.to_raw()).collect();
        let (first, count) = (ids[0], ids.len() as i32);
        // SAFETY: the ids and the options are valid during the call; the caller guarantees the rest. A rank that joins a
        // communicator that grows passes no communicator.
        unsafe {
            if self.grows {
                call!(library, ncclCommGrow(ptr::null_mut(), size, &raw const first, rank, out, config))
            } else if count > 1 && library.functions.ncclCommInitRankScalable.is_some() {
                call!(library, ncclCommInitRankScalable(out, size, rank, count, ids.as_mut_ptr(), config))
            } else if self.config.is_default() {
                call!(library, ncclCommInitRank(out, size, first, rank))
            } else {
                call!(library, ncclCommInitRankConfig(out, size, first, rank, config))
            }
        }
    }
}

pub(super) fn to_c_size_and_rank(call: &'static str, size: usize, rank: usize) -> Result<(i32, i32)> {
    let problem = match (i32::try_from(size), i32::try_from(rank)) {
        (Ok(c_size), Ok(c_rank)) if rank < size => return Ok((c_size, c_rank)),
        (Ok(_), Ok(_)) => format!("rank {rank} is not below the size {size}"),
        _ => format!("size {size} or rank {rank} is beyond {}", i32::MAX),
    };
    Err(Error::argument(call, InvalidArgumentKind::Rank, problem))
}

pub(crate) fn to_c_int(call: &'static str, what: &str, value: u32) -> Result<i32> {
    let problem = |_| format!("{what} {value} is beyond {}", i32::MAX);
    i32::try_from(value).map_err(problem).map_err(|it| Error::argument(call, InvalidArgumentKind::Value, it))
}

pub(crate) fn to_c_length(call: &'static str, length: usize, what: &str) -> Result<i32> {
    let problem = |_| format!("{length} {what} are beyond {}", i32::MAX);
    i32::try_from(length)
        .map_err(problem)
        .map_err(|it| Error::argument(call, InvalidArgumentKind::Length, it))
}

impl fmt::Debug for CommunicatorBuilder<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CommunicatorBuilder")
            .field("size", &self.size)
            .field("rank", &self.rank)
            .field("ids", &self.ids)
            .field("config", &self.config)
            .finish_non_exhaustive()
    }
}

/// A communicator that a group creates at its end; see [`CommunicatorBuilder::init_in`].
#[derive(Debug)]
pub struct PendingCommunicator {
    handle: Rc<PendingHandle>,
    size: usize,
    rank: usize,
    timeout: Option<Duration>,
}

/// The out-parameter for the handle, with the data to which NCCL keeps pointers. The group shares ownership, so this lives until
/// the group has ended. Dropping this aborts the communicator, unless [`finish`](PendingCommunicator::finish) has taken the
/// handle.
#[derive(Debug)]
pub(crate) struct PendingHandle {
    library: Arc<Library>,
    /// Freed once the communicator is known to be complete or torn down: NCCL 2.14.3 uses it until then.
    slot: OutParam<sys::ncclComm>,
    state: Cell<PendingState>,
    origin: Origin,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum PendingState {
    GroupOpen,
    Created,
    Taken,
    /// The group has failed. The handle may be null, or belong to a communicator that was never complete.
    Failed,
}

impl PendingHandle {
    pub(crate) fn resolve(&self, has_failed: bool) {
        self.state.set(if has_failed { PendingState::Failed } else { PendingState::Created });
    }
}

impl PendingCommunicator {
    pub(crate) fn handle(&self) -> Rc<PendingHandle> {
        Rc::clone(&self.handle)
    }

    /// Returns the communicator. Call this after the group has ended.
    ///
    /// # Errors
    /// [`Error::InvalidUsage`] if the group has not ended or has failed; otherwise the errors of [`CommunicatorBuilder::init`].
    pub fn finish(self) -> Result<Communicator> {
        let PendingHandle { library, slot, state, origin } = &*self.handle;
        match state.get() {
            PendingState::Created => state.set(PendingState::Taken),
            PendingState::GroupOpen => {
                return Err(Error::usage("finish", "the group that creates the communicator has not ended"));
            }
            PendingState::Failed | PendingState::Taken => {
                return Err(Error::usage("finish", "the group that was to create the communicator failed"));
            }
        }
        let shared = Shared::new(library, slot.get(), origin.clone());
        // For the error of a rank that never joins.
        shared.membership(self.size, self.rank);
        // SAFETY: the group has created the handle, and it is taken out here.
        let created = unsafe { Communicator::from_shared(INIT_IN, shared, self.timeout, None) };
        // SAFETY: a slot whose handle was taken out is not used any more.
        unsafe { slot.free_after(&created) };
        created
    }
}

impl Drop for PendingHandle {
    fn drop(&mut self) {
        let state = self.state.get();
        if state == PendingState::Taken {
            return;
        }
        let (raw, origin) = (self.slot.get(), mem::take(&mut self.origin));
        let aborted = if state == PendingState::Created && !raw.is_null() {
            // SAFETY: the group has created the handle, and it was not taken out.
            unsafe { Shared::new(&self.library, raw, origin).abort() }
        } else {
            // Aborting a communicator that was never complete would free nothing, or crash (2.14.3). NCCL keeps its name.
            if self.slot.memory_space == MemorySpace::Device {
                mem::forget(origin.name);
            }
            Ok(())
        };
        // SAFETY: the group has ended, and nothing else has the slot.
        unsafe { self.slot.free_after(&aborted) };
    }
}
