//! Groups: calls between ncclGroupStart and ncclGroupEnd run together, at the end, on the calling thread; if
//! their communicators do not block, on one of their own.
//!
//! A call outside any group is a group of one. If a call inside a group fails, nothing of the group runs.

use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};
use std::pin::pin;
use std::sync::{Arc, mpsc};

use crate::communicator::{Communicator, Job, Membership};
use crate::executor::{self, Operation};
use crate::failure::{Failure, Progress, Result};
use crate::init::{self, Init};
use crate::last_error;
use crate::world::Alarm;

/// What is to run at the end of a group.
#[derive(Default)]
struct Group {
    depth: u32,
    failure: Option<Failure>,
    inits: Vec<Init>,
    tasks: Vec<Task>,
}

/// An operation of a communicator. Those in one lane run one after another.
struct Task {
    communicator: Arc<Communicator>,
    lane: Lane,
    /// How many it reads and writes.
    bytes: usize,
    operation: Begin,
}

/// Begins an operation, on the thread that then runs it.
type Begin = Box<dyn for<'a> FnOnce(&'a Communicator) -> Operation<'a> + Send>;

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Lane {
    Collective,
    SendTo(usize),
    ReceiveFrom(usize),
    /// Writing to other ranks and raising signals there, which never waits.
    Put,
    /// Waiting for signals.
    Wait,
}

thread_local! {
    static GROUP: RefCell<Group> = RefCell::default();
}

/// Uses this thread's group. A thread that ends may have lost it already, and each of its calls is one of its own.
fn with_group<T>(act: impl FnOnce(&mut Group) -> T) -> T {
    match GROUP.try_with(|_| ()) {
        Ok(()) => GROUP.with_borrow_mut(act),
        Err(_) => act(&mut Group::default()),
    }
}

pub(crate) fn start() {
    with_group(|group| group.depth += 1);
}

pub(crate) fn end() -> Result<Progress> {
    match leave("ncclGroupEnd")? {
        Some(group) => group.end(),
        None => Ok(Progress::Done),
    }
}

/// Leaves a group without running it. The outermost one says how many microseconds it would take; nothing if
/// there is nothing in it.
pub(crate) fn simulate() -> Result<Option<f32>> {
    let Some(group) = leave("ncclGroupSimulateEnd")? else { return Ok(None) };
    if let Some(failure) = group.failure {
        return Err(failure);
    }
    if !group.inits.is_empty() {
        return Err(Failure::usage("a group that creates communicators cannot be simulated"));
    }
    let estimate = group.tasks.iter().map(Task::estimate).reduce(|sum, time| sum + time);
    Ok(estimate)
}

/// Leaves a group; the outermost one is returned.
fn leave(function: &str) -> Result<Option<Group>> {
    with_group(|group| match group.depth {
        0 => Err(Failure::usage(format!("{function}: not in a group call"))),
        1 => Ok(Some(std::mem::take(group))),
        _ => {
            group.depth -= 1;
            Ok(None)
        }
    })
}

/// Notes that a call failed: if it was in a group, the group is off.
pub(crate) fn fail(function: &str, failure: &Failure) {
    with_group(|group| {
        if group.depth > 0 {
            let text = format!("{function} in this group failed: {}", failure.text);
            group.failure.get_or_insert(Failure { text, ..failure.clone() });
        }
    });
}

/// Runs `operation`, which reads and writes so many bytes, at the end of the group, or now.
pub(crate) fn run(
    communicator: &Arc<Communicator>,
    lane: Lane,
    bytes: usize,
    operation: impl AsyncFn(&Communicator) -> Result + Send + 'static,
) -> Result<Progress> {
    let now = GROUP.try_with(|group| group.borrow().depth == 0).unwrap_or(true);
    if now && communicator.options().blocking && !lane.is_to_self(communicator) {
        // Nothing to be put together, so nothing to be put on the heap.
        let Membership { world, .. } = communicator.settled()?;
        let unfinished = Unfinished(std::slice::from_ref(communicator));
        let result = executor::run_one(pin!(operation(communicator)), world.ranks(), || world.patrol());
        std::mem::forget(unfinished);
        return result.inspect_err(|failure| communicator.note(failure)).map(|()| Progress::Done);
    }
    let operation: Begin = Box::new(|communicator| Box::pin(async move { operation(communicator).await }));
    let communicator = Arc::clone(communicator);
    add(|group| group.tasks.push(Task { communicator, lane, bytes, operation }))
}

