use std::panic::{AssertUnwindSafe, catch_unwind};

/// Runs code of another crate, of which a panic is its own: it is not passed on. Returns `None` then.
pub(crate) fn catch_panic<R>(code: impl FnOnce() -> R) -> Option<R> {
    // The payload is leaked, as its drop may panic too.
    catch_unwind(AssertUnwindSafe(code)).map_err(std::mem::forget).ok()
}
