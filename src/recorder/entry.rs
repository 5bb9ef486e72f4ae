use std::panic::Location;

use crate::{DataType, Operation, StreamRef};

/// A call of an operation, as it is recorded before it is made.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Entry {
    pub(crate) operation: &'static Operation,
    /// The operation, the element type, and the ranks, in the places that [`Call`] knows.
    pub(crate) call: u64,
    /// The numbers of elements that this rank sends and receives.
    pub(crate) elements: [usize; 2],
    pub(crate) stream: usize,
    pub(crate) site: &'static Location<'static>,
}

/// The bits of an operation's number.
const OPERATION: u64 = 63;
/// Set for operations of a group, and for the first of a communicator in one.
pub(crate) const IS_GROUPED: u64 = 64;
pub(crate) const IS_FIRST_OF_GROUP: u64 = 128;
const DATA_TYPE_SHIFT: u32 = 8;
const RANK_SHIFT: u32 = 16;
const SECOND_RANK_SHIFT: u32 = RANK_SHIFT + RANK_BITS;
const RANK_BITS: u32 = 24;
/// The number of no rank.
const NO_RANK: u64 = (1 << RANK_BITS) - 1;

const _: () = assert!(Operation::ALL.len() <= OPERATION as usize);

impl Entry {
    #[inline(always)]
    pub(crate) fn new(
        operation: &'static Operation,
        data_type: Option<DataType>,
        elements: [usize; 2],
        ranks: [Option<usize>; 2],
        stream: StreamRef<'_>,
        site: &'static Location<'static>,
    ) -> Self {
        let data_type = data_type.map_or(0, |data_type| 1 + data_type as u64);
        let ranks = ranks.map(|rank| rank.map_or(NO_RANK, |rank| rank as u64 & NO_RANK));
        let call = encode(operation, data_type, ranks);
        Self { operation, call, elements, stream: stream.as_raw().addr(), site }
    }
}

/// For spans and logs.
#[cfg(any(feature = "log", feature = "tracing"))]
impl Entry {
    pub(crate) fn data_type(&self) -> Option<DataType> {
        Call(self.call).data_type()
    }

    /// Returns the root or the peer, and the source of an exchange.
    pub(crate) fn ranks(&self) -> [Option<usize>; 2] {
        Call(self.call).ranks()
    }
}

/// Returns the word of an entry with its operation. The element type is its number and 1, or 0; [`NO_RANK`] stands for no
/// rank.
#[inline(always)]
const fn encode(operation: &Operation, data_type: u64, [first, second]: [u64; 2]) -> u64 {
    operation.number() as u64
        | data_type << DATA_TYPE_SHIFT
        | first << RANK_SHIFT
        | second << SECOND_RANK_SHIFT
}

/// Returns the word of an entry from the arguments of a C call. An invalid type or rank is left out.
#[inline(always)]
pub(crate) fn encode_raw(operation: &Operation, data_type: Option<u32>, rank: Option<i32>) -> u64 {
    let data_type = data_type.filter(|raw| (*raw as usize) < DataType::ALL.len());
    let data_type = data_type.map_or(0, |raw| 1 + u64::from(raw));
    let rank = rank.and_then(|rank| u64::try_from(rank).ok());
    encode(operation, data_type, [rank.filter(|rank| *rank < NO_RANK).unwrap_or(NO_RANK), NO_RANK])
}

/// The word of an entry with its operation.
#[derive(Debug, Clone, Copy)]
pub(super) struct Call(pub(super) u64);

impl Call {
    #[inline(always)]
    pub(super) const fn is_message(self) -> bool {
        // The operations of messages come last.
        self.0 & OPERATION >= const { Operation::of("send").number() as u64 }
    }

    pub(super) fn operation(self) -> Option<&'static Operation> {
        Operation::ALL.get((self.0 & OPERATION) as usize)
    }

    pub(super) fn data_type(self) -> Option<DataType> {
        let number = usize::from((self.0 >> DATA_TYPE_SHIFT) as u8);
        number.checked_sub(1).and_then(|index| DataType::ALL.get(index).copied())
    }

    /// Returns the root or the peer, and the source of an exchange.
    pub(super) fn ranks(self) -> [Option<usize>; 2] {
        [RANK_SHIFT, SECOND_RANK_SHIFT].map(|shift| {
            let rank = self.0 >> shift & NO_RANK;
            (rank != NO_RANK).then_some(rank as usize)
        })
    }

    pub(super) const fn is_grouped(self) -> bool {
        self.0 & IS_GROUPED != 0
    }

    pub(super) const fn is_first_of_group(self) -> bool {
        self.0 & IS_FIRST_OF_GROUP != 0
    }
}
