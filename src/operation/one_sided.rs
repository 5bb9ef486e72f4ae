//! One-sided operations: the public methods first, their rules and C calls below.
#![allow(unsafe_code)] // Calls C.

use std::ptr;
use std::sync::Arc;

use super::call::{Call, nccl};
use super::on_stream::OnStream;
use super::signal::{Signal, WaitSignal};
use super::window::{Target, WindowOffset};
use crate::buffer::SendBuffer;
use crate::communicator::{Communicator, to_c_int, to_c_length};
use crate::data_type::Element;
use crate::error::{Error, InvalidArgumentKind, Result};
use crate::observer::Operation;
use crate::sys;

impl Communicator {
    /// Writes `local`, which is part of a window of this rank, to `target` in the window of rank `peer`, and then
    /// raises `signal` there; the peer waits for it with [`wait_signal`](Communicator::wait_signal). For an example, see
    /// [`register_window`](Communicator::register_window). Since NCCL 2.29.2.
    ///
    /// # Errors
    /// The errors of [every operation](Self#errors-of-operations).
    #[doc(alias = "ncclPutSignal")]
    #[inline]
    #[track_caller]
    pub fn put_signal<'b, 'c, T: Element>(
        &'c self,
        local: impl SendBuffer<'b, Element = T>,
        peer: usize,
        target: WindowOffset<'b, T>,
        signal: Signal,
        on: impl Into<OnStream<'b, 'c>>,
    ) -> Result<()> {
        let mut call = Call::new(self, const { Operation::of("put_signal") }, on.into());
        let guards = call.send_buffer(local)?;
        let result = call.put_signal(peer, target.target, signal);
        call.end(guards, result)
    }

    /// Raises a signal at rank `peer`, after the data that was put there before in the same context; for an example, see
    /// [`wait_signal`](Self::wait_signal). Since NCCL 2.29.2.
    ///
    /// It is [`Error::Nccl`](crate::Error::Nccl) if there is no such signal or context, or before the first window is
    /// registered, unless [`Config::rma_eager_init`](crate::config::Config::rma_eager_init) is set.
    ///
    /// # Errors
    /// The errors of [every operation](Self#errors-of-operations).
    #[doc(alias = "ncclSignal")]
    #[inline]
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

    /// Makes the stream wait until other ranks have raised all of `signals` and the data that they put before has
    /// arrived. Since NCCL 2.29.2.
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
    /// No signals, or a count of 0, are [`Error::InvalidArgument`](crate::error::Error::InvalidArgument).
    ///
    /// # Errors
    /// The errors of [every operation](Self#errors-of-operations).
    #[doc(alias = "ncclWaitSignal")]
    #[inline]
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
        // SAFETY: the creator of the view guarantees that it holds `count` elements and lives long enough. The window
        // belongs to this live communicator, and the elements fit into it, also on the peer, because the caller of
        // `register_window` guarantees that all parts have the same size. The peer's part exists until its `assume_idle` promises that this
        // call is not made, or on host memory, until the CPU implementation refuses call.
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
            // NCCL may read the array until the end of the group. (An `Arc`, as moving a `Box` invalidates pointers into call.)
            let signals: Arc<[WaitSignal]> = signals.into();
            let array = signals.as_ptr().cast::<sys::ncclWaitSignalDesc_t>().cast_mut();
            let _kept = call.on.keep_arguments(signals);
            // SAFETY: `count` entries with C's layout, which NCCL only reads. They live until the operation is started: here,
            // or in the group.
            unsafe { nccl!(call, ncclWaitSignal(count, array)) }
        })
    }
}
