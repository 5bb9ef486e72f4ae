//! Groups: calls between ncclGroupStart and ncclGroupEnd run together when the group ends: on the calling thread, or, if
//! their communicators are nonblocking, on the threads of these. The operations of each nonblocking communicator are a
//! job of its own, so that none waits for another communicator's; a group that makes communicators is one job.
//!
//! On a communicator of CUDA devices, the group's end enqueues its operations on their stream, as one job.
//!
//! A call outside a group is a group of one. If a call inside a group fails, nothing of the group runs.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, VecDeque};
use std::ffi::CString;
use std::future::poll_fn;
use std::mem::ManuallyDrop;
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::Poll;

use crate::coll::call_header::CallHeader;
use crate::coll::on_stream::OnStream;
use crate::coll::operation::Operation;
use crate::coll::wait_report::{self, WaitReport};
use crate::coll::wrong_element;
use crate::comm::communicator::{Communicator, RankInfo};
use crate::comm::fork;
use crate::comm::init::{self, Init};
use crate::comm::job_queue::JobKind;
use crate::cuda::driver::{Capture, Driver, Stream};
use crate::diag::debug;
use crate::diag::error::{Error, Progress, Result};
use crate::diag::last_error;
use crate::diag::strict::STRICT;
use crate::diag::wait_limits;
use crate::shm::call_context::CallContext;
use crate::shm::liveness::AbortReason;
use crate::sync::executor::{self, BoxedOperation};

/// The calls of a thread's open group.
#[derive(Default)]
struct Group {
    /// The [`generation`](fork::generation) of the process whose group it is.
    generation: usize,
    depth: u32,
    error: Option<Error>,
    inits: Vec<Init>,
    operations: Vec<QueuedOperation>,
}

/// An operation that runs when the group ends.
struct QueuedOperation {
    communicator: Arc<Communicator>,
    kind: JobKind,
    queue: Queue,
    /// The number of bytes that it reads and writes.
    bytes: usize,
    /// The stream that it runs on, if it does not run on the host.
    on_stream: Option<OnStream>,
    header: CallHeader,
    operation: Box<dyn Start>,
}

/// An operation of any type.
trait Start: Send + Sync {
    /// Starts it, on the thread that then runs it.
    fn start<'a>(&'a self, context: CallContext<'a>) -> BoxedOperation<'a>;

    /// Starts it with a wrong element in what it sends.
    fn start_wrong<'a>(&'a self, context: CallContext<'a>) -> BoxedOperation<'a>;
}

impl<O: Operation> Start for O {
    fn start<'a>(&'a self, context: CallContext<'a>) -> BoxedOperation<'a> {
        Box::pin(wait_report::run(self, context))
    }

    fn start_wrong<'a>(&'a self, context: CallContext<'a>) -> BoxedOperation<'a> {
        Box::pin(wrong_element::run(self, context))
    }
}

/// The queue of an operation: those in one queue run in order, and queues run concurrently.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Queue {
    Collective,
    SendTo(usize),
    ReceiveFrom(usize),
    /// Writes to other ranks and signals there, which never wait.
    Put,
    /// Waits for signals.
    Wait,
}

thread_local! {
    static GROUP: RefCell<Group> = RefCell::default();
    /// The group of a thread that is ending and has dropped [`GROUP`]: destructors of the program's own variables may make
    /// calls. It has no destructor, so that it is there until the end.
    static LAST_GROUP: RefCell<ManuallyDrop<Group>> = RefCell::default();
}

/// Calls `act` with this thread's group.
fn with_group<T>(act: impl FnOnce(&mut Group) -> T) -> T {
    let act = |group: &mut Group| {
        if group.generation != fork::generation() {
            // A forked child has no part in a group that its parent began.
            *group = Group { generation: fork::generation(), ..Group::default() };
        }
        act(group)
    };
    match GROUP.try_with(|_| ()) {
        Ok(()) => GROUP.with_borrow_mut(act),
        Err(_) => LAST_GROUP.with_borrow_mut(|group| act(group)),
    }
}

pub(crate) fn start() {
    fork::watch();
    with_group(|group| group.depth += 1);
}

