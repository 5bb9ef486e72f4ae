//! Groups: calls between `ncclGroupStart` and `ncclGroupEnd` run together when the group ends. They run on the calling thread, or
//! on the communicators' threads if the communicators are nonblocking. The operations of each nonblocking communicator are a
//! separate job, so that no communicator waits for another. A group that creates communicators is a single job.
//!
//! At the end of the group, the operations of a communicator of CUDA devices are enqueued on their streams, as one job.
//!
//! A call outside a group is a group of one call. If a call inside a group fails, no call of the group runs.

use std::cell::RefCell;
use std::mem::ManuallyDrop;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::{Pin, pin};
use std::sync::{Arc, Once};

use libnccl::sys::cudaStream_t;

use crate::coll::call::CallHeader;
use crate::coll::operation::{OnStream, Operation};
use crate::coll::wait_report::{self, WaitReport};
use crate::comm::communicator::Communicator;
use crate::comm::init::{self, Init};
use crate::comm::open_group::{self, QueuedCall};
use crate::comm::queued_operation::{self, OnPanic, Queue, QueuedOperation, abort_all, distinct, end_failed};
use crate::cuda::Stream;
use crate::diag::debug;
use crate::diag::error::{self, Error, Progress, Result};
use crate::diag::settings::STRICT;
use crate::shm::buffer::BufferRange;
use crate::shm::call_context::CallContext;
use crate::shm::liveness::AbortReason;
use crate::shm::process;
use crate::sync::executor;

#[derive(Default)]
struct Group {
    /// The [`generation`](process::fork_generation) of the process that owns the group.
    generation: usize,
    depth: u32,
    error: Option<Error>,
    inits: Vec<Init>,
    operations: Vec<QueuedOperation>,
}

thread_local! {
    /// Without a destructor, so that it lasts as long as the thread: `atexit` functions and destructors of the program's variables may make
    /// calls.
    static GROUP: RefCell<ManuallyDrop<Group>> = RefCell::default();
    /// Reports a group that is still open when its thread ends. Created when the thread first opens a group.
    static THREAD_END: ThreadEnd = const { ThreadEnd };
}

struct ThreadEnd;

impl Drop for ThreadEnd {
    fn drop(&mut self) {
        let group = with_group(std::mem::take);
        if group.depth > 0 && group.error.is_none() {
            // The destructor of a thread-local must not unwind.
            let _ = catch_unwind(AssertUnwindSafe(|| group.abandon()));
        }
    }
}

fn with_group<T>(act: impl FnOnce(&mut Group) -> T) -> T {
    GROUP.with_borrow_mut(|group| {
        if group.generation != process::fork_generation() {
            // A forked child does not take part in a group that its parent began.
            **group = Group { generation: process::fork_generation(), ..Group::default() };
            open_group::clear();
        }
        act(group)
    })
}

pub(crate) fn start() {
    process::watch_forks();
    let _ = THREAD_END.try_with(|_| ());
    with_group(|group| group.depth += 1);
}

pub(crate) fn depth() -> u32 {
    with_group(|group| group.depth)
}

pub(crate) fn end() -> Result<Progress> {
    match leave("ncclGroupEnd")? {
        Some(group) => group.end(),
        None => Ok(Progress::Done),
    }
}

/// Leaves a group without running it. For the outermost group, returns the estimated time in microseconds, or 0 if the group is empty. For
/// inner groups, returns `None`.
pub(crate) fn simulate() -> Result<Option<f32>> {
    let Some(group) = leave("ncclGroupSimulateEnd")? else { return Ok(None) };
    if let Some(error) = group.error {
        return Err(error);
    }
    if !group.inits.is_empty() {
        return Err(Error::usage("a group that creates communicators cannot be simulated"));
    }
    Ok(Some(group.operations.iter().map(QueuedOperation::estimate).sum()))
}

