#![allow(unsafe_code)]

use super::communicator::Communicator;
use super::state::Purpose;
use crate::backend::call;
use crate::operation::to_c_int;
use crate::{Config, Result, ResultCode, sys};

impl Communicator {
    /// Splits the ranks into new communicators: all ranks with the same `color` form one, ordered by `key`, then by
    /// their rank in this one. A rank without a color joins none. Since NCCL 2.18.1.
    ///
    /// All ranks call this. The new communicator has the options of this one.
    ///
    /// ```
    /// libnccl_cpu::run_ranks(4, |comm| {
    ///     let half = (comm.rank() / 2) as u32;
    ///     let node = comm.split(Some(half), 0)?.expect("this rank has a color");
    ///     assert_eq!((node.size(), node.rank()), (2, comm.rank() % 2));
    ///     Ok(())
    /// })?;
    /// # Ok::<(), libnccl::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::InvalidArgument`](crate::Error::InvalidArgument) if the color is beyond `i32::MAX`,
    /// [`Error::Unsupported`](crate::Error::Unsupported), [`Error::Nccl`](crate::Error::Nccl).
    #[doc(alias = "ncclCommSplit")]
    #[doc(alias = "NCCL_SPLIT_NOCOLOR")]
    pub fn split(&self, color: Option<u32>, key: i32) -> Result<Option<Self>> {
        self.split_for("split", color, key, &Config::default())
    }

    /// Splits the ranks as [`split`](Self::split) does, with options for the new communicator. Options that are not set
    /// have NCCL's defaults, except the timeout, which is inherited; if none is set, all are inherited. Since NCCL
    /// 2.18.1.
    ///
    /// ```
    /// use libnccl::Config;
    ///
    /// libnccl_cpu::run_ranks(3, |comm| {
    ///     let config = Config::new().split_share(true).name("even ranks");
    ///     let even = comm.split_with((comm.rank() % 2 == 0).then_some(0), 0, &config)?;
    ///     assert_eq!(even.is_none(), comm.rank() == 1);
    ///     Ok(())
    /// })?;
    /// # Ok::<(), libnccl::Error>(())
    /// ```
    ///
    /// # Errors
    /// The errors of [`split`](Self::split).
    #[doc(alias = "ncclCommSplit")]
    pub fn split_with(&self, color: Option<u32>, key: i32, config: &Config) -> Result<Option<Self>> {
        self.split_for("split_with", color, key, config)
    }

    fn split_for(
        &self,
        call: &'static str,
        color: Option<u32>,
        key: i32,
        config: &Config,
    ) -> Result<Option<Self>> {
        let color = to_c_color(call, color)?;
        self.create_child(call, config, color, Purpose::Work, |out, config| {
            // SAFETY: `create_child` provides the out-parameter and the options.
            unsafe { self.call_split(color, key, out, config) }
        })
    }

    /// Calls `ncclCommSplit`.
    ///
    /// # Safety
    /// The arguments are those of [`begin_child`](Self::begin_child).
    pub(super) unsafe fn call_split(
        &self,
        color: i32,
        key: i32,
        out: *mut sys::ncclComm_t,
        config: *mut sys::ncclConfig_t,
    ) -> Result<ResultCode> {
        // SAFETY: a live communicator; the caller guarantees the rest.
        unsafe { call!(self.library(), ncclCommSplit(self.raw(), color, key, out, config)) }
    }
}

pub(super) fn to_c_color(call: &'static str, color: Option<u32>) -> Result<i32> {
    color.map_or(Ok(sys::NCCL_SPLIT_NOCOLOR), |color| to_c_int(call, "color", color))
}
