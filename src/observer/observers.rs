use std::any::Any;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::iter;
use std::num::NonZeroU64;
use std::panic::{RefUnwindSafe, UnwindSafe};
use std::ptr;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, OnceLock};

use super::catch_panic::catch_panic;
use crate::{CommunicatorEvent, Error, Membership, Observer, OperationEnd, OperationStart};

/// The observers of one communicator: a list to which any thread adds, and that its owner reads without a lock.
#[derive(Default)]
pub(crate) struct Observers {
    first: OnceLock<Box<Link>>,
    /// The number of operations of which they were told.
    count: AtomicU64,
    /// The number of the first operation in the group that is open; 0 if there is none.
    group: AtomicU64,
}

struct Link {
    observer: Arc<dyn Observer>,
    next: OnceLock<Box<Link>>,
}

// A panic of an observer is caught, and leaves nothing half done here: what has observers is as before.
impl UnwindSafe for Link {}
impl RefUnwindSafe for Link {}
impl UnwindSafe for Given {}
impl RefUnwindSafe for Given {}

impl Link {
    /// Tells this observer, and all after it.
    #[cold]
    fn tell(&self, tell: &dyn Fn(&dyn Observer)) {
        for link in iter::successors(Some(self), |link| link.next.get().map(|next| &**next)) {
            let _ = catch_panic(|| tell(&*link.observer));
        }
    }
}

impl Observers {
    /// Returns `true` if there are any.
    #[inline(always)]
    pub(crate) fn exist(&self) -> bool {
        self.first.get().is_some()
    }

    pub(crate) fn add(&self, observer: Arc<dyn Observer>) {
        let mut link = Box::new(Link { observer, next: OnceLock::new() });
        let mut end = &self.first;
        while let Err(refused) = end.set(link) {
            link = refused;
            let Some(last) = end.get() else { return };
            end = &last.next;
        }
    }

    /// Returns the first observer of this type.
    pub(crate) fn find<T: Observer>(&self) -> Option<&T> {
        self.iter().find_map(|observer| (observer as &dyn Any).downcast_ref())
    }

    #[inline(always)]
    fn iter(&self) -> impl Iterator<Item = &dyn Observer> {
        iter::successors(self.first.get(), |link| link.next.get()).map(|link| &*link.observer)
    }

    /// Returns the number of operations of which they were told; `None` if there was none.
    pub(crate) fn count(&self) -> Option<NonZeroU64> {
        NonZeroU64::new(self.count.load(Relaxed))
    }

    /// Tells them of an operation, the first of the communicator in a group or a later one if there is a group.
    #[inline(always)]
    pub(crate) fn start(&self, mut start: OperationStart<'_>, is_first_of_group: Option<bool>) {
        // One thread at a time uses the communicator.
        let number = self.count.load(Relaxed) + 1;
        self.count.store(number, Relaxed);
        start.number = number;
        if let Some(is_first) = is_first_of_group {
            if is_first {
                self.group.store(number, Relaxed);
            }
            start.group = self.group.load(Relaxed);
            start.call = start.call.in_group(is_first);
        }
        self.tell(|observer| observer.on_start(&start));
    }

    /// Tells them of the end of the last operation.
    #[inline(always)]
    pub(crate) fn end(&self, communicator: &Membership, result: Result<(), &Error>) {
        let number = self.count.load(Relaxed);
        let end = OperationEnd::new(communicator, [number; 2], result);
        self.tell(|observer| observer.on_end(&end));
    }

    /// Tells them of the end of a group, if they were told of operations in it.
    #[inline(always)]
    pub(crate) fn end_group(&self, communicator: &Membership, result: Result<(), &Error>) {
        let (first, last) = (self.group.load(Relaxed), self.count.load(Relaxed));
        if first > 0 {
            self.group.store(0, Relaxed);
            let end = OperationEnd::new(communicator, [first, last], result);
            self.tell(|observer| observer.on_end(&end));
        }
    }

    /// Tells them what happens to the communicator.
    #[cold]
    pub(crate) fn tell_event(&self, communicator: &Membership, event: CommunicatorEvent) {
        self.tell(|observer| observer.on_communicator(communicator, event));
    }

    #[inline(always)]
    fn tell(&self, tell: impl Fn(&dyn Observer)) {
        // Most communicators have one.
        let Some(first) = self.first.get() else { return };
        let _ = catch_panic(|| tell(&*first.observer));
        if let Some(second) = first.next.get() {
            second.tell(&tell);
        }
    }
}

/// The observers that a program gives to a communicator.
#[derive(Clone, Default)]
pub(crate) struct Given(Vec<Arc<dyn Observer>>);

impl Given {
    pub(crate) fn push(&mut self, observer: Arc<dyn Observer>) {
        self.0.push(observer);
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Arc<dyn Observer>> {
        self.0.iter()
    }

    fn addresses(&self) -> impl Iterator<Item = *const ()> {
        self.0.iter().map(|observer| Arc::as_ptr(observer).cast())
    }
}

/// Two are equal if their observers are the same ones.
impl PartialEq for Given {
    fn eq(&self, other: &Self) -> bool {
        self.addresses().eq(other.addresses())
    }
}

impl Eq for Given {}

impl Hash for Given {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.addresses().for_each(|address| ptr::hash(address, state));
    }
}

impl fmt::Debug for Given {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} observers", self.0.len())
    }
}
