//! One-sided operations: put into another rank's part of a window, signal, and wait for signals.
//!
//! A signal is a pair of counters for each pair of ranks. One counts how often the signal was raised; only the raising rank writes it. The
//! other counts how many of these signals were awaited; only the waiting rank writes it.
#![allow(unsafe_code, non_snake_case)]

use std::ffi::{c_int, c_uint, c_void};
use std::slice;
use std::sync::Arc;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use libnccl::sys::{
    cudaStream_t, ncclComm_t, ncclDataType_t, ncclResult_t, ncclWaitSignalDesc_t, ncclWindow_t,
};

use super::guard::{check_not_null, check_rank, guard_in_group};
use crate::coll::call::{CallHeader, PeerCall};
use crate::coll::operation::{OnStream, Operation};
use crate::comm::communicator::Communicator;
use crate::comm::window::Window;
use crate::comm::{group, handle};
use crate::diag::error::{Error, Result};
use crate::reduce::data_type::DataType;
use crate::shm::buffer::{BufferRange, ReadBuf, WriteBuf};
use crate::shm::call_context::CallContext;
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
    guard_in_group("ncclPutSignal", || {
        let communicator = handle::get(comm)?;
        let context = communicator.check_operable()?;
        check_flags(flags)?;
        let signal = Signal::new(&communicator, context, peer, sigIdx, ctx)?;
        let bytes = DataType::new(datatype)?.bytes(count)?;
        let window = communicator.windows.get(peerWin.addr())?;
        let part = window.part(signal.peer);
        let to = part.write_buf(peerWinOffset, bytes).ok_or_else(|| {
            Error::argument(format!(
                "{bytes} bytes at offset {peerWinOffset} are not inside the window: rank {peer}'s part has {} bytes",
                part.length()
            ))
        })?;
        check_not_null(localbuff, "the local buffer")?;
        if communicator.windows.find(|window| window.contains(localbuff.addr(), bytes)).is_none() {
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
        group::run(&communicator, context, put, stream)
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
    guard_in_group("ncclSignal", || {
        let communicator = handle::get(comm)?;
        let context = communicator.check_operable()?;
        check_flags(flags)?;
        let signal = Signal::new(&communicator, context, peer, sigIdx, ctx)?;
        check_signals(&communicator)?;
        group::run(&communicator, context, signal, stream)
    })
}

pub(super) unsafe extern "C" fn ncclWaitSignal(
    nDesc: c_int,
    signalDescs: *mut ncclWaitSignalDesc_t,
    comm: ncclComm_t,
    stream: cudaStream_t,
) -> ncclResult_t {
    guard_in_group("ncclWaitSignal", || {
        let communicator = handle::get(comm)?;
        let context = communicator.check_operable()?;
        let number = usize::try_from(nDesc).ok().filter(|number| *number > 0).ok_or_else(|| {
            Error::argument(format!(
                "invalid number of signals to wait for: {nDesc}, it has to be at least 1"
            ))
        })?;
        check_not_null(signalDescs, "the signal descriptors")?;
        // SAFETY: the C declaration's contract: the array has this many entries.
        let descriptions = unsafe { slice::from_raw_parts(signalDescs, number) };
        let mut all = Vec::with_capacity(number);
        for ncclWaitSignalDesc_t { opCnt, peer, sigIdx, ctx } in descriptions {
            let count = u64::try_from(*opCnt)
                .ok()
                .filter(|count| *count > 0)
                .ok_or_else(|| Error::argument(format!("invalid opCnt {opCnt}: it has to be at least 1")))?;
            let signal = Signal::new(&communicator, context, *peer, *sigIdx, *ctx)?;
            all.push(AwaitedSignal { signal, count });
        }
        check_signals(&communicator)?;
        group::run(&communicator, context, WaitSignals(all), stream)
    })
}

fn check_flags(flags: c_uint) -> Result {
    if flags != 0 {
        return Err(Error::argument(format!("invalid flags {flags:#x}: they have to be 0")));
    }
    Ok(())
}

impl Signal {
    fn new(
        communicator: &Communicator,
        context: CallContext<'_>,
        peer: c_int,
        sigIdx: c_int,
        ctx: c_int,
    ) -> Result<Self> {
        let peer = check_rank(peer, context.state.ranks(), "peer")?;
        Ok(Self { peer, index: signal_index(communicator, sigIdx, ctx)? })
    }
}

/// Returns the index of a signal among all signals of a pair of ranks.
fn signal_index(communicator: &Communicator, sigIdx: c_int, ctx: c_int) -> Result<usize> {
    let config = &communicator.config;
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

/// Checks that signals can be used. NCCL prepares them with the first window.
fn check_signals(communicator: &Communicator) -> Result {
    if communicator.windows.any_added() || communicator.config.eager_signals {
        return Ok(());
    }
    Err(Error::usage(
        "there are no signals before there is a window: call ncclCommWindowRegister, or set rmaEagerInit in the \
         config",
    ))
}

/// Minimum number of bytes for which a put uses non-temporal stores.
const NON_TEMPORAL_MIN: usize = 4 << 20;

/// A write into another rank's memory, followed by a signal.
pub(crate) struct PutSignal {
    pub(crate) from: ReadBuf,
    /// Memory of the same length. It is either the same memory as `from` or does not overlap it.
    pub(crate) to: WriteBuf,
    /// The window of `to`. Keeps the memory mapped.
    pub(crate) window: Arc<Window>,
    pub(crate) signal: Signal,
}

#[derive(Clone, Copy)]
pub(crate) struct Signal {
    pub(crate) peer: usize,
    pub(crate) index: usize,
}

/// A wait for signals. Each awaited signal is consumed.
pub(crate) struct WaitSignals(pub(crate) Vec<AwaitedSignal>);

pub(crate) struct AwaitedSignal {
    pub(crate) signal: Signal,
    pub(crate) count: u64,
}

impl Operation for PutSignal {
    fn header(&self) -> CallHeader {
        CallHeader::of_bytes(PeerCall::PutSignal, self.signal.peer, self.from.length())
    }

    fn ranges(&self) -> [BufferRange; 2] {
        [self.from.range(), self.to.as_read().range()]
    }

    fn resolve(&mut self, on_stream: &mut OnStream) -> Result {
        on_stream.note_put(&self.to);
        on_stream.resolve_read("the local buffer", &mut self.from)
    }

    fn sending(&self, _: usize, replace: impl FnOnce(ReadBuf, usize) -> ReadBuf) -> Option<Self> {
        Some(Self { from: replace(self.from, 1), window: Arc::clone(&self.window), ..*self })
    }

    async fn run(&self, context: CallContext<'_>) -> Result {
        let Self { from, to, window, signal } = self;
        let CallContext { state, rank, .. } = context;
        let access = state.begin_access(rank)?;
        state.check_peer(signal.peer)?;
        window.check_open(state, signal.peer)?;
        to.copy(*from, from.length() >= NON_TEMPORAL_MIN);
        drop(access);
        signal.run(context).await
    }
}

impl Operation for Signal {
    fn header(&self) -> CallHeader {
        CallHeader::of_bytes(PeerCall::Signal, self.peer, 0)
    }

    /// Raises the signal. A peer that sees the signal also sees all previous writes of this rank.
    async fn run(&self, CallContext { state, rank, .. }: CallContext<'_>) -> Result {
        state.check_peer(self.peer)?;
        let (raised, _) = state.signal(rank, self.peer, self.index);
        raised.fetch_add(1, Release);
        state.wake_waiting(rank);
        Ok(())
    }
}

impl Operation for WaitSignals {
    fn header(&self) -> CallHeader {
        CallHeader::of_bytes(PeerCall::WaitSignal, self.0.first().map_or(0, |awaited| awaited.signal.peer), 0)
    }

    async fn run(&self, CallContext { state, rank, .. }: CallContext<'_>) -> Result {
        for AwaitedSignal { signal: Signal { peer, index }, count } in &self.0 {
            let (raised, awaited) = state.signal(*peer, rank, *index);
            let before = awaited.load(Relaxed);
            state.wait(*peer, || raised.load(Acquire).wrapping_sub(before) >= *count).await?;
            awaited.store(before.wrapping_add(*count), Relaxed);
        }
        Ok(())
    }
}
