//! A rank that fails, while the others call.

#[cfg(target_os = "linux")] // Elsewhere there is no CPU implementation.
mod matrix;
