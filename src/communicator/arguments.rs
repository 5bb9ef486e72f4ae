//! The checks of arguments that several operations have, and their conversion to C.

use super::communicator::Communicator;
use crate::{DataType, Error, InvalidArgumentKind, MemorySpace, Result, StreamRef};

/// Returns an error for an element type that the library does not know, and for host memory on a GPU or device memory
/// on the CPU implementation.
#[inline]
pub(crate) fn check_buffers<const N: usize>(
    communicator: &Communicator,
    call: &'static str,
    data_type: DataType,
    buffers: [Option<MemorySpace>; N],
) -> Result<()> {
    data_type.require(communicator.library())?;
    let expected = communicator.memory_space();
    match buffers.into_iter().flatten().find(|space| *space != expected) {
        Some(space) => Err(wrong_memory(call, space, expected)),
        None => Ok(()),
    }
}

/// Returns an error if the element types, known at run time, of an operation's buffers differ.
pub(crate) fn check_data_types(call: &'static str, first: DataType, second: DataType) -> Result<()> {
    if first == second { Ok(()) } else { Err(different_data_types(call, first, second)) }
}

#[cold]
fn different_data_types(call: &'static str, first: DataType, second: DataType) -> Error {
    Error::argument(
        call,
        InvalidArgumentKind::DataType,
        format!("the elements of one buffer are {first}, those of the other {second}"),
    )
}

/// Returns an error if a stream means another one on another thread, as which NCCL may work for a nonblocking communicator.
#[inline(always)]
pub(crate) fn check_stream(
    communicator: &Communicator,
    call: &'static str,
    stream: StreamRef<'_>,
) -> Result<()> {
    if stream.is_per_thread() { per_thread_stream(communicator, call) } else { Ok(()) }
}

#[cold]
fn per_thread_stream(communicator: &Communicator, call: &'static str) -> Result<()> {
    // The handle has no meaning there.
    if communicator.memory_space() == MemorySpace::Host {
        return Ok(());
    }
    Err(Error::argument(
        call,
        InvalidArgumentKind::Address,
        "the stream's handle is 2, CUDA's default stream of each thread; expected a stream that is the same on all threads",
    ))
}

/// Returns an error if a stream or a buffer belongs to another CUDA device than the communicator.
#[inline(always)]
pub(crate) fn check_devices<const N: usize>(
    communicator: &Communicator,
    call: &'static str,
    devices: [Option<i32>; N],
) -> Result<()> {
    match devices.into_iter().flatten().find(|device| *device != communicator.device()) {
        None => Ok(()),
        Some(device) => other_device(communicator, call, device),
    }
}

#[cold]
fn other_device(communicator: &Communicator, call: &'static str, device: i32) -> Result<()> {
    // The numbers have no meaning there.
    if communicator.memory_space() == MemorySpace::Host {
        return Ok(());
    }
    let expected = communicator.device();
    Err(Error::argument(
        call,
        InvalidArgumentKind::Device,
        format!("a buffer or stream is of device {device}; the communicator is of device {expected}"),
    ))
}

#[cold]
fn wrong_memory(call: &'static str, space: MemorySpace, expected: MemorySpace) -> Error {
    Error::argument(
        call,
        InvalidArgumentKind::MemorySpace,
        format!("a buffer is in {space} memory; the communicator works on {expected} memory"),
    )
}

/// Returns an error if a buffer with `length` elements is shorter than `count` elements times `ranks`.
#[inline]
pub(crate) fn check_length(
    call: &'static str,
    buffer: &str,
    length: usize,
    count: usize,
    ranks: usize,
) -> Result<()> {
    match count.checked_mul(ranks) {
        Some(needed) if needed <= length => Ok(()),
        needed => Err(too_short(call, buffer, length, needed, (count, ranks))),
    }
}

#[cold]
fn too_short(
    call: &'static str,
    buffer: &str,
    length: usize,
    needed: Option<usize>,
    (count, ranks): (usize, usize),
) -> Error {
    let needed = needed.map_or_else(|| "more than usize::MAX".into(), |needed| needed.to_string());
    let factors = if ranks == 1 { String::new() } else { format!(", {ranks} ranks times {count}") };
    Error::argument(
        call,
        InvalidArgumentKind::Length,
        format!("the {buffer} buffer holds {length} elements, and needs {needed}{factors}"),
    )
}

/// Returns an error if the length of a buffer is not a multiple of the communicator's size.
pub(crate) fn check_divisible(call: &'static str, buffer: &str, length: usize, size: usize) -> Result<()> {
    if length.is_multiple_of(size) {
        return Ok(());
    }
    Err(Error::argument(
        call,
        InvalidArgumentKind::Length,
        format!(
            "the {buffer}buffer's {length} elements are not a multiple of {size}, the communicator's size"
        ),
    ))
}

/// Returns the sum of the counts, of which there is one for each of the `size` ranks; an error if there are more or fewer.
pub(crate) fn sum_of_counts(call: &'static str, what: &str, counts: &[usize], size: usize) -> Result<usize> {
    if counts.len() != size {
        let problem = format!("{} {what}; expected {size}, one for each rank", counts.len());
        return Err(Error::argument(call, InvalidArgumentKind::Length, problem));
    }
    counts.iter().try_fold(0_usize, |sum, count| sum.checked_add(*count)).ok_or_else(|| {
        let problem = format!("the sum of the {what} is more than usize::MAX");
        Error::argument(call, InvalidArgumentKind::Length, problem)
    })
}

/// Returns an error if a buffer has another length than this rank's count.
pub(crate) fn check_own_count(
    call: &'static str,
    buffer: &str,
    length: usize,
    count: usize,
    rank: usize,
) -> Result<()> {
    if length == count {
        return Ok(());
    }
    let problem =
        format!("the {buffer} buffer holds {length} elements; expected {count}, the count of rank {rank}");
    Err(Error::argument(call, InvalidArgumentKind::Length, problem))
}

/// Returns an error if a rank sends another number of elements to itself than it receives.
pub(crate) fn check_own_exchange(call: &'static str, sent: usize, received: usize, what: &str) -> Result<()> {
    if sent == received {
        return Ok(());
    }
    let problem = format!("this rank sends {sent} elements to itself; {what} {received}");
    Err(Error::argument(call, InvalidArgumentKind::Length, problem))
}

/// Checks that a rank is below `size`, and converts it to C's type.
#[inline]
pub(crate) fn to_c_rank(call: &'static str, what: &str, rank: usize, size: usize) -> Result<i32> {
    i32::try_from(rank).ok().filter(|_| rank < size).ok_or_else(|| {
        Error::argument(
            call,
            InvalidArgumentKind::Rank,
            format!("{what} {rank} is not below {size}, the communicator's size"),
        )
    })
}

/// A size and a rank below it, in C's types.
pub(super) struct SizeAndRank {
    pub(super) size: i32,
    pub(super) rank: i32,
}

impl SizeAndRank {
    pub(crate) fn new(call: &'static str, size: usize, rank: usize) -> Result<Self> {
        let (Ok(c_size), Ok(c_rank)) = (i32::try_from(size), i32::try_from(rank)) else {
            return Err(Error::argument(
                call,
                InvalidArgumentKind::Rank,
                format!("size {size} or rank {rank} is beyond {}", i32::MAX),
            ));
        };
        if rank >= size {
            return Err(Error::argument(
                call,
                InvalidArgumentKind::Rank,
                format!("rank {rank} is not below the size {size}"),
            ));
        }
        Ok(Self { size: c_size, rank: c_rank })
    }
}
