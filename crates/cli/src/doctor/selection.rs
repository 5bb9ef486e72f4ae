//! Lists of interfaces and devices, as NCCL reads them.

use libnccl::Version;

use crate::settings::integer;

/// The release from which on an empty port, as in `mlx5_0:`, is every port; it was port 0 before, which none is.
const EMPTY_PORT: Version = Version::new(2, 30, 7);

/// A list of beginnings of names by comma, after `^` to exclude them and `=` for whole names, each with a port after `:` if
/// need be.
#[derive(Debug)]
pub(super) struct Selection<'a> {
    pub(super) excludes: bool,
    pub(super) exact: bool,
    pub(super) entries: Vec<Entry<'a>>,
    /// The entries beyond those for which NCCL has room.
    pub(super) left_out: usize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Entry<'a> {
    pub(super) name: &'a str,
    /// `None` for every port.
    port: Option<i64>,
}

impl<'a> Selection<'a> {
    pub(super) fn parse(text: &'a str, room: usize, release: Version) -> Self {
        let (excludes, text) = text.strip_prefix('^').map_or((false, text), |rest| (true, rest));
        let (exact, text) = text.strip_prefix('=').map_or((false, text), |rest| (true, rest));
        let mut entries: Vec<_> = text.split(',').filter_map(|entry| Entry::parse(entry, release)).collect();
        let left_out = entries.len().saturating_sub(room);
        entries.truncate(room);
        Self { excludes, exact, entries, left_out }
    }

    /// Returns whether it has a device; `port` is `None` for interfaces, which have none.
    pub(super) fn has(&self, name: &str, port: Option<u32>) -> bool {
        // Nothing named is everything.
        let is_named =
            self.entries.is_empty() || self.entries.iter().any(|entry| self.names(*entry, name, port));
        is_named != self.excludes
    }

    /// Returns whether this entry is the one of a device.
    pub(super) fn names(&self, entry: Entry, name: &str, port: Option<u32>) -> bool {
        let is_name = if self.exact { name == entry.name } else { name.starts_with(entry.name) };
        let is_port = entry.port.is_none_or(|wanted| port.is_none_or(|port| wanted == i64::from(port)));
        is_name && (is_port || entry.port == Some(-1))
    }
}

impl<'a> Entry<'a> {
    /// Returns it as in the list, for messages.
    pub(super) fn shown(self) -> String {
        let port = self.port.map(|port| format!(":{port}")).unwrap_or_default();
        if self.name.contains(char::is_whitespace) {
            format!("{:?}{port}", self.name)
        } else {
            format!("{}{port}", self.name)
        }
    }

    fn parse(text: &'a str, release: Version) -> Option<Self> {
        let (name, port) = match text.split_once(':') {
            Some((name, port)) => (name, Some(port)),
            None => (text, None),
        };
        let port = port.map(|port| port.split(':').next().unwrap_or_default());
        let port = port.filter(|port| !port.is_empty() || release < EMPTY_PORT);
        (!name.is_empty()).then(|| Self { name, port: port.map(|port| integer(port, 10)) })
    }
}

#[cfg(test)]
mod tests {
    use libnccl::Version;

    use super::Selection;

    fn has(text: &str, release: Version, name: &str, port: Option<u32>) -> bool {
        Selection::parse(text, 16, release).has(name, port)
    }

    #[test]
    fn selection_follows_the_syntax_of_nccl() {
        for (text, selected, left_out) in [
            ("eth", "eth1", "ens3"),
            ("=eth0,ens3", "ens3", "eth01"),
            ("^docker,lo", "eth0", "docker0"),
            ("^=docker0", "docker01", "docker0"),
            ("ens,,:7,eth", "eth0", "lo"),
            ("=eth0:5", "eth0", "eth00"),
            ("eth0, lo", "eth0", "lo"),
            ("=^eth0", "^eth0", "eth0"),
        ] {
            let has = |name| has(text, Version::HEADER, name, None);
            assert!(has(selected) && !has(left_out), "{text}");
        }
        for (text, everything) in
            [("", true), ("=", true), (",", true), (":1", true), ("^", false), ("^=", false)]
        {
            assert_eq!(has(text, Version::HEADER, "eth0", None), everything, "{text}");
        }
    }

    #[test]
    fn ports_are_numbers_as_c_reads_them() {
        for (text, port, selected) in [
            ("mlx5_0:1", 1, true),
            ("mlx5_0:1", 2, false),
            ("mlx5", 2, true),
            ("^mlx5_0:1", 1, false),
            ("^mlx5_0:1", 2, true),
            ("mlx5_0:-1", 2, true),
            ("mlx5_0:x", 1, false),
            ("mlx5_0: 1x", 1, true),
            ("mlx5_0:1:3:0", 1, true),
        ] {
            assert_eq!(has(text, Version::HEADER, "mlx5_0", Some(port)), selected, "{text}");
        }
        for (release, selected) in [(Version::new(2, 28, 9), false), (Version::HEADER, true)] {
            assert_eq!(has("mlx5_0:", release, "mlx5_0", Some(1)), selected, "{release}");
        }
    }

    #[test]
    fn entries_beyond_the_room_are_left_out() {
        let text = (0..20).map(|index| format!("eth{index:02}")).collect::<Vec<_>>().join(",");
        let selection = Selection::parse(&text, 16, Version::HEADER);
        assert!(selection.has("eth15", None) && !selection.has("eth16", None));
        assert_eq!(selection.left_out, 4);
    }
}
