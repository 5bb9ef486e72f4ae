//! The state of a thread: its group, and the communicators that it has used last.

use std::cell::{Cell, RefCell};
use std::mem::{self, ManuallyDrop};
use std::sync::{Arc, Once};

use libnccl::sys::{ncclComm_t, ncclResult_t};

use crate::communicator::{Communicator, Place};
use crate::dump;
use crate::operations::Starter;
use crate::registry::{self, NewCommunicator};
use crate::returned::Returned;
use crate::signal;

thread_local! {
    /// The state of this thread. It has no destructor, because functions of `atexit` and destructors of the program's variables
    /// may make calls. A group that never ends is leaked.
    static THREAD: ManuallyDrop<Thread> = const {
        ManuallyDrop::new(Thread {
            is_inside: Cell::new(false),
            depth: Cell::new(0),
            group: RefCell::new(Group { members: Vec::new(), created: Vec::new() }),
        })
    };

    /// A cache of the communicators that this thread has used, by a hash of their handles. While the thread exits, this cache may
    /// already be destroyed.
    static RECENT: [Cell<Recent>; RECENT_COUNT] = const { [const { Cell::new(Recent::NONE) }; RECENT_COUNT] };
}

/// The maximum number of communicators that a thread finds without a lock. A power of two.
const RECENT_COUNT: usize = 64;

struct Thread {
    /// Set during a call of NCCL. NCCL may call its own functions by name, and thereby reach this library.
    is_inside: Cell<bool>,
    /// The number of open, nested groups.
    depth: Cell<u32>,
    group: RefCell<Group>,
}

/// The group that is open.
struct Group {
    /// The communicators with operations in the group.
    members: Vec<(usize, Arc<Communicator>)>,
    /// The communicators that the group creates.
    created: Vec<NewCommunicator>,
}

/// A communicator that was used before.
#[derive(Default)]
struct Recent {
    handle: usize,
    /// The registry's generation at the time of use.
    generation: usize,
    communicator: Option<Arc<Communicator>>,
}

impl Recent {
    const NONE: Self = Self { handle: 0, generation: 0, communicator: None };
}

/// An operation that was recorded before its call.
struct Begun {
    communicator: Arc<Communicator>,
    handle: usize,
    generation: usize,
    is_grouped: bool,
}

/// Makes the call of an operation, and records it unless NCCL itself made it.
#[inline(always)]
pub(crate) fn record<R: Returned>(starter: &Starter, words: &[usize], call: impl FnOnce() -> R) -> R {
    let Some(begun) = THREAD.with(|thread| thread.begin(starter, words)) else { return call() };
    let returned = call();
    THREAD.with(|thread| thread.finish(begun, returned.code()));
    returned
}

/// Makes a call that is not recorded as an operation. Returns its result, and `None` if NCCL itself made the call. The caller
/// must not record such a call.
pub(crate) fn outermost<R>(call: impl FnOnce() -> R) -> (R, Option<()>) {
    let is_outermost = THREAD.with(|thread| !thread.is_inside.replace(true));
    let result = call();
    if is_outermost {
        THREAD.with(|thread| thread.is_inside.set(false));
    }
    (result, is_outermost.then_some(()))
}

/// Registers a communicator whose creation has begun. In a group, it is registered when the group ends.
pub(crate) fn created(new: NewCommunicator, code: ncclResult_t) {
    prepare();
    THREAD.with(|thread| {
        if thread.depth.get() == 0 {
            registry::created(new, code);
        } else if let Ok(mut group) = thread.group.try_borrow_mut() {
            group.created.push(new);
        }
    });
}

pub(crate) fn start_group() {
    THREAD.with(|thread| thread.depth.set(thread.depth.get().saturating_add(1)));
}

/// Records the end of a group; `code` is its result, or `None` if its operations were only simulated.
pub(crate) fn end_group(code: Option<ncclResult_t>) {
    THREAD.with(|thread| {
        let depth = thread.depth.get();
        thread.depth.set(depth.saturating_sub(1));
        // At the end of an inner one, nothing has run.
        if depth > 1 && code == Some(ncclResult_t::ncclSuccess) {
            return;
        }
        let Ok(mut group) = thread.group.try_borrow_mut() else { return };
        let (members, created) = (mem::take(&mut group.members), mem::take(&mut group.created));
        drop(group);
        for (_, communicator) in members {
            match code {
                Some(code) => finish(&communicator, code),
                None => drop(communicator.finish(ncclResult_t::ncclInvalidUsage)),
            }
        }
        created
            .into_iter()
            .for_each(|new| registry::created(new, code.unwrap_or(ncclResult_t::ncclInvalidUsage)));
    });
}