pub(crate) fn end() -> Result<Progress> {
    match leave("ncclGroupEnd")? {
        Some(group) => group.end(),
        None => Ok(Progress::Done),
    }
}

/// Leaves a group without running it. The outermost group returns the estimated time in microseconds, or `None` if it is
/// empty.
pub(crate) fn simulate() -> Result<Option<f32>> {
    let Some(group) = leave("ncclGroupSimulateEnd")? else { return Ok(None) };
    if let Some(error) = group.error {
        return Err(error);
    }
    if !group.inits.is_empty() {
        return Err(Error::usage("a group that creates communicators cannot be simulated"));
    }
    let estimate = group.operations.iter().map(QueuedOperation::estimate).reduce(|sum, time| sum + time);
    Ok(estimate)
}

/// Leaves a group, and returns it if it was the outermost.
fn leave(function: &str) -> Result<Option<Group>> {
    with_group(|group| match group.depth {
        0 => Err(Error::usage(format!("{function}: not in a group call"))),
        1 => Ok(Some(std::mem::take(group))),
        _ => {
            group.depth -= 1;
            Ok(None)
        }
    })
}

/// Records that a call failed: if it was in a group, nothing of that group runs.
pub(crate) fn fail(function: &str, error: &Error) {
    with_group(|group| {
        if group.depth > 0 {
            let text = format!("{function} in this group failed: {}", error.text);
            group.error.get_or_insert(Error { text, ..error.clone() });
        }
    });
}

/// Runs `operation`, which reads and writes so many bytes, when the group ends, or now; on a communicator of CUDA devices,
/// enqueues it on `stream` then. `context` is `communicator`'s.
pub(crate) fn run(
    communicator: &Arc<Communicator>,
    context: CallContext<'_>,
    queue: Queue,
    bytes: usize,
    operation: impl Operation,
    stream: Stream,
) -> Result<Progress> {
    let header = operation.header();
    debug::info(header.subsystem(), || {
        header.log_line(operation.buffers(), communicator.handle().addr(), context, stream.addr())
    });
    let now = GROUP.try_with(|group| group.borrow().depth == 0);
    let now = now.unwrap_or_else(|_| LAST_GROUP.with_borrow(|group| group.depth == 0));
    if now && communicator.runs_at_once() && queue.peer() != Some(context.rank) {
        let _entered = communicator.enter()?;
        // Nothing to combine, so nothing to put on the heap.
        let CallContext { state, .. } = context;
        let guard = AbortOnPanic(std::slice::from_ref(communicator));
        let mut report = WaitReport::default();
        let number = state.begin_call(context.rank, header.encode());
        let running = pin!(operation.run(context));
        let result = executor::run_one(running, state.ranks(), |waited| {
            state.check_liveness();
            report.check_call(waited, number, header, context);
        });
        state.end_call(context.rank);
        std::mem::forget(guard);
        return result.inspect_err(|error| communicator.record_error(error)).map(|()| Progress::Done);
    }
    let on_stream = communicator.driver().map(|driver| OnStream::new(driver, stream));
    let operation = QueuedOperation::new(communicator, queue, bytes, operation, on_stream)?;
    add(|group| group.operations.push(operation))
}

/// Runs `operation`, of which all ranks run one, on the host when the group ends, or now: it has no stream.
pub(crate) fn run_on_host(
    communicator: &Arc<Communicator>,
    context: CallContext<'_>,
    operation: impl Operation,
) -> Result<Progress> {
    let header = operation.header();
    debug::info(header.subsystem(), || {
        header.log_line(operation.buffers(), communicator.handle().addr(), context, 0)
    });
    let operation = QueuedOperation::new(communicator, Queue::Collective, 0, operation, None)?;
    add(|group| group.operations.push(operation))
}

/// Runs an initialisation when the group ends, or now.
pub(crate) fn init(init: Init) -> Result<Progress> {
    add(|group| group.inits.push(init))
}

fn add(push: impl FnOnce(&mut Group)) -> Result<Progress> {
    let alone = with_group(|group| {
        push(group);
        (group.depth == 0).then(|| std::mem::take(group))
    });
    alone.map_or(Ok(Progress::Done), Group::end)
}

