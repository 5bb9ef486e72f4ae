#![allow(unsafe_code)]

use std::ptr;
use std::sync::Arc;
use std::time::Duration;

use super::communicator::Communicator;
use super::inside::check_no_open_group;
use super::out_param::OutParam;
use super::shared::{Origin, Shared};
use crate::backend::call;
use crate::operation::to_c_length;
use crate::{CommunicatorId, Config, Error, InvalidArgumentKind, Nccl, Result, UniqueId, sys};

/// A rank that NCCL has begun to create.
pub(super) struct BegunRank {
    pub(super) shared: Arc<Shared>,
    pub(super) timeout: Option<Duration>,
    /// The place of the handle, for as long as the communicator is not complete.
    pub(super) slot: OutParam<sys::ncclComm>,
}

impl Nccl {
    /// Creates a communicator of `size` ranks, of which the caller is number `rank`; returns when all ranks have
    /// joined.
    ///
    /// On a GPU the rank belongs to the calling thread's current device. Ranks are processes, or threads that
    /// call at the same time.
    ///
    /// ```
    /// let nccl = libnccl_cpu::nccl();
    /// let id = nccl.unique_id()?;
    /// std::thread::scope(|scope| {
    ///     for rank in 0..2 {
    ///         let nccl = &nccl;
    ///         scope.spawn(move || assert_eq!(nccl.init_rank(2, rank, &id).unwrap().size(), 2));
    ///     }
    /// });
    /// # Ok::<(), libnccl::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if `rank` is not below `size`; [`Error::Nccl`] if NCCL fails.
    #[doc(alias = "ncclCommInitRank")]
    pub fn init_rank(&self, size: usize, rank: usize, id: &UniqueId) -> Result<Communicator> {
        self.create_rank("init_rank", size, rank, std::slice::from_ref(id), &Config::default())
    }

    /// Creates a communicator as [`init_rank`](Self::init_rank) does, with options, which NCCL has since 2.14.3.
    ///
    /// ```
    /// use std::time::Duration;
    ///
    /// let nccl = libnccl_cpu::nccl();
    /// let config = libnccl::Config::new().timeout(Duration::from_secs(30));
    /// let comm = nccl.init_rank_with(1, 0, &nccl.unique_id()?, &config)?;
    /// # Ok::<(), libnccl::Error>(())
    /// ```
    ///
    /// # Errors
    /// The errors of [`init_rank`](Self::init_rank); [`Error::Unsupported`] if the library is older than an option;
    /// [`Error::Timeout`] if the other ranks did not join in time.
    #[doc(alias = "ncclCommInitRankConfig")]
    pub fn init_rank_with(
        &self,
        size: usize,
        rank: usize,
        id: &UniqueId,
        config: &Config,
    ) -> Result<Communicator> {
        self.create_rank("init_rank_with", size, rank, std::slice::from_ref(id), config)
    }

    /// Creates a communicator as [`init_rank_with`](Self::init_rank_with) does, from several ids of as many ranks,
    /// which share the work of the bootstrap. All ranks pass the same ids in the same order.
    ///
    /// NCCL has this since 2.23.4. Before, only the first id is used.
    ///
    /// ```
    /// use libnccl::Config;
    ///
    /// let nccl = libnccl_cpu::nccl();
    /// // Ranks 0 and 2 create them here; of 10,000 ranks, every thousandth could create one.
    /// let ids = [nccl.unique_id()?, nccl.unique_id()?];
    /// std::thread::scope(|scope| {
    ///     for rank in 0..4 {
    ///         let nccl = &nccl;
    ///         scope.spawn(move || nccl.init_rank_scalable(4, rank, &ids, &Config::default()).unwrap());
    ///     }
    /// });
    /// # Ok::<(), libnccl::Error>(())
    /// ```
    ///
    /// # Errors
    /// The errors of [`init_rank_with`](Self::init_rank_with); [`Error::InvalidArgument`] if there is no id.
    #[doc(alias = "ncclCommInitRankScalable")]
    pub fn init_rank_scalable(
        &self,
        size: usize,
        rank: usize,
        ids: &[UniqueId],
        config: &Config,
    ) -> Result<Communicator> {
        self.create_rank("init_rank_scalable", size, rank, ids, config)
    }

    pub(crate) fn create_rank(
        &self,
        call: &'static str,
        size: usize,
        rank: usize,
        ids: &[UniqueId],
        config: &Config,
    ) -> Result<Communicator> {
        let begun = self.begin_rank(call, size, rank, ids, config)?;
        // SAFETY: NCCL has just created the handle, and nothing else has it.
        let created = unsafe { Communicator::from_shared(call, begun.shared, begun.timeout, None) };
        // SAFETY: this was the last use.
        unsafe { begun.slot.free_after(&created) };
        created
    }

