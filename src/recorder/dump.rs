use std::process;
use std::time::{SystemTime, UNIX_EPOCH};

use super::document::Document;
use super::record::{Place, Record, records};
use super::ring::Ring;
use crate::MemorySpace;

/// A communicator in the dump of a process.
#[derive(Debug)]
pub(crate) struct CommunicatorDump<'a> {
    pub(crate) id: Option<u64>,
    pub(crate) name: Option<String>,
    pub(crate) place: Place,
    pub(crate) memory_space: MemorySpace,
    pub(crate) is_ended: bool,
    pub(crate) is_failed: bool,
    pub(crate) ring: Option<&'a Ring>,
}

impl CommunicatorDump<'_> {
    pub(crate) fn to_document(&self) -> Document {
        let Self { place, ring, .. } = self;
        let state = match () {
            () if self.is_ended => "ended",
            () if self.is_failed => "failed",
            () if place.is_inside => "in a call",
            () => "idle",
        };
        let records = ring.map_or_else(Vec::new, |ring| records(ring, *place));
        Document::object([
            ("id", self.id.map(|id| format!("{id:016x}")).into()),
            ("name", self.name.clone().into()),
            ("size", place.size.into()),
            ("rank", place.rank.into()),
            ("memory", self.memory_space.to_string().into()),
            ("state", state.into()),
            ("capacity", ring.map_or(0, Ring::capacity).into()),
            ("count", ring.map_or(0, Ring::count).into()),
            ("records", Document::List(records.iter().map(Record::to_document).collect())),
        ])
    }
}

/// Returns the dump of this process: the release of its NCCL, and its communicators.
pub(crate) fn process_document(reason: &str, nccl: Option<String>, communicators: Vec<Document>) -> Document {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_nanos() as u64);
    Document::object([
        ("format", "libnccl recorder".into()),
        ("version", 1_u64.into()),
        ("reason", reason.into()),
        ("time_ns", now.into()),
        ("process", process::id().into()),
        ("nccl", nccl.into()),
        ("communicators", Document::List(communicators)),
    ])
}
