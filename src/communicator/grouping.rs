use std::time::Duration;

use super::handle::{BegunOperation, Communicator};
use crate::group::participants::{JoinedOperation, Participants};
use crate::recorder::Entry;
use crate::{Result, ResultCode};

/// The time at which operations start: at once ([`Ungrouped`]) or at the end of a group ([`Grouped`]). Their buffers live
/// as long as `'b`: during the call, or until the end of the group.
///
/// ```
/// # fn main() -> libnccl::Result<()> {
/// use libnccl::{Element, Grouping, Operations, ReduceOp, Result, StreamRef};
///
/// fn sum<'b, T: Element>(ops: Operations<'_, impl Grouping<'b>>, buffer: &'b mut [T]) -> Result<()> {
///     ops.all_reduce_in_place(buffer, ReduceOp::Sum, StreamRef::DEFAULT)
/// }
///
/// let nccl = libnccl_cpu::nccl();
/// let comms = nccl.init_all(&[0])?;
/// let mut buffer = [1.0, 2.0];
/// sum(comms[0].operations(), &mut buffer)?;
/// nccl.group(|g| sum(g.on(&comms[0]), &mut buffer))?;
/// # Ok(())
/// # }
/// ```
pub trait Grouping<'b>: Copy + Sealed {
    /// Returns the communicator.
    #[doc(hidden)]
    fn communicator(&self) -> &Communicator;

    /// An operation that has entered NCCL, which its drop, or that of the group, leaves.
    #[doc(hidden)]
    type Begun;

    /// Enters NCCL for an operation, and records it.
    #[doc(hidden)]
    fn begin(self, entry: &Entry) -> Result<Self::Begun>;

    /// Completes an operation with the result of its call.
    #[doc(hidden)]
    fn finish(self, entry: &Entry, begun: Self::Begun, result: Result<ResultCode>) -> Result<()>;

    /// Keeps the guards of buffers until the operation is enqueued.
    #[doc(hidden)]
    fn keep_guards<K: 'b>(self, guards: K);

    /// Keeps what NCCL reads until the end of the group; returns it if there is no group.
    #[doc(hidden)]
    fn keep_arguments<K: 'static>(self, arguments: K) -> Option<K>;
}

/// The start of operations when they are called; see [`Communicator::operations`].
#[derive(Debug, Clone, Copy)]
pub struct Ungrouped<'c> {
    communicator: &'c Communicator,
    /// The longest time that a call may wait, instead of the communicator's.
    timeout: Option<Duration>,
}

/// The start of operations at the end of a group; see [`Group::on`](crate::Group::on).
#[derive(Debug, Clone, Copy)]
pub struct Grouped<'scope> {
    communicator: &'scope Communicator,
    participants: &'scope Participants<'scope>,
}

pub trait Sealed {}

impl Sealed for Ungrouped<'_> {}
impl Sealed for Grouped<'_> {}

impl<'c> Ungrouped<'c> {
    #[inline(always)]
    pub(super) fn new(communicator: &'c Communicator) -> Self {
        Self { communicator, timeout: None }
    }

    pub(super) fn with_timeout(self, timeout: Duration) -> Self {
        Self { timeout: Some(timeout), ..self }
    }
}

impl<'scope> Grouped<'scope> {
    #[inline(always)]
    pub(crate) fn new(
        communicator: &'scope Communicator,
        participants: &'scope Participants<'scope>,
    ) -> Self {
        Self { communicator, participants }
    }
}

impl<'b, 'c> Grouping<'b> for Ungrouped<'c> {
    type Begun = BegunOperation<'c>;

    #[inline(always)]
    fn communicator(&self) -> &Communicator {
        self.communicator
    }

    #[inline(always)]
    fn begin(self, entry: &Entry) -> Result<BegunOperation<'c>> {
        if self.timeout.is_some() {
            self.communicator.require_timeout(entry.name)?;
        }
        self.communicator.begin_operation(entry)
    }

    #[inline(always)]
    fn finish(self, entry: &Entry, begun: BegunOperation<'c>, result: Result<ResultCode>) -> Result<()> {
        self.communicator.finish_operation(entry, begun, self.timeout, result)
    }

    #[inline(always)]
    fn keep_guards<K: 'b>(self, guards: K) {
        drop(guards);
    }

    #[inline(always)]
    fn keep_arguments<K: 'static>(self, arguments: K) -> Option<K> {
        Some(arguments)
    }
}

impl<'scope> Grouping<'scope> for Grouped<'scope> {
    type Begun = JoinedOperation<'scope>;

    #[inline(always)]
    fn communicator(&self) -> &Communicator {
        self.communicator
    }

    #[inline(always)]
    fn begin(self, entry: &Entry) -> Result<JoinedOperation<'scope>> {
        self.participants.begin_grouped(self.communicator, entry)
    }

    #[inline(always)]
    fn finish(self, entry: &Entry, begun: JoinedOperation<'scope>, result: Result<ResultCode>) -> Result<()> {
        self.participants.finish_grouped(self.communicator, entry, begun, result)
    }

    #[inline(always)]
    fn keep_guards<K: 'scope>(self, guards: K) {
        self.participants.keep_guards(guards);
    }

    #[inline(always)]
    fn keep_arguments<K: 'static>(self, arguments: K) -> Option<K> {
        self.participants.keep_arguments(arguments);
        None
    }
}
