//! The two words in which a rank publishes a call, and the check that all ranks made the same calls.
//!
//! As in NCCL, a collective of count 0 returns immediately, without waiting for other ranks. If only some ranks make such a call,
//! their later calls no longer match, although they may look equal. Each rank therefore counts its calls of count 0 and publishes
//! the number with its next call.
//!
//! In a short collective with a root, a rank waits only for the ranks whose inputs it needs, and compares its call only with
//! theirs. Each rank therefore publishes a digest of these calls with its next calls. The digest is compared at the latest [when
//! the rank leaves](leaving).

use std::fmt;
use std::ops::Range;
use std::sync::atomic::Ordering::SeqCst;

use cuda_common::finding::Finding;
use libnccl::observer::Operation;

use crate::diag::debug::Subsystem;
use crate::diag::error::Error;
use crate::reduce::data_type::{self, DataType};
use crate::reduce::reduction;
use crate::shm::buffer::BufferRange;
use crate::shm::call_context::CallContext;
use crate::shm::shared_state::{EARLIER_CALLS, EMPTY_CALLS, SharedState, UNAWAITED};
use crate::sync::primitive::fence;

/// The header of a call. Numbers that come from other ranks may have any value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum CallHeader {
    Collective {
        function: Function,
        data_type: u8,
        /// [`NO_REDUCTION`](Self::NO_REDUCTION) if the function does not reduce.
        reduction: u8,
        /// 0 if the function has no root.
        root: u32,
        count: u64,
        /// Set if a collective on the same communicator precedes this one in its group, as NCCL launches these together.
        is_grouped: bool,
    },
    /// A point-to-point or one-sided call. Not compared between ranks, only reported and logged.
    PointToPoint {
        call: PeerCall,
        /// [`NO_DATA_TYPE`](Self::NO_DATA_TYPE) if `count` is in bytes.
        data_type: u8,
        peer: u32,
        count: u64,
    },
    Control {
        call: ControlCall,
        /// Number of bytes that each rank contributes.
        length: u64,
    },
    Unknown {
        number: u64,
    },
}

/// Calls that exchange control data. All ranks make them in the same order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ControlCall {
    Split,
    Grow,
    Suspend,
    Resume,
    RegisterWindow,
    /// The exchange of devices and arguments, in `ncclCommInitRank` and the other functions that create communicators.
    Arguments,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PeerCall {
    Send,
    Recv,
    PutSignal,
    Signal,
    WaitSignal,
}

/// The calls that name a peer, by number, with their function names.
const PEER_CALLS: [(PeerCall, &str); 5] = [
    (PeerCall::Send, "ncclSend"),
    (PeerCall::Recv, "ncclRecv"),
    (PeerCall::PutSignal, "ncclPutSignal"),
    (PeerCall::Signal, "ncclSignal"),
    (PeerCall::WaitSignal, "ncclWaitSignal"),
];
const CONTROL_CALLS: [(ControlCall, &str); 6] = [
    (ControlCall::Split, "ncclCommSplit"),
    (ControlCall::Grow, "ncclCommGrow"),
    (ControlCall::Suspend, "ncclCommSuspend"),
    (ControlCall::Resume, "ncclCommResume"),
    (ControlCall::RegisterWindow, "ncclCommWindowRegister"),
    (ControlCall::Arguments, "ncclCommInitRank"),
];

/// Flag of a [grouped](CallHeader::Collective::is_grouped) collective. No data type has this bit.
const GROUPED: u8 = 0x80;

/// The number of the first call that names a peer, above the numbers of collectives.
const FIRST_PEER_CALL: u8 = 0x40;

/// The number of the first control call, above the numbers of all other calls.
const FIRST_CONTROL_CALL: u64 = 0x80;

impl CallHeader {
    pub(crate) const NO_REDUCTION: u8 = 0xff;
    const NO_DATA_TYPE: u8 = 0xff;

    pub(crate) fn of_elements(call: PeerCall, peer: usize, data_type: DataType, count: usize) -> Self {
        let data_type = data_type.raw().0 as u8;
        Self::PointToPoint { call, data_type, peer: peer as u32, count: count as u64 }
    }

    pub(crate) fn of_bytes(call: PeerCall, peer: usize, bytes: usize) -> Self {
        Self::PointToPoint { call, data_type: Self::NO_DATA_TYPE, peer: peer as u32, count: bytes as u64 }
    }

