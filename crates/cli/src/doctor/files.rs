//! The configuration files of NCCL, and what they change.

use std::path::PathBuf;

use super::finding::Finding;
use super::library::Library;
use crate::settings::{ConfigurationFile, Line, Settings, taken_literally};

/// Returns the findings; `unread` has the settings of files that the library did not read.
pub(super) fn findings(
    settings: &Settings,
    unread: &[(String, PathBuf)],
    library: Option<&Library>,
) -> Vec<Finding> {
    let mut findings = Vec::new();
    for file in &settings.files {
        let unread = unread.iter().filter(|(_, path)| *path == file.path).map(|(name, _)| name.as_str());
        let unread: Vec<_> = unread.collect();
        findings.extend(of_file(file, &unread));
        let Some(library) = library.filter(|_| !unread.is_empty()) else { continue };
        let (path, version) = (file.path.display(), library.version.0);
        let text = format!("{path}: NCCL {version} does not read {} from it", unread.join(", "));
        findings.push(match library.file.is_cpu_backend {
            true => Finding::ok(text + ", as the CPU backend reads no files"),
            false => Finding::warning(
                text,
                "move the settings to the environment, to ~/.nccl.conf or to /etc/nccl.conf: old versions ignore \
                 NCCL_CONF_FILE, and take the home directory from the list of users",
            ),
        });
    }
    if findings.is_empty() {
        let paths: Vec<_> = settings.files.iter().map(|file| file.path.display().to_string()).collect();
        findings.push(Finding::ok(format!("none: no {}", paths.join(", no "))));
    }
    findings
}

/// Returns the findings about a file, of which the library did not read the names in `unread`.
fn of_file(file: &ConfigurationFile, unread: &[&str]) -> Vec<Finding> {
    let path = file.path.display();
    let Some(lines) = &file.lines else {
        return match file {
            ConfigurationFile { exists: true, .. } => vec![Finding::warning(
                format!("{path}: this user cannot read it, so NCCL takes nothing from it"),
                "make it readable, or remove it",
            )],
            ConfigurationFile { is_named: true, .. } => vec![missing(&path.to_string())],
            _ => Vec::new(),
        };
    };
    let mut findings = Vec::new();
    let mut effective = Vec::new();
    for line in lines {
        let (name, value, overridden_by) = match line {
            Line::Ignored(text) => {
                findings.push(Finding::warning(
                    format!("{path}: NCCL ignores the line {text:?}, which has no ="),
                    "write NAME=VALUE, without spaces around =",
                ));
                continue;
            }
            Line::Set { name, value, overridden_by } => (name, value, overridden_by),
        };
        match overridden_by {
            Some(origin) => findings
                .push(Finding::ok(format!("{path}: {name} has no effect; its value is from {origin}"))),
            None if unread.contains(&name.as_str()) => {}
            None => effective.push(format!("{name}={value}")),
        }
        let of_name = name.contains(char::is_whitespace).then_some("the spaces are part of the name");
        for part in of_name.into_iter().chain(taken_literally(value)) {
            findings.push(Finding::warning(
                format!("{path}: {name}={value:?}: {part}"),
                "write NAME=VALUE, without spaces, quotes and `export`, comments on lines of their own, and lines that end \
                 as on Linux",
            ));
        }
    }
    let sets = if effective.is_empty() { "nothing".into() } else { effective.join(", ") };
    findings.insert(0, Finding::ok(format!("{path} sets {sets}")));
    findings
}

fn missing(path: &str) -> Finding {
    let advice = if path.starts_with('~') {
        "give NCCL_CONF_FILE an absolute path, as NCCL does not expand ~"
    } else {
        "correct NCCL_CONF_FILE, or unset it to use ~/.nccl.conf"
    };
    Finding::warning(
        format!("NCCL_CONF_FILE={path}: there is no such file, which NCCL does not report"),
        advice,
    )
}
