use std::collections::BTreeSet;
use std::fs;

use libnccl::Version;

use super::{ALL, Advisory, Cuda, Text};
use crate::doctor::Examined;
use crate::doctor::driver::Driver;
use crate::nccl_file::Variables;
use crate::settings::Settings;
use crate::system::System;

/// Returns whether an entry holds for a version on a machine that meets its conditions, or on another machine.
fn holds(advisory: &Advisory, version: Version, is_own: bool) -> bool {
    let root = tempfile::tempdir().unwrap();
    let mut environment = Vec::new();
    let mut driver = Driver::default();
    if is_own {
        environment.extend(advisory.setting.iter().map(|(name, value)| (name.as_str(), value.as_str())));
        environment.extend(advisory.setting_present.iter().map(|name| (name.as_str(), "1")));
        driver.models.extend(advisory.gpu.clone());
        let series = advisory.driver.from.or(advisory.driver.before.map(|before| before - 1));
        driver.module = series.map(|series| format!("{series}.10"));
        let before = advisory.driver_cuda.before.map(|_| Text(Cuda { major: 11, minor: 0 }));
        driver.cuda = advisory.driver_cuda.from.or(before);
        let files = [
            (advisory.path.as_deref(), ""),
            (advisory.container.then_some("/.dockerenv"), ""),
            (advisory.numa_node_without_processors.then_some("/sys/devices/system/node/node1/cpulist"), "\n"),
            (
                advisory.network_without_numa.then_some("/sys/class/infiniband/mlx5_0/device/numa_node"),
                "-1\n",
            ),
        ];
        for (path, text) in files.into_iter().filter_map(|(path, text)| Some((path?, text))) {
            let place = root.path().join(path.trim_start_matches('/'));
            fs::create_dir_all(place.parent().unwrap()).unwrap();
            fs::write(place, text).unwrap();
        }
    }
    let mut system = System::at(root.path(), &environment);
    system.architecture = "none".into();
    if is_own {
        system.architecture = advisory.architecture.as_deref().unwrap_or("x86_64").into();
        system.shared_memory.size = advisory.shared_memory_below.map(|size| size - 1);
        system.stack = system.stack.filter(|_| !advisory.stack_unlimited);
    }
    let settings = Settings::of(&system);
    let known = Variables::default();
    let examined =
        Examined { system: &system, settings: &settings, driver: &driver, library: None, known: &known };
    advisory.holds(&examined, version, false)
}

#[test]
fn each_entry_holds_for_its_example_and_not_for_a_good_version() {
    let others = ["id", "level", "releases", "symptom", "advice", "source", "bad", "good", "unless_setting"];
    let entries: Vec<serde_json::Map<_, _>> =
        serde_json::from_str(include_str!("../../src/doctor/advisories.json")).unwrap();
    let mut ids = BTreeSet::new();
    for (advisory, entry) in ALL.iter().zip(&entries) {
        let id = &advisory.id;
        let has_conditions = entry.keys().any(|name| !others.contains(&name.as_str()));
        assert!(holds(advisory, advisory.bad.0, true), "{id}");
        assert_eq!(holds(advisory, advisory.bad.0, false), !has_conditions, "{id} on another machine");
        if let Some(good) = &advisory.good {
            assert!(!holds(advisory, good.0, true), "{id}: {}", good.0);
        }
        assert!(has_conditions || advisory.good.is_some(), "{id} holds everywhere");
        assert!(!holds(advisory, Version::new(2, 32, 3), false), "{id} holds for the newest version");
        assert!(ids.insert(id), "{id} is there twice");
        let public = ["https://github.com/", "https://docs.nvidia.com/"];
        assert!(public.iter().any(|host| advisory.source.starts_with(host)), "{id}");
        assert!(advisory.symptom.len() > 30 && advisory.advice.len() > 15, "{id}");
    }
    assert!(ALL.len() >= 20 && ALL.len() == entries.len(), "{}", ALL.len());
}
