//! Data in an NCCL library's file, read without loading the library, and the variables that the library reads.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::path::Path;
use std::str::FromStr;
use std::sync::LazyLock;
use std::{fmt, io};

use anyhow::{Context, Result};
use libnccl::Version;
use libnccl_observe::library_file::{self, Identity};
use object::read::elf::ElfFile64;
use object::{Endianness, Object, ObjectSection, ObjectSymbol, ReadCache};
use serde::Deserialize;

use crate::file;

/// The prefix of the CPU backend's messages.
const CPU_BACKEND: &str = "libnccl-cpu: ";
/// The error of a version that refuses unknown words in `NCCL_ALGO` and `NCCL_PROTO`; older ones ignore them.
const UNKNOWN_WORD: &str = "Unrecognized element token";

#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(crate) struct NcclFile {
    /// The version, from the text that NCCL prints at startup.
    pub(crate) version: Option<Version>,
    /// The CUDA version that the library was compiled with.
    pub(crate) cuda: Option<Cuda>,
    pub(crate) variables: BTreeSet<String>,
    pub(crate) is_cpu_backend: bool,
    /// True if the library fails on an unknown word in `NCCL_ALGO` or `NCCL_PROTO`.
    pub(crate) refuses_unknown_words: bool,
    pub(crate) identity: Identity,
}

#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Cuda {
    pub(crate) major: u32,
    pub(crate) minor: u32,
}

impl fmt::Display for Cuda {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.major, self.minor)
    }
}

impl FromStr for Cuda {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let number = |text: &str| text.parse().ok();
        let cuda = |(major, minor)| Some(Self { major: number(major)?, minor: number(minor)? });
        text.split_once('.').and_then(cuda).ok_or("expected major.minor")
    }
}

impl NcclFile {
    /// Reads the file; `None` if it is not a 64-bit shared object with constants (`.rodata`).
    ///
    /// Only the constants are read: NCCL's file has hundreds of megabytes of GPU code.
    pub(crate) fn read(path: &Path) -> Option<Self> {
        let opened = file::open(path, File::options().read(true)).ok()?;
        let identity = Identity::of(&opened).ok()?;
        let cache = ReadCache::new(opened);
        let file = ElfFile64::<Endianness, _>::parse(&cache).ok()?;
        let constants = file.section_by_name(".rodata")?.data().ok()?;
        Some(Self { identity, ..Self::from_constants(constants) })
    }

    /// Returns whether a shared object of any name defines NCCL's functions.
    pub(crate) fn has_nccl(path: &Path) -> bool {
        let defines = || {
            let cache = ReadCache::new(file::open(path, File::options().read(true)).ok()?);
            let file = ElfFile64::<Endianness, _>::parse(&cache).ok()?;
            let mut symbols = file.dynamic_symbols();
            Some(symbols.any(|symbol| symbol.is_definition() && symbol.name() == Ok("ncclGetUniqueId")))
        };
        defines().unwrap_or(false)
    }

    fn from_constants(constants: &[u8]) -> Self {
        let mut found = Self::default();
        for text in constants.split(|byte| !(0x20..0x7f).contains(byte)) {
            let Ok(text) = std::str::from_utf8(text) else { continue };
            let versions = text.strip_prefix("NCCL version ").and_then(|rest| rest.split_once("+cuda"));
            if let Some((version, cuda)) = versions {
                (found.version, found.cuda) = (version.parse().ok(), cuda.parse().ok());
            }
            found.is_cpu_backend |= text.contains(CPU_BACKEND);
            found.refuses_unknown_words |= text.starts_with(UNKNOWN_WORD);
            found.variables.extend(variable(text).map(str::to_owned));
        }
        found
    }
}

pub(crate) fn hash(path: &Path) -> io::Result<u64> {
    library_file::hash(&file::open(path, File::options().read(true))?)
}

/// Returns the variable name at the end of a text. Blanks and up to 8 other bytes, such as those of a number, may precede it.
fn variable(text: &str) -> Option<&str> {
    let is_name = |byte: u8| byte.is_ascii_uppercase() || byte.is_ascii_digit() || byte == b'_';
    let (before, name) = text.split_at(text.find("NCCL_")?);
    let is_variable = name.len() > 5 && name.bytes().all(is_name) && before.trim_start().len() <= 8;
    is_variable.then_some(name)
}

/// The table of variables, with the names in the newest NCCL version.
pub(crate) static KNOWN: LazyLock<Known> =
    LazyLock::new(|| serde_json::from_str(include_str!("nccl_variables.json")).unwrap_or_default());

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Known {
    release: String,
    /// The default of each variable; `None` if an unset variable has a meaning that is neither a text nor a number.
    pub(crate) defaults: BTreeMap<String, Option<String>>,
    /// The minimum and the maximum that NCCL accepts, by variable.
    pub(crate) ranges: BTreeMap<String, (i64, i64)>,
    /// The variables of the CPU backend, and of the CUDA emulation.
    cpu_backend: BTreeSet<String>,
    /// Variables of NCCL's build, tests and images, which the library does not read.
    pub(crate) builds: BTreeSet<String>,
    /// PyTorch's variables before version 2.2, which added the prefix `TORCH_`.
    pub(crate) pytorch: BTreeSet<String>,
    /// Prefixes of variables of nccl-tests and of plugins.
    pub(crate) prefixes: Vec<String>,
}

impl Known {
    pub(crate) fn release(&self) -> Result<Version> {
        self.release.parse().with_context(|| format!("the version {} in nccl_variables.json", self.release))
    }
}

/// The minimum number of names in NVIDIA's or AMD's library. In the CPU backend's file, names look like any other text.
const MANY: usize = 40;

#[derive(Debug, Default)]
pub(crate) struct Variables {
    pub(crate) names: BTreeSet<String>,
    pub(crate) is_cpu: bool,
}

impl Variables {
    pub(crate) fn of(file: &NcclFile) -> Self {
        let is_cpu = file.variables.len() < MANY;
        let names = if is_cpu { &KNOWN.cpu_backend } else { &file.variables };
        Self { names: names.clone(), is_cpu }
    }
}

#[cfg(test)]
#[path = "../tests/unit/nccl_file.rs"]
pub(crate) mod tests;