/// Leaves a group, and returns it if it was the outermost group.
fn leave(function: &str) -> Result<Option<Group>> {
    let left = with_group(|group| match group.depth {
        0 => Err(Error::usage(format!("{function}: not in a group call"))),
        1 => Ok(Some(std::mem::take(group))),
        _ => {
            group.depth -= 1;
            Ok(None)
        }
    })?;
    if left.is_some() {
        open_group::clear();
    }
    for communicator in left.iter().flat_map(Group::callers) {
        communicator.queued_calls.clear();
        if let Ok(CallContext { state, rank, .. }) = communicator.context() {
            state.set_in_group(rank, false);
        }
    }
    Ok(left)
}

/// Records that a call failed. If the call was in a group, no call of that group runs.
pub(crate) fn fail(function: &str, error: &Error) {
    with_group(|group| {
        group.fail(function, error);
        // The caller is informed that they do not run.
        group.callers().for_each(|communicator| communicator.queued_calls.clear());
    });
}

/// Records that a communicator was finalized or destroyed before its group ended. No call of that group runs.
pub(crate) fn fail_unended(function: &str, error: &Error) {
    with_group(|group| group.fail(function, error));
}

/// Runs `operation` at the end of the group, or immediately if no group is open. On a communicator of CUDA devices, enqueues it
/// on `stream` instead. `context` must belong to `communicator`.
pub(crate) fn run(
    communicator: &Arc<Communicator>,
    context: CallContext<'_>,
    mut operation: impl Operation,
    stream: cudaStream_t,
) -> Result<Progress> {
    let stream = Stream::new(stream);
    let header = log(communicator, context, &operation, stream.addr());
    if stream.addr() > LAST_SPECIAL_STREAM && *STRICT && communicator.driver().is_none() {
        report_unused(header, stream);
    }
    let now = GROUP.with_borrow(|group| group.depth == 0);
    if now && communicator.runs_at_once() && Queue::of(header).peer() != Some(context.rank) {
        let buffers = operation.ranges();
        return run_now(communicator, context, header, buffers, pin!(operation.run(context)));
    }
    let on_stream = communicator.driver().map(|driver| OnStream::new(driver, stream));
    let is_before = |other: &QueuedOperation| {
        is_collective(other.header) && Arc::ptr_eq(&other.communicator, communicator)
    };
    if is_collective(header) && with_group(|group| group.operations.iter().rev().any(is_before)) {
        operation.set_grouped();
    }
    let operation = QueuedOperation::new(communicator, operation, on_stream)?;
    context.state.set_in_group(context.rank, !now);
    add(operation)
}

fn log(
    communicator: &Communicator,
    context: CallContext<'_>,
    operation: &impl Operation,
    stream: usize,
) -> CallHeader {
    let header = operation.header();
    debug::info(header.subsystem(), || {
        header.log_line(operation.ranges(), communicator.handle().addr(), context, stream)
    });
    header
}

/// The largest handle of a default stream: `cudaStreamPerThread`.
const LAST_SPECIAL_STREAM: usize = 2;

/// Warns, once per process, about a stream that is neither used nor checked because the buffers are in host memory.
#[cold]
fn report_unused(header: CallHeader, stream: Stream) {
    static REPORT: Once = Once::new();
    REPORT.call_once(|| {
        debug::warn_on_stderr(&format!(
            "{header}: stream {:#x} is neither used nor checked, as there is no CUDA in this process (LIBNCCL_CPU_STRICT is 1)",
            stream.addr()
        ));
    });
}

