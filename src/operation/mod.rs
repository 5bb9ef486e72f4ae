//! The operations of communicators.
//!
//! A call is a value. The public method of three lines ([`methods`]) makes plain views of its buffers, and one function
//! ([`submit`]) checks it as its row of the table says ([`table`]), tells the observers, enters NCCL, calls C, and leaves.

mod arguments;
mod c_function;
mod call;
mod check;
mod collective;
mod custom_operator;
mod grouping;
mod message;
mod methods;
mod one_sided;
mod operations;
mod owned_pre_mul_sum;
mod pre_mul_sum;
mod signal;
mod submit;
mod table;
mod vector;
mod window_offset;

pub(crate) use check::{check_buffers, check_devices, to_c_int, to_c_length};
pub use grouping::{Grouped, Grouping, Ungrouped};
pub use operations::Operations;
pub use owned_pre_mul_sum::OwnedPreMulSum;
pub use pre_mul_sum::{PreMulSum, PreMulSumOperations};
pub use signal::{Signal, WaitSignal};
pub use table::{Extent, Operation, Role};
pub(crate) use window_offset::Target;
pub use window_offset::WindowOffset;
