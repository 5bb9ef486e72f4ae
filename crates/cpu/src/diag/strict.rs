//! Strict mode, `LIBNCCL_CPU_STRICT=1`: no call relies on buffers that NCCL does not promise.
//!
//! - A send returns when the receiver has taken the message.
//! - In a group, the collectives of a communicator run before its sends and receives.
//! - Calls of count 0 wait for those of the other ranks, and so do short collectives of which a rank needs nothing more.
//! - `ncclAlltoAll` in place is an error.
//!
//! A program that passes cannot hang in NCCL for want of buffers. What it has not destroyed, deregistered and freed is listed.

use std::sync::LazyLock;

use libnccl::internal::environment::variable;

use crate::diag::debug::{self, Subsystem};
use crate::diag::failures::{self, Failures};
use crate::diag::{finding, stack, wait_limits};

/// Set in strict mode.
pub(crate) static STRICT: LazyLock<bool> = LazyLock::new(|| is_on(finding::STRICT));

/// Set if findings are reported with stacks.
pub(crate) static STACKS: LazyLock<bool> = LazyLock::new(|| is_on(stack::STACKS));

/// The consequence of an operation that fails.
pub(crate) static FAILURES: LazyLock<Failures> = LazyLock::new(|| {
    let Some(text) = variable(failures::FAILURES).filter(|text| !text.is_empty()) else {
        return Failures::Error;
    };
    text.to_str().and_then(Failures::parse).unwrap_or_else(|| {
        wait_limits::report(&format!(
            "{} is {text:?}, which is ignored; expected {}",
            failures::FAILURES,
            Failures::EXPECTED
        ));
        Failures::Error
    })
});

fn is_on(name: &str) -> bool {
    let Some(text) = variable(name) else { return false };
    match text.to_string_lossy().trim() {
        "0" => false,
        "1" => {
            debug::info(Subsystem::Environment, || format!("{name} set by environment to 1."));
            true
        }
        _ => {
            wait_limits::report(&format!("{name} is {text:?}, which is ignored; expected 0 or 1"));
            false
        }
    }
}
