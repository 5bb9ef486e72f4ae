//! Calls as the ranks publish them, in two words, and the check that all ranks made the same calls.
//!
//! As in NCCL, a collective of count 0 returns immediately, without waiting for other ranks. If only some ranks make it, later calls no
//! longer correspond, although they may look the same. Each rank therefore counts its calls of count 0 and publishes the number with its
//! next call.
//!
//! In a short collective with a root, a rank waits for at most one other rank and may compare its call with none. It publishes a digest of
//! these calls with its next calls. The digest is compared at the latest [when the rank leaves](leaving).

use std::fmt;
use std::ops::Range;
use std::sync::atomic::Ordering::SeqCst;

use cuda_common::finding::Finding;
use libnccl::observer::{Extent, Operation};

use crate::diag::debug::Subsystem;
use crate::diag::error::Error;
use crate::reduce::data_type::{self, DataType};
use crate::reduce::reduction;
use crate::shm::buffer::BufferRange;
use crate::shm::call_context::CallContext;
use crate::shm::shared_state::{EARLIER_CALLS, EMPTY_CALLS, SharedState, UNAWAITED};
use crate::sync::primitive::fence;

/// The header of a call. Its numbers come from other ranks and may have any value.
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
        /// Set if a collective on the same communicator precedes it in its group. NCCL launches the collectives of a group together.
        is_grouped: bool,
    },
    /// A point-to-point or one-sided call. Never published, only described.
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

impl PeerCall {
    /// The calls by number, with their names.
    const ALL: [(Self, &str); 5] = [
        (Self::Send, "ncclSend"),
        (Self::Recv, "ncclRecv"),
        (Self::PutSignal, "ncclPutSignal"),
        (Self::Signal, "ncclSignal"),
        (Self::WaitSignal, "ncclWaitSignal"),
    ];

    fn name(self) -> &'static str {
        Self::ALL[self as usize].1
    }
}

/// Flag of a [grouped](CallHeader::Collective::is_grouped) collective. No data type has this bit.
const GROUPED: u8 = 0x80;

/// The number of the first call that names a peer, above the numbers of collectives.
const FIRST_PEER_CALL: u8 = 0x40;

/// The number of the first control call, above the numbers of all other calls.
const FIRST_CONTROL_CALL: u64 = 0x80;

impl ControlCall {
    /// The calls by number, with their names.
    const ALL: [(Self, &str); 6] = [
        (Self::Split, "ncclCommSplit"),
        (Self::Grow, "ncclCommGrow"),
        (Self::Suspend, "ncclCommSuspend"),
        (Self::Resume, "ncclCommResume"),
        (Self::RegisterWindow, "ncclCommWindowRegister"),
        (Self::Arguments, "ncclCommInitRank"),
    ];

    fn name(self) -> &'static str {
        Self::ALL[self as usize].1
    }
}

impl CallHeader {
    pub(crate) const NO_REDUCTION: u8 = 0xff;
    const NO_DATA_TYPE: u8 = 0xff;

    /// Returns the header of a call that names one peer.
    pub(crate) fn of_elements(call: PeerCall, peer: usize, data_type: DataType, count: usize) -> Self {
        let data_type = data_type.raw().0 as u8;
        Self::PointToPoint { call, data_type, peer: peer as u32, count: count as u64 }
    }

    /// Returns the header of a call that names one peer and whose elements have no type.
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
        if let Some((call, _)) = index.and_then(|index| PeerCall::ALL.get(index)) {
            return Self::PointToPoint { call: *call, data_type, peer: (head >> 32) as u32, count };
        }
        let index = head.checked_sub(FIRST_CONTROL_CALL).and_then(|index| usize::try_from(index).ok());
        match index.and_then(|index| ControlCall::ALL.get(index)) {
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

    /// Returns the log line of the call in NCCL's format: types and reductions are numbers, and the peer replaces the root. Addresses
    /// are those of this rank; the other buffer of a put or a message is logged as 0.
    pub(crate) fn log_line(
        self,
        [send, recv]: [BufferRange; 2],
        comm: usize,
        context: CallContext<'_>,
        stream: usize,
    ) -> String {
        const NONE: u8 = CallHeader::NO_REDUCTION;
        let number = |number: u8| if number == NONE { 0 } else { number };
        let (name, count, data_type, reduction, root) = match self {
            Self::Collective { function, data_type, reduction, root, count, .. } => {
                (function.symbol(), count, data_type, number(reduction), root)
            }
            Self::PointToPoint { call, data_type, peer, count } => {
                (call.name(), count, number(data_type), 0, peer)
            }
            Self::Control { call, length } => (call.name(), length, 0, 0, 0),
            Self::Unknown { number } => ("", number, 0, 0, 0),
        };
        let (name, calls) = (name.trim_start_matches("nccl"), context.state.calls(context.rank));
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
            Self::Collective { function, .. } => function.shape().operation.function,
            Self::PointToPoint { call, .. } => call.name(),
            Self::Control { call, .. } => call.name(),
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
        let differing: Vec<&str> =
            all.filter_map(|((what, own), other)| (own != other).then_some(what)).collect();
        let name = self.name();
        if !differing.is_empty() {
            return format!("the ranks called {name} with different {}", differing.join(" and "));
        }
        match (is_grouped(self), is_grouped(other)) {
            (one, two) if one == two => format!("the ranks called {name} with different arguments"),
            _ => format!(
                "some of the ranks called {name} in one group with the collective before it, and the others did not"
            ),
        }
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
            Self::PointToPoint { call, data_type, peer, count } => {
                f.write_str(call.name())?;
                match data_type {
                    Self::NO_DATA_TYPE if count == 0 => write!(f, "(peer {peer})"),
                    Self::NO_DATA_TYPE => write!(f, "({count} bytes, peer {peer})"),
                    _ => write!(f, "(count {count}, {}, peer {peer})", data_type::name(data_type.into())),
                }
            }
            Self::Control { call, .. } => f.write_str(call.name()),
            Self::Unknown { number } => write!(f, "function {number}"),
        }
    }
}

