//! The descriptors of operations, for observers, the CPU backend, the command-line tool and tests.

use crate::sys;

/// The descriptor of an operation: its method and C function, and the numbers of elements that ranks send and receive.
///
/// Every method that starts an operation has a descriptor. In-place forms have their own descriptors.
///
/// ```
/// use libnccl::observer::{Extent, Operation, Role};
///
/// let all_gather = Operation::ALL.iter().find(|operation| operation.name == "all_gather").unwrap();
/// assert_eq!(all_gather.function, "ncclAllGather");
/// assert_eq!((all_gather.sends, all_gather.receives), (Extent::Count, Extent::CountPerRank));
/// assert_eq!(all_gather.role, Role::All);
/// ```
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub struct Operation {
    /// The name of the method of [`Communicator`](crate::communicator::Communicator) that starts the operation.
    pub name: &'static str,
    /// The C function that the method calls. A method without a counterpart in NCCL, such as `all_gather_v`, may call it more
    /// than once.
    pub function: &'static str,
    /// The C function with options, such as `ncclAllReduceConfig`; `None` if the C function has no such variant.
    pub function_with_config: Option<&'static str>,
    /// The number of elements that a rank sends; only the root sends if [`role`](Self::role) is `RootSends`.
    pub sends: Extent,
    /// The number of elements that a rank receives; only the root receives if [`role`](Self::role) is `RootReceives`.
    pub receives: Extent,
    /// The ranks that send and receive.
    pub role: Role,
    /// Set if the operation combines elements of several ranks, for example by adding them.
    pub reduces: bool,
    /// Set if one buffer is both the send buffer and the receive buffer.
    pub is_in_place: bool,
    /// Set if a [simulation](crate::nccl::Nccl::simulate) can contain the operation. Other operations return an error in a
    /// simulation.
    // NCCL would start one-sided operations. It would keep sends and receives (from 2.29.2 on, also broadcasts) for the
    // communicator's next group (`ncclKernelPlanner::peers`), when their buffers may already be freed.
    pub is_simulated: bool,
    /// The names of the sent and the received buffer in errors.
    pub(crate) buffer_names: [&'static str; 2],
    /// The index in the table.
    number: u8,
}

/// A number of elements, relative to the operation's count.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Extent {
    /// No element.
    None,
    /// One element, independent of the count.
    One,
    /// As many elements as the operation's `count`.
    Count,
    /// The count times the number of ranks: one block for each rank, in rank order.
    CountPerRank,
    /// Separate counts, one for each rank. `send_recv` has one count to send and one to receive.
    Counts,
}

/// The ranks that send and receive in an operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Role {
    /// All ranks send and receive.
    All,
    /// Only the root sends.
    RootSends,
    /// Only the root receives.
    RootReceives,
    /// A point-to-point or one-sided operation, in which only this rank and its peers take part.
    PointToPoint,
}

impl Extent {
    /// Returns the number of elements, or 0 for [`Counts`](Self::Counts). Saturates at `usize::MAX`.
    #[doc(hidden)]
    pub const fn elements(self, count: usize, ranks: usize) -> usize {
        match self {
            Self::None | Self::Counts => 0,
            Self::One => 1,
            Self::Count => count,
            Self::CountPerRank => count.saturating_mul(ranks),
        }
    }
}

const fn row(name: &'static str, function: &'static str, sends: Extent, receives: Extent) -> Operation {
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
        buffer_names: match sends {
            Extent::None => ["the receive buffer"; 2],
            _ => ["the send buffer", "the receive buffer"],
        },
        number: 0,
    }
}