/// Runs a single operation. There is nothing to combine, so nothing is allocated on the heap.
fn run_now(
    communicator: &Arc<Communicator>,
    context: CallContext<'_>,
    header: CallHeader,
    buffers: [BufferRange; 2],
    running: Pin<&mut dyn Future<Output = Result>>,
) -> Result<Progress> {
    let _entered = communicator.enter()?;
    let CallContext { state, .. } = context;
    state.check_timed_out().inspect_err(|error| communicator.record_error(error))?;
    let guard = OnPanic(|| abort_all(std::slice::from_ref(communicator)));
    let mut report = WaitReport::default();
    let words = header.encode();
    communicator.running.begin(0, words, buffers);
    let number = state.begin_call(context.rank, words);
    let result = executor::run_one(running, state.ranks(), |waited| {
        state.check_liveness();
        report.check_call(waited, number, header, context);
    });
    state.end_call(context.rank);
    communicator.running.end(0);
    std::mem::forget(guard);
    result
        .map_err(|error| wait_report::name_call(error, number, header, context))
        .inspect_err(|error| end_failed(communicator, error, || false))
        .map(|()| Progress::Done)
}

/// Runs `operation` on the host at the end of the group, or immediately if no group is open. All ranks must run the same
/// operation. It has no stream.
pub(crate) fn run_on_host(
    communicator: &Arc<Communicator>,
    context: CallContext<'_>,
    operation: impl Operation,
) -> Result<Progress> {
    log(communicator, context, &operation, 0);
    add(QueuedOperation::new(communicator, operation, None)?)
}

/// Adds an operation to this thread's group, or runs it as a group of one.
fn add(operation: QueuedOperation) -> Result<Progress> {
    let communicator = Arc::clone(&operation.communicator);
    let call = QueuedCall::Operation(operation.header);
    add_by(&communicator, call, |group| group.operations.push(operation))
}

/// Runs an initialization at the end of the group, or immediately if no group is open.
pub(crate) fn init(init: Init) -> Result<Progress> {
    let communicator = Arc::clone(init.caller());
    let call = QueuedCall::Init(init.function);
    add_by(&communicator, call, |group| group.inits.push(init))
}

fn add_by(communicator: &Communicator, call: QueuedCall, push: impl FnOnce(&mut Group)) -> Result<Progress> {
    let alone = with_group(|group| {
        push(group);
        if group.depth > 0 && group.error.is_none() {
            communicator.queued_calls.note(call);
            open_group::note(call);
        }
        (group.depth == 0).then(|| std::mem::take(group))
    });
    alone.map_or(Ok(Progress::Done), Group::end)
}

/// Returns whether a call is a collective that NCCL launches. NCCL does not launch collectives without elements.
fn is_collective(header: CallHeader) -> bool {
    matches!(header, CallHeader::Collective { count: 1.., .. })
}

impl Group {
    fn fail(&mut self, function: &str, error: &Error) {
        if self.depth > 0 && self.error.is_none() {
            let text = format!("{function} in this group failed: {}", error.text);
            self.error = Some(Error { text, ..error.clone() });
        }
    }

    /// Returns the communicators of the group's calls, with repetitions.
    fn callers(&self) -> impl Iterator<Item = &Arc<Communicator>> {
        let of_operations = self.operations.iter().map(|operation| &operation.communicator);
        self.inits.iter().map(Init::caller).chain(of_operations)
    }

    /// Reports the calls of a thread that has ended. They never run, so their communicators become unusable.
    fn abandon(self) {
        for communicator in distinct(self.callers()) {
            let Err(error) = communicator.check_group_ended("the end of its thread") else { continue };
            communicator.fail(&error);
            // When the main thread ends, the process exits, which the other ranks detect.
            if rustix::thread::gettid() != rustix::process::getpid() {
                communicator.set_abort(AbortReason::Failed);
            }
        }
    }

