//! A span of the crate tracing, and a record of the crate log, for each operation.

use super::handle::Communicator;
use crate::recorder::Entry;

/// The fields of an operation, with the names of its [`Record`](crate::Record), its communicator and its rank.
#[derive(Debug)]
pub(super) struct Fields {
    /// The number on the communicator, if its operations are recorded.
    pub(super) number: Option<u64>,
    pub(super) data_type: Option<String>,
    pub(super) sent: u64,
    pub(super) received: u64,
    pub(super) peer: Option<usize>,
    pub(super) source: Option<usize>,
    /// The id that recordings have.
    pub(super) communicator: Option<String>,
    pub(super) rank: usize,
    pub(super) size: usize,
}

impl Fields {
    pub(super) fn new(communicator: &Communicator, entry: Entry) -> Self {
        let Communicator { shared, rank, size, .. } = communicator;
        let [peer, source] = entry.peers();
        let [sent, received] = entry.counts(*size, *rank);
        Self {
            // Before it is recorded.
            number: shared.ring().map(|ring| ring.count() + 1),
            data_type: entry.data_type().map(|data_type| data_type.to_string()),
            sent,
            received,
            peer,
            source,
            communicator: shared.identity.to_text(),
            rank: *rank,
            size: *size,
        }
    }
}

/// Returns the span of an operation, which has been entered, if spans of the level `TRACE` are enabled.
#[cfg(feature = "tracing")]
macro_rules! enter_span {
    ($name:expr, $communicator:expr, $entry:expr) => {{
        // Apart, so that all this is compiled once for each operation.
        #[cold]
        #[inline(never)]
        fn enter(communicator: &$crate::Communicator, entry: $crate::recorder::Entry) -> tracing::span::EnteredSpan {
            let fields = $crate::communicator::span::Fields::new(communicator, entry);
            let span = tracing::trace_span!(
                target: "libnccl",
                $name,
                number = fields.number,
                data_type = fields.data_type.as_deref(),
                sent = fields.sent,
                received = fields.received,
                peer = fields.peer,
                source = fields.source,
                communicator = fields.communicator.as_deref(),
                rank = fields.rank,
                size = fields.size,
            );
            span.entered()
        }
        tracing::level_enabled!(tracing::Level::TRACE).then(|| enter($communicator, $entry))
    }};
}
#[cfg(feature = "tracing")]
pub(super) use enter_span;

/// Logs an operation, if records of the level `Trace` are enabled.
#[cfg(feature = "log")]
#[inline(always)]
pub(super) fn log(communicator: &Communicator, entry: Entry) {
    if log::log_enabled!(target: "libnccl", log::Level::Trace) {
        log_enabled(communicator, entry);
    }
}

#[cfg(feature = "log")]
#[cold]
#[inline(never)]
fn log_enabled(communicator: &Communicator, entry: Entry) {
    let Fields { number, data_type, sent, received, peer, source, communicator, rank, size } =
        Fields::new(communicator, entry);
    let mut text = entry.name.to_owned();
    let fields = [
        ("number", number.map(|number| number.to_string())),
        ("data_type", data_type),
        ("sent", Some(sent.to_string())),
        ("received", Some(received.to_string())),
        ("peer", peer.map(|peer| peer.to_string())),
        ("source", source.map(|source| source.to_string())),
        ("communicator", communicator),
        ("rank", Some(rank.to_string())),
        ("size", Some(size.to_string())),
    ];
    for (name, value) in fields {
        value.into_iter().for_each(|value| text.extend([" ", name, "=", &value]));
    }
    log::trace!(target: "libnccl", "{text}");
}
