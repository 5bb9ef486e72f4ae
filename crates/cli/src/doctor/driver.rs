//! NVIDIA's driver or its emulation, the GPUs that a process sees, and the GPUs of the machine.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::Examined;
use super::finding::{Finding, Text, or_ok};
use super::library::{Library, NOT_STARTED};
use crate::library;
use crate::nccl_file::Cuda;
use crate::system::System;

/// The driver. The field names are also the names in the JSON.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct Driver {
    pub(crate) library: String,
    pub(crate) loaded: bool,
    /// The driver's file, if it is libnccl's CUDA emulation.
    pub(crate) stand_in: Option<PathBuf>,
    /// The number of GPUs, or of the emulation's devices.
    pub(crate) gpus: usize,
    pub(crate) problem: Option<String>,
    /// The newest CUDA version that the driver supports.
    pub(crate) cuda: Option<Text<Cuda>>,
    pub(crate) module: Option<String>,
    /// The names of all GPUs of the machine, including GPUs that this process does not see.
    pub(crate) models: Vec<String>,
    /// The GPUs that cannot use the fabric of NVLink switches, with the reason.
    pub(crate) fabric: Vec<String>,
    /// True if the process that queries the driver could not be started.
    #[serde(skip)]
    pub(super) is_unqueried: bool,
}

impl Driver {
    pub(super) fn new() -> Self {
        let (gpus, problem) = library::gpus().map_or_else(|problem| (0, Some(problem)), |gpus| (gpus, None));
        Self {
            library: library::DRIVER.into(),
            loaded: library::load_driver().is_ok(),
            stand_in: library::emulation(),
            gpus,
            problem,
            cuda: library::newest_cuda().map(Text),
            fabric: library::unready_fabrics().unwrap_or_default(),
            ..Self::default()
        }
    }

    /// Returns an unknown driver: the process that queries it failed or could not be started.
    pub(super) fn failed(problem: String, is_unqueried: bool) -> Self {
        Self { library: library::DRIVER.into(), problem: Some(problem), is_unqueried, ..Self::default() }
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
            let text =
                format!("the library is compiled with CUDA {built}, and the driver supports CUDA up to");
            let advice = format!("update the driver to one of CUDA {}, or install", built.major);
            let package = format!("nvidia-nccl-cu{} instead of the library", newest.major);
            findings.push(Finding::problem(format!("{text} {newest}"), format!("{advice} {package}")));
        }
        if !self.fabric.is_empty() {
            let text = format!("the fabric of NVLink switches is not ready: {}", self.fabric.join(", "));
            let advice = "start nvidia-fabricmanager, wait until `nvidia-smi -q` shows that the fabric is completed, or see its log";
            // A single GPU needs no switch.
            let finding = if self.gpus > 1 { Finding::problem } else { Finding::warning };
            findings.push(finding(text, advice));
        }
        findings
    }

    fn state(&self, system: &System, library: Option<&Library>) -> Finding {
        let Self { library: name, loaded, stand_in, gpus, problem, cuda, module, is_unqueried, .. } = self;
        let (name, devices) = match stand_in {
            Some(file) => (format!("{}, {}", file.display(), library::EMULATION), "devices"),
            None => (name.clone(), "GPUs"),
        };
        let Some(problem) = problem else {
            let cuda = cuda.filter(|_| stand_in.is_none());
            let cuda = cuda.map(|Text(cuda)| format!(", CUDA {cuda}")).unwrap_or_default();
            let module =
                module.as_ref().map(|module| format!(", kernel module {module}")).unwrap_or_default();
            return Finding::ok(format!("{name}, {devices}: {gpus}{cuda}{module}"));
        };
        if *is_unqueried {
            return Finding::warning(format!("{name}: not queried, as {problem}"), NOT_STARTED);
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

/// Returns the sysfs directories of NVIDIA's GPUs.
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

/// Reads the kernel module's version in `NVRM version: NVIDIA UNIX x86_64 Kernel Module  570.133.20  ...`. Open modules have
/// `Open Kernel Module for x86_64` there.
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
        Some(information.lines().find_map(|line| line.strip_prefix("Model:"))?.trim().to_owned())
    };
    gpus.filter_map(model).collect()
}

const IMEX: &str = "/dev/nvidia-caps-imex-channels";

pub(super) fn devices(examined: &Examined) -> Vec<Finding> {
    let &Examined { system, driver, library, .. } = examined;
    let mut findings = Vec::new();
    if library.is_some_and(Library::needs_driver) {
        findings.extend(device_files(system, driver));
        findings.extend(partition_files(system));
        findings.extend(channels(examined));
    }
    let on_bus = nvidia_devices(system);
    let present = on_bus.len();
    findings.extend(visible(system, driver.models.len().max(present)));
    if let Some(hidden @ ("none" | "void")) = system.variable("NVIDIA_VISIBLE_DEVICES") {
        let text = format!("NVIDIA_VISIBLE_DEVICES={hidden}: the container has no GPU");
        let advice = "start the container with `--gpus all`, or set NVIDIA_VISIBLE_DEVICES=all for it";
        findings.push(Finding::warning(text, advice));
    }
    if !system.exists("/sys/bus/pci") {
        let text =
            "/sys/bus/pci is not there: NCCL cannot see which GPUs and network cards are near each other";
        findings.push(Finding::warning(text, "mount sysfs at /sys"));
    }
    let is_node =
        |name: &&String| name.strip_prefix("node").is_some_and(|number| number.parse::<u32>().is_ok());
    let numa_nodes = system.names("/sys/devices/system/node").iter().filter(is_node).count();
    let placed = |device: &PathBuf| system.line(device.join("numa_node")).is_some_and(|node| node != "-1");
    let unplaced = on_bus.iter().filter(|device| !placed(device)).count();
    if numa_nodes > 1 && unplaced > 0 {
        let text =
            format!("{unplaced} of {present} GPUs have no NUMA node, and the machine has {numa_nodes}");
        let advice = "describe the machine in a file and name it by NCCL_TOPO_FILE, or let the hypervisor pass the topology on";
        findings.push(Finding::warning(text, advice));
    }
    // Every machine has a NUMA node, but the kernel may hide it.
    let numa_nodes = if numa_nodes == 0 { "unknown".into() } else { numa_nodes.to_string() };
    or_ok(findings, || format!("GPUs on the PCI bus: {present}; NUMA nodes: {numa_nodes}"))
}

