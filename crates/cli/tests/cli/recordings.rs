//! Recordings in the library's format.

use serde_json::{Value, json};

/// Returns an operation, with the number of the collective if it is one.
pub(crate) fn call(number: u64, collective: Option<u64>, operation: &str, state: &str) -> Value {
    json!({
        "number": number, "collective": collective, "message": null, "operation": operation,
        "data_type": "float", "sent": 4, "received": 4, "peer": null, "source": null, "group": null,
        "site": { "file": "train.rs", "line": 10 + number % 1000, "column": 5 },
        "stream": 0, "queued_ns": 1_000_000 + 1000 * number, "completed_ns": null, "state": state,
    })
}

/// Returns a send to a peer, or a receive from it, which has the other number of elements.
pub(crate) fn message(number: u64, operation: &str, peer: usize, state: &str) -> Value {
    let mut record = with(call(number, None, operation, state), json!({ "peer": peer }));
    record[if operation == "send" { "received" } else { "sent" }] = json!(0);
    record
}

/// Returns the operations in a text, separated by blanks: `all_reduce` has completed, and `all_reduce?` was called. `>1` is a send to
/// rank 1, and `<1` a receive from it. Changed fields follow as a JSON object.
pub(crate) fn records(text: &str) -> Vec<Value> {
    let mut collectives = 0;
    let mut record = |(number, word): (u64, &str)| {
        let (name, changes) = word.split_at(word.find('{').unwrap_or(word.len()));
        let (name, state) = name.strip_suffix('?').map_or((name, "completed"), |name| (name, "called"));
        let record = match name.split_at(1) {
            (">", peer) => message(number, "send", peer.parse().unwrap(), state),
            ("<", peer) => message(number, "recv", peer.parse().unwrap(), state),
            _ => {
                collectives += 1;
                call(number, Some(collectives), name, state)
            }
        };
        if changes.is_empty() { record } else { with(record, serde_json::from_str(changes).unwrap()) }
    };
    (1..).zip(text.split_whitespace()).map(&mut record).collect()
}

/// Returns an object with changed fields.
pub(crate) fn with(mut object: Value, changes: Value) -> Value {
    for (name, value) in changes.as_object().unwrap() {
        object[name] = value.clone();
    }
    object
}

pub(crate) fn communicator(id: &str, rank: usize, size: usize, records: &[Value]) -> Value {
    json!({ "id": id, "name": null, "rank": rank, "size": size, "records": records })
}

/// Returns the recording of a process with these communicators.
pub(crate) fn recording(process: usize, communicators: &[Value]) -> Value {
    json!({
        "format": "libnccl recorder", "version": 1, "reason": "timeout", "time_ns": 2_000_000,
        "process": 100 + process, "nccl": "2.32.3", "communicators": communicators,
    })
}
