use std::sync::PoisonError;

use super::handle::Communicator;
use crate::collective_config::RawCollectiveConfig;
use crate::group::participants::Participants;
use crate::{CollectiveConfig, Error, Result, ResultCode};

/// The operations of a communicator, with the way in which they are started: at once or at the end of a group, with or
/// without options of their own.
///
/// ```
/// # fn main() -> libnccl::Result<()> {
/// use libnccl::{CollectiveConfig, ReduceOp, StreamRef};
///
/// let comms = libnccl_cpu::nccl().init_all(&[0])?;
/// let mut buffer = [1.0, 2.0];
/// let few = CollectiveConfig::new().max_ctas(2);
/// comms[0].operations().with(&few).all_reduce_in_place(&mut buffer, ReduceOp::Sum, StreamRef::DEFAULT)?;
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// Every operation may return:
///
/// - [`Error::InvalidArgument`] for a buffer that is too short or in the wrong memory, or a rank out of range; nothing
///   was started then;
/// - [`Error::InvalidUsage`] while a group is open on this thread, or after one that failed;
/// - [`Error::Unsupported`] if the library lacks the operation, the element type or an option;
/// - [`Error::Nccl`] if NCCL fails;
/// - [`Error::Timeout`] and [`Error::Aborted`] if the communicator is aborted.
#[derive(Debug, Clone, Copy)]
pub struct Operations<'scope> {
    pub(super) communicator: &'scope Communicator,
    group: Option<&'scope Participants<'scope>>,
    config: Option<&'scope CollectiveConfig>,
}

impl<'scope> Operations<'scope> {
    #[inline]
    pub(crate) fn new(
        communicator: &'scope Communicator,
        group: Option<&'scope Participants<'scope>>,
    ) -> Self {
        Self { communicator, group, config: None }
    }

    /// Adds options for each collective, which must be equal on all ranks; for an example, see [`Operations`]. Since
    /// NCCL 2.31.2.
    #[must_use]
    pub fn with(self, config: &'scope CollectiveConfig) -> Self {
        Self { config: Some(config), ..self }
    }

    /// Enters NCCL for an operation. Returns `true` if it is the communicator's first in a group.
    #[inline(always)]
    pub(super) fn begin_operation(self, operation: &'static str) -> Result<bool> {
        match self.group {
            None => self.communicator.begin_ungrouped(operation).map(|()| false),
            Some(group) => group.begin_grouped(self.communicator, operation),
        }
    }

    /// Completes an operation with the result of its call; `joined` is the result of
    /// [`begin_operation`](Self::begin_operation).
    #[inline(always)]
    pub(super) fn finish_operation(
        self,
        operation: &'static str,
        joined: bool,
        result: Result<ResultCode>,
    ) -> Result<()> {
        match self.group {
            None => self.communicator.finish_ungrouped(operation, result),
            Some(group) => group.finish_grouped(self.communicator, joined, result),
        }
    }

    /// Runs `enqueue` as an operation. (A closure is not always inlined; where every instruction counts, the callers
    /// of [`begin_operation`](Self::begin_operation) and [`finish_operation`](Self::finish_operation) do without.)
    pub(super) fn issue(
        self,
        operation: &'static str,
        enqueue: impl FnOnce() -> Result<ResultCode>,
    ) -> Result<()> {
        let joined = self.begin_operation(operation)?;
        let result = enqueue();
        self.finish_operation(operation, joined, result)
    }

    /// Returns the communicator for an operation of which NCCL has no form with options; an error if options are set.
    #[inline]
    pub(super) fn without_config(self, call: &'static str) -> Result<&'scope Communicator> {
        match self.config {
            None => Ok(self.communicator),
            Some(_) => Err(Error::usage(call, "takes no options; NCCL has them for collectives only")),
        }
    }

    pub(super) fn has_config(self) -> bool {
        self.config.is_some_and(|config| !config.is_default())
    }

    /// Returns the options as a C struct, which is kept alive as long as NCCL may read it.
    #[inline(always)]
    pub(super) fn raw_config(self, call: &'static str) -> Result<Option<RawCollectiveConfig>> {
        self.config.map_or(Ok(None), |config| self.create_raw_config(config, call))
    }

    #[inline(never)]
    fn create_raw_config(
        self,
        config: &CollectiveConfig,
        call: &'static str,
    ) -> Result<Option<RawCollectiveConfig>> {
        if config.is_default() {
            return Ok(None);
        }
        let library = self.communicator.library();
        let raw = config.to_raw(call, library.version, &library.backend.to_string())?;
        match self.group {
            Some(group) => group.keep_config(&raw),
            None => {
                let kept = &self.communicator.options;
                *kept.lock().unwrap_or_else(PoisonError::into_inner) = Some(raw.clone());
            }
        }
        Ok(Some(raw))
    }
}

impl Communicator {
    /// Returns this communicator's operations, started at once; see [`Operations`].
    #[inline]
    #[must_use]
    pub fn operations(&self) -> Operations<'_> {
        Operations::new(self, None)
    }
}
