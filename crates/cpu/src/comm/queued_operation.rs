//! Operations that wait for the end of their group and then run together: on the calling thread, on the threads of nonblocking
//! communicators, or, as one job of each communicator, on the streams that the calls pass.

use std::cell::Cell;
use std::collections::{BTreeMap, VecDeque};
use std::ffi::CString;
use std::future::poll_fn;
use std::rc::Rc;
use std::sync::Arc;
use std::task::Poll;
use std::time::Instant;

use cuda_common::finding::Finding;

use crate::coll::call::{CallHeader, PeerCall};
use crate::coll::operation::{self, BoxedOperation, OnStream, Operation};
use crate::coll::wait_report::{self, WaitReport};
use crate::comm::communicator::{Communicator, RankInfo};
use crate::cuda::{Capture, Driver, Stream};
use crate::diag::error::{self, Error, Result};
use crate::diag::settings::{STRICT, TIMEOUT};
use crate::shm::buffer::BufferRange;
use crate::shm::call_context::CallContext;
use crate::shm::liveness::AbortReason;
use crate::sync::executor;
use crate::sync::lock;

/// The queue of an operation. Operations in one queue run in order, and queues run concurrently.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Queue {
    Collective,
    SendTo(u32),
    ReceiveFrom(u32),
    /// Puts and signals. They never wait.
    Put,
    Wait,
}

/// In strict mode, the number of a communicator's collectives that must end before its sends and receives begin.
///
/// NCCL schedules the tasks of a group in this order: the collectives first, and the sends and receives when no collective is left
/// (`ncclLaunchPrepare` in `enqueue.cc`). Kernels of one communicator run one after the other.
#[derive(Clone, Default)]
pub(super) struct Turn(Rc<Cell<usize>>);

impl Queue {
    pub(super) fn of(header: CallHeader) -> Self {
        match header {
            CallHeader::PointToPoint { call, peer, .. } => match call {
                PeerCall::Send => Self::SendTo(peer),
                PeerCall::Recv => Self::ReceiveFrom(peer),
                PeerCall::PutSignal | PeerCall::Signal => Self::Put,
                PeerCall::WaitSignal => Self::Wait,
            },
            _ => Self::Collective,
        }
    }

    pub(super) fn peer(self) -> Option<usize> {
        match self {
            Self::SendTo(peer) | Self::ReceiveFrom(peer) => Some(peer as usize),
            Self::Collective | Self::Put | Self::Wait => None,
        }
    }
}

impl Turn {
    /// Makes an operation of `queue` wait for its turn.
    pub(super) fn add<'a>(self, queue: Queue, operation: BoxedOperation<'a>) -> BoxedOperation<'a> {
        let Self(left) = self;
        if queue == Queue::Collective {
            left.set(left.get() + 1);
            return Box::pin(async move {
                let result = operation.await;
                left.set(left.get() - 1);
                result
            });
        }
        if queue.peer().is_none() {
            return operation;
        }
        Box::pin(async move {
            poll_fn(|_| if left.get() == 0 { Poll::Ready(()) } else { Poll::Pending }).await;
            operation.await
        })
    }
}

pub(super) struct QueuedOperation {
    pub(super) communicator: Arc<Communicator>,
    /// The stream on which the operation runs, or `None` if it runs on the host.
    pub(super) on_stream: Option<OnStream>,
    pub(super) header: CallHeader,
    buffers: [BufferRange; 2],
    operation: Box<dyn Start>,
}

trait Start: Send + Sync {
    /// Starts the operation. If `sends_wrong` is set, one element of the data that the operation sends is corrupted.
    fn start<'a>(&'a self, context: CallContext<'a>, sends_wrong: bool) -> BoxedOperation<'a>;
}

impl<O: Operation> Start for O {
    fn start<'a>(&'a self, context: CallContext<'a>, sends_wrong: bool) -> BoxedOperation<'a> {
        if sends_wrong {
            return Box::pin(operation::run_with_wrong_element(self, context));
        }
        Box::pin(self.run(context))
    }
}

