use std::time::Duration;

use crate::group::Participants;
use crate::{Communicator, Error};

/// The time at which operations start: at once ([`Ungrouped`]) or at the end of a group ([`Grouped`]). Their buffers live
/// as long as `'b`: during the call, or until the end of the group.
///
/// ```
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
/// # Ok::<(), libnccl::Error>(())
/// ```
pub trait Grouping<'b>: Copy + Sealed {
    /// Returns the communicator.
    #[doc(hidden)]
    fn communicator(&self) -> &Communicator;

    /// Returns the time as a value.
    #[doc(hidden)]
    fn start(self) -> Start<'b>;
}

/// The start of operations when they are called; see [`Communicator::operations`].
#[derive(Debug, Clone, Copy)]
pub struct Ungrouped<'c> {
    pub(super) communicator: &'c Communicator,
    /// The longest time that a call may wait, instead of the communicator's.
    pub(super) timeout: Option<Duration>,
}

/// The start of operations at the end of a group; see [`Group::on`](crate::Group::on).
#[derive(Debug, Clone, Copy)]
pub struct Grouped<'scope> {
    pub(super) communicator: &'scope Communicator,
    pub(super) participants: &'scope Participants<'scope>,
}

/// The time at which an operation starts: now, or at the end of a group.
#[allow(missing_debug_implementations, unreachable_pub)] // Public in a private module, as a sealed trait's hidden type.
#[derive(Clone, Copy)]
pub struct Start<'b> {
    /// The group's participants, of which the communicator becomes one.
    pub(super) group: Option<(&'b Participants<'b>, &'b Communicator)>,
    /// The longest time that a call outside a group may wait, instead of the communicator's.
    pub(super) timeout: Option<Duration>,
}

impl<'b> Start<'b> {
    /// Returns the error of an operation that is refused, because of which its group does not start.
    #[cold]
    pub(super) fn refuse(self, error: Error) -> Error {
        match self.group {
            None => error,
            Some((participants, _)) => participants.record_error(error),
        }
    }

    /// Keeps the guards of buffers until the operation is enqueued.
    #[inline(always)]
    pub(super) fn keep_guards(self, guards: impl Sized + 'b) {
        match self.group {
            None => drop(guards),
            Some((participants, _)) => participants.keep_guards(guards),
        }
    }

    /// Keeps what NCCL reads until the end of the group; returns it if there is no group.
    pub(super) fn keep_arguments<K: 'static>(self, arguments: K) -> Option<K> {
        match self.group {
            None => Some(arguments),
            Some((participants, _)) => {
                participants.keep_arguments(arguments);
                None
            }
        }
    }
}

pub trait Sealed {}

impl Sealed for Ungrouped<'_> {}
impl Sealed for Grouped<'_> {}

impl<'b> Grouping<'b> for Ungrouped<'_> {
    #[inline(always)]
    fn communicator(&self) -> &Communicator {
        self.communicator
    }

    #[inline(always)]
    fn start(self) -> Start<'b> {
        Start { group: None, timeout: self.timeout }
    }
}

impl<'scope> Grouping<'scope> for Grouped<'scope> {
    #[inline(always)]
    fn communicator(&self) -> &Communicator {
        self.communicator
    }

    #[inline(always)]
    fn start(self) -> Start<'scope> {
        Start { group: Some((self.participants, self.communicator)), timeout: None }
    }
}
