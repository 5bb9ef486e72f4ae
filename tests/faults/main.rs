//! A rank that fails, while the others call.

#[cfg(target_os = "linux")] // Elsewhere there is no CPU backend.
mod matrix;
