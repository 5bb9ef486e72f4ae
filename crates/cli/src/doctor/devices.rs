//! The GPUs that a process sees, and where they are in the machine.

use super::Examined;
use super::driver::{Driver, nvidia_devices};
use super::finding::Finding;
use super::library::Library;
use crate::system::System;

const IMEX: &str = "/dev/nvidia-caps-imex-channels";

pub(super) fn findings(examined: &Examined) -> Vec<Finding> {
    let &Examined { system, driver, library, .. } = examined;
    let mut findings = Vec::new();
    if library.is_some_and(Library::needs_driver) {
        findings.extend(device_files(system, driver));
        findings.extend(partition_files(system));
        findings.extend(channels(examined));
    }
    let on_bus = nvidia_devices(system);
    let gpus = driver.models.len().max(on_bus.len());
    findings.extend(visible(system, gpus));
    if let Some(hidden @ ("none" | "void")) = system.variable("NVIDIA_VISIBLE_DEVICES") {
        findings.push(Finding::warning(
            format!("NVIDIA_VISIBLE_DEVICES={hidden}: the container has no GPU"),
            "start the container with `--gpus all`, or set NVIDIA_VISIBLE_DEVICES=all for it",
        ));
    }
    if !system.exists("/sys/bus/pci") {
        findings.push(Finding::warning(
            "/sys/bus/pci is not there: NCCL cannot see which GPUs and network cards are near each other",
            "mount sysfs at /sys",
        ));
    }
    let numa_nodes = system.names("/sys/devices/system/node").iter().filter(|name| is_node(name)).count();
    let placed =
        |device: &std::path::PathBuf| system.line(device.join("numa_node")).is_some_and(|node| node != "-1");
    let unplaced = on_bus.iter().filter(|device| !placed(device)).count();
    if numa_nodes > 1 && unplaced > 0 {
        findings.push(Finding::warning(
            format!("{unplaced} of {} GPUs have no NUMA node, and the machine has {numa_nodes}", on_bus.len()),
            "describe the machine in a file and name it by NCCL_TOPO_FILE, or let the hypervisor pass the topology on",
        ));
    }
    if findings.is_empty() {
        let gpus = on_bus.len();
        // Each machine has one; a kernel may not show it.
        let numa_nodes = if numa_nodes == 0 { "unknown".into() } else { numa_nodes.to_string() };
        findings.push(Finding::ok(format!("GPUs on the PCI bus: {gpus}; NUMA nodes: {numa_nodes}")));
    }
    findings
}

/// Checks the files through which processes reach the driver: a container may lack some, unless CUDA sees GPUs.
fn device_files(system: &System, driver: &Driver) -> Vec<Finding> {
    if driver.module.is_none() || driver.stand_in.is_some() || driver.problem.is_none() {
        return Vec::new();
    }
    let is_gpu = |name: &String| {
        let number = name.strip_prefix("nvidia").filter(|number| !number.is_empty());
        number.is_some_and(|number| number.bytes().all(|byte| byte.is_ascii_digit()))
    };
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

/// Judges the files for the parts of a GPU (MIG) that the job is told to use.
fn partition_files(system: &System) -> Option<Finding> {
    let name = ["CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES"]
        .into_iter()
        .find(|name| system.variable(name).is_some_and(|value| value.contains("MIG-")))?;
    let is_there = system.names("/dev/nvidia-caps").iter().any(|name| name.starts_with("nvidia-cap"));
    (!is_there).then(|| {
        Finding::problem(
            format!("{name} names a part of a GPU (MIG), and there are no files in /dev/nvidia-caps, through which it is used"),
            "give them to the container: NVIDIA_VISIBLE_DEVICES with NVIDIA's container runtime does",
        )
    })
}

/// Judges the channels that GPUs of several machines share memory through, if there is NVLink between the machines.
fn channels(&Examined { system, settings, driver, library, .. }: &Examined) -> Option<Finding> {
    let has_nvlink =
        ["GB200", "GB300"].iter().any(|model| driver.models.iter().any(|name| name.contains(model)));
    let is_used = settings.number("NCCL_MNNVL_ENABLE").map_or(has_nvlink, |value| value != 0);
    // Older versions do not use NVLink between machines.
    if !is_used || !library.is_some_and(|library| library.file.variables.contains("NCCL_MNNVL_ENABLE")) {
        return None;
    }
    let names = system.names(IMEX);
    let mut channels = names.iter().filter(|name| name.starts_with("channel"));
    let advice = "give the container a channel of IMEX (a ComputeDomain in Kubernetes), or set NCCL_MNNVL_ENABLE=0 and do without \
                  NVLink between machines";
    let Some(first) = channels.next() else {
        let text = format!(
            "there is no channel in {IMEX}, through which GPUs of several machines share memory by NVLink"
        );
        return Some(Finding::warning(text, advice));
    };
    let error = system.denial(format!("{IMEX}/{first}"))?;
    Some(Finding::warning(format!("{IMEX}/{first}: this user cannot use it: {error}"), advice))
}

fn is_node(name: &str) -> bool {
    name.strip_prefix("node").is_some_and(|number| number.parse::<u32>().is_ok())
}

/// Judges `CUDA_VISIBLE_DEVICES`, which may be empty to hide all GPUs. CUDA ignores what follows the first invalid
/// entry, and sees nothing if one is there twice.
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
        // Others are names, such as GPU-8932f937 or MIG-..., which only the driver knows.
        if entry.parse::<usize>().is_ok_and(|number| number >= gpus) {
            let text = format!(
                "{named}: there is no GPU {entry}, and CUDA ignores the rest of the list; there are {gpus}"
            );
            let finding = if index == 0 { Finding::problem } else { Finding::warning };
            return Some(finding(text, advice));
        }
    }
    Some(Finding::ok(format!("{named}: {} of {gpus} GPUs", entries.len())))
}
