use std::fmt::Display;

use super::debug_as_display::debug_as_display;

/// The error returned when a text or bytes are not a value of this crate, such as a [`DataType`](crate::data_type::DataType) or a
/// [`UniqueId`](crate::unique_id::UniqueId).
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct ParseError(Box<str>);

debug_as_display!(ParseError);

impl ParseError {
    pub(crate) fn new(problem: impl Display) -> Self {
        Self(problem.to_string().into())
    }
}
