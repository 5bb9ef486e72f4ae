//! The checks of arguments that operations and other methods have in common, and their conversion to C.

use super::communicator::Communicator;
use crate::{DataType, Error, InvalidArgumentKind, MemorySpace, Result};

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
