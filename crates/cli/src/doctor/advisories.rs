//! Releases of NCCL that are known to fail, from public reports.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::str::FromStr;
use std::sync::LazyLock;

use libnccl::Version;
use serde::{Deserialize, Deserializer};

use super::driver::Driver;
use super::finding::{Finding, Level};
use super::limits::shared_memory_size;
use crate::nccl_file::Cuda;
use crate::settings::Settings;
use crate::system::System;

/// The limit as `/proc/self/limits` names it.
const STACK: &str = "Max stack size";

static ALL: LazyLock<Vec<Advisory>> =
    LazyLock::new(|| serde_json::from_str(include_str!("advisories.json")).unwrap_or_default());

/// An entry of the file: it holds if all its conditions do.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Advisory {
    /// A name that stays.
    id: String,
    level: Level,
    releases: Releases,
    /// A whole name, as `uname -m` prints it.
    architecture: Option<String>,
    /// A part of the name of a GPU.
    gpu: Option<String>,
    /// The series of the driver's releases: `570` for 570.133.20.
    #[serde(default)]
    driver: Range<u32>,
    /// The newest release of CUDA that the driver supports.
    #[serde(default)]
    driver_cuda: Range<Parsed<Cuda>>,
    /// Variables that have these values.
    #[serde(default)]
    setting: BTreeMap<String, String>,
    /// A variable that has any value.
    setting_present: Option<String>,
    /// Variables that would prevent it by these values.
    #[serde(default)]
    unless_setting: BTreeMap<String, String>,
    /// A file that exists.
    path: Option<String>,
    /// The size of /dev/shm in bytes, below which it holds.
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
    /// The address of the public report.
    source: String,
    /// A release that has it.
    #[cfg_attr(not(test), expect(dead_code, reason = "an example, for the test of the entry"))]
    bad: Parsed<Version>,
    /// A release that has it not, if there is one.
    #[cfg_attr(not(test), expect(dead_code, reason = "an example, for the test of the entry"))]
    good: Option<Parsed<Version>>,
}

type Releases = Range<Parsed<Version>>;

/// From the first, and before the second; without either, from the oldest or up to the newest.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Range<T> {
    from: Option<T>,
    before: Option<T>,
}

impl<T> Default for Range<T> {
    fn default() -> Self {
        Self { from: None, before: None }
    }
}

impl<T: PartialOrd> Range<T> {
    /// Returns whether it has the value; a range without bounds has every value, and an unknown one too. Of others, `None`.
    fn has(&self, value: Option<T>) -> Option<bool> {
        if self.from.is_none() && self.before.is_none() {
            return Some(true);
        }
        let value = value?;
        let is_after = self.from.as_ref().is_none_or(|from| value >= *from);
        Some(is_after && self.before.as_ref().is_none_or(|before| value < *before))
    }
}

/// A value that the file has as a text.
#[derive(Debug, Clone, Copy, PartialEq, PartialOrd)]
struct Parsed<T>(T);

impl<'de, T: FromStr<Err: Display>> Deserialize<'de> for Parsed<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse().map(Self).map_err(serde::de::Error::custom)
    }
}

/// The subject of the conditions.
#[derive(Debug)]
pub(super) struct Situation<'a> {
    pub(super) release: Version,
    pub(super) system: &'a System,
    pub(super) settings: &'a Settings,
    pub(super) driver: &'a Driver,
}

impl Situation<'_> {
    fn series(&self) -> Option<u32> {
        self.driver.module.as_ref().and_then(|module| module.split('.').next()?.parse().ok())
    }

    fn cuda(&self) -> Option<Parsed<Cuda>> {
        self.driver.cuda.as_ref().and_then(|cuda| cuda.parse().ok()).map(Parsed)
    }

    /// Returns what conditions ask for, and is not known.
    fn unknown(&self) -> Vec<&'static str> {
        let facts = [
            ("the driver's release", self.series().is_none()),
            ("the driver's CUDA", self.cuda().is_none()),
            ("the names of the GPUs", self.driver.models.is_empty()),
            ("the size of /dev/shm", shared_memory_size(self.system).is_err()),
            ("the limit of the stack", self.system.limit(STACK).is_none()),
        ];
        facts.into_iter().filter_map(|(fact, is_unknown)| is_unknown.then_some(fact)).collect()
    }
}

