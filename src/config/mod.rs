//! The options of communicators and of single collectives.

mod collective_config;
#[allow(clippy::module_inception)] // The type has the name of the module.
mod config;

pub use collective_config::CollectiveConfig;
pub(crate) use collective_config::RawCollectiveConfig;
pub(crate) use config::RawConfig;
pub use config::{Config, CtaPolicy, GraphUsageMode, HostCftMode, NvlsHostMode};