impl QueuedOperation {
    pub(super) fn new(
        communicator: &Arc<Communicator>,
        mut operation: impl Operation,
        mut on_stream: Option<OnStream>,
    ) -> Result<Self> {
        if let Some(on_stream) = &mut on_stream {
            operation.resolve(on_stream)?;
        }
        Ok(Self {
            communicator: Arc::clone(communicator),
            on_stream,
            header: operation.header(),
            buffers: operation.ranges(),
            operation: Box::new(operation),
        })
    }

    /// Returns whether nothing else may use the communicator until the operation has ended.
    fn is_exclusive(&self) -> bool {
        matches!(self.header, CallHeader::Control { .. })
    }

    /// Returns the number of bytes that are read and written.
    fn bytes(&self) -> usize {
        self.buffers[0].length.saturating_add(self.buffers[1].length)
    }

    /// Returns a rough estimate of the duration in microseconds: the latency between ranks on one host, plus the time in which
    /// one thread copies (or simply sums) all bytes. Nothing is measured.
    pub(super) fn estimate(&self) -> f32 {
        const LATENCY: f32 = 1.0;
        const BYTES: f32 = 8000.0;
        LATENCY + self.bytes() as f32 / BYTES
    }
}

pub(super) fn distinct<'a>(
    communicators: impl Iterator<Item = &'a Arc<Communicator>>,
) -> Vec<Arc<Communicator>> {
    let mut distinct: Vec<Arc<Communicator>> = vec![];
    for communicator in communicators {
        if !distinct.iter().any(|known| Arc::ptr_eq(known, communicator)) {
            distinct.push(Arc::clone(communicator));
        }
    }
    distinct
}

/// Checks that a rank's sends to itself are received in the same group: otherwise the missing calls could never run.
pub(super) fn check_own_messages(communicator: &Arc<Communicator>, operations: &[QueuedOperation]) -> Result {
    let Ok(RankInfo { rank, .. }) = communicator.rank_info() else { return Ok(()) };
    let number = |queue| {
        let is_own = |operation: &&QueuedOperation| {
            Queue::of(operation.header) == queue && Arc::ptr_eq(&operation.communicator, communicator)
        };
        operations.iter().filter(is_own).count()
    };
    let rank = *rank as u32;
    let (sends, receives) = (number(Queue::SendTo(rank)), number(Queue::ReceiveFrom(rank)));
    if sends == receives {
        return Ok(());
    }
    Err(Error::usage(format!(
        "a rank that sends to itself has to receive it in the same group: {sends} sends, {receives} receives"
    )))
}

pub(super) fn run(operations: &[QueuedOperation]) -> Result {
    let communicators = distinct(operations.iter().map(|operation| &operation.communicator));
    communicators.iter().try_for_each(|communicator| check_own_messages(communicator, operations))?;
    let delay = |communicator: &Arc<Communicator>| {
        communicator.delay().inspect_err(|error| communicator.record_error(error))
    };
    communicators.iter().try_for_each(delay)?;
    let is_on_host =
        operations.iter().all(|operation| operation.on_stream.is_none() && !operation.is_exclusive());
    // The communicator of a failed operation on the host that stays pending.
    let stalled = Cell::new(None);
    let mut queues: Vec<VecDeque<BoxedOperation<'_>>> = vec![];
    for communicator in &communicators {
        let (turn, mut places) = (Turn::default(), BTreeMap::new());
        let is_own = |operation: &&QueuedOperation| Arc::ptr_eq(&operation.communicator, communicator);
        let own = operations.iter().filter(is_own).enumerate();
        for (index, queued) in own {
            let queue = Queue::of(queued.header);
            let mut operation = start(queued, index, is_on_host, &stalled);
            if *STRICT {
                operation = turn.clone().add(queue, operation);
            }
            let place = *places.entry(queue).or_insert_with(|| queues.len());
            if place == queues.len() {
                queues.push(VecDeque::new());
            }
            queues[place].push_back(operation);
        }
    }
    let mut threads = 1;
    let mut states = vec![];
    for communicator in &communicators {
        let Ok(RankInfo { state, rank, .. }) = communicator.rank_info() else { continue };
        threads = threads.max(state.ranks());
        states.push((state, *rank));
    }
    let guard = OnPanic(|| abort_all(&communicators));
    let mut report = WaitReport::default();
    let result = executor::run(queues, threads, |waited| {
        states.iter().for_each(|(state, _)| state.check_liveness());
        report.check(waited, states.iter().map(|(state, rank)| (&***state, *rank)));
        // An abort of one communicator waits for everything that runs here.
        if communicators.iter().any(|communicator| communicator.is_aborted()) {
            abort_all(&communicators);
        }
    });
    std::mem::forget(guard);
    result.inspect_err(|error| {
        if let Some(communicator) = stalled.get() {
            end_failed(communicator, error, || communicators.iter().any(|other| other.is_aborted()));
        }
    })
}

