//! Checks of set variables against the library's variables, and of NCCL's configuration files.

use std::collections::BTreeSet;
use std::path::PathBuf;

use super::finding::Finding;
use super::{Examined, values};
use crate::nccl_file::{KNOWN, Variables};
use crate::settings::{ConfigurationFile, Line, Origin, Settings, taken_literally};

/// The similarity from which a name counts as misspelled.
const LIKE: f64 = 0.7;

/// Debugging switches, which cost performance.
const SLOW: [(&str, &str); 3] = [
    ("NCCL_P2P_DISABLE", "GPUs do not reach each other directly"),
    ("NCCL_SHM_DISABLE", "processes of one machine use the network"),
    ("NCCL_NVLS_ENABLE", "NVLink SHARP is off"),
];

pub(super) fn findings(examined: &Examined) -> Vec<Finding> {
    let &Examined { settings, library, known: Variables { names, is_cpu }, .. } = examined;
    let mut findings: Vec<_> =
        settings.iter().filter_map(|(name, _)| unknown(name, settings, names, *is_cpu)).collect();
    for (name, consequence) in SLOW {
        let is_slow = settings.number(name).is_some_and(|value| (value == 0) == name.ends_with("_ENABLE"));
        if !is_cpu && is_slow {
            let text = format!("{}: {consequence}", settings.text(name));
            let advice = format!("unset {name} once the fault that it was set for is found");
            findings.push(Finding::warning(text, advice));
        }
    }
    // Variables from files are in the section on files.
    let environment = settings.iter().filter(|(_, setting)| setting.origin == Origin::Environment);
    findings.extend(environment.filter_map(|(name, setting)| {
        // The default of the format ends with a space.
        let part = taken_literally(&setting.value).filter(|_| name != "NCCL_DEBUG_TIMESTAMP_FORMAT")?;
        let text = format!("{name}={:?} (environment): {part}", setting.value);
        Some(Finding::warning(text, format!("set {name} without them")))
    }));
    findings.extend(values::findings(examined));
    let rejected = library.iter().flat_map(|library| library.probe.rejected_variables());
    findings.extend(rejected.map(|text| Finding::warning(text, "correct the variable, or unset it")));
    if findings.is_empty() {
        let set = settings.iter().count();
        findings.push(match names.len() {
            0 => Finding::ok(format!("set: {set}; there is no library to compare them with")),
            known => Finding::ok(format!("set: {set}; the library has {known}, which `nccl env` lists")),
        });
    }
    let log = library.map(|library| library.probe.set_by_environment()).unwrap_or_default();
    findings.extend(log.into_iter().map(|line| Finding::ok(format!("NCCL's log: {line}"))));
    findings
}

fn unknown(name: &str, settings: &Settings, known: &BTreeSet<String>, is_cpu: bool) -> Option<Finding> {
    if KNOWN.pytorch.contains(name) {
        let text = format!("{}: PyTorch has retired this name", settings.text(name));
        let advice = format!("write TORCH_{name}, which PyTorch 2.2 and newer read");
        return Some(Finding::warning(text, advice));
    }
    // Only a file can have a name with spaces, and the section on files reports it.
    if known.is_empty()
        || known.contains(name)
        || name.contains(char::is_whitespace)
        || KNOWN.builds.contains(name)
        || KNOWN.prefixes.iter().any(|prefix| name.starts_with(prefix))
        || name == libnccl::internal::PATH_VARIABLE
        || (!is_cpu && name.starts_with("LIBNCCL_CPU_"))
    {
        return None;
    }
    let text = format!("{}: the library does not have this variable, and ignores it", settings.text(name));
    let nearest = nearest(name, known);
    let is_lowercase = name.starts_with(|first: char| first.is_lowercase());
    // A lower-case name counts as NCCL's only if it differs in nothing else.
    if is_lowercase && nearest != Some(&name.to_ascii_uppercase()) {
        return None;
    }
    match nearest {
        Some(nearest) => {
            Some(Finding::warning(text, format!("write {nearest}, if that is meant, or remove it")))
        }
        None if is_cpu || name.starts_with("LIBNCCL_") => None,
        None => Some(Finding::warning(text, "remove it, unless a plugin or another version reads it")),
    }
}

/// Returns the known name that is most similar to `name`, if any is similar.
pub(super) fn nearest<'a>(name: &str, known: &'a BTreeSet<String>) -> Option<&'a str> {
    let stem = |name: &str| {
        let name = name.to_ascii_uppercase();
        name.trim_start_matches("LIB").trim_start_matches("NCCL_").to_owned()
    };
    let wanted = stem(name);
    let likeness = |candidate: &String| strsim::normalized_damerau_levenshtein(&wanted, &stem(candidate));
    let rated = known.iter().map(|candidate| (likeness(candidate), candidate.as_str()));
    let (likeness, best) = rated.max_by(|(a, _), (b, _)| a.total_cmp(b))?;
    (likeness >= LIKE).then_some(best)
}

/// Returns the findings about files; `unread` has the settings of files that the library did not read.
pub(super) fn files(
    &Examined { settings, library, .. }: &Examined,
    unread: &[(String, PathBuf)],
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

/// Returns the findings about a file. The library did not read the names in `unread`.
fn of_file(file: &ConfigurationFile, unread: &[&str]) -> Vec<Finding> {
    let path = file.path.display();
    let Some(lines) = &file.lines else {
        let unread = format!("{path}: this user cannot read it, so NCCL takes nothing from it");
        let missing = format!("NCCL_CONF_FILE={path}: there is no such file, which NCCL does not report");
        let advice = match file.path.to_string_lossy().starts_with('~') {
            true => "give NCCL_CONF_FILE an absolute path, as NCCL does not expand ~",
            false => "correct NCCL_CONF_FILE, or unset it to use ~/.nccl.conf",
        };
        return match file {
            ConfigurationFile { exists: true, .. } => {
                vec![Finding::warning(unread, "make it readable, or remove it")]
            }
            ConfigurationFile { is_named: true, .. } => vec![Finding::warning(missing, advice)],
            _ => Vec::new(),
        };
    };
    let mut findings = Vec::new();
    let mut effective = Vec::new();
    for line in lines {
        match line {
            Line::Ignored(text) => {
                let text = format!("{path}: NCCL ignores the line {text:?}, which has no =");
                findings.push(Finding::warning(text, "write NAME=VALUE, without spaces around ="));
            }
            Line::Set { name, value, overridden_by } => {
                match overridden_by {
                    Some(origin) => {
                        let text = format!("{path}: {name} has no effect; its value is from {origin}");
                        findings.push(Finding::ok(text));
                    }
                    None if unread.contains(&name.as_str()) => {}
                    None => effective.push(format!("{name}={value}")),
                }
                let of_name = name.contains(char::is_whitespace).then_some("the spaces are part of the name");
                let advice = "write NAME=VALUE, without spaces, quotes and `export`, comments on separate lines, and lines that end \
                              as on Linux";
                let parts = of_name.into_iter().chain(taken_literally(value));
                findings.extend(
                    parts.map(|part| Finding::warning(format!("{path}: {name}={value:?}: {part}"), advice)),
                );
            }
        }
    }
    let sets = if effective.is_empty() { "nothing".into() } else { effective.join(", ") };
    findings.insert(0, Finding::ok(format!("{path} sets {sets}")));
    findings
}
