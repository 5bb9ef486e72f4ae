//! The children of a communicator: split, shrunk and grown.
#![allow(unsafe_code)] // Calls NCCL.

use std::mem;
use std::ptr;
use std::sync::atomic::Ordering::Relaxed;

use super::communicator::Communicator;
use super::create::{to_c_int, to_c_size_and_rank};
use super::objects::OutParam;
use super::shared::{CallGuard, Shared};
use super::state::Purpose;
use crate::backend::call;
use crate::buffer::MemorySpace;
use crate::config::Config;
use crate::error::{Error, InvalidArgumentKind, Result, ResultCode};
use crate::sys;
use crate::unique_id::UniqueId;

/// A builder for a communicator that is created from another one, its parent; see [`Communicator::split`],
/// [`Communicator::shrink`] and [`Communicator::grow`].
#[derive(Debug)]
#[must_use = "`init` creates the communicator"]
pub struct ChildBuilder<'a, T = Communicator> {
    parent: &'a Communicator,
    child: Child<'a>,
    config: Config,
    convert: fn(Option<Communicator>) -> Result<T>,
}

/// The arguments of the call that creates a child.
#[derive(Debug)]
enum Child<'a> {
    Split { color: Option<u32>, key: i32 },
    Shrink { exclude: &'a [usize], mode: ShrinkMode },
    Grow { size: usize, id: Option<&'a UniqueId> },
}

/// The way in which [`Communicator::shrink`] treats work in progress. Since NCCL 2.27.3.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum ShrinkMode {
    /// Does not abort work. Use this if the communicator has not failed, and its work is complete.
    #[default]
    #[doc(alias = "NCCL_SHRINK_DEFAULT")]
    Default,
    /// Aborts work in progress. Use this, for example, after ranks have failed.
    #[doc(alias = "NCCL_SHRINK_ABORT")]
    Abort,
}

