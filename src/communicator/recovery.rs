#![allow(unsafe_code)]

use std::ptr;

use super::Communicator;
use super::init::Arguments;
use super::state::State;
use crate::backend::call;
use crate::group::forbid_open;
use crate::{Config, Error, Nccl, Result, ResultCode, UniqueId, sys};

/// What [`Communicator::shrink`] does about the work that is under way. Since NCCL 2.27.3.
///
/// ```
/// # fn main() -> libnccl::Result<()> {
/// use libnccl::{Config, ShrinkMode};
///
/// let comms = libnccl_cpu::nccl().init_all(&[0, 1])?;
/// // Rank 1 is to do something else from now on; it does not call this.
/// let fewer = comms[0].shrink(&[1], ShrinkMode::Default, &Config::default())?;
/// assert_eq!(fewer.size(), 1);
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum ShrinkMode {
    /// It is complete: the excluded ranks leave in an orderly way.
    #[default]
    #[doc(alias = "NCCL_SHRINK_DEFAULT")]
    Default,
    /// It is aborted: ranks have failed.
    #[doc(alias = "NCCL_SHRINK_ABORT")]
    Abort,
}

impl Communicator {
    /// A new communicator without the ranks of `exclude`, which do not call this; the others keep their order.
    /// Since NCCL 2.27.3.
    ///
    /// ```
    /// # fn main() -> libnccl::Result<()> {
    /// use libnccl::{Config, ShrinkMode};
    ///
    /// let mut comms = libnccl_cpu::nccl().init_all(&[0, 1])?;
    /// drop(comms.pop()); // Rank 1 is lost.
    /// let survivors = comms[0].shrink(&[1], ShrinkMode::Abort, &Config::default())?;
    /// assert_eq!(survivors.size(), 1);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if `exclude` is empty, or has this rank, one twice, or one out of range;
    /// [`Error::Unsupported`]; [`Error::Nccl`].
    #[doc(alias = "ncclCommShrink")]
    pub fn shrink(&self, exclude: &[usize], mode: ShrinkMode, config: &Config) -> Result<Self> {
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
            return Err(Error::argument(CALL, problem));
        }
        // Below the size, which is an i32.
        let mut list: Vec<i32> = list.into_iter().filter_map(|rank| i32::try_from(rank).ok()).collect();
        let count = i32::try_from(list.len()).unwrap_or(i32::MAX);
        // Aborting is for communicators that have failed.
        let (flags, enter): (_, fn(&State, _) -> _) = match mode {
            ShrinkMode::Default => (sys::NCCL_SHRINK_DEFAULT, State::enter),
            ShrinkMode::Abort => (sys::NCCL_SHRINK_ABORT, State::enter_to_ask),
        };
        let shrunk = self.descend(CALL, config, enter, |slot, config| {
            let (list, flags) = (list.as_mut_ptr(), flags.cast_signed());
            // SAFETY: a live communicator; the list has `count` ranks; the slot and the configuration are as
            // NCCL wants them.
            unsafe { call!(self.library(), ncclCommShrink(self.raw(), list, count, slot, config, flags)) }
                .inspect(|_| self.is_stopped.set(self.is_stopped.get() || mode == ShrinkMode::Abort))
        })?;
        shrunk.ok_or_else(|| Error::usage(CALL, "NCCL made no communicator"))
    }

    /// The id by which new ranks find this communicator, to [`grow`](Self::grow) it once. One rank makes it,
    /// and passes it to `grow` and to the new ranks. Since NCCL 2.29.2.
    ///
    /// ```
    /// # fn main() -> libnccl::Result<()> {
    /// let comm = libnccl_cpu::nccl().init_all(&[0])?.remove(0);
    /// let id = comm.unique_id()?;
    /// println!("new ranks join with {id}");
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`Error::Unsupported`], [`Error::Nccl`].
    #[doc(alias = "ncclCommGetUniqueId")]
    pub fn unique_id(&self) -> Result<UniqueId> {
        let mut id = sys::ncclUniqueId::default();
        self.immediate("unique_id", || {
            // SAFETY: a live communicator, and a place to write an id to.
            unsafe { call!(self.library(), ncclCommGetUniqueId(self.raw(), &raw mut id)) }
        })?;
        Ok(UniqueId::from_raw(id))
    }

    /// A new communicator of `size` ranks: those of this one, and new ones that call
    /// [`Nccl::grow_rank`]. Since NCCL 2.29.2.
    ///
    /// All ranks of this communicator call it; the one that made the [id](Self::unique_id) passes it, the others
    /// pass none.
    ///
    /// ```
    /// # fn main() -> libnccl::Result<()> {
    /// use libnccl::Config;
    ///
    /// let nccl = libnccl_cpu::nccl();
    /// let comm = nccl.init_all(&[0])?.remove(0);
    /// let id = comm.unique_id()?; // To be sent to the new rank, which joins by it.
    /// let new = std::thread::spawn(move || nccl.grow_rank(2, 1, &id, &Config::default()));
    /// let grown = comm.grow(2, Some(&id), &Config::default())?;
    /// assert_eq!((grown.size(), grown.rank()), (2, comm.rank()));
    /// # new.join().unwrap()?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if `size` is not above this communicator's; [`Error::Unsupported`];
    /// [`Error::Nccl`].
    #[doc(alias = "ncclCommGrow")]
    pub fn grow(&self, size: usize, id: Option<&UniqueId>, config: &Config) -> Result<Self> {
        const CALL: &str = "grow";
        if size <= self.size {
            let own = self.size;
            return Err(Error::argument(
                CALL,
                format!("size {size} is not above {own}, the communicator's size"),
            ));
        }
        let Arguments { size, .. } = Arguments::new(CALL, size, self.rank)?;
        let id = id.map(|id| id.to_raw());
        let grown = self.descend(CALL, config, State::enter, |slot, config| {
            const EXISTING_RANK: i32 = -1;
            let id = id.as_ref().map_or(ptr::null(), ptr::from_ref);
            // SAFETY: a live communicator; the id is null or an id; the slot and the configuration are as NCCL
            // wants them.
            unsafe { call!(self.library(), ncclCommGrow(self.raw(), size, id, EXISTING_RANK, slot, config)) }
        })?;
        grown.ok_or_else(|| Error::usage(CALL, "NCCL made no communicator"))
    }

    /// Stops the work that is under way, on all ranks, and refuses new work; what remains is to split, shrink
    /// or end the communicator. Since NCCL 2.28.7.
    ///
    /// ```
    /// # fn main() -> libnccl::Result<()> {
    /// use libnccl::{Config, ShrinkMode};
    ///
    /// let mut comms = libnccl_cpu::nccl().init_all(&[0, 1])?;
    /// drop(comms.pop()); // Rank 1 is lost.
    /// comms[0].revoke()?;
    /// let survivors = comms[0].shrink(&[1], ShrinkMode::Abort, &Config::default())?;
    /// assert_eq!(survivors.size(), 1);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`Error::Unsupported`], [`Error::Nccl`].
    #[doc(alias = "ncclCommRevoke")]
    #[doc(alias = "NCCL_REVOKE_DEFAULT")]
    pub fn revoke(&self) -> Result<()> {
        const CALL: &str = "revoke";
        forbid_open(CALL)?;
        let flags = sys::NCCL_REVOKE_DEFAULT.cast_signed();
        // Also after a failure, which is when it is wanted.
        self.ask(CALL, || {
            // SAFETY: a live communicator.
            match unsafe { call!(self.library(), ncclCommRevoke(self.raw(), flags)) }? {
                ResultCode::IN_PROGRESS => self.wait(CALL),
                _ => Ok(()),
            }
        })?;
        self.is_stopped.set(true);
        Ok(())
    }
}

