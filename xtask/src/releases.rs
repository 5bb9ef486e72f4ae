//! NCCL's releases, and selections of them.

use std::sync::LazyLock;

use clap::Args;

const HEADER: &str = include_str!("../../vendor-headers/nccl.h");

/// The releases that NVIDIA publishes as packages of the Python package index, oldest first: the list at the top of
/// our header, which describes the last of them. The hashes of the packages are in `wheels.txt`.
pub(crate) static RELEASES: LazyLock<Vec<&str>> = LazyLock::new(|| {
    let after = HEADER.split_once("- Releases:").map_or("", |(_, after)| after);
    let list = after.split_once("\n *\n").map_or("", |(list, _)| list);
    list.split_whitespace().filter(|word| *word != "*").collect()
});

pub(crate) static OLDEST: LazyLock<&str> = LazyLock::new(|| RELEASES[0]);
pub(crate) static NEWEST: LazyLock<&str> = LazyLock::new(|| RELEASES[RELEASES.len() - 1]);

/// The releases that a task examines.
#[derive(Debug, Args)]
#[group(required = true, multiple = false)]
pub(crate) struct Selection {
    /// Releases of NCCL, such as 2.32.3
    releases: Vec<String>,
    /// All releases
    #[arg(long)]
    all: bool,
}

impl Selection {
    pub(crate) fn is_all(&self) -> bool {
        self.all
    }

    /// Returns the releases in the order in which they are to be examined.
    pub(crate) fn releases(&self) -> Vec<String> {
        if self.all { RELEASES.iter().map(ToString::to_string).collect() } else { self.releases.clone() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn numbers(release: &str) -> Vec<u32> {
        release.split('.').map(|part| part.parse().unwrap()).collect()
    }

    #[test]
    fn newest_release_is_that_of_the_header() {
        let value = |name: &str| {
            let line = HEADER.lines().find_map(|line| line.strip_prefix(&format!("#define {name} ")));
            line.unwrap().trim().to_string()
        };
        assert_eq!(*NEWEST, ["NCCL_MAJOR", "NCCL_MINOR", "NCCL_PATCH"].map(value).join("."));
        assert!(RELEASES.is_sorted_by(|one, other| numbers(one) < numbers(other)));
    }
}
