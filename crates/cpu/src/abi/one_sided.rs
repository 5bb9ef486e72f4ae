//! One-sided operations.
#![allow(unsafe_code, non_snake_case)]

use std::ffi::{c_int, c_uint, c_void};
use std::slice;
use std::sync::Arc;

use libnccl::sys::{
    cudaStream_t, ncclComm_t, ncclDataType_t, ncclResult_t, ncclWaitSignalDesc_t, ncclWindow_t,
};

use super::{answer_in_group, check, rank_of};
use crate::buffer::Source;
use crate::communicator::{Communicator, Membership};
use crate::data_type::DataType;
use crate::failure::{Failure, Result};
use crate::group::{self, Lane};
use crate::handle;
use crate::one_sided::{self, Awaited, Put};

pub(crate) unsafe extern "C" fn ncclPutSignal(
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
    _: cudaStream_t,
) -> ncclResult_t {
    answer_in_group("ncclPutSignal", || {
        let communicator = handle::get(comm)?;
        let Membership { world, rank, .. } = communicator.ready()?;
        let (world, rank) = (Arc::clone(world), *rank);
        let (peer, signal) = raised(&communicator, peer, sigIdx, ctx, flags)?;
        let bytes = DataType::new(datatype)?.bytes(count)?;
        let window = communicator.windows().get(peerWin.addr())?;
        let part = window.part(peer);
        let to = part.target(peerWinOffset, bytes).ok_or_else(|| {
            Failure::argument(format!(
                "{bytes} bytes at offset {peerWinOffset} are not inside the window, of which rank {peer}'s part \
                 has {} bytes",
                part.length()
            ))
        })?;
        if bytes > 0 {
            check(localbuff, "the local buffer")?;
            if !communicator.windows().hold(localbuff.addr(), bytes) {
                return Err(Failure::argument(format!(
                    "the local buffer, {bytes} bytes at {localbuff:p}, is not inside a window of this rank"
                )));
            }
        }
        if (1..bytes).contains(&localbuff.addr().abs_diff(to.start().addr())) {
            return Err(Failure::argument(format!(
                "the local buffer, {bytes} bytes at {localbuff:p}, overlaps with where they go, {:p}",
                to.start()
            )));
        }
        // SAFETY: the C declaration's contract, as for collectives.
        let from = unsafe { Source::new(localbuff.cast(), bytes) };
        let put = Put { from, to };
        group::run(&communicator, Lane::Put, bytes.saturating_mul(2), async move |_| {
            // The part that is written stays in reach until then.
            let _window = &window;
            put.run();
            one_sided::raise(&world, rank, peer, signal)
        })
    })
}

pub(crate) unsafe extern "C" fn ncclSignal(
    peer: c_int,
    sigIdx: c_int,
    ctx: c_int,
    flags: c_uint,
    comm: ncclComm_t,
    _: cudaStream_t,
) -> ncclResult_t {
    answer_in_group("ncclSignal", || {
        let communicator = handle::get(comm)?;
        let Membership { world, rank, .. } = communicator.ready()?;
        let (world, rank) = (Arc::clone(world), *rank);
        let (peer, signal) = raised(&communicator, peer, sigIdx, ctx, flags)?;
        check_signals(&communicator)?;
        group::run(&communicator, Lane::Put, 0, async move |_| one_sided::raise(&world, rank, peer, signal))
    })
}

pub(crate) unsafe extern "C" fn ncclWaitSignal(
    nDesc: c_int,
    signalDescs: *mut ncclWaitSignalDesc_t,
    comm: ncclComm_t,
    _: cudaStream_t,
) -> ncclResult_t {
    answer_in_group("ncclWaitSignal", || {
        let communicator = handle::get(comm)?;
        let Membership { world, rank, .. } = communicator.ready()?;
        let (world, rank) = (Arc::clone(world), *rank);
        let number = usize::try_from(nDesc)
            .map_err(|_| Failure::argument(format!("invalid number of signals to wait for: {nDesc}")))?;
        let mut all = vec![];
        if number > 0 {
            check(signalDescs, "the descriptions of signals")?;
            // SAFETY: the C declaration's contract: as many entries.
            let descriptions = unsafe { slice::from_raw_parts(signalDescs, number) };
            all.reserve_exact(number);
            for description in descriptions {
                all.push(awaited(&communicator, world.ranks(), description)?);
            }
        }
        check_signals(&communicator)?;
        group::run(&communicator, Lane::Wait, 0, async move |_| one_sided::wait(&world, rank, &all).await)
    })
}

fn awaited(communicator: &Communicator, ranks: usize, description: &ncclWaitSignalDesc_t) -> Result<Awaited> {
    let ncclWaitSignalDesc_t { opCnt, peer, sigIdx, ctx } = *description;
    let raises = u64::try_from(opCnt)
        .map_err(|_| Failure::argument(format!("invalid opCnt {opCnt}: it cannot be negative")))?;
    let (peer, signal) = (rank_of(peer, ranks, "peer")?, signal(communicator, sigIdx, ctx)?);
    Ok(Awaited { peer, signal, raises })
}

/// The peer and the signal that a call raises.
fn raised(
    communicator: &Communicator,
    peer: c_int,
    sigIdx: c_int,
    ctx: c_int,
    flags: c_uint,
) -> Result<(usize, usize)> {
    if flags != 0 {
        return Err(Failure::argument(format!("invalid flags {flags:#x}: they have to be 0")));
    }
    let ranks = communicator.ready()?.world.ranks();
    Ok((rank_of(peer, ranks, "peer")?, signal(communicator, sigIdx, ctx)?))
}

/// The number of a signal among all of a pair of ranks.
fn signal(communicator: &Communicator, sigIdx: c_int, ctx: c_int) -> Result<usize> {
    let options = communicator.options();
    let inside = |what, value: c_int, option, bound: c_int| {
        if (0..bound).contains(&value) {
            return Ok(value as usize);
        }
        Err(Failure::argument(format!(
            "invalid {what} {value}: it has to be in 0..{bound}, as {option} in the config says"
        )))
    };
    let context = inside("ctx", ctx, "numRmaCtx", options.contexts)?;
    let signal = inside("sigIdx", sigIdx, "numRmaSig", options.signals)?;
    Ok(context * options.signals as usize + signal)
}

/// NCCL prepares signals with the first window.
fn check_signals(communicator: &Communicator) -> Result {
    if communicator.windows().ever() || communicator.options().eager_signals {
        return Ok(());
    }
    Err(Failure::usage(
        "there are no signals before there is a window: call ncclCommWindowRegister, or set rmaEagerInit in the \
         config",
    ))
}
