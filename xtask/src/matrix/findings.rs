//! The findings of one program about one release.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};

use super::checks::CHECKS;
use super::programs::Program;
use super::quirks::QUIRKS;
use crate::process::{End, run};

/// The time limit for all checks, which suffices to read the library from a slow disk.
const CHECKS_LIMIT: Duration = Duration::from_secs(60);

/// The time limit for a quirk that may hang. The library is in the page cache by then.
const QUIRK_LIMIT: Duration = Duration::from_secs(10);

/// The result of a check or of the calls of a quirk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Finding {
    pub(super) text: String,
    /// More that all programs have to agree on, but that is not in the table.
    pub(super) detail: String,
}

/// The findings by the name of the check or the quirk.
pub(super) type Findings = BTreeMap<String, Finding>;

/// Runs all checks and quirks.
pub(super) fn examine(program: &Program, release: &str, library: &Path) -> Result<Findings> {
    let path = library.to_str().context("the library's path is not valid UTF-8")?;
    let mut findings = checks(program, library, "lo", &["checks", release, path])?;
    findings.extend(checks(program, library, "none", &["id-failure"])?);
    for quirk in QUIRKS {
        let text = calls(program, library, quirk.name)?;
        findings.insert(quirk.name.into(), Finding { text, detail: String::new() });
    }
    Ok(findings)
}

/// Runs a set of checks. `interface` is the network interface that NCCL may use.
fn checks(program: &Program, library: &Path, interface: &str, arguments: &[&str]) -> Result<Findings> {
    let mut command = program.command(library);
    command.env("NCCL_SOCKET_IFNAME", interface).args(arguments);
    let outcome = run(&mut command, CHECKS_LIMIT)?;
    let findings = outcome.stdout.lines().map(parse).collect::<Result<Findings>>()?;
    if outcome.end != End::Success {
        let last = outcome.stdout.lines().last().and_then(|line| line.split('\t').next());
        bail!(
            "{}: {} after {}: {}",
            arguments.join(" "),
            outcome.end,
            last.unwrap_or("nothing"),
            outcome.stderr.trim()
        );
    }
    Ok(findings)
}

fn parse(line: &str) -> Result<(String, Finding)> {
    let mut parts = line.split('\t');
    match (parts.next(), parts.next(), parts.next(), parts.next()) {
        (Some(name), Some(text), Some(detail), None) => {
            Ok((name.into(), Finding { text: text.into(), detail: detail.into() }))
        }
        _ => Err(anyhow!("the program printed {line:?}")),
    }
}

/// Returns the result codes of a quirk's calls, and how the process ended if a call did not return: `3, hangs`.
fn calls(program: &Program, library: &Path, quirk: &str) -> Result<String> {
    let mut command = program.command(library);
    let interface = if quirk == "second-id" { "none" } else { "lo" };
    command.env("NCCL_SOCKET_IFNAME", interface).args(["quirk", quirk]);
    let outcome = run(&mut command, QUIRK_LIMIT)?;
    if outcome.end == End::Failure {
        bail!("quirk {quirk}: {}", outcome.stderr.trim());
    }
    let mut results: Vec<String> = outcome.stdout.lines().map(String::from).collect();
    if outcome.end != End::Success {
        results.push(outcome.end.to_string());
    }
    Ok(results.join(", ").replace("absent", "-"))
}

/// Returns the failures among the findings, and the differences from the first program's findings.
pub(super) fn problems(findings: &Findings, first: &Findings) -> Vec<String> {
    let mut problems = Vec::new();
    for name in names() {
        match (findings.get(name), first.get(name)) {
            (None, _) => problems.push(format!("{name}: not reported")),
            (Some(finding), _) if finding.text.starts_with("failed: ") => {
                problems.push(format!("{name}: {}", finding.text));
            }
            (finding, other) if finding != other => {
                problems.push(format!("{name}: {finding:?}; the first program: {other:?}"));
            }
            _ => {}
        }
    }
    problems
}

/// Returns the names of all checks and quirks.
fn names() -> impl Iterator<Item = &'static str> {
    CHECKS.iter().map(|(name, _)| *name).chain(QUIRKS.iter().map(|quirk| quirk.name))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn findings(codes: &str, detail: &str) -> Findings {
        let ok = || Finding { text: "ok".into(), detail: String::new() };
        let mut findings: Findings = names().map(|name| (name.into(), ok())).collect();
        findings.insert("codes".into(), Finding { text: codes.into(), detail: detail.into() });
        findings
    }

    #[test]
    fn problems_are_failures_missing_findings_and_differences() {
        let first = findings("0 to 8", "texts");
        assert!(problems(&first, &first).is_empty());
        assert_eq!(problems(&findings("failed: why", ""), &first), ["codes: failed: why"]);
        assert_eq!(problems(&findings("0 to 8", "other texts"), &first).len(), 1);
        let mut incomplete = first.clone();
        incomplete.remove("load");
        assert_eq!(problems(&incomplete, &first), ["load: not reported"]);
    }

    #[test]
    fn parse_reads_a_finding_and_rejects_other_lines() {
        let (name, result) = parse("codes\t0 to 8\ttexts").unwrap();
        assert_eq!((&*name, &*result.text, &*result.detail), ("codes", "0 to 8", "texts"));
        assert!(parse("NCCL version 2.3").is_err());
    }
}
