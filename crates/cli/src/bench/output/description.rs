use serde::{Deserialize, Serialize};

use super::report;

/// A rank, as it presents itself to the others.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Description {
    pub(crate) rank: report::Rank,
    /// The number of its device.
    pub(crate) device: i32,
}
