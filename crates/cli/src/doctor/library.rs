//! The library that a program loads, and how it is found.

use std::net::IpAddr;
use std::path::{Path, PathBuf};

use itertools::Itertools;
use libnccl::buffer::MemorySpace;
use libnccl::error::{Attempt, LoadError};
use libnccl::internal::PATH_VARIABLE;
use libnccl::{Backend, Nccl, Version};
use libnccl_observe::library_file::Identity;
use serde::{Deserialize, Serialize};

use super::child::Probe;
use super::finding::{Finding, Text};
use crate::library::{is_named_by_variable, load};
use crate::nccl_file::{Cuda, NcclFile};

/// The advice if the process that loads libraries could not be started.
pub(super) const NOT_STARTED: &str = "mount /proc, and run `nccl doctor` again";
const CPU_IMPLEMENTATION: &str = "use the CPU backend: `nccl bench --cpu`, the crate libnccl-cpu";

#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct Search {
    pub(crate) library: Option<Library>,
    pub(crate) error: Option<String>,
    /// The failed attempts to load a library, in search order; an attempt may have no path.
    pub(crate) tried: Vec<Tried>,
    pub(super) named: Option<Named>,
    /// The finding if the search was not completed.
    #[serde(skip)]
    pub(super) unfinished: Option<Finding>,
}

#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub(super) enum Named {
    Option,
    Variable,
}

/// The loaded library. The field names are also the names in the JSON.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Library {
    pub(crate) path: Option<PathBuf>,
    /// The search rule that found the library.
    pub(crate) source: String,
    pub(crate) version: Text<Version>,
    /// The CUDA version that it was compiled with.
    pub(crate) cuda: Option<Text<Cuda>>,
    /// The memory that its communicators work on: `device` or `host`.
    pub(crate) memory: String,
    #[serde(flatten)]
    pub(crate) identity: Identity,
    pub(crate) unique_id: Check,
    /// The library's warnings, and the lines of its log about settings.
    pub(crate) log: Vec<String>,
    pub(crate) missing_functions: Vec<Missing>,
    /// Other libnccl files in this process, whose symbols may interfere with this library's.
    pub(crate) other_loaded_libraries: Vec<PathBuf>,
    #[serde(skip)]
    pub(crate) file: NcclFile,
    #[serde(skip)]
    pub(crate) probe: Probe,
}

#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Tried {
    pub(crate) source: String,
    pub(crate) path: Option<PathBuf>,
    pub(crate) problem: String,
}

#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Missing {
    pub(crate) name: String,
    pub(crate) since: Text<Version>,
}

#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct Check {
    pub(crate) ok: bool,
    pub(crate) problem: Option<String>,
    /// The address of the ranks' bootstrap; `null` if it is unknown.
    pub(crate) address: Option<IpAddr>,
}

impl Search {
    pub(super) fn new(file: Option<&Path>) -> (Self, Option<Nccl>) {
        let (nccl, error, attempts) = match load(file) {
            Ok(nccl) => {
                let rejected = match nccl.backend() {
                    Backend::Loaded { rejected, .. } => rejected.clone(),
                    _ => Vec::new(),
                };
                (Some(nccl), None, rejected)
            }
            // The error's own text repeats the attempts.
            Err(LoadError::NotFound { attempts }) => {
                (None, Some("no NCCL library could be loaded".into()), attempts.to_vec())
            }
            Err(error) => (None, Some(error.to_string()), Vec::new()),
        };
        let by_variable = attempts.iter().any(is_named_by_variable).then_some(Named::Variable);
        let named = file.map(|_| Named::Option).or(by_variable);
        let library = nccl.as_ref().map(Library::new);
        let tried = attempts.iter().map(Tried::new).collect();
        (Self { library, error, tried, named, unfinished: None }, nccl)
    }

    pub(super) fn unfinished(finding: Finding) -> Self {
        Self { error: Some(finding.text.clone()), unfinished: Some(finding), ..Self::default() }
    }

