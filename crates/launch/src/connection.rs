//! Connections: to other hosts, by name and with a deadline, and from them.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream, ToSocketAddrs, UdpSocket};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

pub use super::deadline::Deadline;

/// Returns the addresses of a host, IPv6 and IPv4.
pub fn resolve(host: &str, port: u16, deadline: &Deadline) -> Result<Vec<SocketAddr>, String> {
    if let Ok(address) = host.parse::<IpAddr>() {
        return Ok(vec![SocketAddr::new(address, port)]);
    }
    // The system's resolver has time limits of its own, which are longer than most deadlines.
    // The thread may outlast this call.
    libnccl::internal::keep_loaded();
    let (sender, receiver) = mpsc::sync_channel(1);
    let name = host.to_owned();
    let resolver = thread::Builder::new().name("libnccl-resolver".into()).spawn(move || {
        let _ = sender.send((name.as_str(), port).to_socket_addrs().map(Vec::from_iter));
    });
    resolver.map_err(|error| format!("no thread to resolve {host}: {error}"))?;
    match receiver.recv_timeout(deadline.remaining()) {
        Ok(Ok(addresses)) if addresses.is_empty() => Err(format!("{host} has no address")),
        Ok(Ok(addresses)) => Ok(addresses),
        Ok(Err(error)) => Err(format!("{host}: {error}")),
        Err(_) => Err(format!("{host} was not resolved in time")),
    }
}

/// Connects, by the deadline and within `limit`.
pub fn connect(address: SocketAddr, limit: Duration, deadline: &Deadline) -> io::Result<TcpStream> {
    let limit = limit.min(deadline.remaining());
    if limit.is_zero() {
        return Err(io::ErrorKind::TimedOut.into());
    }
    let stream = TcpStream::connect_timeout(&address, limit)?;
    // On this host, a port that nothing listens on may be chosen as the connection's own: it is then connected to itself.
    if stream.local_addr()? == stream.peer_addr()? {
        return Err(io::ErrorKind::ConnectionRefused.into());
    }
    stream.set_nodelay(true)?;
    // What is written fits into the socket's buffer; this is for one that is broken.
    stream.set_write_timeout(Some(deadline.remaining().max(Duration::from_millis(1))))?;
    Ok(stream)
}

/// Listens on the address alone that the ranks were given, which has to be one of this host. For a name on all interfaces: it
/// may lead elsewhere from other hosts.
pub(super) fn listen(host: Option<&str>, port: u16) -> io::Result<TcpListener> {
    let given = match host {
        Some("localhost") => Some(IpAddr::from(Ipv4Addr::LOCALHOST)),
        Some(host) => host.parse().ok().filter(|address: &IpAddr| !address.is_unspecified()),
        None => None,
    };
    let listener = match given {
        Some(address) => TcpListener::bind((address, port)).map_err(|error| match error.kind() {
            io::ErrorKind::AddrNotAvailable => not_of_this_host(address),
            _ => error,
        })?,
        None => match TcpListener::bind((Ipv6Addr::UNSPECIFIED, port)) {
            Err(error) if error.kind() != io::ErrorKind::AddrInUse => {
                TcpListener::bind((Ipv4Addr::UNSPECIFIED, port))?
            }
            listener => listener?,
        },
    };
    #[cfg(unix)]
    super::backlog::raise(&listener)?;
    listener.set_nonblocking(true)?;
    Ok(listener)
}

fn not_of_this_host(address: IpAddr) -> io::Error {
    let own = own_hosts().join(", ");
    let expected = "expected one of its addresses; 0.0.0.0 for rank 0 alone if a port is forwarded to it";
    let text = format!("{address} is no address of this host, which is {own}; {expected}");
    io::Error::new(io::ErrorKind::AddrNotAvailable, text)
}

/// Returns where a name leads to, if that is another host, as far as this one can say.
pub(super) fn leads_elsewhere(host: &str, deadline: &Deadline) -> Option<String> {
    let addresses = resolve(host, 0, deadline).ok()?;
    // Binding to any port tells whether the host has the address.
    let is_own = |address: &SocketAddr| UdpSocket::bind(address).is_ok();
    let (first, is_elsewhere) = (addresses.first()?.ip(), !addresses.iter().any(is_own));
    is_elsewhere.then(|| format!("{host} leads to {first}, which is no address of this host"))
}

/// Returns the addresses with which this host reaches others, and its name.
pub(super) fn own_hosts() -> Vec<String> {
    // The addresses are for documentation: connecting a UDP socket sends nothing, but chooses a route.
    let routes = [("0.0.0.0:0", "192.0.2.1:9"), ("[::]:0", "[2001:db8::1]:9")];
    let source = |(from, to): (&str, &str)| {
        let socket = UdpSocket::bind(from).ok()?;
        socket.connect(to).ok()?;
        socket.local_addr().ok().map(|address| address.ip().to_string())
    };
    let mut hosts: Vec<String> = routes.into_iter().filter_map(source).collect();
    hosts.extend(std::fs::read_to_string("/proc/sys/kernel/hostname").map(|name| name.trim().to_owned()));
    hosts
}

#[cfg(test)]
mod tests {
    use std::io::ErrorKind;
    use std::time::Duration;

    use super::{Deadline, IpAddr, TcpStream, leads_elsewhere, listen, own_hosts};

    #[test]
    fn address_of_this_host_is_the_only_one_that_is_listened_on() {
        let own = own_hosts().into_iter().filter_map(|host| host.parse().ok());
        for address in own.chain(["127.0.0.2".parse().unwrap()]).filter(|own: &IpAddr| own.is_ipv4()) {
            let listener = listen(Some(&address.to_string()), 0).unwrap().local_addr().unwrap();
            assert_eq!(listener.ip(), address);
        }
    }

    #[test]
    fn address_of_another_host_is_not_listened_on() {
        let error = listen(Some("192.0.2.1"), 0).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::AddrNotAvailable);
        assert!(error.to_string().starts_with("192.0.2.1 is no address of this host, which is "), "{error}");
    }

    #[test]
    fn name_that_leads_to_another_host_is_noticed() {
        let leads = |host| leads_elsewhere(host, &Deadline::after(Duration::from_secs(10)));
        assert_eq!(
            leads("192.0.2.1").unwrap(),
            "192.0.2.1 leads to 192.0.2.1, which is no address of this host"
        );
        assert_eq!(leads("127.0.0.1"), None);
        assert_eq!(leads("localhost"), None);
    }

    #[test]
    fn name_is_listened_for_on_all_interfaces() {
        for host in ["0.0.0.0", "node1.example"] {
            let port = listen(Some(host), 0).unwrap();
            TcpStream::connect(("127.0.0.1", port.local_addr().unwrap().port())).unwrap();
        }
    }
}
