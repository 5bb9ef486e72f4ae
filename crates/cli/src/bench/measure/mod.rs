//! The measurement of an operation, by the ranks of a thread.

mod buffers;
mod call;
pub(crate) mod description;
pub(crate) mod memory;
pub(crate) mod ranks;
mod record;
mod registrations;
pub(crate) mod shape;
pub(crate) mod times;
pub(crate) mod usage;
pub(crate) mod watchdog;
pub(crate) mod work;
