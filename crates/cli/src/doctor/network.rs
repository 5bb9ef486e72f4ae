//! The network interfaces, the RDMA devices, and the port of NCCL's RAS.

use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::time::Duration;

use itertools::Itertools;
use libnccl_launch::connection::{Deadline, parse_address, resolve};

use super::finding::Finding;
use super::library::Library;
use crate::settings::{Settings, integer};
use crate::system::{Interface, System};

const HCA: &str = "NCCL_IB_HCA";
const NAMES: &str = "NCCL_SOCKET_IFNAME";
const COMM_ID: &str = "NCCL_COMM_ID";

fn active_ports(system: &System) -> Vec<(String, u32)> {
    let ports = system.names("/sys/class/infiniband").into_iter().flat_map(|device| {
        let directory = format!("/sys/class/infiniband/{device}/ports");
        let is_active = |port: &String| {
            system.line(format!("{directory}/{port}/state")).is_some_and(|state| state.contains("ACTIVE"))
        };
        let active = system.names(&directory).into_iter().filter(is_active);
        active.filter_map(|port| Some((device.clone(), port.parse().ok()?))).collect::<Vec<_>>()
    });
    ports.collect()
}

pub(super) fn has_rdma(system: &System, settings: &Settings) -> bool {
    !settings.is_on("NCCL_IB_DISABLE") && !active_ports(system).is_empty()
}

pub(super) fn findings(system: &System, settings: &Settings, library: Option<&Library>) -> Vec<Finding> {
    let mut findings = match library {
        Some(library) if !library.needs_network() => {
            vec![Finding::ok("this library needs no network interface: its ranks are on one machine")]
        }
        _ => interfaces(system, settings, library),
    };
    if library.is_none_or(Library::needs_network) {
        findings.extend(rdma(system, settings));
    }
    if library.is_some_and(Library::needs_driver) && has_rdma(system, settings) {
        findings.push(direct(system));
    }
    findings
}

/// Reports the interface that the library used, and the machine's interfaces if they explain the choice.
fn interfaces(system: &System, settings: &Settings, library: Option<&Library>) -> Vec<Finding> {
    let all = system.interfaces.as_deref().unwrap_or_default();
    let shown = match &system.interfaces {
        Ok(all) if all.is_empty() => "none".into(),
        Ok(_) => all.iter().join(", "),
        Err(error) => format!("unknown ({error})"),
    };
    let Some(library) = library else {
        return vec![Finding::ok(format!("no library to test them with; interfaces: {shown}"))];
    };
    let set = [NAMES, "NCCL_SOCKET_FAMILY", COMM_ID].into_iter().filter(|name| settings.get(name).is_some());
    let set = set.map(|name| settings.text(name)).join(", ");
    let set = if set.is_empty() { set } else { format!("with {set}, ") };
    let Some(address) = library.unique_id.address else {
        let text = format!("{set}the library makes no unique id; interfaces: {shown}");
        let has_network = all.iter().any(|one| one.is_running && !one.addresses.is_empty());
        return vec![if library.unique_id.ok {
            Finding::ok(format!("the address in the unique id is not known; interfaces: {shown}"))
        } else if library.probe.call.is_none() || (set.is_empty() && has_network) {
            // The section on the library reports the error.
            Finding::ok(text)
        } else if set.is_empty() {
            Finding::problem(text, "bring an interface up: `ip link set lo up`")
        } else {
            let advice = format!(
                "name interfaces that are up and have an address in {NAMES}, separated by commas, without quotes and \
                 spaces; in {COMM_ID}, an address of rank 0 in a network of this machine, and a port; or unset them"
            );
            Finding::problem(text, advice)
        }];
    };
    let of_address = || Some((&*all.iter().find(|one| one.addresses.contains(&address))?.name, address));
    let used = library.probe.interface().or_else(of_address);
    let mut text = format!("{set}ranks meet at {address}");
    match used {
        Some((name, own)) if own == address => text += &format!(" ({name})"),
        Some((name, own)) => text += &format!("; this machine uses {own} ({name})"),
        None => {}
    }
    let mut findings = Vec::new();
    let others = all.iter().any(|interface| interface.name != "lo" || interface.addresses.len() > 2);
    let is_bridge = |name: &str| ["docker", "virbr"].iter().any(|prefix| name.starts_with(prefix));
    let is_local = address.is_loopback() || used.is_some_and(|(name, _)| is_bridge(name));
    let interface = used.and_then(|(name, _)| all.iter().find(|interface| interface.name == name));
    findings.push(if is_local && others {
        let advice = match address_of_lo(all) {
            Some(own) => {
                let reason = format!("{NAMES} selects no other address of lo");
                format!("for a job on several machines, set {COMM_ID} to {own} and a port, if this is rank 0's: {reason}")
            }
            None => format!("for a job on several machines, name an interface that reaches them in {NAMES}"),
        };
        Finding::warning(format!("{text}, which other machines cannot reach; interfaces: {shown}"), advice)
    } else if is_local {
        Finding::ok(format!("{text}: there is no other interface, so ranks are on this machine alone"))
    } else if let Some(interface) = interface.filter(|interface| !interface.is_running) {
        let text = format!("{text}, which is not connected: {interface}; interfaces: {shown}");
        Finding::warning(text, format!("bring it up, or exclude it in {NAMES}"))
    } else {
        Finding::ok(text)
    });
    findings.extend(used.and_then(|(name, _)| difference(settings, name, all, &shown)));
    findings.extend(library.probe.address().and_then(|(_, port)| comm_id_port(settings, port)));
    findings
}

