#![allow(unsafe_code)]

use std::ptr;
use std::sync::atomic::Ordering::Relaxed;

use super::builder::{Child, ChildBuilder, to_c_size_and_rank};
use super::communicator::Communicator;
use super::inside::check_no_open_group;
use super::state::Purpose;
use crate::backend::call;
use crate::config::Config;
use crate::error::{Error, InvalidArgumentKind, Result, ResultCode};
use crate::sys;
use crate::unique_id::UniqueId;

/// The state of the work when [`Communicator::shrink`] is called. Since NCCL 2.27.3.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum ShrinkMode {
    /// All work is complete: the excluded ranks leave in an orderly way.
    #[default]
    #[doc(alias = "NCCL_SHRINK_DEFAULT")]
    Default,
    /// Work in progress is aborted, as ranks have failed.
    #[doc(alias = "NCCL_SHRINK_ABORT")]
    Abort,
}

impl Communicator {
    /// Returns a builder of a communicator without the ranks in `exclude`, which do not call this; the others keep their
    /// order. Since NCCL 2.27.3.
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
    /// [`init`](ChildBuilder::init) returns [`Error::InvalidArgument`] if `exclude` is empty, or contains this rank, a rank
    /// twice, or a rank out of range; [`Error::Unsupported`]; [`Error::Timeout`]; [`Error::Nccl`].
    #[doc(alias = "ncclCommShrink")]
    pub fn shrink<'a>(&'a self, exclude: &'a [usize], mode: ShrinkMode) -> ChildBuilder<'a> {
        ChildBuilder::new(self, Child::Shrink { exclude, mode })
    }

    pub(super) fn create_shrunk(
        &self,
        exclude: &[usize],
        mode: ShrinkMode,
        config: &Config,
    ) -> Result<Option<Self>> {
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
        // Below the size, which is an i32.
        let mut list: Vec<i32> = list.into_iter().filter_map(|rank| i32::try_from(rank).ok()).collect();
        let count = i32::try_from(list.len()).unwrap_or(i32::MAX);
        // A communicator that has failed can be shrunk only with an abort.
        let (flags, purpose) = match mode {
            ShrinkMode::Default => (sys::NCCL_SHRINK_DEFAULT, Purpose::Work),
            ShrinkMode::Abort => (sys::NCCL_SHRINK_ABORT, Purpose::Query),
        };
        self.create_child(CALL, config, 0, purpose, |out, config| {
            let (list, flags) = (list.as_mut_ptr(), flags.cast_signed());
            // SAFETY: a live communicator; the list has `count` ranks; `create_child` provides the out-parameter and
            // the options.
            unsafe { call!(self.library(), ncclCommShrink(self.raw(), list, count, out, config, flags)) }
                .inspect(|_| {
                    self.is_stopped.fetch_or(mode == ShrinkMode::Abort, Relaxed);
                })
        })
    }

    /// Creates the id with which new ranks join this communicator when it [grows](Self::grow), once. One rank creates
    /// it, and passes it to `grow`, where there is an example, and to the new ranks. Since NCCL 2.29.2.
    ///
    /// # Errors
    /// [`Error::Unsupported`], [`Error::Nccl`].
    #[doc(alias = "ncclCommGetUniqueId")]
    pub fn unique_id(&self) -> Result<UniqueId> {
        let mut id = sys::ncclUniqueId::default();
        self.run_ungrouped("unique_id", Purpose::Work, || {
            // SAFETY: a live communicator and a valid out-parameter.
            unsafe { call!(self.library(), ncclCommGetUniqueId(self.raw(), &raw mut id)) }
        })?;
        Ok(UniqueId::from_raw(id))
    }

    /// Returns a builder of a communicator of `size` ranks: those of this one, and new ranks that join with
    /// [`CommunicatorBuilder::grow`](crate::communicator::CommunicatorBuilder::grow). Since NCCL 2.29.2.
    ///
    /// All ranks of this communicator call it; the rank that created the [id](Self::unique_id) passes it, the others
    /// pass `None`.
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
    /// [`init`](ChildBuilder::init) returns [`Error::InvalidArgument`] if `size` is not above this communicator's;
    /// [`Error::Unsupported`]; [`Error::Timeout`]; [`Error::Nccl`].
    #[doc(alias = "ncclCommGrow")]
    pub fn grow<'a>(&'a self, size: usize, id: Option<&'a UniqueId>) -> ChildBuilder<'a> {
        ChildBuilder::new(self, Child::Grow { size, id })
    }

    pub(super) fn create_grown(
        &self,
        size: usize,
        id: Option<&UniqueId>,
        config: &Config,
    ) -> Result<Option<Self>> {
        const CALL: &str = "grow";
        if size <= self.size {
            let own = self.size;
            let problem = format!("size {size} is not above {own}, the communicator's size");
            return Err(Error::argument(CALL, InvalidArgumentKind::Rank, problem));
        }
        let (size, _) = to_c_size_and_rank(CALL, size, self.rank)?;
        let id = id.map(|id| id.to_raw());
        self.create_child(CALL, config, 0, Purpose::Work, |out, config| {
            const EXISTING_RANK: i32 = -1;
            let id = id.as_ref().map_or(ptr::null(), ptr::from_ref);
            // SAFETY: a live communicator; the id is null or valid; `create_child` provides the out-parameter and the
            // options.
            unsafe { call!(self.library(), ncclCommGrow(self.raw(), size, id, EXISTING_RANK, out, config)) }
        })
    }

    /// Stops this rank's work in progress, and rejects new work. The communicator can then only be split, shrunk or ended.
    /// NCCL does not tell the other ranks, so each calls it. On the CPU implementation their operations end with an error that
    /// names this rank. For an example, see [`shrink`](Self::shrink). Since NCCL 2.28.7.
    ///
    /// # Errors
    /// [`Error::Unsupported`], [`Error::Nccl`].
    #[doc(alias = "ncclCommRevoke")]
    #[doc(alias = "NCCL_REVOKE_DEFAULT")]
    pub fn revoke(&self) -> Result<()> {
        const CALL: &str = "revoke";
        check_no_open_group(self.library(), CALL)?;
        let flags = sys::NCCL_REVOKE_DEFAULT.cast_signed();
        // As a query, as it is meant for communicators that have failed.
        self.query(CALL, || {
            // SAFETY: a live communicator.
            match unsafe { call!(self.library(), ncclCommRevoke(self.raw(), flags)) }? {
                ResultCode::IN_PROGRESS => self.wait_within(CALL, None),
                _ => Ok(()),
            }
        })?;
        self.is_stopped.store(true, Relaxed);
        Ok(())
    }
}
