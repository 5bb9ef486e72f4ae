//! The network interfaces and RDMA devices, and those that NCCL is told to use.

use libnccl::Version;

use super::finding::Finding;
use super::interfaces;
use super::library::Library;
use super::selection::Selection;
use crate::settings::Settings;
use crate::system::System;

const HCA: &str = "NCCL_IB_HCA";
/// The release from which on NCCL has room for 32 devices, and as many entries of their list; it was 16.
const MORE_DEVICES: Version = Version::new(2, 18, 5);

/// Returns the ports of RDMA devices that have a link.
fn active_ports(system: &System) -> Vec<(String, u32)> {
    let mut ports = Vec::new();
    for device in system.names("/sys/class/infiniband") {
        let folder = format!("/sys/class/infiniband/{device}/ports");
        for port in system.names(&folder) {
            let is_active =
                system.line(format!("{folder}/{port}/state")).is_some_and(|state| state.contains("ACTIVE"));
            if let Ok(number) = port.parse()
                && is_active
            {
                ports.push((device.clone(), number));
            }
        }
    }
    ports
}

/// Returns whether NCCL may use RDMA here.
pub(super) fn has_rdma(system: &System, settings: &Settings) -> bool {
    !settings.is_on("NCCL_IB_DISABLE") && !active_ports(system).is_empty()
}

pub(super) fn findings(
    system: &System,
    settings: &Settings,
    release: Version,
    library: Option<&Library>,
) -> Vec<Finding> {
    let id = library.map(|library| &library.unique_id);
    let mut findings = if library.is_some_and(|library| !library.needs_network()) {
        vec![Finding::ok("this library needs no network interface: its ranks are on one machine")]
    } else {
        interfaces::findings(system, settings, release, id)
    };
    findings.extend(rdma(system, settings, release));
    if library.is_some_and(Library::needs_driver) && has_rdma(system, settings) {
        findings.push(direct(system));
    }
    findings
}

fn rdma(system: &System, settings: &Settings, release: Version) -> Vec<Finding> {
    let devices = system.names("/sys/class/infiniband");
    if devices.is_empty() && !system.exists("/sys/class") {
        return vec![Finding::warning(
            "/sys/class is not there: NCCL cannot see RDMA devices",
            "mount sysfs at /sys",
        )];
    }
    if devices.is_empty() {
        return vec![Finding::ok("RDMA devices: none; between machines, NCCL uses sockets")];
    }
    let ports = active_ports(system);
    if ports.is_empty() {
        return vec![Finding::warning(
            format!("RDMA devices without a link: {}", devices.join(", ")),
            "see `ibstat`; NCCL uses sockets until a port is active",
        )];
    }
    let shown: Vec<_> = ports.iter().map(|(device, port)| format!("{device}:{port}")).collect();
    let shown = shown.join(", ");
    if settings.is_on("NCCL_IB_DISABLE") {
        return vec![Finding::warning(
            format!("{}: the RDMA devices {shown} are not used", settings.text("NCCL_IB_DISABLE")),
            "unset NCCL_IB_DISABLE once the fault that it was set for is found",
        )];
    }
    let mut findings = Vec::new();
    if !system.names("/dev/infiniband").iter().any(|name| name.starts_with("uverbs")) {
        findings.push(Finding::warning(
            format!("the RDMA devices {shown} have no files in /dev/infiniband"),
            "give them to the container: `--device=/dev/infiniband`, or the device plugin of Kubernetes",
        ));
    }
    let Some(value) = settings.value(HCA) else {
        findings.push(Finding::ok(format!("RDMA devices with a link: {shown}")));
        return findings;
    };
    let selection = Selection::parse(value, if release < MORE_DEVICES { 16 } else { 32 }, release);
    let selected: Vec<_> = ports.iter().filter(|(name, port)| selection.has(name, Some(*port))).collect();
    let text = settings.text(HCA);
    let idle = selection.entries.iter().filter(|_| !selection.excludes).filter_map(|entry| {
        let is_named = |(name, port): &(String, u32)| selection.names(*entry, name, Some(*port));
        if ports.iter().any(is_named) {
            return None;
        }
        let without_link = devices.iter().any(|name| selection.names(*entry, name, None));
        let problem = if without_link { "no such port with a link" } else { "no such device" };
        Some(format!("{}: {problem}", entry.shown()))
    });
    let mut idle: Vec<_> = idle.collect();
    if selection.left_out > 0 {
        idle.push(format!("NCCL does not read the last {} entries", selection.left_out));
    }
    if selected.is_empty() {
        let reason = if idle.is_empty() { String::new() } else { format!(" ({})", idle.join("; ")) };
        findings.push(Finding::warning(
            format!("{text} selects no RDMA device{reason}, so NCCL uses sockets; with a link: {shown}"),
            "name one of them in NCCL_IB_HCA, or unset it",
        ));
        return findings;
    }
    let names: Vec<_> = selected.iter().map(|(name, port)| format!("{name}:{port}")).collect();
    let chosen = format!("{text} selects {}", names.join(", "));
    findings.push(if idle.is_empty() {
        Finding::ok(chosen)
    } else {
        Finding::warning(
            format!("{chosen}, but not all that it names: {}", idle.join("; ")),
            format!("correct {HCA}; with a link: {shown}"),
        )
    });
    findings
}

/// Judges whether network cards can reach GPU memory: by a module, or by DMA-BUF, which kernels have since 5.12.
fn direct(system: &System) -> Finding {
    let module = ["nvidia_peermem", "nv_peer_mem"]
        .into_iter()
        .find(|name| system.exists(format!("/sys/module/{name}")));
    let release = system.line("/proc/sys/kernel/osrelease").unwrap_or_default();
    let mut numbers = release.split(['.', '-']).map(|number| number.parse::<u32>().unwrap_or(0));
    let kernel = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
    match module {
        Some(module) => Finding::ok(format!("GPUDirect RDMA by the module {module}")),
        None if kernel >= (5, 12) => Finding::ok(format!(
            "GPUDirect RDMA by DMA-BUF, if the driver has open modules; the kernel is {release}"
        )),
        None => Finding::warning(
            format!(
                "no GPUDirect RDMA: the module nvidia_peermem is not loaded, and the kernel {release} has no DMA-BUF"
            ),
            "load the module: `modprobe nvidia_peermem`",
        ),
    }
}
