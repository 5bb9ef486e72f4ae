//! Checks of NCCL's configuration files, and of the names and values of set variables.
//!
//! NCCL parses most values only when it creates a communicator, which needs a GPU. The rules for values are therefore derived
//! from NCCL's source code.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::Duration;

use cuda_common::finding::{FAILURES, Failures, IGNORE, Ignored, REPORT, STRICT};
use cuda_common::stack::STACKS;
use itertools::Itertools;

use super::finding::{Finding, or_ok};
use super::{Examined, network};
use crate::nccl_file::{KNOWN, Variables};
use crate::settings::{ConfigurationFile, Line, Origin, Setting, Settings, integer, taken_literally};

/// The minimum similarity between an unknown and a known name that suggests a misspelling.
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
    findings.extend(of_values(examined));
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
fn nearest<'a>(name: &str, known: &'a BTreeSet<String>) -> Option<&'a str> {
    let stem = |name: &str| {
        name.to_ascii_uppercase().trim_start_matches("LIB").trim_start_matches("NCCL_").to_owned()
    };
    let wanted = stem(name);
    let likeness = |candidate: &String| strsim::normalized_damerau_levenshtein(&wanted, &stem(candidate));
    let rated = known.iter().map(|candidate| (likeness(candidate), candidate.as_str()));
    let (likeness, best) = rated.max_by(|(a, _), (b, _)| a.total_cmp(b))?;
    (likeness >= LIKE).then_some(best)
}

/// Returns the findings about configuration files. `unread` has the settings that the library did not read.
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
    or_ok(findings, || {
        let paths = settings.files.iter().map(|file| file.path.display());
        format!("none: no {}", paths.format(", no "))
    })
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

const LEVELS: [&str; 10] = ["LOC", "NVL", "NVB", "C2C", "PIX", "PXB", "P2C", "PXN", "PHB", "SYS"];
const FUNCTIONS: [&str; 5] = ["Broadcast", "Reduce", "AllGather", "ReduceScatter", "AllReduce"];
/// The integer variables that have no default in [`KNOWN`].
const INTEGERS: [&str; 3] = ["NCCL_P2P_DISABLE", "NCCL_SET_THREAD_NAME", "NCCL_WARN_ENABLE_DEBUG_INFO"];

fn of_values(examined: &Examined) -> Vec<Finding> {
    let &Examined { settings, library, known, .. } = examined;
    let is_read = |name: &str| match known.is_cpu {
        // The CPU backend ignores the values of most of NCCL's variables.
        true => ["NCCL_DEBUG", "NCCL_DEBUG_FILE"].contains(&name),
        false => known.names.is_empty() || known.names.contains(name),
    };
    let mut findings = Vec::new();
    for (name, setting) in settings.iter() {
        let fault = match name.starts_with("LIBNCCL_CPU_") {
            true if !known.is_cpu => None,
            // The CPU backend reports some mistakes itself.
            true if library.is_some_and(|library| library.probe.rejects(name)) => None,
            true if name == REPORT => examined.output(&setting.value),
            true => of_cpu_backend(name, &setting.value),
            // Quotes, spaces and comments are reported elsewhere.
            false if !is_read(name) || taken_literally(&setting.value).is_some() => None,
            false => examined.judge(name, setting),
        };
        let with_name =
            |fault: Finding| Finding { text: format!("{}: {}", settings.text(name), fault.text), ..fault };
        findings.extend(fault.map(with_name));
    }
    let number = |name| settings.number(name).filter(|_| !known.is_cpu);
    for (least, most) in [("NCCL_MIN_NCHANNELS", "NCCL_MAX_NCHANNELS"), ("NCCL_MIN_CTAS", "NCCL_MAX_CTAS")] {
        if number(least).zip(number(most)).is_some_and(|(least, most)| least > most) {
            let text = format!("{} is above {}", settings.text(least), settings.text(most));
            findings.push(Finding::warning(text, format!("set {least} to at most {most}")));
        }
    }
    findings
}

/// Checks a variable that the CPU backend reads only during an operation.
fn of_cpu_backend(name: &str, value: &str) -> Option<Finding> {
    let (is_valid, expected) = match name {
        STRICT | STACKS => (["0", "1"].contains(&value), "0 or 1".to_owned()),
        FAILURES => (Failures::parse(value).is_some(), Failures::EXPECTED.to_owned()),
        "LIBNCCL_CPU_TIMEOUT" | "LIBNCCL_CPU_WARN_AFTER" => {
            let seconds = value.trim().parse().ok().map(Duration::try_from_secs_f64);
            (seconds.is_some_and(|seconds| seconds.is_ok()), "a number of seconds".to_owned())
        }
        IGNORE => (Ignored::parse(value).is_some(), Ignored::expected()),
        _ => return None,
    };
    let is_valid = is_valid || value.is_empty();
    (!is_valid).then(|| Finding::warning("the value is ignored", format!("set {name} to {expected}")))
}