    #[inline]
    pub(crate) fn encode(self) -> [u64; 2] {
        match self {
            Self::Collective { function, data_type, reduction, root, count, is_grouped } => {
                let data_type = data_type | u8::from(is_grouped) << GROUPED.trailing_zeros();
                let head = u64::from_le_bytes([function.number(), data_type, reduction, 0, 0, 0, 0, 0]);
                [head | u64::from(root) << 32, count]
            }
            Self::PointToPoint { call, data_type, peer, count } => {
                let number = FIRST_PEER_CALL + call as u8;
                let head = u64::from_le_bytes([number, data_type, 0, 0, 0, 0, 0, 0]);
                [head | u64::from(peer) << 32, count]
            }
            Self::Control { call, length } => [FIRST_CONTROL_CALL + call as u64, length],
            Self::Unknown { number } => [number, 0],
        }
    }

    pub(crate) fn running(state: &SharedState, rank: usize) -> Option<Self> {
        let (call, runs) = state.last_call(rank);
        runs.then(|| Self::decode(call))
    }

    pub(crate) fn decode([head, count]: [u64; 2]) -> Self {
        let [number, data_type, reduction, ..] = head.to_le_bytes();
        if let Some(function) = Function::from_number(number) {
            let (data_type, is_grouped) = (data_type & !GROUPED, data_type & GROUPED != 0);
            let root = (head >> 32) as u32;
            return Self::Collective { function, data_type, reduction, root, count, is_grouped };
        }
        let index = number.checked_sub(FIRST_PEER_CALL).map(usize::from);
        if let Some((call, _)) = index.and_then(|index| PEER_CALLS.get(index)) {
            return Self::PointToPoint { call: *call, data_type, peer: (head >> 32) as u32, count };
        }
        let index = head.checked_sub(FIRST_CONTROL_CALL).and_then(|index| usize::try_from(index).ok());
        match index.and_then(|index| CONTROL_CALLS.get(index)) {
            Some((call, _)) => Self::Control { call: *call, length: count },
            None => Self::Unknown { number: head },
        }
    }

    pub(crate) fn subsystem(self) -> Subsystem {
        match self {
            Self::PointToPoint { .. } => Subsystem::PointToPoint,
            _ => Subsystem::Collective,
        }
    }

    /// Returns the log line of the call in NCCL's format: data types and reductions are logged as numbers, and a peer as the
    /// root. Addresses are this rank's. For a put, a send or a receive, the address of the other rank's buffer is logged as 0.
    pub(crate) fn log_line(
        self,
        [send, recv]: [BufferRange; 2],
        comm: usize,
        context: CallContext<'_>,
        stream: usize,
    ) -> String {
        const NONE: u8 = CallHeader::NO_REDUCTION;
        let number = |number: u8| if number == NONE { 0 } else { number };
        let (count, data_type, reduction, root) = match self {
            Self::Collective { data_type, reduction, root, count, .. } => {
                (count, data_type, number(reduction), root)
            }
            Self::PointToPoint { data_type, peer, count, .. } => (count, number(data_type), 0, peer),
            Self::Control { length: count, .. } | Self::Unknown { number: count } => (count, 0, 0, 0),
        };
        let (name, calls) = (self.name().trim_start_matches("nccl"), context.state.calls(context.rank));
        let is_put = matches!(self, Self::PointToPoint { call: PeerCall::PutSignal, .. });
        let (send, recv) = (send.start, if is_put { 0 } else { recv.start });
        format!(
            "{name}: opCount {calls:x} sendbuff {send:#x} recvbuff {recv:#x} count {count} datatype {data_type} \
             op {reduction} root {root} comm {comm:#x} [nranks={}] stream {stream:#x}",
            context.state.ranks()
        )
    }

    fn name(self) -> &'static str {
        match self {
            Self::Collective { function, .. } => function.symbol(),
            Self::PointToPoint { call, .. } => PEER_CALLS[call as usize].1,
            Self::Control { call, .. } => CONTROL_CALLS[call as usize].1,
            Self::Unknown { .. } => "a function",
        }
    }

    /// Returns the name of a buffer argument by its index. The send buffer comes first.
    pub(crate) fn buffer_name(self, index: usize) -> &'static str {
        match self {
            Self::PointToPoint { call: PeerCall::Send, .. } => "sendbuff",
            Self::PointToPoint { call: PeerCall::Recv, .. } => "recvbuff",
            Self::PointToPoint { .. } => ["localbuff", "the peer's window"][index],
            Self::Control { .. } | Self::Unknown { .. } => "the buffer",
            Self::Collective { .. } => ["sendbuff", "recvbuff"][index],
        }
    }

    pub(crate) fn describe_difference(self, other: Self) -> String {
        if self.name() != other.name() {
            return "the ranks called different functions".into();
        }
        let numbers = |header| match header {
            Self::Collective { data_type, reduction, root, count, .. } => {
                [count, data_type.into(), reduction.into(), root.into()]
            }
            _ => [0; 4],
        };
        let is_grouped = |header| matches!(header, Self::Collective { is_grouped: true, .. });
        let (own, others) = (numbers(self), numbers(other));
        let all = ["counts", "data types", "reductions", "roots"].into_iter().zip(own).zip(others);
        let mut differing: Vec<&str> =
            all.filter_map(|((what, own), other)| (own != other).then_some(what)).collect();
        let name = self.name();
        if differing.is_empty() && is_grouped(self) != is_grouped(other) {
            return format!(
                "some of the ranks called {name} in one group with the collective before it, and the others did not"
            );
        }
        if differing.is_empty() {
            differing.push("arguments");
        }
        format!("the ranks called {name} with different {}", differing.join(" and "))
    }
}

