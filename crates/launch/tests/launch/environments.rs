//! Every launcher's variables: recognized, incomplete, contradictory. `environments.txt` has a line `NAME: VARIABLES` for each
//! launcher, and a line `$ NAMES CHANGES` for each case, followed by the result. `SNAPSHOTS=overwrite` rewrites the results.
//!
//! A change is `NAME=VALUE`, or `NAME-` for an unset variable. In a value, `\s` is a space and `\n` a newline.

use std::fs;

use libnccl_launch::{Launch, LaunchError};
use libnccl_test_support::random_inputs::{Random, inputs};

const CASES: &str = include_str!("environments.txt");

/// Parses variables separated by white space.
pub(crate) fn entries(table: &'static str) -> impl Iterator<Item = (&'static str, &'static str)> {
    table.split_whitespace().map(|entry| entry.split_once('=').unwrap())
}

/// Returns the variables of a launcher.
fn table(name: &str) -> Option<&'static str> {
    CASES.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": "))
}

/// Returns the result of variables, without the directories of this machine.
fn outcome(variables: Vec<(&str, String)>) -> String {
    let launch = match Launch::from_variables(variables) {
        Ok(launch) => launch,
        Err(error) => return format!("error: {error}"),
    };
    let rendezvous = launch.rendezvous().map_or("none".into(), ToString::to_string);
    let rendezvous = if rendezvous.starts_with("file:///shared") || !rendezvous.starts_with("file") {
        rendezvous
    } else {
        "a directory".into()
    };
    let [rank, size, local_rank, local_size] =
        [launch.rank(), launch.size(), launch.local_rank(), launch.local_size()];
    format!("{}: {rank} of {size}, local {local_rank} of {local_size}, {rendezvous}", launch.launcher())
}

/// Returns the variables of a case.
fn variables(case: &'static str, unset: Option<&str>) -> Vec<(&'static str, String)> {
    let mut variables: Vec<(&str, String)> = vec![];
    for word in case.split_whitespace() {
        if let Some(table) = table(word) {
            variables.extend(entries(table).map(|(name, value)| (name, value.to_owned())));
            continue;
        }
        let (name, value) = match word.split_once('=') {
            Some((name, value)) => (name, Some(value)),
            None => (word.strip_suffix('-').expect(word), unset),
        };
        variables.retain(|(other, _)| *other != name);
        let value = value.map(|value| value.replace("\\s", " ").replace("\\n", "\n"));
        variables.extend(value.map(|value| (name, value)));
    }
    variables
}

#[test]
fn variables_give_what_the_file_says() {
    let mut found = String::new();
    for line in CASES.lines().filter(|line| line.is_empty() || line.starts_with(['#', '$']) || is_table(line))
    {
        found += &format!("{line}\n");
        if let Some(case) = line.strip_prefix("$ ") {
            let outcome = outcome_of(case);
            found += &format!("{outcome}\n");
        }
    }
    if std::env::var("SNAPSHOTS").is_ok_and(|value| value == "overwrite") {
        fs::write(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/launch/environments.txt"), found).unwrap();
        return;
    }
    for (number, (expected, found)) in CASES.lines().zip(found.lines()).enumerate() {
        assert_eq!(found, expected, "environments.txt:{}", number + 1);
    }
    assert_eq!(found, CASES);
}

fn is_table(line: &str) -> bool {
    line.split_once(": ").is_some_and(|(name, rest)| name == name.to_uppercase() && rest.contains('='))
}

/// An empty value counts as unset.
fn outcome_of(case: &'static str) -> String {
    let found = outcome(variables(case, None));
    assert_eq!(outcome(variables(case, Some(""))), found, "{case}");
    found
}

#[test]
fn device_is_the_local_rank_unless_the_process_sees_one_device() {
    let launch = |variables| Launch::from_variables(entries(variables)).unwrap();
    let torchrun = launch(table("TORCHRUN").unwrap());
    let many = launch("RANK=5 WORLD_SIZE=8 LOCAL_RANK=5 LOCAL_WORLD_SIZE=8 MASTER_ADDR=a MASTER_PORT=1");
    let one = launch(table("TRAINER").unwrap());
    for (launch, visible, device) in
        [(&torchrun, 1, 0), (&torchrun, 2, 1), (&torchrun, 8, 1), (&many, 8, 5), (&one, 1, 0)]
    {
        assert_eq!(launch.device(visible), Ok(device), "{visible} devices");
    }
    for (launch, ranks, devices, text) in [
        (&torchrun, 2, 0, "2 ranks, 0 devices: "),
        (&one, 1, 0, "1 rank, 0 devices: "),
        (&many, 8, 7, "8 ranks, 7 devices: "),
    ] {
        let error = launch.device(devices).unwrap_err();
        assert!(error.to_string().starts_with(text), "{error}");
        assert_eq!(error, LaunchError::Devices { ranks, devices });
    }
}

#[test]
fn single_rank_needs_no_rendezvous() {
    let launch = Launch::from_variables(entries("RANK=0 WORLD_SIZE=1")).unwrap();
    let comm = launch.communicator(&libnccl_cpu::nccl()).unwrap();
    assert_eq!((comm.size(), comm.rank()), (1, 0));
}

#[test]
fn random_values_are_read_or_refused() {
    let tables: Vec<_> =
        CASES.lines().filter(|line| is_table(line)).map(|line| line.split_once(": ").unwrap().1).collect();
    let values =
        ["", "0", "1", "2", "-1", "4294967295", "99999999999", "x", "2(x2)", "a[1-", "[", "::", "True", "é"];
    let mut random = Random(17);
    let mut below = |limit| random.below(limit);
    for _ in inputs(20_000) {
        let mut variables: Vec<_> = entries(tables[below(tables.len())]).collect();
        for _ in 0..=below(3) {
            let place = below(variables.len());
            variables[place].1 = values[below(values.len())];
        }
        match Launch::from_variables(variables) {
            Ok(launch) => {
                assert!(launch.rank() < launch.size() && launch.local_rank() < launch.local_size());
                assert!(launch.local_size() <= launch.size());
                assert_eq!(launch.rendezvous().is_none(), launch.size() == 1);
            }
            Err(LaunchError::Variables { .. } | LaunchError::NoLauncher) => {}
            Err(other) => panic!("{other}"),
        }
    }
}
