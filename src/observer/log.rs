use super::fields::Fields;
use crate::OperationStart;

/// Makes a record of the crate log for an operation, if records of the level `Trace` are enabled.
#[inline]
pub(super) fn on_start(start: &OperationStart<'_>) {
    if ::log::log_enabled!(target: "libnccl", ::log::Level::Trace) {
        log(start);
    }
}

#[cold]
fn log(start: &OperationStart<'_>) {
    let Fields { number, data_type, sent, received, peer, source, communicator, rank, size } =
        Fields::new(start);
    let mut text = start.operation().name.to_owned();
    let fields = [
        ("number", Some(number.to_string())),
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
    ::log::trace!(target: "libnccl", "{text}");
}