impl Communicator {
    /// Returns a builder that splits the ranks into new communicators. The ranks with the same `color` form one communicator,
    /// ordered by `key`, then by their old rank. A rank whose `color` is `None` joins no communicator, and its `init` returns
    /// `None`. Since NCCL 2.18.1.
    ///
    /// All ranks must call [`init`](ChildBuilder::init). Without options, the new communicators inherit this communicator's
    /// options.
    ///
    /// ```
    /// use libnccl::Config;
    ///
    /// libnccl_cpu::run_ranks(4, |comm| {
    ///     let half = (comm.rank() / 2) as u32;
    ///     let node = comm.split(Some(half), 0).config(&Config::new().name("node")).init()?;
    ///     assert_eq!(node.expect("this rank has a color").rank(), comm.rank() % 2);
    ///     Ok(())
    /// })?;
    /// # Ok::<(), libnccl::Error>(())
    /// ```
    ///
    /// # Errors
    /// `init` returns [`Error::InvalidArgument`] if the color is greater than `i32::MAX`.
    #[doc(alias = "ncclCommSplit")]
    #[doc(alias = "NCCL_SPLIT_NOCOLOR")]
    pub fn split(&self, color: Option<u32>, key: i32) -> ChildBuilder<'_, Option<Self>> {
        ChildBuilder::new(self, Child::Split { color, key }, Ok)
    }

    fn create_split(&self, color: Option<u32>, key: i32, config: &Config) -> Result<Option<Self>> {
        let color = color.map_or(Ok(sys::NCCL_SPLIT_NOCOLOR), |color| to_c_int("split", "color", color))?;
        self.create_child("split", config, Some(color), Purpose::Work, |out, config| {
            // SAFETY: a live communicator; `create_child` provides the out-parameter and the options.
            unsafe { call!(self.library(), ncclCommSplit(self.raw(), color, key, out, config)) }
        })
    }

    /// Returns a builder for a communicator without the ranks in `exclude`. All remaining ranks must call this with the same
    /// `exclude`, and the excluded ranks must not call it. The remaining ranks keep their order. Since NCCL 2.27.3.
    ///
    /// ```
    /// use libnccl::communicator::ShrinkMode;
    ///
    /// let mut comms = libnccl_cpu::nccl().init_all(&[0, 1])?;
    /// drop(comms.pop()); // Rank 1 is lost.
    /// comms[0].revoke()?; // Work that waits for it ends.
    /// let survivors = comms[0].shrink(&[1], ShrinkMode::Abort).init()?;
    /// assert_eq!(survivors.size(), 1);
    /// # Ok::<(), libnccl::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`init`](ChildBuilder::init) returns [`Error::InvalidArgument`] if `exclude` is empty, contains this rank, contains a rank
    /// twice, or contains a rank out of range.
    #[doc(alias = "ncclCommShrink")]
    pub fn shrink<'a>(&'a self, exclude: &'a [usize], mode: ShrinkMode) -> ChildBuilder<'a> {
        ChildBuilder::new(self, Child::Shrink { exclude, mode }, |child| {
            child.ok_or_else(|| no_child("shrink"))
        })
    }

    fn create_shrunk(&self, exclude: &[usize], mode: ShrinkMode, config: &Config) -> Result<Option<Self>> {
        const CALL: &str = "shrink";
        // A copy: NCCL sorts the list in place.
        let mut list = exclude.to_vec();
        list.sort_unstable();
        list.dedup();
        let problem = if list.is_empty() {
            Some("no ranks to exclude".to_string())
        } else if list.len() < exclude.len() {
            Some(format!("a rank is excluded twice in {exclude:?}"))
        } else if list.contains(&self.rank) {
            Some(format!("rank {} excludes itself; excluded ranks do not call shrink", self.rank))
        } else {
            let beyond = list.iter().find(|rank| **rank >= self.size);
            beyond.map(|rank| format!("rank {rank} is not below {}, the communicator's size", self.size))
        };
        if let Some(problem) = problem {
            return Err(Error::argument(CALL, InvalidArgumentKind::Rank, problem));
        }
        // All below the size, which is an i32.
        let mut list: Vec<i32> = list.into_iter().map(|rank| rank as i32).collect();
        // A communicator that has failed can be shrunk only with an abort.
        let (flags, purpose) = match mode {
            ShrinkMode::Default => (sys::NCCL_SHRINK_DEFAULT, Purpose::Work),
            ShrinkMode::Abort => (sys::NCCL_SHRINK_ABORT, Purpose::Query),
        };
        self.create_child(CALL, config, None, purpose, |out, config| {
            let (list, count, flags) = (list.as_mut_ptr(), list.len() as i32, flags.cast_signed());
            // SAFETY: a live communicator; the list has `count` ranks; `create_child` provides the out-parameter and
            // the options.
            let code = unsafe {
                call!(self.library(), ncclCommShrink(self.raw(), list, count, out, config, flags))
            }?;
            self.is_stopped.fetch_or(mode == ShrinkMode::Abort, Relaxed);
            Ok(code)
        })
    }

    /// Creates the id with which new ranks join this communicator. One rank calls this, passes the id to [`grow`](Self::grow),
    /// and sends it to the new ranks. Each `grow` needs a new id. Since NCCL 2.29.2.
    #[doc(alias = "ncclCommGetUniqueId")]
    pub fn unique_id(&self) -> Result<UniqueId> {
        let mut id = sys::ncclUniqueId::default();
        self.run_ungrouped("unique_id", Purpose::Work, || {
            // SAFETY: a live communicator and a valid out-parameter.
            unsafe { call!(self.library(), ncclCommGetUniqueId(self.raw(), &raw mut id)) }
        })?;
        Ok(UniqueId::from_raw(id))
    }

    /// Returns a builder for a communicator of `size` ranks: the ranks of this communicator, and new ranks that join with
    /// [`CommunicatorBuilder::grow`](crate::communicator::CommunicatorBuilder::grow). Since NCCL 2.29.2.
    ///
    /// All ranks of this communicator must call this. The rank that created the [id](Self::unique_id) passes the id, and the
    /// others pass `None`.
    ///
    /// ```
    /// let nccl = libnccl_cpu::nccl();
    /// let comm = nccl.init_all(&[0])?.remove(0);
    /// let id = comm.unique_id()?; // Send it to the new rank, which joins with it.
    /// let new = std::thread::spawn(move || nccl.communicator(2, 1, &id).grow().init());
    /// let grown = comm.grow(2, Some(&id)).init()?;
    /// assert_eq!((grown.size(), grown.rank()), (2, comm.rank()));
    /// # new.join().unwrap()?;
    /// # Ok::<(), libnccl::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`init`](ChildBuilder::init) returns [`Error::InvalidArgument`] if `size` is not greater than the size of this
    /// communicator.
    #[doc(alias = "ncclCommGrow")]
    pub fn grow<'a>(&'a self, size: usize, id: Option<&'a UniqueId>) -> ChildBuilder<'a> {
        ChildBuilder::new(self, Child::Grow { size, id }, |child| child.ok_or_else(|| no_child("grow")))
    }

    fn create_grown(&self, size: usize, id: Option<&UniqueId>, config: &Config) -> Result<Option<Self>> {
        const CALL: &str = "grow";
        if size <= self.size {
            let problem = format!("size {size} is not above {}, the communicator's size", self.size);
            return Err(Error::argument(CALL, InvalidArgumentKind::Rank, problem));
        }
        let (size, _) = to_c_size_and_rank(CALL, size, self.rank)?;
        let id = id.map(|id| id.to_raw());
        self.create_child(CALL, config, Some(0), Purpose::Work, |out, config| {
            const EXISTING_RANK: i32 = -1;
            let id = id.as_ref().map_or(ptr::null(), ptr::from_ref);
            // SAFETY: a live communicator; the id is null or valid; `create_child` provides the out-parameter and the
            // options.
            unsafe { call!(self.library(), ncclCommGrow(self.raw(), size, id, EXISTING_RANK, out, config)) }
        })
    }

    /// Enters NCCL for `purpose`, and calls `create` with an out-parameter and the options. `color` is `None` for a shrink.
    /// Returns `None` if NCCL writes no handle.
    fn create_child(
        &self,
        call: &'static str,
        config: &Config,
        color: Option<i32>,
        purpose: Purpose,
        create: impl FnOnce(*mut sys::ncclComm_t, *mut sys::ncclConfig_t) -> Result<ResultCode>,
    ) -> Result<Option<Self>> {
        let library = self.library();
        // Without options, NCCL uses the options of this communicator.
        let inherits = config.is_default();
        let config = config.clone().inherit_timeout(self.timeout);
        let mut raw_config = config.to_raw(call, library.version, &library.backend.to_string())?;
        let raw_pointer = if inherits { ptr::null_mut() } else { raw_config.as_mut_ptr() };
        // A communicator that failed and was revoked can have children again.
        let purpose = if self.is_stopped.load(Relaxed) { Purpose::Query } else { purpose };
        let _guard = CallGuard::ungrouped(&self.shared, call, purpose)?;
        let out = OutParam::new(library);
        let called = create(out.as_mut_ptr(), raw_pointer);
        let origin = self.shared.origin_of_child(&config, &raw_config, color);
        // A nonblocking communicator returns success immediately, and writes the handle by the time its state is success
        // (measured on 2.28.3 and 2.32.3): so wait even after success.
        let child = match called.and_then(|_| self.wait_within(call, None)) {
            Ok(()) if out.get().is_null() => Ok(None),
            Ok(()) => {
                let shared = Shared::new(library, out.get(), origin);
                let (timeout, parent) = (config.timeout_duration(), Some(&self.shared.state));
                // SAFETY: NCCL has just created the handle, and nothing else has it.
                unsafe { Self::from_shared(call, shared, timeout, parent) }.map(Some)
            }
            Err(error) => {
                // NCCL may have written a handle, and cannot free it: until a child is complete, its parent points to its
                // abort flag, and writes it when the parent is aborted. So it is leaked, with its name.
                if out.memory_space == MemorySpace::Device {
                    mem::forget(origin.name);
                } else if !out.get().is_null() {
                    // SAFETY: a handle that nothing else has; in the CPU backend, parents do not point to their children.
                    let _ = unsafe { call!(library, ncclCommAbort(out.get())) };
                }
                Err(error)
            }
        };
        // SAFETY: the last use. NCCL does not write it any more: this communicator and the child are complete, or, on host
        // memory, the call has ended or is aborted.
        unsafe { out.free_after(&child) };
        child
    }
}

