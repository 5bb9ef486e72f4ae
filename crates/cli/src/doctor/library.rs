//! The library that a program gets, and why.

use std::net::IpAddr;
use std::path::{Path, PathBuf};

use libnccl::buffer::MemorySpace;
use libnccl::error::{Attempt, LoadError};
use libnccl::internal::PATH_VARIABLE;
use libnccl::{Backend, Nccl, UniqueId, Version};
use serde::Serialize;

use super::finding::Finding;
use crate::library::{is_named_by_variable, load};
use crate::nccl_file::NcclFile;
use crate::variables::Variables;

/// The release from which on a unique id begins with 8 bytes of a number; the address is behind.
const NUMBER_BEFORE_ADDRESS: Version = Version::new(2, 16, 2);
const CPU_IMPLEMENTATION: &str = "use the CPU backend: `nccl bench --cpu`, the crate libnccl-cpu";

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
#[derive(Debug, Default, Serialize)]
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

#[derive(Debug, Default, Serialize)]
pub(crate) struct Check {
    pub(crate) ok: bool,
    pub(crate) problem: Option<String>,
    /// The address at which the ranks meet; `null` if it cannot be told.
    pub(crate) address: Option<IpAddr>,
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

    pub(crate) fn findings(&self, needs: Option<Version>) -> Vec<Finding> {
        let broken = self.tried.iter().filter(|_| self.named.is_none()).filter_map(Tried::broken);
        match &self.library {
            Some(library) => {
                let broken = broken.map(|(text, advice)| Finding::warning(text, advice));
                library.findings(needs).into_iter().chain(broken).collect()
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
        // That of the CPU backend has another content.
        let is_of_nccl = nccl.memory_space() == MemorySpace::Device && !Variables::of(&file).is_cpu;
        let address = unique_id.as_ref().ok().filter(|_| is_of_nccl);
        let address = address.and_then(|id| address_in(id, nccl.version()));
        Self {
            path,
            source: source.into(),
            version: nccl.version().to_string(),
            cuda: file.cuda.map(|cuda| cuda.to_string()),
            memory: nccl.memory_space().to_string(),
            unique_id: Check {
                ok: unique_id.is_ok(),
                problem: unique_id.err().map(|error| error.to_string()),
                address,
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

    /// Returns whether its ranks may be on several machines. Those of the CPU backend are on one.
    pub(crate) fn needs_network(&self) -> bool {
        self.memory == MemorySpace::Device.to_string()
    }

    fn findings(&self, needs: Option<Version>) -> Vec<Finding> {
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
            None => Finding::ok(match unique_id.address {
                Some(address) => format!("a unique id can be made; its address is {address}"),
                None => "a unique id can be made".into(),
            }),
            Some(problem) => Finding::problem(
                format!("no unique id can be made: {problem}"),
                "see the network below, and set NCCL_DEBUG=INFO to see why",
            ),
        });
        let release: Option<Version> = version.parse().ok();
        if let (Some(release), Some(needs)) = (release, needs) {
            findings.push(if release < needs {
                Finding::problem(
                    format!("NCCL {release} is older than {needs}, which --needs asks for"),
                    format!("install NCCL {needs} or newer, or set {PATH_VARIABLE} to its file"),
                )
            } else {
                Finding::ok(format!("NCCL {release} is not older than {needs}, which --needs asks for"))
            });
        }
        let is_of = |missing: &&Missing, release: Option<Version>| {
            release
                .is_some_and(|release| missing.since.parse::<Version>().is_ok_and(|since| since <= release))
        };
        let (own, newer): (Vec<_>, Vec<_>) =
            missing_functions.iter().partition(|missing| is_of(missing, release));
        if !own.is_empty() {
            let text = format!("the library says that it is NCCL {version}, and lacks {}", of_releases(&own));
            let advice = format!("install NCCL {version} or newer as NVIDIA builds it");
            let is_needed = own.iter().any(|missing| is_of(missing, needs));
            let finding = if is_needed { Finding::problem } else { Finding::warning };
            findings.push(finding(text, advice));
        }
        if !newer.is_empty() {
            findings.push(Finding::ok(format!("missing, because newer: {}", of_releases(&newer))));
        }
        findings
    }
}

/// Returns the number and the names of functions, with the oldest release of one.
fn of_releases(missing: &[&Missing]) -> String {
    let since = missing.iter().filter_map(|missing| missing.since.parse::<Version>().ok()).min();
    let since = since.map(|since| format!(" of NCCL {since} or later")).unwrap_or_default();
    let names: Vec<_> = missing.iter().map(|missing| missing.name.as_str()).collect();
    let noun = if names.len() == 1 { "function" } else { "functions" };
    format!("{} {noun}{since}: {}", names.len(), names.join(", "))
}

/// Returns the address in a unique id of NCCL, which is that of an interface of this process, or of `NCCL_COMM_ID`.
fn address_in(id: &UniqueId, release: Version) -> Option<IpAddr> {
    let at = if release < NUMBER_BEFORE_ADDRESS { 0 } else { 8 };
    let address = &id.as_bytes()[at..];
    let family = u16::from_ne_bytes(*address.first_chunk()?);
    match libc::c_int::from(family) {
        libc::AF_INET => Some(IpAddr::from(*address[4..].first_chunk::<4>()?)),
        libc::AF_INET6 => Some(IpAddr::from(*address[8..].first_chunk::<16>()?)),
        _ => None,
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
