//! The implementation of NCCL to measure.

use std::path::Path;

use anyhow::{Result, bail};
use clap::ValueEnum;
use libnccl::Nccl;
use libnccl::buffer::MemorySpace;

use super::RankArguments;
use crate::settings::Settings;
use crate::system::System;
use crate::{gpu, library};

/// How NCCL's functions are found.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Backend {
    /// In the library that this program is linked with, by its feature `link`
    #[cfg_attr(not(feature = "link"), value(hide = true))]
    Link,
    /// In a library that is loaded at run time
    Dlopen,
    /// In the CPU backend in this program
    Cpu,
}

impl Backend {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Link => "link",
            Self::Dlopen => "dlopen",
            Self::Cpu => "cpu",
        }
    }
}

pub(crate) struct Implementation {
    pub(crate) nccl: Nccl,
    /// The number of GPUs, 0 for host memory.
    pub(crate) gpus: usize,
    /// Why it is the CPU backend, unless the user selected that.
    pub(crate) fallback: Option<String>,
}

/// Returns whether several ranks may share a device.
pub(crate) fn may_share_devices() -> bool {
    Settings::of(&System::here()).value("NCCL_MULTI_RANK_GPU_ENABLE") == Some("1")
}

/// Returns the implementation that the user selected, or else NCCL if it is available with a GPU, or else the CPU
/// backend.
pub(crate) fn implementation(arguments: &RankArguments, backend: Option<Backend>) -> Result<Implementation> {
    let path: Option<&Path> = arguments.library.as_deref();
    let in_program = |fallback| Ok(Implementation { nccl: libnccl_cpu::nccl(), gpus: 0, fallback });
    let fallback = |reason: &str, hint: &str| {
        in_program(Some(format!("{reason}: running on the CPU backend (host memory){hint}")))
    };
    if arguments.cpu || backend == Some(Backend::Cpu) {
        return in_program(None);
    }
    let nccl = match backend {
        Some(Backend::Link) => library::linked()?,
        Some(_) => library::open(path)?,
        None => match library::find(path)? {
            Some(nccl) => nccl,
            None => return fallback("no NCCL library found", "; `nccl doctor` lists the search"),
        },
    };
    // Before the memory space is known: the CPU backend has that of CUDA if CUDA is there.
    let _ = gpu::load_driver();
    if nccl.memory_space() == MemorySpace::Host {
        return Ok(Implementation { nccl, gpus: 0, fallback: None });
    }
    match gpu::count() {
        Ok(gpus) => Ok(Implementation { nccl, gpus, fallback: None }),
        Err(problem) if path.is_some() || backend.is_some() => {
            bail!("{} needs a GPU: {problem}", nccl.backend())
        }
        Err(problem) => fallback(&format!("no GPU for NCCL {} ({problem})", nccl.version()), ""),
    }
}