impl Group {
    fn end(mut self) -> Result<Progress> {
        if let Some(error) = self.error {
            return Err(error);
        }
        let of_operations = self.operations.iter().map(|operation| &operation.communicator);
        let callers = distinct(self.inits.iter().map(Init::caller).chain(of_operations));
        let _entered = callers.iter().map(|caller| caller.enter()).collect::<Result<Vec<_>>>()?;
        let blocking = callers.iter().filter(|communicator| communicator.config().blocking).count();
        if blocking == callers.len() {
            let on_streams = self.take_stream_operations();
            if !self.inits.is_empty() || !self.operations.is_empty() {
                callers.iter().for_each(|communicator| communicator.synchronize());
            }
            self.run()?;
            enqueue(on_streams)?;
            return Ok(Progress::Done);
        }
        if blocking > 0 {
            return Err(Error::argument(format!(
                "{blocking} of the {} communicators in this group are blocking and the others are nonblocking",
                callers.len()
            )));
        }
        let on_streams = self.take_stream_operations();
        if !on_streams.is_empty() {
            if !self.inits.is_empty() || !self.operations.is_empty() {
                return Err(Error::usage(
                    "a group of nonblocking communicators has operations on streams, and calls that make or change a \
                     communicator: make them one after the other",
                ));
            }
            enqueue(on_streams)?;
            return Ok(Progress::Running);
        }
        if self.inits.is_empty() { self.run_in_jobs(&callers) } else { self.run_in_one_job(&callers) }?;
        Ok(Progress::Running)
    }

    /// Separates the operations that run on streams.
    fn take_stream_operations(&mut self) -> Vec<QueuedOperation> {
        if self.operations.iter().all(|operation| operation.on_stream.is_none()) {
            return vec![];
        }
        let (on_streams, others) = std::mem::take(&mut self.operations)
            .into_iter()
            .partition(|operation| operation.on_stream.is_some());
        self.operations = others;
        on_streams
    }

    /// Runs the operations of each communicator as its next job.
    fn run_in_jobs(mut self, communicators: &[Arc<Communicator>]) -> Result {
        // The threads first: without one, nothing has begun.
        communicators.iter().try_for_each(|communicator| communicator.jobs().start_thread())?;
        for communicator in communicators {
            let is_own = |operation: &QueuedOperation| Arc::ptr_eq(&operation.communicator, communicator);
            let (own, others): (Vec<_>, _) = self.operations.into_iter().partition(is_own);
            self.operations = others;
            let kind = own.iter().map(|operation| operation.kind).max().unwrap_or(JobKind::Shared);
            let queue = Arc::clone(communicator.jobs());
            let job = queue.begin(kind);
            let communicator = Arc::clone(communicator);
            queue.push(move || {
                communicator.synchronize();
                let result = communicator.check_usable().and_then(|()| {
                    drop(communicator);
                    run_operations(&own).inspect_err(|error| last_error::set(&error.text))
                });
                drop(own);
                job.end(result);
            })?;
        }
        Ok(())
    }

    /// Runs all as a job of each of the communicators, beside which they run nothing.
    fn run_in_one_job(self, communicators: &[Arc<Communicator>]) -> Result {
        let mut in_use = communicators.iter().filter(|communicator| communicator.stopped().is_none());
        in_use.try_for_each(|communicator| communicator.check_not_busy())?;
        // The thread first: without one, nothing has begun, and no handle has been given out.
        let Some(queue) = communicators.first().map(|communicator| Arc::clone(communicator.jobs())) else {
            return Ok(());
        };
        queue.start_thread()?;
        self.inits.iter().for_each(Init::hand_out_early);
        let begin = |communicator: &Arc<Communicator>| communicator.jobs().begin(JobKind::Exclusive);
        let jobs: Vec<_> = communicators.iter().map(begin).collect();
        let parents: Vec<_> = communicators.to_vec();
        queue.push(move || {
            parents.into_iter().for_each(|communicator| communicator.synchronize());
            let result = self.run().inspect_err(|error| last_error::set(&error.text));
            jobs.into_iter().for_each(|job| job.end(result.clone()));
        })
    }