/// Formats the call as in C source.
impl fmt::Display for CallHeader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Collective { function, data_type, reduction, root, count, .. } => {
                let operation = function.shape().operation;
                write!(f, "{}(count {count}, {}", operation.function, data_type::name(data_type.into()))?;
                if operation.reduces {
                    write!(f, ", {}", reduction::name(reduction.into()))?;
                }
                if operation.has_root() {
                    write!(f, ", root {root}")?;
                }
                f.write_str(")")
            }
            Self::PointToPoint { data_type, peer, count, .. } => {
                f.write_str(self.name())?;
                match data_type {
                    Self::NO_DATA_TYPE if count == 0 => write!(f, "(peer {peer})"),
                    Self::NO_DATA_TYPE => write!(f, "({count} bytes, peer {peer})"),
                    _ => write!(f, "(count {count}, {}, peer {peer})", data_type::name(data_type.into())),
                }
            }
            Self::Control { .. } => f.write_str(self.name()),
            Self::Unknown { number } => write!(f, "function {number}"),
        }
    }
}

/// Number of previous steps whose records may still exist.
const KNOWN_STEPS: u64 = 7;

/// Returns the words that `rank` publishes for a call. The other ranks compare them.
#[inline]
pub(crate) fn call_args(state: &SharedState, rank: usize, header: CallHeader) -> [u64; 2] {
    let [head, count] = header.encode();
    [head | state.earlier_calls(rank) & EARLIER_CALLS, count]
}

/// Returns the error of a step in which `rank` and `ranks` [did not all make](SharedState::all_made) the same call.
#[cold]
#[inline(never)]
pub(crate) fn difference(state: &SharedState, rank: usize, step: u64, ranks: Range<usize>) -> Error {
    let (first, are_all) = (ranks.start, ranks.len() == state.ranks());
    let mut others = ranks.chain([rank]);
    let differs = |other: &usize| state.call_args(*other, step) != state.call_args(first, step);
    let other = others.find(differs).unwrap_or(rank);
    let args = |rank| state.call_args(rank, step);
    let ([one, _], [two, _]) = (args(first), args(other));
    let differed = (one ^ two) & UNAWAITED != 0;
    let mistake = describe_empty_calls(state, step, first, other)
        .or_else(|| {
            let unawaited = || match find_unawaited(state, step - 1, first, other) {
                Some((firsts, others)) => {
                    format!("before this call, rank {other} called {others}, and rank {first} {firsts}")
                }
                None => format!("before this call, rank {first} and rank {other} called different functions"),
            };
            differed.then(unawaited)
        })
        .unwrap_or_else(|| decode(args(first)).describe_difference(decode(args(other))));
    if are_all {
        state.forget_unawaited_calls(rank);
    }
    Error::usage(format!(
        "{mistake}: rank {other} called {}, rank {first} called {}",
        decode(args(other)),
        decode(args(first))
    ))
}

fn decode([head, count]: [u64; 2]) -> CallHeader {
    CallHeader::decode([head & !EARLIER_CALLS, count])
}

/// Returns the calls of `one` and `two` in the first step up to `step` in which they differ, if that step is still recorded.
fn find_unawaited(
    state: &SharedState,
    step: u64,
    one: usize,
    two: usize,
) -> Option<(CallHeader, CallHeader)> {
    let calls = |step| {
        let call = |rank| Some(decode(state.known_call_args(rank, step)?));
        Some((call(one)?, call(two)?))
    };
    let mut known = (step.saturating_sub(KNOWN_STEPS) + 1..=step).filter_map(calls);
    known.find(|(of_one, of_two)| of_one != of_two)
}

