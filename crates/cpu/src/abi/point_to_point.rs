//! Sends and receives.
#![allow(unsafe_code, non_snake_case)]

use std::ffi::{c_int, c_void};
use std::sync::Arc;

use libnccl::sys::{cudaStream_t, ncclComm_t, ncclDataType_t, ncclResult_t};

use super::{answer_in_group, check, rank_of};
use crate::buffer::{Source, Target};
use crate::communicator::Communicator;
use crate::data_type::DataType;
use crate::failure::{Progress, Result};
use crate::group::{self, Lane};
use crate::handle;
use crate::point_to_point::{Message, Way};

/// Checks the arguments of a send or a receive. `None` if there is nothing to do.
///
/// No elements are no message, on neither side: who expects some waits until there are.
fn message(
    buffer: *const c_void,
    count: usize,
    datatype: ncclDataType_t,
    peer: c_int,
    communicator: &Communicator,
) -> Result<Option<(Message, usize)>> {
    let peer = rank_of(peer, communicator.ready()?.world.ranks(), "peer")?;
    let data_type = DataType::new(datatype)?;
    data_type.bytes(count)?;
    if count == 0 {
        return Ok(None);
    }
    check(buffer, "the buffer")?;
    Ok(Some((Message { count, data_type }, peer)))
}

pub(crate) unsafe extern "C" fn ncclSend(
    sendbuff: *const c_void,
    count: usize,
    datatype: ncclDataType_t,
    peer: c_int,
    comm: ncclComm_t,
    _: cudaStream_t,
) -> ncclResult_t {
    let call = |communicator: &Arc<Communicator>| {
        let Some((message, peer)) = message(sendbuff, count, datatype, peer, communicator)? else {
            return Ok(Progress::Done);
        };
        // SAFETY: the C declaration's contract, as for collectives.
        let from = unsafe { Source::new(sendbuff.cast(), message.count * message.data_type.size()) };
        group::run(communicator, Lane::SendTo(peer), from.length(), async move |own| {
            message.send(Way { seat: own.seat()?, peer }, from).await
        })
    };
    answer_in_group("ncclSend", || handle::with(comm, call))
}

pub(crate) unsafe extern "C" fn ncclRecv(
    recvbuff: *mut c_void,
    count: usize,
    datatype: ncclDataType_t,
    peer: c_int,
    comm: ncclComm_t,
    _: cudaStream_t,
) -> ncclResult_t {
    let call = |communicator: &Arc<Communicator>| {
        let Some((message, peer)) = message(recvbuff, count, datatype, peer, communicator)? else {
            return Ok(Progress::Done);
        };
        // SAFETY: the C declaration's contract, as for collectives.
        let to = unsafe { Target::new(recvbuff.cast(), message.count * message.data_type.size()) };
        let bytes = to.length();
        group::run(communicator, Lane::ReceiveFrom(peer), bytes, async move |own| {
            message.receive(Way { seat: own.seat()?, peer }, to).await
        })
    };
    answer_in_group("ncclRecv", || handle::with(comm, call))
}
