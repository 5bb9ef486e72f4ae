//! The network interfaces that NCCL takes, by its own rules.

use std::net::{IpAddr, Ipv6Addr, ToSocketAddrs};

use libnccl::Version;

use super::finding::Finding;
use super::library::Check;
use super::selection::Selection;
use crate::interface::Interface;
use crate::settings::{Settings, integer};
use crate::system::System;

const NAMES: &str = "NCCL_SOCKET_IFNAME";
const FAMILY: &str = "NCCL_SOCKET_FAMILY";
const COMM_ID: &str = "NCCL_COMM_ID";
/// The release from which on NCCL looks for a carrier, and takes `virbr` last.
const RUNNING: Version = Version::new(2, 28, 3);
/// The interfaces that NCCL has room for, and the entries of a list.
const ROOM: usize = 16;
/// The port of a `NCCL_COMM_ID` without one.
const NO_PORT: i64 = 65535;

/// The inputs of the choice.
#[derive(Debug)]
struct Rules<'a> {
    interfaces: &'a [Interface],
    release: Version,
    /// The value of `NCCL_SOCKET_IFNAME`, if it is long enough for NCCL to regard it.
    names: Option<&'a str>,
    family: Family,
    /// The address in `NCCL_COMM_ID`, or the mistake in it.
    comm_id: Option<Result<CommId, String>>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Family {
    Any,
    V4,
    V6,
}

/// The address that `NCCL_COMM_ID` names.
#[derive(Debug, PartialEq, Eq)]
struct CommId {
    ip: IpAddr,
    scope: u32,
    /// `None` if there is none.
    port: Option<i64>,
}

impl<'a> Rules<'a> {
    fn new(interfaces: &'a [Interface], settings: &'a Settings, release: Version) -> Self {
        Self {
            interfaces,
            release,
            names: settings.value(NAMES).filter(|value| value.len() > 1),
            family: match settings.value(FAMILY) {
                Some("AF_INET") => Family::V4,
                Some("AF_INET6") => Family::V6,
                _ => Family::Any,
            },
            comm_id: settings.get(COMM_ID).map(|setting| CommId::parse(&setting.value, interfaces)),
        }
    }

    fn is_usable(&self, interface: &Interface) -> bool {
        let Some(ip) = interface.ip() else { return false };
        let is_family = match self.family {
            Family::Any => true,
            Family::V4 => ip.is_ipv4(),
            Family::V6 => ip.is_ipv6(),
        };
        let is_skipped = ip.is_ipv6() && ip.is_loopback();
        (interface.is_running || self.release < RUNNING) && is_family && !is_skipped
    }

