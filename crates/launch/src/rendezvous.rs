use std::fmt;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::path::PathBuf;

use super::connection;

/// The address or directory at which the ranks find rank 0. `Display` writes it in the syntax of `LIBNCCL_RENDEZVOUS`.
///
/// ```
/// use libnccl_launch::{Launch, Rendezvous};
///
/// let variables = [("RANK", "0"), ("WORLD_SIZE", "2"), ("LIBNCCL_RENDEZVOUS", "tcp://[::1]:29500")];
/// let launch = Launch::from_variables(variables)?;
/// let rendezvous = Rendezvous::Tcp { host: "::1".into(), port: 29500 };
/// assert_eq!(launch.rendezvous(), Some(&rendezvous));
/// assert_eq!(rendezvous.to_string(), "tcp://[::1]:29500");
/// # Ok::<_, libnccl_launch::LaunchError>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Rendezvous {
    /// Rank 0 listens at this address.
    Tcp {
        /// The name or IP address of rank 0's host.
        host: String,
        /// The port on which rank 0 listens.
        port: u16,
    },
    /// Rank 0 publishes its address in a running TCPStore, the key-value server of PyTorch 2.2 and newer.
    TcpStore {
        /// The name or IP address of the server's host.
        host: String,
        /// The port of the server.
        port: u16,
    },
    /// Rank 0 publishes its address in a file in this directory. All ranks must be able to read files in the directory.
    Directory(PathBuf),
}

impl Rendezvous {
    pub(super) fn parse(text: &str) -> Option<Self> {
        if let Some(path) = text.strip_prefix("file://") {
            return path.starts_with('/').then(|| Self::Directory(path.into()));
        }
        let (scheme, address) = text.split_once("://")?;
        let (host, port) = connection::parse_address(address)?;
        let host = Some(host.to_owned()).filter(|host| is_host(host))?;
        match scheme {
            "tcp" => Some(Self::Tcp { host, port }),
            "tcpstore" => Some(Self::TcpStore { host, port }),
            _ => None,
        }
    }
}

impl fmt::Display for Rendezvous {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (scheme, host, port) = match self {
            Self::Tcp { host, port } => ("tcp", host, *port),
            Self::TcpStore { host, port } => ("tcpstore", host, *port),
            Self::Directory(path) => return write!(f, "file://{}", path.display()),
        };
        write!(f, "{scheme}://{}", connection::format_address(host, port))
    }
}

/// Returns whether `host` can be a host name or an IP address. Underscores are allowed, as in /etc/hosts.
pub(super) fn is_host(host: &str) -> bool {
    let is_label = |label: &str| {
        let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"-_".contains(&byte);
        !label.is_empty() && label.bytes().all(allowed)
    };
    if host.contains(':') {
        let (address, zone) = host.split_once('%').unwrap_or((host, "0"));
        return address.parse::<Ipv6Addr>().is_ok() && zone.split('.').all(is_label);
    }
    let name = host.strip_suffix('.').unwrap_or(host);
    // Resolvers also accept shorter forms of IPv4, such as 127.1.
    let is_ipv4 = name.matches('.').count() >= 3 && name.split('.').all(|part| part.parse::<u32>().is_ok());
    host.len() <= 253 && name.split('.').all(is_label) && (!is_ipv4 || name.parse::<Ipv4Addr>().is_ok())
}
