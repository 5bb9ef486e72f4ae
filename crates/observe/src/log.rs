use libnccl::observer::{CommunicatorEvent, Membership, Observer, OperationStart};

/// The observer that makes records of the crate log.
struct Log;

/// Makes a record of the crate log for each operation of the communicators that this process creates from now on, at the level
/// `Trace`, and for what else becomes of them a warning: a communicator that is dropped instead of destroyed, is in the same call
/// for too long, or fails. The target is `libnccl`.
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
            // What is lost when a panic unwinds is not what went wrong.
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
    // The names, and the id of the communicator, are those of recordings.
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
