//! NCCL versions with known failures, from public reports.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use itertools::Itertools;
use libnccl::Version;
use serde::Deserialize;

use super::Examined;
use super::driver::Driver;
use super::finding::{Finding, Level, Text, or_ok};
use crate::nccl_file::Cuda;
use crate::system::System;

static ALL: LazyLock<Vec<Advisory>> =
    LazyLock::new(|| serde_json::from_str(include_str!("advisories.json")).unwrap_or_default());

/// An entry of `advisories.json`. It holds if all its conditions hold.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Advisory {
    id: String,
    level: Level,
    releases: Range<Text<Version>>,
    /// The architecture's whole name, as `uname -m` prints it.
    architecture: Option<String>,
    /// A part of a GPU's name.
    gpu: Option<String>,
    /// The driver's series, such as `570` for 570.133.20.
    #[serde(default)]
    driver: Range<u32>,
    /// The newest CUDA version that the driver supports.
    #[serde(default)]
    driver_cuda: Range<Text<Cuda>>,
    /// Variables that must have these values.
    #[serde(default)]
    setting: BTreeMap<String, String>,
    /// A variable that must have a value.
    setting_present: Option<String>,
    /// Settings, each of which prevents the failure.
    #[serde(default)]
    unless_setting: BTreeMap<String, String>,
    path: Option<String>,
    /// The advisory holds if /dev/shm is smaller than this size in bytes.
    shared_memory_below: Option<u64>,
    #[serde(default)]
    stack_unlimited: bool,
    #[serde(default)]
    container: bool,
    #[serde(default)]
    numa_node_without_processors: bool,
    #[serde(default)]
    network_without_numa: bool,
    symptom: String,
    advice: String,
    source: String,
    /// A version with the failure.
    #[cfg_attr(not(test), expect(dead_code, reason = "an example, for the test of the entry"))]
    bad: Text<Version>,
    /// A version without the failure, if there is one.
    #[cfg_attr(not(test), expect(dead_code, reason = "an example, for the test of the entry"))]
    good: Option<Text<Version>>,
}

/// A half-open range. A missing bound means the oldest or the newest version.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct Range<T> {
    from: Option<T>,
    before: Option<T>,
}

impl<T: PartialOrd> Range<T> {
    /// Returns whether the range contains the value. For an unknown value: `true` if the range has no bounds, otherwise `None`.
    fn has(&self, value: Option<T>) -> Option<bool> {
        if self.from.is_none() && self.before.is_none() {
            return Some(true);
        }
        let value = value?;
        let is_after = self.from.as_ref().is_none_or(|from| value >= *from);
        Some(is_after && self.before.as_ref().is_none_or(|before| value < *before))
    }
}

fn series(driver: &Driver) -> Option<u32> {
    driver.module.as_ref()?.split('.').next()?.parse().ok()
}

impl Advisory {
    /// Returns whether the advisory holds. Conditions on unknown facts count as `if_unknown`.
    fn holds(&self, examined: &Examined, version: Version, if_unknown: bool) -> bool {
        let &Examined { system, settings, driver, .. } = examined;
        let or = |known: Option<bool>| known.unwrap_or(if_unknown);
        let is_model = |gpu: &String| driver.models.iter().any(|model| model.contains(gpu));
        let is_below = |size| system.shared_memory.size.is_some_and(|found| found < size);
        let has = |(name, value): (&String, &String)| settings.value(name) == Some(value.as_str());
        or(self.releases.has(Some(Text(version))))
            && self.architecture.as_ref().is_none_or(|architecture| *architecture == system.architecture)
            && self.gpu.as_ref().is_none_or(|gpu| or((!driver.models.is_empty()).then(|| is_model(gpu))))
            && or(self.driver.has(series(driver)))
            && or(self.driver_cuda.has(driver.cuda))
            && self.setting.iter().all(has)
            && self.setting_present.as_ref().is_none_or(|name| settings.value(name).is_some())
            && !self.unless_setting.iter().any(has)
            && self.path.as_ref().is_none_or(|path| system.exists(path))
            && self.shared_memory_below.is_none_or(is_below)
            && (!self.stack_unlimited || system.stack.is_none())
            && (!self.container || system.container().is_some())
            && (!self.numa_node_without_processors
                || any_has(system, "/sys/devices/system/node", "cpulist", ""))
            && (!self.network_without_numa
                || any_has(system, "/sys/class/infiniband", "device/numa_node", "-1"))
    }

    fn finding(&self, release: Version) -> Finding {
        let has_all = self.releases.has(None).is_some();
        let about = if has_all { String::new() } else { format!("NCCL {release}: ") };
        Finding {
            level: self.level,
            text: format!("{}: {about}{}", self.id, self.symptom),
            advice: Some(self.advice.clone()),
            source: Some(self.source.clone()),
        }
    }
}

/// Returns whether any subdirectory of `directory` has a file of this name that contains only `line`.
fn any_has(system: &System, directory: &str, file: &str, line: &str) -> bool {
    system.children(directory).iter().any(|one| system.line(one.join(file)).as_deref() == Some(line))
}

pub(super) fn findings(examined: &Examined, release: Version) -> Vec<Finding> {
    let (held, others): (Vec<_>, Vec<_>) = ALL.iter().partition(|one| one.holds(examined, release, false));
    let mut findings: Vec<_> = held.iter().map(|advisory| advisory.finding(release)).collect();
    let undecided = others.iter().filter(|advisory| advisory.holds(examined, release, true));
    let undecided = undecided.map(|advisory| &advisory.id).join(", ");
    if !undecided.is_empty() {
        let driver = examined.driver;
        let facts = [
            ("the driver's version", series(driver).is_none()),
            ("the driver's CUDA", driver.cuda.is_none()),
            ("the names of the GPUs", driver.models.is_empty()),
        ];
        let unknown =
            facts.into_iter().filter(|(_, is_unknown)| *is_unknown).map(|(fact, _)| fact).join(", ");
        findings.push(Finding::warning(
            format!("known faults that may concern NCCL {release} here, for lack of {unknown}: {undecided}"),
            "run `nccl doctor` where the job is to run, and as the job does",
        ));
    }
    or_ok(findings, || format!("none of {} known faults concerns NCCL {release} here", ALL.len()))
}

#[cfg(test)]
#[path = "../../tests/unit/advisories.rs"]
mod tests;
