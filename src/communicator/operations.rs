use std::error::Error as StdError;
use std::sync::PoisonError;
use std::time::Duration;

use super::grouping::{Grouping, Ungrouped};
use super::handle::Communicator;
use crate::collective_config::RawCollectiveConfig;
use crate::recorder::{Entry, Method};
use crate::{CollectiveConfig, Error, InvalidArgumentKind, Result, ResultCode, StreamRef};

/// The operations of a communicator, with the way in which they are started: at once or at the end of a group
/// ([`Grouping`]), with or without options of their own.
///
/// Operations that are started at once borrow their buffers for the call; those of a group until its end.
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
/// - [`Error::InvalidUsage`] while a group is open on this thread, after one that failed, or while the communicator is
///   [suspended](Communicator::suspend);
/// - [`Error::Unsupported`] if the library lacks the operation, the element type or an option;
/// - [`Error::Nccl`] if NCCL fails;
/// - [`Error::Timeout`] and [`Error::Aborted`] if the communicator is aborted.
#[derive(Debug, Clone, Copy)]
pub struct Operations<'c, G = Ungrouped<'c>> {
    grouping: G,
    config: Option<&'c CollectiveConfig>,
}

impl<'c, G> Operations<'c, G> {
    #[inline(always)]
    pub(crate) fn new(grouping: G) -> Self {
        Self { grouping, config: None }
    }

    /// Adds options for each collective, which must be equal on all ranks; for an example, see [`Operations`]. Since
    /// NCCL 2.31.2.
    #[must_use]
    pub fn with(self, config: &'c CollectiveConfig) -> Self {
        Self { config: Some(config), ..self }
    }

    #[inline(always)]
    pub(super) fn communicator<'b>(&self) -> &Communicator
    where
        G: Grouping<'b>,
    {
        self.grouping.communicator()
    }

    /// Enters NCCL for an operation.
    #[inline(always)]
    pub(super) fn begin_operation<'b>(self, entry: &Entry) -> Result<G::Begun>
    where
        G: Grouping<'b>,
    {
        self.grouping.begin(entry)
    }

    /// Completes an operation with the result of its call, and keeps the guards of its buffers until it is enqueued.
    #[inline(always)]
    pub(super) fn finish_operation<'b>(
        self,
        entry: &Entry,
        begun: G::Begun,
        result: Result<ResultCode>,
        guards: impl Sized + 'b,
    ) -> Result<()>
    where
        G: Grouping<'b>,
    {
        let result = self.grouping.finish(entry, begun, result);
        self.grouping.keep_guards(guards);
        result
    }

    /// Refuses an operation of which a buffer is not ready, so that its group, if it is in one, does not start.
    #[cold]
    #[track_caller]
    pub(super) fn refuse_buffer<'b>(
        self,
        call: &'static str,
        method: Method,
        stream: StreamRef<'_>,
        reason: &dyn StdError,
    ) -> Result<()>
    where
        G: Grouping<'b>,
    {
        // Before NCCL is entered, as this runs code of other crates.
        let problem = format!("a buffer is not ready: {reason}");
        let error = Error::argument(call, InvalidArgumentKind::NotReady, problem);
        self.issue(&Entry::new(call, method, [], [], [], stream), || Err(error))
    }

    /// Runs `enqueue` as an operation without buffers. (A closure is not always inlined; where every instruction counts,
    /// the callers of [`begin_operation`](Self::begin_operation) and [`finish_operation`](Self::finish_operation) do
    /// without.)
    pub(super) fn issue<'b>(self, entry: &Entry, enqueue: impl FnOnce() -> Result<ResultCode>) -> Result<()>
    where
        G: Grouping<'b>,
    {
        let begun = self.begin_operation(entry)?;
        let result = enqueue();
        self.finish_operation(entry, begun, result, ())
    }

    /// Returns the communicator for an operation of which NCCL has no form with options; an error if options are set.
    #[inline]
    pub(super) fn without_config<'b>(&self, call: &'static str) -> Result<&Communicator>
    where
        G: Grouping<'b>,
    {
        if self.has_config() {
            return Err(Error::usage(call, "takes no options; NCCL has them for collectives only"));
        }
        Ok(self.communicator())
    }

    pub(super) fn has_config(&self) -> bool {
        self.config.is_some_and(|config| !config.is_default())
    }

    /// Keeps what NCCL reads until the end of the group; returns it if there is no group.
    pub(super) fn keep_arguments<'b, K: 'static>(self, arguments: K) -> Option<K>
    where
        G: Grouping<'b>,
    {
        self.grouping.keep_arguments(arguments)
    }

    /// Returns the options as a C struct, which is kept alive as long as NCCL may read it.
    #[inline(always)]
    pub(super) fn raw_config<'b>(self, call: &'static str) -> Result<Option<RawCollectiveConfig>>
    where
        G: Grouping<'b>,
    {
        self.config.map_or(Ok(None), |config| self.create_raw_config(config, call))
    }

    #[inline(never)]
    fn create_raw_config<'b>(
        self,
        config: &CollectiveConfig,
        call: &'static str,
    ) -> Result<Option<RawCollectiveConfig>>
    where
        G: Grouping<'b>,
    {
        if config.is_default() {
            return Ok(None);
        }
        let communicator = self.communicator();
        let library = communicator.library();
        let raw = config.to_raw(call, library.version, &library.backend.to_string())?;
        if let Some(raw) = self.grouping.keep_arguments(raw.clone()) {
            *communicator.options.lock().unwrap_or_else(PoisonError::into_inner) = Some(raw);
        }
        Ok(Some(raw))
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
    /// # fn main() -> libnccl::Result<()> {
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
    /// })
    /// # }
    /// ```
    ///
    /// # Errors
    /// Of each call: [`Error::InvalidUsage`] if the communicator has no timeout; [`Error::Timeout`].
    #[must_use]
    pub fn timeout(self, timeout: Duration) -> Self {
        Self { grouping: self.grouping.with_timeout(timeout), ..self }
    }
}

impl Communicator {
    /// Returns this communicator's operations, started at once; see [`Operations`].
    #[inline]
    #[must_use]
    pub fn operations(&self) -> Operations<'_> {
        Operations::new(Ungrouped::new(self))
    }
}
