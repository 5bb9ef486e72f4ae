//! One call of an operation: its buffers, the checks that all operations share, and how it enters and leaves NCCL.
//!
//! Every public operation creates a [`Call`], and runs it with the operation's buffers. A non-generic function then applies the
//! operation's own rules and calls C.
#![allow(unsafe_code)] // Prepares buffers.

use std::error::Error as StdError;
use std::ffi::c_void;
use std::panic::Location;
use std::ptr;

use super::on_stream::OnStream;
use crate::backend::Library;
use crate::buffer::{Buffer, BufferMut, RawSlice};
use crate::communicator::{CallGuard, Communicator, Purpose};
use crate::config::CollectiveConfig;
use crate::error::{Error, InvalidArgumentKind, Result, ResultCode};
use crate::group::Participants;
use crate::observer::{CallWord, Extent, Observed, Operation, OperationStart};
use crate::sys;

#[derive(Clone, Copy)]
pub(crate) struct Call<'b, 'c> {
    pub(super) operation: &'static Operation,
    pub(super) communicator: &'c Communicator,
    /// The buffers as this rank uses them. They are the same if the operation has one buffer.
    pub(super) send: RawSlice,
    pub(super) recv: RawSlice,
    /// The root or the peer; for a `send_recv`, both peers.
    pub(super) ranks: [Option<usize>; 2],
    pub(super) on: OnStream<'b, 'c>,
    site: &'static Location<'static>,
}

impl<'b, 'c> Call<'b, 'c> {
    #[inline]
    #[track_caller]
    pub(crate) fn new(
        communicator: &'c Communicator,
        operation: &'static Operation,
        on: OnStream<'b, 'c>,
    ) -> Self {
        let (send, recv) = (RawSlice::NONE, RawSlice::NONE);
        Self { operation, communicator, send, recv, ranks: [None; 2], on, site: Location::caller() }
    }