impl Examined<'_> {
    fn judge(&self, name: &str, Setting { value, .. }: &Setting) -> Option<Finding> {
        match name {
            "NCCL_GRAPH_FILE" | "NCCL_TOPO_FILE" => return self.file(name, value),
            "NCCL_HOSTID" if value.is_empty() => {
                let text = "an empty value makes NCCL take all machines for one";
                return Some(Finding::warning(text, "unset NCCL_HOSTID, or give each machine another value"));
            }
            _ if value.is_empty() => return None,
            _ => {}
        }
        if let Some(problem) = self.library.and_then(|library| library.probe.plugins.get(name)) {
            let advice = "correct the name, or add the directory of the plugin to LD_LIBRARY_PATH";
            return Some(match name {
                "NCCL_NET" => {
                    let text = "no communicator can be made, as NCCL has the networks IB and Socket, and the plugin that \
                                may have another cannot be loaded";
                    Finding::problem(format!("{text}: {problem}"), advice)
                }
                _ => Finding::warning(format!("the plugin cannot be loaded: {problem}"), advice),
            });
        }
        let parameters = self.library.and_then(|library| library.probe.call.as_ref());
        if let Some(read) = parameters.and_then(|call| call.parameters.get(name)) {
            let (text, advice) =
                (format!("the library reads {read:?}"), format!("correct {name}, or unset it"));
            return differs(value, read).then(|| Finding::warning(text, advice));
        }
        match name {
            "NCCL_DEBUG" => word(value, &["VERSION", "WARN", "INFO", "ABORT", "TRACE", "ATTN", "NONE"], true),
            "NCCL_SOCKET_FAMILY" | "NCCL_IB_ADDR_FAMILY" => word(value, &["AF_INET", "AF_INET6"], false),
            "NCCL_LAUNCH_MODE" => word(value, &["PARALLEL", "GROUP"], true),
            "NCCL_CHECK_MODE" => word(value, &["DEFAULT", "DEBUG_LOCAL", "DEBUG_GLOBAL"], true),
            "NCCL_P2P_LEVEL" | "NCCL_NET_GDR_LEVEL" | "NCCL_NET_MERGE_LEVEL" => level(value),
            "NCCL_ALGO" => {
                const ALGORITHMS: [&str; 8] =
                    ["Tree", "Ring", "CollNet", "CollNetDirect", "CollNetChain", "NVLS", "NVLSTree", "PAT"];
                self.words(value, &ALGORITHMS)
            }
            "NCCL_PROTO" => self.words(value, &["LL", "LL128", "Simple"]),
            "NCCL_NET" => self.network(value),
            "NCCL_DEBUG_FILE" | "NCCL_TOPO_DUMP_FILE" | "NCCL_GRAPH_DUMP_FILE" => self.output(value),
            _ => judge_integer(name, value),
        }
    }

    /// Checks a file that NCCL reads.
    fn file(&self, name: &str, value: &str) -> Option<Finding> {
        if self.system.is_readable_file(value) {
            return None;
        }
        let text = match value {
            "" => "an empty value is the name of a file, which cannot be opened",
            _ if self.system.exists(value) => "this user cannot read the file",
            _ => "there is no such file",
        };
        // Without a topology file, NCCL detects the topology. Without a graph file, it fails.
        let fault = if name == "NCCL_GRAPH_FILE" { Finding::problem } else { Finding::warning };
        Some(fault(text, format!("correct the name, or unset {name}")))
    }

    /// Checks a file that NCCL writes.
    fn output(&self, value: &str) -> Option<Finding> {
        let directory = Path::new(value).parent()?;
        let is_plain = value.starts_with('/') && !directory.to_string_lossy().contains('%');
        let reason = self.system.denial(directory).filter(|_| is_plain)?;
        let text = format!("nothing can be written to {}: {reason}", directory.display());
        Some(Finding::warning(text, "make the directory, or name a file in another one"))
    }

    /// Checks a list of words, which may begin with `^`, or a list for each function: `LL;allreduce:^LL128,Simple`.
    fn words(&self, value: &str, words: &[&str]) -> Option<Finding> {
        let is = |text: &&str, words: &[&str]| words.iter().any(|word| word.eq_ignore_ascii_case(text));
        let mut unknown = Vec::new();
        for part in value.split(';').filter(|part| !part.is_empty()) {
            let (function, list) =
                part.split_once(':').map_or((None, part), |(name, list)| (Some(name), list));
            unknown.extend(function.filter(|function| !is(function, &FUNCTIONS)));
            let list = list.trim_start_matches('^').split(',').filter(|word| !word.is_empty());
            unknown.extend(list.filter(|word| !is(word, words)));
        }
        if unknown.is_empty() {
            return None;
        }
        let shown = unknown.iter().map(|word| format!("{word:?}")).join(", ");
        let advice = format!("use {}", words.join(", "));
        let is_refused = self.library.is_some_and(|library| library.file.refuses_unknown_words);
        Some(match is_refused {
            true => Finding::problem(format!("no communicator can be made, as {shown} is unknown"), advice),
            false => Finding::warning(format!("NCCL ignores {shown}, which is unknown"), advice),
        })
    }

    fn network(&self, value: &str) -> Option<Finding> {
        if value.eq_ignore_ascii_case("Socket") {
            return None;
        }
        if value.eq_ignore_ascii_case("IB") {
            let text =
                "no communicator can be made, as there is no RDMA device with a link that NCCL may use";
            let fault = || Finding::problem(text, "unset NCCL_NET, or set it to Socket");
            return (!network::has_rdma(self.system, self.settings)).then(fault);
        }
        // A loadable plugin may have this name.
        let has_plugin =
            self.settings.value("NCCL_NET_PLUGIN").is_none_or(|plugin| !plugin.eq_ignore_ascii_case("none"));
        let text = "no communicator can be made, as NCCL has the networks IB and Socket, and NCCL_NET_PLUGIN excludes others";
        (!has_plugin).then(|| Finding::problem(text, "correct NCCL_NET or NCCL_NET_PLUGIN"))
    }
}

