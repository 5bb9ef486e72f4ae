use std::any::Any;

use crate::observer::{CommunicatorEvent, Membership, OperationEnd, OperationStart};

/// Code that is told what communicators do: for metrics, logs, profilers.
///
/// It is given to a communicator, and to those that are split from it, by its [`Config`](crate::config::Config::observer), or to all
/// communicators of the process by [`observe`](crate::observer::observe). The crate `libnccl-observe` has some: a recorder, a watchdog,
/// records of the crate log, spans of the crate tracing.
///
/// # When it is told
/// On the thread that calls: of an operation once it is checked and the communicator entered, before C is called; of its end after.
/// Operations of a group are told of when they join it, and their end with that of the group, once for each communicator.
/// An observer that is added during a call or in a group is notified of the end of exactly the operations whose start it saw.
/// Several threads may tell it at the same time, of different communicators.
///
/// A call waits for it. It may use other communicators, which return errors in an open group; the one of which it is told of a
/// start is in use, and returns errors too. A panic in it ends with its method: the operation goes on, and other observers are
/// told.
///
/// The cost is some 170 instructions for each operation (`cargo bench --bench call_overhead`).
///
/// ```
/// use std::collections::BTreeMap;
/// use std::sync::{Arc, Mutex};
///
/// use libnccl::{Config, ReduceOp, StreamRef, observer::{Observer, OperationStart}};
///
/// /// Counts the bytes that each operation sends, in the text format of Prometheus.
/// #[derive(Default)]
/// struct Metrics(Mutex<BTreeMap<&'static str, u64>>);
///
/// impl Observer for Metrics {
///     fn on_start(&self, start: &OperationStart<'_>) {
///         *self.0.lock().unwrap().entry(start.operation().name).or_default() += start.bytes_sent();
///     }
/// }
///
/// impl Metrics {
///     fn render(&self) -> String {
///         let line = |(name, bytes)| format!("nccl_sent_bytes_total{{operation=\"{name}\"}} {bytes}\n");
///         self.0.lock().unwrap().iter().map(line).collect()
///     }
/// }
///
/// let (nccl, metrics) = (libnccl_cpu::nccl(), Arc::new(Metrics::default()));
/// let config = Config::new().observer(metrics.clone());
/// let comm = nccl.communicator(1, 0, &nccl.unique_id()?).config(&config).init()?;
/// comm.all_reduce_in_place(&mut [1.0_f32; 1000], ReduceOp::Sum, StreamRef::DEFAULT)?;
/// assert_eq!(metrics.render(), "nccl_sent_bytes_total{operation=\"all_reduce_in_place\"} 4000\n");
/// # Ok::<(), libnccl::Error>(())
/// ```
pub trait Observer: Any + Send + Sync {
    /// Is told of an operation before it starts, or of one that has joined a group.
    fn on_start(&self, start: &OperationStart<'_>) {
        let _ = start;
    }

    /// Is told of the end of an operation's call, or of a group.
    fn on_end(&self, end: &OperationEnd<'_>) {
        let _ = end;
    }

    /// Is told what happens to a communicator.
    fn on_communicator(&self, communicator: &Membership, event: CommunicatorEvent) {
        let _ = (communicator, event);
    }
}
