//! The checks of operations: that of those with one count, and the rules for lengths, types, memory, devices and streams.

use super::call::{Call, Checked};
use crate::{
    Communicator, DataType, Error, Extent, InvalidArgumentKind, MemorySpace, Operation, Result, StreamRef,
};

/// Checks the arguments as the operation's row says, and returns the buffers as this rank uses them.
#[cfg_attr(not(debug_assertions), inline(always))]
pub(super) fn check_by_row(operation: &'static Operation, call: &Call<'_>) -> Result<Checked> {
    let Call { communicator, arguments, .. } = *call;
    let (name, size) = (operation.name, communicator.size());
    let is_by_send = operation.is_counted_by_send() && !operation.is_in_place;
    let data_type = if is_by_send { call.send.data_type() } else { call.recv.data_type() };
    let spaces = [call.send.memory_space(), call.recv.memory_space()];
    check_buffers(communicator, name, data_type, spaces, buffer_names(operation))?;
    arguments.operator.require(communicator.library())?;
    let (mut is_root, mut ranks) = (false, [0; 2]);
    if let [Some(rank), _] = arguments.ranks {
        let what = if operation.is_message() { "peer" } else { "root" };
        ranks[0] = to_c_rank(name, what, rank, size)?;
        is_root = communicator.rank() == rank;
    }
    let (is_sender, is_receiver) = (operation.is_sender(is_root), operation.is_receiver(is_root));

    let mut buffers = Checked { send: call.send, recv: call.recv, count: 0, ranks };
    if operation.is_in_place {
        let buffer = call.recv;
        let is_divided = operation.sends == Extent::CountPerRank && is_sender
            || operation.receives == Extent::CountPerRank && is_receiver;
        let mut own = buffer;
        if is_divided {
            check_divisible(name, "", buffer.len(), size)?;
            own = buffer.part(communicator.rank(), size);
        }
        let side = |extent, is_used| match extent {
            Extent::CountPerRank if is_used => buffer,
            Extent::CountPerRank => buffer.slice(0, 0),
            _ => own,
        };
        buffers.send = side(operation.sends, is_sender);
        buffers.recv = side(operation.receives, is_receiver);
    }

    // One buffer gives the count; the other one, if this rank uses it, has as many elements as that demands.
    let Checked { send, recv, .. } = buffers;
    let is_by_send = operation.is_counted_by_send();
    let (length, extent, other, other_extent, is_other_used) = if is_by_send {
        (send.len(), operation.sends, recv.len(), operation.receives, is_receiver)
    } else {
        (recv.len(), operation.receives, send.len(), operation.sends, is_sender)
    };
    buffers.count = match extent {
        Extent::CountPerRank => {
            check_divisible(name, "send ", length, size)?;
            length / size
        }
        Extent::One if length == 0 => {
            let problem = "the buffer is empty; expected one element";
            return Err(Error::argument(name, InvalidArgumentKind::Length, problem));
        }
        Extent::One => 1,
        _ => length,
    };
    let other_name = match (is_by_send, operation.has_root()) {
        (true, true) => "root's receive",
        (true, false) => "receive",
        (false, true) => "root's send",
        (false, false) => "send",
    };
    match other_extent {
        Extent::CountPerRank if is_other_used => {
            check_length(name, other_name, other, buffers.count, size)?;
        }
        Extent::Count if is_other_used => check_length(name, other_name, other, buffers.count, 1)?,
        _ => {}
    }
    Ok(buffers)
}

/// Returns the names of an operation's buffers, that which is sent and that which is received.
#[cfg_attr(not(debug_assertions), inline(always))]
pub(super) fn buffer_names(operation: &'static Operation) -> [&'static str; 2] {
    if operation.is_in_place { ["the buffer"; 2] } else { ["the send buffer", "the receive buffer"] }
}