fn judge_integer(name: &str, value: &str) -> Option<Finding> {
    let default = KNOWN.defaults.get(name).cloned().flatten();
    let default = default.and_then(|default| default.parse::<i64>().ok());
    if default.is_none() && !INTEGERS.contains(&name) {
        return None;
    }
    let (number, rest) = integer(value);
    let decimal = value.trim_start_matches([' ', '\t', '+', '-', '0']);
    let is_octal = value.trim_start().starts_with('0') && number != decimal.parse().unwrap_or(number);
    let range = KNOWN.ranges.get(name);
    let range = range.filter(|(least, most)| !(*least..=*most).contains(&number) && default != Some(number));
    let correct = format!("correct {name}, or unset it");
    let (text, advice) = if !rest.trim().is_empty() || is_octal {
        let advice = format!("set {name} to a decimal number without a unit, or unset it");
        (format!("NCCL reads it as {number}"), advice)
    } else if number == i64::MAX || number == i64::MIN {
        ("the number is too large, so NCCL uses the default".into(), format!("correct {name}"))
    } else if let Some((least, most)) = range {
        (format!("expected {least} to {most}"), correct)
    } else if name.ends_with("_NTHREADS") && number % 32 != 0 {
        ("NCCL ignores it, as it is not a multiple of 32".into(), "use 64, 128, 256 or 512".into())
    } else if name == "NCCL_WORK_FIFO_BYTES" && number.count_ones() != 1 {
        ("NCCL ignores it, as it is not a power of 2".into(), correct)
    } else {
        return None;
    };
    Some(Finding::warning(text, advice))
}

fn word(value: &str, words: &[&str], ignores_case: bool) -> Option<Finding> {
    let is = |word: &&str| if ignores_case { word.eq_ignore_ascii_case(value) } else { *word == value };
    let fault = || Finding::warning("NCCL ignores this value", format!("use {}", words.join(", ")));
    (!words.iter().any(is)).then(fault)
}

/// Checks a level: an upper-case word or, in the old syntax, a number from 0 to 4.
fn level(value: &str) -> Option<Finding> {
    let advice = format!("use {}", LEVELS.join(", "));
    match value.starts_with(|digit: char| digit.is_ascii_digit()) {
        true if integer(value).0 > 4 => Some(Finding::warning("NCCL reads a number above 4 as SYS", advice)),
        true => None,
        false => (!LEVELS.contains(&value)).then(|| Finding::warning("NCCL ignores this value", advice)),
    }
}

/// Returns whether a parameter's value differs from the variable's, ignoring case and the order of words.
fn differs(value: &str, read: &str) -> bool {
    let words =
        |text: &str| text.split(',').map(|word| word.trim().to_ascii_uppercase()).sorted().collect_vec();
    let is_one_of = |words: &[&str; 3], text: &str| words.iter().any(|word| word.eq_ignore_ascii_case(text));
    let switches = [["1", "T", "TRUE"], ["0", "F", "FALSE"]];
    // Values that let NCCL choose are not compared.
    let is_open = value.starts_with('^') || value.to_ascii_uppercase().contains("ALL") || value.contains('%');
    let is_same_switch = switches.iter().any(|words| is_one_of(words, value) && is_one_of(words, read));
    !is_open && !is_same_switch && words(value) != words(read)
}