    pub(super) fn begin_rank(
        &self,
        call: &'static str,
        size: usize,
        rank: usize,
        ids: &[UniqueId],
        config: &Config,
    ) -> Result<BegunRank> {
        check_no_open_group(&self.library, call)?;
        let (size, rank) = to_c_size_and_rank(call, size, rank)?;
        let Some(first) = ids.first() else {
            let problem = "no unique ids; expected at least one";
            return Err(Error::argument(call, InvalidArgumentKind::Length, problem));
        };
        let count = to_c_length(call, ids.len(), "unique ids")?;
        let library = &self.library;
        let mut raw_config = config.to_raw(call, library.version, &library.backend.to_string())?;
        // Initialized to null, as some releases read it when they fail.
        let slot = OutParam::new(library);
        let (out, config_pointer) = (slot.as_mut_ptr(), raw_config.as_mut_ptr());
        // SAFETY: NCCL writes the handle to the slot before the call returns; 2.14.3 reads it until the communicator is
        // complete, and writes it if that fails. NCCL reads the ids and the options during the call, except the name,
        // which the communicator keeps alive.
        let created = unsafe {
            if ids.len() > 1 && library.functions.ncclCommInitRankScalable.is_some() {
                let mut ids: Vec<_> = ids.iter().map(|id| id.to_raw()).collect();
                call!(
                    library,
                    ncclCommInitRankScalable(out, size, rank, count, ids.as_mut_ptr(), config_pointer)
                )
            } else if config.is_default() {
                call!(library, ncclCommInitRank(out, size, first.to_raw(), rank))
            } else {
                call!(library, ncclCommInitRankConfig(out, size, first.to_raw(), rank, config_pointer))
            }
        };
        match created {
            Ok(_) => {
                let id = CommunicatorId::of_unique_id(first);
                let shared = Shared::new(library, slot.get(), Origin::new(config, &raw_config, Some(id)));
                // For the error of a rank that does not join.
                shared.membership(size as usize, rank as usize);
                Ok(BegunRank { shared, timeout: config.timeout_duration(), slot })
            }
            Err(error) => {
                library.end_leaked_groups();
                let failed = Err(error);
                // SAFETY: this was the last use.
                unsafe { slot.free_after(&failed) };
                failed
            }
        }
    }

    /// Creates a communicator with all its ranks in this process: rank `i` on device `devices[i]`.
    ///
    /// A single thread that drives several ranks must put their operations into a [`group`](Self::group). On the CPU
    /// implementation the devices are only numbers. It has no timeout. With one, use
    /// [`init_all_with`](Self::init_all_with) there, and [`Group::init_rank`](crate::Group::init_rank) on GPUs.
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
        self.init_all_for("init_all", devices, &Config::default())
    }

    /// Creates a communicator with all its ranks on behalf of the method `call`, with options of which NCCL knows none.
    pub(crate) fn init_all_for(
        &self,
        call: &'static str,
        devices: &[i32],
        config: &Config,
    ) -> Result<Vec<Communicator>> {
        check_no_open_group(&self.library, call)?;
        let count = Self::check_devices(call, devices)?;
        let library = &self.library;
        let mut raws = vec![ptr::null_mut(); devices.len()];
        // SAFETY: both arrays have `count` elements.
        let created = unsafe { call!(library, ncclCommInitAll(raws.as_mut_ptr(), count, devices.as_ptr())) };
        created.inspect_err(|_| library.end_leaked_groups())?;
        let origin = Origin {
            id: Some(CommunicatorId::of_this_process()),
            observers: config.observers().clone(),
            ..Origin::default()
        };
        let adopt = |raw: &sys::ncclComm_t| {
            // SAFETY: NCCL has just created the handles, and nothing else has them.
            unsafe { Communicator::from_shared(call, Shared::new(library, *raw, origin.clone()), None, None) }
        };
        // Adopt all of them first, so that if one fails, dropping the others ends them.
        let adopted: Vec<_> = raws.iter().map(adopt).collect();
        let communicators: Result<Vec<Communicator>> = adopted.into_iter().collect();
        // As in `create_rank`, NCCL may still use the slots after a failure.
        communicators.inspect_err(|_| std::mem::forget(raws))
    }

    /// Checks the devices of ranks, and returns their number in C's type.
    pub(crate) fn check_devices(call: &'static str, devices: &[i32]) -> Result<i32> {
        if devices.is_empty() {
            let problem = "no devices; expected one for each rank";
            return Err(Error::argument(call, InvalidArgumentKind::Length, problem));
        }
        if let Some(device) = devices.iter().find(|device| **device < 0) {
            let problem = format!("device {device} is negative");
            return Err(Error::argument(call, InvalidArgumentKind::Device, problem));
        }
        to_c_length(call, devices.len(), "devices")
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