    fn end(mut self) -> Result<Progress> {
        if let Some(error) = self.error {
            init::refuse_all(&self.inits, &error);
            return Err(error);
        }
        let callers = distinct(self.callers());
        if let Some(destroyed) = callers.iter().find(|communicator| communicator.is_handle_destroyed()) {
            let what = destroyed.describe();
            return Err(Error::usage(format!(
                "{what} was destroyed before the group that it has calls in ended"
            )));
        }
        let _entered = callers.iter().map(|caller| caller.enter()).collect::<Result<Vec<_>>>()?;
        let blocking = callers.iter().filter(|communicator| communicator.config.blocking).count();
        if blocking > 0 && blocking < callers.len() {
            return Err(Error::argument(format!(
                "{blocking} of the {} communicators in this group are blocking and the others are nonblocking",
                callers.len()
            )));
        }
        let on_streams: Vec<_> =
            self.operations.extract_if(.., |operation| operation.on_stream.is_some()).collect();
        let has_others = !self.inits.is_empty() || !self.operations.is_empty();
        if blocking == callers.len() {
            if has_others {
                callers.iter().for_each(|communicator| communicator.synchronize());
            }
            self.run()?;
            queued_operation::enqueue_on_streams(on_streams)?;
            return Ok(Progress::Done);
        }
        if !on_streams.is_empty() && has_others {
            return Err(Error::usage(
                "a group of nonblocking communicators has operations on streams, and calls that make or change a \
                 communicator: make them one after the other",
            ));
        }
        if !on_streams.is_empty() {
            queued_operation::enqueue_on_streams(on_streams)
        } else if self.inits.is_empty() {
            queued_operation::enqueue_jobs(self.operations, &callers)
        } else {
            self.run_in_one_job(&callers)
        }?;
        Ok(Progress::Running)
    }

    /// Runs all calls as one exclusive job of all communicators.
    fn run_in_one_job(self, communicators: &[Arc<Communicator>]) -> Result {
        let mut in_use = communicators.iter().filter(|communicator| communicator.stopped().is_none());
        in_use.try_for_each(|communicator| communicator.check_not_busy())?;
        // The thread is started first: if that fails, nothing has begun, and no handle has been returned.
        let Some(jobs) = communicators.first().map(|communicator| Arc::clone(&communicator.jobs)) else {
            return Ok(());
        };
        jobs.start_thread()?;
        let early: Vec<_> = self.inits.iter().filter_map(Init::hand_out_early).collect();
        let begin = |communicator: &Arc<Communicator>| communicator.jobs.begin(true);
        let begun: Vec<_> = distinct(communicators.iter().chain(&early)).iter().map(begin).collect();
        let parents: Vec<_> = communicators.to_vec();
        jobs.push(move || {
            parents.into_iter().for_each(|communicator| communicator.synchronize());
            let result = self.run().inspect_err(|error| error::set_last(&error.text));
            begun.into_iter().for_each(|job| job.end(result.clone()));
        })
    }

    fn run(self) -> Result {
        init::run_all(&self.inits)?;
        queued_operation::run(&self.operations)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bootstrap::unique_id::UniqueId;
    use crate::comm::communicator::RankInfo;
    use crate::comm::config::Config;
    use crate::shm::process::Process;
    use crate::shm::shared_state::SharedState;
    use std::ptr;

    struct Panic;

    impl Operation for Panic {
        fn header(&self) -> CallHeader {
            CallHeader::Unknown { number: 0 }
        }

        async fn run(&self, _: CallContext<'_>) -> Result {
            panic!("on purpose")
        }
    }

    #[test]
    fn panic_in_an_operation_sets_the_abort_flag() {
        let state = Arc::new(SharedState::create(&[Process::current().unwrap(); 2]).unwrap().0);
        let communicator = Arc::new(Communicator::new(0, None, Config::default()));
        let id = UniqueId::generate().unwrap();
        communicator.join(RankInfo { state: Arc::clone(&state), rank: 1, id, fault: None });
        let context = communicator.check_operable().unwrap();
        let run = || run(&communicator, context, Panic, ptr::null_mut());
        assert!(catch_unwind(AssertUnwindSafe(run)).is_err());
        assert_eq!(state.check_abort().unwrap_err().text, "rank 1 failed");
    }
}