/// Makes a communicator at the end of the group, or now.
pub(crate) fn make(init: Init) -> Result<Progress> {
    add(|group| group.inits.push(init))
}

fn add(put: impl FnOnce(&mut Group)) -> Result<Progress> {
    let alone = with_group(|group| {
        put(group);
        (group.depth == 0).then(|| std::mem::take(group))
    });
    alone.map_or(Ok(Progress::Done), Group::end)
}

impl Group {
    fn end(mut self) -> Result<Progress> {
        if let Some(failure) = self.failure {
            return Err(failure);
        }
        let of_tasks = self.tasks.iter().map(|task| &task.communicator);
        let callers = distinct(self.inits.iter().map(Init::caller).chain(of_tasks));
        let waiting = callers.iter().filter(|communicator| communicator.options().blocking).count();
        if waiting == callers.len() {
            return self.run().map(|()| Progress::Done);
        }
        if waiting > 0 {
            return Err(Failure::argument(format!(
                "{waiting} of the {} communicators in this group block and the others do not",
                callers.len()
            )));
        }
        // The thread first: without one, nothing has begun, and nobody is given anything to ask.
        let (hand_over, take) = mpsc::channel::<(Self, Vec<Job>)>();
        let work = move || {
            let Ok((group, jobs)) = take.recv() else { return };
            let result = group.run().inspect_err(|failure| last_error::set(&failure.text));
            jobs.into_iter().for_each(|job| job.end(&result));
        };
        let thread = std::thread::Builder::new().name("libnccl-cpu".into()).spawn(work);
        thread
            .map_err(|error| Failure::system("a thread for what does not block cannot be started", error))?;
        self.inits.iter_mut().for_each(Init::give_early);
        let jobs = callers.iter().map(Communicator::begin_job).collect();
        hand_over.send((self, jobs)).map_err(|_| Failure::internal("a thread ended before it began"))?;
        Ok(Progress::Running)
    }

    fn run(self) -> Result {
        init::all(self.inits)?;
        operate(self.tasks)
    }
}

impl Lane {
    /// Whether its operations need others of the same rank to end.
    fn is_to_self(self, communicator: &Communicator) -> bool {
        let peer = match self {
            Self::SendTo(peer) | Self::ReceiveFrom(peer) => peer,
            Self::Collective | Self::Put | Self::Wait => return false,
        };
        communicator.membership().is_none_or(|membership| membership.rank == peer)
    }
}

impl Task {
    /// Microseconds that it takes, roughly: ranks that wait for each other on the same host, and each byte
    /// copied once by one thread, which is also what a simple sum costs. Nothing is measured.
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

fn operate(tasks: Vec<Task>) -> Result {
    let communicators = distinct(tasks.iter().map(|task| &task.communicator));
    let mut lanes: BTreeMap<(usize, Lane), VecDeque<Operation<'_>>> = BTreeMap::new();
    for Task { communicator, lane, operation, .. } in tasks {
        let id = Arc::as_ptr(&communicator).addr();
        let noted =
            async move { operation(&communicator).await.inspect_err(|failure| communicator.note(failure)) };
        lanes.entry((id, lane)).or_default().push_back(Box::pin(noted));
    }
    let mut threads = 1;
    let mut worlds = vec![];
    for communicator in &communicators {
        let id = Arc::as_ptr(communicator).addr();
        let number = |lane| lanes.get(&(id, lane)).map_or(0, VecDeque::len);
        let Some(Membership { world, rank, .. }) = communicator.membership() else { continue };
        let (sends, receives) = (number(Lane::SendTo(*rank)), number(Lane::ReceiveFrom(*rank)));
        if sends != receives {
            return Err(Failure::usage(format!(
                "a rank that sends to itself has to receive it in the same group: {sends} sends, \
                 {receives} receives"
            )));
        }
        threads = threads.max(world.ranks());
        worlds.push(world);
    }
    let unfinished = Unfinished(&communicators);
    let result = executor::run(lanes.into_values().collect(), threads, || {
        worlds.iter().for_each(|world| world.patrol());
        // Who aborts one of them waits for all that runs here.
        if communicators.iter().any(|communicator| communicator.is_aborted()) {
            communicators.iter().for_each(|communicator| communicator.alarm(Alarm::Failed));
        }
    });
    std::mem::forget(unfinished);
    result
}

/// A panic in an operation leaves its rank out of step: the others must not wait for it.
struct Unfinished<'a>(&'a [Arc<Communicator>]);

