//! NCCL's releases, and selections of them.

use std::collections::BTreeSet;
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Result, bail};
use clap::Args;

/// The releases that NVIDIA publishes as packages of the Python package index, oldest first. A new release is added
/// here, and the hash of its package to `wheels.txt`.
pub(crate) const RELEASES: &[&str] = &[
    "2.13.4", "2.14.3", "2.15.5", "2.16.5", "2.17.1", "2.18.1", "2.18.3", "2.19.3", "2.20.5", "2.21.5",
    "2.22.3", "2.23.4", "2.24.3", "2.25.1", "2.26.2", "2.26.5", "2.27.3", "2.27.5", "2.27.6", "2.27.7",
    "2.28.3", "2.28.7", "2.28.9", "2.29.2", "2.29.3", "2.29.7", "2.30.3", "2.30.4", "2.30.7", "2.31.2",
    "2.32.3",
];

pub(crate) const OLDEST: &str = RELEASES[0];
pub(crate) const NEWEST: &str = RELEASES[RELEASES.len() - 1];

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
            return Ok(owned(RELEASES));
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
        let header = std::fs::read_to_string(crate::checkout::root().join("vendor-headers/nccl.h")).unwrap();
        let value = |name: &str| {
            let line = header.lines().find_map(|line| line.strip_prefix(&format!("#define {name} ")));
            line.unwrap().trim().to_string()
        };
        assert_eq!(NEWEST, ["NCCL_MAJOR", "NCCL_MINOR", "NCCL_PATCH"].map(value).join("."));
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
                    assert_eq!((chosen.len(), chosen[0], chosen[count - 1]), (count, OLDEST, NEWEST));
                    seen.extend(chosen);
                }
                assert_eq!(seen.len(), RELEASES.len(), "{count} from day {first}");
            }
        }
    }
}