/// Starts operation `index` of its communicator. If it fails on the host and stays pending, the communicator is stored in
/// `stalled`. If it does not stay pending, the communicator records the error.
fn start<'a>(
    queued: &'a QueuedOperation,
    index: usize,
    is_on_host: bool,
    stalled: &'a Cell<Option<&'a Arc<Communicator>>>,
) -> BoxedOperation<'a> {
    let QueuedOperation { communicator, header, buffers, operation, .. } = queued;
    let run = async move {
        let context = communicator.context()?;
        context.state.check_timed_out()?;
        let sends_wrong = communicator.fault().is_some_and(|fault| fault.sends_wrong);
        let running = operation.start(context, sends_wrong);
        communicator.running.begin(index, header.encode(), *buffers);
        let result = wait_report::run(running, *header, context).await;
        communicator.running.end(index);
        result
    };
    Box::pin(async move {
        run.await.inspect_err(|error| {
            if !communicator.keeps_pending(error) {
                communicator.record_error(error);
            } else if is_on_host {
                stalled.set(Some(communicator));
            }
        })
    })
}

/// Ends a failed operation on host memory. With `LIBNCCL_CPU_FAILURES=wait`, an operation that failed because of a peer ends only
/// once this rank ends it, `LIBNCCL_CPU_TIMEOUT` has elapsed, or `is_over` returns `true`. Any other operation ends immediately.
#[cold]
pub(super) fn end_failed(communicator: &Communicator, error: &Error, is_over: impl Fn() -> bool) {
    if communicator.keeps_pending(error) {
        let begin = Instant::now();
        let is_late = || TIMEOUT.is_some_and(|limit| begin.elapsed() >= limit);
        communicator.stay_pending(error, || is_over() || is_late());
    }
    communicator.record_error(error);
}

/// Guard that calls a function if an operation panics. Otherwise, the guard must be forgotten.
pub(super) struct OnPanic<F: Fn()>(pub(super) F);

impl<F: Fn()> Drop for OnPanic<F> {
    fn drop(&mut self) {
        (self.0)();
    }
}

/// Sets the abort flags: the rank is out of sync, and the other ranks must not wait for it.
pub(super) fn abort_all(communicators: &[Arc<Communicator>]) {
    communicators.iter().for_each(|communicator| communicator.set_abort(AbortReason::Failed));
}

/// Runs the operations of each communicator as its next job.
pub(super) fn enqueue_jobs(
    mut operations: Vec<QueuedOperation>,
    communicators: &[Arc<Communicator>],
) -> Result {
    // The threads are started first: if that fails, nothing has begun.
    communicators.iter().try_for_each(|communicator| communicator.jobs.start_thread())?;
    for communicator in communicators {
        let is_own = |operation: &mut QueuedOperation| Arc::ptr_eq(&operation.communicator, communicator);
        let own: Vec<_> = operations.extract_if(.., is_own).collect();
        let is_exclusive = own.iter().any(QueuedOperation::is_exclusive);
        let jobs = Arc::clone(&communicator.jobs);
        let communicator = Arc::clone(communicator);
        jobs.run(is_exclusive, move || {
            communicator.synchronize();
            communicator.check_usable()?;
            drop(communicator);
            run(&own).inspect_err(|error| error::set_last(&error.text))
        })?;
    }
    Ok(())
}

