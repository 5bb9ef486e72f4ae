//! NCCL's versions.

use std::sync::LazyLock;

const HEADER: &str = include_str!("../../vendor-headers/nccl.h");

/// The versions that NVIDIA publishes as packages of the Python package index, oldest first: the list at the top of
/// our header, which describes the last of them. The hashes of the packages are in `wheels.txt`.
pub(crate) static RELEASES: LazyLock<Vec<&str>> = LazyLock::new(|| {
    let after = HEADER.split_once("- Releases:").map_or("", |(_, after)| after);
    let list = after.split_once("\n *\n").map_or("", |(list, _)| list);
    list.split_whitespace().filter(|word| *word != "*").collect()
});

#[cfg(test)]
mod tests {
    use super::*;

    fn numbers(release: &str) -> Vec<u32> {
        release.split('.').map(|part| part.parse().unwrap()).collect()
    }

    #[test]
    fn newest_version_is_that_of_the_header() {
        let value = |name: &str| {
            let line = HEADER.lines().find_map(|line| line.strip_prefix(&format!("#define {name} ")));
            line.unwrap().trim().to_string()
        };
        let newest = ["NCCL_MAJOR", "NCCL_MINOR", "NCCL_PATCH"].map(value).join(".");
        assert_eq!(RELEASES.last(), Some(&newest.as_str()));
        assert!(RELEASES.is_sorted_by(|one, other| numbers(one) < numbers(other)));
    }
}