    pub(crate) fn findings(&self, needs: Option<Version>) -> Vec<Finding> {
        let finding = if self.library.is_some() { Finding::warning } else { Finding::problem };
        let broken = self.tried.iter().filter(|_| self.named.is_none()).filter_map(Tried::broken);
        let broken = broken.map(|(text, advice)| finding(text, advice));
        match &self.library {
            Some(library) => library.findings(needs).into_iter().chain(broken).collect(),
            None => {
                let none =
                    || Finding::problem(self.error.clone().unwrap_or_default(), self.way_to_a_library());
                broken.chain([self.unfinished.clone().unwrap_or_else(none)]).collect()
            }
        }
    }

    fn way_to_a_library(&self) -> String {
        let absent = self.tried.iter().find_map(Tried::absent_dependency);
        match (self.named, absent) {
            (Some(_), Some(absent)) => way_to_a_dependency(absent),
            (Some(Named::Option), None) => {
                "give --library the file of an NCCL library, or leave it out to search for one".into()
            }
            (Some(Named::Variable), None) => {
                format!("set {PATH_VARIABLE} to the file of an NCCL library, or unset it to search for one")
            }
            (None, _) => format!(
                "install NCCL: pip install nvidia-nccl-cu12 (CUDA 12) or pip install nvidia-nccl-cu13 (CUDA 13); or, if it is \
                 in another place, set {PATH_VARIABLE} to its file; or, without a GPU, {CPU_IMPLEMENTATION}"
            ),
        }
    }
}

impl Check {
    fn new(probe: &Probe, has_address: bool) -> Self {
        let Some(call) = &probe.call else {
            return Self { ok: false, problem: Some(probe.reasons()), address: None };
        };
        let problem = call.problem.as_ref().map(|problem| {
            // The error already contains one of them.
            let warnings = probe.warnings().into_iter().filter(|warning| !problem.contains(warning));
            [problem.as_str()].into_iter().chain(warnings).join("; ")
        });
        let address = probe.address().filter(|_| has_address).map(|(address, _)| address);
        Self { ok: call.id.is_some(), problem, address }
    }
}

impl Library {
    fn new(nccl: &Nccl) -> Self {
        let (path, source) = match nccl.backend() {
            Backend::Linked { path } => (path.clone(), "linked at build time"),
            Backend::Loaded { path, source, .. } => (Some(path.clone()), *source),
            Backend::InProcess { name } => (None, *name),
            _ => (None, "unknown"),
        };
        let missing = nccl.functions().filter(|function| !function.present);
        let missing = missing.map(|one| Missing { name: one.name.into(), since: Text(one.since) });
        Self {
            path,
            source: source.into(),
            version: Text(nccl.version()),
            cuda: None,
            memory: nccl.memory_space().to_string(),
            identity: Identity::default(),
            unique_id: Check::default(),
            log: vec![],
            missing_functions: missing.collect(),
            other_loaded_libraries: nccl.other_loaded_libraries(),
            file: NcclFile::default(),
            probe: Probe::default(),
        }
    }

    /// Adds the data in the library's file, and the results of the child process.
    pub(super) fn with(mut self, probe: Probe) -> Self {
        self.file = self.path.as_deref().and_then(NcclFile::read).unwrap_or_default();
        (self.cuda, self.identity) = (self.file.cuda.map(Text), self.file.identity.clone());
        // The CPU backend's unique id has different contents.
        self.unique_id = Check::new(&probe, self.needs_network());
        let lines = probe.set_by_environment().into_iter().chain(probe.warnings());
        self.log = lines.map(str::to_owned).collect();
        Self { probe, ..self }
    }

    /// Returns whether the library needs NVIDIA's driver. AMD's library needs another driver.
    pub(crate) fn needs_driver(&self) -> bool {
        let is_rccl = self.path.as_ref().is_some_and(|path| path.to_string_lossy().contains("librccl"));
        self.memory == MemorySpace::Device.to_string() && !is_rccl
    }

    /// Returns whether the library can connect several machines, unlike the CPU backend.
    pub(crate) fn needs_network(&self) -> bool {
        self.memory == MemorySpace::Device.to_string() && !self.file.is_cpu_backend
    }

