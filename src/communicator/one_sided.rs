//! One-sided operations: the checks of their arguments, and the calls into C.
#![allow(unsafe_code)]

use super::arguments::{check_buffers, to_c_rank};
use super::handle::Communicator;
use super::operations::Operations;
use super::window::WindowOffset;
use crate::backend::call;
use crate::{DeviceSlice, Element, Error, Group, Result, ResultCode, StreamRef, sys};

/// The signal of a rank, by its numbers: by default, the only one that there is.
///
/// ```
/// use libnccl::Signal;
///
/// assert_eq!(Signal::default(), Signal { index: 0, context: 0 });
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[repr(C)]
pub struct Signal {
    /// The number of the signal, below [`Config::num_rma_sig`](crate::Config::num_rma_sig), which is 1 unless set.
    #[doc(alias = "sigIdx")]
    pub index: u32,
    /// The number of the context, below [`Config::num_rma_ctx`](crate::Config::num_rma_ctx), which is 1 unless set.
    /// Operations of one context keep their order.
    #[doc(alias = "ctx")]
    pub context: u32,
}

/// A signal to wait for in [`Communicator::wait_signal`]. Since NCCL 2.29.2.
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
    /// The number of times that the signal is raised; at least one.
    #[doc(alias = "opCnt")]
    pub count: u32,
    /// The rank that raises it.
    pub peer: u32,
    /// The signal.
    pub signal: Signal,
}

// NCCL receives the caller's own array, as it may read it until the end of a group.
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
    /// Converts the numbers to C's types. NCCL checks whether they exist.
    fn to_raw(self, call: &'static str) -> Result<(i32, i32)> {
        Ok((to_c_int(call, "signal", self.index)?, to_c_int(call, "context", self.context)?))
    }
}

/// Converts a number to C's type.
fn to_c_int(call: &'static str, what: &str, value: u32) -> Result<i32> {
    i32::try_from(value).map_err(|_| Error::argument(call, format!("{what} {value} is beyond {}", i32::MAX)))
}

pub(super) fn put_signal<T: Element>(
    operations: Operations<'_>,
    local: DeviceSlice<'_, T>,
    peer: usize,
    WindowOffset { window, offset }: WindowOffset<'_, T>,
    signal: Signal,
    stream: StreamRef<'_>,
) -> Result<ResultCode> {
    let name = "put_signal";
    let comm = operations.without_config(name)?;
    check_buffers::<T, 1>(comm, name, [local.memory_space()])?;
    let peer = to_c_rank(name, "peer", peer, comm.size)?;
    let (index, context) = signal.to_raw(name)?;
    let count = local.len();
    if !window.belongs_to(comm) {
        return Err(Error::argument(name, "the window belongs to another communicator"));
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
    // SAFETY: the creator of the view guarantees that it holds `count` elements and lives long enough. The window
    // belongs to this live communicator, and the elements fit into it, also on the peer, as all ranks give the same
    // length.
    unsafe {
        let library = comm.library();
        call!(
            library,
            ncclPutSignal(local, count, data_type, peer, raw_window, bytes, index, context, 0, raw, stream)
        )
    }
}

fn signal(
    operations: Operations<'_>,
    peer: usize,
    signal: Signal,
    stream: StreamRef<'_>,
) -> Result<ResultCode> {
    let name = "signal";
    let comm = operations.without_config(name)?;
    let peer = to_c_rank(name, "peer", peer, comm.size)?;
    let (index, context) = signal.to_raw(name)?;
    // SAFETY: a live communicator.
    unsafe { call!(comm.library(), ncclSignal(peer, index, context, 0, comm.raw(), stream.as_raw())) }
}

fn wait_signal(
    operations: Operations<'_>,
    signals: &[WaitSignal],
    stream: StreamRef<'_>,
) -> Result<ResultCode> {
    let name = "wait_signal";
    let comm = operations.without_config(name)?;
    if signals.is_empty() {
        return Err(Error::argument(name, "no signals; expected at least one"));
    }
    for wait in signals {
        to_c_rank(name, "peer", wait.peer as usize, comm.size)?;
        wait.signal.to_raw(name)?;
        if to_c_int(name, "count", wait.count)? == 0 {
            return Err(Error::argument(name, "the count is 0; expected at least 1"));
        }
    }
    let count = i32::try_from(signals.len())
        .map_err(|_| Error::argument(name, format!("{} signals are beyond {}", signals.len(), i32::MAX)))?;
    let array = signals.as_ptr().cast::<sys::ncclWaitSignalDesc_t>().cast_mut();
    // SAFETY: `count` entries with C's layout, as the assertions above check, which NCCL only reads. They live until
    // the operation is started, as a group borrows them until its end.
    unsafe { call!(comm.library(), ncclWaitSignal(count, array, comm.raw(), stream.as_raw())) }
}

impl<'scope> Operations<'scope> {
    /// Raises a signal at rank `peer`; see [`Communicator::signal`]. Since NCCL 2.29.2.
    ///
    /// # Errors
    /// The errors of [`Communicator::signal`].
    #[doc(alias = "ncclSignal")]
    pub fn signal(self, peer: usize, signal: Signal, stream: impl Into<StreamRef<'scope>>) -> Result<()> {
        let stream = stream.into();
        self.issue("signal", || self::signal(self, peer, signal, stream))
    }

    /// Makes the stream wait for signals; see [`Communicator::wait_signal`]. Since NCCL 2.29.2.
    ///
    /// # Errors
    /// The errors of [`Communicator::wait_signal`].
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
    /// Raises a signal at rank `peer`, after the data that was put there before in the same context. Since NCCL 2.29.2.
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
    /// The errors of [every operation](Operations#errors); [`Error::Nccl`] if there is no such signal or context, or
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

    /// Makes the stream wait until other ranks have raised all of `signals` and the data that they put before has
    /// arrived. Since NCCL 2.29.2.
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
    /// The errors of [`signal`](Self::signal); [`Error::InvalidArgument`] if there are no signals, or if a count is 0.
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
    /// Raises a signal at rank `peer` as part of the group; see [`Communicator::signal`]. Since NCCL 2.29.2.
    ///
    /// # Errors
    /// The errors of [`Communicator::signal`].
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

    /// Makes the stream wait for signals as part of the group; see [`Communicator::wait_signal`]. Since NCCL 2.29.2.
    ///
    /// # Errors
    /// The errors of [`Communicator::wait_signal`].
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
