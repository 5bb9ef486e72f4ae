//! The functions that start operations. The recorded arguments are found by their names in `nccl.h`.

use std::ffi::{c_int, c_uint};
use std::ptr;

use libnccl::observer::{Extent, Operation};
use libnccl::sys::*;

use crate::arguments::Arguments;

/// A function that starts an operation, and the positions of its arguments.
#[derive(Clone, Copy)]
pub(crate) struct Starter {
    operation: &'static Operation,
    comm: Option<usize>,
    send: Option<usize>,
    recv: Option<usize>,
    count: Option<usize>,
    data_type: Option<usize>,
    /// The root or the other rank.
    rank: Option<usize>,
    stream: Option<usize>,
}

impl Starter {
    /// Returns the function with this name and these argument names, if it starts an operation.
    pub(crate) const fn find(function: &str, arguments: &[&str]) -> Option<Self> {
        let Some(operation) = Operation::of_function(function) else { return None };
        let [mut comm, mut send, mut recv, mut count, mut data_type, mut rank, mut stream] = [None; 7];
        let mut place = 0;
        while place < arguments.len() {
            let argument = match arguments[place].as_bytes() {
                b"comm" => &mut comm,
                b"sendbuff" => &mut send,
                b"recvbuff" => &mut recv,
                b"count" | b"sendcount" | b"recvcount" => &mut count,
                b"datatype" => &mut data_type,
                b"root" | b"peer" => &mut rank,
                b"stream" => &mut stream,
                _ => &mut None,
            };
            *argument = Some(place);
            place += 1;
        }
        Some(Self { operation, comm, send, recv, count, data_type, rank, stream })
    }

    /// Returns the communicator of a call.
    #[inline(always)]
    pub(crate) fn communicator(&self, words: &[usize]) -> ncclComm_t {
        self.comm.map_or(ptr::null_mut(), |place| ptr::with_exposed_provenance_mut(words[place]))
    }

    /// Returns the recorded arguments of a call on a communicator of this size.
    #[inline(always)]
    pub(crate) fn arguments(&self, words: &[usize], size: usize) -> Arguments {
        let word = |place: Option<usize>| place.map(|place| words[place]);
        let is_same = word(self.send).is_some() && word(self.send) == word(self.recv);
        let operation = match (self.operation.in_place_form(), self.operation.sends, self.operation.receives)
        {
            // If the buffers have different lengths, a call in place passes different addresses.
            (Some(in_place), Extent::Count, Extent::Count) if is_same => in_place,
            _ => self.operation,
        };
        let count = word(self.count).unwrap_or(0);
        Arguments {
            operation,
            data_type: word(self.data_type).map(|word| ncclDataType_t(word as c_uint)),
            elements: [operation.sends, operation.receives].map(|extent| extent.elements(count, size)),
            rank: word(self.rank).map(|word| word as c_int),
            stream: word(self.stream).unwrap_or(0),
        }
    }
}

/// An argument of a C function, read as one word: a number or an address.
pub(crate) trait Argument {
    fn word(self) -> usize;
}

impl<T> Argument for *const T {
    fn word(self) -> usize {
        self.expose_provenance()
    }
}

impl<T> Argument for *mut T {
    fn word(self) -> usize {
        self.expose_provenance()
    }
}

macro_rules! arguments {
    ($($type:ty: |$argument:pat_param| $word:expr;)*) => {
        $(
            impl Argument for $type {
                fn word(self) -> usize {
                    let $argument = self;
                    $word
                }
            }
        )*
    };
}

arguments! {
    usize: |word| word;
    c_int: |number| number as usize;
    c_uint: |number| number as usize;
    ncclDataType_t: |Self(number)| number as usize;
    // Not recorded.
    ncclRedOp_t: |_| 0;
    ncclResult_t: |_| 0;
    ncclScalarResidence_t: |_| 0;
    ncclCommMemStat_t: |_| 0;
    ncclUniqueId: |_| 0;
}
