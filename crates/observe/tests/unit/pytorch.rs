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
            [&entry["profiling_name"], &entry["input_sizes"], &entry["output_sizes"]]
                .map(ToString::to_string)
                .join(" ")
        })
        .collect();
    let expected = [
        r#""nccl:all_reduce" [[6]] [[2]]"#,
        r#""nccl:_reduce_scatter_base" [[6]] [[2]]"#,
        r#""nccl:all_to_all" [[6]] [[2]]"#,
        r#""nccl:send 1->0" [[6]] [[2]]"#,
        r#""nccl:recv 1<-2" [[6]] [[2]]"#,
        r#""nccl:send 1->2" [[6]] [[0]]"#,
        r#""nccl:recv 1<-0" [[0]] [[2]]"#,
    ];
    assert_eq!(found, expected);
}

#[test]
fn entries_of_several_communicators_are_in_the_order_of_their_calls() {
    let first = vec![record(1, "broadcast"), record(4, "broadcast")];
    let message = Record { message: Some(9), collective: None, peer: Some(0), ..record(3, "send") };
    let second = vec![record(2, "all_gather"), message];
    let entries = entries(&[group("a", first), group("b", second)]);
    let names = ["record_id", "pg_id", "op_id", "collective_seq_id", "p2p_seq_id", "is_p2p"];
    let found: Vec<_> =
        entries.iter().map(|entry| names.map(|name| entry[name].to_string()).join(" ")).collect();
    assert_eq!(found, ["0 0 1 1 0 false", "1 1 2 2 0 false", "2 1 3 0 9 true", "3 0 4 4 0 false"]);
    assert_eq!(entries[1]["process_group"], serde_json::json!(["b", "undefined"]));
}

#[test]
fn state_says_how_far_a_call_came() {
    use RecordState::{Called, Completed, Failed, Queued};
    for (state, expected) in
        [(Called, "scheduled"), (Queued, "started"), (Failed, "started"), (Completed, "completed")]
    {
        let entries = entries(&[group("a", vec![Record { state, ..record(1, "reduce") }])]);
        assert_eq!(
            (&entries[0]["state"], &entries[0]["retired"]),
            (&expected.into(), &(state == Completed).into())
        );
    }
}
