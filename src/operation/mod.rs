//! The operations of communicators: a table of what each sends and receives ([`table`]), the values that their calls are
//! ([`call`]), and the methods that make them ([`methods`]).
#![allow(unsafe_code)] // Calls C.

mod arguments;
mod call;
mod collective;
mod grouping;
mod message;
mod methods;
mod one_sided;
mod operations;
mod owned_pre_mul_sum;
mod pre_mul_sum;
#[cfg(any(feature = "log", feature = "tracing"))]
mod span;
mod table;
mod vector;
mod window_offset;

pub use grouping::{Grouped, Grouping, Ungrouped};
pub use one_sided::{Signal, WaitSignal};
pub use operations::Operations;
pub use owned_pre_mul_sum::OwnedPreMulSum;
pub use pre_mul_sum::{PreMulSum, PreMulSumOperations};
pub use table::{Extent, Operation, Role};
pub(crate) use window_offset::Target;
pub use window_offset::WindowOffset;