/// Returns an error for an element type that the library does not know, and for host memory on a GPU or device memory
/// on the CPU implementation.
#[inline]
pub(crate) fn check_buffers<const N: usize>(
    communicator: &Communicator,
    call: &'static str,
    data_type: DataType,
    buffers: [Option<MemorySpace>; N],
    names: [&'static str; N],
) -> Result<()> {
    data_type.require(communicator.library())?;
    let expected = communicator.memory_space();
    match buffers.into_iter().flatten().find(|space| *space != expected) {
        Some(space) => Err(wrong_memory(call, name_of(space, buffers, names), space, expected)),
        None => Ok(()),
    }
}

/// Returns an error if a stream or a buffer belongs to another CUDA device than the communicator.
#[cfg_attr(not(debug_assertions), inline(always))]
pub(crate) fn check_devices<const N: usize>(
    communicator: &Communicator,
    call: &'static str,
    devices: [Option<i32>; N],
    names: [&'static str; N],
) -> Result<()> {
    match devices.into_iter().flatten().find(|device| *device != communicator.device()) {
        None => Ok(()),
        Some(device) => other_device(communicator, call, name_of(device, devices, names), device),
    }
}

/// Returns the name of the first that has the property. Looked for once a check has failed, so that checks do not carry it.
#[cold]
fn name_of<T: PartialEq, const N: usize>(
    property: T,
    all: [Option<T>; N],
    names: [&'static str; N],
) -> &'static str {
    let has_it = |(one, _): &(Option<T>, _)| one.as_ref() == Some(&property);
    all.into_iter().zip(names).find(has_it).map_or("a buffer", |(_, name)| name)
}

#[cold]
fn other_device(communicator: &Communicator, call: &'static str, what: &str, device: i32) -> Result<()> {
    // The numbers have no meaning there.
    if communicator.memory_space() == MemorySpace::Host {
        return Ok(());
    }
    let expected = communicator.device();
    let problem = format!("{what} is of device {device}; the communicator is of device {expected}");
    Err(Error::argument(call, InvalidArgumentKind::Device, problem))
}

#[cold]
fn wrong_memory(call: &'static str, buffer: &str, space: MemorySpace, expected: MemorySpace) -> Error {
    let problem = format!("{buffer} is in {space} memory; the communicator works on {expected} memory");
    Error::argument(call, InvalidArgumentKind::MemorySpace, problem)
}

/// Checks that a rank is below `size`, and converts it to C's type.
#[inline]
pub(crate) fn to_c_rank(call: &'static str, what: &str, rank: usize, size: usize) -> Result<i32> {
    i32::try_from(rank).ok().filter(|_| rank < size).ok_or_else(|| {
        let problem = format!("{what} {rank} is not below {size}, the communicator's size");
        Error::argument(call, InvalidArgumentKind::Rank, problem)
    })
}

/// Returns an error if a buffer with `length` elements is shorter than `count` elements times `ranks`.
#[inline]
pub(super) fn check_length(
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

/// Converts a number of C's type `int`.
pub(crate) fn to_c_int(call: &'static str, what: &str, value: u32) -> Result<i32> {
    i32::try_from(value).map_err(|_| {
        Error::argument(call, InvalidArgumentKind::Value, format!("{what} {value} is beyond {}", i32::MAX))
    })
}

/// Converts the length of a list.
pub(crate) fn to_c_length(call: &'static str, length: usize, what: &str) -> Result<i32> {
    i32::try_from(length).map_err(|_| {
        Error::argument(call, InvalidArgumentKind::Length, format!("{length} {what} are beyond {}", i32::MAX))
    })
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
    let problem = format!("the {buffer} buffer holds {length} elements, and needs {needed}{factors}");
    Error::argument(call, InvalidArgumentKind::Length, problem)
}

/// Returns an error if the length of a buffer is not a multiple of the communicator's size.
pub(super) fn check_divisible(call: &'static str, buffer: &str, length: usize, size: usize) -> Result<()> {
    if length.is_multiple_of(size) {
        return Ok(());
    }
    let problem = format!(
        "the {buffer}buffer's {length} elements are not a multiple of {size}, the communicator's size"
    );
    Err(Error::argument(call, InvalidArgumentKind::Length, problem))
}

/// Returns the sum of the counts, of which there is one for each of the `size` ranks; an error if there are more or fewer.
pub(super) fn sum_of_counts(call: &'static str, what: &str, counts: &[usize], size: usize) -> Result<usize> {
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
pub(super) fn check_own_count(
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
pub(super) fn check_own_exchange(call: &'static str, sent: usize, received: usize, what: &str) -> Result<()> {
    if sent == received {
        return Ok(());
    }
    let problem = format!("this rank sends {sent} elements to itself; {what} {received}");
    Err(Error::argument(call, InvalidArgumentKind::Length, problem))
}

/// Returns an error if a stream means another one on another thread, as which NCCL may work for a nonblocking communicator.
#[cfg_attr(not(debug_assertions), inline(always))]
pub(super) fn check_stream(
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
    let problem = "the stream's handle is 2, CUDA's default stream of each thread; expected a stream that is the same on all threads";
    Err(Error::argument(call, InvalidArgumentKind::Address, problem))
}
