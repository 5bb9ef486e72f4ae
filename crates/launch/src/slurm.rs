//! The two formats of SLURM's variables: lists of hosts, and numbers of tasks.

/// Returns the first host of a list such as `node[01-04,07],gpu5`.
pub(super) fn first_host(list: &str) -> Option<String> {
    let mut host = String::new();
    let mut rest = list;
    loop {
        let end = rest.find([',', '[']).unwrap_or(rest.len());
        host.push_str(&rest[..end]);
        // A name may have several brackets: `rack[1-2]-node[3,5]`.
        let Some(brackets) = rest[end..].strip_prefix('[') else { break };
        let (numbers, after) = brackets.split_once(']')?;
        let first = numbers.split([',', '-']).next()?;
        if first.is_empty() || !first.bytes().all(|byte| byte.is_ascii_digit()) {
            return None;
        }
        host.push_str(first);
        rest = after;
    }
    let is_name = |byte: u8| byte.is_ascii_alphanumeric() || b"-._:".contains(&byte);
    (!host.is_empty() && host.bytes().all(is_name)).then_some(host)
}

/// Returns the number of tasks of a node from a list such as `2(x3),1`: two on each of three nodes, then one.
pub(super) fn tasks_of_node(list: &str, node: u32) -> Option<u32> {
    let mut nodes_before = 0_u32;
    for entry in list.split(',') {
        let (tasks, repeated) = match entry.split_once("(x") {
            Some((tasks, times)) => (tasks, times.strip_suffix(')')?.parse().ok()?),
            None => (entry, 1),
        };
        let tasks = tasks.parse().ok()?;
        nodes_before = nodes_before.checked_add(repeated)?;
        if node < nodes_before {
            return Some(tasks);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::{first_host, tasks_of_node};

    #[test]
    fn first_host_of_lists() {
        let cases = [
            ("node7", Some("node7")),
            ("node[01-04,07],gpu5", Some("node01")),
            ("node[9,10]", Some("node9")),
            ("a,b[1-2]", Some("a")),
            ("rack[1-2]-node[3,5].cluster", Some("rack1-node3.cluster")),
            ("node[12]", Some("node12")),
            ("", None),
            ("node[", None),
            ("node[]", None),
            ("node[a-b]", None),
            ("[1-2", None),
            ("no de", None),
        ];
        for (list, host) in cases {
            assert_eq!(first_host(list).as_deref(), host, "{list}");
        }
    }

    #[test]
    fn tasks_of_nodes() {
        for (node, tasks) in [(0, Some(2)), (2, Some(2)), (3, Some(1)), (4, Some(8)), (5, None)] {
            assert_eq!(tasks_of_node("2(x3),1,8", node), tasks, "{node}");
        }
        for list in ["", "x", "2(x", "2(x3", "2(x-1)", "(x2)", "2(x4294967295),2(x4294967295)"] {
            assert_eq!(tasks_of_node(list, u32::MAX), None, "{list}");
        }
    }
}