/// All operations; point-to-point and one-sided ones come last.
const TABLE: &[Operation] = &{
    use Extent::{Count, CountPerRank, Counts, None, One};
    use Role::{PointToPoint, RootReceives, RootSends};

    let all_reduce = row("all_reduce", "ncclAllReduce", Count, Count).or("ncclAllReduceConfig");
    let all_reduce = all_reduce.reduces().simulated();
    let broadcast = row("broadcast", "ncclBroadcast", Count, Count).or("ncclBroadcastConfig").with(RootSends);
    let reduce = row("reduce", "ncclReduce", Count, Count).or("ncclReduceConfig");
    let reduce = reduce.with(RootReceives).reduces().simulated();
    let all_gather = row("all_gather", "ncclAllGather", Count, CountPerRank).or("ncclAllGatherConfig");
    let all_gather = all_gather.simulated();
    let reduce_scatter = row("reduce_scatter", "ncclReduceScatter", CountPerRank, Count);
    let reduce_scatter = reduce_scatter.or("ncclReduceScatterConfig").reduces().simulated();
    let all_to_all = row("all_to_all", "ncclAlltoAll", CountPerRank, CountPerRank).or("ncclAlltoAllConfig");
    let gather = row("gather", "ncclGather", Count, CountPerRank).or("ncclGatherConfig").with(RootReceives);
    let scatter = row("scatter", "ncclScatter", CountPerRank, Count).or("ncclScatterConfig").with(RootSends);
    let all_gather_v = row("all_gather_v", "ncclBroadcast", Count, Counts).or("ncclBroadcastConfig");
    let reduce_scatter_v = row("reduce_scatter_v", "ncclReduce", Counts, Count);
    let reduce_scatter_v = reduce_scatter_v.or("ncclReduceConfig").reduces();
    let gather_v = row("gather_v", "ncclSend", Count, Counts).with(RootReceives);
    let scatter_v = row("scatter_v", "ncclSend", Counts, Count).with(RootSends);
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
        row("all_to_all_v", "ncclSend", Counts, Counts),
        gather_v,
        gather_v.in_place("gather_v_in_place"),
        scatter_v,
        scatter_v.in_place("scatter_v_in_place"),
        // NCCL has no barrier, and drops an operation without elements.
        Operation { sends: One, receives: One, ..all_reduce.in_place("barrier") },
        row("register_window", "ncclCommWindowRegister", None, None),
        row("send", "ncclSend", Count, None).with(PointToPoint),
        row("recv", "ncclRecv", None, Count).with(PointToPoint),
        row("send_recv", "ncclSend", Counts, Counts).with(PointToPoint),
        row("put_signal", "ncclPutSignal", Count, None).with(PointToPoint),
        row("signal", "ncclSignal", None, None).with(PointToPoint),
        row("wait_signal", "ncclWaitSignal", None, None).with(PointToPoint),
    ])
};

/// Sets the number of each descriptor.
const fn numbered<const N: usize>(mut rows: [Operation; N]) -> [Operation; N] {
    let mut number = 0;
    while number < N {
        rows[number].number = number as u8;
        number += 1;
    }
    rows
}

impl Operation {
    /// All operations.
    pub const ALL: &'static [Self] = TABLE;

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
        Self { name, is_in_place: true, buffer_names: ["the buffer"; 2], ..self }
    }
}

#[doc(hidden)]
impl Operation {
    /// Returns the operation with this name.
    ///
    /// # Panics
    /// Panics if there is none. In a constant, this is a compile error: `const { Operation::of("all_reduce") }`.
    pub const fn of(name: &str) -> &'static Self {
        let mut number = 0;
        while number < TABLE.len() {
            if sys::is_equal(TABLE[number].name.as_bytes(), name.as_bytes()) {
                return &TABLE[number];
            }
            number += 1;
        }
        panic!("there is no operation of this name")
    }

    /// Returns the operation that a single call of this C function performs, if any. For a function with one buffer, this is
    /// the in-place form.
    pub const fn of_function(function: &str) -> Option<&'static Self> {
        if sys::is_equal(function.as_bytes(), b"ncclBcast") {
            return Some(Self::of("broadcast_in_place"));
        }
        let mut number = 0;
        while number < TABLE.len() {
            let row = &TABLE[number];
            let is_named = match row.function_with_config {
                Some(name) if sys::is_equal(name.as_bytes(), function.as_bytes()) => true,
                _ => sys::is_equal(row.function.as_bytes(), function.as_bytes()),
            };
            if is_named && !matches!((row.sends, row.receives), (Extent::Counts, _) | (_, Extent::Counts)) {
                return Some(row);
            }
            number += 1;
        }
        None
    }

    /// Returns whether this is a point-to-point or one-sided operation. All ranks must call all other operations, in the same
    /// order.
    pub const fn is_point_to_point(&self) -> bool {
        matches!(self.role, Role::PointToPoint)
    }

    #[inline]
    pub const fn has_root(&self) -> bool {
        matches!(self.role, Role::RootSends | Role::RootReceives)
    }

    /// Returns the in-place form, if there is one.
    pub fn in_place_form(&self) -> Option<&'static Self> {
        // It comes next in the table.
        TABLE.get(self.number() + 1).filter(|next| next.is_in_place && !self.is_in_place)
    }

    /// Returns whether this rank uses its send buffer.
    #[inline]
    pub const fn is_sender(&self, is_root: bool) -> bool {
        !matches!(self.role, Role::RootSends) || is_root
    }

    /// Returns whether this rank uses its receive buffer.
    #[inline]
    pub const fn is_receiver(&self, is_root: bool) -> bool {
        !matches!(self.role, Role::RootReceives) || is_root
    }

    /// Returns the index of the operation in [`ALL`](Self::ALL).
    #[inline]
    pub const fn number(&self) -> usize {
        self.number as usize
    }
}