/// Checks the calls of `rank` when it leaves: no other rank may have made a call that `rank` did not make, and ranks that left
/// earlier must have made the same calls. Remaining ranks compare their later calls themselves.
///
/// Returns the kind of the mistake and its description, or `None`.
pub(crate) fn leaving(state: &SharedState, rank: usize) -> Option<(Finding, String)> {
    // If two ranks leave concurrently, at least one of them observes the other's departure.
    fence(SeqCst);
    let own = state.begun_steps(rank);
    for other in (0..state.ranks()).filter(|other| *other != rank) {
        let (has_left, steps) = (state.has_left(other), state.begun_steps(other));
        let missing = |lacks: usize, made: usize| {
            let (call, _) = state.last_call(made);
            format!(
                "rank {made} made a call that rank {lacks} did not make before it finalized or destroyed its communicator; rank {made} called {} last",
                CallHeader::decode(call)
            )
        };
        if steps > own {
            return Some((Finding::MissingCall, missing(rank, other)));
        }
        if has_left && steps < own {
            return Some((Finding::MissingCall, missing(other, rank)));
        }
        if has_left && (state.earlier_calls(rank) ^ state.earlier_calls(other)) & UNAWAITED != 0 {
            let text = match find_unawaited(state, own, other, rank) {
                Some((others, own)) => format!(
                    "{}: rank {rank} called {own}, rank {other} called {others}",
                    others.describe_difference(own)
                ),
                None => format!("rank {other} and rank {rank} called different functions"),
            };
            return Some((Finding::DifferentCalls, text));
        }
    }
    None
}

/// Describes the collectives of count 0 that only one of two ranks made.
fn describe_empty_calls(state: &SharedState, step: u64, one: usize, two: usize) -> Option<String> {
    let number = |rank| (state.call_args(rank, step)[0] >> EMPTY_CALLS.trailing_zeros()) as u8;
    let surplus = number(one).wrapping_sub(number(two)) as i8;
    let (more, less) = if surplus > 0 { (one, two) } else { (two, one) };
    let calls = match surplus.unsigned_abs() {
        0 => return None,
        1 => "1 collective".into(),
        many => format!("{many} collectives"),
    };
    let last = state.earlier_calls(more);
    // The rank may have made more such calls since.
    let is_known = (last ^ state.call_args(more, step)[0]) & EMPTY_CALLS == 0;
    let last = is_known.then(|| format!(", the last of them {}", decode([last, 0])));
    Some(format!(
        "before this call, rank {more} made {calls} of count 0 that rank {less} did not make{}",
        last.unwrap_or_default()
    ))
}

/// A collective function of NCCL with a single count.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Function {
    number: u8,
}

/// The shape of a collective: which ranks send and receive, and how the buffers are divided.
#[derive(Clone, Copy)]
pub(super) struct Shape {
    /// Stored by value, because every call reads it.
    pub(super) operation: Operation,
    /// The division of the send buffer; `output` is the receive buffer's.
    pub(super) input: Division,
    pub(super) output: Division,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Division {
    /// `count` elements, not divided.
    Whole,
    /// `count` elements divided among the ranks.
    Chunks,
    /// `count` elements for each rank.
    Blocks,
}

/// The shapes of the functions by number, followed by [`Function::SCATTER_ALLGATHER`]. If ranks share the work on a whole buffer,
/// the buffer is divided into chunks.
static SHAPES: [Shape; 9] = {
    use Division::{Blocks, Chunks, Whole};
    [
        Shape::new("all_reduce", Chunks, Chunks),
        Shape::new("broadcast", Whole, Whole),
        Shape::new("reduce", Chunks, Chunks),
        Shape::new("all_gather", Whole, Blocks),
        Shape::new("reduce_scatter", Blocks, Whole),
        Shape::new("all_to_all", Blocks, Blocks),
        Shape::new("gather", Whole, Blocks),
        Shape::new("scatter", Blocks, Whole),
        Shape::new("broadcast", Chunks, Chunks),
    ]
};

impl Function {
    pub(crate) const ALL_REDUCE: Self = Self::named("all_reduce");
    /// A broadcast whose work is split among all ranks. No API function has this number.
    pub(super) const SCATTER_ALLGATHER: Self = Self { number: 8 };

    pub(crate) const fn named(name: &str) -> Self {
        let (operation, mut number) = (Operation::of(name), 0);
        while SHAPES[number].operation.number() != operation.number() {
            number += 1;
        }
        Self { number: number as u8 }
    }

    pub(super) fn from_number(number: u8) -> Option<Self> {
        (usize::from(number) < SHAPES.len()).then_some(Self { number })
    }

    /// Returns the number, which identifies the same function on all ranks.
    pub(crate) fn number(self) -> u8 {
        self.number
    }

    #[inline]
    pub(super) fn shape(self) -> &'static Shape {
        &SHAPES[usize::from(self.number)]
    }

    pub(crate) fn symbol(self) -> &'static str {
        self.shape().operation.function
    }
}

impl Shape {
    const fn new(operation: &str, input: Division, output: Division) -> Self {
        Self { operation: *Operation::of(operation), input, output }
    }
}

#[cfg(test)]
#[path = "../../tests/unit/call.rs"]
mod tests;
