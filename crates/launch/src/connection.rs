//! Incoming and outgoing connections, with deadlines.

use std::io::{self, ErrorKind, Read};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream, ToSocketAddrs, UdpSocket};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

/// The time by which an exchange or a request must be complete.
#[derive(Debug, Clone, Copy)]
pub struct Deadline {
    started: Instant,
    end: Instant,
}

impl Deadline {
    pub fn after(timeout: Duration) -> Self {
        let started = Instant::now();
        // A timeout beyond the clock's range counts as none.
        let end = started.checked_add(timeout).unwrap_or_else(|| started + Duration::from_secs(1 << 30));
        Self { started, end }
    }

    pub fn elapsed(&self) -> Duration {
        self.started.elapsed()
    }

    pub fn remaining(&self) -> Duration {
        self.end.saturating_duration_since(Instant::now())
    }

    pub fn has_passed(&self) -> bool {
        self.remaining().is_zero()
    }

    /// Returns the earlier of this deadline and `limit` from now.
    pub fn part(&self, limit: Duration) -> Self {
        let part = Self::after(limit);
        Self { end: part.end.min(self.end), ..part }
    }

    /// Sleeps for `time`, but not beyond the deadline.
    pub fn sleep(&self, time: Duration) {
        thread::sleep(time.min(self.remaining()));
    }
}

/// Resolves a host name or IP address to socket addresses with this port.
pub fn resolve(host: &str, port: u16, deadline: &Deadline) -> Result<Vec<SocketAddr>, String> {
    if let Ok(address) = host.parse::<IpAddr>() {
        return Ok(vec![SocketAddr::new(address, port)]);
    }
    // The system's resolver has longer time limits than most deadlines, so the thread may outlive this call.
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
        Err(_) => Err(format!("{host} was not resolved before the deadline")),
    }
}

/// Connects within `limit` and before the deadline.
pub fn connect(address: SocketAddr, limit: Duration, deadline: &Deadline) -> io::Result<TcpStream> {
    let limit = limit.min(deadline.remaining());
    if limit.is_zero() {
        return Err(ErrorKind::TimedOut.into());
    }
    let stream = TcpStream::connect_timeout(&address, limit)?;
    // On this host, the connection may get the destination's port as its own, and connect to itself.
    if stream.local_addr()? == stream.peer_addr()? {
        return Err(ErrorKind::ConnectionRefused.into());
    }
    stream.set_nodelay(true)?;
    // All messages fit into the socket's buffer; the timeout is for a broken connection.
    stream.set_write_timeout(Some(deadline.remaining().max(Duration::from_millis(1))))?;
    Ok(stream)
}

/// Listens on `host` if it is an IP address; an address of another host is an error. For a host name, listens on all interfaces,
/// because other hosts may resolve the name differently.
pub(super) fn listen(host: Option<&str>, port: u16) -> io::Result<TcpListener> {
    let given = host.and_then(|host| match host {
        "localhost" => Some(IpAddr::from(Ipv4Addr::LOCALHOST)),
        _ => host.parse().ok().filter(|address: &IpAddr| !address.is_unspecified()),
    });
    let listener = match given {
        Some(address) => TcpListener::bind((address, port)).map_err(|error| match error.kind() {
            ErrorKind::AddrNotAvailable => not_of_this_host(address),
            _ => error,
        })?,
        None => match TcpListener::bind((Ipv6Addr::UNSPECIFIED, port)) {
            Err(error) if error.kind() != ErrorKind::AddrInUse => {
                TcpListener::bind((Ipv4Addr::UNSPECIFIED, port))?
            }
            listener => listener?,
        },
    };
    // All ranks connect at the same time. Beyond the backlog, by default 128, the kernel retries after a second.
    rustix::net::listen(&listener, i32::MAX)?;
    listener.set_nonblocking(true)?;
    Ok(listener)
}

/// Reads at least one byte before the deadline. Returns the number of bytes, or 0 at the end of the stream.
pub fn read_some(mut stream: &TcpStream, buffer: &mut [u8], deadline: &Deadline) -> io::Result<usize> {
    loop {
        let remaining = deadline.remaining();
        if remaining.is_zero() {
            return Err(io::Error::new(ErrorKind::TimedOut, "no complete reply before the deadline"));
        }
        stream.set_read_timeout(Some(remaining))?;
        let retried = [ErrorKind::WouldBlock, ErrorKind::TimedOut, ErrorKind::Interrupted];
        match stream.read(buffer) {
            Err(error) if retried.contains(&error.kind()) => {}
            read => return read,
        }
    }
}

/// Fills `buffer` by the deadline.
pub(super) fn read_by(stream: &TcpStream, mut buffer: &mut [u8], deadline: &Deadline) -> io::Result<()> {
    while !buffer.is_empty() {
        match read_some(stream, buffer, deadline)? {
            0 => return Err(closed()),
            count => buffer = &mut buffer[count..],
        }
    }
    Ok(())
}

pub(super) fn closed() -> io::Error {
    io::Error::new(ErrorKind::UnexpectedEof, "the connection was closed")
}

/// Parses `HOST:PORT`, or `[IPv6]:PORT`.
pub fn parse_address(text: &str) -> Option<(&str, u16)> {
    let (host, port) = text.rsplit_once(':')?;
    let host = match host.strip_prefix('[') {
        Some(host) => host.strip_suffix(']')?,
        None if host.contains(':') => return None,
        None => host,
    };
    let port = port.parse().ok().filter(|port| *port > 0)?;
    (!host.is_empty()).then_some((host, port))
}

/// Formats a host and a port for [`parse_address`].
pub fn format_address(host: &str, port: u16) -> String {
    if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") }
}

fn not_of_this_host(address: IpAddr) -> io::Error {
    let own = own_hosts().join(", ");
    let expected = "expected one of its addresses; 0.0.0.0 for rank 0 alone if a port is forwarded to it";
    let text = format!("{address} is no address of this host, which is {own}; {expected}");
    io::Error::new(ErrorKind::AddrNotAvailable, text)
}

/// Returns an error text if this host resolves `host` only to addresses of other hosts.
pub(super) fn leads_elsewhere(host: &str, deadline: &Deadline) -> Option<String> {
    let addresses = resolve(host, 0, deadline).ok()?;
    // Only an address of this host can be bound.
    let (first, is_own) = (addresses.first()?.ip(), addresses.iter().any(|own| UdpSocket::bind(own).is_ok()));
    (!is_own).then(|| format!("{host} leads to {first}, which is no address of this host"))
}

/// Returns the source addresses of this host's outgoing connections, and its host name.
pub(super) fn own_hosts() -> Vec<String> {
    // Addresses reserved for documentation. Connecting a UDP socket chooses a route, and sends nothing.
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
#[path = "../tests/unit/connection.rs"]
mod tests;