impl<'a, T> ChildBuilder<'a, T> {
    fn new(
        parent: &'a Communicator,
        child: Child<'a>,
        convert: fn(Option<Communicator>) -> Result<T>,
    ) -> Self {
        Self { parent, child, config: Config::default(), convert }
    }

    /// Sets the options of the child. If `config` sets no options, or only observers, the child inherits the options of the
    /// parent. If `config` sets any other option, unset options have NCCL's defaults. In both cases, an unset timeout and unset
    /// observers are inherited.
    pub fn config(mut self, config: &Config) -> Self {
        self.config = config.clone();
        self
    }

    /// Creates the communicator, and waits for its ranks. A split waits for all ranks of the parent. For the errors, see
    /// [`Communicator::split`], [`Communicator::shrink`] and [`Communicator::grow`].
    pub fn init(self) -> Result<T> {
        let child = match self.child {
            Child::Split { color, key } => self.parent.create_split(color, key, &self.config),
            Child::Shrink { exclude, mode } => self.parent.create_shrunk(exclude, mode, &self.config),
            Child::Grow { size, id } => self.parent.create_grown(size, id, &self.config),
        }?;
        (self.convert)(child)
    }
}

fn no_child(call: &'static str) -> Error {
    Error::usage(call, "NCCL created no communicator")
}
