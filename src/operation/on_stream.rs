//! The last argument of every operation: its stream, its options, and whether it starts immediately or with a group.
#![allow(unsafe_code)] // Adds an operation to a group.

use std::marker::PhantomData;
use std::time::Duration;

use crate::communicator::Communicator;
use crate::config::CollectiveConfig;
use crate::error::{Error, Result};
use crate::group::{Group, Participants};
use crate::observer::Operation;
use crate::stream::{Stream, StreamRef};

/// The stream of an operation, and the options of its call. In a group, it also refers to the group.
///
/// Operations take `impl Into<OnStream>`: a stream, [`CallOptions`], or the result of
/// [`Group::stream`](crate::group::Group::stream). `'b` is the lifetime of the buffers, `'c` the lifetime of the communicator.
#[derive(Debug, Clone, Copy)]
pub struct OnStream<'b, 'c> {
    pub(super) stream: StreamRef<'b>,
    pub(super) config: Option<&'b CollectiveConfig>,
    /// Replaces the communicator's timeout.
    pub(super) timeout: Option<Duration>,
    /// The group that starts the operation at its end. `Participants` makes `'c` invariant.
    pub(crate) group: Option<&'c Participants<'c>>,
    /// In a group, both lifetimes are the group's scope, so that buffers and communicators live until its end. The compiler must
    /// not shorten either lifetime.
    invariant: PhantomData<fn(&'b ()) -> &'b ()>,
}

/// A stream with options for one call: a timeout, and NCCL's options for a collective.
///
/// ```
/// use libnccl::{CallOptions, ReduceOp, StreamRef, config::CollectiveConfig};
///
/// let comm = libnccl_cpu::nccl().init_all(&[0])?.remove(0);
/// let config = CollectiveConfig::new().max_ctas(4);
/// let on = CallOptions::on(StreamRef::DEFAULT).config(&config);
/// comm.all_reduce_in_place(&mut [1.0_f32], ReduceOp::Sum, on)?;
/// # Ok::<(), libnccl::Error>(())
/// ```
#[derive(Debug, Clone, Copy)]
pub struct CallOptions<'a> {
    stream: StreamRef<'a>,
    config: Option<&'a CollectiveConfig>,
    timeout: Option<Duration>,
}

impl<'a> CallOptions<'a> {
    /// Creates call options for `stream`, without a timeout and without options for a collective.
    #[must_use]
    pub fn on(stream: impl Into<StreamRef<'a>>) -> Self {
        Self { stream: stream.into(), config: None, timeout: None }
    }

    /// Sets NCCL's options for a collective. The options must be equal on all ranks. In a group, `config` must live until the
    /// group ends. Operations that are not collectives return [`Error::InvalidUsage`]. Since NCCL 2.31.2.
    #[must_use]
    pub fn config(self, config: &'a CollectiveConfig) -> Self {
        Self { config: Some(config), ..self }
    }

    /// Limits the wait of this call. The limit replaces the communicator's [timeout](crate::config::Config::timeout). The
    /// communicator must have a timeout: without one, its calls block inside NCCL. In a group, use
    /// [`Group::timeout`](crate::group::Group::timeout).
    ///
    /// On a GPU, the call waits only until its work is enqueued, and the limit applies to this wait. To limit the wait for the
    /// work itself, use [`Communicator::synchronize`].
    ///
    /// ```
    /// use std::time::Duration;
    ///
    /// use libnccl::{CallOptions, Config, Error, StreamRef};
    ///
    /// let nccl = libnccl_cpu::nccl();
    /// let config = Config::new().timeout(Duration::from_secs(600));
    /// let id = nccl.unique_id()?;
    /// std::thread::scope(|scope| {
    ///     // Rank 1 joins, but sends nothing.
    ///     let sender = scope.spawn(|| nccl.communicator(2, 1, &id).config(&config).init());
    ///     let comm = nccl.communicator(2, 0, &id).config(&config).init()?;
    ///     let short = CallOptions::on(StreamRef::DEFAULT).timeout(Duration::from_millis(20));
    ///     let received = comm.recv(&mut [0], 1, short);
    ///     assert!(matches!(received, Err(Error::Timeout { call: "recv", .. })));
    ///     sender.join().unwrap().map(drop)
    /// })?;
    /// # Ok::<(), libnccl::Error>(())
    /// ```
    ///
    /// # Errors
    /// The call returns [`Error::InvalidUsage`] if the communicator has no timeout, or if the operation is in a group. It returns
    /// [`Error::Timeout`] after the limit.
    #[must_use]
    pub fn timeout(self, timeout: Duration) -> Self {
        Self { timeout: Some(timeout), ..self }
    }
}