impl Advisory {
    /// Returns whether it holds if what is not known is as the conditions ask, or is not.
    fn holds(&self, situation: &Situation, if_unknown: bool) -> bool {
        let Situation { release, system, settings, driver } = situation;
        let or = |known: Option<bool>| known.unwrap_or(if_unknown);
        let is_model = |gpu: &String| driver.models.iter().any(|model| model.contains(gpu));
        let is_below = |size| Some(shared_memory_size(system).ok()?.is_some_and(|found| found < size));
        let has = |(name, value): (&String, &String)| settings.value(name) == Some(value.as_str());
        or(self.releases.has(Some(Parsed(*release))))
            && self.architecture.as_ref().is_none_or(|architecture| *architecture == system.architecture)
            && self.gpu.as_ref().is_none_or(|gpu| or((!driver.models.is_empty()).then(|| is_model(gpu))))
            && or(self.driver.has(situation.series()))
            && or(self.driver_cuda.has(situation.cuda()))
            && self.setting.iter().all(has)
            && self.setting_present.as_ref().is_none_or(|name| settings.value(name).is_some())
            && !self.unless_setting.iter().any(has)
            && self.path.as_ref().is_none_or(|path| system.exists(path))
            && self.shared_memory_below.is_none_or(|size| or(is_below(size)))
            && (!self.stack_unlimited || or(system.limit(STACK).map(|(soft, _)| soft.is_none())))
            && (!self.container || system.container().is_some())
            && (!self.numa_node_without_processors || has_numa_node_without_processors(system))
            && (!self.network_without_numa || has_network_without_numa(system))
    }

    fn finding(&self, release: Version) -> Finding {
        let about = if self.releases.from.is_none() && self.releases.before.is_none() {
            String::new()
        } else {
            format!("NCCL {release}: ")
        };
        Finding {
            level: self.level,
            text: format!("{}: {about}{}", self.id, self.symptom),
            advice: Some(self.advice.clone()),
            source: Some(self.source.clone()),
        }
    }
}

fn has_numa_node_without_processors(system: &System) -> bool {
    let is_empty =
        |node: &std::path::PathBuf| system.line(node.join("cpulist")).is_some_and(|list| list.is_empty());
    system.children("/sys/devices/system/node").iter().any(is_empty)
}

fn has_network_without_numa(system: &System) -> bool {
    let devices = system.children("/sys/class/infiniband").into_iter();
    devices
        .map(|device| device.join("device/numa_node"))
        .any(|file| system.line(file).is_some_and(|node| node == "-1"))
}

