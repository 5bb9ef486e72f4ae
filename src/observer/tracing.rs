use std::cell::RefCell;
use std::ptr;

use ::tracing::span::EnteredSpan;

use super::fields::Fields;
use crate::{Membership, OperationEnd, OperationStart};

/// A communicator, as the address of what observers know of it, and the number of an operation.
type Key = (*const Membership, u64);

thread_local! {
    /// The spans of the calls that this thread is in.
    static ENTERED: RefCell<Vec<(Key, EnteredSpan)>> = const { RefCell::new(Vec::new()) };
}

/// Makes a span of the crate tracing for an operation, if spans of the level `TRACE` are enabled: for the duration of the call.
/// That of an operation in a group ends as it begins, as the call does nothing.
#[inline]
pub(super) fn on_start(start: &OperationStart<'_>) {
    if ::tracing::level_enabled!(::tracing::Level::TRACE) {
        enter(start);
    }
}

/// Ends the span of an operation, also if the level has changed meanwhile.
#[inline]
pub(super) fn on_end(end: &OperationEnd<'_>) {
    let is_in_span = |entered: &RefCell<Vec<_>>| !entered.borrow().is_empty();
    if ENTERED.try_with(is_in_span).unwrap_or(false) {
        exit((end.communicator, end.first));
    }
}

#[cold]
fn enter(start: &OperationStart<'_>) {
    let span = span(start);
    if start.group().is_none() {
        // At the end of a thread, its spans are gone, and this one ends here.
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
    // Dropped afterwards, as the subscriber may call this.
    drop(ENTERED.try_with(take));
}

/// Returns the span of an operation, entered.
fn span(start: &OperationStart<'_>) -> EnteredSpan {
    let fields = Fields::new(start);
    // The name of a span is a constant.
    macro_rules! span {
        ($($name:literal)*) => {
            match start.operation().name {
                $($name => span!(@ $name),)*
                _ => span!(@ "operation"),
            }
        };
        (@ $name:literal) => {
            ::tracing::trace_span!(
                target: "libnccl",
                $name,
                number = fields.number,
                data_type = fields.data_type.as_deref(),
                sent = fields.sent,
                received = fields.received,
                peer = fields.peer,
                source = fields.source,
                communicator = fields.communicator.as_deref(),
                rank = fields.rank,
                size = fields.size,
            )
        };
    }
    let span = span! {
        "all_reduce" "all_reduce_in_place" "broadcast" "broadcast_in_place" "reduce"
        "reduce_in_place" "all_gather" "all_gather_in_place" "reduce_scatter" "reduce_scatter_in_place"
        "all_to_all" "gather" "gather_in_place" "scatter" "scatter_in_place"
        "send" "recv" "sendrecv" "all_gather_v" "all_gather_v_in_place"
        "reduce_scatter_v" "reduce_scatter_v_in_place" "all_to_all_v" "gather_v" "gather_v_in_place"
        "scatter_v" "scatter_v_in_place" "put_signal" "signal" "wait_signal"
        "barrier" "register_window"
    };
    span.entered()
}