    fn run(self) -> Result {
        init::run_all(self.inits)?;
        run_operations(&self.operations)
    }
}

impl Queue {
    fn peer(self) -> Option<usize> {
        match self {
            Self::SendTo(peer) | Self::ReceiveFrom(peer) => Some(peer),
            Self::Collective | Self::Put | Self::Wait => None,
        }
    }
}

impl QueuedOperation {
    /// Creates an operation that runs on a stream, or on the host.
    fn new(
        communicator: &Arc<Communicator>,
        queue: Queue,
        bytes: usize,
        mut operation: impl Operation,
        mut on_stream: Option<OnStream>,
    ) -> Result<Self> {
        if let Some(on_stream) = &mut on_stream {
            operation.resolve(on_stream)?;
        }
        let header = operation.header();
        let kind = match header {
            CallHeader::Control { .. } => JobKind::Exclusive,
            _ => JobKind::Shared,
        };
        let (communicator, operation) = (Arc::clone(communicator), Box::new(operation));
        Ok(Self { communicator, kind, queue, bytes, on_stream, header, operation })
    }

    /// Returns a rough estimate in microseconds: the latency of ranks on one host, and one copy of each byte by one
    /// thread, which is also the cost of a simple sum. Nothing is measured.
    fn estimate(&self) -> f32 {
        const LATENCY: f32 = 1.0;
        const BYTES: f32 = 8000.0;
        LATENCY + self.bytes as f32 / BYTES
    }
}

fn distinct<'a>(communicators: impl Iterator<Item = &'a Arc<Communicator>>) -> Vec<Arc<Communicator>> {
    let mut distinct: Vec<Arc<Communicator>> = vec![];
    for communicator in communicators {
        if !distinct.iter().any(|known| Arc::ptr_eq(known, communicator)) {
            distinct.push(Arc::clone(communicator));
        }
    }
    distinct
}

/// The number of a communicator's collectives that have yet to end before its sends and receives begin, in strict mode.
///
/// NCCL schedules the tasks of a group so: the collectives first, and the sends and receives once none is left
/// (`ncclLaunchPrepare` in `enqueue.cc`). Kernels of one communicator run one after the other.
#[derive(Clone, Default)]
struct Turn(Rc<Cell<usize>>);

impl Turn {
    /// Adds an operation, which runs when it is its turn.
    fn add<'a>(self, queue: Queue, operation: BoxedOperation<'a>) -> BoxedOperation<'a> {
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

/// Enqueues the operations of each communicator as its next job. Each has a stream.
fn enqueue(mut operations: Vec<QueuedOperation>) -> Result {
    let communicators = distinct(operations.iter().map(|operation| &operation.communicator));
    communicators.iter().try_for_each(|communicator| check_own_messages(communicator, &operations))?;
    for communicator in communicators {
        let is_own = |operation: &QueuedOperation| Arc::ptr_eq(&operation.communicator, &communicator);
        let (own, others): (Vec<_>, _) = operations.into_iter().partition(is_own);
        operations = others;
        if let Some(driver) = communicator.driver() {
            driver.on_device(communicator.device(), || {
                let streams = streams(&own);
                let capture = capture(driver, &streams)?;
                enqueue_job(driver, &communicator, own, &streams, capture).inspect_err(|error| {
                    if capture == Capture::None {
                        // Other ranks will wait for it.
                        communicator.fail(error);
                        communicator.set_abort(AbortReason::Failed);
                    }
                })
            })?;
        }
    }
    Ok(())
}

/// Returns the streams of operations.
fn streams(operations: &[QueuedOperation]) -> Vec<Stream> {
    let mut streams: Vec<Stream> = vec![];
    for OnStream { stream, .. } in operations.iter().filter_map(|operation| operation.on_stream.as_ref()) {
        if !streams.contains(stream) {
            streams.push(*stream);
        }
    }
    streams
}

/// Returns whether what the streams of a job are given now is captured, which is the same for all of them.
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
    let job = Job::new(communicator, operations, capture);
    communicator.stream_jobs().enqueue(driver, streams, capture, |stream| {
        driver.enqueue(stream, &accesses, &label, move || job.run())
    })
}

