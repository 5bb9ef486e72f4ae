//! The one road that every operation takes: it becomes a call with plain views of its buffers, which is checked and told to
//! observers, enters NCCL, calls C, and leaves.
#![allow(unsafe_code)] // Makes views of buffers.

use std::error::Error as StdError;
use std::panic::Location;
use std::sync::Arc;
use std::time::Duration;

use super::arguments::Arguments;
use super::call::{Call, Checked};
use super::check::{buffer_names, check_by_row, check_devices, check_stream};
use super::grouping::{Grouping, Start};
use super::operations::Operations;
use super::table::CallKind;
use super::{collective, message, one_sided, vector};
use crate::buffer::RawSlice;
use crate::buffer::check_layout;
use crate::communicator::{Inside, Purpose, Shared};
use crate::group::Participants;
use crate::observer::CallWord;
use crate::{
    BufferElement, CollectiveConfig, Communicator, DataType, Error, Extent, InvalidArgumentKind, Operation,
    OperationStart, RecvBuffer, Result, ResultCode, SendBuffer, StreamRef,
};

impl<G> Operations<'_, G> {
    /// Starts an operation: makes plain views of its buffers, which [`Call::submit`] uses, and keeps their guards until it
    /// is enqueued.
    #[cfg_attr(not(debug_assertions), inline(always))]
    #[track_caller]
    pub(super) fn start<'b, S: BufferElement, R: BufferElement>(
        self,
        operation: &'static Operation,
        send: impl SendBuffer<'b, Element = S>,
        recv: impl RecvBuffer<'b, Element = R>,
        arguments: Arguments<'_>,
        stream: impl Into<StreamRef<'b>>,
    ) -> Result<()>
    where
        G: Grouping<'b>,
    {
        // The stream and the buffers run code of other crates, before NCCL is entered.
        let (stream, start) = (stream.into(), self.grouping.start());
        // SAFETY: its guard is kept until the operation is enqueued.
        let (send, first) = match unsafe { send.into_view(stream) } {
            Ok(prepared) => prepared,
            Err(reason) => return Err(start.refuse(not_ready(operation, &*reason))),
        };
        // SAFETY: as above.
        let (recv, second) = match unsafe { recv.into_view(stream) } {
            Ok(prepared) => prepared,
            Err(reason) => return Err(start.refuse(not_ready(operation, &*reason))),
        };
        let communicator = self.grouping.communicator();
        let call = Call {
            operation,
            communicator,
            send: send.raw(),
            recv: recv.raw(),
            arguments,
            config: self.config,
            stream,
            site: Location::caller(),
        };
        let result = if S::HAS_TYPE && R::HAS_TYPE { call.submit(start) } else { call.submit_any(start) }?;
        start.keep_guards((first, second));
        result
    }

    /// Runs `enqueue`, which calls C, as an operation without buffers and arguments.
    #[track_caller]
    pub(crate) fn run<'b>(
        self,
        operation: &'static Operation,
        enqueue: impl FnOnce() -> Result<ResultCode>,
    ) -> Result<()>
    where
        G: Grouping<'b>,
    {
        let call = Call {
            operation,
            communicator: self.grouping.communicator(),
            send: RawSlice::NONE,
            recv: RawSlice::NONE,
            arguments: Arguments::NONE,
            config: None,
            stream: StreamRef::DEFAULT,
            site: Location::caller(),
        };
        let start = self.grouping.start();
        call.check_start(operation, start).map_err(|error| start.refuse(error))?;
        let begun = call.begin(operation, start, &Checked::NONE)?;
        call.finish(operation, begun, enqueue())
    }
}

