//! The GPUs that a process sees, and where they are in the machine.

use super::driver::{Driver, nvidia_devices};
use super::finding::Finding;
use crate::settings::Settings;
use crate::system::System;

pub(super) fn findings(system: &System, settings: &Settings, driver: &Driver) -> Vec<Finding> {
    let mut findings = Vec::new();
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
    if let Some(file) = settings.value("NCCL_TOPO_FILE") {
        findings.push(if system.exists(file) {
            Finding::ok(format!("the topology is read from {}", settings.text("NCCL_TOPO_FILE")))
        } else {
            Finding::warning(
                format!("{}: there is no such file", settings.text("NCCL_TOPO_FILE")),
                "correct the name, or unset NCCL_TOPO_FILE, which is needed in virtual machines only",
            )
        });
    }
    if findings.is_empty() {
        let gpus = on_bus.len();
        // Each machine has one; a kernel may not show it.
        let numa_nodes = if numa_nodes == 0 { "unknown".into() } else { numa_nodes.to_string() };
        findings.push(Finding::ok(format!("GPUs on the PCI bus: {gpus}; NUMA nodes: {numa_nodes}")));
    }
    findings
}

fn is_node(name: &str) -> bool {
    name.strip_prefix("node").is_some_and(|number| number.parse::<u32>().is_ok())
}

/// Judges `CUDA_VISIBLE_DEVICES`, which may be empty to hide all GPUs. CUDA ignores what follows the first invalid
/// entry, and sees nothing if one is there twice.
fn visible(system: &System, gpus: usize) -> Option<Finding> {
    let text = system.environment().get("CUDA_VISIBLE_DEVICES")?;
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