    /// Returns the interfaces that a list selects, each with its first address.
    fn select(&self, list: &str) -> Vec<&'a Interface> {
        let selection = self.selection(list);
        let mut selected: Vec<&Interface> = Vec::new();
        for interface in self.interfaces {
            let is_new = selected.iter().all(|other| other.name != interface.name);
            if is_new && self.is_usable(interface) && selection.has(&interface.name, None) {
                selected.push(interface);
            }
        }
        selected.truncate(ROOM);
        selected
    }

    fn selection<'b>(&self, list: &'b str) -> Selection<'b> {
        Selection::parse(list, ROOM, self.release)
    }

    /// Returns the interfaces for the data that goes through sockets.
    fn chosen(&self) -> Vec<&'a Interface> {
        if let Some(names) = self.names {
            return self.select(names);
        }
        let infiniband = self.select("ib");
        if !infiniband.is_empty() {
            return infiniband;
        }
        if let Some(Ok(id)) = &self.comm_id
            && let Some(beside) = self.beside(id)
        {
            return vec![beside];
        }
        let lists: &[&str] = match self.release < RUNNING {
            true => &["^docker,lo", "docker", "lo"],
            false => &["^docker,lo,virbr", "docker", "lo", "virbr"],
        };
        let mut chosen = lists.iter().map(|list| self.select(list));
        chosen.find(|chosen| !chosen.is_empty()).unwrap_or_default()
    }

    /// Returns the interface at which the ranks meet; `None` if NCCL finds none, and makes no id.
    fn meeting(&self) -> Result<Option<&'a Interface>, &str> {
        match &self.comm_id {
            Some(Ok(id)) => Ok(self.beside(id)),
            Some(Err(problem)) => Err(problem),
            None => Ok(self.chosen().first().copied()),
        }
    }

    /// Returns the first interface in one network with the address, whatever its state and name.
    fn beside(&self, id: &CommId) -> Option<&'a Interface> {
        let is_beside = |interface: &&Interface| {
            interface.address.is_some_and(|address| address.is_beside(id.ip, id.scope))
        };
        self.interfaces.iter().find(is_beside)
    }

    /// Returns the reason why an interface is not taken although it is named; `None` if it is.
    fn reason(&self, name: &str) -> Option<String> {
        let of_name = || self.interfaces.iter().filter(|interface| interface.name == name);
        if of_name().any(|interface| self.is_usable(interface)) {
            return None;
        }
        Some(if self.release >= RUNNING && !of_name().any(|interface| interface.is_up) {
            format!("{name} is down")
        } else if self.release >= RUNNING && !of_name().any(|interface| interface.is_running) {
            format!("{name} has no carrier")
        } else {
            let kind = match self.family {
                Family::Any => "address",
                Family::V4 => "IPv4 address",
                Family::V6 => "IPv6 address",
            };
            // Which NCCL takes for no interface's.
            let loopback = of_name().any(|interface| interface.ip() == Some(Ipv6Addr::LOCALHOST.into()));
            format!("{name} has no {kind}{}", if loopback { " but ::1" } else { "" })
        })
    }

    /// Returns the names of all interfaces, each once.
    fn names(&self) -> Vec<&'a str> {
        let mut names: Vec<&str> = Vec::new();
        for Interface { name, .. } in self.interfaces {
            if !names.contains(&name.as_str()) {
                names.push(name);
            }
        }
        names
    }

    /// Returns the reasons why entries of a list without `^` select nothing; none for those that select something.
    fn idle(&self, selection: &Selection) -> Vec<String> {
        let (mut unknown, mut reasons) = (Vec::new(), Vec::new());
        for entry in &selection.entries {
            let mut named = self.names();
            named.retain(|name| selection.names(*entry, name, None));
            let found: Option<Vec<_>> = named.iter().map(|name| self.reason(name)).collect();
            match found {
                Some(found) if found.is_empty() => unknown.push(entry.shown()),
                found => reasons.extend(found.into_iter().flatten()),
            }
        }
        if !unknown.is_empty() {
            reasons.insert(0, format!("there is no interface {}", unknown.join(", ")));
        }
        reasons
    }

    /// Returns the reasons why the list selects nothing, or the choice without one.
    fn reasons(&self) -> String {
        let selection = self.names.map(|names| self.selection(names));
        let reasons: Vec<_> = match &selection {
            Some(selection) if !selection.excludes && !selection.entries.is_empty() => self.idle(selection),
            _ => {
                let is_left =
                    |name: &&str| selection.as_ref().is_none_or(|selection| selection.has(name, None));
                let mut left = self.names();
                left.retain(is_left);
                if left.is_empty() && selection.is_some() {
                    let all = self.names();
                    vec![format!("it leaves out all there are: {}", list(all.iter().copied()))]
                } else {
                    left.into_iter().filter_map(|name| self.reason(name)).collect()
                }
            }
        };
        reasons.join(", ")
    }
}

