use std::net::{Ipv4Addr, Ipv6Addr};

/// Returns whether this can be the name or the IP address of a host. Names of hosts that a file gives may have underscores.
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
    // Resolvers know shorter forms of IPv4 too, such as 127.1.
    let is_ipv4 = name.matches('.').count() >= 3 && name.split('.').all(|part| part.parse::<u32>().is_ok());
    host.len() <= 253 && name.split('.').all(is_label) && (!is_ipv4 || name.parse::<Ipv4Addr>().is_ok())
}

#[cfg(test)]
mod tests {
    use super::is_host;

    #[test]
    fn names_and_addresses_are_hosts() {
        for host in [
            "localhost",
            "node-1",
            "my_service",
            "node1.example.org.",
            "10.0.0.1",
            "127.1",
            "0.0.0.0",
            "1.2.3.4.in-addr.arpa",
            "::",
            "fe80::1%eth0.100",
            "::ffff:10.0.0.1",
        ] {
            assert!(is_host(host), "{host:?}");
        }
    }

    #[test]
    fn other_texts_are_no_hosts() {
        let long = "h".repeat(254);
        for text in [
            "",
            ".",
            " node1",
            "node1 ",
            "node1\n",
            "'node1'",
            "\"10.0.0.1\"",
            "node1:29500",
            "10.0.0.1:29500",
            "[::1]:29500",
            "tcp://node1",
            "node1/",
            "user@node1",
            "node1,node2",
            "node[1-2]",
            "node..1",
            ".node1",
            "$NODE",
            "nöde",
            "10.0.0.256",
            "10.0.0.1.2",
            "10.0.0.+1",
            "::1:29500:x",
            "::1%",
            "::1%a b",
            "node1%eth0",
            &long,
        ] {
            assert!(!is_host(text), "{text:?}");
        }
    }
}