/// Returns the name of a job in the reports of CUDA: its calls, with their rank and number.
fn label(communicator: &Communicator, operations: &[QueuedOperation], capture: Capture) -> Result<CString> {
    const NAMED: usize = 4;
    let CallContext { state, rank, .. } = communicator.context()?;
    let mut calls: Vec<String> =
        operations.iter().take(NAMED).map(|operation| operation.header.to_string()).collect();
    if operations.len() > NAMED {
        calls.push(format!("{} more", operations.len() - NAMED));
    }
    let numbers = if capture == Capture::None {
        let first = communicator.stream_jobs().number(state.calls(rank), operations.len());
        match operations.len() {
            1 => format!("call {first}"),
            calls => format!("calls {first} to {}", first + calls as u64 - 1),
        }
    } else {
        // Each launch of the graph is another call.
        "in a graph".to_owned()
    };
    let text = format!("{}, rank {rank} of {}, {numbers}", calls.join(" + "), state.ranks());
    Ok(CString::new(text).unwrap_or_default())
}

/// Operations of one communicator, which run on a stream: once, or at each launch of a graph.
struct Job {
    communicator: Arc<Communicator>,
    operations: Vec<QueuedOperation>,
    capture: Capture,
}

impl Job {
    fn new(communicator: &Arc<Communicator>, operations: Vec<QueuedOperation>, capture: Capture) -> Self {
        Self { communicator: Arc::clone(communicator), operations, capture }
    }

    /// Runs the job, on the thread of its stream. Nobody takes its error there, so it ends the communicator, as an error
    /// of NCCL's kernels does.
    fn run(&self) {
        let Self { communicator, operations, capture } = self;
        let _running = communicator.stream_jobs().begin(*capture);
        if communicator.check_usable().is_err() {
            return;
        }
        if communicator.stream_jobs().is_released() {
            wait_limits::report(&format!(
                "a graph was launched after the communicator of its operations was destroyed; they do not run; {}",
                communicator.describe()
            ));
            return;
        }
        let mut guard = FailOnPanic(Some(communicator));
        let result = run_operations(operations);
        guard.0 = None;
        if let Err(error) = result
            && !communicator.is_aborted()
            && communicator.stopped().is_none()
        {
            communicator.fail(&error);
            wait_limits::report(&format!(
                "an operation on a stream failed, of which ncclCommGetAsyncError tells: {}; {}",
                error.text,
                communicator.describe()
            ));
        }
    }
}

/// Fails a communicator on drop, which is a panic in its job.
struct FailOnPanic<'a>(Option<&'a Arc<Communicator>>);

impl Drop for FailOnPanic<'_> {
    fn drop(&mut self) {
        if let Some(communicator) = self.0 {
            communicator.fail(&Error::panic());
        }
    }
}

/// Checks that what a rank sends to itself is received in the same group: nothing else could run meanwhile.
fn check_own_messages(communicator: &Arc<Communicator>, operations: &[QueuedOperation]) -> Result {
    let Ok(RankInfo { rank, .. }) = communicator.rank_info() else { return Ok(()) };
    let number = |queue| {
        let is_own = |operation: &&QueuedOperation| {
            operation.queue == queue && Arc::ptr_eq(&operation.communicator, communicator)
        };
        operations.iter().filter(is_own).count()
    };
    let (sends, receives) = (number(Queue::SendTo(*rank)), number(Queue::ReceiveFrom(*rank)));
    if sends == receives {
        return Ok(());
    }
    Err(Error::usage(format!(
        "a rank that sends to itself has to receive it in the same group: {sends} sends, {receives} receives"
    )))
}