impl CommId {
    /// Parses the value as NCCL does; host names are looked up.
    fn parse(text: &str, interfaces: &[Interface]) -> Result<Self, String> {
        let expected = "expected ADDRESS:PORT, [IPV6]:PORT or HOST:PORT";
        if text.len() < 2 {
            return Err(expected.into());
        }
        if let Some(rest) = text.strip_prefix('[') {
            let (ip, port) = rest.split_once(']').ok_or(format!("there is no ]; {expected}"))?;
            let (ip, name) = ip.split_once('%').map_or((ip, None), |(ip, name)| (ip, Some(name)));
            let ip =
                ip.parse().map_err(|_| format!("{ip:?} is no IPv6 address, which NCCL does not notice"))?;
            let of_link = |interface: &&Interface| Some(interface.name.as_str()) == name;
            let mut scopes = interfaces.iter().filter(of_link).filter_map(|interface| interface.address);
            let scope = scopes.find_map(|address| Some(address.scope).filter(|scope| *scope != 0));
            // NCCL skips one character, whatever it is.
            let port = port.get(1..).map_or(0, |port| integer(port, 10));
            return Ok(Self { ip: IpAddr::V6(ip), scope: scope.unwrap_or(0), port: Some(port) });
        }
        let Some(first) = text.split(',').find(|entry| !entry.is_empty() && !entry.starts_with(':')) else {
            return Err(expected.into());
        };
        let (host, port) = first.split_once(':').map_or((first, None), |(host, port)| (host, Some(port)));
        let found = (host, 0).to_socket_addrs().map(|mut found| found.next());
        match found {
            Ok(Some(address)) => {
                Ok(Self { ip: address.ip(), scope: 0, port: port.map(|port| integer(port, 10)) })
            }
            Ok(None) => Err(format!("{host:?} has no address")),
            Err(error) => Err(format!("{host:?}: {error}; {expected}")),
        }
    }
}

fn list<'a>(names: impl Iterator<Item = &'a str>) -> String {
    names.collect::<Vec<_>>().join(", ")
}

/// Returns whether other machines cannot be reached through an interface, whatever its address.
fn is_local(name: &str) -> bool {
    name == "lo" || name.starts_with("docker") || name.starts_with("virbr")
}

/// Returns the findings; `id` is what the library answered when it was asked for a unique id.
pub(super) fn findings(
    system: &System,
    settings: &Settings,
    release: Version,
    id: Option<&Check>,
) -> Vec<Finding> {
    match &system.interfaces {
        Ok(interfaces) => {
            Examination { rules: Rules::new(interfaces, settings, release), settings, id }.findings()
        }
        Err(error) => vec![Finding::warning(
            format!("the network interfaces cannot be read: {error}"),
            "allow netlink sockets, through which NCCL finds its interfaces too",
        )],
    }
}

struct Examination<'a> {
    rules: Rules<'a>,
    settings: &'a Settings,
    id: Option<&'a Check>,
}

