//! The format of PyTorch's flight recorder, version 2.5, which `python -m torch.distributed.flight_recorder.fr_trace` reads.
//!
//! Its operations have no root, and its sizes are lists of shapes.

use super::document::Document;
use super::record::{Record, RecordState};
use libnccl::DataType;

/// A communicator, and its records.
#[derive(Debug)]
pub(crate) struct Group {
    /// An identity that all ranks have in common.
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

/// Returns PyTorch's names of an operation, each with the elements that are sent and received: an exchange consists of two.
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
        // PyTorch does not know them.
        "put_signal" | "signal" | "wait_signal" => return vec![],
        name => name,
    };
    vec![(name.into(), counts)]
}

/// Returns PyTorch's name of an element type, and that of bytes for what has none.
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
    // A call that has not returned was only scheduled. Work on a stream that was not asked may have begun.
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
mod tests {
    use super::*;

    #[test]
    fn every_element_type_has_a_name() {
        for &data_type in DataType::ALL {
            assert_ne!(type_name(Some(data_type)), "Undefined", "{data_type}");
        }
    }

    fn record(number: u64, operation: &'static str) -> Record {
        Record {
            number,
            collective: Some(number),
            message: None,
            operation,
            data_type: Some(DataType::Float16),
            sent: 6,
            received: 2,
            peer: None,
            source: None,
            group: None,
            site: None,
            stream: 0,
            queued: 100 + number,
            completed: None,
            state: RecordState::Queued,
        }
    }

    fn group(id: &str, records: Vec<Record>) -> Group {
        let (id, name, nccl) = (id.to_string(), "undefined".to_string(), "2.32.3".to_string());
        Group { id, name, size: 3, rank: 1, nccl, records }
    }

    fn entries(groups: &[Group]) -> Vec<serde_json::Value> {
        let dump: serde_json::Value = serde_json::from_str(&dump(groups).to_json()).unwrap();
        dump["entries"].as_array().unwrap().clone()
    }

    #[test]
    fn operation_has_pytorchs_name() {
        let exchange = Record { peer: Some(2), source: Some(0), ..record(7, "send_recv") };
        let records = vec![
            record(1, "all_reduce_in_place"),
            record(2, "reduce_scatter"),
            record(3, "gather_v"),
            Record { peer: Some(0), ..record(4, "send") },
            Record { peer: Some(2), ..record(5, "recv") },
            record(6, "put_signal"),
            exchange,
        ];
        let entries = entries(&[group("a", records)]);
        let found: Vec<_> = entries
            .iter()
            .map(|entry| {
                (entry["profiling_name"].as_str().unwrap(), &entry["input_sizes"], &entry["output_sizes"])
            })
            .collect();
        let size = |count: u64| serde_json::json!([[count]]);
        assert_eq!(
            found,
            [
                ("nccl:all_reduce", &size(6), &size(2)),
                ("nccl:_reduce_scatter_base", &size(6), &size(2)),
                ("nccl:all_to_all", &size(6), &size(2)),
                ("nccl:send 1->0", &size(6), &size(2)),
                ("nccl:recv 1<-2", &size(6), &size(2)),
                ("nccl:send 1->2", &size(6), &size(0)),
                ("nccl:recv 1<-0", &size(0), &size(2)),
            ]
        );
    }

    #[test]
    fn entries_of_several_communicators_are_in_the_order_of_their_calls() {
        let first = vec![record(1, "broadcast"), record(4, "broadcast")];
        let message = Record { message: Some(9), collective: None, peer: Some(0), ..record(3, "send") };
        let second = vec![record(2, "all_gather"), message];
        let entries = entries(&[group("a", first), group("b", second)]);
        let found: Vec<_> = entries
            .iter()
            .map(|entry| {
                let text = |name| entry[name].to_string();
                [
                    text("record_id"),
                    text("pg_id"),
                    text("op_id"),
                    text("collective_seq_id"),
                    text("p2p_seq_id"),
                    text("is_p2p"),
                ]
                .join(" ")
            })
            .collect();
        assert_eq!(found, ["0 0 1 1 0 false", "1 1 2 2 0 false", "2 1 3 0 9 true", "3 0 4 4 0 false"]);
        assert_eq!(entries[1]["process_group"], serde_json::json!(["b", "undefined"]));
    }

    #[test]
    fn state_says_how_far_a_call_came() {
        use RecordState::{Called, Completed, Failed, Queued};
        for (state, expected, is_retired) in [
            (Called, "scheduled", false),
            (Queued, "started", false),
            (Failed, "started", false),
            (Completed, "completed", true),
        ] {
            let entries = entries(&[group("a", vec![Record { state, ..record(1, "reduce") }])]);
            assert_eq!(
                (entries[0]["state"].as_str(), entries[0]["retired"].as_bool()),
                (Some(expected), Some(is_retired))
            );
        }
    }
}