/// Number of previous steps whose records may still exist.
const KNOWN_STEPS: u64 = 7;

/// Returns the words that `rank` publishes for a call, which the other ranks compare.
#[inline]
pub(crate) fn call_args(state: &SharedState, rank: usize, header: CallHeader) -> [u64; 2] {
    let [head, count] = header.encode();
    [head | state.earlier_calls(rank) & EARLIER_CALLS, count]
}

/// Returns the error if `rank` and `ranks` [did not all make](SharedState::all_made) the same call.
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

/// Returns the first calls up to `step` in which two ranks differed without detecting it, if they are still recorded.
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

/// Checks, when `rank` leaves, that no other rank has made a call that `rank` did not make, and that ranks that left earlier made the same
/// calls. The other ranks compare their later calls themselves.
///
/// Returns the mistake and its kind, or `None`.
pub(crate) fn leaving(state: &SharedState, rank: usize) -> Option<(Finding, String)> {
    // If two ranks leave concurrently, at least one of them sees that the other has left.
    fence(SeqCst);
    let own = state.begun_steps(rank);
    for other in (0..state.ranks()).filter(|other| *other != rank) {
        let (has_left, steps) = (state.has_left(other), state.begun_steps(other));
        let missing = |lacks: usize, made: usize| {
            let (call, _) = state.last_call(made);
            format!(
                "rank {lacks} has left without a call of rank {made}, which called {} last",
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

/// Describes the collectives of count 0 that one of two ranks made and the other did not.
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
    /// A copy, because every call reads it.
    pub(super) operation: Operation,
    /// Divisions of the send buffer and the receive buffer.
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

/// Number of functions that a rank can call.
const FUNCTIONS: usize = functions_before(Operation::ALL.len());

/// The shapes of the functions in the order of their operations, followed by [`Function::SCATTER_ALLGATHER`].
static SHAPES: [Shape; FUNCTIONS + 1] = {
    let mut shapes = [Shape::new(Operation::of("broadcast"), true); FUNCTIONS + 1];
    let mut number = 0;
    while number < Operation::ALL.len() {
        let operation = &Operation::ALL[number];
        if is_function(operation) {
            shapes[functions_before(number)] = Shape::new(operation, operation.reduces);
        }
        number += 1;
    }
    shapes
};

/// Returns the number of operations before `place` in the table that are functions.
const fn functions_before(place: usize) -> usize {
    let (mut number, mut functions) = (0, 0);
    while number < place {
        functions += is_function(&Operation::ALL[number]) as usize;
        number += 1;
    }
    functions
}

/// Returns whether the operation is a single call of a function that all ranks call with the same count.
const fn is_function(operation: &Operation) -> bool {
    let has_one_count = matches!(
        (operation.sends, operation.receives),
        (Extent::Count | Extent::CountPerRank, Extent::Count | Extent::CountPerRank)
    );
    has_one_count && !operation.is_in_place && !operation.is_point_to_point()
}

impl Function {
    pub(crate) const ALL_REDUCE: Self = Self::named("all_reduce");
    /// A broadcast whose work is split among all ranks. Ranks cannot call it.
    pub(super) const SCATTER_ALLGATHER: Self = Self { number: FUNCTIONS as u8 };

    pub(crate) const fn named(name: &str) -> Self {
        let operation = Operation::of(name);
        assert!(is_function(operation));
        Self { number: functions_before(operation.number()) as u8 }
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
    /// Returns the shape of an operation. If ranks share the work and neither buffer has blocks, the buffers are divided among the ranks.
    const fn new(operation: &Operation, shares_work: bool) -> Self {
        let whole = match (operation.sends, operation.receives) {
            (Extent::Count, Extent::Count) if shares_work => Division::Chunks,
            _ => Division::Whole,
        };
        Self {
            operation: *operation,
            input: Division::new(operation.sends, whole),
            output: Division::new(operation.receives, whole),
        }
    }
}

impl Division {
    /// Returns `Blocks` for [`Extent::CountPerRank`], and `whole` otherwise.
    const fn new(extent: Extent, whole: Self) -> Self {
        if matches!(extent, Extent::CountPerRank) { Self::Blocks } else { whole }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn difference_is_one_of_functions_only_if_these_differ() {
        let call = |function, data_type, reduction, root, count| CallHeader::Collective {
            function,
            data_type,
            reduction,
            root,
            count,
            is_grouped: false,
        };
        let (sum, scatter) = (Function::ALL_REDUCE, Function::named("scatter"));
        let one = call(sum, 7, 0, 0, 10);
        let control = |call| CallHeader::Control { call, length: 8 };
        for (other, what) in [
            (call(sum, 7, 0, 0, 11), "ncclAllReduce with different counts"),
            (call(sum, 8, 0, 0, 10), "ncclAllReduce with different data types"),
            (call(sum, 7, 2, 0, 10), "ncclAllReduce with different reductions"),
            (call(sum, 8, 0, 0, 5), "ncclAllReduce with different counts and data types"),
            (call(scatter, 7, 0, 0, 10), "different functions"),
            (control(ControlCall::Split), "different functions"),
        ] {
            assert_eq!(one.describe_difference(other), format!("the ranks called {what}"));
            assert_eq!(other.describe_difference(one), format!("the ranks called {what}"));
        }
        let CallHeader::Collective { function, data_type, reduction, root, count, .. } = one else {
            panic!()
        };
        let grouped =
            CallHeader::Collective { function, data_type, reduction, root, count, is_grouped: true };
        for (one, other) in [(one, grouped), (grouped, one)] {
            let text = "some of the ranks called ncclAllReduce in one group with the collective before it, ";
            assert!(one.describe_difference(other).starts_with(text));
        }
        let of_root = |root| call(scatter, 7, CallHeader::NO_REDUCTION, root, 1);
        assert_eq!(
            of_root(0).describe_difference(of_root(3)),
            "the ranks called ncclScatter with different roots"
        );
        let longer = CallHeader::Control { call: ControlCall::Split, length: 9 };
        assert_eq!(
            control(ControlCall::Split).describe_difference(longer),
            "the ranks called ncclCommSplit with different arguments"
        );
    }

    #[test]
    fn header_of_every_kind_is_decoded_and_displayed() {
        let collective = |function, reduction, root| CallHeader::Collective {
            function,
            data_type: 7,
            reduction,
            root,
            count: 1 << 40,
            is_grouped: root > 0,
        };
        for (header, text) in [
            (
                collective(Function::ALL_REDUCE, 2, 0),
                "ncclAllReduce(count 1099511627776, ncclFloat32, ncclMax)",
            ),
            (
                collective(Function::named("scatter"), CallHeader::NO_REDUCTION, 1023),
                "ncclScatter(count 1099511627776, ncclFloat32, root 1023)",
            ),
            (
                CallHeader::of_elements(PeerCall::Recv, 3, DataType::Float32, 9),
                "ncclRecv(count 9, ncclFloat32, peer 3)",
            ),
            (CallHeader::of_bytes(PeerCall::PutSignal, 0, 40), "ncclPutSignal(40 bytes, peer 0)"),
            (CallHeader::of_bytes(PeerCall::WaitSignal, 1023, 0), "ncclWaitSignal(peer 1023)"),
            (CallHeader::Control { call: ControlCall::Split, length: 40 }, "ncclCommSplit"),
            (CallHeader::Control { call: ControlCall::RegisterWindow, length: 48 }, "ncclCommWindowRegister"),
            (CallHeader::Unknown { number: 0x1234_5678_90ab_cdef }, "function 1311768467294899695"),
        ] {
            assert_eq!((CallHeader::decode(header.encode()), header.to_string()), (header, text.into()));
        }
    }

    #[test]
    fn work_on_whole_buffers_is_divided_where_ranks_reduce_or_share_it() {
        let divisions = |function: Function| (function.shape().input, function.shape().output);
        for function in [Function::ALL_REDUCE, Function::named("reduce"), Function::SCATTER_ALLGATHER] {
            assert_eq!(divisions(function), (Division::Chunks, Division::Chunks));
        }
        assert_eq!(divisions(Function::named("broadcast")), (Division::Whole, Division::Whole));
        assert_eq!(divisions(Function::named("reduce_scatter")), (Division::Blocks, Division::Whole));
    }

    #[test]
    fn functions_have_the_numbers_of_their_places() {
        let functions: Vec<_> = (0..).map_while(Function::from_number).collect();
        assert_eq!(functions.last(), Some(&Function::SCATTER_ALLGATHER));
        for function in &functions[..FUNCTIONS] {
            assert_eq!(Function::named(function.shape().operation.name), *function);
        }
        let names: Vec<_> = functions.iter().map(|function| function.symbol()).collect();
        // Ranks from other builds of this library use these numbers.
        let oldest = ["ncclAllReduce", "ncclBroadcast", "ncclReduce", "ncclAllGather", "ncclReduceScatter"];
        assert_eq!(names[..5], oldest);
    }
}