/// An operation that has entered NCCL, which its drop, or that of its group, leaves.
enum Begun<'c, 'g> {
    Now(Inside<&'c Arc<Shared>>, Option<Duration>),
    /// Set if it is the first operation of its communicator.
    InGroup(&'g Participants<'g>, &'g Communicator, bool),
}

impl<'c> Call<'c> {
    /// Starts the operation, and returns its result; an error if it was refused before, and NCCL has nothing of it.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(super) fn submit(self, start: Start<'_>) -> Result<Result<()>> {
        // Passed on by itself, so that the compiler, which knows it here, makes only the checks and the call of its row.
        let operation = self.operation;
        let checked = match self.check(operation, start) {
            Ok(checked) => checked,
            Err(error) => return Err(start.refuse(error)),
        };
        let begun = self.begin(operation, start, &checked)?;
        let result = self.enqueue(operation, start, &checked);
        Ok(self.finish(operation, begun, result))
    }

    /// Starts an operation whose element type is known at run time only: compiled once, with this crate, and not with each
    /// program that uses it.
    #[inline(never)]
    fn submit_any(self, start: Start<'_>) -> Result<Result<()>> {
        self.check_types().map_err(|error| start.refuse(error))?;
        self.submit(start)
    }

    /// Enters NCCL, or joins the group, and tells the observers.
    #[cfg_attr(not(debug_assertions), inline(always))]
    fn begin<'g>(
        &self,
        operation: &'static Operation,
        start: Start<'g>,
        checked: &Checked,
    ) -> Result<Begun<'c, 'g>> {
        let communicator = self.communicator;
        let (begun, is_first_of_group) = match start.group {
            None => {
                let inside = Inside::ungrouped(communicator.shared(), operation.name, Purpose::Work)?;
                (Begun::Now(inside, start.timeout), None)
            }
            Some((participants, communicator)) => {
                let is_first = participants.join(communicator, operation)?;
                (Begun::InGroup(participants, communicator, is_first), Some(is_first))
            }
        };
        let shared = communicator.shared();
        if let Some(observed) = shared.observed() {
            let call = CallWord::new(operation, self.data_type(operation), self.arguments.ranks);
            let (elements, stream) = (self.elements(operation, checked), self.stream.as_raw().addr());
            let told = OperationStart::of_call(observed.communicator(), call, elements, stream, self.site);
            observed.start(told, is_first_of_group);
        }
        Ok(begun)
    }

    /// Leaves NCCL with the result of the call, and tells the observers, or leaves that to the group.
    #[cfg_attr(not(debug_assertions), inline(always))]
    fn finish(
        &self,
        operation: &'static Operation,
        begun: Begun<'_, '_>,
        result: Result<ResultCode>,
    ) -> Result<()> {
        match (begun, result) {
            (Begun::Now(inside, _), Ok(ResultCode::SUCCESS)) => {
                drop(inside);
                self.communicator.tell_end(Ok(()));
                Ok(())
            }
            (Begun::Now(inside, timeout), result) => {
                finish_slow_path(operation, self.communicator, inside, timeout, result)
            }
            (Begun::InGroup(..), Ok(_)) => Ok(()),
            (Begun::InGroup(participants, communicator, is_first), Err(error)) => {
                Err(participants.on_error(communicator, is_first, error))
            }
        }
    }

    #[cfg_attr(not(debug_assertions), inline(always))]
    fn data_type(&self, operation: &Operation) -> Option<DataType> {
        match (operation.sends, operation.receives) {
            (Extent::None, Extent::None) => None,
            (Extent::None, _) => Some(self.recv.data_type()),
            _ if operation.is_in_place => Some(self.recv.data_type()),
            _ => Some(self.send.data_type()),
        }
    }

    /// Checks whether the operation can start now, or in this group, whatever the state of the communicator.
    #[cfg_attr(not(debug_assertions), inline(always))]
    fn check_start(&self, operation: &'static Operation, start: Start<'_>) -> Result<()> {
        match start {
            Start { group: Some((participants, communicator)), .. } => {
                participants.check(communicator, operation)
            }
            Start { timeout: Some(_), .. } => self.communicator.require_timeout(operation.name),
            Start { .. } => Ok(()),
        }
    }

    /// Checks all that does not depend on the state of the communicator.
    #[cfg_attr(not(debug_assertions), inline(always))]
    fn check(&self, operation: &'static Operation, start: Start<'_>) -> Result<Checked> {
        let Self { communicator, send, recv, stream, .. } = self;
        let name = operation.name;
        self.check_start(operation, start)?;
        let [sent, received] = buffer_names(operation);
        let devices = [stream.device(), send.device(), recv.device()];
        check_devices(communicator, name, devices, ["the stream", sent, received])?;
        check_stream(communicator, name, *stream)?;
        if let Some(config) = self.config {
            check_config(operation, config)?;
        }
        match operation.call {
            CallKind::Collective(_) | CallKind::Send | CallKind::Recv => check_by_row(operation, self),
            CallKind::AllGatherV
            | CallKind::ReduceScatterV
            | CallKind::AllToAllV
            | CallKind::GatherV
            | CallKind::ScatterV => vector::check(self),
            CallKind::SendRecv => message::check_exchange(self),
            CallKind::PutSignal => one_sided::check_put(self),
            CallKind::Signal => one_sided::check_signal(self),
            CallKind::WaitSignal => one_sided::check_wait(self),
            // The caller has checked it.
            CallKind::RegisterWindow => Ok(Checked::NONE),
        }
    }

