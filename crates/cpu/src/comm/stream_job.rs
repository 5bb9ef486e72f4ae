//! Stream jobs: the operations of one communicator in a group, on the streams that the calls pass.

use std::cell::Cell;
use std::ffi::CString;
use std::sync::Arc;

use cuda_common::finding::Finding;

use crate::coll::call::CallHeader;
use crate::coll::operation::OnStream;
use crate::comm::communicator::Communicator;
use crate::comm::queued_operation::{self, QueuedOperation, check_own_messages, distinct};
use crate::cuda::{Capture, Driver, Stream};
use crate::diag::error::{Error, Result};
use crate::shm::call_context::CallContext;
use crate::shm::liveness::AbortReason;

/// Enqueues the operations of each communicator as its next job. Each operation has a stream.
pub(super) fn enqueue(mut operations: Vec<QueuedOperation>) -> Result {
    let group = GROUPS.replace(GROUPS.get() + 1);
    let communicators = distinct(operations.iter().map(|operation| &operation.communicator));
    communicators.iter().try_for_each(|communicator| check_own_messages(communicator, &operations))?;
    let mut launched = vec![];
    for communicator in communicators {
        let is_own = |operation: &QueuedOperation| Arc::ptr_eq(&operation.communicator, &communicator);
        let (own, others): (Vec<_>, _) = operations.into_iter().partition(is_own);
        operations = others;
        if let Some(driver) = communicator.driver() {
            driver.on_device(communicator.device, || {
                // The job may fail immediately, which must not fail this call to CUDA.
                let _held = communicator.fails_cuda();
                let streams = streams(&own);
                let capture = capture(driver, &streams)?;
                let enqueued =
                    if capture == Capture::None { check_group(&communicator, &own, group) } else { Ok(()) };
                enqueued
                    .and_then(|()| enqueue_job(driver, &communicator, own, &streams, capture))
                    .inspect_err(|error| {
                        if capture == Capture::None {
                            // Other ranks will wait for this job.
                            communicator.fail(error);
                            communicator.set_abort(AbortReason::Failed);
                        }
                    })?;
                launched.push((driver, communicator.device, streams));
                Ok(())
            })?;
        }
    }
    // Not earlier: an operation of one rank may wait for an operation of another rank in this group.
    for (driver, device, streams) in launched {
        driver.on_device(device, || streams.iter().try_for_each(|stream| driver.launched(*stream)))?;
    }
    Ok(())
}

thread_local! {
    /// The number of this thread's groups that had operations on streams.
    static GROUPS: Cell<u64> = const { Cell::new(0) };
}

/// Checks that this thread has not enqueued the same collectives of another rank in another group: NCCL may connect the ranks in the first
/// group and wait there for the other ranks.
fn check_group(communicator: &Communicator, operations: &[QueuedOperation], group: u64) -> Result {
    let CallContext { state, rank, .. } = communicator.context()?;
    let is_collective =
        |operation: &&QueuedOperation| matches!(operation.header, CallHeader::Collective { .. });
    let calls = operations.iter().filter(is_collective).count() as u64;
    let Some(other) = state.note_enqueued(rank, group, calls).filter(|_| calls > 0) else { return Ok(()) };
    Err(Error::usage(format!(
        "this thread called for rank {other} and rank {rank} without a group around both calls: a thread that calls for several \
         ranks has to in one group, from ncclGroupStart to ncclGroupEnd"
    )))
}

/// Returns the distinct streams of the operations.
fn streams(operations: &[QueuedOperation]) -> Vec<Stream> {
    let mut streams: Vec<Stream> = vec![];
    for OnStream { stream, .. } in operations.iter().filter_map(|operation| operation.on_stream.as_ref()) {
        if !streams.contains(stream) {
            streams.push(*stream);
        }
    }
    streams
}