impl Nccl {
    /// Joins a communicator that others [`grow`](Communicator::grow), as number `rank` of the `size` that it
    /// will have. Since NCCL 2.29.2.
    ///
    /// ```
    /// # fn main() -> libnccl::Result<()> {
    /// # let old = libnccl_cpu::nccl().init_all(&[0])?.remove(0);
    /// # let id = old.unique_id()?;
    /// # let text = id.to_string();
    /// # let old = std::thread::spawn(move || old.grow(2, Some(&id), &Config::default()));
    /// use libnccl::{Config, UniqueId};
    ///
    /// let nccl = libnccl_cpu::nccl();
    /// let id: UniqueId = text.parse().expect("a rank of the communicator has sent it");
    /// let comm = nccl.grow_rank(2, 1, &id, &Config::default())?;
    /// assert_eq!((comm.size(), comm.rank()), (2, 1));
    /// # old.join().unwrap()?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if `rank` is not below `size`; [`Error::Unsupported`]; [`Error::Nccl`].
    #[doc(alias = "ncclCommGrow")]
    pub fn grow_rank(
        &self,
        size: usize,
        rank: usize,
        id: &UniqueId,
        config: &Config,
    ) -> Result<Communicator> {
        const CALL: &str = "grow_rank";
        forbid_open(CALL)?;
        let Arguments { size, rank } = Arguments::new(CALL, size, rank)?;
        let library = &self.library;
        let mut raw_config = config.to_raw(CALL, library.version, &library.backend.to_string())?;
        let (id, mut raw) = (id.to_raw(), ptr::null_mut());
        let (slot, config_pointer) = (&raw mut raw, raw_config.as_mut_ptr());
        // SAFETY: as in `init_rank_scalable`; a new rank has no communicator yet.
        let made = unsafe {
            call!(library, ncclCommGrow(ptr::null_mut(), size, &raw const id, rank, slot, config_pointer))
        };
        let code = made.inspect_err(|_| library.leave_leaked_group())?;
        // SAFETY: NCCL has just made the handle, and no one else has it.
        unsafe { Communicator::adopt(library, raw, code, config.timeout_duration(), raw_config.name()) }
    }
}
