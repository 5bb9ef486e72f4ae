//! Support for buffers, streams and contexts of other crates, whose types are named only here.

#[cfg(feature = "cuda-core")]
mod cuda_core;
#[cfg(feature = "cudarc")]
mod cudarc;

#[cfg(any(feature = "cuda-core", feature = "cudarc"))]
fn device(context: &impl crate::cuda::Context) -> Option<i32> {
    i32::try_from(context.device()).ok()
}
