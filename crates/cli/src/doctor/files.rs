//! The configuration files of NCCL, and what they change.

use super::finding::Finding;
use crate::settings::{ConfigurationFile, Line, Settings};

pub(super) fn findings(settings: &Settings) -> Vec<Finding> {
    let mut findings: Vec<_> = settings.files.iter().flat_map(of_file).collect();
    if findings.is_empty() {
        let paths: Vec<_> = settings.files.iter().map(|file| file.path.display().to_string()).collect();
        findings.push(Finding::ok(format!("none: no {}", paths.join(", no "))));
    }
    findings
}

fn of_file(file: &ConfigurationFile) -> Vec<Finding> {
    let path = file.path.display();
    let Some(lines) = &file.lines else {
        return Vec::from_iter(file.is_named.then(|| missing(&path.to_string())));
    };
    let mut findings = Vec::new();
    let mut effective = Vec::new();
    for line in lines {
        match line {
            Line::Set { name, value, overridden_by: None } => effective.push(format!("{name}={value}")),
            Line::Set { name, overridden_by: Some(origin), .. } => {
                findings
                    .push(Finding::ok(format!("{path}: {name} has no effect; its value is from {origin}")));
            }
            Line::Ignored(text) => findings.push(Finding::warning(
                format!("{path}: NCCL ignores the line {text:?}, which has no ="),
                "write NAME=VALUE, without spaces around =",
            )),
        }
        if let Line::Set { name, value, .. } = line
            && (name.trim() != name || value.trim() != value)
        {
            findings.push(Finding::warning(
                format!("{path}: spaces are part of {name:?} and of its value {value:?}"),
                "write NAME=VALUE, without spaces",
            ));
        }
    }
    let sets = if effective.is_empty() { "nothing".into() } else { effective.join(", ") };
    findings.insert(0, Finding::ok(format!("{path} sets {sets}")));
    findings
}

fn missing(path: &str) -> Finding {
    let advice = if path.starts_with('~') {
        "give NCCL_CONF_FILE the whole path, as NCCL does not replace ~"
    } else {
        "correct NCCL_CONF_FILE, or unset it, with which NCCL reads ~/.nccl.conf"
    };
    Finding::warning(
        format!("NCCL_CONF_FILE={path}: there is no such file, which NCCL does not report"),
        advice,
    )
}