/// Enqueues the operations of each communicator as its next job. Each operation has a stream.
pub(super) fn enqueue_on_streams(mut operations: Vec<QueuedOperation>) -> Result {
    let group = GROUPS.replace(GROUPS.get() + 1);
    let communicators = distinct(operations.iter().map(|operation| &operation.communicator));
    communicators.iter().try_for_each(|communicator| check_own_messages(communicator, &operations))?;
    let mut launched = vec![];
    for communicator in communicators {
        let is_own = |operation: &mut QueuedOperation| Arc::ptr_eq(&operation.communicator, &communicator);
        let own: Vec<_> = operations.extract_if(.., is_own).collect();
        if let Some(driver) = communicator.driver() {
            driver.on_device(communicator.device, || {
                // The job may fail immediately, which must not fail this call to CUDA.
                let _held = lock(&communicator.fails_cuda);
                let streams = streams(&own);
                let capture = capture(driver, &streams)?;
                let enqueued =
                    if capture.is_none() { check_group(&communicator, &own, group) } else { Ok(()) };
                enqueued
                    .and_then(|()| enqueue_job(driver, &communicator, own, &streams, capture))
                    .inspect_err(|error| {
                        if capture.is_none() {
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

/// Checks that this thread has not enqueued the same collectives for another rank in an earlier group: NCCL may connect the ranks
/// in that group and wait there for this rank.
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

fn streams(operations: &[QueuedOperation]) -> Vec<Stream> {
    let mut streams: Vec<Stream> = vec![];
    for OnStream { stream, .. } in operations.iter().filter_map(|operation| operation.on_stream.as_ref()) {
        if !streams.contains(stream) {
            streams.push(*stream);
        }
    }
    streams
}

/// Returns the capture of a job's streams, if any. All streams must have the same capture.
fn capture(driver: &Driver, streams: &[Stream]) -> Result<Capture> {
    let captures = streams.iter().map(|stream| driver.capture(*stream)).collect::<Result<Vec<_>>>()?;
    let first = captures.first().copied().flatten();
    if captures.iter().all(|capture| *capture == first) {
        return Ok(first);
    }
    Err(Error::usage(
        "some of the streams that a communicator is given in a group are captured, but not all of them for one graph",
    ))
}

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
    let bytes: usize = operations.iter().map(QueuedOperation::bytes).sum();
    let name: Arc<str> = format!("{label}, {bytes} bytes read and written").into();
    let label = CString::new(label).unwrap_or_default();
    let job =
        StreamJob { communicator: Arc::clone(communicator), operations, capture, name: Arc::clone(&name) };
    communicator.stream_jobs.enqueue(driver, streams, capture, name, |stream| {
        driver.enqueue(stream, &accesses, &label, move || job.run())
    })
}

/// Returns the name that CUDA's reports use for a job: the calls, the rank, and the numbers of the calls.
fn label(communicator: &Communicator, operations: &[QueuedOperation], capture: Capture) -> Result<String> {
    const NAMED: usize = 4;
    let CallContext { state, rank, .. } = communicator.context()?;
    let mut calls: Vec<String> =
        operations.iter().take(NAMED).map(|operation| operation.header.to_string()).collect();
    if operations.len() > NAMED {
        calls.push(format!("{} more", operations.len() - NAMED));
    }
    let numbers = if capture.is_none() {
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
    name: Arc<str>,
}

impl StreamJob {
    fn run(&self) {
        let Self { communicator, operations, capture, name } = self;
        let running = communicator.stream_jobs.begin(*capture);
        if communicator.check_usable().is_err() {
            if communicator.is_aborted() {
                running.discard(name);
            } else if let Some(error) = communicator.error.get() {
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
        let guard = OnPanic(|| communicator.fail_on_stream(&Error::panic()));
        let result = run(operations);
        std::mem::forget(guard);
        if let Err(error) = result {
            if communicator.is_aborted() {
                running.discard(name);
            } else {
                communicator.fail_on_stream(&error);
            }
        }
    }
}
