use crate::data_type::DataType;
use crate::observer::Operation;

/// An operation, its element type, its ranks and its place in a group, in one word, for an observer that keeps many.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CallWord(u64);

/// The bits of an operation's number.
const OPERATION: u64 = 63;
/// Set for operations of a group, and for the first of a communicator in one.
const IS_GROUPED: u64 = 64;
const IS_FIRST_OF_GROUP: u64 = 128;
/// The element type is its number and 1, or 0.
const DATA_TYPE_SHIFT: u32 = 8;
const RANK_SHIFT: u32 = 16;
const SECOND_RANK_SHIFT: u32 = RANK_SHIFT + RANK_BITS;
const RANK_BITS: u32 = 24;
/// The number of no rank.
const NO_RANK: u64 = (1 << RANK_BITS) - 1;

const _: () = assert!(Operation::ALL.len() <= OPERATION as usize);

impl CallWord {
    /// Returns that of an operation with a root or a peer, and with the source of an exchange. A rank beyond 24 bits is none.
    #[inline]
    pub(crate) fn new(operation: &Operation, data_type: Option<DataType>, ranks: [Option<usize>; 2]) -> Self {
        let data_type = data_type.map_or(0, |data_type| 1 + data_type as u64);
        let [first, second] = ranks.map(|rank| rank.map_or(NO_RANK, |rank| (rank as u64).min(NO_RANK)));
        Self(
            operation.number() as u64
                | data_type << DATA_TYPE_SHIFT
                | first << RANK_SHIFT
                | second << SECOND_RANK_SHIFT,
        )
    }

    #[inline]
    pub(super) fn in_group(self, is_first: bool) -> Self {
        Self(self.0 | IS_GROUPED | if is_first { IS_FIRST_OF_GROUP } else { 0 })
    }

    /// Returns the word with these bits, those of [`to_bits`](Self::to_bits). Others are of some operation, too.
    #[must_use]
    pub const fn from_bits(bits: u64) -> Self {
        Self(bits)
    }

    /// Returns the bits.
    #[inline]
    #[must_use]
    pub const fn to_bits(self) -> u64 {
        self.0
    }

    /// Returns `true` for an operation of messages: `send`, `recv`, `send_recv` and one-sided ones.
    #[inline]
    #[must_use]
    pub const fn is_message(self) -> bool {
        // The operations of messages come last.
        self.0 & OPERATION >= const { Operation::of("send").number() as u64 }
    }

    /// Returns the operation.
    #[must_use]
    pub fn operation(self) -> &'static Operation {
        let number = (self.0 & OPERATION) as usize;
        &Operation::ALL[number.min(Operation::ALL.len() - 1)]
    }

    /// Returns the type of the elements, if there are any.
    #[must_use]
    pub fn data_type(self) -> Option<DataType> {
        let number = usize::from((self.0 >> DATA_TYPE_SHIFT) as u8);
        number.checked_sub(1).and_then(|index| DataType::ALL.get(index).copied())
    }

    /// Returns the root or the peer, and the source of an exchange.
    #[must_use]
    pub fn ranks(self) -> [Option<usize>; 2] {
        [RANK_SHIFT, SECOND_RANK_SHIFT].map(|shift| {
            let rank = self.0 >> shift & NO_RANK;
            (rank != NO_RANK).then_some(rank as usize)
        })
    }

    /// Returns `true` in a group.
    #[must_use]
    pub const fn is_grouped(self) -> bool {
        self.0 & IS_GROUPED != 0
    }

    /// Returns `true` for the first operation of its communicator in a group.
    #[must_use]
    pub const fn is_first_of_group(self) -> bool {
        self.0 & IS_FIRST_OF_GROUP != 0
    }
}