impl Drop for Unfinished<'_> {
    fn drop(&mut self) {
        for communicator in self.0 {
            communicator.alarm(Alarm::Failed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::options::Options;
    use crate::process::Process;
    use crate::slot::Slot;
    use crate::unique_id::UniqueId;
    use crate::world::World;
    use std::ptr;
    use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

    fn memberships(ranks: usize) -> impl Iterator<Item = Membership> {
        let world = Arc::new(World::create(&vec![Process::current().unwrap(); ranks]).unwrap().0);
        let id = UniqueId::generate().unwrap();
        (0..ranks).map(move |rank| Membership { world: Arc::clone(&world), rank, id })
    }

    fn communicators(ranks: usize) -> Vec<Arc<Communicator>> {
        let join = |membership| {
            let communicator = Communicator::new(0, Options::default());
            communicator.join(membership);
            Arc::new(communicator)
        };
        memberships(ranks).map(join).collect()
    }

    #[test]
    fn an_operation_runs_at_once_or_at_the_outermost_end() {
        let communicator = &communicators(1)[0];
        let ran = Arc::new(AtomicU32::new(0));
        let count = || {
            let ran = Arc::clone(&ran);
            run(communicator, Lane::Collective, 0, async move |_| {
                ran.fetch_add(1, Relaxed);
                Ok(())
            })
        };
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

    #[test]
    fn a_panic_in_an_operation_is_bad_news_for_the_others() {
        let communicators = communicators(2);
        let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            run(&communicators[1], Lane::Collective, 0, async |_| panic!("on purpose"))
        }));
        assert!(result.is_err());
        let Membership { world, .. } = communicators[0].settled().unwrap();
        assert_eq!(world.alarmed().unwrap_err().text, "rank 1 failed");
    }

    /// What is left of a job may keep a communicator for a little longer than its handle; the process may even end
    /// before, which is not to look like a death.
    #[test]
    fn a_destroyed_communicator_has_left_at_once() {
        let communicators = communicators(2);
        communicators[1].destroy();
        let Membership { world, .. } = communicators[0].settled().unwrap();
        assert!(world.health(1).unwrap_err().text.contains("rank 1 has left"));
    }

    #[test]
    fn one_failed_initialisation_fails_all_and_the_others_leave() {
        let mut memberships = memberships(2);
        let mine = memberships.next().unwrap();
        let theirs = memberships.next().unwrap();
        let mut slots = [ptr::null_mut(); 2];
        let [one, two] = slots.each_mut();
        let [one, two] = [one, two].map(Slot::for_test);
        let communicator = || Communicator::new(0, Options::default());
        start();
        make(Init::new(communicator(), None, one, move |_| Ok(Some(theirs)))).unwrap();
        make(Init::new(communicator(), None, two, |_| Err(Failure::remote("gone")))).unwrap();
        assert_eq!(end().unwrap_err().text, "gone");
        assert_eq!(slots, [ptr::null_mut(); 2]);
        let waited = executor::run_one(mine.world.wait(1, || false), 2, || ());
        assert!(waited.unwrap_err().text.contains("rank 1 has left"));
    }

    #[test]
    fn what_does_not_block_runs_on_a_thread_of_its_own() {
        let communicator = Communicator::new(0, Options { blocking: false, ..Options::default() });
        communicator.join(memberships(1).next().unwrap());
        let communicator = Arc::new(communicator);
        let (go, wait) = std::sync::mpsc::channel();
        let caller = std::thread::current().id();
        let outcome = run(&communicator, Lane::Collective, 0, async move |_| {
            wait.recv().unwrap();
            assert_ne!(std::thread::current().id(), caller);
            Err(Failure::usage("on purpose"))
        });
        assert!(matches!(outcome, Ok(Progress::Running)));
        assert_eq!(communicator.state().unwrap(), Progress::Running);
        assert!(communicator.ready().is_err());
        go.send(()).unwrap();
        communicator.rest();
        assert_eq!(communicator.state().unwrap_err().text, "on purpose");
        assert!(communicator.ready().is_ok(), "it still works");
    }
}
