//! NCCL's releases, and selections of them.

use std::collections::BTreeSet;
use std::sync::LazyLock;
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Result, bail};
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
    /// N releases: the newest, the oldest, and others that change every day
    #[arg(long, value_name = "N")]
    some: Option<usize>,
}

impl Selection {
    pub(crate) fn is_all(&self) -> bool {
        self.all
    }

    /// Returns the releases in the order in which they are to be examined.
    pub(crate) fn releases(&self) -> Result<Vec<String>> {
        let owned = |releases: &[&str]| releases.iter().map(|release| (*release).to_string()).collect();
        if self.all {
            return Ok(owned(&RELEASES));
        }
        let Some(count) = self.some else { return Ok(self.releases.clone()) };
        let others = RELEASES.len() - 2;
        if !(3..=RELEASES.len()).contains(&count) {
            bail!("--some {count}: expected 3 to {}, including the newest and the oldest", RELEASES.len());
        }
        let day = SystemTime::now().duration_since(UNIX_EPOCH)?.as_secs() / (24 * 60 * 60);
        let chosen = of_the_day(day, count);
        let turn = others.div_ceil(count - 2);
        println!("selection of day {day}, all releases in {turn} days: {}", chosen.join(" "));
        Ok(owned(&chosen))
    }
}

/// Returns the oldest, the newest, and the next ones of the others every day.
fn of_the_day(day: u64, count: usize) -> Vec<&'static str> {
    let (between, each) = (RELEASES.len() - 2, count.saturating_sub(2));
    let start = usize::try_from(day).unwrap_or_default().wrapping_mul(each);
    let chosen: BTreeSet<usize> = [0, RELEASES.len() - 1]
        .into_iter()
        .chain((0..each).map(|i| 1 + start.wrapping_add(i) % between))
        .collect();
    chosen.into_iter().map(|index| RELEASES[index]).collect()
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

    #[test]
    fn of_the_day_selects_every_release_in_turn() {
        let others = RELEASES.len() - 2;
        for count in [3, 4, 7, RELEASES.len() - 1, RELEASES.len()] {
            let days = others.div_ceil(count - 2) as u64;
            for first in [0, 20_777] {
                let mut seen = BTreeSet::new();
                for day in first..first + days {
                    let chosen = of_the_day(day, count);
                    assert_eq!((chosen.len(), chosen[0], chosen[count - 1]), (count, *OLDEST, *NEWEST));
                    seen.extend(chosen);
                }
                assert_eq!(seen.len(), RELEASES.len(), "{count} from day {first}");
            }
        }
    }
}
