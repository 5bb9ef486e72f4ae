//! The table of operations: the only place that knows the shape of each.

use crate::{Version, sys};

/// An operation of communicators: the numbers of elements that its ranks send and receive.
///
/// Each method that starts an operation has one, an operation in place and one of NCCL's functions with options included.
///
/// ```
/// use libnccl::{Extent, Operation, Role};
///
/// let all_gather = Operation::of("all_gather");
/// assert_eq!(all_gather.function, "ncclAllGather");
/// assert_eq!((all_gather.sends, all_gather.receives), (Extent::Count, Extent::CountPerRank));
/// assert_eq!(all_gather.receives.elements(10, 4), 40);
///
/// let with_root = Operation::ALL.iter().filter(|operation| operation.role == Role::RootSends);
/// assert!(with_root.map(|operation| operation.name).eq([
///     "broadcast", "broadcast_in_place", "scatter", "scatter_in_place", "scatter_v", "scatter_v_in_place",
/// ]));
/// ```
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub struct Operation {
    /// The method of [`Communicator`](crate::Communicator).
    pub name: &'static str,
    /// NCCL's function, which is called more than once for an operation that NCCL lacks.
    pub function: &'static str,
    /// Its form with options, if there is one.
    pub function_with_config: Option<&'static str>,
    /// The elements that a rank sends; only the root, where [`role`](Self::role) says so.
    pub sends: Extent,
    /// The elements that a rank receives; only the root, where [`role`](Self::role) says so.
    pub receives: Extent,
    /// The part of the ranks.
    pub role: Role,
    /// `true` if elements are combined.
    pub reduces: bool,
    /// `true` if one buffer has what is sent and what is received.
    pub is_in_place: bool,
    /// `true` if a [simulation](crate::Nccl::simulate) can have it. NCCL sends and receives nothing in one, but keeps the
    /// messages for the next group of the communicator (`ncclKernelPlanner::peers`), whose buffers they may outlive; from
    /// 2.29.2 on it does so with broadcasts too. It starts one-sided operations.
    pub is_simulated: bool,
    /// The call that it makes.
    pub(crate) call: CallKind,
    /// The place in the table.
    number: u8,
}

/// The calls that operations make.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum CallKind {
    /// One with a count, which is checked as its row says.
    Collective(Collective),
    AllGatherV,
    ReduceScatterV,
    AllToAllV,
    GatherV,
    ScatterV,
    Send,
    Recv,
    SendRecv,
    PutSignal,
    Signal,
    WaitSignal,
    RegisterWindow,
}

/// The collectives with one count.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Collective {
    AllReduce,
    Broadcast,
    Reduce,
    AllGather,
    ReduceScatter,
    AllToAll,
    Gather,
    Scatter,
}

/// A number of elements, as a multiple of the count.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Extent {
    /// No element.
    None,
    /// One, whatever the count is.
    One,
    /// The count.
    Count,
    /// The count for each rank, in the order of the ranks.
    CountPerRank,
    /// Counts of its own: one for each rank, or that of the other side of an exchange.
    Counts,
}

/// The part of the ranks in an operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Role {
    /// All send and receive.
    All,
    /// Only the root sends.
    RootSends,
    /// Only the root receives.
    RootReceives,
    /// Only the ranks that exchange a message, or a signal, take part.
    Message,
}

impl Extent {
    /// Returns the number of elements, of [`Counts`](Self::Counts) 0; the largest `usize` if it is beyond that.
    #[must_use]
    pub const fn elements(self, count: usize, ranks: usize) -> usize {
        match self {
            Self::None | Self::Counts => 0,
            Self::One => 1,
            Self::Count => count,
            Self::CountPerRank => count.saturating_mul(ranks),
        }
    }
}

const fn row(
    name: &'static str,
    call: CallKind,
    function: &'static str,
    sends: Extent,
    receives: Extent,
) -> Operation {
    Operation {
        name,
        function,
        function_with_config: None,
        sends,
        receives,
        role: Role::All,
        reduces: false,
        is_in_place: false,
        is_simulated: false,
        call,
        number: 0,
    }
}