    fn findings(&self, needs: Option<Version>) -> Vec<Finding> {
        let Self { path, source, cuda, memory, unique_id, missing_functions, .. } = self;
        let version = self.version.0;
        let place = match path {
            Some(path) => format!("{} ({source})", path.display()),
            None => source.clone(),
        };
        let cuda = cuda.map(|Text(cuda)| format!(", compiled with CUDA {cuda}")).unwrap_or_default();
        let about = format!("NCCL {version}{cuda}, for {memory} memory; this program is built for NCCL");
        let mut findings = vec![Finding::ok(place), Finding::ok(format!("{about} {}", Version::HEADER))];
        if self.identity.size > 0 {
            findings.push(Finding::ok(format!("its file: {}", self.identity)));
        }
        let advice = "fix what `network` and `variables` list below; NCCL_DEBUG=INFO makes NCCL log more";
        findings.push(match &unique_id.problem {
            None => Finding::ok(match unique_id.address {
                Some(address) => format!("a unique id can be made; its address is {address}"),
                None => "a unique id can be made".into(),
            }),
            Some(problem) => Finding::problem(format!("no unique id can be made: {problem}"), advice),
        });
        if let (Some(failure), Some(_)) = (&self.probe.failure, &self.probe.call) {
            let text = "the library or one of its plugins did not end normally after the unique id";
            let advice = "unset the variables that name plugins, one at a time";
            findings.push(Finding::warning(format!("{text}: {failure}"), advice));
        }
        if let Some(needs) = needs {
            let is = if version < needs { "is" } else { "is not" };
            let text = format!("NCCL {version} {is} older than {needs}, which --needs requires");
            let advice = format!("install NCCL {needs} or newer, or set {PATH_VARIABLE} to its file");
            findings.push(if version < needs { Finding::problem(text, advice) } else { Finding::ok(text) });
        }
        let (own, newer): (Vec<_>, Vec<_>) = missing_functions.iter().partition(|one| one.since.0 <= version);
        if !own.is_empty() {
            let text = format!("the library says that it is NCCL {version}, and lacks {}", of_versions(&own));
            let advice = format!("install NCCL {version} or newer as NVIDIA builds it");
            let is_needed = own.iter().any(|missing| needs.is_some_and(|needs| missing.since.0 <= needs));
            let finding = if is_needed { Finding::problem } else { Finding::warning };
            findings.push(finding(text, advice));
        }
        if !newer.is_empty() {
            findings.push(Finding::ok(format!("missing, because newer: {}", of_versions(&newer))));
        }
        findings
    }
}

/// Returns the number and the names of functions, with the oldest version that has one of them.
fn of_versions(missing: &[&Missing]) -> String {
    let since = missing.iter().map(|missing| missing.since.0).min();
    let since = since.map(|since| format!(" of NCCL {since} or later")).unwrap_or_default();
    let noun = if missing.len() == 1 { "function" } else { "functions" };
    format!("{} {noun}{since}: {}", missing.len(), missing.iter().map(|missing| &missing.name).join(", "))
}

impl Tried {
    fn new(attempt: &Attempt) -> Self {
        let Attempt { source, path, problem, .. } = attempt;
        let path = Some(path.clone()).filter(|path| !path.as_os_str().is_empty());
        Self { source: (*source).into(), path, problem: problem.clone() }
    }

    pub(crate) fn text(&self) -> String {
        let Self { source, path, problem } = self;
        match path {
            Some(path) => format!("{} ({source}): {problem}", path.display()),
            None => format!("{source}: {problem}"),
        }
    }

    /// Returns the problem of a library that exists but cannot be loaded, and the advice.
    fn broken(&self) -> Option<(String, String)> {
        let path = self.path.as_ref()?;
        if let Some(absent) = self.absent_dependency() {
            return Some((self.text(), way_to_a_dependency(absent)));
        }
        let exists = match path {
            path if path.is_absolute() => path.exists(),
            _ => !self.problem.contains("No such file or directory"),
        };
        exists.then(|| (self.text(), format!("repair or remove {} ({})", path.display(), self.source)))
    }

    /// Returns the missing dependency that prevents the library from being loaded.
    fn absent_dependency(&self) -> Option<&str> {
        Some(self.problem.strip_prefix("it needs ")?.split_once(", which cannot be opened")?.0)
    }
}

fn way_to_a_dependency(name: &str) -> String {
    format!("install {name}, or add its directory to LD_LIBRARY_PATH")
}
