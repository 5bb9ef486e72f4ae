//! One-sided operations: the public methods first, their rules and C calls below.
#![allow(unsafe_code)] // Calls C.

use std::fmt;
use std::marker::PhantomData;
use std::ptr;
use std::sync::Arc;

use super::call::{Call, nccl};
use super::on_stream::OnStream;
use crate::buffer::Buffer;
use crate::communicator::{Communicator, Shared, to_c_int, to_c_length};
use crate::data_type::Element;
use crate::error::{Error, InvalidArgumentKind, Result};
use crate::observer::Operation;
use crate::sys;

/// The numbers that identify a signal of a rank. By default, a rank has one signal, `Signal::default()`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[repr(C)]
pub struct Signal {
    /// The number of the signal. It must be less than [`Config::num_rma_sig`](crate::config::Config::num_rma_sig), which is 1 by
    /// default.
    #[doc(alias = "sigIdx")]
    pub index: u32,
    /// The number of the context: one-sided operations of the same context keep their order. It must be less than
    /// [`Config::num_rma_ctx`](crate::config::Config::num_rma_ctx), which is 1 by default.
    #[doc(alias = "ctx")]
    pub context: u32,
}

/// A signal to wait for in [`Communicator::wait_signal`](crate::communicator::Communicator::wait_signal). Since NCCL 2.29.2.
#[doc(alias = "ncclWaitSignalDesc_t")]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(C)]
pub struct WaitSignal {
    /// The number of times that the signal must be raised; at least 1.
    #[doc(alias = "opCnt")]
    pub count: u32,
    /// The rank that raises the signal.
    pub peer: u32,
    /// The signal.
    pub signal: Signal,
}

// NCCL receives the entries as they are.
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
    /// Converts the numbers to C's types. NCCL checks whether the signal and the context exist.
    fn to_raw(self, call: &'static str) -> Result<(i32, i32)> {
        Ok((to_c_int(call, "signal", self.index)?, to_c_int(call, "context", self.context)?))
    }
}

/// An offset in a window; see [`Window::at`](crate::window::Window::at) and, for an example, [`Communicator::register_window`].
#[derive(Clone, Copy)]
pub struct WindowOffset<'a, T: Element> {
    target: Target<'a>,
    element: PhantomData<T>,
}

/// A [`WindowOffset`] without its element type.
#[derive(Clone, Copy)]
struct Target<'a> {
    shared: &'a Shared,
    /// The window's handle; null if the window is not active.
    window: sys::ncclWindow_t,
    length: usize,
    offset: usize,
}

impl<'a, T: Element> WindowOffset<'a, T> {
    pub(crate) fn new(shared: &'a Shared, window: sys::ncclWindow_t, length: usize, offset: usize) -> Self {
        Self { target: Target { shared, window, length, offset }, element: PhantomData }
    }
}

impl<T: Element> fmt::Debug for WindowOffset<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WindowOffset").field("offset", &self.target.offset).finish_non_exhaustive()
    }
}

/// For errors, see [errors of operations](Self#errors-of-operations).
impl Communicator {
    /// Writes `local` to `target` in the window of rank `peer`, and then raises `signal` at `peer`. The peer waits for the signal
    /// with [`wait_signal`](Communicator::wait_signal). `local` must be part of a window of the calling rank. For an example, see
    /// [`register_window`](Communicator::register_window). Since NCCL 2.29.2.
    #[doc(alias = "ncclPutSignal")]
    #[track_caller]
    pub fn put_signal<'b, 'c, T: Element>(
        &'c self,
        local: impl Buffer<'b, Element = T>,
        peer: usize,
        target: WindowOffset<'b, T>,
        signal: Signal,
        on: impl Into<OnStream<'b, 'c>>,
    ) -> Result<()> {
        let mut call = Call::new(self, const { Operation::of("put_signal") }, on.into());
        call.with_send_buffer(local, |call| call.put_signal(peer, target.target, signal))
    }

    /// Raises a signal at rank `peer`, after the data of this rank's earlier puts to `peer` in the same context has arrived; for
    /// an example, see [`wait_signal`](Self::wait_signal). Since NCCL 2.29.2.
    ///
    /// Returns [`Error::Nccl`] if there is no such signal or context. Before the first window is registered, any signal is an
    /// error, unless [`Config::rma_eager_init`](crate::config::Config::rma_eager_init) is set.
    #[doc(alias = "ncclSignal")]
    #[track_caller]
    pub fn signal<'b, 'c>(
        &'c self,
        peer: usize,
        signal: Signal,
        on: impl Into<OnStream<'b, 'c>>,
    ) -> Result<()> {
        let mut call = Call::new(self, const { Operation::of("signal") }, on.into());
        call.check()?;
        let result = call.signal(peer, signal);
        call.end((), result)
    }

