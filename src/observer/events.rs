//! The arguments of observers: the start and the end of operations, and changes and identities of communicators.

use std::fmt;
use std::num::NonZeroU64;
use std::panic::Location;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicU32, AtomicU64};

use super::operation::Operation;
use crate::buffer::MemorySpace;
use crate::data_type::DataType;
use crate::error::Error;
use crate::unique_id::UniqueId;
use crate::version::Version;

/// An operation that is about to start, or was added to a group; see [`Observer`](crate::observer::Observer).
#[derive(Clone, Copy)]
pub struct OperationStart<'a> {
    communicator: &'a Membership,
    pub(super) number: u64,
    /// As returned by `group`; 0 outside a group.
    pub(super) group: u64,
    pub(super) call: CallWord,
    elements: [usize; 2],
    stream: usize,
    site: Option<&'static Location<'static>>,
}

impl<'a> OperationStart<'a> {
    /// Creates the event. `group` is the number of the first operation in the group, or 0 outside a group.
    #[doc(hidden)]
    #[inline]
    pub fn new(
        communicator: &'a Membership,
        call: CallWord,
        [number, group]: [u64; 2],
        elements: [usize; 2],
        stream: usize,
        site: Option<&'static Location<'static>>,
    ) -> Self {
        let start = Self { communicator, number, group, call, elements, stream, site };
        if group > 0 { start.in_group(group) } else { start }
    }

    #[inline]
    pub(super) fn in_group(mut self, first: u64) -> Self {
        self.group = first;
        self.call = self.call.in_group(first == self.number);
        self
    }

    /// Returns the description of the operation's communicator.
    pub fn communicator(&self) -> &'a Membership {
        self.communicator
    }

    /// Returns the descriptor of the operation.
    pub fn operation(&self) -> &'static Operation {
        self.call.operation()
    }

    /// Returns the number of the operation in its communicator. Operations are counted from 1, starting when the communicator
    /// gets its first observer.
    pub fn number(&self) -> u64 {
        self.number
    }

    /// If the operation is in a group, returns the number of the communicator's first operation in that group. Otherwise returns
    /// `None`.
    pub fn group(&self) -> Option<u64> {
        (self.group > 0).then_some(self.group)
    }

    /// Returns the data type of the elements; `None` if the operation has no elements.
    pub fn data_type(&self) -> Option<DataType> {
        self.call.data_type()
    }

    /// Returns the number of elements that this rank sends. If only the root sends, all ranks return the root's element count. For
    /// separate counts ([`Extent::Counts`](crate::observer::Extent::Counts)), it is always the length of this rank's send buffer.
    pub fn sent(&self) -> usize {
        self.elements[0]
    }

    /// Returns the number of elements that this rank receives. If only the root receives, all ranks return the root's element
    /// count. For separate counts ([`Extent::Counts`](crate::observer::Extent::Counts)), it is always the length of this rank's
    /// receive buffer.
    pub fn received(&self) -> usize {
        self.elements[1]
    }

    /// Returns the size of the [`sent`](Self::sent) elements in bytes.
    pub fn bytes_sent(&self) -> u64 {
        self.bytes(self.sent())
    }

    /// Returns the size of the [`received`](Self::received) elements in bytes.
    pub fn bytes_received(&self) -> u64 {
        self.bytes(self.received())
    }

    fn bytes(&self, elements: usize) -> u64 {
        self.data_type().map_or(0, |data_type| (elements as u64).saturating_mul(data_type.size() as u64))
    }

    /// Returns the rank of the root or of the peer; `None` if the operation has neither. For `send_recv`, returns the rank to
    /// which this rank sends.
    pub fn peer(&self) -> Option<usize> {
        self.call.ranks()[0]
    }

    /// Returns the rank from which `send_recv` receives; `None` for other operations.
    pub fn source(&self) -> Option<usize> {
        self.call.ranks()[1]
    }

    /// Returns the address of the operation's stream; 0 for the default stream.
    pub fn stream(&self) -> usize {
        self.stream
    }

    /// Returns the operation's call site in the program, if it is known.
    pub fn site(&self) -> Option<&'static Location<'static>> {
        self.site
    }

    #[doc(hidden)]
    #[inline]
    pub fn call(&self) -> CallWord {
        self.call
    }
}

impl fmt::Debug for OperationStart<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OperationStart")
            .field("operation", &self.operation().name)
            .field("number", &self.number)
            .field("communicator", self.communicator)
            .finish_non_exhaustive()
    }
}

/// One word with an operation, its element type, its ranks and its position in a group, for recorders of many operations.
#[doc(hidden)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CallWord(pub u64);

/// The bits that hold an operation's number.
const OPERATION: u64 = 63;
/// Set for operations in a group.
const IS_GROUPED: u64 = 64;
/// Set for the first operation of a communicator in a group.
const IS_FIRST_OF_GROUP: u64 = 128;
/// The position of the element type, which is stored as its number plus 1, or as 0 for none.
const DATA_TYPE_SHIFT: u32 = 8;
const RANK_SHIFTS: [u32; 2] = [16, 16 + RANK_BITS];
const RANK_BITS: u32 = 24;
const NO_RANK: u64 = (1 << RANK_BITS) - 1;