/// Returns the non-loopback address of the interface lo, if no other interface has an address.
fn address_of_lo(all: &[Interface]) -> Option<IpAddr> {
    let mut with_address = all.iter().filter(|interface| !interface.addresses.is_empty());
    let interface = with_address.next().filter(|interface| interface.name == "lo")?;
    let own = interface.addresses.iter().find(|address| !address.is_loopback()).copied();
    own.filter(|_| with_address.next().is_none())
}

/// Compares the interface that the library used with `NCCL_SOCKET_IFNAME`, a list of prefixes.
fn difference(settings: &Settings, used: &str, all: &[Interface], shown: &str) -> Option<Finding> {
    let list = List::parse(settings.value(NAMES)?);
    let is_named = |entry: &str| all.iter().any(|interface| list.is(entry, &interface.name));
    let unmatched = list.entries.iter().filter(|entry| !is_named(entry));
    let unmatched = unmatched.map(|entry| format!("{entry:?}")).join(", ");
    let text = if !list.has(used) && settings.get(COMM_ID).is_none() {
        format!("{}: the library uses {used} nevertheless", settings.text(NAMES))
    } else if !list.excludes && !unmatched.is_empty() {
        format!("{}: no interface is named {unmatched}", settings.text(NAMES))
    } else {
        return None;
    };
    let advice = format!("correct {NAMES}: names separated by commas, without quotes and spaces");
    Some(Finding::warning(format!("{text}; interfaces: {shown}"), advice))
}

fn comm_id_port(settings: &Settings, port: u16) -> Option<Finding> {
    let is_other = !settings.value(COMM_ID)?.ends_with(&format!(":{port}"));
    let finding = if port == 0 { Finding::problem } else { Finding::warning };
    let text = format!("{}: the library reads the port {port}", settings.text(COMM_ID));
    let advice = "write a port from 1 to 65535 after a colon, the same for all ranks";
    is_other.then(|| finding(text, advice))
}

/// A comma-separated list of prefixes. A leading `^` excludes them, and a leading `=` makes them whole names.
struct List<'a> {
    excludes: bool,
    is_exact: bool,
    entries: Vec<&'a str>,
}

impl<'a> List<'a> {
    fn parse(text: &'a str) -> Self {
        let (excludes, text) = text.strip_prefix('^').map_or((false, text), |rest| (true, rest));
        let (is_exact, text) = text.strip_prefix('=').map_or((false, text), |rest| (true, rest));
        Self { excludes, is_exact, entries: text.split(',').filter(|entry| !entry.is_empty()).collect() }
    }

