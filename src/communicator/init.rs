#![allow(unsafe_code)]

use std::ptr;

use super::Communicator;
use crate::backend::call;
use crate::group::forbid_open;
use crate::{Config, Error, Nccl, Result, UniqueId};

impl Nccl {
    /// Makes a communicator of `size` ranks, of which the caller is number `rank`; returns when all have called.
    ///
    /// On a GPU the rank belongs to the calling thread's current device. Ranks are processes, or threads that
    /// call at the same time.
    ///
    /// ```
    /// # fn main() -> libnccl::Result<()> {
    /// let nccl = libnccl_cpu::nccl();
    /// let id = nccl.unique_id()?;
    /// std::thread::scope(|scope| {
    ///     for rank in 0..2 {
    ///         let nccl = &nccl;
    ///         scope.spawn(move || assert_eq!(nccl.init_rank(2, rank, &id).unwrap().size(), 2));
    ///     }
    /// });
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if `rank` is not below `size`; [`Error::Nccl`] if NCCL cannot do it.
    #[doc(alias = "ncclCommInitRank")]
    pub fn init_rank(&self, size: usize, rank: usize, id: &UniqueId) -> Result<Communicator> {
        self.init_rank_with(size, rank, id, &Config::default())
    }

    /// [`init_rank`](Self::init_rank) with options. Options: since NCCL 2.14.3.
    ///
    /// ```
    /// # fn main() -> libnccl::Result<()> {
    /// use std::time::Duration;
    ///
    /// let nccl = libnccl_cpu::nccl();
    /// let config = libnccl::Config::new().timeout(Duration::from_secs(30));
    /// let comm = nccl.init_rank_with(1, 0, &nccl.unique_id()?, &config)?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As for [`init_rank`](Self::init_rank); [`Error::Unsupported`] if the library is older than an option;
    /// [`Error::Timeout`] if the other ranks did not come in time.
    #[doc(alias = "ncclCommInitRankConfig")]
    pub fn init_rank_with(
        &self,
        size: usize,
        rank: usize,
        id: &UniqueId,
        config: &Config,
    ) -> Result<Communicator> {
        self.init_rank_scalable(size, rank, std::slice::from_ref(id), config)
    }

    /// [`init_rank_with`](Self::init_rank_with) by several ids, made by as many ranks, which share the work of
    /// bringing many ranks together. All ranks pass the same ids in the same order.
    ///
    /// Before NCCL 2.23.4, which is the first to have this, the first id serves alone.
    ///
    /// ```
    /// # fn main() -> libnccl::Result<()> {
    /// use libnccl::Config;
    ///
    /// let nccl = libnccl_cpu::nccl();
    /// // Here from ranks 0 and 2; of 10,000 ranks, every thousandth could make one.
    /// let ids = [nccl.unique_id()?, nccl.unique_id()?];
    /// std::thread::scope(|scope| {
    ///     for rank in 0..4 {
    ///         let nccl = &nccl;
    ///         scope.spawn(move || nccl.init_rank_scalable(4, rank, &ids, &Config::default()).unwrap());
    ///     }
    /// });
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As for [`init_rank_with`](Self::init_rank_with); [`Error::InvalidArgument`] if there is no id.
    #[doc(alias = "ncclCommInitRankScalable")]
    pub fn init_rank_scalable(
        &self,
        size: usize,
        rank: usize,
        ids: &[UniqueId],
        config: &Config,
    ) -> Result<Communicator> {
        const CALL: &str = "init_rank";
        forbid_open(CALL)?;
        let arguments = Arguments::new(CALL, size, rank)?;
        let Some(first) = ids.first() else {
            return Err(Error::argument(CALL, "no unique ids; expected one at least"));
        };
        let library = &self.library;
        let mut raw_config = config.to_raw(CALL, library.version, &library.backend.to_string())?;
        // Null beforehand: some releases look at what is there when they fail.
        let mut raw = ptr::null_mut();
        let (slot, config_pointer) = (&raw mut raw, raw_config.as_mut_ptr());
        let Arguments { size, rank } = arguments;
        // SAFETY: `raw` is where NCCL writes a handle, at once; the ids and the configuration are read during
        // the call, but for the name, which the communicator keeps alive.
        let made = unsafe {
            if ids.len() > 1 && library.functions.ncclCommInitRankScalable.is_some() {
                let count = i32::try_from(ids.len()).unwrap_or(i32::MAX);
                let mut ids: Vec<_> = ids.iter().take(i32::MAX as usize).map(|id| id.to_raw()).collect();
                call!(
                    library,
                    ncclCommInitRankScalable(slot, size, rank, count, ids.as_mut_ptr(), config_pointer)
                )
            } else if config.is_default() {
                call!(library, ncclCommInitRank(slot, size, first.to_raw(), rank))
            } else {
                call!(library, ncclCommInitRankConfig(slot, size, first.to_raw(), rank, config_pointer))
            }
        };
        let code = made.inspect_err(|_| library.leave_leaked_group())?;
        // SAFETY: NCCL has just made the handle, and no one else has it.
        unsafe { Communicator::adopt(library, raw, code, config.timeout_duration(), raw_config.name()) }
    }