    /// Prepares and checks both buffers, and runs the operation.
    #[inline]
    pub(super) fn with_buffers<S: Buffer<'b>>(
        &mut self,
        send: S,
        recv: impl BufferMut<'b, Element = S::Element>,
        run: impl FnOnce(&mut Self) -> Result<()>,
    ) -> Result<()> {
        let guards = (self.read(send)?, self.write(recv)?);
        self.check()?;
        let result = run(self);
        self.end(guards, result)
    }

    /// Prepares and checks the only buffer, which is read, and runs the operation.
    #[inline]
    pub(super) fn with_send_buffer(
        &mut self,
        buffer: impl Buffer<'b>,
        run: impl FnOnce(&mut Self) -> Result<()>,
    ) -> Result<()> {
        let guard = self.read(buffer)?;
        self.recv = self.send;
        self.check()?;
        let result = run(self);
        self.end(guard, result)
    }

    /// Prepares and checks the only buffer, which is written, and runs the operation.
    #[inline]
    pub(super) fn with_recv_buffer(
        &mut self,
        buffer: impl BufferMut<'b>,
        run: impl FnOnce(&mut Self) -> Result<()>,
    ) -> Result<()> {
        let guard = self.write(buffer)?;
        self.send = self.recv;
        self.check()?;
        let result = run(self);
        self.end(guard, result)
    }

    #[inline]
    fn read<B: Buffer<'b>>(&mut self, buffer: B) -> Result<B::Guard> {
        // SAFETY: the guard is kept until the operation is enqueued.
        let prepared = unsafe { buffer.into_slice(self.on.stream) };
        let (slice, guard) = prepared.map_err(|reason| self.not_ready(&*reason))?;
        self.send = slice.raw();
        Ok(guard)
    }

    #[inline]
    fn write<B: BufferMut<'b>>(&mut self, buffer: B) -> Result<B::Guard> {
        // SAFETY: the guard is kept until the operation is enqueued.
        let prepared = unsafe { buffer.into_slice_mut(self.on.stream) };
        let (slice, guard) = prepared.map_err(|reason| self.not_ready(&*reason))?;
        self.recv = slice.raw();
        Ok(guard)
    }

    /// Returns the error for a buffer that is not ready. Formats the reason before NCCL is entered, because formatting runs code
    /// of other crates.
    #[cold]
    fn not_ready(&self, reason: &(dyn StdError + 'static)) -> Error {
        let error = match reason.downcast_ref() {
            // Of bytes that are not whole elements.
            Some(Error::InvalidArgument { kind, problem, .. }) => self.wrong(*kind, &**problem),
            _ => self.wrong(InvalidArgumentKind::NotReady, format!("a buffer is not ready: {reason}")),
        };
        self.on.refuse(error)
    }

    /// Checks what all operations require: group, devices, stream, options, element types and memory.
    pub(crate) fn check(&self) -> Result<()> {
        self.check_all().map_err(|error| self.on.refuse(error))
    }

    #[inline]
    fn check_all(&self) -> Result<()> {
        let Self { operation, communicator, send, recv, on, .. } = self;
        on.check(communicator, operation)?;
        let device = communicator.device();
        for (place, found) in [on.stream.device(), send.device(), recv.device()].iter().enumerate() {
            if let Some(found) = found
                && *found != device
            {
                self.check_device(place, *found)?;
            }
        }
        if on.stream.is_per_thread() {
            self.check_per_thread_stream()?;
        }
        if let Some(config) = on.config {
            self.check_config(config)?;
        }
        if send.data_type() != recv.data_type() {
            return Err(self.wrong_types());
        }
        recv.data_type().require(communicator.library())?;
        let space = communicator.memory_space();
        for (place, found) in [send.memory_space(), recv.memory_space()].iter().enumerate() {
            if let Some(found) = found
                && *found != space
            {
                return Err(self.wrong_memory(place, *found));
            }
        }
        Ok(())
    }

    /// Enters NCCL, calls C with `enqueue` and, outside a group, leaves NCCL. `count` is the operation's count.
    #[inline]
    pub(crate) fn submit(
        &self,
        count: usize,
        enqueue: impl FnOnce(&Self) -> Result<ResultCode>,
    ) -> Result<()> {
        let Self { operation, communicator, on, .. } = *self;
        let entered = match on.group {
            None => Entered::Now(CallGuard::ungrouped(communicator.shared(), operation.name, Purpose::Work)?),
            Some(group) => Entered::InGroup(group, group.join(communicator, operation)?),
        };
        if let Some(observed) = communicator.shared().observers.observed() {
            let is_first_of_group = match &entered {
                Entered::Now(_) => None,
                Entered::InGroup(_, is_first) => Some(*is_first),
            };
            self.notify_start(observed, count, is_first_of_group);
        }
        match (enqueue(self), entered) {
            (Ok(ResultCode::SUCCESS), Entered::Now(guard)) => {
                drop(guard);
                communicator.notify_end(Ok(()));
                Ok(())
            }
            (result, Entered::Now(guard)) => self.leave_slow_path(guard, result),
            (Ok(_), Entered::InGroup(..)) => Ok(()),
            (Err(error), Entered::InGroup(group, is_first)) => {
                Err(group.on_error(communicator, is_first, error))
            }
        }
    }

    /// Completes an ungrouped operation that has failed or is in progress.
    #[cold]
    fn leave_slow_path(&self, guard: CallGuard<'_>, result: Result<ResultCode>) -> Result<()> {
        let Self { communicator, operation, on, .. } = self;
        let result = result.and_then(|code| match code {
            ResultCode::IN_PROGRESS => communicator.wait_within(operation.name, on.timeout),
            _ => Ok(()),
        });
        drop(guard);
        communicator.notify_end(result.as_ref().copied());
        result
    }

    #[cold]
    #[inline(never)]
    fn notify_start(&self, observed: Observed<'_>, count: usize, is_first_of_group: Option<bool>) {
        let Self { operation, communicator, send, recv, ranks, on, site } = self;
        let data_type = match (operation.sends, operation.receives) {
            (Extent::None, Extent::None) => None,
            (Extent::None, _) => Some(recv.data_type()),
            _ => Some(send.data_type()),
        };
        let size = communicator.size();
        let elements = |extent: Extent, buffer: &RawSlice| match extent {
            Extent::Counts => buffer.len(),
            extent => extent.elements(count, size),
        };
        let elements = [elements(operation.sends, send), elements(operation.receives, recv)];
        let word = CallWord::new(operation, data_type, *ranks);
        let stream = on.stream.as_raw().addr();
        let start = OperationStart::new(observed.communicator(), word, [0; 2], elements, stream, Some(site));
        observed.start(start, is_first_of_group);
    }

    /// Ends the call. In a group, the group keeps the buffers' guards until its end, and records an error.
    #[inline]
    pub(crate) fn end(&self, guards: impl Sized + 'b, result: Result<()>) -> Result<()> {
        if let Some(group) = self.on.group
            // Queued work may use the buffers, unless the operation was refused before NCCL was called.
            && result.as_ref().err().is_none_or(|error| error.code().is_some())
        {
            // SAFETY: `OnStream::in_group` guarantees that `'b` is the scope of the group.
            unsafe { group.keep_guards(guards) };
        }
        result.map_err(|error| self.on.refuse(error))
    }
}

