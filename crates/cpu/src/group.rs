//! Groups: calls between ncclGroupStart and ncclGroupEnd run together, at the end, on the calling thread.
//!
//! A call outside any group is a group of one. If a call inside a group fails, nothing of the group runs.

use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use crate::communicator::Communicator;
use crate::executor::{self, Operation};
use crate::failure::{Failure, Result};
use crate::world::Alarm;

/// What is to run at the end of a group.
#[derive(Default)]
struct Group {
    depth: u32,
    failure: Option<Failure>,
    inits: Vec<Init>,
    tasks: Vec<Task>,
}

/// An initialisation, which waits for other ranks, and the end of it, on the calling thread once all are
/// through.
pub(crate) struct Init {
    pub(crate) meet: Box<dyn FnOnce() -> Result<Communicator> + Send>,
    pub(crate) accept: Box<dyn FnOnce(Communicator)>,
}

/// An operation of a communicator. Those in one lane run one after another.
pub(crate) struct Task {
    pub(crate) communicator: Arc<Communicator>,
    pub(crate) lane: Lane,
    pub(crate) operation: Operation,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Lane {
    Collective,
    SendTo(usize),
    ReceiveFrom(usize),
}

thread_local! {
    static GROUP: RefCell<Group> = RefCell::default();
}

pub(crate) fn start() {
    GROUP.with_borrow_mut(|group| group.depth += 1);
}

pub(crate) fn end() -> Result {
    let group = GROUP.with_borrow_mut(|group| match group.depth {
        0 => Err(Failure::usage("ncclGroupEnd: not in a group call")),
        1 => Ok(Some(std::mem::take(group))),
        _ => {
            group.depth -= 1;
            Ok(None)
        }
    })?;
    group.map_or(Ok(()), Group::run)
}

/// Notes that a call failed: if it was in a group, the group is off.
pub(crate) fn fail(function: &str, failure: &Failure) {
    GROUP.with_borrow_mut(|group| {
        if group.depth > 0 {
            let text = format!("{function} in this group failed: {}", failure.text);
            group.failure.get_or_insert(Failure { text, ..failure.clone() });
        }
    });
}

/// Runs `task` at the end of the group, or now.
pub(crate) fn run(task: Task) -> Result {
    add(|group| group.tasks.push(task))
}

/// Initialises a communicator at the end of the group, or now.
pub(crate) fn init(init: Init) -> Result {
    add(|group| group.inits.push(init))
}

fn add(put: impl FnOnce(&mut Group)) -> Result {
    let alone = GROUP.with_borrow_mut(|group| {
        put(group);
        (group.depth == 0).then(|| std::mem::take(group))
    });
    alone.map_or(Ok(()), Group::run)
}

impl Group {
    fn run(self) -> Result {
        if let Some(failure) = self.failure {
            return Err(failure);
        }
        initialise(self.inits)?;
        operate(self.tasks)
    }
}

/// Ranks of one communicator that one thread initialises wait for each other, so each gets a thread.
fn initialise(inits: Vec<Init>) -> Result {
    let (meets, accepts): (Vec<_>, Vec<_>) = inits.into_iter().map(|init| (init.meet, init.accept)).unzip();
    let results = all(meets);
    let communicators: Result<Vec<Communicator>> = results.into_iter().collect();
    for (accept, communicator) in accepts.into_iter().zip(communicators?) {
        accept(communicator);
    }
    Ok(())
}

fn all<T: Send>(mut functions: Vec<Box<dyn FnOnce() -> Result<T> + Send>>) -> Vec<Result<T>> {
    let last = functions.pop();
    std::thread::scope(|scope| {
        let threads: Vec<_> = functions
            .into_iter()
            .map(|function| std::thread::Builder::new().spawn_scoped(scope, function))
            .collect();
        let last = last.map(|function| function());
        let results = threads.into_iter().map(|thread| match thread.map(|thread| thread.join()) {
            Ok(Ok(result)) => result,
            Ok(Err(_)) => Err(Failure::internal("a thread that initialised a rank panicked")),
            Err(error) => Err(Failure::system("a thread to initialise a rank cannot be started", error)),
        });
        results.chain(last).collect()
    })
}

fn operate(tasks: Vec<Task>) -> Result {
    let mut communicators: Vec<Arc<Communicator>> = vec![];
    let mut lanes: BTreeMap<(usize, Lane), VecDeque<Operation>> = BTreeMap::new();
    for Task { communicator, lane, operation } in tasks {
        let id = Arc::as_ptr(&communicator).addr();
        let noting = Arc::clone(&communicator);
        let noted: Operation =
            Box::pin(async move { operation.await.inspect_err(|failure| noting.note(failure)) });
        lanes.entry((id, lane)).or_default().push_back(noted);
        if !communicators.iter().any(|known| Arc::ptr_eq(known, &communicator)) {
            communicators.push(communicator);
        }
    }
    for communicator in &communicators {
        let id = Arc::as_ptr(communicator).addr();
        let number = |lane| lanes.get(&(id, lane)).map_or(0, VecDeque::len);
        let (sends, receives) =
            (number(Lane::SendTo(communicator.rank())), number(Lane::ReceiveFrom(communicator.rank())));
        if sends != receives {
            return Err(Failure::usage(format!(
                "a rank that sends to itself has to receive it in the same group: {sends} sends, \
                 {receives} receives"
            )));
        }
    }
    let unfinished = Unfinished(&communicators);
    let result = executor::run(lanes.into_values().collect(), || {
        communicators.iter().for_each(|communicator| communicator.world().patrol());
    });
    std::mem::forget(unfinished);
    result
}

/// A panic in an operation leaves its rank out of step: the others must not wait for it.
struct Unfinished<'a>(&'a [Arc<Communicator>]);

