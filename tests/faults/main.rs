//! What goes wrong outside this library: a C function that fails in any way, and a rank that does.

mod injection;
#[cfg(target_os = "linux")] // Elsewhere there is no CPU implementation.
mod matrix;