/// Prepares for the first communicator.
fn prepare() {
    static PREPARE: Once = Once::new();
    PREPARE.call_once(|| {
        // SAFETY: the handler writes atomics and what only its thread has. This library is never unloaded. It fails only if
        // there is no memory.
        unsafe { libc::pthread_atfork(None, None, Some(forget_parent)) };
        dump::prepare();
        signal::watch(|| dump::write("signal"));
    });
}

/// Makes a forked child start without communicators.
extern "C" fn forget_parent() {
    registry::forget();
    dump::forget();
    signal::forget();
    THREAD.with(|thread| {
        thread.depth.set(0);
        thread.is_inside.set(false);
        if let Ok(mut group) = thread.group.try_borrow_mut() {
            group.members.clear();
            group.created.clear();
        }
    });
    let _ = RECENT.try_with(|recent| recent.iter().for_each(|recent| drop(recent.take())));
}

/// Records the result of an operation, or of a group with operations.
#[inline(always)]
fn finish(communicator: &Communicator, code: ncclResult_t) {
    if communicator.finish(code) {
        dump::write("error");
    }
}

/// Returns the slot for a communicator in [`RECENT`].
#[inline(always)]
fn slot(recent: &[Cell<Recent>; RECENT_COUNT], handle: usize) -> &Cell<Recent> {
    // Handles are addresses of large structs, or small numbers. The constant is 2^64 divided by the golden ratio.
    let hash = (handle as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
    &recent[hash as usize % RECENT_COUNT]
}

impl Thread {
    #[inline(always)]
    fn begin(&self, starter: &Starter, words: &[usize]) -> Option<Begun> {
        let comm = starter.communicator(words);
        let handle = comm.addr();
        if handle == 0 || self.is_inside.get() {
            return None;
        }
        let generation = registry::generation();
        let recent = RECENT.try_with(|recent| slot(recent, handle).take()).unwrap_or_default();
        let communicator = match recent.communicator {
            Some(communicator) if recent.handle == handle && recent.generation == generation => communicator,
            _ => self.find(comm)?,
        };
        let is_grouped = self.depth.get() > 0;
        let place = if is_grouped { self.join(handle, &communicator) } else { Place::Ungrouped };
        communicator.begin(&starter.arguments(words, communicator.membership().size), place);
        self.is_inside.set(true);
        Some(Begun { communicator, handle, generation, is_grouped })
    }

    #[inline(always)]
    fn finish(&self, begun: Begun, code: ncclResult_t) {
        let Begun { communicator, handle, generation, is_grouped } = begun;
        self.is_inside.set(false);
        match (code, is_grouped) {
            // Operations of a group run at its end.
            (ncclResult_t::ncclSuccess | ncclResult_t::ncclInProgress, true) => {}
            (code, _) => finish(&communicator, code),
        }
        let used = Recent { handle, generation, communicator: Some(communicator) };
        let _ = RECENT.try_with(|recent| slot(recent, handle).set(used));
    }

    /// Returns a communicator that is not in [`RECENT`].
    #[cold]
    #[inline(never)]
    fn find(&self, comm: ncclComm_t) -> Option<Arc<Communicator>> {
        // This queries NCCL for an unknown communicator.
        prepare();
        self.is_inside.set(true);
        let found = registry::find_or_adopt(comm);
        self.is_inside.set(false);
        found
    }

    /// Adds a communicator to the group that is open.
    #[inline]
    fn join(&self, handle: usize, communicator: &Arc<Communicator>) -> Place {
        let Ok(mut group) = self.group.try_borrow_mut() else { return Place::Ungrouped };
        if group.members.iter().rev().any(|(member, _)| *member == handle) {
            return Place::Later;
        }
        group.members.push((handle, Arc::clone(communicator)));
        Place::First
    }
}
