//! One-sided operations: their arguments' checks, and their calls into C.
#![allow(unsafe_code)]

use super::point_to_point::rank_below;
use super::{Communicator, Operations, WindowOffset};
use crate::backend::call;
use crate::{DeviceSlice, Element, Error, Group, Result, ResultCode, StreamRef, sys};

/// Which of a rank's signals: by default, the only one that there is.
///
/// ```
/// use libnccl::Signal;
///
/// assert_eq!(Signal::default(), Signal { index: 0, context: 0 });
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[repr(C)]
pub struct Signal {
    /// Below [`Config::num_rma_sig`](crate::Config::num_rma_sig), which is 1 unless set.
    #[doc(alias = "sigIdx")]
    pub index: u32,
    /// Below [`Config::num_rma_ctx`](crate::Config::num_rma_ctx), which is 1 unless set. Operations of one context
    /// keep their order.
    #[doc(alias = "ctx")]
    pub context: u32,
}

/// What to wait for in [`Communicator::wait_signal`]. Since NCCL 2.29.2.
///
/// ```
/// use libnccl::{Signal, WaitSignal};
///
/// let twice_from_rank_3 = WaitSignal { count: 2, peer: 3, signal: Signal::default() };
/// ```
#[doc(alias = "ncclWaitSignalDesc_t")]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(C)]
pub struct WaitSignal {
    /// How many times the signal is raised; one at least.
    #[doc(alias = "opCnt")]
    pub count: u32,
    /// The rank that raises it.
    pub peer: u32,
    /// The signal.
    pub signal: Signal,
}

// NCCL is given the caller's own array, as it may read it until the end of a group.
const _: () = {
    use std::mem::offset_of;
    type Raw = sys::ncclWaitSignalDesc_t;
    assert!(size_of::<WaitSignal>() == size_of::<Raw>() && align_of::<WaitSignal>() == align_of::<Raw>());
    assert!(offset_of!(WaitSignal, count) == offset_of!(Raw, opCnt));
    assert!(offset_of!(WaitSignal, peer) == offset_of!(Raw, peer));
    assert!(offset_of!(WaitSignal, signal.index) == offset_of!(Raw, sigIdx));
    assert!(offset_of!(WaitSignal, signal.context) == offset_of!(Raw, ctx));
};

impl Signal {
    /// As C wants it. NCCL knows how many there are.
    fn to_raw(self, call: &'static str) -> Result<(i32, i32)> {
        Ok((in_range(call, "signal", self.index)?, in_range(call, "context", self.context)?))
    }
}

fn in_range(call: &'static str, what: &str, value: u32) -> Result<i32> {
    i32::try_from(value).map_err(|_| Error::argument(call, format!("{what} {value} is beyond {}", i32::MAX)))
}

pub(super) fn put_signal<T: Element>(
    on: Operations<'_>,
    local: DeviceSlice<'_, T>,
    peer: usize,
    WindowOffset { window, offset }: WindowOffset<'_, T>,
    signal: Signal,
    stream: StreamRef<'_>,
) -> Result<ResultCode> {
    let name = "put_signal";
    let comm = on.without_config(name)?;
    comm.accepts::<T, 1>(name, [local.memory_space()])?;
    let peer = rank_below(name, "peer", peer, comm.size)?;
    let (index, context) = signal.to_raw(name)?;
    let count = local.len();
    if !window.is_of(comm) {
        return Err(Error::argument(name, "the window is not one of this communicator"));
    }
    if offset.checked_add(count).is_none_or(|end| end > window.len()) {
        let length = window.len();
        let problem = format!("{count} elements from {offset} on are beyond the window's {length}");
        return Err(Error::argument(name, problem));
    }
    let raw_window = window.as_raw();
    if raw_window.is_null() {
        return Err(Error::usage(name, "the window is not active"));
    }
    let (raw, stream, bytes) = (comm.raw(), stream.as_raw(), offset * size_of::<T>());
    let (local, data_type) = (local.as_raw(), T::DATA_TYPE.as_raw());
    // SAFETY: the buffer holds `count` elements, for as long as the view promises; the window is one of this live
    // communicator, and they fit into it: into the peer's, too, as windows have the same length on all ranks.
    unsafe {
        let library = comm.library();
        call!(
            library,
            ncclPutSignal(local, count, data_type, peer, raw_window, bytes, index, context, 0, raw, stream)
        )
    }
}

