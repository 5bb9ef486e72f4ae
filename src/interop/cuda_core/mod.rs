//! Buffers, streams and contexts of NVIDIA's crate cuda-core.

mod buffer;
mod context;
mod stream;