    /// Checks buffers whose element type is known at run time only.
    fn check_types(&self) -> Result<()> {
        let Self { operation, send, recv, arguments, .. } = self;
        let name = operation.name;
        let buffers: &[&RawSlice] = match (operation.sends, operation.receives) {
            (_, Extent::None) => &[send],
            (Extent::None, _) => &[recv],
            _ if operation.is_in_place => &[recv],
            _ => &[send, recv],
        };
        if let [send, recv] = buffers
            && send.data_type() != recv.data_type()
        {
            let (one, other) = (send.data_type(), recv.data_type());
            let problem = format!("the elements of one buffer are {one}, those of the other {other}");
            return Err(Error::argument(name, InvalidArgumentKind::DataType, problem));
        }
        for buffer in buffers {
            arguments.operator.check_data_type(name, buffer.data_type())?;
            check_layout(name, buffer)?;
        }
        Ok(())
    }

    /// Returns the numbers of elements that this rank sends and receives, or would as the root.
    #[cfg_attr(not(debug_assertions), inline(always))]
    fn elements(&self, operation: &Operation, checked: &Checked) -> [usize; 2] {
        let [sent, received] = operation.elements(checked.count, self.communicator.size());
        let own = |extent, length, buffer: &RawSlice| {
            if matches!(extent, Extent::Counts) { buffer.len() } else { length }
        };
        [own(operation.sends, sent, &checked.send), own(operation.receives, received, &checked.recv)]
    }

    /// Calls C; NCCL has been entered.
    #[cfg_attr(not(debug_assertions), inline(always))]
    fn enqueue(&self, operation: &Operation, start: Start<'_>, checked: &Checked) -> Result<ResultCode> {
        match operation.call {
            CallKind::Collective(c) => collective::enqueue(operation, c, self, start, checked),
            CallKind::AllGatherV => vector::all_gather(self, start, checked),
            CallKind::ReduceScatterV => vector::reduce_scatter(self, start, checked),
            CallKind::AllToAllV => vector::all_to_all(self, checked),
            CallKind::GatherV => vector::gather(self, checked),
            CallKind::ScatterV => vector::scatter(self, checked),
            CallKind::Send => message::send(self, &checked.send, checked.ranks[0]),
            CallKind::Recv => message::recv(self, &checked.recv, checked.ranks[0]),
            CallKind::SendRecv => message::exchange(self, checked),
            CallKind::PutSignal => one_sided::put(self, checked),
            CallKind::Signal => one_sided::signal(self, checked),
            CallKind::WaitSignal => one_sided::wait(self, start),
            CallKind::RegisterWindow => Ok(ResultCode::SUCCESS),
        }
    }
}

/// Completes an operation that has failed or is in progress, outside a group.
#[cold]
#[inline(never)]
fn finish_slow_path(
    operation: &'static Operation,
    communicator: &Communicator,
    inside: Inside<&Arc<Shared>>,
    timeout: Option<Duration>,
    result: Result<ResultCode>,
) -> Result<()> {
    let result = result.and_then(|code| match code {
        ResultCode::IN_PROGRESS => communicator.wait_within(operation.name, timeout),
        _ => Ok(()),
    });
    drop(inside);
    communicator.tell_end(result.as_ref().copied());
    result
}

#[cold]
fn not_ready(operation: &Operation, reason: &dyn StdError) -> Error {
    // Before NCCL is entered, as this runs code of other crates.
    let problem = format!("a buffer is not ready: {reason}");
    Error::argument(operation.name, InvalidArgumentKind::NotReady, problem)
}

#[cold]
fn check_config(operation: &Operation, config: &CollectiveConfig) -> Result<()> {
    if config.is_default() || operation.function_with_config.is_some() {
        return Ok(());
    }
    Err(Error::usage(operation.name, "takes no options; NCCL has them for collectives only"))
}
