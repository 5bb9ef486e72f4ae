//! The errors of calls, of loading and of parsing, and the result codes of NCCL.

mod debug_as_display;
#[allow(clippy::module_inception)] // The type has the name of the module.
mod error;
mod invalid_argument_kind;
mod parse_error;
mod result_code;

pub(crate) use debug_as_display::debug_as_display;
pub use error::{Attempt, Error, LoadError, Result};
pub use invalid_argument_kind::InvalidArgumentKind;
pub use parse_error::ParseError;
pub use result_code::ResultCode;
