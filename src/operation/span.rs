//! A span of the crate tracing, and a record of the crate log, for each operation.

#[cfg(feature = "tracing")]
use tracing::span::EnteredSpan;

use crate::Communicator;
use crate::recorder::Entry;

/// The fields of an operation, with the names of its [`Record`](crate::Record), its communicator and its rank.
#[derive(Debug)]
pub(super) struct Fields {
    /// The number on the communicator, if its operations are recorded.
    pub(super) number: Option<u64>,
    pub(super) data_type: Option<String>,
    pub(super) sent: usize,
    pub(super) received: usize,
    pub(super) peer: Option<usize>,
    pub(super) source: Option<usize>,
    /// The id that recordings have.
    pub(super) communicator: Option<String>,
    pub(super) rank: usize,
    pub(super) size: usize,
}

impl Fields {
    pub(super) fn new(communicator: &Communicator, entry: &Entry) -> Self {
        let shared = communicator.shared();
        let [peer, source] = entry.ranks();
        let [sent, received] = entry.elements;
        Self {
            // Before it is recorded.
            number: shared.ring().map(|ring| ring.count() + 1),
            data_type: entry.data_type().map(|data_type| data_type.to_string()),
            sent,
            received,
            peer,
            source,
            communicator: shared.identity.to_text(),
            rank: communicator.rank(),
            size: communicator.size(),
        }
    }
}

/// Enters the span of an operation, if spans of the level `TRACE` are enabled.
#[cfg(feature = "tracing")]
#[inline(always)]
pub(super) fn enter(communicator: &Communicator, entry: &Entry) -> Option<EnteredSpan> {
    tracing::level_enabled!(tracing::Level::TRACE).then(|| enter_enabled(communicator, entry))
}

#[cfg(feature = "tracing")]
#[cold]
#[inline(never)]
fn enter_enabled(communicator: &Communicator, entry: &Entry) -> EnteredSpan {
    let fields = Fields::new(communicator, entry);
    // The name of a span is a constant.
    macro_rules! span {
        ($($name:literal)*) => {
            match entry.operation.name {
                $($name => span!(@ $name),)*
                _ => span!(@ "operation"),
            }
        };
        (@ $name:literal) => {
            tracing::trace_span!(
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
            )
        };
    }
    let span = span! {
        "all_reduce" "all_reduce_in_place" "broadcast" "broadcast_in_place" "reduce"
        "reduce_in_place" "all_gather" "all_gather_in_place" "reduce_scatter" "reduce_scatter_in_place"
        "all_to_all" "gather" "gather_in_place" "scatter" "scatter_in_place"
        "send" "recv" "sendrecv" "all_gather_v" "all_gather_v_in_place"
        "reduce_scatter_v" "reduce_scatter_v_in_place" "all_to_all_v" "gather_v" "gather_v_in_place"
        "scatter_v" "scatter_v_in_place" "put_signal" "signal" "wait_signal"
        "barrier" "register_window"
    };
    span.entered()
}

/// Logs an operation, if records of the level `Trace` are enabled.
#[cfg(feature = "log")]
#[inline(always)]
pub(super) fn log(communicator: &Communicator, entry: &Entry) {
    if log::log_enabled!(target: "libnccl", log::Level::Trace) {
        log_enabled(communicator, entry);
    }
}

#[cfg(feature = "log")]
#[cold]
#[inline(never)]
fn log_enabled(communicator: &Communicator, entry: &Entry) {
    let Fields { number, data_type, sent, received, peer, source, communicator, rank, size } =
        Fields::new(communicator, entry);
    let mut text = entry.operation.name.to_owned();
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