    /// Returns whether an entry matches a name. A port after `:` is ignored.
    fn is(&self, entry: &str, name: &str) -> bool {
        let entry = entry.split(':').next().unwrap_or_default();
        if self.is_exact { name == entry } else { name.starts_with(entry) }
    }

    fn has(&self, name: &str) -> bool {
        (self.entries.is_empty() || self.entries.iter().any(|entry| self.is(entry, name))) != self.excludes
    }
}

fn rdma(system: &System, settings: &Settings) -> Vec<Finding> {
    let devices = system.names("/sys/class/infiniband");
    if devices.is_empty() && !system.exists("/sys/class") {
        let advice = "mount sysfs at /sys";
        return vec![Finding::warning("/sys/class is not there: NCCL cannot see RDMA devices", advice)];
    }
    if devices.is_empty() {
        let text = format!("{}: there is no RDMA device, so NCCL uses sockets", settings.text(HCA));
        let advice = format!("load the driver of the device, give it to the container, or unset {HCA}");
        return vec![match settings.value(HCA) {
            Some(_) => Finding::warning(text, advice),
            None => Finding::ok("RDMA devices: none; between machines, NCCL uses sockets"),
        }];
    }
    let ports = active_ports(system);
    if ports.is_empty() {
        let advice = "see `ibstat`; NCCL uses sockets until a port is active";
        let text = format!("RDMA devices without a link: {}", devices.join(", "));
        return vec![Finding::warning(text, advice)];
    }
    let shown = ports.iter().map(|(device, port)| format!("{device}:{port}")).join(", ");
    if settings.is_on("NCCL_IB_DISABLE") {
        let text = format!("{}: the RDMA devices {shown} are not used", settings.text("NCCL_IB_DISABLE"));
        let advice = "unset NCCL_IB_DISABLE once the fault that it was set for is found";
        return vec![Finding::warning(text, advice)];
    }
    let mut findings = Vec::new();
    if !system.names("/dev/infiniband").iter().any(|name| name.starts_with("uverbs")) {
        let text = format!("the RDMA devices {shown} have no files in /dev/infiniband");
        let advice =
            "give them to the container: `--device=/dev/infiniband`, or the device plugin of Kubernetes";
        findings.push(Finding::warning(text, advice));
    }
    let Some(value) = settings.value(HCA) else {
        findings.push(Finding::ok(format!("RDMA devices with a link: {shown}")));
        return findings;
    };
    // NCCL logs its choice only when it creates a communicator, so this applies its rule: prefixes of names, with ports.
    let list = List::parse(value);
    let is_port = |entry: &str, port: u32| {
        let wanted = entry.split(':').nth(1).filter(|wanted| !wanted.is_empty());
        wanted.is_none_or(|wanted| [-1, i64::from(port)].contains(&integer(wanted).0))
    };
    let names = |entry: &str, (name, port): &(String, u32)| list.is(entry, name) && is_port(entry, *port);
    let is_named = |port: &&(String, u32)| list.entries.iter().any(|entry| names(entry, port));
    let is_selected = |port: &&(String, u32)| (list.entries.is_empty() || is_named(port)) != list.excludes;
    let selected = ports.iter().filter(is_selected).map(|(name, port)| format!("{name}:{port}")).join(", ");
    let idle = list.entries.iter().filter(|_| !list.excludes);
    let idle = idle.filter(|entry| !ports.iter().any(|port| names(entry, port)));
    let idle = idle.map(|entry| format!("{entry:?}")).join(", ");
    let idle = (!idle.is_empty()).then(|| format!("no port with a link is {idle}"));
    let text = settings.text(HCA);
    let advice = format!("correct {HCA}; with a link: {shown}");
    findings.push(match (selected.is_empty(), idle) {
        (true, idle) => {
            let reason = idle.map(|idle| format!(" ({idle})")).unwrap_or_default();
            Finding::warning(format!("{text} selects no RDMA device{reason}, so NCCL uses sockets"), advice)
        }
        (false, Some(idle)) => Finding::warning(format!("{text} selects {selected}, but {idle}"), advice),
        (false, None) => Finding::ok(format!("{text} selects {selected}")),
    });
    findings
}

