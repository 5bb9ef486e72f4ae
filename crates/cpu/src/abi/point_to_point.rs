//! Send and receive.
#![allow(unsafe_code, non_snake_case)]

use std::ffi::{c_int, c_void};
use std::sync::Arc;

use libnccl::sys::{cudaStream_t, ncclComm_t, ncclDataType_t, ncclResult_t};

use super::ffi_guard::{check_not_null, check_rank, guard_operation};
use crate::coll::point_to_point::{Message, RecvMessage, SendMessage};
use crate::comm::communicator::Communicator;
use crate::comm::group;
use crate::comm::handle;
use crate::comm::queue::Queue;
use crate::cuda::driver::Stream;
use crate::diag::error::{Progress, Result};
use crate::diag::settings::STRICT;
use crate::reduce::data_type::DataType;
use crate::shm::buffer::{ReadBuf, WriteBuf};
use crate::shm::call_context::CallContext;

/// Checks the arguments of a send or a receive. Returns the message and the peer, or `None` if there is nothing to do.
///
/// No elements are no message, on neither side, but in strict mode: a receiver that expects some waits until there are.
/// In NCCL they are a message, for which the receiver waits.
fn message<'a>(
    buffer: *const c_void,
    count: usize,
    datatype: ncclDataType_t,
    peer: c_int,
    communicator: &'a Communicator,
) -> Result<Option<(CallContext<'a>, Message, usize)>> {
    let context = communicator.check_operable()?;
    let peer = check_rank(peer, context.state.ranks(), "peer")?;
    let data_type = DataType::new(datatype)?;
    data_type.bytes(count)?;
    if count == 0 && !*STRICT {
        return Ok(None);
    }
    if count > 0 {
        check_not_null(buffer, "the buffer")?;
    }
    Ok(Some((context, Message { count, data_type }, peer)))
}

pub(super) unsafe extern "C" fn ncclSend(
    sendbuff: *const c_void,
    count: usize,
    datatype: ncclDataType_t,
    peer: c_int,
    comm: ncclComm_t,
    stream: cudaStream_t,
) -> ncclResult_t {
    let call = |communicator: &Arc<Communicator>| {
        let Some((context, message, peer)) = message(sendbuff, count, datatype, peer, communicator)? else {
            return Ok(Progress::Done);
        };
        // SAFETY: the C declaration's contract, as for collectives.
        let from = unsafe { ReadBuf::of_caller(sendbuff.cast(), message.bytes()) };
        let send = SendMessage { message, peer, from };
        group::run(communicator, context, Queue::SendTo(peer), from.length(), send, Stream::new(stream))
    };
    guard_operation("ncclSend", || handle::with(comm, call))
}

pub(super) unsafe extern "C" fn ncclRecv(
    recvbuff: *mut c_void,
    count: usize,
    datatype: ncclDataType_t,
    peer: c_int,
    comm: ncclComm_t,
    stream: cudaStream_t,
) -> ncclResult_t {
    let call = |communicator: &Arc<Communicator>| {
        let Some((context, message, peer)) = message(recvbuff, count, datatype, peer, communicator)? else {
            return Ok(Progress::Done);
        };
        // SAFETY: the C declaration's contract, as for collectives.
        let to = unsafe { WriteBuf::of_caller(recvbuff.cast(), message.bytes()) };
        let recv = RecvMessage { message, peer, to };
        group::run(communicator, context, Queue::ReceiveFrom(peer), to.length(), recv, Stream::new(stream))
    };
    guard_operation("ncclRecv", || handle::with(comm, call))
}
