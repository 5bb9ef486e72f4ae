use std::cell::RefCell;
use std::ptr;

use ::tracing::span::EnteredSpan;

use libnccl::observer::{Membership, Observer, Operation, OperationEnd, OperationStart};

/// A communicator, identified by the address of its `Membership`, and the number of an operation.
type Key = (*const Membership, u64);

thread_local! {
    /// The spans of this thread's calls in progress.
    static ENTERED: RefCell<Vec<(Key, EnteredSpan)>> = const { RefCell::new(Vec::new()) };
}

/// Observer that creates spans of the `tracing` crate.
struct Spans;

/// Creates a span of the `tracing` crate for each operation of all communicators that this process creates from now on, if level
/// `TRACE` is enabled for the target `libnccl`.
///
/// The span lasts as long as the call. In a group, a call only adds the operation to the group, so its span ends immediately.
pub fn tracing() {
    libnccl::observer::observe(|_| Some(std::sync::Arc::new(Spans)));
}

impl Observer for Spans {
    #[inline]
    fn on_start(&self, start: &OperationStart<'_>) {
        if ::tracing::level_enabled!(::tracing::Level::TRACE) {
            enter(start);
        }
    }

    /// Ends the span of an operation, even if the level has changed meanwhile.
    #[inline]
    fn on_end(&self, end: &OperationEnd<'_>) {
        let is_in_span = |entered: &RefCell<Vec<_>>| !entered.borrow().is_empty();
        if ENTERED.try_with(is_in_span).unwrap_or(false) {
            exit((end.communicator, end.first));
        }
    }
}

#[cold]
fn enter(start: &OperationStart<'_>) {
    let span = span(start);
    if start.group().is_none() {
        // During the thread's exit, its spans are already dropped, and this one ends here.
        let _ = ENTERED.try_with(|entered| {
            entered.borrow_mut().push(((ptr::from_ref(start.communicator()), start.number()), span));
        });
    }
}

#[cold]
fn exit(key: Key) {
    let take = |entered: &RefCell<Vec<_>>| {
        entered.borrow_mut().pop_if(|(last, _): &mut (Key, EnteredSpan)| *last == key)
    };
    // Dropped after the borrow ends, because the subscriber may call this.
    drop(ENTERED.try_with(take));
}

/// Returns the entered span of an operation. Its fields have the same names as in recordings.
fn span(start: &OperationStart<'_>) -> EnteredSpan {
    let (number, peer, source) = (start.number(), start.peer(), start.source());
    let (sent, received) = (start.sent(), start.received());
    let data_type = start.data_type().map(|data_type| data_type.to_string());
    let &Membership { id, rank, size, .. } = start.communicator();
    let communicator = id.map(|id| id.to_string());
    // The name of a span is a constant of its call site, so there is one call site for each operation.
    macro_rules! span {
        ($($number:literal)*) => {{
            const _: () = assert!(Operation::ALL.len() <= [$($number),*].len(), "add numbers below");
            match start.operation().number() {
                $($number => span!(@ const { name($number) }),)*
                _ => span!(@ "operation"),
            }
        }};
        (@ $name:expr) => {
            ::tracing::trace_span!(
                target: "libnccl",
                $name,
                number,
                data_type = data_type.as_deref(),
                sent,
                received,
                peer,
                source,
                communicator = communicator.as_deref(),
                rank,
                size,
            )
        };
    }
    let span = span! {
        0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25 26 27 28 29 30 31 32 33 34 35 36 37 38 39
    };
    span.entered()
}

const fn name(number: usize) -> &'static str {
    if number < Operation::ALL.len() { Operation::ALL[number].name } else { "operation" }
}