impl Drop for Unfinished<'_> {
    fn drop(&mut self) {
        for communicator in self.0 {
            communicator.give_up(Alarm::Failed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::process::Process;
    use crate::world::World;
    use std::cell::Cell;
    use std::rc::Rc;

    fn communicators(ranks: usize) -> Vec<Arc<Communicator>> {
        let world = Arc::new(World::create(&vec![Process::current().unwrap(); ranks]).unwrap().0);
        (0..ranks).map(|rank| Arc::new(Communicator::new(Arc::clone(&world), rank, 0))).collect()
    }

    fn task(communicator: &Arc<Communicator>, body: impl Future<Output = Result> + 'static) -> Task {
        Task { communicator: Arc::clone(communicator), lane: Lane::Collective, operation: Box::pin(body) }
    }

    #[test]
    fn an_operation_runs_at_once_or_at_the_outermost_end() {
        let communicator = &communicators(1)[0];
        let ran = Rc::new(Cell::new(0));
        let count = || {
            let ran = Rc::clone(&ran);
            task(communicator, async move {
                ran.set(ran.get() + 1);
                Ok(())
            })
        };
        run(count()).unwrap();
        assert_eq!(ran.get(), 1);
        start();
        start();
        run(count()).unwrap();
        end().unwrap();
        assert_eq!(ran.get(), 1);
        end().unwrap();
        assert_eq!(ran.get(), 2);
        assert!(end().is_err());
    }

    #[test]
    fn a_panic_in_an_operation_is_bad_news_for_the_others() {
        let communicators = communicators(2);
        let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            run(task(&communicators[1], async { panic!("on purpose") }))
        }));
        assert!(result.is_err());
        assert_eq!(communicators[0].world().alarmed().unwrap_err().text, "rank 1 failed");
    }

    #[test]
    fn one_failed_initialisation_fails_all_and_the_others_leave() {
        let world = Arc::new(World::create(&[Process::current().unwrap(); 2]).unwrap().0);
        let theirs = Arc::clone(&world);
        start();
        let accept = || Box::new(|_| panic!("nothing to accept"));
        init(Init { meet: Box::new(move || Ok(Communicator::new(theirs, 1, 1))), accept: accept() }).unwrap();
        init(Init { meet: Box::new(|| Err(Failure::remote("gone"))), accept: accept() }).unwrap();
        assert_eq!(end().unwrap_err().text, "gone");
        let operation: Operation = Box::pin(async move { world.wait(1, || false).await });
        let waited = executor::run(vec![VecDeque::from([operation])], || ());
        assert!(waited.unwrap_err().text.contains("rank 1 has left"));
    }
}
