//! Buffers, streams and contexts of the crate cudarc.

mod context;
mod slice;
mod stream;
