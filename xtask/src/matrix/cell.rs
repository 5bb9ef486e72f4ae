//! One release, run by one program.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};

use super::programs::Program;
use crate::process::{End, run};

/// The checks, in the order of the table, and what the table calls them.
pub(super) const CHECKS: [(&str, &str); 18] = [
    ("load", "load"),
    ("version", "version"),
    ("functions", "functions"),
    ("missing functions", "missing"),
    ("options", "options"),
    ("codes", "codes"),
    ("last error", "last error"),
    ("ids", "ids"),
    ("bytes of an id", "bytes of an id"),
    ("id failure", "no network"),
    ("groups", "groups"),
    ("wrong arguments", "wrong arguments"),
    ("null arguments", "null"),
    ("initialisation", "no GPU"),
    ("allocation", "allocation"),
    ("simulation", "simulation"),
    ("parameters", "parameters"),
    ("encryption", "encryption"),
];

/// The traps, in the order of the table: their names in the program, and what the table calls them.
pub(super) const TRAPS: [(&str, &str); 9] = [
    ("second-id", "second id"),
    ("garbage-slot", "garbage in `*comm`"),
    ("open-group", "group left open"),
    ("null-split", "split of null"),
    ("null-shrink", "shrink of null"),
    ("null-operator", "operator for null"),
    ("null-operator-destroy", "operator of null destroyed"),
    ("zeroed-count", "zeros counted"),
    ("zeroed-destroy", "zeros destroyed"),
];

/// Longer than all the checks of a program take, if the library has to be read from a slow disk.
const LIMIT: Duration = Duration::from_secs(60);

/// What counts as a hang where one is expected. The library has been used a moment ago.
const TRAP_LIMIT: Duration = Duration::from_secs(10);

/// What a check found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Found {
    pub(super) text: String,
    /// What is not in the table, but has to be the same for all programs.
    pub(super) detail: String,
}

/// By the name of the check or the trap.
pub(super) type Cell = BTreeMap<String, Found>;

pub(super) fn examine(program: &Program, release: &str, library: &Path) -> Result<Cell> {
    let path = library.to_str().context("the library's path is no text")?;
    let mut cell = checks(program, library, "lo", &["checks", release, path])?;
    cell.extend(checks(program, library, "none", &["id-failure"])?);
    for (trap, _) in TRAPS {
        let text = spring(program, library, trap)?;
        cell.insert(trap.into(), Found { text, detail: String::new() });
    }
    Ok(cell)
}

/// Runs a set of checks. `interface` is the network interface that NCCL may use.
fn checks(program: &Program, library: &Path, interface: &str, arguments: &[&str]) -> Result<Cell> {
    let mut command = program.command(library);
    command.env("NCCL_SOCKET_IFNAME", interface).args(arguments);
    let ended = run(&mut command, LIMIT)?;
    let cell = ended.printed.lines().map(found).collect::<Result<Cell>>()?;
    if ended.end != End::Success {
        let last = ended.printed.lines().last().and_then(|line| line.split('\t').next());
        bail!(
            "{}: {} after {}: {}",
            arguments.join(" "),
            ended.end,
            last.unwrap_or("nothing"),
            ended.complained.trim()
        );
    }
    Ok(cell)
}

fn found(line: &str) -> Result<(String, Found)> {
    let mut parts = line.split('\t');
    match (parts.next(), parts.next(), parts.next(), parts.next()) {
        (Some(name), Some(text), Some(detail), None) => {
            Ok((name.into(), Found { text: text.into(), detail: detail.into() }))
        }
        _ => Err(anyhow!("{line:?} is no result of a check")),
    }
}

/// What each call of a trap answered, and how the process ended if it did not get to its end: `3, hangs`.
fn spring(program: &Program, library: &Path, trap: &str) -> Result<String> {
    let mut command = program.command(library);
    let interface = if trap == "second-id" { "none" } else { "lo" };
    command.env("NCCL_SOCKET_IFNAME", interface).args(["trap", trap]);
    let ended = run(&mut command, TRAP_LIMIT)?;
    if ended.end == End::Failure {
        bail!("trap {trap}: {}", ended.complained.trim());
    }
    let mut answers: Vec<String> = ended.printed.lines().map(String::from).collect();
    if ended.end != End::Success {
        answers.push(ended.end.to_string());
    }
    Ok(answers.join(", ").replace("absent", "-"))
}

/// What is wrong with a cell, and what sets it apart from the first program's.
pub(super) fn problems(cell: &Cell, first: &Cell) -> Vec<String> {
    let mut problems = Vec::new();
    for (name, _) in CHECKS.into_iter().chain(TRAPS) {
        match (cell.get(name), first.get(name)) {
            (None, _) => problems.push(format!("{name}: nothing was found")),
            (Some(found), _) if found.text.starts_with("failed: ") => {
                problems.push(format!("{name}: {}", found.text));
            }
            (found, other) if found != other => {
                problems.push(format!("{name}: {found:?}; the first program found {other:?}"));
            }
            _ => {}
        }
    }
    problems
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cell(codes: &str, detail: &str) -> Cell {
        let names = CHECKS.into_iter().chain(TRAPS).map(|(name, _)| name);
        let mut cell: Cell =
            names.map(|name| (name.into(), Found { text: "ok".into(), detail: String::new() })).collect();
        cell.insert("codes".into(), Found { text: codes.into(), detail: detail.into() });
        cell
    }

    #[test]
    fn a_failure_a_gap_and_a_difference_are_problems() {
        let first = cell("0 to 8", "texts");
        assert!(problems(&first, &first).is_empty());
        assert_eq!(problems(&cell("failed: why", ""), &first), ["codes: failed: why"]);
        assert_eq!(problems(&cell("0 to 8", "other texts"), &first).len(), 1);
        let mut gap = first.clone();
        gap.remove("load");
        assert_eq!(problems(&gap, &first), ["load: nothing was found"]);
    }

    #[test]
    fn lines_are_results() {
        let (name, result) = found("codes\t0 to 8\ttexts").unwrap();
        assert_eq!((&*name, &*result.text, &*result.detail), ("codes", "0 to 8", "texts"));
        assert!(found("NCCL version 2.3").is_err());
    }
}
