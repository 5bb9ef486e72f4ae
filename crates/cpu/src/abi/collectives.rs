//! Collectives.
#![allow(unsafe_code, non_snake_case)]

use std::ffi::{c_int, c_void};
use std::sync::Arc;

use libnccl::sys::{cudaStream_t, ncclComm_t, ncclDataType_t, ncclRedOp_t, ncclResult_t};

use super::{answer_in_group, check, rank_of};
use crate::buffer::{Source, Target};
use crate::collective::{Call, Function, Part};
use crate::communicator::{Communicator, Membership};
use crate::data_type::DataType;
use crate::failure::Progress;
use crate::group::{self, Lane};
use crate::handle;

/// The arguments of a collective.
struct Arguments {
    function: Function,
    send: *const c_void,
    receive: *mut c_void,
    count: usize,
    datatype: ncclDataType_t,
    op: Option<ncclRedOp_t>,
    root: c_int,
    comm: ncclComm_t,
}

/// # Safety
///
/// The contract of the function that was called.
unsafe fn collective(arguments: &Arguments) -> ncclResult_t {
    let Arguments { function, send, receive, count, datatype, op, root, comm } = *arguments;
    let call = |communicator: &Arc<Communicator>| {
        let Membership { world, rank, .. } = communicator.ready()?;
        let (rank, ranks) = (*rank, world.ranks());
        let root = rank_of(root, ranks, "root")?;
        let data_type = DataType::new(datatype)?;
        let (reduction, scalar) = op.map(|op| communicator.reduction(op, data_type)).transpose()?.unzip();
        data_type.bytes(count.saturating_mul(ranks))?;
        if count == 0 {
            return Ok(Progress::Done);
        }
        let call = Call::new(function, count, data_type, reduction, root, ranks);
        let (input, output) = (call.input(rank), call.output(rank));
        if input > 0 {
            check(send, "the send buffer")?;
        }
        if output > 0 {
            check(receive, "the receive buffer")?;
        }
        // SAFETY: the caller's contract: the buffers are as long as the function says and stay until the
        // call, or the group, has ended, and with it every use of these.
        let (send, receive) =
            unsafe { (Source::new(send.cast(), input), Target::new(receive.cast(), output)) };
        group::run(communicator, Lane::Collective, input.saturating_add(output), async move |own| {
            let part = Part { seat: own.seat()?, send, receive };
            match scalar.flatten() {
                // On the heap, so that the usual one stays small.
                Some(scalar) => Box::pin(call.with_scalar(scalar).run(&part)).await,
                None => call.run(&part).await,
            }
        })
    };
    answer_in_group(function.name(), || handle::with(comm, call))
}

pub(crate) unsafe extern "C" fn ncclReduce(
    send: *const c_void,
    receive: *mut c_void,
    count: usize,
    datatype: ncclDataType_t,
    op: ncclRedOp_t,
    root: c_int,
    comm: ncclComm_t,
    _: cudaStream_t,
) -> ncclResult_t {
    let (function, op) = (Function::Reduce, Some(op));
    // SAFETY: the same contract.
    unsafe { collective(&Arguments { function, send, receive, count, datatype, op, root, comm }) }
}

pub(crate) unsafe extern "C" fn ncclBcast(
    buff: *mut c_void,
    count: usize,
    datatype: ncclDataType_t,
    root: c_int,
    comm: ncclComm_t,
    stream: cudaStream_t,
) -> ncclResult_t {
    // SAFETY: a broadcast in place.
    unsafe { ncclBroadcast(buff, buff, count, datatype, root, comm, stream) }
}

pub(crate) unsafe extern "C" fn ncclBroadcast(
    send: *const c_void,
    receive: *mut c_void,
    count: usize,
    datatype: ncclDataType_t,
    root: c_int,
    comm: ncclComm_t,
    _: cudaStream_t,
) -> ncclResult_t {
    let (function, op) = (Function::Broadcast, None);
    // SAFETY: the same contract.
    unsafe { collective(&Arguments { function, send, receive, count, datatype, op, root, comm }) }
}

pub(crate) unsafe extern "C" fn ncclAllReduce(
    send: *const c_void,
    receive: *mut c_void,
    count: usize,
    datatype: ncclDataType_t,
    op: ncclRedOp_t,
    comm: ncclComm_t,
    _: cudaStream_t,
) -> ncclResult_t {
    let (function, op, root) = (Function::AllReduce, Some(op), 0);
    // SAFETY: the same contract.
    unsafe { collective(&Arguments { function, send, receive, count, datatype, op, root, comm }) }
}

pub(crate) unsafe extern "C" fn ncclReduceScatter(
    send: *const c_void,
    receive: *mut c_void,
    count: usize,
    datatype: ncclDataType_t,
    op: ncclRedOp_t,
    comm: ncclComm_t,
    _: cudaStream_t,
) -> ncclResult_t {
    let (function, op, root) = (Function::ReduceScatter, Some(op), 0);
    // SAFETY: the same contract.
    unsafe { collective(&Arguments { function, send, receive, count, datatype, op, root, comm }) }
}

pub(crate) unsafe extern "C" fn ncclAllGather(
    send: *const c_void,
    receive: *mut c_void,
    count: usize,
    datatype: ncclDataType_t,
    comm: ncclComm_t,
    _: cudaStream_t,
) -> ncclResult_t {
    let (function, op, root) = (Function::AllGather, None, 0);
    // SAFETY: the same contract.
    unsafe { collective(&Arguments { function, send, receive, count, datatype, op, root, comm }) }
}

pub(crate) unsafe extern "C" fn ncclAlltoAll(
    send: *const c_void,
    receive: *mut c_void,
    count: usize,
    datatype: ncclDataType_t,
    comm: ncclComm_t,
    _: cudaStream_t,
) -> ncclResult_t {
    let (function, op, root) = (Function::AlltoAll, None, 0);
    // SAFETY: the same contract.
    unsafe { collective(&Arguments { function, send, receive, count, datatype, op, root, comm }) }
}

pub(crate) unsafe extern "C" fn ncclGather(
    send: *const c_void,
    receive: *mut c_void,
    count: usize,
    datatype: ncclDataType_t,
    root: c_int,
    comm: ncclComm_t,
    _: cudaStream_t,
) -> ncclResult_t {
    let (function, op) = (Function::Gather, None);
    // SAFETY: the same contract.
    unsafe { collective(&Arguments { function, send, receive, count, datatype, op, root, comm }) }
}

pub(crate) unsafe extern "C" fn ncclScatter(
    send: *const c_void,
    receive: *mut c_void,
    count: usize,
    datatype: ncclDataType_t,
    root: c_int,
    comm: ncclComm_t,
    _: cudaStream_t,
) -> ncclResult_t {
    let (function, op) = (Function::Scatter, None);
    // SAFETY: the same contract.
    unsafe { collective(&Arguments { function, send, receive, count, datatype, op, root, comm }) }
}