/// The operations, those of messages last.
const TABLE: &[Operation] = &{
    use CallKind as Call;
    use Extent::{Count, CountPerRank, Counts, None, One};
    use Role::{Message, RootReceives, RootSends};

    let all_reduce =
        row("all_reduce", Call::Collective(Collective::AllReduce), "ncclAllReduce", Count, Count)
            .or("ncclAllReduceConfig")
            .reduces()
            .simulated();
    let broadcast = row("broadcast", Call::Collective(Collective::Broadcast), "ncclBroadcast", Count, Count)
        .or("ncclBroadcastConfig")
        .with(RootSends);
    let reduce = row("reduce", Call::Collective(Collective::Reduce), "ncclReduce", Count, Count)
        .or("ncclReduceConfig")
        .with(RootReceives)
        .reduces()
        .simulated();
    let all_gather =
        row("all_gather", Call::Collective(Collective::AllGather), "ncclAllGather", Count, CountPerRank)
            .or("ncclAllGatherConfig")
            .simulated();
    let reduce_scatter = row(
        "reduce_scatter",
        Call::Collective(Collective::ReduceScatter),
        "ncclReduceScatter",
        CountPerRank,
        Count,
    )
    .or("ncclReduceScatterConfig")
    .reduces()
    .simulated();
    let all_to_all =
        row("all_to_all", Call::Collective(Collective::AllToAll), "ncclAlltoAll", CountPerRank, CountPerRank)
            .or("ncclAlltoAllConfig");
    let gather = row("gather", Call::Collective(Collective::Gather), "ncclGather", Count, CountPerRank)
        .or("ncclGatherConfig")
        .with(RootReceives);
    let scatter = row("scatter", Call::Collective(Collective::Scatter), "ncclScatter", CountPerRank, Count)
        .or("ncclScatterConfig")
        .with(RootSends);
    let all_gather_v =
        row("all_gather_v", Call::AllGatherV, "ncclBroadcast", Count, Counts).or("ncclBroadcastConfig");
    let reduce_scatter_v = row("reduce_scatter_v", Call::ReduceScatterV, "ncclReduce", Counts, Count)
        .or("ncclReduceConfig")
        .reduces();
    let gather_v = row("gather_v", Call::GatherV, "ncclSend", Count, Counts).with(RootReceives);
    let scatter_v = row("scatter_v", Call::ScatterV, "ncclSend", Counts, Count).with(RootSends);
    numbered([
        all_reduce,
        all_reduce.in_place("all_reduce_in_place"),
        broadcast,
        broadcast.in_place("broadcast_in_place"),
        reduce,
        reduce.in_place("reduce_in_place"),
        all_gather,
        all_gather.in_place("all_gather_in_place"),
        reduce_scatter,
        reduce_scatter.in_place("reduce_scatter_in_place"),
        all_to_all,
        gather,
        gather.in_place("gather_in_place"),
        scatter,
        scatter.in_place("scatter_in_place"),
        all_gather_v,
        all_gather_v.in_place("all_gather_v_in_place"),
        reduce_scatter_v,
        reduce_scatter_v.in_place("reduce_scatter_v_in_place"),
        row("all_to_all_v", Call::AllToAllV, "ncclSend", Counts, Counts),
        gather_v,
        gather_v.in_place("gather_v_in_place"),
        scatter_v,
        scatter_v.in_place("scatter_v_in_place"),
        // NCCL has none, and drops an operation without elements.
        row("barrier", Call::Collective(Collective::AllReduce), "ncclAllReduce", One, One)
            .or("ncclAllReduceConfig")
            .reduces()
            .simulated()
            .in_place("barrier"),
        row("register_window", Call::RegisterWindow, "ncclCommWindowRegister", None, None),
        row("send", Call::Send, "ncclSend", Count, None).with(Message),
        row("recv", Call::Recv, "ncclRecv", None, Count).with(Message),
        row("sendrecv", Call::SendRecv, "ncclSend", Counts, Counts).with(Message),
        row("put_signal", Call::PutSignal, "ncclPutSignal", Count, None).with(Message),
        row("signal", Call::Signal, "ncclSignal", None, None).with(Message),
        row("wait_signal", Call::WaitSignal, "ncclWaitSignal", None, None).with(Message),
    ])
};

const fn numbered<const N: usize>(mut rows: [Operation; N]) -> [Operation; N] {
    let mut number = 0;
    while number < N {
        rows[number].number = number as u8;
        number += 1;
    }
    rows
}

/// The rows are written with these.
impl Operation {
    const fn or(self, function_with_config: &'static str) -> Self {
        Self { function_with_config: Some(function_with_config), ..self }
    }

    const fn with(self, role: Role) -> Self {
        Self { role, ..self }
    }

    const fn reduces(self) -> Self {
        Self { reduces: true, ..self }
    }

