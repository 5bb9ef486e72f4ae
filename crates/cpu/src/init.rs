//! The making of communicators, which waits for other ranks.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr;
use std::sync::{Arc, OnceLock};

use libnccl::sys::ncclComm_t;

use crate::communicator::{Communicator, Membership};
use crate::debug::{self, Subsystem};
use crate::failure::{Failure, Result};
use crate::handle;
use crate::slot::Slot;
use crate::world::Alarm;

/// One communicator that is to be made.
pub(crate) struct Init {
    communicator: Arc<Communicator>,
    /// The one that it is made from, if any.
    parent: Option<Arc<Communicator>>,
    meet: Meet,
    /// What it found.
    met: Option<Membership>,
    slot: Slot<ncclComm_t>,
    /// The handle's number, if the caller has it already.
    given: Option<usize>,
}

/// Finds the other ranks of a communicator; none if this rank has no part in it.
type Meet = Box<dyn FnOnce(&Communicator) -> Result<Option<Membership>> + Send>;

impl Init {
    pub(crate) fn new(
        communicator: Communicator,
        parent: Option<Arc<Communicator>>,
        slot: Slot<ncclComm_t>,
        meet: impl FnOnce(&Communicator) -> Result<Option<Membership>> + Send + 'static,
    ) -> Self {
        Self {
            communicator: Arc::new(communicator),
            parent,
            meet: Box::new(meet),
            met: None,
            slot,
            given: None,
        }
    }

    /// The communicator that says whether the caller waits, and that is at work if not.
    pub(crate) fn caller(&self) -> &Arc<Communicator> {
        self.parent.as_ref().unwrap_or(&self.communicator)
    }

    /// Where the caller does not wait, it has to have something to ask.
    pub(crate) fn give_early(&mut self) {
        if self.parent.is_none() {
            let given = handle::add(Arc::clone(&self.communicator));
            self.given = Some(given.addr());
            self.slot.write(given);
        }
    }

    fn meet(&mut self) -> Result {
        let meet = std::mem::replace(&mut self.meet, Box::new(|_| Ok(None)));
        self.met = meet(&self.communicator)?;
        Ok(())
    }

    fn accept(self) {
        let Some(membership) = self.met else { return self.slot.write(ptr::null_mut()) };
        self.communicator.join(membership);
        let told = |handle| {
            debug::info(Subsystem::Init, || {
                format!("{} - Init COMPLETE", self.communicator.describe(handle))
            });
            handle
        };
        match self.given {
            Some(given) => {
                told(ptr::without_provenance_mut(given));
            }
            None => self.slot.write(told(handle::add(Arc::clone(&self.communicator)))),
        }
    }
}

/// Ranks of one communicator that one thread initialises wait for each other, so each gets a thread. Those that
/// are made from one communicator take turns in the order of their calls, which is the same on all its ranks.
pub(crate) fn all(mut inits: Vec<Init>) -> Result {
    let communicators: Vec<Arc<Communicator>> =
        inits.iter().map(|init| Arc::clone(&init.communicator)).collect();
    let mut turns: Vec<Vec<&mut Init>> = vec![];
    for init in &mut inits {
        let same = |turn: &&mut Vec<&mut Init>| Arc::ptr_eq(turn[0].caller(), init.caller());
        match turns.iter_mut().find(same) {
            Some(turn) => turn.push(init),
            None => turns.push(vec![init]),
        }
    }
    let cause = OnceLock::new();
    std::thread::scope(|scope| {
        let last = turns.pop();
        for turn in turns {
            let turn = Turn { inits: turn.into_iter(), all: &communicators };
            let thread = std::thread::Builder::new().spawn_scoped(scope, || turn.take(&cause));
            if let Err(error) = thread {
                let failure = Failure::system("a thread to initialise a rank cannot be started", error);
                let _ = cause.set(failure);
            }
        }
        if let Some(turn) = last {
            Turn { inits: turn.into_iter(), all: &communicators }.take(&cause);
        }
    });
    if let Some(failure) = cause.into_inner() {
        communicators.iter().for_each(|communicator| communicator.fail(&failure));
        return Err(failure);
    }
    inits.into_iter().for_each(Init::accept);
    Ok(())
}

/// Initialisations of one thread. One that fails, or panics, ends all of the group: what the others wait for may
/// never come.
struct Turn<'a> {
    inits: std::vec::IntoIter<&'a mut Init>,
    all: &'a [Arc<Communicator>],
}

impl Turn<'_> {
    /// The first failure is the cause of the others.
    fn take(mut self, cause: &OnceLock<Failure>) {
        for init in self.inits.by_ref() {
            let met = catch_unwind(AssertUnwindSafe(|| init.meet()));
            let met =
                met.unwrap_or_else(|_| Err(Failure::internal("a thread that initialised a rank panicked")));
            if let Err(failure) = met {
                let _ = cause.set(failure);
                return;
            }
        }
        self.all = &[];
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.all.iter().for_each(|communicator| communicator.cancel());
        // Other ranks wait for the rest of what was to be made from this one.
        self.inits.by_ref().for_each(|left| left.caller().alarm(Alarm::Failed));
    }
}
