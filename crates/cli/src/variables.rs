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

/// The variables of a library.
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
mod tests {
    use std::collections::BTreeSet;
    use std::fs;
    use std::path::{Path, PathBuf};

    use libnccl::Version;

    use super::{Newest, OF_CPU};

    #[test]
    fn newest_release_is_that_of_the_header() {
        assert_eq!(Newest::read().unwrap().release().unwrap(), Version::HEADER);
    }

    fn sources(folder: &Path) -> Vec<PathBuf> {
        let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
        entries.flat_map(|path| if path.is_dir() { sources(&path) } else { vec![path] }).collect()
    }

    /// Only a checkout has the sources.
    #[test]
    fn variables_of_the_cpu_backend_are_those_in_its_sources() {
        let crates = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        let mut found = BTreeSet::new();
        for file in ["cpu/src", "../cuda-emulation/common/src", "../cuda-emulation/driver/src"]
            .iter()
            .flat_map(|folder| sources(&crates.join(folder)))
        {
            let text = fs::read_to_string(&file).unwrap();
            let text = text.split("#[cfg(test)]").next().unwrap();
            // C strings are the keys of parameters.
            let pieces: Vec<_> = text.split('"').collect();
            let strings = pieces.windows(2).filter(|pair| !pair[0].ends_with('c')).map(|pair| pair[1]);
            let names = strings.filter(|text| {
                let name = text.strip_prefix("LIB").unwrap_or(text);
                let is_name = |byte: u8| byte.is_ascii_uppercase() || byte.is_ascii_digit() || byte == b'_';
                // Error texts name the macros.
                let is_macro = name.ends_with("_INITIALIZER");
                name.starts_with("NCCL_") && name.len() > 5 && name.bytes().all(is_name) && !is_macro
            });
            found.extend(names.map(str::to_owned));
        }
        let listed: BTreeSet<_> = OF_CPU.map(String::from).into();
        let missing: Vec<_> = found.difference(&listed).collect();
        let idle: Vec<_> = listed.difference(&found).collect();
        assert!(
            missing.is_empty() && idle.is_empty(),
            "not listed: {missing:?}, not in the sources: {idle:?}"
        );
    }
}
