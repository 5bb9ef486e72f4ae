//! The machine's GPU, driver and NCCL.
#![allow(unsafe_code)]

use std::fmt;
use std::fs;

use cudarc::driver::{CudaContext, result, sys};
use libnccl::buffer::MemorySpace;
use libnccl::{Nccl, Version};

use crate::job::Job;
use crate::rank::Setting;

/// Scenarios that the stand-in for CUDA and the CPU backend of NCCL lack something for, with what that is.
const NOT_ON_THE_STAND_IN: [(&str, &str); 1] = [(
    "put_beyond_the_peers_shorter_window_is_not_refused",
    "the CPU backend refuses to put beyond the peer's part of a window",
)];

pub(crate) struct Machine {
    nccl: Nccl,
    gpu: String,
}

/// Loads the driver, as programs for GPUs do before they use NCCL.
pub(crate) fn load_driver() {
    // SAFETY: they load the system's driver, which any program may load. It is there, so the second does not panic.
    unsafe {
        if sys::is_culib_present() {
            sys::culib();
        }
    }
}

/// Returns the machine if it has a GPU and an NCCL, otherwise what is missing.
pub(crate) fn examine() -> Result<Machine, String> {
    // Checked first, because cudarc panics without a driver.
    // SAFETY: it loads the system's driver, which any program may load.
    if !unsafe { sys::is_culib_present() } {
        return Err("no NVIDIA driver (libcuda.so)".into());
    }
    match CudaContext::device_count() {
        Ok(1..) => {}
        Ok(_) => return Err("the NVIDIA driver sees no GPU".into()),
        Err(error) => return Err(format!("the NVIDIA driver cannot be used: {error}")),
    }
    let nccl = Nccl::load().map_err(|error| error.to_string().replace('\n', "; "))?;
    if nccl.memory_space() != MemorySpace::Device {
        return Err(format!("no NCCL for GPUs: {} works on host memory", nccl.backend()));
    }
    let gpu = result::device::get(0).and_then(result::device::get_name);
    Ok(Machine { nccl, gpu: gpu.map_err(|error| format!("GPU 0 cannot be used: {error}"))? })
}

impl Machine {
    /// Returns what is missing for a job.
    pub(crate) fn lacks(&self, job: &Job) -> Option<String> {
        /// The first release that has an option to let two ranks share a GPU.
        const SHARED_GPU: Version = Version::new(2, 30, 3);
        let found = self.nccl.version();
        if self.gpu.contains("CUDA emulation")
            && let Some((_, missing)) = NOT_ON_THE_STAND_IN.iter().find(|(name, _)| *name == job.name())
        {
            return Some((*missing).to_owned());
        }
        (job.setting() == Setting::TwoRanks && found < SHARED_GPU)
            .then(|| format!("two ranks on one GPU need NCCL {SHARED_GPU} or newer; this is {found}"))
    }
}

/// Prints the facts that belong to the results.
impl fmt::Display for Machine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut cuda = 0;
        // SAFETY: a place to write an int to; it stays 0 if the call fails.
        let _ = unsafe { sys::cuDriverGetVersion(&raw mut cuda) };
        let driver = fs::read_to_string("/sys/module/nvidia/version");
        let driver = driver.as_deref().map_or("unknown", str::trim);
        writeln!(f, "GPU     {}", self.gpu)?;
        writeln!(f, "driver  {driver}, CUDA {}.{}", cuda / 1000, cuda % 1000 / 10)?;
        write!(f, "NCCL    {} ({})", self.nccl.version(), self.nccl.backend())
    }
}
