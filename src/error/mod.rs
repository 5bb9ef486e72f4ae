//! Errors: those of calls and of loading, and NCCL's codes.

mod debug_as_display;
#[allow(clippy::module_inception)] // The type has the name of the module.
mod error;
mod invalid_argument_kind;
mod result_code;

pub(crate) use debug_as_display::debug_as_display;
pub use error::{Attempt, Error, LoadError, Result};
pub use invalid_argument_kind::InvalidArgumentKind;
pub use result_code::ResultCode;