fn run_operations(operations: &[QueuedOperation]) -> Result {
    let communicators = distinct(operations.iter().map(|operation| &operation.communicator));
    communicators.iter().try_for_each(|communicator| check_own_messages(communicator, operations))?;
    let delay = |communicator: &Arc<Communicator>| {
        communicator.delay().inspect_err(|error| communicator.record_error(error))
    };
    communicators.iter().try_for_each(delay)?;
    let mut queues: BTreeMap<(usize, Queue), VecDeque<BoxedOperation<'_>>> = BTreeMap::new();
    let mut turns: BTreeMap<usize, Turn> = BTreeMap::new();
    for QueuedOperation { communicator, queue, operation, .. } in operations {
        let (id, queue) = (Arc::as_ptr(communicator).addr(), *queue);
        let mut operation: BoxedOperation<'_> = Box::pin(async move {
            let operation = async {
                let context = communicator.context()?;
                let is_wrong = communicator.fault().is_some_and(|fault| fault.sends_wrong);
                if is_wrong { operation.start_wrong(context) } else { operation.start(context) }.await
            };
            operation.await.inspect_err(|error| communicator.record_error(error))
        });
        if *STRICT {
            operation = turns.entry(id).or_default().clone().add(queue, operation);
        }
        queues.entry((id, queue)).or_default().push_back(operation);
    }
    let mut threads = 1;
    let mut states = vec![];
    for communicator in &communicators {
        let Ok(RankInfo { state, rank, .. }) = communicator.rank_info() else { continue };
        threads = threads.max(state.ranks());
        states.push((state, *rank));
    }
    let guard = AbortOnPanic(&communicators);
    let mut report = WaitReport::default();
    let result = executor::run(queues.into_values().collect(), threads, |waited| {
        states.iter().for_each(|(state, _)| state.check_liveness());
        report.check(waited, states.iter().map(|(state, rank)| (&***state, *rank)));
        // An abort of one of them waits for everything that runs here.
        if communicators.iter().any(|communicator| communicator.is_aborted()) {
            communicators.iter().for_each(|communicator| communicator.set_abort(AbortReason::Failed));
        }
    });
    std::mem::forget(guard);
    result
}

/// Sets the abort flag on drop, which is a panic in an operation: its rank is out of sync, and the others must not wait
/// for it.
struct AbortOnPanic<'a>(&'a [Arc<Communicator>]);

