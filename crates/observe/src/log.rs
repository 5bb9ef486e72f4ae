use libnccl::observer::{CommunicatorEvent, Membership, Observer, OperationStart};

/// Observer that writes records with the `log` crate.
struct Log;

/// Logs the operations of all communicators that this process creates from now on, with the `log` crate and the target `libnccl`.
///
/// Each operation is logged at level `Trace`. A warning is logged if a communicator fails or exceeds a timeout, if a
/// [`Watchdog`](crate::Watchdog) finds it stuck in a call, or if a communicator on a GPU is dropped instead of destroyed.
pub fn log() {
    libnccl::observer::observe(|_| Some(std::sync::Arc::new(Log)));
}

impl Observer for Log {
    #[inline]
    fn on_start(&self, start: &OperationStart<'_>) {
        if ::log::log_enabled!(target: "libnccl", ::log::Level::Trace) {
            trace(start);
        }
    }

    fn on_communicator(&self, communicator: &Membership, event: CommunicatorEvent) {
        let problem = match event {
            // A communicator dropped by an unwinding panic is not the cause of the failure.
            CommunicatorEvent::Discarded if !std::thread::panicking() => {
                "is dropped, which aborts it and its unfinished work; call `destroy` instead"
            }
            CommunicatorEvent::Failed => "has failed",
            CommunicatorEvent::Stalled => "is in the same call for too long",
            CommunicatorEvent::TimedOut => "has waited for too long",
            _ => return,
        };
        let Membership { id, rank, size, .. } = communicator;
        let id = id.map_or_else(String::new, |id| format!(" {id}"));
        ::log::warn!(target: "libnccl", "the communicator{id} of rank {rank} of {size} {problem}");
    }
}

#[cold]
fn trace(start: &OperationStart<'_>) {
    let Membership { id, rank, size, .. } = start.communicator();
    let mut text = start.operation().name.to_owned();
    // The names and the communicator's id are the same as in recordings.
    let fields = [
        ("number", Some(start.number().to_string())),
        ("data_type", start.data_type().map(|data_type| data_type.to_string())),
        ("sent", Some(start.sent().to_string())),
        ("received", Some(start.received().to_string())),
        ("peer", start.peer().map(|peer| peer.to_string())),
        ("source", start.source().map(|source| source.to_string())),
        ("communicator", id.map(|id| id.to_string())),
        ("rank", Some(rank.to_string())),
        ("size", Some(size.to_string())),
    ];
    for (name, value) in fields {
        value.into_iter().for_each(|value| text.extend([" ", name, "=", &value]));
    }
    ::log::trace!(target: "libnccl", "{text}");
}
