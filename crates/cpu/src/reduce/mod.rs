//! Arithmetic: NCCL's data types and reductions, over plain bytes.
//!
//! Input: byte slices, a data type, a reduction. Output: bytes, bit-identical on every processor. This module does not depend on
//! ranks or shared memory.

pub(crate) mod data_type;
mod element;
pub(crate) mod reduction;
