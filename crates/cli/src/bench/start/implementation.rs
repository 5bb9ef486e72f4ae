//! The implementation of NCCL that is measured.

use std::path::Path;

use anyhow::{Result, bail};
use libnccl::Nccl;
use libnccl::buffer::MemorySpace;

use super::backend::Backend;
use crate::settings::Settings;
use crate::system::System;
use crate::{gpu, library};

/// The implementation of NCCL to measure.
pub(crate) struct Implementation {
    pub(crate) nccl: Nccl,
    /// The number of GPUs, 0 for host memory.
    pub(crate) gpus: usize,
    /// The reason why it is the CPU backend, unless the user asked for that.
    pub(crate) fallback: Option<String>,
}

/// Returns whether several ranks may have one device.
pub(crate) fn may_share_devices(nccl: &Nccl) -> bool {
    Settings::read(&System::here(), nccl.version()).value("NCCL_MULTI_RANK_GPU_ENABLE") == Some("1")
}

/// Returns the implementation that the user selected, or else NCCL if it is available with a GPU, or else the CPU
/// backend.
pub(crate) fn implementation(
    backend: Option<Backend>,
    cpu: bool,
    path: Option<&Path>,
) -> Result<Implementation> {
    let in_program = |fallback| Ok(Implementation { nccl: libnccl_cpu::nccl(), gpus: 0, fallback });
    let fallback = |reason: &str, hint: &str| {
        in_program(Some(format!("{reason}: running on the CPU backend (host memory){hint}")))
    };
    if cpu || backend == Some(Backend::Cpu) {
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
