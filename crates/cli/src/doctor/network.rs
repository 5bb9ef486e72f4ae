//! The network interfaces and RDMA devices, and those that NCCL is told to use.

use super::finding::Finding;
use crate::settings::Settings;
use crate::system::System;

/// A list of interfaces or devices as NCCL reads it: prefixes by comma, after `^` to exclude them and `=` for whole names,
/// each with a port after `:` if need be.
#[derive(Debug)]
pub(super) struct Selection<'a> {
    excludes: bool,
    exact: bool,
    entries: Vec<(&'a str, Option<u32>)>,
}

impl<'a> Selection<'a> {
    pub(super) fn parse(text: &'a str) -> Self {
        let (excludes, text) = text.strip_prefix('^').map_or((false, text), |rest| (true, rest));
        let (exact, text) = text.strip_prefix('=').map_or((false, text), |rest| (true, rest));
        let entries = text.split(',').filter(|entry| !entry.is_empty());
        let entries = entries.map(|entry| match entry.split_once(':') {
            Some((name, port)) => (name, port.parse().ok()),
            None => (entry, None),
        });
        Self { excludes, exact, entries: entries.collect() }
    }

    /// Returns whether it has a device; `port` is `None` for interfaces, which have none.
    pub(super) fn has(&self, name: &str, port: Option<u32>) -> bool {
        let is_named = |(entry, entry_port): &(&str, Option<u32>)| {
            let is_name = if self.exact { name == *entry } else { name.starts_with(entry) };
            is_name && (entry_port.is_none() || port.is_none() || *entry_port == port)
        };
        // Nothing named is everything.
        self.entries.is_empty() || self.entries.iter().any(is_named) != self.excludes
    }
}

/// A network interface of the kernel.
#[derive(Debug)]
struct Interface {
    name: String,
    is_up: bool,
}

impl Interface {
    /// Returns whether NCCL takes it last, unless it is named.
    fn is_last(&self) -> bool {
        self.name == "lo" || self.name.starts_with("docker")
    }
}

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
    settings.value("NCCL_IB_DISABLE") != Some("1") && !active_ports(system).is_empty()
}

pub(super) fn findings(system: &System, settings: &Settings, needs_gpu: bool) -> Vec<Finding> {
    let mut findings = vec![interfaces(system, settings)];
    findings.extend(rdma(system, settings));
    if needs_gpu && has_rdma(system, settings) {
        findings.push(direct(system));
    }
    findings
}

fn interfaces(system: &System, settings: &Settings) -> Finding {
    // IFF_UP is the lowest bit.
    let flags = |name: &str| {
        let text = system.line(format!("/sys/class/net/{name}/flags"))?;
        u32::from_str_radix(text.trim_start_matches("0x"), 16).ok()
    };
    let names = system
        .names("/sys/class/net")
        .into_iter()
        .filter(|name| system.exists(format!("/sys/class/net/{name}/flags")));
    let all: Vec<_> = names
        .map(|name| Interface { is_up: flags(&name).is_some_and(|flags| flags & 1 == 1), name })
        .collect();
    let list = |interfaces: &[&Interface]| {
        let names: Vec<_> = interfaces.iter().map(|interface| interface.name.as_str()).collect();
        if names.is_empty() { "none".to_owned() } else { names.join(", ") }
    };
    let up: Vec<_> = all.iter().filter(|interface| interface.is_up).collect();
    let wanted = "NCCL_SOCKET_IFNAME";
    if let Some(value) = settings.value(wanted) {
        let selection = Selection::parse(value);
        let selected: Vec<_> =
            up.iter().copied().filter(|interface| selection.has(&interface.name, None)).collect();
        let text = settings.text(wanted);
        if !selected.is_empty() {
            return Finding::ok(format!("{text} selects {}", list(&selected)));
        }
        let down = all.iter().find(|interface| !interface.is_up && selection.has(&interface.name, None));
        let reason = match down {
            Some(interface) => format!("{} is down", interface.name),
            None => format!("there is no such interface; up: {}", list(&up)),
        };
        return Finding::problem(
            format!("{text} selects nothing: {reason}"),
            format!("name one that is up in {wanted}, or unset it and let NCCL choose"),
        );
    }
    let first = |test: &dyn Fn(&&&Interface) -> bool| -> Vec<&Interface> {
        up.iter().filter(test).copied().collect()
    };
    let chosen = [
        first(&|interface| interface.name.starts_with("ib")),
        first(&|interface| !interface.is_last()),
        first(&|interface| interface.name.starts_with("docker")),
        first(&|_| true),
    ];
    match chosen.into_iter().find(|chosen| !chosen.is_empty()) {
        None if all.is_empty() => Finding::warning(
            "no network interface is to be seen",
            "mount sysfs at /sys, or give the container a network",
        ),
        None => Finding::problem(
            "no network interface is up, not even lo, and NCCL needs one even within a machine",
            "bring one up: `ip link set lo up`",
        ),
        Some(chosen) if chosen.iter().all(|interface| interface.name == "lo") => {
            Finding::ok("NCCL takes lo, the only interface that is up: for ranks of this machine")
        }
        Some(chosen) => Finding::ok(format!("NCCL chooses among {}", list(&chosen))),
    }
}

fn rdma(system: &System, settings: &Settings) -> Vec<Finding> {
    let devices = system.names("/sys/class/infiniband");
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
    if settings.value("NCCL_IB_DISABLE") == Some("1") {
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
    let Some(value) = settings.value("NCCL_IB_HCA") else {
        findings.push(Finding::ok(format!("RDMA devices with a link: {shown}")));
        return findings;
    };
    let selection = Selection::parse(value);
    let selected: Vec<_> = ports.iter().filter(|(name, port)| selection.has(name, Some(*port))).collect();
    let text = settings.text("NCCL_IB_HCA");
    findings.push(if selected.is_empty() {
        Finding::warning(
            format!("{text} selects no RDMA device, so NCCL uses sockets; with a link: {shown}"),
            "name one of them in NCCL_IB_HCA, or unset it",
        )
    } else {
        let names: Vec<_> = selected.iter().map(|(name, port)| format!("{name}:{port}")).collect();
        Finding::ok(format!("{text} selects {}", names.join(", ")))
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

#[cfg(test)]
mod tests {
    use super::Selection;

    #[test]
    fn selection_follows_the_syntax_of_nccl() {
        let has = |text, name| Selection::parse(text).has(name, None);
        for (text, selected, left_out) in [
            ("eth", "eth1", "ens3"),
            ("=eth0,ens3", "ens3", "eth01"),
            ("^docker,lo", "eth0", "docker0"),
            ("^=docker0", "docker01", "docker0"),
        ] {
            assert!(has(text, selected) && !has(text, left_out), "{text}");
        }
        let port = |text, port| Selection::parse(text).has("mlx5_0", Some(port));
        assert!(port("mlx5_0:1", 1) && !port("mlx5_0:1", 2) && port("mlx5", 2) && !port("^mlx5_0:1", 1));
    }
}
