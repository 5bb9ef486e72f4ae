//! The configuration files of NCCL, and what they change.

use libnccl::Version;

use super::finding::Finding;
use crate::settings::{CONF_FILE, ConfigurationFile, Line, Settings, taken_literally};

pub(super) fn findings(settings: &Settings, release: Version) -> Vec<Finding> {
    let mut findings: Vec<_> = settings.files.iter().flat_map(of_file).collect();
    if release < CONF_FILE && settings.value("NCCL_CONF_FILE").is_some() {
        findings.push(Finding::warning(
            format!(
                "{}: NCCL {release} does not read it, but {CONF_FILE} does",
                settings.text("NCCL_CONF_FILE")
            ),
            "move the settings to ~/.nccl.conf or /etc/nccl.conf, or into the environment",
        ));
    }
    if findings.is_empty() {
        let paths: Vec<_> = settings.files.iter().map(|file| file.path.display().to_string()).collect();
        findings.push(Finding::ok(format!("none: no {}", paths.join(", no "))));
    }
    findings
}

fn of_file(file: &ConfigurationFile) -> Vec<Finding> {
    let path = file.path.display();
    let Some(lines) = &file.lines else {
        let unreadable = || {
            let text = format!("{path}: this user cannot read it, so NCCL takes nothing from it");
            Finding::warning(text, "make it readable, or remove it")
        };
        return match file {
            ConfigurationFile { exists: true, .. } => vec![unreadable()],
            ConfigurationFile { is_named: true, .. } => vec![missing(&path.to_string())],
            _ => Vec::new(),
        };
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
        let Line::Set { name, value, .. } = line else { continue };
        let of_name = name.contains(char::is_whitespace).then_some("the spaces are part of the name");
        for part in of_name.into_iter().chain(taken_literally(value)) {
            findings.push(Finding::warning(
                format!("{path}: {name}={value:?}: {part}"),
                "write NAME=VALUE, without spaces, quotes and `export`, and lines that end as on Linux",
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
