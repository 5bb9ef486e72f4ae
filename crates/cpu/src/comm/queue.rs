//! The order of the operations of a group.

use std::cell::Cell;
use std::future::poll_fn;
use std::rc::Rc;
use std::task::Poll;

use crate::sync::executor::BoxedOperation;

/// The queue of an operation: those in one queue run in order, and queues run concurrently.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Queue {
    Collective,
    SendTo(usize),
    ReceiveFrom(usize),
    /// Writes to other ranks and signals there, which never wait.
    Put,
    /// Waits for signals.
    Wait,
}

/// The number of a communicator's collectives that have yet to end before its sends and receives begin, in strict mode.
///
/// NCCL schedules the tasks of a group so: the collectives first, and the sends and receives once none is left
/// (`ncclLaunchPrepare` in `enqueue.cc`). Kernels of one communicator run one after the other.
#[derive(Clone, Default)]
pub(super) struct Turn(Rc<Cell<usize>>);

impl Queue {
    pub(super) fn peer(self) -> Option<usize> {
        match self {
            Self::SendTo(peer) | Self::ReceiveFrom(peer) => Some(peer),
            Self::Collective | Self::Put | Self::Wait => None,
        }
    }
}

impl Turn {
    /// Adds an operation, which runs when it is its turn.
    pub(super) fn add<'a>(self, queue: Queue, operation: BoxedOperation<'a>) -> BoxedOperation<'a> {
        let Self(left) = self;
        if queue == Queue::Collective {
            left.set(left.get() + 1);
            return Box::pin(async move {
                let result = operation.await;
                left.set(left.get() - 1);
                result
            });
        }
        if queue.peer().is_none() {
            return operation;
        }
        Box::pin(async move {
            poll_fn(|_| if left.get() == 0 { Poll::Ready(()) } else { Poll::Pending }).await;
            operation.await
        })
    }
}
