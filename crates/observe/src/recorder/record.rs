use std::panic::Location;

use super::document::Document;
use super::ring::{Read, Ring};
use libnccl::DataType;
use libnccl::observer::Operation;

/// A recorded operation of a communicator. See [`Recorder`](crate::Recorder).
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Record {
    /// The number of the operation among its communicator's operations. Counting starts at 1 when the communicator gets its first
    /// observer.
    pub number: u64,
    /// The position of a collective in the sequence of its communicator's recorded collectives, counted from 1. It is the same on
    /// all ranks if all of them began recording at the same call. `None` for a point-to-point operation. Also `None` if the rank
    /// started operations so quickly that the position could not be determined.
    pub collective: Option<u64>,
    /// The position of a point-to-point operation (`send`, `recv`, `send_recv`, one-sided operations) in the sequence of this
    /// rank's recorded point-to-point operations, counted from 1. `None` for a collective. Also `None` if the position could not
    /// be determined; see [`collective`](Self::collective).
    pub message: Option<u64>,
    /// The name of the method, such as `all_reduce_in_place`.
    pub operation: &'static str,
    /// The type of the elements; `None` if the operation has no elements.
    pub data_type: Option<DataType>,
    /// The number of elements that this rank sends, or would send if it were the root. Surplus elements of a buffer do not count,
    /// except in operations with separate counts for each rank, such as `all_to_all_v`.
    pub sent: u64,
    /// The number of elements that this rank receives, or would receive if it were the root; see [`sent`](Self::sent).
    pub received: u64,
    /// The root of a collective, or the peer of a point-to-point operation; for `send_recv`, the destination.
    pub peer: Option<usize>,
    /// The rank from which a `send_recv` receives.
    pub source: Option<usize>,
    /// The [`number`](Self::number) of the first operation in the same group; `None` outside a group, or if newer records have
    /// overwritten the record of that operation.
    pub group: Option<u64>,
    /// The call site, if it is known.
    pub site: Option<&'static Location<'static>>,
    /// The address of the stream, 0 for the default stream.
    pub stream: usize,
    /// The time of the call, in nanoseconds since 1970.
    pub queued: u64,
    /// The time at which [`synchronize`](libnccl::Communicator::synchronize) or [`wait_for`](libnccl::Communicator::wait_for)
    /// found the stream complete, in nanoseconds since 1970.
    pub completed: Option<u64>,
    /// The state of the operation.
    pub state: RecordState,
}

/// The state of a recorded operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum RecordState {
    /// The call has not returned, or its group has not ended.
    Called,
    /// The call has returned, but its work on the GPU may not be complete.
    Queued,
    /// The work is complete.
    Completed,
    /// The call, or its group, returned an error.
    Failed,
}

impl RecordState {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Called => "called",
            Self::Queued => "queued",
            Self::Completed => "completed",
            Self::Failed => "failed",
        }
    }
}

/// Returns the records of a ring, the oldest first. Operations on host memory complete before their calls return.
pub(super) fn records(ring: &Ring, is_host: bool) -> Vec<Record> {
    let mut group = None;
    let to_record = |read: &Read| {
        let operation = read.call.operation();
        group = match (read.call.is_grouped(), read.call.is_first_of_group()) {
            (true, true) => Some(read.number),
            (true, false) => group,
            (false, _) => None,
        };
        let [peer, source] = read.call.ranks();
        let [sent, received] = read.elements;
        let state = match read.completed {
            Some(_) => RecordState::Completed,
            None if read.has_failed => RecordState::Failed,
            None if read.is_inside => RecordState::Called,
            None if is_host => RecordState::Completed,
            None => RecordState::Queued,
        };
        Record {
            number: read.number,
            collective: read.own_number.filter(|_| !operation.is_point_to_point()),
            message: read.own_number.filter(|_| operation.is_point_to_point()),
            operation: operation.name,
            data_type: read.call.data_type(),
            sent,
            received,
            peer,
            source,
            group,
            site: read.site,
            stream: read.stream,
            queued: read.queued,
            completed: read.completed,
            state,
        }
    };
    ring.read().iter().map(to_record).collect()
}

impl Record {
    /// Returns the record, with the name of the C function if `is_of_c`.
    pub(crate) fn to_document(&self, is_of_c: bool) -> Document {
        let site = self.site.map(|site| {
            Document::object([
                ("file", site.file().into()),
                ("line", site.line().into()),
                ("column", site.column().into()),
            ])
        });
        let function = is_of_c.then(|| ("function", Operation::of(self.operation).function.into()));
        let entries = [
            ("number", self.number.into()),
            ("collective", self.collective.into()),
            ("message", self.message.into()),
            ("operation", self.operation.into()),
            ("data_type", self.data_type.map(|data_type| data_type.to_string()).into()),
            ("sent", self.sent.into()),
            ("received", self.received.into()),
            ("peer", self.peer.into()),
            ("source", self.source.into()),
            ("group", self.group.into()),
            ("site", site.unwrap_or(Document::Null)),
            ("stream", self.stream.into()),
            ("queued_ns", self.queued.into()),
            ("completed_ns", self.completed.into()),
            ("state", self.state.name().into()),
        ];
        Document::object(entries.into_iter().chain(function))
    }
}