/// Checks whether network cards can access GPU memory: through a kernel module, or through DMA-BUF (Linux 5.12 and newer).
fn direct(system: &System) -> Finding {
    let module = ["nvidia_peermem", "nv_peer_mem"]
        .into_iter()
        .find(|name| system.exists(format!("/sys/module/{name}")));
    if let Some(module) = module {
        return Finding::ok(format!("GPUDirect RDMA by the module {module}"));
    }
    let release = system.line("/proc/sys/kernel/osrelease").unwrap_or_default();
    let mut numbers = release.split(['.', '-']).map(|number| number.parse::<u32>().unwrap_or(0));
    let kernel = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
    if kernel >= (5, 12) {
        let text = "GPUDirect RDMA by DMA-BUF, if the driver has open modules; the kernel is";
        return Finding::ok(format!("{text} {release}"));
    }
    let text = "no GPUDirect RDMA: the module nvidia_peermem is not loaded, and the kernel";
    Finding::warning(format!("{text} {release} has no DMA-BUF"), "load the module: `modprobe nvidia_peermem`")
}

const RAS_ADDRESS: &str = "localhost:28028";
/// The time limit for connecting, and for the reply. A stopped process accepts connections but never replies.
const REPLY_LIMIT: Duration = Duration::from_millis(100);
const RESOLVED_WITHIN: Duration = Duration::from_secs(2);

/// Checks whether the RAS port is free, or used by a job or another program.
pub(super) fn ras(settings: &Settings) -> Finding {
    if settings.value("NCCL_RAS_ENABLE").is_some_and(|value| value != "1") {
        let set = settings.text("NCCL_RAS_ENABLE");
        return Finding::ok(format!("{set}: jobs do not serve RAS requests"));
    }
    let address = settings.value("NCCL_RAS_ADDR").unwrap_or(RAS_ADDRESS);
    let advice = "give each job its own port with NCCL_RAS_ADDR=localhost:PORT";
    let deadline = Deadline::after(RESOLVED_WITHIN);
    let addresses = parse_address(address).and_then(|(host, port)| resolve(host, port, &deadline).ok());
    let Some(addresses) = addresses else {
        let expected = format!("expected a host of this network and a port, such as {RAS_ADDRESS}");
        return Finding::warning(format!("no address of {address}; {expected}"), advice);
    };
    let state = addresses.iter().map(state_of).max().unwrap_or(RasPort::Unknown);
    let text = match state {
        RasPort::Unknown => format!("{address} cannot be reached, so it is not known whether it is free"),
        RasPort::Free => format!("{address} is free"),
        RasPort::Ras => {
            format!("an NCCL job listens at {address}: query it with `nccl ras --addr {address}`")
        }
        RasPort::Silent => {
            format!("at {address}, something accepts connections and does not respond as NCCL's RAS")
        }
    };
    Finding::warning_if(matches!(state, RasPort::Unknown | RasPort::Silent), text, advice)
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum RasPort {
    /// The connection was neither accepted nor refused.
    Unknown,
    Free,
    Silent,
    Ras,
}

fn state_of(address: &SocketAddr) -> RasPort {
    let mut stream = match TcpStream::connect_timeout(address, REPLY_LIMIT) {
        Ok(stream) => stream,
        Err(error) if error.kind() == ErrorKind::ConnectionRefused => return RasPort::Free,
        Err(_) => return RasPort::Unknown,
    };
    let mut reply = [0; 16];
    let replied = stream
        .set_read_timeout(Some(REPLY_LIMIT))
        .and_then(|()| stream.set_write_timeout(Some(REPLY_LIMIT)))
        .and_then(|()| stream.write_all(b"CLIENT PROTOCOL 2\n"))
        .and_then(|()| stream.read_exact(&mut reply));
    if replied.is_ok() && reply.starts_with(b"SERVER PROTOCOL ") { RasPort::Ras } else { RasPort::Silent }
}