    /// Makes one communicator that has all its ranks in this process: rank `i` on device `devices[i]`.
    ///
    /// A single thread that drives several ranks has to put their operations into a [`group`](Self::group).
    /// On the CPU implementation the devices are only numbers.
    ///
    /// ```
    /// # fn main() -> libnccl::Result<()> {
    /// let comms = libnccl_cpu::nccl().init_all(&[0, 1])?;
    /// assert_eq!(comms[1].rank(), 1);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if there is no device, or a negative one; [`Error::Nccl`] if NCCL cannot.
    #[doc(alias = "ncclCommInitAll")]
    pub fn init_all(&self, devices: &[i32]) -> Result<Vec<Communicator>> {
        const CALL: &str = "init_all";
        forbid_open(CALL)?;
        if devices.is_empty() {
            return Err(Error::argument(CALL, "no devices; expected one for each rank"));
        }
        if let Some(device) = devices.iter().find(|device| **device < 0) {
            return Err(Error::argument(CALL, format!("device {device} is negative")));
        }
        let count = i32::try_from(devices.len()).map_err(|_| {
            Error::argument(CALL, format!("{} devices are beyond {}", devices.len(), i32::MAX))
        })?;
        let library = &self.library;
        let mut raws = vec![ptr::null_mut(); devices.len()];
        // SAFETY: both arrays have `count` elements.
        let made = unsafe { call!(library, ncclCommInitAll(raws.as_mut_ptr(), count, devices.as_ptr())) };
        let code = made.inspect_err(|_| library.leave_leaked_group())?;
        // SAFETY: NCCL has just made the handles, and no one else has them.
        let adopt = |raw| unsafe { Communicator::adopt(library, raw, code, None, None) };
        // All of them first: if one fails, the others are ended by their drop.
        let adopted: Vec<_> = raws.into_iter().map(adopt).collect();
        adopted.into_iter().collect()
    }
}

/// A size and a rank below it, as C wants them.
pub(super) struct Arguments {
    pub(super) size: i32,
    pub(super) rank: i32,
}

impl Arguments {
    pub(super) fn new(call: &'static str, size: usize, rank: usize) -> Result<Self> {
        let (Ok(c_size), Ok(c_rank)) = (i32::try_from(size), i32::try_from(rank)) else {
            return Err(Error::argument(call, format!("size {size} or rank {rank} is beyond {}", i32::MAX)));
        };
        if rank >= size {
            return Err(Error::argument(call, format!("rank {rank} is not below the size {size}")));
        }
        Ok(Self { size: c_size, rank: c_rank })
    }
}
