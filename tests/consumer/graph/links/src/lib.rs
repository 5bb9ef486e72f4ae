//! Depends on libnccl with feature `link` alone, and has the code of `defaults`.

#[path = "../../defaults/src/lib.rs"]
mod defaults;

pub use defaults::backend;
