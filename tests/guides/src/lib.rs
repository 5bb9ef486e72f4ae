//! The guide `docs/migration.md`, so that its code is compiled.

#[doc = include_str!("../../../docs/migration.md")]
pub mod migration {}