    const fn simulated(self) -> Self {
        Self { is_simulated: true, ..self }
    }

    const fn in_place(self, name: &'static str) -> Self {
        Self { name, is_in_place: true, ..self }
    }
}

impl Operation {
    /// All operations.
    pub const ALL: &'static [Self] = TABLE;

    /// Returns the operation of this name.
    ///
    /// # Panics
    /// If there is none. In a constant, that is an error of the compiler: `const { Operation::of("all_reduce") }`.
    #[must_use]
    pub const fn of(name: &str) -> &'static Self {
        match Self::number_of(name) {
            Some(number) => &TABLE[number],
            None => panic!("there is no operation of this name"),
        }
    }

    /// Returns the first examined release whose library has the [function](Self::function).
    ///
    /// ```
    /// use libnccl::Operation;
    ///
    /// assert_eq!(Operation::of("put_signal").since().to_string(), "2.29.2");
    /// ```
    #[must_use]
    pub const fn since(&self) -> Version {
        match sys::since(self.function) {
            Some(code) => Version::from_code(code),
            None => panic!("every function has a release"),
        }
    }

    /// Returns `true` if only those that exchange a message take part; the others are operations of all ranks, which call
    /// them in the same order.
    #[must_use]
    pub const fn is_message(&self) -> bool {
        matches!(self.role, Role::Message)
    }

    /// Returns `true` if the ranks give a root.
    #[inline]
    #[must_use]
    pub const fn has_root(&self) -> bool {
        matches!(self.role, Role::RootSends | Role::RootReceives)
    }

    /// Returns the operation that does the same in one buffer, if there is one.
    ///
    /// ```
    /// use libnccl::Operation;
    ///
    /// let form = Operation::of("reduce").in_place_form();
    /// assert_eq!(form.map(|form| form.name), Some("reduce_in_place"));
    /// assert!(Operation::of("all_to_all").in_place_form().is_none());
    /// ```
    #[must_use]
    pub fn in_place_form(&self) -> Option<&'static Self> {
        Self::ALL.iter().find(|form| form.name.strip_suffix("_in_place") == Some(self.name))
    }

    /// Returns `true` if this rank uses its send buffer.
    #[inline]
    #[must_use]
    pub const fn is_sender(&self, is_root: bool) -> bool {
        !matches!(self.role, Role::RootSends) || is_root
    }

    /// Returns `true` if this rank uses its receive buffer.
    #[inline]
    #[must_use]
    pub const fn is_receiver(&self, is_root: bool) -> bool {
        !matches!(self.role, Role::RootReceives) || is_root
    }

    /// Returns `true` if the length of the send buffer gives the count, else it is that of the receive buffer: of the one that
    /// every rank uses, and of two, of that for one rank.
    #[must_use]
    pub const fn is_counted_by_send(&self) -> bool {
        match self.role {
            Role::RootSends => false,
            Role::RootReceives => true,
            _ => !matches!(
                (self.sends, self.receives),
                (Extent::CountPerRank | Extent::Counts, Extent::Count) | (Extent::None, _)
            ),
        }
    }

    /// Returns the numbers of elements that a rank sends and receives, or would as the root. Those that have
    /// [counts of their own](Extent::Counts) are 0, those beyond `usize` are its largest value.
    ///
    /// ```
    /// use libnccl::Operation;
    ///
    /// assert_eq!(Operation::of("reduce_scatter").elements(10, 4), [40, 10]);
    /// assert_eq!(Operation::of("recv").elements(10, 4), [0, 10]);
    /// ```
    #[must_use]
    pub const fn elements(&self, count: usize, ranks: usize) -> [usize; 2] {
        [self.sends.elements(count, ranks), self.receives.elements(count, ranks)]
    }

    /// Returns its place in the table.
    #[inline(always)]
    pub(crate) const fn number(&self) -> u8 {
        self.number
    }

    const fn number_of(name: &str) -> Option<usize> {
        let mut number = 0;
        while number < TABLE.len() {
            if sys::is_equal(TABLE[number].name.as_bytes(), name.as_bytes()) {
                return Some(number);
            }
            number += 1;
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::Operation;

    #[test]
    fn names_differ_and_messages_come_last() {
        for (number, operation) in Operation::ALL.iter().enumerate() {
            assert_eq!(usize::from(Operation::of(operation.name).number()), number, "{}", operation.name);
        }
        assert!(Operation::ALL.is_sorted_by_key(Operation::is_message));
    }
}
