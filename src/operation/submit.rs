//! The one road that every operation takes: its call is checked, enters NCCL, is recorded, calls C, and leaves.

use std::sync::Arc;
use std::time::Duration;

use super::arguments::Arguments;
use super::call::{Call, Checked};
use super::grouping::Start;
use super::table::CallKind;
use super::{collective, message, one_sided, vector};
use crate::any_slice::check_layout;
use crate::buffer::RawSlice;
use crate::collective_config::RawCollectiveConfig;
use crate::communicator::{
    Communicator, Inside, Purpose, Recorded, Shared, check_data_types, check_devices, check_stream,
};
use crate::group::{JoinedOperation, Participants};
use crate::recorder::Entry;
use crate::{DataType, Extent, Operation, Result, ResultCode};

/// An operation that has entered NCCL, which its drop, or that of its group, leaves.
enum Begun<'c, 'g> {
    Now(Inside<&'c Arc<Shared>>, Recorded<'c>, Option<Duration>),
    InGroup(&'g Participants<'g>, &'g Communicator, JoinedOperation<'g>),
}

impl<'c> Call<'c> {
    /// Starts the operation, and returns its result; an error if it was refused before, and NCCL has nothing of it.
    #[inline(always)]
    pub(super) fn submit(self, start: Start<'_>) -> Result<Result<()>> {
        // Passed on by itself, so that the compiler, which knows it here, makes only the checks and the call of its row.
        let operation = self.operation;
        let checked = match self.check(operation) {
            Ok(checked) => checked,
            Err(error) => return Err(start.refuse(error)),
        };
        let entry = self.entry(operation, self.elements(operation, &checked));
        #[cfg(feature = "log")]
        super::span::log(self.communicator, &entry);
        #[cfg(feature = "tracing")]
        let _span = super::span::enter(self.communicator, &entry);
        let begun = self.begin(operation, start, &entry)?;
        if let Some(config) = self.config {
            keep_config(self.communicator, start, config);
        }
        let result = self.enqueue(operation, start, &checked);
        Ok(self.finish(operation, begun, result))
    }

    /// Runs `enqueue`, which calls C, as an operation without elements.
    pub(super) fn run(self, start: Start<'_>, enqueue: impl FnOnce() -> Result<ResultCode>) -> Result<()> {
        let operation = self.operation;
        let entry = self.entry(operation, [0, 0]);
        #[cfg(feature = "log")]
        super::span::log(self.communicator, &entry);
        #[cfg(feature = "tracing")]
        let _span = super::span::enter(self.communicator, &entry);
        let begun = self.begin(operation, start, &entry)?;
        let result = enqueue();
        self.finish(operation, begun, result)
    }

    /// Returns what is recorded of the call.
    #[inline(always)]
    fn entry(&self, operation: &'static Operation, elements: [usize; 2]) -> Entry {
        let Arguments { ranks, .. } = self.arguments;
        Entry::new(operation, self.data_type(operation), elements, ranks, self.stream, self.site)
    }

