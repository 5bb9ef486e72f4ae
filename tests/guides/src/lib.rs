//! The guides of `docs/migration`, so that their code is compiled.

#[doc = include_str!("../../../docs/migration/cudarc.md")]
pub mod cudarc {}

#[doc = include_str!("../../../docs/migration/c.md")]
pub mod c {}

#[doc = include_str!("../../../docs/migration/frameworks.md")]
pub mod frameworks {}
