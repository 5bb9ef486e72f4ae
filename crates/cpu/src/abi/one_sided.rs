//! One-sided operations.
#![allow(unsafe_code, non_snake_case)]

use std::ffi::{c_int, c_uint, c_void};
use std::slice;

use libnccl::sys::{
    cudaStream_t, ncclComm_t, ncclDataType_t, ncclResult_t, ncclWaitSignalDesc_t, ncclWindow_t,
};

use super::ffi_guard::{check_not_null, check_rank, guard_operation};
use crate::coll::one_sided::{AwaitedSignal, PutSignal, Signal, WaitSignals};
use crate::comm::communicator::Communicator;
use crate::comm::group;
use crate::comm::handle;
use crate::comm::queue::Queue;
use crate::cuda::driver::Stream;
use crate::diag::error::{Error, Result};
use crate::reduce::data_type::DataType;
use crate::shm::buffer::ReadBuf;
use crate::shm::layout::SIGNALS;

pub(super) unsafe extern "C" fn ncclPutSignal(
    localbuff: *const c_void,
    count: usize,
    datatype: ncclDataType_t,
    peer: c_int,
    peerWin: ncclWindow_t,
    peerWinOffset: usize,
    sigIdx: c_int,
    ctx: c_int,
    flags: c_uint,
    comm: ncclComm_t,
    stream: cudaStream_t,
) -> ncclResult_t {
    guard_operation("ncclPutSignal", || {
        let communicator = handle::get(comm)?;
        let context = communicator.check_operable()?;
        let signal = raised(&communicator, context.state.ranks(), peer, sigIdx, ctx, flags)?;
        let bytes = DataType::new(datatype)?.bytes(count)?;
        let window = communicator.windows().get(peerWin.addr())?;
        let part = window.part(signal.peer);
        let to = part.write_buf(peerWinOffset, bytes).ok_or_else(|| {
            Error::argument(format!(
                "{bytes} bytes at offset {peerWinOffset} are not inside the window: rank {peer}'s part has {} bytes",
                part.length()
            ))
        })?;
        check_not_null(localbuff, "the local buffer")?;
        if !communicator.windows().contain(localbuff.addr(), bytes) {
            return Err(Error::argument(format!(
                "the local buffer, {bytes} bytes at {localbuff:p}, is not inside a window of this rank with \
                 NCCL_WIN_COLL_SYMMETRIC"
            )));
        }
        let local = match communicator.driver() {
            Some(driver) if bytes > 0 => driver.resolve("the local buffer", localbuff.addr(), bytes)?,
            _ => localbuff.addr(),
        };
        if (1..bytes).contains(&local.abs_diff(to.start().addr())) {
            return Err(Error::argument(format!(
                "the local buffer, {bytes} bytes at {localbuff:p}, overlaps with the destination, offset \
                 {peerWinOffset} of rank {peer}'s part of the window"
            )));
        }
        // SAFETY: the C declaration's contract, as for collectives.
        let from = unsafe { ReadBuf::of_caller(localbuff.cast(), bytes) };
        let put = PutSignal { from, to, window, signal };
        group::run(&communicator, context, Queue::Put, bytes.saturating_mul(2), put, Stream::new(stream))
    })
}

pub(super) unsafe extern "C" fn ncclSignal(
    peer: c_int,
    sigIdx: c_int,
    ctx: c_int,
    flags: c_uint,
    comm: ncclComm_t,
    stream: cudaStream_t,
) -> ncclResult_t {
    guard_operation("ncclSignal", || {
        let communicator = handle::get(comm)?;
        let context = communicator.check_operable()?;
        let signal = raised(&communicator, context.state.ranks(), peer, sigIdx, ctx, flags)?;
        check_signals(&communicator)?;
        group::run(&communicator, context, Queue::Put, 0, signal, Stream::new(stream))
    })
}

pub(super) unsafe extern "C" fn ncclWaitSignal(
    nDesc: c_int,
    signalDescs: *mut ncclWaitSignalDesc_t,
    comm: ncclComm_t,
    stream: cudaStream_t,
) -> ncclResult_t {
    guard_operation("ncclWaitSignal", || {
        let communicator = handle::get(comm)?;
        let context = communicator.check_operable()?;
        let number = usize::try_from(nDesc).ok().filter(|number| *number > 0).ok_or_else(|| {
            Error::argument(format!(
                "invalid number of signals to wait for: {nDesc}, it has to be at least 1"
            ))
        })?;
        check_not_null(signalDescs, "the signal descriptors")?;
        // SAFETY: the C declaration's contract: as many entries.
        let descriptions = unsafe { slice::from_raw_parts(signalDescs, number) };
        let mut all = Vec::with_capacity(number);
        for description in descriptions {
            all.push(awaited(&communicator, context.state.ranks(), description)?);
        }
        check_signals(&communicator)?;
        group::run(&communicator, context, Queue::Wait, 0, WaitSignals(all), Stream::new(stream))
    })
}

fn awaited(
    communicator: &Communicator,
    ranks: usize,
    description: &ncclWaitSignalDesc_t,
) -> Result<AwaitedSignal> {
    let ncclWaitSignalDesc_t { opCnt, peer, sigIdx, ctx } = *description;
    let count = u64::try_from(opCnt)
        .ok()
        .filter(|count| *count > 0)
        .ok_or_else(|| Error::argument(format!("invalid opCnt {opCnt}: it has to be at least 1")))?;
    let (peer, index) = (check_rank(peer, ranks, "peer")?, signal_index(communicator, sigIdx, ctx)?);
    Ok(AwaitedSignal { peer, index, count })
}

/// Checks the arguments of a call that raises a signal.
fn raised(
    communicator: &Communicator,
    ranks: usize,
    peer: c_int,
    sigIdx: c_int,
    ctx: c_int,
    flags: c_uint,
) -> Result<Signal> {
    if flags != 0 {
        return Err(Error::argument(format!("invalid flags {flags:#x}: they have to be 0")));
    }
    let peer = check_rank(peer, ranks, "peer")?;
    Ok(Signal { peer, index: signal_index(communicator, sigIdx, ctx)? })
}

/// Returns the index of a signal among all of a pair of ranks.
fn signal_index(communicator: &Communicator, sigIdx: c_int, ctx: c_int) -> Result<usize> {
    let config = communicator.config();
    let inside = |what, value: c_int, option, bound: c_int| {
        if (0..bound).contains(&value) {
            return Ok(value as usize);
        }
        Err(Error::argument(format!(
            "invalid {what} {value}: it has to be in 0..{bound}, as {option} in the config says"
        )))
    };
    let context = inside("ctx", ctx, "numRmaCtx", config.contexts)?;
    let signal = inside("sigIdx", sigIdx, "numRmaSig", config.signals)?;
    let index = context * config.signals as usize + signal;
    if index < SIGNALS {
        return Ok(index);
    }
    Err(Error::argument(format!(
        "sigIdx {sigIdx} of ctx {ctx} is signal {index} of a rank, with numRmaSig {} in the config, and there are {SIGNALS} here",
        config.signals
    )))
}

/// Checks that signals can be used: NCCL prepares them with the first window.
fn check_signals(communicator: &Communicator) -> Result {
    if communicator.windows().any_registered() || communicator.config().eager_signals {
        return Ok(());
    }
    Err(Error::usage(
        "there are no signals before there is a window: call ncclCommWindowRegister, or set rmaEagerInit in the \
         config",
    ))
}
