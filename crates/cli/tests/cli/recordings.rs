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

pub(crate) fn done(number: u64, operation: &str) -> Value {
    call(number, Some(number), operation, "completed")
}

pub(crate) fn waiting(number: u64, operation: &str) -> Value {
    call(number, Some(number), operation, "called")
}

pub(crate) fn send(number: u64, peer: usize, state: &str) -> Value {
    with(call(number, None, "send", state), json!({ "peer": peer, "received": 0 }))
}

pub(crate) fn recv(number: u64, peer: usize, state: &str) -> Value {
    with(call(number, None, "recv", state), json!({ "peer": peer, "sent": 0 }))
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