const _: () = assert!(Operation::ALL.len() <= OPERATION as usize);

#[doc(hidden)]
impl CallWord {
    /// Packs an operation into one word. `ranks` are the root or peer, if any, and the rank from which `send_recv` receives. A
    /// rank of 2^24 - 1 or more is stored as `None`.
    #[inline]
    pub fn new(operation: &Operation, data_type: Option<DataType>, ranks: [Option<usize>; 2]) -> Self {
        let data_type = data_type.map_or(0, |data_type| 1 + data_type as u64);
        let [first, second] = ranks.map(|rank| rank.map_or(NO_RANK, |rank| (rank as u64).min(NO_RANK)));
        let ranks = first << RANK_SHIFTS[0] | second << RANK_SHIFTS[1];
        Self(operation.number() as u64 | data_type << DATA_TYPE_SHIFT | ranks)
    }

    #[inline]
    pub(super) fn in_group(self, is_first: bool) -> Self {
        Self(self.0 | IS_GROUPED | if is_first { IS_FIRST_OF_GROUP } else { 0 })
    }

    /// Returns [`Operation::is_point_to_point`] without reading the descriptor.
    #[inline]
    pub const fn is_point_to_point(self) -> bool {
        // Point-to-point operations come last.
        self.0 & OPERATION >= const { Operation::of("send").number() as u64 }
    }

    pub fn operation(self) -> &'static Operation {
        let number = (self.0 & OPERATION) as usize;
        &Operation::ALL[number.min(Operation::ALL.len() - 1)]
    }

    pub fn data_type(self) -> Option<DataType> {
        let number = usize::from((self.0 >> DATA_TYPE_SHIFT) as u8);
        number.checked_sub(1).and_then(|index| DataType::ALL.get(index).copied())
    }

    /// Returns the root or the peer, and the rank from which `send_recv` receives.
    pub fn ranks(self) -> [Option<usize>; 2] {
        RANK_SHIFTS.map(|shift| {
            let rank = self.0 >> shift & NO_RANK;
            (rank != NO_RANK).then_some(rank as usize)
        })
    }

    pub const fn is_grouped(self) -> bool {
        self.0 & IS_GROUPED != 0
    }

    pub const fn is_first_of_group(self) -> bool {
        self.0 & IS_FIRST_OF_GROUP != 0
    }
}

/// The end of an operation's call, or the end of a group; see [`Observer`](crate::observer::Observer). At the end of a group,
/// there is one `OperationEnd` for each communicator in the group.
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub struct OperationEnd<'a> {
    /// The communicator of the operations from [`first`](Self::first) to [`last`](Self::last).
    pub communicator: &'a Membership,
    /// The number of the operation. At the end of a group, the number of the communicator's first operation in the group.
    pub first: u64,
    /// The number of the operation. At the end of a group, the number of the communicator's last operation in the group.
    pub last: u64,
    /// The result of the operation's call, or of the group. On a GPU, the work may still be running;
    /// [`StreamCompleted`](CommunicatorEvent::StreamCompleted) reports its completion.
    pub result: Result<(), &'a Error>,
}

impl<'a> OperationEnd<'a> {
    #[doc(hidden)]
    #[inline]
    pub const fn new(
        communicator: &'a Membership,
        [first, last]: [u64; 2],
        result: Result<(), &'a Error>,
    ) -> Self {
        Self { communicator, first, last, result }
    }
}

/// A change of a communicator's state; see [`Observer::on_communicator`](crate::observer::Observer::on_communicator).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum CommunicatorEvent {
    /// All ranks have joined the communicator.
    Created,
    /// The work on the stream with this address is complete. Reported by
    /// [`synchronize`](crate::communicator::Communicator::synchronize) and
    /// [`wait_for`](crate::communicator::Communicator::wait_for).
    StreamCompleted(usize),
    /// A group with operations of the communicator has failed; see [`Nccl::group`](crate::nccl::Nccl::group).
    Failed,
    /// A watchdog has detected that a call takes too long.
    Stalled,
    /// A wait has exceeded its time limit. The communicator is about to be aborted.
    TimedOut,
    /// A healthy communicator on a GPU was dropped instead of destroyed. After this event, the communicator and its unfinished
    /// work are aborted.
    Discarded,
    /// The communicator and its work in progress are about to be aborted.
    Aborted,
    /// The communicator is about to be destroyed, or is handed to other code
    /// ([`into_raw`](crate::communicator::Communicator::into_raw)).
    Ended,
}

/// The description of a communicator and of this rank in it. Observers receive it, and
/// [`Communicator::membership`](crate::communicator::Communicator::membership) returns it.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct Membership {
    /// The identity of the communicator, if known.
    pub id: Option<CommunicatorId>,
    /// The identity of the parent communicator, from which this one was split, shrunk or grown; `None` if there is no parent or
    /// its identity is unknown.
    pub parent: Option<CommunicatorId>,
    /// The [name](crate::config::Config::name) of the communicator, if it has one.
    pub name: Option<String>,
    /// The number of this rank in the communicator. The first rank is 0.
    pub rank: usize,
    /// The number of ranks in the communicator.
    pub size: usize,
    /// The memory space of the communicator's buffers.
    pub memory_space: MemorySpace,
    /// The version of the NCCL library.
    pub nccl: Version,
    /// The file of the NCCL library; `None` for a function table, or if the file is unknown.
    pub library: Option<Arc<Path>>,
}

