//! The library that a program gets, and why.

use std::path::{Path, PathBuf};

use libnccl::{Attempt, Backend, LoadError, MemorySpace, Nccl, PATH_VARIABLE, Version};
use serde::Serialize;

use super::finding::Finding;
use crate::library::{is_named_by_variable, load};
use crate::nccl_file::NcclFile;

const CPU_IMPLEMENTATION: &str = "use the CPU implementation: `nccl bench --cpu`, the crate libnccl-cpu";

/// The result of loading it.
#[derive(Debug)]
pub(crate) struct Search {
    pub(crate) library: Option<Library>,
    /// The reason why no library was loaded.
    pub(crate) error: Option<String>,
    /// The places that were searched before, with the attempts that failed; a place may be empty.
    pub(crate) tried: Vec<Tried>,
    /// The way in which the user named a file, if so.
    named: Option<Named>,
}

#[derive(Debug, Clone, Copy)]
enum Named {
    Option,
    Variable,
}

/// The loaded library. The names of the fields are those of the JSON.
#[derive(Debug, Serialize)]
pub(crate) struct Library {
    pub(crate) path: Option<PathBuf>,
    /// The rule of the search that led to the library.
    pub(crate) source: String,
    pub(crate) version: String,
    /// The release of CUDA that it was compiled with.
    pub(crate) cuda: Option<String>,
    /// The memory that its communicators work on: `device` or `host`.
    pub(crate) memory: String,
    pub(crate) unique_id: Check,
    pub(crate) missing_functions: Vec<Missing>,
    /// Other libnccl files in this process, whose symbols may interfere with this one's.
    pub(crate) other_loaded_libraries: Vec<PathBuf>,
    /// The file's own strings.
    #[serde(skip)]
    pub(crate) file: NcclFile,
}

#[derive(Debug, Serialize)]
pub(crate) struct Tried {
    pub(crate) source: String,
    pub(crate) path: Option<PathBuf>,
    pub(crate) problem: String,
}

#[derive(Debug, Serialize)]
pub(crate) struct Missing {
    pub(crate) name: String,
    pub(crate) since: String,
}

#[derive(Debug, Serialize)]
pub(crate) struct Check {
    pub(crate) ok: bool,
    pub(crate) problem: Option<String>,
}

impl Search {
    /// Loads the file that the user named, or searches for one.
    pub(crate) fn new(file: Option<&Path>) -> Self {
        let (library, error, attempts) = match &load(file) {
            Ok(nccl) => {
                let rejected = match nccl.backend() {
                    Backend::Loaded { rejected, .. } => rejected.clone(),
                    _ => Vec::new(),
                };
                (Some(Library::new(nccl)), None, rejected)
            }
            // The error's own text repeats the attempts.
            Err(LoadError::NotFound { attempts }) => {
                (None, Some("no NCCL library could be loaded".into()), attempts.to_vec())
            }
            Err(error) => (None, Some(error.to_string()), Vec::new()),
        };
        let by_variable = attempts.iter().any(is_named_by_variable).then_some(Named::Variable);
        let named = file.map(|_| Named::Option).or(by_variable);
        Self { library, error, tried: attempts.iter().map(Tried::new).collect(), named }
    }

    /// Returns a search that ended with this library.
    #[cfg(test)]
    pub(crate) fn found(library: Library) -> Self {
        Self { library: Some(library), error: None, tried: Vec::new(), named: None }
    }

    /// Returns a search that found nothing.
    #[cfg(test)]
    pub(crate) fn nothing() -> Self {
        let error = Some("no NCCL library could be loaded".into());
        Self { library: None, error, tried: Vec::new(), named: None }
    }

    pub(crate) fn findings(&self) -> Vec<Finding> {
        let broken = self.tried.iter().filter(|_| self.named.is_none()).filter_map(Tried::broken);
        match &self.library {
            Some(library) => {
                let broken = broken.map(|(text, advice)| Finding::warning(text, advice));
                library.findings().into_iter().chain(broken).collect()
            }
            None => {
                let error = self.error.clone().unwrap_or_default();
                let broken = broken.map(|(text, advice)| Finding::problem(text, advice));
                broken.chain([Finding::problem(error, self.way_to_a_library())]).collect()
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

impl Library {
    fn new(nccl: &Nccl) -> Self {
        let (path, source) = match nccl.backend() {
            Backend::Linked { path } => (path.clone(), "linked at build time"),
            Backend::Loaded { path, source, .. } => (Some(path.clone()), *source),
            Backend::InProcess { name } => (None, *name),
            _ => (None, "unknown"),
        };
        let missing = nccl.functions().filter(|function| !function.present);
        let missing = missing
            .map(|function| Missing { name: function.name.into(), since: function.since.to_string() })
            .collect();
        let unique_id = nccl.unique_id();
        let file = path.as_deref().and_then(NcclFile::read).unwrap_or_default();
        Self {
            path,
            source: source.into(),
            version: nccl.version().to_string(),
            cuda: file.cuda.map(|cuda| cuda.to_string()),
            memory: nccl.memory_space().to_string(),
            unique_id: Check {
                ok: unique_id.is_ok(),
                problem: unique_id.err().map(|error| error.to_string()),
            },
            missing_functions: missing,
            other_loaded_libraries: nccl.other_loaded_libraries(),
            file,
        }
    }

    /// Returns whether it needs NVIDIA's driver. AMD's library needs another.
    pub(crate) fn needs_driver(&self) -> bool {
        let is_rccl = self.path.as_ref().is_some_and(|path| path.to_string_lossy().contains("librccl"));
        self.memory == MemorySpace::Device.to_string() && !is_rccl
    }

    fn findings(&self) -> Vec<Finding> {
        let Self { path, source, version, cuda, memory, unique_id, missing_functions, .. } = self;
        let place = match path {
            Some(path) => format!("{} ({source})", path.display()),
            None => source.clone(),
        };
        let cuda = cuda.as_ref().map(|cuda| format!(", compiled with CUDA {cuda}")).unwrap_or_default();
        let about =
            format!("NCCL {version}{cuda}, for {memory} memory; this program knows NCCL {}", Version::HEADER);
        let mut findings = vec![Finding::ok(place), Finding::ok(about)];
        findings.push(match &unique_id.problem {
            None => Finding::ok("a unique id can be made"),
            Some(problem) => Finding::problem(
                format!("no unique id can be made: {problem}"),
                "set NCCL_DEBUG=INFO to see why, and compare NCCL_SOCKET_IFNAME with the interfaces below",
            ),
        });
        let since = missing_functions.iter().filter_map(|missing| missing.since.parse::<Version>().ok());
        if let Some(since) = since.min() {
            let names: Vec<_> = missing_functions.iter().map(|missing| missing.name.as_str()).collect();
            findings.push(Finding::ok(format!(
                "{} functions are missing, which came with NCCL {since} or later: {}",
                names.len(),
                names.join(", ")
            )));
        }
        findings
    }
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

    /// Returns what is wrong with a library that exists and cannot be loaded, and what to do.
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

    /// Returns the library without which this one, which is there, cannot be loaded.
    fn absent_dependency(&self) -> Option<&str> {
        Some(self.problem.strip_prefix("it needs ")?.split_once(", which cannot be opened")?.0)
    }
}

fn way_to_a_dependency(name: &str) -> String {
    format!("install {name}, or add its folder to LD_LIBRARY_PATH")
}