impl Examination<'_> {
    fn findings(&self) -> Vec<Finding> {
        let (rules, settings) = (&self.rules, self.settings);
        let mut findings = Vec::new();
        let chosen = rules.chosen();
        let meeting = rules.meeting();
        match &meeting {
            Err(problem) => findings.push(Finding::problem(
                format!("{}: {problem}", settings.text(COMM_ID)),
                "write the address and port of rank 0, the same for all ranks, or unset NCCL_COMM_ID",
            )),
            Ok(None) if rules.comm_id.is_some() => findings.push(Finding::problem(
                format!(
                    "{}: no interface is in the network of this address: {}",
                    settings.text(COMM_ID),
                    list(rules.names().into_iter())
                ),
                "name an address of rank 0 in a network that all machines are in, or unset NCCL_COMM_ID",
            )),
            Ok(_) => {}
        }
        if chosen.is_empty() {
            findings.push(self.nothing());
        } else if let Ok(Some(meeting)) = meeting {
            findings.extend(self.chosen(&chosen, meeting));
        }
        findings.extend(self.odd_values(chosen.is_empty()));
        findings
    }

    fn nothing(&self) -> Finding {
        let reasons = self.rules.reasons();
        if let Some(mismatch) = self.mismatch(None) {
            return mismatch;
        }
        if self.rules.names.is_some() {
            Finding::problem(
                format!("{} selects nothing: {reasons}", self.settings.text(NAMES)),
                format!(
                    "name interfaces that are up and have an address in {NAMES}, by comma, without quotes and spaces, or unset \
                     it and let NCCL choose"
                ),
            )
        } else {
            let reasons = if reasons.is_empty() { "there is none".into() } else { reasons };
            Finding::problem(
                format!("NCCL finds no network interface, and needs one even within a machine: {reasons}"),
                "bring one up: `ip link set lo up`",
            )
        }
    }

    fn chosen(&self, chosen: &[&Interface], meeting: &Interface) -> Vec<Finding> {
        let Self { rules, settings, .. } = self;
        let names = list(chosen.iter().map(|interface| interface.name.as_str()));
        let taken = match rules.names {
            Some(_) => format!("{} selects {names}", settings.text(NAMES)),
            None if chosen.len() == 1 => format!("NCCL takes {names}"),
            None => format!("NCCL chooses among {names}"),
        };
        let place = meeting.ip().map(|ip| format!("{ip} ({})", meeting.name)).unwrap_or_default();
        let by =
            rules.comm_id.as_ref().map(|_| format!(" by {}", settings.text(COMM_ID))).unwrap_or_default();
        let text = format!("{taken}; ranks meet at {place}{by}");
        // Nobody has asked a library.
        let text = match self.id {
            None => format!("{text}, by the rules of NCCL {}", rules.release),
            Some(_) => text,
        };
        if let Some(mismatch) = self.mismatch(meeting.ip()) {
            return vec![mismatch];
        }
        if let Some(Check { problem: Some(_), .. }) = self.id {
            return vec![Finding::warning(
                format!("by NCCL's rules, {text}; but this library makes no unique id"),
                "set NCCL_DEBUG=INFO to see why",
            )];
        }
        if rules.names.is_none() && rules.comm_id.is_none() && rules.names() == ["lo"] {
            return vec![Finding::ok(format!(
                "{text}: there is no other, so ranks are on this machine alone"
            ))];
        }
        let name_another =
            format!("for a job on several machines, name an interface that reaches them in {NAMES}");
        let mut findings = Vec::new();
        if meeting.ip().is_some_and(|ip| ip.is_loopback()) {
            let passed: Vec<_> = rules.names().into_iter().filter_map(|name| rules.reason(name)).collect();
            let passed = if passed.is_empty() { String::new() } else { format!("; {}", passed.join(", ")) };
            findings.push(Finding::warning(
                format!("{text}, which other machines cannot reach{passed}"),
                name_another.clone(),
            ));
        }
        let excludes = rules.names.is_some_and(|names| names.starts_with('^'));
        let local: Vec<_> = chosen
            .iter()
            .map(|interface| interface.name.as_str())
            .filter(|name| is_local(name) && (excludes || *name == "lo"))
            .collect();
        if findings.is_empty() && !local.is_empty() {
            findings.push(Finding::warning(
                format!("{text}; of these, {} does not reach other machines", list(local.into_iter())),
                name_another,
            ));
        }
        let idle: Vec<_> =
            chosen.iter().chain([&meeting]).filter(|interface| !interface.is_running).collect();
        if let Some(idle) = idle.first() {
            findings.push(Finding::warning(
                format!(
                    "{text}; {} has no carrier, which NCCL {} does not look for here",
                    idle.name, rules.release
                ),
                format!("bring it up, or leave it out in {NAMES}"),
            ));
        }
        if findings.is_empty() {
            findings.push(Finding::ok(text));
        }
        findings
    }

    /// Returns a warning if the library's unique id has another address than the rules give.
    fn mismatch(&self, expected: Option<IpAddr>) -> Option<Finding> {
        let made = self.id?.address?;
        if self.rules.comm_id.is_some() || expected == Some(made) {
            return None;
        }
        let interface = self.rules.interfaces.iter().find(|interface| interface.ip() == Some(made));
        let interface = interface.map(|interface| format!(" ({})", interface.name)).unwrap_or_default();
        let expected = expected.map_or("none".into(), |expected| expected.to_string());
        Some(Finding::warning(
            format!(
                "ranks meet at {made}{interface}, as the library's unique id says; expected {expected} by NCCL's rules"
            ),
            format!("see that the other machines reach {made}, or name an interface in {NAMES}"),
        ))
    }

    /// Returns the findings about values that have another effect than one may think.
    fn odd_values(&self, is_nothing: bool) -> Vec<Finding> {
        let Self { rules, settings, .. } = self;
        let mut findings = Vec::new();
        if let Some(value) = settings.value(NAMES).filter(|value| value.len() == 1) {
            findings.push(Finding::warning(
                format!("{}: NCCL ignores a value of one character, {value:?}", settings.text(NAMES)),
                format!("write at least two characters of the name in {NAMES}"),
            ));
        }
        if let Some(value) = settings.value(FAMILY).filter(|_| rules.family == Family::Any) {
            findings.push(Finding::warning(
                format!("{}: NCCL ignores {value:?}; expected AF_INET or AF_INET6", settings.text(FAMILY)),
                format!("write AF_INET for IPv4, AF_INET6 for IPv6, or unset {FAMILY}"),
            ));
        }
        if let Some(names) = rules.names {
            let selection = rules.selection(names);
            if selection.left_out > 0 {
                findings.push(Finding::warning(
                    format!(
                        "{}: NCCL reads {ROOM} entries, and leaves out {}",
                        settings.text(NAMES),
                        selection.left_out
                    ),
                    format!("write at most {ROOM} entries in {NAMES}, or beginnings of several names"),
                ));
            }
            let idle = if selection.excludes || is_nothing { Vec::new() } else { rules.idle(&selection) };
            if !idle.is_empty() {
                findings.push(Finding::warning(
                    format!("{}: {}", settings.text(NAMES), idle.join(", ")),
                    format!(
                        "correct or remove the entry in {NAMES}: names by comma, without quotes and spaces"
                    ),
                ));
            }
        }
        if let Some(Ok(CommId { port, .. })) = rules.comm_id
            && !port.is_some_and(|port| (1..=NO_PORT).contains(&port))
        {
            let text = settings.text(COMM_ID);
            let advice = format!("write a port from 1 to {NO_PORT} after a colon, the same for all ranks");
            findings.push(match port {
                None => Finding::warning(format!("{text} has no port; NCCL takes {NO_PORT}"), advice),
                Some(port) => Finding::problem(format!("{text}: NCCL reads the port {port}"), advice),
            });
        }
        findings
    }
}