impl Membership {
    #[doc(hidden)]
    pub fn new(rank: usize, size: usize, memory_space: MemorySpace, nccl: Version) -> Self {
        Self { id: None, parent: None, name: None, rank, size, memory_space, nccl, library: None }
    }
}

/// The identity of a communicator in events, logs and recordings: the same on all its ranks, and almost certainly unique.
///
/// It is displayed as 16 hexadecimal digits. It equals the `commHash` that RAS and the log of NCCL 2.26 and newer print, with
/// these exceptions:
/// - Communicators from [`init_all`](crate::nccl::Nccl::init_all) and [`grow`](crate::communicator::Communicator::grow),
///   whose hash NCCL does not return, have another identity.
/// - If a communicator is shrunk more than once, the second and later children have another identity too.
/// - With NCCL, the identity is unknown if other code created the communicator.
/// - With NCCL, the identity is unknown on a rank that has joined a growing communicator.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct CommunicatorId(NonZeroU64);

#[doc(hidden)]
impl CommunicatorId {
    pub fn of_unique_id(id: &UniqueId) -> Self {
        Self::hash(&[id.as_bytes()])
    }

    /// Returns the identity that equals `hash`, the `commHash` that a library reports.
    pub fn of_hash(hash: u64) -> Self {
        Self(NonZeroU64::new(hash).unwrap_or(NonZeroU64::MIN))
    }

    pub fn get(self) -> u64 {
        self.0.get()
    }

    /// Returns a new identity for communicators that are created together, as by `ncclCommInitAll`.
    pub fn of_this_process() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let number = NEXT.fetch_add(1, Relaxed);
        Self::hash(&[&std::process::id().to_le_bytes(), &number.to_le_bytes()])
    }

    fn of_child(self, number: u32, color: u32) -> Self {
        Self::hash(&[&self.get().to_le_bytes(), &number.to_le_bytes(), &color.to_le_bytes()])
    }

    /// Hashes the parts with NCCL's `eatHash` and `digestHash`. Not cryptographic.
    fn hash(parts: &[&[u8]]) -> Self {
        let [mut first, mut second] = [1_u64; 2];
        for part in parts {
            first ^= part.len() as u64;
            for chunk in part.chunks(8) {
                first = first.wrapping_add(second);
                second ^= first;
                first = (first ^ first >> 31).wrapping_mul(0x9de6_2bbc_8cef_3ce3);
                second = (second ^ second >> 32).wrapping_mul(0x485c_d631_1b59_9e79);
                let mut word = [0; 8];
                word[..chunk.len()].copy_from_slice(chunk);
                first = first.wrapping_add(u64::from_le_bytes(word));
            }
        }
        let hash = (first ^ first >> 31).wrapping_mul(0xbac3_bd56_2846_de6b).wrapping_add(second);
        Self::of_hash((hash ^ hash >> 32).wrapping_mul(0x995a_187a_14e7_b445))
    }
}

/// Counts the children of a communicator. The counts are the same on all its ranks, so all ranks give a child the same identity.
#[doc(hidden)]
#[derive(Debug, Default)]
pub struct Children {
    count: AtomicU32,
    shrinks: AtomicU32,
}

impl Children {
    /// Returns the identity of the next child of a communicator. `color` is the color of a split, or `None` for a shrink. NCCL
    /// gives all shrinks of a communicator one hash; here each has a separate identity.
    pub fn next(&self, parent: CommunicatorId, color: Option<i32>) -> CommunicatorId {
        match color {
            Some(color) => parent.of_child(self.count.fetch_add(1, Relaxed) + 1, color.cast_unsigned()),
            None => parent.of_child(0, self.shrinks.fetch_add(1, Relaxed)),
        }
    }
}

impl fmt::Display for CommunicatorId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::{Children, CommunicatorId};
    use crate::unique_id::UniqueId;

    /// The values come from `getHash`, `eatHash` and `digestHash` in `src/include/bitops.h` of NCCL 2.30.7.
    #[test]
    fn identity_is_the_hash_of_nccl() {
        let id = UniqueId::from_bytes(std::array::from_fn(|byte| (byte as u8).wrapping_mul(7)));
        let parent = CommunicatorId::of_unique_id(&id);
        assert_eq!(parent.to_string(), "fe710f235bfcafdb");
        assert_eq!(Children::default().next(parent, Some(3)).to_string(), "b7adeca46f676b57");
    }

    #[test]
    fn children_have_separate_identities() {
        let (children, parent) = (Children::default(), CommunicatorId::of_this_process());
        let all = [Some(0), Some(0), None, None, Some(1)].map(|color| children.next(parent, color).get());
        assert_eq!(std::collections::HashSet::from(all).len(), all.len());
    }
}
