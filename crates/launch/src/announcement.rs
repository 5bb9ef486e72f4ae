use std::fmt;

use super::job::Nonce;
use super::rendezvous::is_host;

/// The bytes that an announcement may have; more are not read.
pub(super) const MAX_BYTES: usize = 4096;

/// The hosts that an announcement may name.
const MAX_HOSTS: usize = 8;

const FIRST_LINE: &str = "libnccl launch 1";

/// The address that rank 0 publishes: lines of text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Announcement {
    /// The nonce of the exchange, which hellos repeat: so rank 0 knows those that have read an old announcement.
    pub(super) nonce: Nonce,
    pub(super) port: u16,
    /// The names and addresses of the host, the most likely one first.
    pub(super) hosts: Vec<String>,
}

impl Announcement {
    pub(super) fn parse(bytes: &[u8]) -> Result<Self, String> {
        let invalid = |field: &str| format!("the announcement of rank 0 has no valid {field}");
        let text = std::str::from_utf8(bytes).ok().filter(|text| text.len() <= MAX_BYTES);
        // A file that is being copied may lack its end.
        let text = text.and_then(|text| text.strip_suffix("end\n")).ok_or_else(|| invalid("text"))?;
        let mut lines = text.lines();
        if lines.next() != Some(FIRST_LINE) {
            return Err(invalid("first line"));
        }
        let nonce = lines.next().and_then(|line| line.strip_prefix("nonce ")).and_then(parse_nonce);
        let nonce = nonce.ok_or_else(|| invalid("nonce"))?;
        let port =
            lines.next().and_then(|line| line.strip_prefix("port ")).and_then(|port| port.parse().ok());
        let port = port.filter(|port| *port > 0).ok_or_else(|| invalid("port"))?;
        let host = |line: &str| line.strip_prefix("host ").filter(|host| is_host(host)).map(str::to_owned);
        let hosts: Option<Vec<String>> = lines.map(host).collect();
        let hosts = hosts.filter(|hosts| hosts.len() <= MAX_HOSTS).ok_or_else(|| invalid("host"))?;
        Ok(Self { nonce, port, hosts })
    }
}

fn parse_nonce(digits: &str) -> Option<Nonce> {
    let is_nonce = digits.len() == 32 && digits.bytes().all(|byte| byte.is_ascii_hexdigit());
    is_nonce.then(|| u128::from_str_radix(digits, 16).ok()).flatten()
}

impl fmt::Display for Announcement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { nonce, port, hosts } = self;
        writeln!(f, "{FIRST_LINE}\nnonce {nonce:032x}\nport {port}")?;
        let hosts = hosts.iter().filter(|host| is_host(host)).take(MAX_HOSTS);
        hosts.into_iter().try_for_each(|host| writeln!(f, "host {host}"))?;
        writeln!(f, "end")
    }
}

#[cfg(test)]
mod tests {
    use super::{Announcement, MAX_BYTES};
    use libnccl_test_support::random_inputs::{Random, inputs};

    fn announcement() -> Announcement {
        Announcement {
            nonce: u128::from_be_bytes([0xa5; 16]),
            port: 4711,
            hosts: vec!["node1".into(), "fe80::1%eth0".into()],
        }
    }

    #[test]
    fn text_round_trips() {
        assert_eq!(Announcement::parse(announcement().to_string().as_bytes()), Ok(announcement()));
    }

    #[test]
    fn cut_or_changed_text_is_an_error() {
        let text = announcement().to_string();
        for end in 0..text.len() {
            Announcement::parse(&text.as_bytes()[..end]).unwrap_err();
        }
        for (from, to) in
            [("port 4711", "port 0"), ("libnccl", "libnccI"), ("nonce a", "nonce +"), ("node1", "no de")]
        {
            Announcement::parse(text.replace(from, to).as_bytes()).unwrap_err();
        }
        Announcement::parse(&vec![b'x'; MAX_BYTES + 1]).unwrap_err();
        Announcement::parse(&[0xff; 8]).unwrap_err();
    }

    #[test]
    fn hosts_are_limited() {
        let many = Announcement { hosts: vec!["h".repeat(253); 20], ..announcement() };
        assert_eq!(Announcement::parse(many.to_string().as_bytes()).unwrap().hosts.len(), 8);
        let line = "host h\n";
        let text = announcement().to_string().replace("end\n", &format!("{}end\n", line.repeat(7)));
        Announcement::parse(text.as_bytes()).unwrap_err();
    }

    #[test]
    fn random_bytes_are_parsed_or_refused() {
        let mut random = Random(12);
        for _ in inputs(20_000) {
            let mut bytes = announcement().to_string().into_bytes();
            random.change(&mut bytes);
            if let Ok(parsed) = Announcement::parse(&bytes) {
                assert!(parsed.port > 0 && parsed.hosts.len() <= 8);
                assert_eq!(Announcement::parse(parsed.to_string().as_bytes()), Ok(parsed));
            }
        }
    }
}
