//! The observers of a communicator and of the process, and how they are notified.

use std::any::Any;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::iter;
use std::num::NonZeroU64;
use std::panic::{AssertUnwindSafe, RefUnwindSafe, UnwindSafe, catch_unwind};
use std::ptr;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, OnceLock, PoisonError, RwLock};

use super::Observer;
use super::events::{CommunicatorEvent, Membership, OperationEnd, OperationStart};
use crate::error::Error;

/// The observers of one communicator: a list that any thread appends to, and that its owner reads without a lock.
#[derive(Default)]
pub(crate) struct Observers {
    first: OnceLock<Box<Link>>,
    /// The number of operations that were observed so far.
    count: AtomicU64,
    /// The number of the first operation in the open group; 0 outside a group.
    group: AtomicU64,
}

struct Link {
    communicator: Membership,
    observer: Arc<dyn Observer>,
    /// The number of the first operation that this observer was notified of; 0 if there is none. An observer that is added during
    /// a call or in a group is notified only of the end of operations whose start it was notified of.
    first: AtomicU64,
    next: OnceLock<Box<Link>>,
}

/// A communicator that has observers.
#[derive(Clone, Copy)]
pub(crate) struct Observed<'a> {
    observers: &'a Observers,
    first: &'a Link,
}

// A panic of an observer is caught before it can leave these in an inconsistent state.
impl UnwindSafe for Link {}
impl RefUnwindSafe for Link {}
impl UnwindSafe for Given {}
impl RefUnwindSafe for Given {}

impl Link {
    /// Notifies this observer, and all after it.
    #[inline]
    fn notify_all(&self, notify: impl Fn(&Link) + Copy) {
        let _ = catch_panic(move || notify(self));
        if let Some(next) = self.next.get() {
            next.notify_rest(&notify);
        }
    }

    #[cold]
    fn notify_rest(&self, notify: &dyn Fn(&Link)) {
        for link in iter::successors(Some(self), |link| link.next.get().map(|next| &**next)) {
            let _ = catch_panic(|| notify(link));
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

    /// Notifies an observer that was added inside the group. For this observer, the group begins with the first operation of
    /// which it was notified.
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

    /// Returns the number of operations that were observed; `None` if there was none.
    pub(crate) fn count(&self) -> Option<NonZeroU64> {
        NonZeroU64::new(self.count.load(Relaxed))
    }

    #[cold]
    pub(crate) fn notify(&self, event: CommunicatorEvent) {
        if let Some(first) = self.first.get() {
            first.notify_all(|link| link.observer.on_communicator(&first.communicator, event));
        }
    }
}

/// Drops the links one after the other: otherwise each would drop the next recursively.
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

    /// Notifies the observers of the start of an operation. `is_first_of_group` is `None` outside a group; in a group, it is
    /// `true` for the communicator's first operation.
    #[inline]
    pub(crate) fn start(&self, mut start: OperationStart<'_>, is_first_of_group: Option<bool>) {
        let Self { observers: Observers { count, group, .. }, first, .. } = self;
        // Not a race: one thread at a time uses the communicator.
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
        first.notify_all(|link| link.start(&start));
    }

    #[inline]
    pub(crate) fn end(&self, result: Result<(), &Error>) {
        let number = self.observers.count.load(Relaxed);
        self.notify_end([number; 2], result);
    }

    /// Notifies the observers of the end of a group, if they observed operations in it. Not inlined: it would take registers from
    /// groups without observers.
    #[cold]
    #[inline(never)]
    pub(crate) fn end_group(self, result: Result<(), &Error>) {
        let Observers { count, group, .. } = self.observers;
        let first = group.load(Relaxed);
        if first > 0 {
            group.store(0, Relaxed);
            self.notify_end([first, count.load(Relaxed)], result);
        }
    }

    #[inline]
    fn notify_end(&self, numbers: [u64; 2], result: Result<(), &Error>) {
        let end = OperationEnd::new(self.communicator(), numbers, result);
        self.first.notify_all(|link| link.end(&end));
    }
}

/// The observers in the options of a communicator.
#[derive(Clone, Default)]
pub(crate) struct Given(pub(crate) Vec<Arc<dyn Observer>>);

impl Given {
    fn addresses(&self) -> impl Iterator<Item = *const ()> {
        self.0.iter().map(|observer| Arc::as_ptr(observer).cast())
    }
}

/// Compares the observers by address.
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

type Make = dyn Fn(&Membership) -> Option<Arc<dyn Observer>> + Send + Sync;

/// The functions that create observers for the communicators of this process.
static MAKERS: RwLock<Vec<Arc<Make>>> = RwLock::new(Vec::new());

/// Calls `make` for each communicator that this process creates from now on. If `make` returns an observer, adds it to the
/// communicator. `make` may return the same observer for all communicators, or a new one for each.
///
/// ```
/// use libnccl::observer::{Membership, Observer, OperationEnd};
///
/// /// Prints the operations that fail.
/// struct Failures;
///
/// impl Observer for Failures {
///     fn on_end(&self, end: &OperationEnd<'_>) {
///         let _ = end.result.inspect_err(|error| eprintln!("operation {}: {error}", end.first));
///     }
/// }
///
/// let make = |communicator: &Membership| (communicator.size > 1).then(|| std::sync::Arc::new(Failures) as _);
/// libnccl::observer::observe(make);
/// ```
pub fn observe(make: impl Fn(&Membership) -> Option<Arc<dyn Observer>> + Send + Sync + 'static) {
    MAKERS.write().unwrap_or_else(PoisonError::into_inner).push(Arc::new(make));
}

/// Returns the observers from [`observe`] for a new communicator.
pub(crate) fn of_process(communicator: &Membership) -> Vec<Arc<dyn Observer>> {
    // Not under the lock, as they may call `observe`.
    let makers = MAKERS.read().unwrap_or_else(PoisonError::into_inner).clone();
    makers.iter().filter_map(|make| catch_panic(|| make(communicator)).flatten()).collect()
}

/// Runs code of another crate. Returns `None` if it panics.
fn catch_panic<R>(code: impl FnOnce() -> R) -> Option<R> {
    // The payload is leaked, as its drop may panic too.
    catch_unwind(AssertUnwindSafe(code)).map_err(std::mem::forget).ok()
}
