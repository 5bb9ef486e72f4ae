#![allow(unsafe_code)]

use super::builder::{Child, ChildBuilder};
use super::communicator::Communicator;
use super::state::Purpose;
use crate::backend::call;
use crate::config::Config;
use crate::error::Result;
use crate::operation::to_c_int;
use crate::sys;

impl Communicator {
    /// Returns a builder that splits the ranks into new communicators: all ranks with the same `color` form one, ordered by
    /// `key`, then by their rank in this one. A rank without a color joins none. Since NCCL 2.18.1.
    ///
    /// All ranks call [`init`](ChildBuilder::init). Without options, the new communicator has those of this one.
    ///
    /// ```
    /// use libnccl::Config;
    ///
    /// libnccl_cpu::run_ranks(4, |comm| {
    ///     let half = (comm.rank() / 2) as u32;
    ///     let node = comm.split(Some(half), 0).init()?.expect("this rank has a color");
    ///     assert_eq!((node.size(), node.rank()), (2, comm.rank() % 2));
    ///
    ///     let config = Config::new().split_share(true).name("even ranks");
    ///     let even = comm.split((comm.rank() % 2 == 0).then_some(0), 0).config(&config).init()?;
    ///     assert_eq!(even.is_none(), comm.rank() % 2 == 1);
    ///     Ok(())
    /// })?;
    /// # Ok::<(), libnccl::Error>(())
    /// ```
    ///
    /// # Errors
    /// `init` returns [`Error::InvalidArgument`](crate::error::Error::InvalidArgument) if the color is beyond `i32::MAX`,
    /// [`Error::Unsupported`](crate::error::Error::Unsupported), [`Error::Timeout`](crate::error::Error::Timeout), or
    /// [`Error::Nccl`](crate::Error::Nccl).
    #[doc(alias = "ncclCommSplit")]
    #[doc(alias = "NCCL_SPLIT_NOCOLOR")]
    pub fn split(&self, color: Option<u32>, key: i32) -> ChildBuilder<'_, Option<Self>> {
        ChildBuilder::new(self, Child::Split { color, key })
    }

    pub(super) fn create_split(&self, color: Option<u32>, key: i32, config: &Config) -> Result<Option<Self>> {
        const CALL: &str = "split";
        let color = color.map_or(Ok(sys::NCCL_SPLIT_NOCOLOR), |color| to_c_int(CALL, "color", color))?;
        self.create_child(CALL, config, color, Purpose::Work, |out, config| {
            // SAFETY: a live communicator; `create_child` provides the out-parameter and the options.
            unsafe { call!(self.library(), ncclCommSplit(self.raw(), color, key, out, config)) }
        })
    }
}