impl Drop for AbortOnPanic<'_> {
    fn drop(&mut self) {
        for communicator in self.0 {
            communicator.set_abort(AbortReason::Failed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bootstrap::unique_id::UniqueId;
    use crate::coll::call_header::CallHeader;
    use crate::comm::config::Config;
    use crate::comm::init::InitKind;
    use crate::comm::out_param::OutParam;
    use crate::comm::split;
    use crate::shm::process::Process;
    use crate::shm::shared_state::SharedState;
    use std::ptr;
    use std::sync::Mutex;
    use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
    use std::sync::mpsc::{self, Receiver};
    use std::thread::{self, ThreadId};

    fn communicators(ranks: usize, config: &Config) -> Vec<Arc<Communicator>> {
        let state = Arc::new(SharedState::create(&vec![Process::current().unwrap(); ranks]).unwrap().0);
        let id = UniqueId::generate().unwrap();
        let join = |rank| {
            let communicator = Communicator::new(0, None, config.clone());
            communicator.join(RankInfo { state: Arc::clone(&state), rank, id }, None);
            Arc::new(communicator)
        };
        (0..ranks).map(join).collect()
    }

    fn run_collective(communicator: &Arc<Communicator>, operation: impl Operation) -> Result<Progress> {
        let context = communicator.check_operable().unwrap();
        run(communicator, context, Queue::Collective, 0, operation, Stream::new(ptr::null_mut()))
    }

    const HEADER: CallHeader = CallHeader::Unknown { number: 0 };

    /// Counts its runs.
    struct Count(Arc<AtomicU32>);

    impl Operation for Count {
        fn header(&self) -> CallHeader {
            HEADER
        }

        async fn run(&self, _: CallContext<'_>) -> Result {
            self.0.fetch_add(1, Relaxed);
            Ok(())
        }
    }

    #[test]
    fn operation_runs_at_once_or_at_the_outermost_group_end() {
        let communicator = &communicators(1, &Config::default())[0];
        let ran = Arc::new(AtomicU32::new(0));
        let count = || run_collective(communicator, Count(Arc::clone(&ran)));
        count().unwrap();
        assert_eq!(ran.load(Relaxed), 1);
        start();
        start();
        count().unwrap();
        end().unwrap();
        assert_eq!(ran.load(Relaxed), 1);
        end().unwrap();
        assert_eq!(ran.load(Relaxed), 2);
        assert!(end().is_err());
    }

    struct Panic;

    impl Operation for Panic {
        fn header(&self) -> CallHeader {
            HEADER
        }

        async fn run(&self, _: CallContext<'_>) -> Result {
            panic!("on purpose")
        }
    }

    #[test]
    fn panic_in_an_operation_sets_the_abort_flag() {
        let communicators = communicators(2, &Config::default());
        let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            run_collective(&communicators[1], Panic)
        }));
        assert!(result.is_err());
        let state = communicators[0].check_idle().unwrap().state;
        assert_eq!(state.check_abort().unwrap_err().text, "rank 1 failed");
    }

    /// A job may keep a communicator for a little longer than its handle; the process may even end before, which must
    /// not look like a death.
    #[test]
    fn destroyed_communicator_departs_at_once() {
        let communicators = communicators(2, &Config::default());
        communicators[1].destroy();
        let state = communicators[0].check_idle().unwrap().state;
        assert!(state.check_peer(1).unwrap_err().text.contains("rank 1 has left"));
    }

    #[test]
    fn failed_init_fails_the_group_and_the_joined_ranks_depart() {
        let parents = communicators(2, &Config::default());
        let child = || Communicator::new(0, None, Config::default());
        let split = || InitKind::Split { color: 0, key: 0 };
        let waited = thread::scope(|scope| {
            let other = scope.spawn(|| {
                let child = Arc::new(child());
                let joined = split::split(&child, &parents[1], 0, 0).unwrap().unwrap();
                executor::run_one(joined.state.wait(0, || false), 2, |_| ()).unwrap_err().text
            });
            let mut handles = [ptr::null_mut(); 2];
            let [one, two] = handles.each_mut().map(OutParam::for_test);
            start();
            init(Init::of_child(child(), Arc::clone(&parents[0]), split(), one)).unwrap();
            let excluded = InitKind::Shrink { survivors: vec![1] };
            init(Init::of_child(child(), Arc::clone(&parents[0]), excluded, two)).unwrap();
            assert_eq!(end().unwrap_err().text, "an excluded rank called ncclCommShrink");
            assert_eq!(handles, [ptr::null_mut(); 2]);
            other.join().unwrap()
        });
        assert!(waited.contains("rank 0 has left"), "{waited}");
    }

    /// Waits for the message, records its thread, and fails.
    struct Fail(Mutex<Receiver<()>>, Arc<Mutex<Option<ThreadId>>>);

    impl Operation for Fail {
        fn header(&self) -> CallHeader {
            HEADER
        }

        async fn run(&self, _: CallContext<'_>) -> Result {
            self.0.lock().unwrap().recv().unwrap();
            *self.1.lock().unwrap() = Some(thread::current().id());
            Err(Error::usage("on purpose"))
        }
    }

    #[test]
    fn nonblocking_operation_runs_on_another_thread() {
        let nonblocking = Config { blocking: false, ..Config::default() };
        let communicator = &communicators(1, &nonblocking)[0];
        // The outcome of the initialisation comes first.
        assert_eq!(communicator.async_state().unwrap(), Progress::Done);
        let (go, wait) = mpsc::channel();
        let ran_on = Arc::new(Mutex::new(None));
        let outcome = run_collective(communicator, Fail(Mutex::new(wait), Arc::clone(&ran_on)));
        assert!(matches!(outcome, Ok(Progress::Running)));
        assert_eq!(communicator.async_state().unwrap(), Progress::Running);
        assert!(communicator.check_idle().is_err() && communicator.check_exclusive().is_err());
        assert!(communicator.check_operable().is_ok(), "the next operation can be queued");
        go.send(()).unwrap();
        communicator.jobs().wait_idle();
        assert_eq!(communicator.async_state().unwrap_err().text, "on purpose");
        assert!(ran_on.lock().unwrap().is_some_and(|thread| thread != thread::current().id()));
        assert!(communicator.check_operable().is_ok(), "it still works");
    }
}
