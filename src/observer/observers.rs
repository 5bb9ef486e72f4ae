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
use crate::error::Error;
use crate::observer::{CommunicatorEvent, Membership, Observer, OperationEnd, OperationStart};

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
    /// As every observer of it is told.
    communicator: Membership,
    observer: Arc<dyn Observer>,
    /// The number of the first operation of which this observer was notified; 0 before it. An observer that is added in the
    /// middle of a call or of a group is notified of the end of exactly the operations whose start it saw.
    first: AtomicU64,
    next: OnceLock<Box<Link>>,
}

/// A communicator that has observers.
#[derive(Clone, Copy)]
pub(crate) struct Observed<'a> {
    observers: &'a Observers,
    first: &'a Link,
}

// A panic of an observer is caught, and leaves nothing half done here: what has observers is as before.
impl UnwindSafe for Link {}
impl RefUnwindSafe for Link {}
impl UnwindSafe for Given {}
impl RefUnwindSafe for Given {}

impl Link {
    /// Tells this observer, and all after it. Most communicators have one.
    #[inline]
    fn tell_all(&self, tell: impl Fn(&Link) + Copy) {
        let _ = catch_panic(move || tell(self));
        if let Some(next) = self.next.get() {
            next.tell_rest(&tell);
        }
    }

    #[cold]
    fn tell_rest(&self, tell: &dyn Fn(&Link)) {
        for link in iter::successors(Some(self), |link| link.next.get().map(|next| &**next)) {
            let _ = catch_panic(|| tell(link));
        }
    }

    #[inline]
    fn start(&self, start: &OperationStart<'_>) {
        let mut first = self.first.load(Relaxed);
        if first == 0 {
            first = start.number;
            self.first.store(first, Relaxed);
        }
        if (1..first).contains(&start.group) {
            return self.start_in_joined_group(start, first);
        }
        self.observer.on_start(start);
    }

    /// Notifies an observer that was added inside the group: to it, the group begins with the first operation that it saw.
    #[cold]
    fn start_in_joined_group(&self, start: &OperationStart<'_>, first: u64) {
        self.observer.on_start(&start.in_group(first));
    }

    #[inline]
    fn end(&self, end: &OperationEnd<'_>) {
        let first = self.first.load(Relaxed);
        if (1..=end.last).contains(&first) {
            self.observer.on_end(&OperationEnd { first: end.first.max(first), ..*end });
        }
    }
}

impl Observers {
    #[inline]
    pub(crate) fn observed(&self) -> Option<Observed<'_>> {
        self.first.get().map(|first| Observed { observers: self, first })
    }

    pub(crate) fn add(&self, communicator: &Membership, observer: Arc<dyn Observer>) {
        let mut link = Box::new(Link {
            communicator: communicator.clone(),
            observer,
            first: AtomicU64::new(0),
            next: OnceLock::new(),
        });
        let mut end = &self.first;
        while let Err(refused) = end.set(link) {
            link = refused;
            let Some(last) = end.get() else { return };
            end = &last.next;
        }
    }

    pub(crate) fn find<T: Observer>(&self) -> Option<&T> {
        let mut links = iter::successors(self.first.get(), |link| link.next.get());
        links.find_map(|link| (&*link.observer as &dyn Any).downcast_ref())
    }

    /// Returns the number of operations of which they were told; `None` if there was none.
    pub(crate) fn count(&self) -> Option<NonZeroU64> {
        NonZeroU64::new(self.count.load(Relaxed))
    }

    #[cold]
    pub(crate) fn tell_event(&self, event: CommunicatorEvent) {
        if let Some(first) = self.first.get() {
            first.tell_all(|link| link.observer.on_communicator(&first.communicator, event));
        }
    }
}

/// One after the other: by its own drop, each link would drop the next, and they may be many.
impl Drop for Observers {
    fn drop(&mut self) {
        let mut next = self.first.take();
        while let Some(mut link) = next {
            next = link.next.take();
            let _ = catch_panic(|| drop(link));
        }
    }
}

impl<'a> Observed<'a> {
    #[inline]
    pub(crate) fn communicator(&self) -> &'a Membership {
        &self.first.communicator
    }

    /// Tells them of an operation, the first of the communicator in a group or a later one if there is a group.
    #[inline]
    pub(crate) fn start(&self, mut start: OperationStart<'_>, is_first_of_group: Option<bool>) {
        let Self { observers: Observers { count, group, .. }, first, .. } = self;
        // One thread at a time uses the communicator.
        let number = count.load(Relaxed) + 1;
        count.store(number, Relaxed);
        start.number = number;
        if let Some(is_first) = is_first_of_group {
            // It is 0 if the earlier operations of the group had no observer.
            start.group = match group.load(Relaxed) {
                first if first > 0 && !is_first => first,
                _ => number,
            };
            group.store(start.group, Relaxed);
            start.call = start.call.in_group(start.group == number);
        }
        first.tell_all(|link| link.start(&start));
    }

    #[inline]
    pub(crate) fn end(&self, result: Result<(), &Error>) {
        let number = self.observers.count.load(Relaxed);
        self.tell_end([number; 2], result);
    }

    /// Tells them of the end of a group, if they were told of operations in it. Not inlined: it would take registers from groups
    /// without observers.
    #[cold]
    #[inline(never)]
    pub(crate) fn end_group(self, result: Result<(), &Error>) {
        let Observers { count, group, .. } = self.observers;
        let first = group.load(Relaxed);
        if first > 0 {
            group.store(0, Relaxed);
            self.tell_end([first, count.load(Relaxed)], result);
        }
    }

    #[inline]
    fn tell_end(&self, numbers: [u64; 2], result: Result<(), &Error>) {
        let end = OperationEnd::new(self.communicator(), numbers, result);
        self.first.tell_all(|link| link.end(&end));
    }
}

/// The observers that a program gives to a communicator.
#[derive(Clone, Default)]
pub(crate) struct Given(pub(crate) Vec<Arc<dyn Observer>>);

impl Given {
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