#[cfg(test)]
mod tests {
    use super::{COMM_ID, CommId, FAMILY, NAMES, Rules};
    use crate::interface::Interface;
    use crate::settings::Settings;
    use crate::system::System;

    /// Interfaces as `NAME STATE [ADDRESS]`.
    const MACHINE: [&str; 9] = [
        "lo running 127.0.0.1/8",
        "docker0 unplugged 172.17.0.1/16",
        "virbr0 running 192.168.122.1/24",
        "eth0 down 10.0.0.1/24",
        "eth1 running",
        "eth2 running 10.2.0.1/24",
        "eth2 running fd02::1/64",
        "eth3 running fd03::1/64",
        "lo running ::1/128",
    ];

    /// Returns where the ranks meet, and the interfaces for data.
    fn choice(machine: &[&str], release: &str, variables: &[(&str, &str)]) -> String {
        let interfaces: Vec<_> = machine
            .iter()
            .map(|text| {
                let mut words = text.split(' ');
                let mut next = || words.next();
                Interface::new(next().unwrap(), next().unwrap(), next())
            })
            .collect();
        let release = release.parse().unwrap();
        let root = tempfile::tempdir().unwrap();
        let settings = Settings::read(&System::at(root.path(), variables), release);
        let rules = Rules::new(&interfaces, &settings, release);
        let meeting = rules.meeting().unwrap().and_then(Interface::ip);
        let meeting = meeting.map_or("nowhere".into(), |ip| ip.to_string());
        let chosen = rules.chosen().into_iter().map(|interface| interface.name.clone());
        format!("{meeting}: {}", chosen.collect::<Vec<_>>().join(" "))
    }