fn signal(on: Operations<'_>, peer: usize, signal: Signal, stream: StreamRef<'_>) -> Result<ResultCode> {
    let name = "signal";
    let comm = on.without_config(name)?;
    let peer = rank_below(name, "peer", peer, comm.size)?;
    let (index, context) = signal.to_raw(name)?;
    // SAFETY: a live communicator.
    unsafe { call!(comm.library(), ncclSignal(peer, index, context, 0, comm.raw(), stream.as_raw())) }
}

fn wait_signal(on: Operations<'_>, signals: &[WaitSignal], stream: StreamRef<'_>) -> Result<ResultCode> {
    let name = "wait_signal";
    let comm = on.without_config(name)?;
    if signals.is_empty() {
        return Err(Error::argument(name, "no signals; expected one at least"));
    }
    for wait in signals {
        rank_below(name, "peer", wait.peer as usize, comm.size)?;
        wait.signal.to_raw(name)?;
        if in_range(name, "count", wait.count)? == 0 {
            return Err(Error::argument(name, "the count is 0; expected 1 at least"));
        }
    }
    let count = i32::try_from(signals.len())
        .map_err(|_| Error::argument(name, format!("{} signals are beyond {}", signals.len(), i32::MAX)))?;
    let array = signals.as_ptr().cast::<sys::ncclWaitSignalDesc_t>().cast_mut();
    // SAFETY: `count` entries of C's layout, checked where they are declared, which NCCL only reads, and which
    // live until the operation is started: a group borrows them to its end.
    unsafe { call!(comm.library(), ncclWaitSignal(count, array, comm.raw(), stream.as_raw())) }
}

impl<'scope> Operations<'scope> {
    /// As [`Communicator::signal`]. Since NCCL 2.29.2.
    ///
    /// # Errors
    /// As for [`Communicator::signal`].
    #[doc(alias = "ncclSignal")]
    pub fn signal(self, peer: usize, signal: Signal, stream: impl Into<StreamRef<'scope>>) -> Result<()> {
        let stream = stream.into();
        self.issue("signal", || self::signal(self, peer, signal, stream))
    }

    /// As [`Communicator::wait_signal`]. Since NCCL 2.29.2.
    ///
    /// # Errors
    /// As for [`Communicator::wait_signal`].
    #[doc(alias = "ncclWaitSignal")]
    pub fn wait_signal(
        self,
        signals: &'scope [WaitSignal],
        stream: impl Into<StreamRef<'scope>>,
    ) -> Result<()> {
        let stream = stream.into();
        self.issue("wait_signal", || wait_signal(self, signals, stream))
    }
}

