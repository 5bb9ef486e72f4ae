//! The guides of `docs/migration`, so that their code is compiled.

#[doc = include_str!("../../../docs/migration/cudarc.md")]
pub mod cudarc {}

#[doc = include_str!("../../../docs/migration/c.md")]
pub mod c {}

#[doc = include_str!("../../../docs/migration/frameworks.md")]
pub mod frameworks {}

#[doc = include_str!("../../../docs/migration/baracuda.md")]
pub mod baracuda {}

#[doc = include_str!("../../../docs/migration/ferrotorch.md")]
pub mod ferrotorch {}

#[doc = include_str!("../../../docs/migration/go.md")]
pub mod go {}

#[doc = include_str!("../../../docs/migration/python.md")]
pub mod python {}
