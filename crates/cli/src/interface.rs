//! The network interfaces of a machine.

use std::collections::BTreeMap;
use std::fmt;
use std::net::{IpAddr, SocketAddr};

use nix::ifaddrs::getifaddrs;
use nix::net::if_::InterfaceFlags;

/// An interface with its addresses.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Interface {
    pub(crate) name: String,
    pub(crate) is_up: bool,
    /// True if it has a carrier too.
    pub(crate) is_running: bool,
    pub(crate) addresses: Vec<IpAddr>,
}

impl Interface {
    /// Returns the interfaces of this machine, by name.
    pub(crate) fn all() -> Result<Vec<Self>, String> {
        let mut all = BTreeMap::new();
        for found in getifaddrs().map_err(|error| error.desc().to_owned())? {
            let interface = all.entry(found.interface_name.clone()).or_insert_with(|| Self {
                name: found.interface_name,
                is_up: found.flags.contains(InterfaceFlags::IFF_UP),
                is_running: found.flags.contains(InterfaceFlags::IFF_RUNNING),
                addresses: Vec::new(),
            });
            let address = found.address.as_ref();
            let v4 =
                address.and_then(|address| address.as_sockaddr_in()).map(|v4| SocketAddr::V4((*v4).into()));
            let v6 =
                address.and_then(|address| address.as_sockaddr_in6()).map(|v6| SocketAddr::V6((*v6).into()));
            interface.addresses.extend(v4.or(v6).map(|address| address.ip()));
        }
        Ok(all.into_values().collect())
    }

    /// Returns an interface that is `running`, `unplugged` or `down`, with an address or none.
    #[cfg(test)]
    pub(crate) fn new(name: &str, state: &str, address: Option<&str>) -> Self {
        let addresses = address.iter().map(|address| address.parse().unwrap()).collect();
        Self { name: name.into(), is_up: state != "down", is_running: state == "running", addresses }
    }
}

/// Formats it as `eth0 10.0.0.1 (down)`.
impl fmt::Display for Interface {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)?;
        self.addresses.iter().try_for_each(|address| write!(f, " {address}"))?;
        match (self.is_up, self.is_running, self.addresses.is_empty()) {
            (false, ..) => f.write_str(" (down)"),
            (_, false, _) => f.write_str(" (no carrier)"),
            (.., true) => f.write_str(" (no address)"),
            _ => Ok(()),
        }
    }
}
