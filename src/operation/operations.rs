use std::time::Duration;

use super::grouping::{Grouped, Ungrouped};
use crate::{CollectiveConfig, Communicator, Group};

/// The operations of a communicator, with the way in which they are started: at once or at the end of a group
/// ([`Grouping`](crate::Grouping)), with or without options of their own.
///
/// Operations that are started at once borrow their buffers for the call; those of a group until its end.
///
/// ```
/// use libnccl::{CollectiveConfig, ReduceOp, StreamRef};
///
/// let comms = libnccl_cpu::nccl().init_all(&[0])?;
/// let mut buffer = [1.0, 2.0];
/// let few = CollectiveConfig::new().max_ctas(2);
/// comms[0].operations().with(&few).all_reduce_in_place(&mut buffer, ReduceOp::Sum, StreamRef::DEFAULT)?;
/// # Ok::<(), libnccl::Error>(())
/// ```
///
/// # Errors
/// Every operation may return:
///
/// - [`Error::InvalidArgument`] for a buffer that is too short or in the wrong memory, or a rank out of range; nothing
///   was started then;
/// - [`Error::InvalidUsage`] while a group is open on this thread, after one that failed, or while the communicator is
///   [suspended](Communicator::suspend);
/// - [`Error::Unsupported`] if the library lacks the operation, the element type or an option;
/// - [`Error::Nccl`] if NCCL fails;
/// - [`Error::Timeout`] and [`Error::Aborted`] if the communicator is aborted.
///
/// [`Error::InvalidArgument`]: crate::Error::InvalidArgument
/// [`Error::InvalidUsage`]: crate::Error::InvalidUsage
/// [`Error::Unsupported`]: crate::Error::Unsupported
/// [`Error::Nccl`]: crate::Error::Nccl
/// [`Error::Timeout`]: crate::Error::Timeout
/// [`Error::Aborted`]: crate::Error::Aborted
#[derive(Debug, Clone, Copy)]
pub struct Operations<'c, G = Ungrouped<'c>> {
    pub(super) grouping: G,
    pub(super) config: Option<&'c CollectiveConfig>,
}

impl<'c, G> Operations<'c, G> {
    /// Adds options for each collective, which must be equal on all ranks; for an example, see [`Operations`]. Since
    /// NCCL 2.31.2.
    #[must_use]
    pub fn with(self, config: &'c CollectiveConfig) -> Self {
        Self { config: Some(config), ..self }
    }
}

impl<'c> Operations<'c> {
    /// Limits the wait of each call, instead of the communicator's [timeout](crate::Config::timeout), which it has to have:
    /// the calls of other communicators block inside NCCL.
    ///
    /// Like that one, it limits what the host waits for: on a GPU, the launch. [`Communicator::synchronize`] limits the wait
    /// for the work itself.
    ///
    /// ```
    /// use std::time::Duration;
    ///
    /// use libnccl::{Config, Error, StreamRef};
    ///
    /// let nccl = libnccl_cpu::nccl();
    /// let config = Config::new().timeout(Duration::from_secs(600));
    /// let id = nccl.unique_id()?;
    /// std::thread::scope(|scope| {
    ///     // It joins, and sends nothing.
    ///     let sender = scope.spawn(|| nccl.init_rank_with(2, 1, &id, &config));
    ///     let comm = nccl.init_rank_with(2, 0, &id, &config)?;
    ///     let short = comm.operations().timeout(Duration::from_millis(20));
    ///     let received = short.recv(&mut [0], 1, StreamRef::DEFAULT);
    ///     assert!(matches!(received, Err(Error::Timeout { call: "recv", .. })));
    ///     sender.join().unwrap().map(drop)
    /// })?;
    /// # Ok::<(), libnccl::Error>(())
    /// ```
    ///
    /// # Errors
    /// Of each call: [`Error::InvalidUsage`](crate::Error::InvalidUsage) if the communicator has no timeout;
    /// [`Error::Timeout`](crate::Error::Timeout).
    #[must_use]
    pub fn timeout(self, timeout: Duration) -> Self {
        Self { grouping: Ungrouped { timeout: Some(timeout), ..self.grouping }, ..self }
    }
}

impl Communicator {
    /// Returns this communicator's operations, started at once; see [`Operations`].
    #[inline]
    #[must_use]
    pub fn operations(&self) -> Operations<'_> {
        Operations { grouping: Ungrouped { communicator: self, timeout: None }, config: None }
    }
}

impl<'scope> Group<'scope, '_> {
    /// Returns the operations of a communicator, as part of this group; for an example, see
    /// [`Grouping`](crate::Grouping).
    #[inline]
    pub fn on(&'scope self, communicator: &'scope Communicator) -> Operations<'scope, Grouped<'scope>> {
        Operations { grouping: Grouped { communicator, participants: self.participants() }, config: None }
    }
}
