//! The format of PyTorch's flight recorder, version 2.5, which `python -m torch.distributed.flight_recorder.fr_trace` reads.
//!
//! In this format, operations have no root, and sizes are lists of shapes.

use super::document::Document;
use super::record::{Record, RecordState};
use libnccl::DataType;

/// A communicator, and its records.
#[derive(Debug)]
pub(crate) struct Group {
    /// The communicator's id, the same on all ranks.
    pub(crate) id: String,
    pub(crate) name: String,
    pub(crate) size: usize,
    pub(crate) rank: usize,
    pub(crate) nccl: String,
    pub(crate) records: Vec<Record>,
}

/// Returns the dump of a process.
pub(crate) fn dump(groups: &[Group]) -> Document {
    let config = |group: &Group| {
        let ranks = (0..group.size).map(|rank| rank.to_string()).collect::<Vec<_>>().join(", ");
        let config = [
            ("name", group.id.as_str().into()),
            ("desc", group.name.as_str().into()),
            ("ranks", format!("[{ranks}]").into()),
        ];
        (group.id.clone(), Document::object(config))
    };
    let nccl = groups.first().map(|group| group.nccl.clone());
    let mut entries: Vec<_> = groups
        .iter()
        .enumerate()
        .flat_map(|(number, group)| group.records.iter().map(move |record| (number, group, record)))
        .flat_map(|(number, group, record)| {
            names(record, group.rank)
                .into_iter()
                .map(move |name| (record.queued, number, group, record, name))
        })
        .collect();
    entries.sort_by_key(|(queued, ..)| *queued);
    let entries = entries.into_iter().enumerate().map(|(id, (_, number, group, record, (name, counts)))| {
        entry(id, number, group, record, name, counts)
    });
    Document::object([
        ("version", "2.5".into()),
        ("pg_config", Document::object(groups.iter().map(config))),
        ("nccl_version", nccl.into()),
        ("entries", Document::List(entries.collect())),
    ])
}

/// Returns PyTorch's name of an operation, with the numbers of sent and received elements. A `send_recv` is two operations.
fn names(record: &Record, rank: usize) -> Vec<(String, [u64; 2])> {
    let counts = [record.sent, record.received];
    let peer = record.peer.map_or_else(|| "?".into(), |peer| peer.to_string());
    let send = |counts| (format!("send {rank}->{peer}"), counts);
    let receive = |source: &str, counts| (format!("recv {rank}<-{source}"), counts);
    let name = match record.operation.trim_end_matches("_in_place") {
        "all_gather" => "_all_gather_base",
        "reduce_scatter" => "_reduce_scatter_base",
        "all_to_all_v" | "gather_v" | "scatter_v" => "all_to_all",
        "register_window" => "new_window",
        "send" => return vec![send(counts)],
        "recv" => return vec![receive(&peer, counts)],
        "send_recv" => {
            let source = record.source.map_or_else(|| "?".into(), |source| source.to_string());
            return vec![send([counts[0], 0]), receive(&source, [0, counts[1]])];
        }
        // PyTorch has no such operations.
        "put_signal" | "signal" | "wait_signal" => return vec![],
        name => name,
    };
    vec![(name.into(), counts)]
}

/// Returns PyTorch's name of an element type: `Byte` for no type, `Undefined` for an unknown one.
fn type_name(data_type: Option<DataType>) -> &'static str {
    match data_type {
        Some(DataType::Int8) => "Char",
        Some(DataType::Int32) => "Int",
        Some(DataType::Uint32) => "UInt32",
        Some(DataType::Int64) => "Long",
        Some(DataType::Uint64) => "UInt64",
        Some(DataType::Float16) => "Half",
        Some(DataType::Float32) => "Float",
        Some(DataType::Float64) => "Double",
        Some(DataType::Bfloat16) => "BFloat16",
        Some(DataType::Float8e4m3) => "Float8_e4m3fn",
        Some(DataType::Float8e5m2) => "Float8_e5m2",
        Some(DataType::Uint8) | None => "Byte",
        Some(_) => "Undefined",
    }
}

fn entry(
    id: usize,
    number: usize,
    group: &Group,
    record: &Record,
    name: String,
    [sent, received]: [u64; 2],
) -> Document {
    let sizes = |count: u64| Document::List(vec![Document::List(vec![count.into()])]);
    let data_types = || Document::List(vec![type_name(record.data_type).into()]);
    // A call that has not returned was only scheduled. Work may have begun on a stream that was not queried.
    let state = match record.state {
        RecordState::Called => "scheduled",
        RecordState::Queued | RecordState::Failed => "started",
        RecordState::Completed => "completed",
    };
    let frame = record.site.map(|site| {
        Document::object([
            ("name", record.operation.into()),
            ("filename", site.file().into()),
            ("line", site.line().into()),
        ])
    });
    let is_message = record.message.is_some();
    Document::object([
        ("record_id", id.into()),
        ("pg_id", number.into()),
        ("process_group", Document::Tuple(vec![group.id.as_str().into(), group.name.as_str().into()])),
        ("collective_seq_id", record.collective.unwrap_or(0).into()),
        ("p2p_seq_id", record.message.unwrap_or(0).into()),
        ("op_id", record.number.into()),
        ("profiling_name", format!("nccl:{name}").into()),
        ("time_created_ns", record.queued.into()),
        ("time_discovered_started_ns", Document::Null),
        ("time_discovered_completed_ns", record.completed.into()),
        ("input_sizes", sizes(sent)),
        ("input_dtypes", data_types()),
        ("output_sizes", sizes(received)),
        ("output_dtypes", data_types()),
        ("state", state.into()),
        ("retired", Document::Bool(record.state == RecordState::Completed)),
        ("timeout_ms", 0_u64.into()),
        ("is_p2p", Document::Bool(is_message)),
        ("frames", Document::List(frame.into_iter().collect())),
    ])
}

#[cfg(test)]
#[path = "../../tests/unit/pytorch.rs"]
mod tests;