/// Checks the driver's device files, some of which a container may lack. Checks nothing if CUDA sees GPUs.
fn device_files(system: &System, driver: &Driver) -> Vec<Finding> {
    if driver.module.is_none() || driver.stand_in.is_some() || driver.problem.is_none() {
        return Vec::new();
    }
    let is_gpu =
        |name: &String| name.strip_prefix("nvidia").is_some_and(|number| number.parse::<u32>().is_ok());
    let gpus = system.names("/dev").into_iter().filter(is_gpu);
    let mut names = vec!["nvidiactl".to_owned(), "nvidia-uvm".to_owned()];
    names.extend(gpus);
    if names.len() == 2 {
        names.push("nvidia0".to_owned());
    }
    let advice = "give it to the container: `--gpus all`, or the device plugin of Kubernetes; on the host: `nvidia-modprobe -u -c0`";
    let finding = |name: &String| {
        let error = system.denial(format!("/dev/{name}"))?;
        let text = format!("/dev/{name}: {error}; the kernel has NVIDIA's module");
        Some(Finding::problem(text, advice))
    };
    names.iter().filter_map(finding).collect()
}

/// Checks the device files for GPU partitions (MIG), if the job is configured to use any.
fn partition_files(system: &System) -> Option<Finding> {
    let name = ["CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES"]
        .into_iter()
        .find(|name| system.variable(name).is_some_and(|value| value.contains("MIG-")))?;
    let is_there = system.names("/dev/nvidia-caps").iter().any(|name| name.starts_with("nvidia-cap"));
    let text =
        "names a part of a GPU (MIG), and there are no files in /dev/nvidia-caps, through which it is used";
    let advice = "give them to the container: NVIDIA_VISIBLE_DEVICES with NVIDIA's container runtime does";
    (!is_there).then(|| Finding::problem(format!("{name} {text}"), advice))
}

/// Checks the IMEX channels, through which GPUs share memory if NVLink connects their machines.
fn channels(&Examined { system, settings, driver, library, .. }: &Examined) -> Option<Finding> {
    let has_nvlink =
        ["GB200", "GB300"].iter().any(|model| driver.models.iter().any(|name| name.contains(model)));
    let is_used = settings.number("NCCL_MNNVL_ENABLE").map_or(has_nvlink, |value| value != 0);
    // Older versions do not use NVLink between machines.
    if !is_used || !library.is_some_and(|library| library.file.variables.contains("NCCL_MNNVL_ENABLE")) {
        return None;
    }
    let mut channels = system.names(IMEX).into_iter().filter(|name| name.starts_with("channel"));
    let advice = "give the container a channel of IMEX (a ComputeDomain in Kubernetes), or set NCCL_MNNVL_ENABLE=0 and do without \
                  NVLink between machines";
    let Some(first) = channels.next() else {
        let purpose = "through which GPUs of several machines share memory by NVLink";
        return Some(Finding::warning(format!("there is no channel in {IMEX}, {purpose}"), advice));
    };
    let error = system.denial(format!("{IMEX}/{first}"))?;
    Some(Finding::warning(format!("{IMEX}/{first}: this user cannot use it: {error}"), advice))
}

/// Checks `CUDA_VISIBLE_DEVICES`. An empty value hides all GPUs. CUDA ignores the first invalid entry and all entries after it,
/// and sees no GPU if an entry is repeated.
fn visible(system: &System, gpus: usize) -> Option<Finding> {
    let text = system.environment.get("CUDA_VISIBLE_DEVICES")?;
    let named = format!("CUDA_VISIBLE_DEVICES={text}");
    let advice = "unset CUDA_VISIBLE_DEVICES, or list GPUs that `nvidia-smi -L` shows, each once";
    let entries: Vec<_> = text.split(',').map(str::trim).collect();
    if gpus == 0 {
        return None;
    }
    if text.is_empty() || entries[0] == "-1" || entries[0] == "NoDevFiles" {
        return Some(Finding::problem(format!("{named} hides all {gpus} GPUs"), advice));
    }
    for (index, entry) in entries.iter().enumerate() {
        if entries[..index].contains(entry) {
            return Some(Finding::problem(format!("{named} has {entry} twice, so CUDA sees no GPU"), advice));
        }
        // Other entries are names, such as GPU-8932f937 or MIG-..., which only the driver can check.
        if entry.parse::<usize>().is_ok_and(|number| number >= gpus) {
            let ignored = "and CUDA ignores the rest of the list";
            let text = format!("{named}: there is no GPU {entry}, {ignored}; there are {gpus}");
            let finding = if index == 0 { Finding::problem } else { Finding::warning };
            return Some(finding(text, advice));
        }
    }
    Some(Finding::ok(format!("{named}: {} of {gpus} GPUs", entries.len())))
}
