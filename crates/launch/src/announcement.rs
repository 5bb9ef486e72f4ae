use std::fmt;

use super::job::Nonce;
use super::rendezvous::is_host;

pub(super) const MAX_BYTES: usize = 4096;
const MAX_HOSTS: usize = 8;
const FIRST_LINE: &str = "libnccl launch 1";

/// Rank 0's address, published as lines of text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Announcement {
    /// A nonce that each rank repeats in its hello, so that rank 0 refuses ranks that have read an old announcement.
    pub(super) nonce: Nonce,
    pub(super) port: u16,
    /// The names and IP addresses of rank 0's host, in the order to try.
    pub(super) hosts: Vec<String>,
}

impl Announcement {
    pub(super) fn parse(bytes: &[u8]) -> Result<Self, String> {
        let invalid = |field: &str| format!("the announcement of rank 0 has no valid {field}");
        let text = std::str::from_utf8(bytes).ok().filter(|text| text.len() <= MAX_BYTES);
        // A file that is being copied may be truncated.
        let text = text.and_then(|text| text.strip_suffix("end\n")).ok_or_else(|| invalid("text"))?;
        let mut lines = text.lines();
        if lines.next() != Some(FIRST_LINE) {
            return Err(invalid("first line"));
        }
        let mut field = |name: &str| lines.next()?.strip_prefix(name);
        let is_hex =
            |digits: &&str| digits.len() == 32 && digits.bytes().all(|byte| byte.is_ascii_hexdigit());
        let nonce = field("nonce ").filter(is_hex).and_then(|digits| u128::from_str_radix(digits, 16).ok());
        let nonce = nonce.ok_or_else(|| invalid("nonce"))?;
        let port = field("port ").and_then(|port| port.parse().ok()).filter(|port| *port > 0);
        let port = port.ok_or_else(|| invalid("port"))?;
        let host = |line: &str| line.strip_prefix("host ").filter(|host| is_host(host)).map(str::to_owned);
        let hosts: Option<Vec<String>> = lines.map(host).collect();
        let hosts = hosts.filter(|hosts| hosts.len() <= MAX_HOSTS).ok_or_else(|| invalid("host"))?;
        Ok(Self { nonce, port, hosts })
    }
}

impl fmt::Display for Announcement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { nonce, port, hosts } = self;
        writeln!(f, "{FIRST_LINE}\nnonce {nonce:032x}\nport {port}")?;
        let mut hosts = hosts.iter().filter(|host| is_host(host)).take(MAX_HOSTS);
        hosts.try_for_each(|host| writeln!(f, "host {host}"))?;
        writeln!(f, "end")
    }
}

#[cfg(test)]
#[path = "../tests/unit/announcement.rs"]
mod tests;
