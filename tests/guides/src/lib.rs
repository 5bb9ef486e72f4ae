//! The README and `docs/migration.md`, so that their code is compiled, and run where it needs no GPU.

#[doc = include_str!("../../../docs/migration.md")]
pub mod migration {}

#[doc = include_str!("../../../README.md")]
pub mod readme {}
