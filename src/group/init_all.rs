use crate::communicator::check_no_open_group;
use crate::{Communicator, Config, Error, MemorySpace, Nccl, Result};

impl Nccl {
    /// Creates a communicator with all its ranks in this process as [`init_all`](Self::init_all) does, with options,
    /// which NCCL has since 2.14.3. With a [timeout](Config::timeout) it returns even if a rank cannot be reached.
    ///
    /// # Errors
    /// The errors of [`init_all`](Self::init_all) and of [`init_rank_with`](Self::init_rank_with);
    /// [`Error::InvalidUsage`] on GPUs, unless `config` is the default: NCCL assigns a rank to the current device of its
    /// thread, which NCCL has no function to choose. There, make each device current with your CUDA crate and call
    /// [`Group::init_rank`](crate::Group::init_rank).
    #[doc(alias = "ncclCommInitAll")]
    #[doc(alias = "ncclCommInitRankConfig")]
    pub fn init_all_with(&self, devices: &[i32], config: &Config) -> Result<Vec<Communicator>> {
        const CALL: &str = "init_all_with";
        if config.is_default() {
            return self.init_all_for(CALL, devices, config);
        }
        check_no_open_group(&self.library, CALL)?;
        Self::check_devices(CALL, devices)?;
        if self.memory_space() == MemorySpace::Device {
            let problem =
                "NCCL cannot choose GPUs here; make each device current and call `Group::init_rank`";
            return Err(Error::usage(CALL, problem));
        }
        let id = self.unique_id()?;
        let pending: Vec<_> = self.group(|g| {
            (0..devices.len())
                .map(|rank| g.init_rank_for(CALL, devices.len(), rank, &id, config))
                .collect::<Result<_>>()
        })?;
        // If one fails, dropping the others ends them.
        let mut communicators = pending.into_iter().map(|p| p.finish()).collect::<Result<Vec<_>>>()?;
        communicators.iter_mut().zip(devices).for_each(|(comm, device)| comm.set_device(*device));
        Ok(communicators)
    }
}