    /// Makes the stream wait until other ranks have raised all of `signals`. All data that a rank put before it raised its signal
    /// has then arrived. Since NCCL 2.29.2.
    ///
    /// ```
    /// use libnccl::{StreamRef, window::{Signal, WaitSignal, WindowFlags}};
    ///
    /// let nccl = libnccl_cpu::nccl();
    /// libnccl_cpu::run_ranks(3, |comm| {
    /// #     // SAFETY: it is the only rank.
    /// #     let window = unsafe { comm.register_window(&mut nccl.alloc::<f32>(1)?, WindowFlags::DEFAULT) }?;
    ///     // On each of three ranks, which have a window:
    ///     if comm.rank() == 0 {
    ///         let signals = [1, 2].map(|peer| WaitSignal { count: 1, peer, signal: Signal::default() });
    ///         comm.wait_signal(&signals, StreamRef::DEFAULT)?;
    ///     } else {
    ///         comm.signal(0, Signal::default(), StreamRef::DEFAULT)?;
    ///     }
    /// #     comm.barrier(&mut [0_u8], StreamRef::DEFAULT)?;
    ///     Ok(())
    /// })?;
    /// # Ok::<(), libnccl::Error>(())
    /// ```
    ///
    /// Returns [`Error::InvalidArgument`] if `signals` is empty, or if a count is 0.
    #[doc(alias = "ncclWaitSignal")]
    #[track_caller]
    pub fn wait_signal<'b, 'c>(
        &'c self,
        signals: &[WaitSignal],
        on: impl Into<OnStream<'b, 'c>>,
    ) -> Result<()> {
        let call = Call::new(self, const { Operation::of("wait_signal") }, on.into());
        call.check()?;
        let result = call.wait_signal(signals);
        call.end((), result)
    }
}

/// The rules of each operation, and its C call.
impl Call<'_, '_> {
    fn put_signal(&mut self, peer: usize, target: Target<'_>, signal: Signal) -> Result<()> {
        let (name, count) = (self.operation.name, self.send.len());
        let (peer, (index, context)) = (self.peer(peer)?, signal.to_raw(name)?);
        let Target { shared, window, length, offset } = target;
        if !ptr::eq(shared, &**self.communicator.shared()) {
            let problem = "the window belongs to another communicator";
            return Err(self.wrong(InvalidArgumentKind::Communicator, problem));
        }
        if offset.checked_add(count).is_none_or(|end| end > length) {
            let problem = format!("{count} elements from {offset} on are beyond the window's {length}");
            return Err(self.wrong(InvalidArgumentKind::Length, problem));
        }
        if window.is_null() {
            return Err(Error::usage(name, "the window is not active"));
        }
        let bytes = offset * self.send.data_type().size();
        // SAFETY: the creator of the slice guarantees that it holds `count` elements and lives long enough. The window
        // belongs to this live communicator, and the elements fit into it, also on the peer, because the caller of
        // `register_window` guarantees that all parts have the same size. The peer's part exists until its `assume_idle` promises that this
        // call is not made or, in host memory, until the CPU backend refuses the call.
        self.submit(count, |call| unsafe {
            nccl!(
                call,
                ncclPutSignal(call.from(), count, call.data_type(), peer, window, bytes, index, context, 0)
            )
        })
    }

    fn signal(&mut self, peer: usize, signal: Signal) -> Result<()> {
        let (peer, (index, context)) = (self.peer(peer)?, signal.to_raw(self.operation.name)?);
        // SAFETY: a live communicator.
        self.submit(0, |call| unsafe { nccl!(call, ncclSignal(peer, index, context, 0)) })
    }

    fn wait_signal(&self, signals: &[WaitSignal]) -> Result<()> {
        let name = self.operation.name;
        if signals.is_empty() {
            return Err(self.wrong(InvalidArgumentKind::Length, "no signals; expected at least one"));
        }
        for wait in signals {
            self.c_rank("peer", wait.peer as usize)?;
            wait.signal.to_raw(name)?;
            if to_c_int(name, "count", wait.count)? == 0 {
                return Err(self.wrong(InvalidArgumentKind::Value, "the count is 0; expected at least 1"));
            }
        }
        let count = to_c_length(name, signals.len(), "signals")?;
        self.submit(0, |call| {
            // NCCL may read the array until the end of the group. (An `Arc`, as moving a `Box` invalidates pointers into it.)
            let signals: Arc<[WaitSignal]> = signals.into();
            let array = signals.as_ptr().cast::<sys::ncclWaitSignalDesc_t>().cast_mut();
            let _kept = call.on.keep_arguments(signals);
            // SAFETY: `count` entries with C's layout, which NCCL only reads. They live until the operation is started: here,
            // or in the group.
            unsafe { nccl!(call, ncclWaitSignal(count, array)) }
        })
    }
}
