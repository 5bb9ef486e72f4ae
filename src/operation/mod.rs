//! The operations of communicators.

mod table;

pub use table::{Extent, Operation, Role};