    #[test]
    fn interface_is_the_first_that_the_release_takes() {
        const OLD: &str = "2.27.7";
        const NEW: &str = "2.28.3";
        for (release, variables, expected) in [
            (OLD, &[][..], "192.168.122.1: virbr0 eth0 eth2 eth3"),
            (NEW, &[], "10.2.0.1: eth2 eth3"),
            (OLD, &[(NAMES, "eth")], "10.0.0.1: eth0 eth2 eth3"),
            (NEW, &[(NAMES, "eth")], "10.2.0.1: eth2 eth3"),
            (NEW, &[(NAMES, "eth3,eth2")], "10.2.0.1: eth2 eth3"),
            (NEW, &[(NAMES, "^eth")], "127.0.0.1: lo virbr0"),
            (OLD, &[(NAMES, "^eth,virbr")], "127.0.0.1: lo docker0"),
            (NEW, &[(NAMES, "docker0")], "nowhere: "),
            (OLD, &[(NAMES, "docker0")], "172.17.0.1: docker0"),
            (NEW, &[(NAMES, "=eth")], "nowhere: "),
            (NEW, &[(NAMES, "eth1")], "nowhere: "),
            (NEW, &[(NAMES, "l")], "10.2.0.1: eth2 eth3"),
            (NEW, &[(FAMILY, "AF_INET6")], "fd02::1: eth2 eth3"),
            (NEW, &[(FAMILY, "AF_INET")], "10.2.0.1: eth2"),
            (NEW, &[(FAMILY, "AF_INET6"), (NAMES, "lo")], "nowhere: "),
            (NEW, &[(FAMILY, "inet6"), (NAMES, "lo")], "127.0.0.1: lo"),
            (NEW, &[(COMM_ID, "[fd03::9]:1")], "fd03::1: eth3"),
            (NEW, &[(COMM_ID, "10.0.0.9:1")], "10.0.0.1: eth0"),
            (NEW, &[(COMM_ID, "10.0.0.9:1"), (NAMES, "eth")], "10.0.0.1: eth2 eth3"),
            (NEW, &[(COMM_ID, "10.9.0.9:1")], "nowhere: eth2 eth3"),
            (NEW, &[(COMM_ID, "[::1]:1")], "::1: lo"),
        ] {
            assert_eq!(choice(&MACHINE, release, variables), expected, "{release} {variables:?}");
        }
    }

    #[test]
    fn bridges_and_lo_are_last() {
        let all = ["lo running 127.0.0.1/8", "virbr0 running 10.1.0.1/24", "docker0 running 10.2.0.1/24"];
        assert_eq!(choice(&all, "2.28.3", &[]), "10.2.0.1: docker0");
        assert_eq!(choice(&all, "2.27.7", &[]), "10.1.0.1: virbr0");
        assert_eq!(choice(&all[..2], "2.28.3", &[]), "127.0.0.1: lo");
        assert_eq!(choice(&all[1..2], "2.28.3", &[]), "10.1.0.1: virbr0");
        let infiniband = ["eth0 running 10.3.0.1/24", "ib0 running 10.4.0.1/24", "ibs1 running 10.5.0.1/24"];
        assert_eq!(choice(&infiniband, "2.28.3", &[]), "10.4.0.1: ib0 ibs1");
        assert_eq!(choice(&infiniband, "2.28.3", &[(COMM_ID, "10.3.0.9:1")]), "10.3.0.1: ib0 ibs1");
    }

    #[test]
    fn comm_id_is_an_address_and_a_port() {
        let parse = |text| CommId::parse(text, &[]).map(|id| (id.ip.to_string(), id.port));
        for (text, ip, port) in [
            ("10.0.0.1:5000", "10.0.0.1", Some(5000)),
            ("10.0.0.1", "10.0.0.1", None),
            ("10.0.0.1:", "10.0.0.1", Some(0)),
            ("10.0.0.1:5000,10.0.0.2:1", "10.0.0.1", Some(5000)),
            ("[fd00::1]:5000", "fd00::1", Some(5000)),
            ("[fe80::1%eth0]:5000", "fe80::1", Some(5000)),
            ("[fd00::1]", "fd00::1", Some(0)),
        ] {
            assert_eq!(parse(text), Ok((ip.into(), port)), "{text}");
        }
        for text in ["", "x", ",", ":1", "[fd00::1", "[10.0.0.1]:1", "tcp://10.0.0.1:1"] {
            assert!(parse(text).is_err(), "{text}");
        }
    }
}
