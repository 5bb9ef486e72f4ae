//! Windows, registrations, and the signals of one-sided operations.

mod registration;
#[allow(clippy::module_inception)]
mod window;

pub use registration::Registration;
pub use window::{Window, WindowFlags};

pub use crate::operation::{Signal, WaitSignal, WindowOffset};