    /// Enters NCCL, or joins the group.
    #[inline(always)]
    fn begin<'g>(
        &self,
        operation: &'static Operation,
        start: Start<'g>,
        entry: &Entry,
    ) -> Result<Begun<'c, 'g>> {
        let communicator = self.communicator;
        if let Some((participants, communicator)) = start.group {
            let joined = participants.join(communicator, entry)?;
            return Ok(Begun::InGroup(participants, communicator, joined));
        }
        if start.timeout.is_some() {
            communicator.require_timeout(operation.name)?;
        }
        let inside = communicator.enter(operation.name, Purpose::Work)?;
        Ok(Begun::Now(inside, communicator.record_call(entry), start.timeout))
    }

    /// Leaves NCCL with the result of the call, or leaves that to the group.
    #[inline(always)]
    fn finish(
        &self,
        operation: &'static Operation,
        begun: Begun<'_, '_>,
        result: Result<ResultCode>,
    ) -> Result<()> {
        let communicator = self.communicator;
        match (begun, result) {
            (Begun::Now(..), Ok(ResultCode::SUCCESS)) | (Begun::InGroup(..), Ok(_)) => Ok(()),
            (Begun::Now(_inside, recorded, timeout), result) => {
                finish_slow_path(operation, communicator, recorded, timeout, result)
            }
            (Begun::InGroup(participants, communicator, joined), Err(error)) => {
                Err(participants.on_error(communicator, operation, joined, error))
            }
        }
    }

    /// Returns the type of the elements, if there are any.
    #[inline(always)]
    fn data_type(&self, operation: &Operation) -> Option<DataType> {
        match (operation.sends, operation.receives) {
            (Extent::None, Extent::None) => None,
            (Extent::None, _) => Some(self.recv.data_type()),
            _ if operation.is_in_place => Some(self.recv.data_type()),
            _ => Some(self.send.data_type()),
        }
    }

    /// Checks all that does not depend on the state of the communicator.
    #[inline(always)]
    fn check(&self, operation: &'static Operation) -> Result<Checked> {
        let Self { communicator, send, recv, stream, .. } = self;
        let name = operation.name;
        check_devices(communicator, name, [stream.device(), send.device(), recv.device()])?;
        check_stream(communicator, name, *stream)?;
        if self.is_any {
            self.check_types()?;
        }
        match operation.call {
            CallKind::AllReduce
            | CallKind::Broadcast
            | CallKind::Reduce
            | CallKind::AllGather
            | CallKind::ReduceScatter
            | CallKind::AllToAll
            | CallKind::Gather
            | CallKind::Scatter
            | CallKind::Send
            | CallKind::Recv => collective::check(operation, self),
            CallKind::AllGatherV
            | CallKind::ReduceScatterV
            | CallKind::AllToAllV
            | CallKind::GatherV
            | CallKind::ScatterV => vector::check(*self),
            CallKind::SendRecv => message::check_exchange(*self),
            CallKind::PutSignal => one_sided::check_put(*self),
            CallKind::Signal => one_sided::check_signal(*self),
            CallKind::WaitSignal => one_sided::check_wait(*self),
            // The caller has checked it.
            CallKind::RegisterWindow => Ok(Checked::NONE),
        }
    }

    /// Checks buffers whose element type is known at run time only.
    #[inline(never)]
    fn check_types(self) -> Result<()> {
        let Self { operation, send, recv, arguments, .. } = &self;
        let name = operation.name;
        let buffers: &[&RawSlice] = match (operation.sends, operation.receives) {
            (_, Extent::None) => &[send],
            (Extent::None, _) => &[recv],
            _ if operation.is_in_place => &[recv],
            _ => &[send, recv],
        };
        if let [send, recv] = buffers {
            check_data_types(name, send.data_type(), recv.data_type())?;
        }
        for buffer in buffers {
            arguments.operator.check_data_type(name, buffer.data_type())?;
            check_layout(name, buffer)?;
        }
        Ok(())
    }

    /// Returns the numbers of elements that this rank sends and receives, or would as the root.
    #[inline(always)]
    fn elements(&self, operation: &Operation, checked: &Checked) -> [usize; 2] {
        let [sent, received] = operation.elements(checked.count, self.communicator.size());
        let own = |extent, length, buffer: &RawSlice| {
            if matches!(extent, Extent::Counts) { buffer.len() } else { length }
        };
        [own(operation.sends, sent, &checked.send), own(operation.receives, received, &checked.recv)]
    }

    /// Calls C; NCCL has been entered.
    #[inline(always)]
    fn enqueue(&self, operation: &Operation, start: Start<'_>, checked: &Checked) -> Result<ResultCode> {
        match operation.call {
            CallKind::AllReduce => collective::all_reduce(self, checked),
            CallKind::Broadcast => collective::broadcast(self, checked),
            CallKind::Reduce => collective::reduce(self, checked),
            CallKind::AllGather => collective::all_gather(self, checked),
            CallKind::ReduceScatter => collective::reduce_scatter(self, checked),
            CallKind::AllToAll => collective::all_to_all(self, checked),
            CallKind::Gather => collective::gather(self, checked),
            CallKind::Scatter => collective::scatter(self, checked),
            CallKind::AllGatherV => vector::all_gather(*self, *checked),
            CallKind::ReduceScatterV => vector::reduce_scatter(*self, *checked),
            CallKind::AllToAllV => vector::all_to_all(*self, *checked),
            CallKind::GatherV => vector::gather(*self, *checked),
            CallKind::ScatterV => vector::scatter(*self, *checked),
            CallKind::Send => message::send(self, &checked.send, checked.ranks[0]),
            CallKind::Recv => message::recv(self, &checked.recv, checked.ranks[0]),
            CallKind::SendRecv => message::exchange(*self, *checked),
            CallKind::PutSignal => one_sided::put(*self, *checked),
            CallKind::Signal => one_sided::signal(*self, *checked),
            CallKind::WaitSignal => one_sided::wait(*self, start),
            CallKind::RegisterWindow => Ok(ResultCode::SUCCESS),
        }
    }
}

/// Keeps the options as long as NCCL may read them.
#[cold]
fn keep_config(communicator: &Communicator, start: Start<'_>, config: &RawCollectiveConfig) {
    if let Some(config) = start.keep_arguments(config.clone()) {
        communicator.keep_options(config);
    }
}

/// Completes an operation that has failed or is in progress, outside a group.
#[cold]
#[inline(never)]
fn finish_slow_path(
    operation: &'static Operation,
    communicator: &Communicator,
    recorded: Recorded<'_>,
    timeout: Option<Duration>,
    result: Result<ResultCode>,
) -> Result<()> {
    match result {
        Ok(ResultCode::IN_PROGRESS) => {
            communicator.wait_within(operation.name, timeout).inspect_err(|_| recorded.fail())
        }
        Ok(_) => Ok(()),
        Err(error) => {
            recorded.end_with(operation, &error);
            Err(error)
        }
    }
}
