//! The network interfaces of a machine.

use std::net::IpAddr;

use nix::ifaddrs::getifaddrs;
use nix::net::if_::InterfaceFlags;
use nix::sys::socket::SockaddrStorage;

/// An interface with one of its addresses, or without one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Interface {
    pub(crate) name: String,
    pub(crate) is_up: bool,
    /// True if it has a carrier too.
    pub(crate) is_running: bool,
    pub(crate) address: Option<Address>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Address {
    pub(crate) ip: IpAddr,
    pub(crate) mask: IpAddr,
    /// The index of the interface, if the address is of its link alone.
    pub(crate) scope: u32,
}

impl Interface {
    /// Returns the interfaces of this machine in the kernel's order, from which NCCL takes the first.
    pub(crate) fn all() -> Result<Vec<Self>, String> {
        let found = getifaddrs().map_err(|error| error.desc().to_owned())?;
        let interface = |found: nix::ifaddrs::InterfaceAddress| {
            let ip = found.address.as_ref().and_then(ip);
            let mask = found.netmask.as_ref().and_then(ip_alone);
            Self {
                name: found.interface_name,
                is_up: found.flags.contains(InterfaceFlags::IFF_UP),
                is_running: found.flags.contains(InterfaceFlags::IFF_RUNNING),
                address: ip.zip(mask).map(|((ip, scope), mask)| Address { ip, mask, scope }),
            }
        };
        Ok(found.map(interface).collect())
    }

    /// Returns an interface that is `running`, `unplugged` or `down`, with an address such as `10.0.0.1/24`.
    #[cfg(test)]
    pub(crate) fn new(name: &str, state: &str, address: Option<&str>) -> Self {
        let address = address.map(|address| {
            let (ip, bits) = address.split_once('/').unwrap();
            let (ip, bits): (IpAddr, u32) = (ip.parse().unwrap(), bits.parse().unwrap());
            let mask = match ip {
                IpAddr::V4(_) => IpAddr::from((u32::MAX << (32 - bits)).to_be_bytes()),
                IpAddr::V6(_) => IpAddr::from((u128::MAX << (128 - bits)).to_be_bytes()),
            };
            Address { ip, mask, scope: 0 }
        });
        Self { name: name.into(), is_up: state != "down", is_running: state == "running", address }
    }

    pub(crate) fn ip(&self) -> Option<IpAddr> {
        self.address.map(|address| address.ip)
    }
}

impl Address {
    /// Returns whether `other` is in the network of this address.
    pub(crate) fn is_beside(&self, other: IpAddr, scope: u32) -> bool {
        match (self.ip, self.mask, other) {
            (IpAddr::V4(own), IpAddr::V4(mask), IpAddr::V4(other)) => own & mask == other & mask,
            (IpAddr::V6(own), IpAddr::V6(mask), IpAddr::V6(other)) => {
                own & mask == other & mask && self.scope == scope
            }
            _ => false,
        }
    }
}

fn ip(address: &SockaddrStorage) -> Option<(IpAddr, u32)> {
    let v4 = address.as_sockaddr_in().map(|address| (address.ip().into(), 0));
    v4.or_else(|| address.as_sockaddr_in6().map(|address| (address.ip().into(), address.scope_id())))
}

fn ip_alone(address: &SockaddrStorage) -> Option<IpAddr> {
    ip(address).map(|(ip, _)| ip)
}
