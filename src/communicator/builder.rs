#![allow(unsafe_code)] // Calls NCCL.

use std::fmt;
use std::marker::PhantomData;
use std::ptr;
use std::slice;
use std::sync::Arc;
use std::time::Duration;

use super::communicator::Communicator;
use super::inside::check_no_open_group;
use super::out_param::OutParam;
use super::pending::PendingCommunicator;
use super::recovery::ShrinkMode;
use super::shared::{Origin, Shared};
use crate::backend::{Library, call};
use crate::config::Config;
use crate::config::RawConfig;
use crate::context::Context;
use crate::context::make_current;
use crate::error::{Error, InvalidArgumentKind, Result, ResultCode};
use crate::group::Group;
use crate::nccl::Nccl;
use crate::observer::CommunicatorId;
use crate::operation::to_c_length;
use crate::sys;
use crate::unique_id::UniqueId;

/// A communicator to be created; see [`Nccl::communicator`].
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

/// A communicator to be created from another one; see [`Communicator::split`], [`Communicator::shrink`] and
/// [`Communicator::grow`].
#[must_use = "`init` creates the communicator"]
pub struct ChildBuilder<'a, T = Communicator> {
    parent: &'a Communicator,
    child: Child<'a>,
    config: Config,
    output: PhantomData<fn() -> T>,
}

/// The arguments of the call that creates a child.
#[derive(Debug)]
pub(super) enum Child<'a> {
    Split { color: Option<u32>, key: i32 },
    Shrink { exclude: &'a [usize], mode: ShrinkMode },
    Grow { size: usize, id: Option<&'a UniqueId> },
}

impl Nccl {
    /// Returns a builder of a communicator of `size` ranks, of which the caller is number `rank`.
    /// [`init`](CommunicatorBuilder::init) returns when all ranks have joined.
    ///
    /// On a GPU the rank belongs to the calling thread's current device, or to that of
    /// [`device`](CommunicatorBuilder::device). Ranks are processes, or threads that call `init` at the same time.
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

    /// Creates a communicator with all its ranks in this process: rank `i` on device `devices[i]`.
    ///
    /// A single thread that drives several ranks must put their operations into a [`group`](Self::group). On the CPU
    /// implementation the devices are only numbers. It has no options and no timeout: with them, create the ranks in a
    /// group, by [`init_in`](CommunicatorBuilder::init_in).
    ///
    /// ```
    /// let comms = libnccl_cpu::nccl().init_all(&[0, 1])?;
    /// assert_eq!(comms[1].rank(), 1);
    /// # Ok::<(), libnccl::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if there is no device, or a negative one; [`Error::Nccl`] if NCCL fails.
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
        // Adopt all of them first, so that if one fails, dropping the others ends them.
        let adopted: Vec<_> = raws.iter().map(adopt).collect();
        let communicators: Result<Vec<Communicator>> = adopted.into_iter().collect();
        // As in `CommunicatorBuilder::init`, NCCL may still use the slots after a failure.
        communicators.inspect_err(|_| std::mem::forget(raws))
    }
}

impl<'a> CommunicatorBuilder<'a> {
    /// Sets the options, which NCCL has since 2.14.3. They replace those set before, except for a timeout if they have
    /// none.
    pub fn config(mut self, config: &Config) -> Self {
        self.config = config.clone().inherit_timeout(self.config.timeout_duration());
        self
    }

