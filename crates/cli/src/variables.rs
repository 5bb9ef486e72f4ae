//! The names of the variables that an NCCL library reads.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context, Result};
use libnccl::Version;
use serde::Deserialize;

use crate::nccl_file::NcclFile;

/// The variables of the newest release that this program knows.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Newest {
    release: String,
    /// The default of each; `None` if it has none that is a text or a number, and means something else if it is not set.
    pub(crate) defaults: BTreeMap<String, Option<String>>,
}

impl Newest {
    pub(crate) fn read() -> Result<Self> {
        serde_json::from_str(include_str!("nccl_variables.json")).context("nccl_variables.json")
    }

    pub(crate) fn release(&self) -> Result<Version> {
        self.release.parse().with_context(|| format!("the release {} in nccl_variables.json", self.release))
    }
}

/// The variables of the CPU backend, and of the CUDA emulation.
const OF_CPU: [&str; 22] = [
    "LIBNCCL_CPU_DEVICES",
    "LIBNCCL_CPU_DEVICE_MEMORY",
    "LIBNCCL_CPU_FAILURES",
    "LIBNCCL_CPU_FAULTS",
    "LIBNCCL_CPU_IGNORE",
    "LIBNCCL_CPU_PLANT",
    "LIBNCCL_CPU_RACES",
    "LIBNCCL_CPU_REPORT",
    "LIBNCCL_CPU_SEED",
    "LIBNCCL_CPU_STACKS",
    "LIBNCCL_CPU_STRICT",
    "LIBNCCL_CPU_TIMEOUT",
    "LIBNCCL_CPU_WARN_AFTER",
    "NCCL_COMM_ID",
    "NCCL_DEBUG",
    "NCCL_DEBUG_FILE",
    "NCCL_DEBUG_SUBSYS",
    "NCCL_MULTI_RANK_GPU_ENABLE",
    "NCCL_NET",
    "NCCL_P2P_DISABLE",
    "NCCL_RAS_ADDR",
    "NCCL_RAS_ENABLE",
];
/// The least number of names in a library of NVIDIA or AMD; another is the CPU backend, whose file has none that
/// can be told from other text.
const MANY: usize = 40;

#[derive(Debug, Default)]
pub(crate) struct Variables {
    pub(crate) names: BTreeSet<String>,
    pub(crate) is_cpu: bool,
}

impl Variables {
    pub(crate) fn of(file: &NcclFile) -> Self {
        if file.variables.len() >= MANY {
            Self { names: file.variables.clone(), is_cpu: false }
        } else {
            Self { names: OF_CPU.map(String::from).into(), is_cpu: true }
        }
    }
}

#[cfg(test)]
#[path = "../tests/unit/variables.rs"]
mod tests;