pub(super) fn findings(situation: &Situation) -> Vec<Finding> {
    let (held, others): (Vec<_>, Vec<_>) = ALL.iter().partition(|advisory| advisory.holds(situation, false));
    let mut findings: Vec<_> = held.iter().map(|advisory| advisory.finding(situation.release)).collect();
    let undecided = others.iter().filter(|advisory| advisory.holds(situation, true));
    let undecided: Vec<&str> = undecided.map(|advisory| advisory.id.as_str()).collect();
    if !undecided.is_empty() {
        findings.push(Finding::warning(
            format!(
                "known faults that may concern NCCL {} here, for lack of {}: {}",
                situation.release,
                situation.unknown().join(", "),
                undecided.join(", ")
            ),
            "run `nccl doctor` where the job is to run, and as the job does",
        ));
    }
    if findings.is_empty() {
        findings.push(Finding::ok(format!(
            "none of {} known faults concerns NCCL {} here",
            ALL.len(),
            situation.release
        )));
    }
    findings
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::fs;
    use std::path::Path;

    use libnccl::Version;

    use super::{Advisory, Situation};
    use crate::doctor::driver::Driver;
    use crate::settings::Settings;
    use crate::system::System;

    fn all() -> Vec<Advisory> {
        serde_json::from_str(include_str!("advisories.json")).unwrap()
    }

    /// Returns the names of an entry's conditions.
    fn conditions(id: &str) -> Vec<String> {
        let entries: Vec<serde_json::Map<_, _>> =
            serde_json::from_str(include_str!("advisories.json")).unwrap();
        let entry = entries.into_iter().find(|entry| entry["id"] == id).unwrap();
        let others =
            ["id", "level", "releases", "symptom", "advice", "source", "bad", "good", "unless_setting"];
        entry.into_iter().map(|(name, _)| name).filter(|name| !others.contains(&name.as_str())).collect()
    }

    fn write(root: &Path, path: &str, text: &str) {
        let place = root.join(path.trim_start_matches('/'));
        fs::create_dir_all(place.parent().unwrap()).unwrap();
        fs::write(place, text).unwrap();
    }

    /// A machine that an entry is tried on.
    #[derive(Clone, Copy, PartialEq)]
    enum Machine {
        /// Made for the conditions of the entry.
        Own,
        /// The same, of which is not known what may be unknown: it is as this says.
        Unknown(bool),
        Other,
    }

    /// Returns whether the entry holds on a machine.
    fn holds(advisory: &Advisory, release: Version, machine: Machine) -> bool {
        let root = tempfile::tempdir().unwrap();
        let mut environment = Vec::new();
        let mut driver = Driver::default();
        let mut system_architecture = "none";
        if machine != Machine::Other {
            environment.extend(advisory.setting.iter().map(|(name, value)| (name.as_str(), value.as_str())));
            environment.extend(advisory.setting_present.iter().map(|name| (name.as_str(), "1")));
            system_architecture = advisory.architecture.as_deref().unwrap_or("x86_64");
            if let Some(path) = &advisory.path {
                write(root.path(), path, "");
            }
            if advisory.container {
                write(root.path(), ".dockerenv", "");
            }
            if advisory.numa_node_without_processors {
                write(root.path(), "sys/devices/system/node/node1/cpulist", "\n");
            }
            if advisory.network_without_numa {
                write(root.path(), "sys/class/infiniband/mlx5_0/device/numa_node", "-1\n");
            }
        }
        if machine == Machine::Own {
            driver.models.extend(advisory.gpu.clone());
            let series = advisory.driver.from.or(advisory.driver.before.map(|before| before - 1));
            driver.module = series.map(|series| format!("{series}.10"));
            let cuda = advisory.driver_cuda.from.as_ref().map(|from| from.0.to_string());
            driver.cuda = cuda.or(advisory.driver_cuda.before.as_ref().map(|_| "11.0".into()));
            if advisory.shared_memory_below.is_some() {
                write(root.path(), "proc/self/mounts", "shm /dev/shm tmpfs rw,size=65536k 0 0\n");
            }
            if advisory.stack_unlimited {
                write(root.path(), "proc/self/limits", "Max stack size  unlimited  unlimited  bytes\n");
            }
        }
        let mut system = System::at(root.path(), &environment);
        system.architecture = system_architecture.into();
        let settings = Settings::of(&system);
        let situation = Situation { release, system: &system, settings: &settings, driver: &driver };
        advisory.holds(&situation, machine == Machine::Unknown(true))
    }

    #[test]
    fn each_entry_holds_for_its_example_and_not_for_a_good_release() {
        for advisory in all() {
            let id = &advisory.id;
            assert!(holds(&advisory, advisory.bad.0, Machine::Own), "{id}");
            if let Some(good) = &advisory.good {
                assert!(!holds(&advisory, good.0, Machine::Own), "{id}: {}", good.0);
            }
            let has_conditions = !conditions(id).is_empty();
            let on_another = holds(&advisory, advisory.bad.0, Machine::Other);
            assert_eq!(on_another, !has_conditions, "{id} on another machine");
            assert!(has_conditions || advisory.good.is_some(), "{id} holds everywhere");
        }
    }

    #[test]
    fn entry_whose_conditions_are_not_known_is_undecided() {
        let mut undecided = 0;
        for advisory in all() {
            let id = &advisory.id;
            let unknown = ["gpu", "driver", "driver_cuda", "shared_memory_below", "stack_unlimited"];
            let may_be_unknown = conditions(id).iter().any(|name| unknown.contains(&name.as_str()));
            let release = advisory.bad.0;
            assert!(holds(&advisory, release, Machine::Unknown(true)), "{id}");
            assert_eq!(holds(&advisory, release, Machine::Unknown(false)), !may_be_unknown, "{id}");
            if let Some(good) = &advisory.good {
                assert!(!holds(&advisory, good.0, Machine::Unknown(true)), "{id}: {}", good.0);
            }
            undecided += usize::from(may_be_unknown);
        }
        assert!(undecided >= 10, "{undecided}");
    }

    #[test]
    fn each_entry_has_a_name_of_its_own_a_source_and_sentences() {
        let all = all();
        let ids: BTreeSet<_> = all.iter().map(|advisory| &advisory.id).collect();
        assert_eq!(ids.len(), all.len());
        assert!(all.len() >= 20, "{}", all.len());
        for advisory in &all {
            let public = ["https://github.com/", "https://docs.nvidia.com/"];
            assert!(public.iter().any(|host| advisory.source.starts_with(host)), "{}", advisory.id);
            assert!(advisory.symptom.len() > 30 && advisory.advice.len() > 15, "{}", advisory.id);
        }
    }

    #[test]
    fn newest_release_without_special_conditions_has_none() {
        for advisory in all() {
            assert!(!holds(&advisory, Version::new(2, 32, 3), Machine::Other), "{}", advisory.id);
        }
    }
}
