//! Observers of operations and communicators. Also the descriptors of operations.

// `events.rs` has the arguments of observers, `dispatch.rs` the list of observers of a communicator, `operation.rs` the
// descriptors.

mod dispatch;
mod events;
mod operation;

use std::any::Any;

pub use dispatch::observe;
pub(crate) use dispatch::{Given, Observed, Observers, of_process};
#[doc(hidden)]
pub use events::{CallWord, Children};
pub use events::{CommunicatorEvent, CommunicatorId, Membership, OperationEnd, OperationStart};
pub use operation::{Extent, Operation, Role};

/// Receives the operations and the lifecycle events of communicators, for instance for metrics, logs and profilers.
///
/// [`Config::observer`](crate::config::Config::observer) adds an observer to a communicator and its children; [`observe`] adds
/// one to all communicators that the process creates afterwards. The crate `libnccl-observe` provides a recorder, a watchdog, log
/// records (crate log), and spans (crate tracing).
///
/// # When it is called
/// [`on_start`](Self::on_start) and [`on_end`](Self::on_end) run on the thread that calls the operation: `on_start` after the
/// checks and before the C call, `on_end` after the C call. In a group, `on_start` is called when an operation is added, and
/// `on_end` at the end of the group, once for each communicator. An observer may be added during a call or in a group. It then
/// receives `on_end` only for operations whose `on_start` it received. Several threads may call an observer at the same time, for
/// different communicators.
///
/// The operation waits until the methods return. An observer may use other communicators if no group is open; in a group, their
/// methods return errors. During `on_start`, the methods of the operation's own communicator return errors too, because the
/// communicator is in use. A panic in a method ends only that method: the operation continues, and other observers are notified.
///
/// An observer costs about 170 instructions per operation (`cargo bench --bench call_overhead`).
///
/// ```
/// use std::collections::BTreeMap;
/// use std::sync::{Arc, Mutex};
///
/// use libnccl::{Config, ReduceOp, StreamRef, observer::{Observer, OperationStart}};
///
/// /// Counts the bytes that each operation sends.
/// #[derive(Default)]
/// struct Metrics(Mutex<BTreeMap<&'static str, u64>>);
///
/// impl Observer for Metrics {
///     fn on_start(&self, start: &OperationStart<'_>) {
///         *self.0.lock().unwrap().entry(start.operation().name).or_default() += start.bytes_sent();
///     }
/// }
///
/// let (nccl, metrics) = (libnccl_cpu::nccl(), Arc::new(Metrics::default()));
/// let config = Config::new().observer(metrics.clone());
/// let comm = nccl.communicator(1, 0, &nccl.unique_id()?).config(&config).init()?;
/// comm.all_reduce_in_place(&mut [1.0_f32; 1000], ReduceOp::Sum, StreamRef::DEFAULT)?;
/// assert_eq!(metrics.0.lock().unwrap()["all_reduce_in_place"], 4000);
/// # Ok::<(), libnccl::Error>(())
/// ```
pub trait Observer: Any + Send + Sync {
    /// Called before an operation starts, or when it is added to a group.
    fn on_start(&self, start: &OperationStart<'_>) {
        let _ = start;
    }

    /// Called after the C call of an operation, or at the end of a group.
    fn on_end(&self, end: &OperationEnd<'_>) {
        let _ = end;
    }

    /// Called at each [event](CommunicatorEvent) of a communicator.
    fn on_communicator(&self, communicator: &Membership, event: CommunicatorEvent) {
        let _ = (communicator, event);
    }
}