    /// Sets the longest time that a call of the communicator may wait; see [`Config::timeout`]. Since NCCL 2.14.3.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.config = self.config.timeout(timeout);
        self
    }

    /// Sets several ids of as many ranks, which share the work of the bootstrap, instead of the one. All ranks pass the same
    /// ids in the same order. NCCL has this since 2.23.4; an older one uses the first id only.
    ///
    /// ```
    /// let nccl = libnccl_cpu::nccl();
    /// // Ranks 0 and 2 create them here; of 10,000 ranks, every thousandth could create one.
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

    /// Sets the device to that of `context`, which becomes the calling thread's current context.
    ///
    /// ```
    /// # fn init(context: &impl libnccl::Context, nccl: &libnccl::Nccl) -> libnccl::Result<libnccl::Communicator> {
    /// nccl.communicator(1, 0, &nccl.unique_id()?).device(context).init()
    /// # }
    /// ```
    pub fn device(mut self, context: &'a dyn Context) -> Self {
        self.context = Some(context);
        self
    }

    /// Joins a communicator that other ranks [`grow`](Communicator::grow) to `size` ranks, with the id of one of them; for an
    /// example, see there. Since NCCL 2.29.2.
    #[doc(alias = "ncclCommGrow")]
    pub fn grow(mut self) -> Self {
        self.grows = true;
        self
    }

    /// Creates the communicator, and waits for all ranks.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if `rank` is not below `size`, or if there is no id; [`Error::Unsupported`] if the library
    /// is older than an option; [`Error::InvalidUsage`] if CUDA cannot make the context current, and while a group is open;
    /// [`Error::Timeout`] if the other ranks did not join before the timeout; [`Error::Nccl`] if NCCL fails.
    pub fn init(self) -> Result<Communicator> {
        const CALL: &str = "init";
        let library = self.library;
        check_no_open_group(library, CALL)?;
        let (size, rank, mut raw_config) = self.prepare(CALL)?;
        // Initialized to null, as some versions read it when they fail.
        let slot = OutParam::new(library);
        // SAFETY: NCCL writes the handle to the slot before the call returns; 2.14.3 reads it until the communicator is
        // complete, and writes it if that fails; `ncclCommGrow` writes it again then. The communicator keeps the name alive.
        let called = unsafe { self.call_init(slot.as_mut_ptr(), size, rank, &mut raw_config) };
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

    /// Creates the communicator at the end of the `group`: for one thread that creates several ranks.
    ///
    /// A group that creates communicators contains no operations.
    ///
    /// ```
    /// use libnccl::{Communicator, Result};
    ///
    /// let nccl = libnccl_cpu::nccl();
    /// let id = nccl.unique_id()?;
    /// let ranks = nccl.group(|g| (0..2).map(|rank| nccl.communicator(2, rank, &id).init_in(g)).collect::<Result<Vec<_>>>())?;
    /// let ranks = ranks.into_iter().map(|rank| rank.finish()).collect::<Result<Vec<Communicator>>>()?;
    /// assert_eq!(ranks[1].rank(), 1);
    /// # Ok::<(), libnccl::Error>(())
    /// ```
    ///
    /// # Errors
    /// As for [`init`](Self::init), without waiting; [`Error::InvalidUsage`] if the group has operations, which are refused
    /// after this too, or with [`grow`](Self::grow); [`Error::InvalidArgument`] if the group is of another library.
    #[doc(alias = "ncclCommInitRankConfig")]
    pub fn init_in(self, group: &Group<'_, '_>) -> Result<PendingCommunicator> {
        let participants = &group.participants;
        participants.begin_creation("init_in")?;
        self.begin_pending("init_in", participants.library())
            .inspect(|pending| participants.add_pending(pending.handle()))
            .map_err(|error| participants.record_failed_init(error))
    }

    fn begin_pending(&self, call: &'static str, library: &Arc<Library>) -> Result<PendingCommunicator> {
        if !self.library.is_same(library) {
            let problem = "the communicator and the group belong to different libraries";
            return Err(Error::argument(call, InvalidArgumentKind::Communicator, problem));
        }
        if self.grows {
            return Err(Error::usage(
                call,
                "a rank cannot join a communicator that grows in a group; use `init`",
            ));
        }
        let (size, rank, mut raw_config) = self.prepare(call)?;
        let (origin, timeout) = (self.origin(&raw_config), self.config.timeout_duration());
        let pending = PendingCommunicator::new(call, library, origin, (self.size, self.rank), timeout);
        // SAFETY: the slot is not freed before NCCL is known to be done with it, which is after the group has ended, as
        // the group keeps the handle; NCCL drops it if the call fails. The handle keeps the name alive.
        unsafe { self.call_init(pending.out(), size, rank, &mut raw_config) }?;
        Ok(pending)
    }

    /// Checks the arguments, and makes the context current. Returns C's size, rank and options.
    fn prepare(&self, call: &'static str) -> Result<(i32, i32, RawConfig)> {
        let (size, rank) = to_c_size_and_rank(call, self.size, self.rank)?;
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
        Ok((size, rank, raw_config))
    }

    fn origin(&self, raw_config: &RawConfig) -> Origin {
        let id = self.ids.first().filter(|_| !self.grows).map(CommunicatorId::of_unique_id);
        Origin::new(&self.config, raw_config, id)
    }

    /// Calls NCCL. It reads the ids and the options during the call, except for the name.
    ///
    /// # Safety
    /// `out` is valid until NCCL is done with it, and the name of the options until the communicator has ended.
    unsafe fn call_init(
        &self,
        out: *mut sys::ncclComm_t,
        size: i32,
        rank: i32,
        raw_config: &mut RawConfig,
    ) -> Result<ResultCode> {
        let (library, config) = (self.library, raw_config.as_mut_ptr());
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

impl<'a, T> ChildBuilder<'a, T> {
    pub(super) fn new(parent: &'a Communicator, child: Child<'a>) -> Self {
        Self { parent, child, config: Config::default(), output: PhantomData }
    }

    /// Sets the options. Those that are not set have NCCL's defaults, except for the timeout, which is inherited from the
    /// parent; without options, all are inherited. They replace those set before, except for a timeout if they have none.
    pub fn config(mut self, config: &Config) -> Self {
        self.config = config.clone().inherit_timeout(self.config.timeout_duration());
        self
    }

    /// Sets the longest time that a call of the new communicator may wait; see [`Config::timeout`]. The options that are not
    /// set have NCCL's defaults then, as for [`config`](Self::config).
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.config = self.config.timeout(timeout);
        self
    }

    fn create(&self) -> Result<Option<Communicator>> {
        match self.child {
            Child::Split { color, key } => self.parent.create_split(color, key, &self.config),
            Child::Shrink { exclude, mode } => self.parent.create_shrunk(exclude, mode, &self.config),
            Child::Grow { size, id } => self.parent.create_grown(size, id, &self.config),
        }
    }
}

impl ChildBuilder<'_> {
    /// Creates the communicator, and waits for its ranks.
    ///
    /// # Errors
    /// The errors of [`Communicator::shrink`] and [`Communicator::grow`].
    pub fn init(self) -> Result<Communicator> {
        let call = if matches!(self.child, Child::Grow { .. }) { "grow" } else { "shrink" };
        self.create()?.ok_or_else(|| Error::usage(call, "NCCL created no communicator"))
    }
}

impl ChildBuilder<'_, Option<Communicator>> {
    /// Creates the communicator, and waits for all ranks of its parent. Returns `None` for a rank without a color.
    ///
    /// # Errors
    /// The errors of [`Communicator::split`].
    pub fn init(self) -> Result<Option<Communicator>> {
        self.create()
    }
}

/// Converts a size and a rank, which is below it, to C's type.
pub(super) fn to_c_size_and_rank(call: &'static str, size: usize, rank: usize) -> Result<(i32, i32)> {
    let problem = match (i32::try_from(size), i32::try_from(rank)) {
        (Ok(c_size), Ok(c_rank)) if rank < size => return Ok((c_size, c_rank)),
        (Ok(_), Ok(_)) => format!("rank {rank} is not below the size {size}"),
        _ => format!("size {size} or rank {rank} is beyond {}", i32::MAX),
    };
    Err(Error::argument(call, InvalidArgumentKind::Rank, problem))
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

impl<T> fmt::Debug for ChildBuilder<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ChildBuilder")
            .field("parent", &self.parent)
            .field("child", &self.child)
            .field("config", &self.config)
            .finish_non_exhaustive()
    }
}
