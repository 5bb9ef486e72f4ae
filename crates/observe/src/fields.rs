use libnccl::OperationStart;

/// The fields of an operation in spans and logs, with the names of its [`Record`](crate::Record), its communicator and its rank.
#[derive(Debug)]
pub(super) struct Fields {
    pub(super) number: u64,
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
    pub(super) fn new(start: &OperationStart<'_>) -> Self {
        let communicator = start.communicator();
        Self {
            number: start.number(),
            data_type: start.data_type().map(|data_type| data_type.to_string()),
            sent: start.sent(),
            received: start.received(),
            peer: start.peer(),
            source: start.source(),
            communicator: communicator.id.map(|id| id.to_string()),
            rank: communicator.rank,
            size: communicator.size,
        }
    }
}
