//! NVIDIA's driver, which NCCL needs, or what the process has in its place.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::finding::{Finding, Text};
use super::library::{Library, NOT_STARTED};
use crate::gpu;
use crate::nccl_file::Cuda;
use crate::system::System;

/// The driver. The names of the fields are those of the JSON.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct Driver {
    pub(crate) library: String,
    pub(crate) loaded: bool,
    /// The file, if it is libnccl's CUDA emulation and not NVIDIA's.
    pub(crate) stand_in: Option<PathBuf>,
    /// The number of GPUs, or of the emulation's devices.
    pub(crate) gpus: usize,
    pub(crate) problem: Option<String>,
    /// The newest release of CUDA that the driver supports.
    pub(crate) cuda: Option<Text<Cuda>>,
    pub(crate) module: Option<String>,
    /// The names of the GPUs of the machine, whether this process sees them or not.
    pub(crate) models: Vec<String>,
    /// True if the process that asks the driver could not be started.
    #[serde(skip)]
    pub(super) is_unasked: bool,
}

impl Driver {
    pub(super) fn new() -> Self {
        let loaded = gpu::load_driver().is_ok();
        let (gpus, problem) = gpu::count().map_or_else(|problem| (0, Some(problem)), |gpus| (gpus, None));
        let cuda = gpu::newest_cuda().map(Text);
        let library = gpu::DRIVER.into();
        Self { library, loaded, stand_in: gpu::stand_in(), gpus, problem, cuda, ..Self::default() }
    }

    /// Returns a driver that ended its process for this reason, or whose process could not be started.
    pub(super) fn failed(problem: String, is_unasked: bool) -> Self {
        Self { library: gpu::DRIVER.into(), problem: Some(problem), is_unasked, ..Self::default() }
    }

    pub(super) fn with(self, system: &System) -> Self {
        Self { module: module(system), models: models(system), ..self }
    }

    pub(crate) fn findings(&self, system: &System, library: Option<&Library>) -> Vec<Finding> {
        let mut findings = vec![self.state(system, library)];
        let built = library.and_then(|library| library.file.cuda);
        if let (Some(built), Some(Text(newest))) = (built, self.cuda)
            && built.major > newest.major
        {
            findings.push(Finding::problem(
                format!("the library is compiled with CUDA {built}, and the driver supports CUDA up to {newest}"),
                format!(
                    "update the driver to one of CUDA {}, or install nvidia-nccl-cu{} in place of the library",
                    built.major, newest.major
                ),
            ));
        }
        findings
    }

    fn state(&self, system: &System, library: Option<&Library>) -> Finding {
        let Self { library: name, loaded, stand_in, gpus, problem, cuda, module, is_unasked, .. } = self;
        let (name, devices) = match stand_in {
            Some(file) => (format!("{}, {}", file.display(), gpu::STAND_IN), "devices"),
            None => (name.clone(), "GPUs"),
        };
        let Some(problem) = problem else {
            let cuda = cuda.filter(|_| stand_in.is_none());
            let cuda = cuda.map(|Text(cuda)| format!(", CUDA {cuda}")).unwrap_or_default();
            let module =
                module.as_ref().map(|module| format!(", kernel module {module}")).unwrap_or_default();
            return Finding::ok(format!("{name}, {devices}: {gpus}{cuda}{module}"));
        };
        if *is_unasked {
            return Finding::warning(format!("{name}: not asked, as {problem}"), NOT_STARTED);
        }
        let text = if *loaded { format!("{name}: {problem}") } else { problem.clone() };
        if !library.is_none_or(Library::needs_driver) {
            return Finding::ok(format!("{text}; this library needs none"));
        }
        let on_bus = nvidia_devices(system).len();
        let rejects = library.is_some_and(|library| !library.probe.rejected_variables().is_empty());
        let advice = if stand_in.is_some() && rejects {
            "correct the variable that `variables` lists below: the CUDA emulation does not start with it"
        } else if on_bus > 0 && !loaded {
            "the machine has NVIDIA GPUs: install their driver, or start the container with `--gpus all`"
        } else if on_bus > 0 {
            "see `dmesg` and `nvidia-smi`: the driver's library and the kernel's module may differ, or the GPUs be hidden"
        } else {
            "run on a machine with an NVIDIA GPU and its driver, or use the CPU backend: `nccl bench --cpu`, the \
             crate libnccl-cpu"
        };
        Finding::problem(text, advice)
    }
}

/// Returns the PCI addresses of NVIDIA's GPUs.
pub(crate) fn nvidia_devices(system: &System) -> Vec<PathBuf> {
    let devices = system.children("/sys/bus/pci/devices").into_iter();
    let is_gpu = |device: &PathBuf| {
        let is = |file: &str, start: &str| {
            system.line(device.join(file)).is_some_and(|line| line.starts_with(start))
        };
        is("vendor", "0x10de") && (is("class", "0x0300") || is("class", "0x0302"))
    };
    devices.filter(is_gpu).collect()
}

/// Reads the release in `NVRM version: NVIDIA UNIX x86_64 Kernel Module  570.133.20  ...`; open modules have
/// `Open Kernel Module for x86_64`.
fn module(system: &System) -> Option<String> {
    let version = system.read("/proc/driver/nvidia/version")?;
    let is_release =
        |word: &&str| word.contains('.') && word.split('.').all(|part| part.parse::<u32>().is_ok());
    version.lines().next()?.split_whitespace().find(is_release).map(str::to_owned)
}

fn models(system: &System) -> Vec<String> {
    let gpus = system.children("/proc/driver/nvidia/gpus").into_iter();
    let model = |gpu: PathBuf| {
        let information = system.read(gpu.join("information"))?;
        let model = information.lines().find_map(|line| line.strip_prefix("Model:"))?;
        Some(model.trim().to_owned())
    };
    gpus.filter_map(model).collect()
}