impl<'scope> Group<'scope, '_> {
    /// Returns the last argument of an operation in this group: the stream `on`, and the group. The operation starts at the end
    /// of the group. For an example, see [`Nccl::group`](crate::nccl::Nccl::group).
    ///
    /// Buffers, communicators and options must live until the end of the group. To use a part of a buffer, pass the part by
    /// value, for example `slice.get(..4).unwrap()` or cudarc's `buffer.slice(..4)`: a reference to the part would not live long
    /// enough. A function that adds operations to its caller's group can have a parameter `on: impl Into<OnStream<'b, 'c>>`, or
    /// take a reference to the group.
    #[inline]
    pub fn stream(&'scope self, on: impl Into<OnStream<'scope, 'scope>>) -> OnStream<'scope, 'scope> {
        // SAFETY: `'scope` is the lifetime of the reference that the closure received. The result is invariant in it, so that
        // the operation borrows its buffers and its communicator for the whole scope.
        unsafe { on.into().in_group(&self.participants) }
    }
}

impl<'b> From<StreamRef<'b>> for OnStream<'b, '_> {
    #[inline]
    fn from(stream: StreamRef<'b>) -> Self {
        Self { stream, config: None, timeout: None, group: None, invariant: PhantomData }
    }
}

impl<'b, S: Stream> From<&'b S> for OnStream<'b, '_> {
    #[inline]
    fn from(stream: &'b S) -> Self {
        StreamRef::from(stream).into()
    }
}

impl<'b> From<CallOptions<'b>> for OnStream<'b, '_> {
    #[inline]
    fn from(CallOptions { stream, config, timeout }: CallOptions<'b>) -> Self {
        Self { stream, config, timeout, group: None, invariant: PhantomData }
    }
}

impl<'b, 'c> OnStream<'b, 'c> {
    /// Makes the operation start at the end of `group`.
    ///
    /// # Safety
    /// `'b` and `'c` must be the scope of the group: the lifetime of the reference that the group's closure received. The group
    /// keeps communicators and the guards of buffers for its scope, but an operation requires only that buffers live for `'b` and
    /// communicators for `'c`. So only [`Group::stream`], whose signature fixes both lifetimes, may call this.
    #[inline]
    unsafe fn in_group(self, group: &'c Participants<'c>) -> Self {
        Self { group: Some(group), ..self }
    }

    /// Checks that the operation can be added to its group or, outside a group, can have its timeout.
    #[inline]
    pub(super) fn check(&self, communicator: &Communicator, operation: &'static Operation) -> Result<()> {
        match (self.group, self.timeout) {
            (None, None) => Ok(()),
            (None, Some(_)) => communicator.require_timeout(operation.name),
            (Some(group), None) => group.check(communicator, operation),
            (Some(_), Some(_)) => Err(timeout_in_group(operation)),
        }
    }

    /// Records the error in the operation's group, if there is one. The group then does not start.
    #[cold]
    pub(crate) fn refuse(&self, error: Error) -> Error {
        match self.group {
            Some(group) => group.record_error(error),
            None => error,
        }
    }

    /// Keeps arguments that NCCL reads until the end of the group. Returns them if there is no group.
    pub(super) fn keep_arguments<K: 'static>(self, arguments: K) -> Option<K> {
        match self.group {
            None => Some(arguments),
            Some(group) => {
                group.keep_arguments(arguments);
                None
            }
        }
    }
}

#[cold]
fn timeout_in_group(operation: &Operation) -> Error {
    let problem = "an operation of a group has no timeout; set one for the whole group with Group::timeout";
    Error::usage(operation.name, problem)
}
