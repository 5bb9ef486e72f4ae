use std::panic::Location;

use super::method::Method;
use crate::{DataType, StreamRef};

/// An operation, as it is recorded before its call.
#[derive(Debug, Clone, Copy)]
pub struct Entry {
    pub(crate) name: &'static str,
    pub(crate) method: Method,
    /// The method, the element type, and the ranks, in the places that [`Call`] knows.
    pub(crate) call: u64,
    pub(crate) lengths: [usize; 2],
    pub(crate) stream: usize,
    pub(crate) site: &'static Location<'static>,
}

/// The number of no rank.
const NO_PEER: u64 = (1 << PEER_BITS) - 1;
const PEER_BITS: u32 = 24;
const DATA_TYPE_SHIFT: u32 = 8;
const PEER_SHIFT: u32 = 16;
const SECOND_PEER_SHIFT: u32 = PEER_SHIFT + PEER_BITS;
/// Set for operations of a group, and for the first of a communicator in one.
pub(crate) const IS_GROUPED: u64 = 64;
pub(crate) const IS_FIRST_OF_GROUP: u64 = 128;

/// Returns the number of a rank among the arguments of an operation, by the argument's name; `None` for the others.
macro_rules! peer {
    (root $value:ident) => {
        Some($value)
    };
    (peer $value:ident) => {
        Some($value)
    };
    (destination $value:ident) => {
        Some($value)
    };
    (source $value:ident) => {
        Some($value)
    };
    ($other:ident $value:ident) => {
        None
    };
}
pub(crate) use peer;

impl Entry {
    /// Creates the entry of an operation that `Location::caller` has called.
    #[inline(always)]
    #[track_caller]
    pub(crate) fn new<const B: usize, const P: usize>(
        name: &'static str,
        method: Method,
        data_types: [DataType; B],
        lengths: [usize; B],
        peers: [Option<usize>; P],
        stream: StreamRef<'_>,
    ) -> Self {
        let data_type = data_types.first().map_or(0, |data_type| 1 + *data_type as u64);
        let lengths = match lengths[..] {
            [] => [0, 0],
            [first] => [first, 0],
            [first, second, ..] => [first, second],
        };
        let mut peers = peers.into_iter().flatten().map(|peer| peer as u64 & NO_PEER);
        let [first, second] = [(); 2].map(|()| peers.next().unwrap_or(NO_PEER));
        Self {
            name,
            method,
            call: encode(method, data_type, [first, second]),
            lengths,
            stream: stream.as_raw().addr(),
            site: Location::caller(),
        }
    }
}

/// For spans and logs.
#[cfg(any(feature = "log", feature = "tracing"))]
impl Entry {
    pub(crate) fn data_type(self) -> Option<DataType> {
        Call(self.call).data_type()
    }

    /// Returns the root or the peer, and the source of an exchange.
    pub(crate) fn peers(self) -> [Option<usize>; 2] {
        Call(self.call).peers()
    }

    /// Returns the numbers of elements that a rank sends and receives.
    pub(crate) fn counts(self, size: usize, rank: usize) -> [u64; 2] {
        let [root, _] = self.peers();
        self.method.counts(self.lengths.map(|length| length as u64), size, root == Some(rank))
    }
}

/// Returns the word of an entry with its method. The element type is its number and 1, or 0; [`NO_PEER`] stands
/// for no rank.
#[inline(always)]
fn encode(method: Method, data_type: u64, [first, second]: [u64; 2]) -> u64 {
    method.bits() | data_type << DATA_TYPE_SHIFT | first << PEER_SHIFT | second << SECOND_PEER_SHIFT
}

/// Returns the word of an entry from the arguments of a C call. An invalid type or rank is left out.
#[inline(always)]
pub(crate) fn encode_raw(method: Method, data_type: Option<u32>, peers: [Option<i32>; 2]) -> u64 {
    let data_type = data_type.filter(|raw| (*raw as usize) < DataType::ALL.len());
    let data_type = data_type.map_or(0, |raw| 1 + u64::from(raw));
    let peer = |peer: Option<i32>| {
        let peer = peer.and_then(|peer| u64::try_from(peer).ok());
        peer.filter(|peer| *peer < NO_PEER).unwrap_or(NO_PEER)
    };
    encode(method, data_type, peers.map(peer))
}

/// The word of an entry with its method.
#[derive(Debug, Clone, Copy)]
pub(super) struct Call(pub(super) u64);

impl Call {
    #[inline(always)]
    pub(super) fn is_message(self) -> bool {
        Method::is_message_in(self.0)
    }

    pub(super) fn method(self) -> Option<Method> {
        Method::from_bits(self.0)
    }

    pub(super) fn data_type(self) -> Option<DataType> {
        let number = usize::from((self.0 >> DATA_TYPE_SHIFT) as u8);
        number.checked_sub(1).and_then(|index| DataType::ALL.get(index).copied())
    }

    /// Returns the root or the peer, and the source of an exchange.
    pub(super) fn peers(self) -> [Option<usize>; 2] {
        [PEER_SHIFT, SECOND_PEER_SHIFT].map(|shift| {
            let peer = self.0 >> shift & NO_PEER;
            (peer != NO_PEER).then_some(peer as usize)
        })
    }

    pub(super) fn is_grouped(self) -> bool {
        self.0 & IS_GROUPED != 0
    }

    pub(super) fn is_first_of_group(self) -> bool {
        self.0 & IS_FIRST_OF_GROUP != 0
    }
}