/// Returns whether the streams of a job are being captured, which must be the same for all of them.
fn capture(driver: &Driver, streams: &[Stream]) -> Result<Capture> {
    let captures = streams.iter().map(|stream| driver.capture(*stream)).collect::<Result<Vec<_>>>()?;
    let first = captures.first().copied().unwrap_or(Capture::None);
    if captures.iter().all(|capture| *capture == first) {
        return Ok(first);
    }
    Err(Error::usage(
        "some of the streams that a communicator is given in a group are captured, but not all of them for one graph",
    ))
}

/// Enqueues the operations of one communicator.
fn enqueue_job(
    driver: &'static Driver,
    communicator: &Arc<Communicator>,
    operations: Vec<QueuedOperation>,
    streams: &[Stream],
    capture: Capture,
) -> Result {
    let on_streams = operations.iter().filter_map(|operation| operation.on_stream.as_ref());
    let accesses: Vec<_> = on_streams.flat_map(|on_stream| on_stream.accesses.iter().copied()).collect();
    let label = label(communicator, &operations, capture)?;
    let bytes: usize = operations.iter().map(|operation| operation.bytes).sum();
    let name: Arc<str> = format!("{label}, {bytes} bytes read and written").into();
    let label = CString::new(label).unwrap_or_default();
    let job =
        StreamJob { communicator: Arc::clone(communicator), operations, capture, name: Arc::clone(&name) };
    communicator.stream_jobs.enqueue(driver, streams, capture, name, |stream| {
        driver.enqueue(stream, &accesses, &label, move || job.run())
    })
}

/// Returns the name of a job in CUDA's reports: its calls, with their rank and number.
fn label(communicator: &Communicator, operations: &[QueuedOperation], capture: Capture) -> Result<String> {
    const NAMED: usize = 4;
    let CallContext { state, rank, .. } = communicator.context()?;
    let mut calls: Vec<String> =
        operations.iter().take(NAMED).map(|operation| operation.header.to_string()).collect();
    if operations.len() > NAMED {
        calls.push(format!("{} more", operations.len() - NAMED));
    }
    let numbers = if capture == Capture::None {
        let first = communicator.stream_jobs.number(state.calls(rank), operations.len());
        match operations.len() {
            1 => format!("call {first}"),
            calls => format!("calls {first} to {}", first + calls as u64 - 1),
        }
    } else {
        // Each launch of the graph is a separate call.
        "in a graph".to_owned()
    };
    Ok(format!("{}, rank {rank} of {}, {numbers}", calls.join(" + "), state.ranks()))
}

/// Operations of one communicator that run on a stream: once, or at each launch of a graph.
struct StreamJob {
    communicator: Arc<Communicator>,
    operations: Vec<QueuedOperation>,
    capture: Capture,
    /// The name in reports.
    name: Arc<str>,
}

impl StreamJob {
    /// Runs the job on the thread of its stream.
    fn run(&self) {
        let Self { communicator, operations, capture, name } = self;
        let running = communicator.stream_jobs.begin(*capture);
        if communicator.check_usable().is_err() {
            if communicator.is_aborted() {
                running.discard(name);
            } else if let Some(error) = communicator.failure() {
                communicator.fail_on_stream(error);
            }
            return;
        }
        if communicator.stream_jobs.is_released() {
            communicator.report(
                Finding::GraphAfterCommunicator,
                "a graph was launched after the communicator of its operations was destroyed; they do not run",
            );
            return;
        }
        let mut guard = FailOnPanic(Some(communicator));
        let result = queued_operation::run(operations);
        guard.0 = None;
        if let Err(error) = result {
            if communicator.is_aborted() {
                running.discard(name);
            } else {
                communicator.fail_on_stream(&error);
            }
        }
    }
}

/// Fails a communicator when dropped by a panic in its job.
struct FailOnPanic<'a>(Option<&'a Arc<Communicator>>);

impl Drop for FailOnPanic<'_> {
    fn drop(&mut self) {
        if let Some(communicator) = self.0 {
            communicator.fail_on_stream(&Error::panic());
        }
    }
}
