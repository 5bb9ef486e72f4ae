//! Arithmetic: NCCL's data types and reductions, over plain bytes.
//!
//! In: byte slices, a data type, a reduction. Out: bytes, the same to the bit on every processor. Nothing here knows
//! ranks or memory.

pub(crate) mod data_type;
mod element;
mod half;
pub(crate) mod reduction;
mod small_float;