impl Communicator {
    /// Raises a signal at rank `peer`, after what was put there before in the same context. Since NCCL 2.29.2.
    ///
    /// ```
    /// # use libnccl::{Communicator, Nccl, Result, Signal, StreamRef, WaitSignal, WindowFlags};
    /// # fn each(nccl: &Nccl, comm: Communicator) -> Result<()> {
    /// # let window = comm.register_window(&mut nccl.alloc::<f32>(1)?, WindowFlags::DEFAULT)?;
    /// // On each of two ranks, which have a window:
    /// if comm.rank() == 0 {
    ///     comm.signal(1, Signal::default(), StreamRef::DEFAULT)?;
    /// } else {
    ///     let signal = WaitSignal { count: 1, peer: 0, signal: Signal::default() };
    ///     comm.wait_signal(&[signal], StreamRef::DEFAULT)?;
    /// }
    /// # comm.barrier(StreamRef::DEFAULT)?;
    /// # Ok(())
    /// # }
    /// # fn main() -> Result<()> {
    /// # let nccl = libnccl_cpu::nccl();
    /// # let comms = nccl.init_all(&[0, 1])?;
    /// # let nccl = &nccl;
    /// # std::thread::scope(|s| comms.into_iter().for_each(|comm| drop(s.spawn(move || each(nccl, comm).unwrap()))));
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// Those of [every operation](Operations#errors); [`Error::Nccl`] if there is no such signal or context, or
    /// before the first window is registered, unless [`Config::rma_eager_init`](crate::Config::rma_eager_init) is set.
    #[doc(alias = "ncclSignal")]
    pub fn signal<'scope>(
        &'scope self,
        peer: usize,
        signal: Signal,
        stream: impl Into<StreamRef<'scope>>,
    ) -> Result<()> {
        self.operations().signal(peer, signal, stream)
    }

    /// Makes the stream wait until other ranks have raised all of `signals`, and what they put before is there.
    /// Since NCCL 2.29.2.
    ///
    /// ```
    /// # use libnccl::{Communicator, Nccl, Result, Signal, StreamRef, WaitSignal, WindowFlags};
    /// # fn each(nccl: &Nccl, comm: Communicator) -> Result<()> {
    /// # let window = comm.register_window(&mut nccl.alloc::<f32>(1)?, WindowFlags::DEFAULT)?;
    /// // On each of three ranks, which have a window:
    /// if comm.rank() == 0 {
    ///     let signals = [1, 2].map(|peer| WaitSignal { count: 1, peer, signal: Signal::default() });
    ///     comm.wait_signal(&signals, StreamRef::DEFAULT)?;
    /// } else {
    ///     comm.signal(0, Signal::default(), StreamRef::DEFAULT)?;
    /// }
    /// # comm.barrier(StreamRef::DEFAULT)?;
    /// # Ok(())
    /// # }
    /// # fn main() -> Result<()> {
    /// # let nccl = libnccl_cpu::nccl();
    /// # let comms = nccl.init_all(&[0, 1, 2])?;
    /// # let nccl = &nccl;
    /// # std::thread::scope(|s| comms.into_iter().for_each(|comm| drop(s.spawn(move || each(nccl, comm).unwrap()))));
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As for [`signal`](Self::signal); [`Error::InvalidArgument`] if there are no signals, or if one is waited for
    /// no times.
    #[doc(alias = "ncclWaitSignal")]
    pub fn wait_signal<'scope>(
        &'scope self,
        signals: &'scope [WaitSignal],
        stream: impl Into<StreamRef<'scope>>,
    ) -> Result<()> {
        self.operations().wait_signal(signals, stream)
    }
}

impl<'scope> Group<'scope, '_> {
    /// As [`Communicator::signal`]. Since NCCL 2.29.2.
    ///
    /// # Errors
    /// As for [`Communicator::signal`].
    #[doc(alias = "ncclSignal")]
    pub fn signal(
        &'scope self,
        communicator: &'scope Communicator,
        peer: usize,
        signal: Signal,
        stream: impl Into<StreamRef<'scope>>,
    ) -> Result<()> {
        self.on(communicator).signal(peer, signal, stream)
    }

    /// As [`Communicator::wait_signal`]. Since NCCL 2.29.2.
    ///
    /// # Errors
    /// As for [`Communicator::wait_signal`].
    #[doc(alias = "ncclWaitSignal")]
    pub fn wait_signal(
        &'scope self,
        communicator: &'scope Communicator,
        signals: &'scope [WaitSignal],
        stream: impl Into<StreamRef<'scope>>,
    ) -> Result<()> {
        self.on(communicator).wait_signal(signals, stream)
    }
}