/// A call that has entered NCCL. It leaves NCCL when this is dropped, or at the end of its group.
enum Entered<'c> {
    Now(CallGuard<'c>),
    /// The group; `true` if this is the communicator's first operation in it.
    InGroup(&'c Participants<'c>, bool),
}

/// The arguments in C's form.
impl Call<'_, '_> {
    pub(super) fn library(&self) -> &Library {
        self.communicator.library()
    }

    pub(super) fn from(&self) -> *const c_void {
        self.send.as_raw()
    }

    pub(super) fn to(&self) -> *mut c_void {
        self.recv.as_raw().cast_mut()
    }

    pub(super) fn data_type(&self) -> sys::ncclDataType_t {
        self.recv.data_type().as_raw()
    }

    #[inline]
    pub(super) fn code(&self, function: &'static str, code: sys::ncclResult_t) -> Result<ResultCode> {
        if code == sys::ncclResult_t::ncclSuccess {
            Ok(ResultCode::SUCCESS)
        } else {
            self.not_success(function, code)
        }
    }

    #[cold]
    fn not_success(&self, function: &'static str, code: sys::ncclResult_t) -> Result<ResultCode> {
        self.library().check(function, code)
    }

    /// Returns the options as a C struct, or null if there are none. The caller must have entered NCCL.
    #[inline]
    pub(super) fn config(&self) -> Result<*const sys::ncclCollConfig_t> {
        self.on.config.map_or(Ok(ptr::null()), |config| self.raw_config(config))
    }

    /// Converts the options to a C struct. The communicator or the group keeps the struct as long as NCCL may read it.
    #[cold]
    fn raw_config(&self, config: &CollectiveConfig) -> Result<*const sys::ncclCollConfig_t> {
        if config.is_default() {
            return Ok(ptr::null());
        }
        let library = self.library();
        let raw = config.to_raw(self.operation.name, library.version, &library.backend.to_string())?;
        let pointer = raw.as_ptr();
        if let Some(raw) = self.on.keep_arguments(raw) {
            self.communicator.keep_options(raw);
        }
        Ok(pointer)
    }
}

/// Calls a function of NCCL or, if the call has options, the function's variant with options. Appends the communicator and the
/// stream to the arguments. For use in an `unsafe` block.
macro_rules! nccl {
    ($call:ident, $plain:ident | $configured:ident($($argument:expr),*)) => {{
        let config = $call.config()?;
        nccl!($call, config, $plain | $configured($($argument),*))
    }};
    ($call:ident, $config:ident, $plain:ident | $configured:ident($($argument:expr),*)) => {
        if $config.is_null() {
            nccl!($call, $plain($($argument),*))
        } else {
            nccl!(@ $call, $configured(
                $($argument,)* $call.communicator.raw(), $call.on.stream.as_raw(), $config
            ))
        }
    };
    ($call:ident, $function:ident($($argument:expr),*)) => {
        nccl!(@ $call, $function($($argument,)* $call.communicator.raw(), $call.on.stream.as_raw()))
    };
    (@ $call:ident, $function:ident($($argument:expr),*)) => {{
        let library = $call.library();
        let function = library.function(stringify!($function), library.functions.$function)?;
        $call.code(stringify!($function), function($($argument),*))
    }};
}
pub(super) use nccl;
