//! `nccl doctor`: reports which NCCL library a program finds, why that one, what it supports, and what to do.

use std::io::{Result as IoResult, Write, stdout};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Result;
use libnccl::{Attempt, Backend, LoadError, MemorySpace, Nccl, Version};
use serde::Serialize;

use crate::args::DoctorArguments;
use crate::{gpu, library};

const CPU_IMPLEMENTATION: &str = "use the CPU implementation: `nccl bench --cpu`, the crate libnccl-cpu";

pub(crate) fn run(arguments: &DoctorArguments) -> Result<ExitCode> {
    let report = Report::new(arguments.library.as_deref());
    let mut out = stdout();
    if arguments.json {
        writeln!(out, "{}", serde_json::to_string_pretty(&report)?)?;
    } else {
        report.list(&mut out)?;
    }
    Ok(if report.library.is_some() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// The findings. The names of the fields are a stable interface: they are those of the JSON.
#[derive(Debug, Serialize)]
struct Report {
    /// The library that a program loads; `null` if there is none.
    library: Option<Library>,
    /// The reason why no library was loaded.
    error: Option<String>,
    /// The places that were searched before, with the attempts that failed; a place may be empty.
    tried: Vec<Tried>,
    /// The release of the header that the bindings were generated from.
    header_version: String,
    driver: Driver,
    /// The advice for the user, the most useful first; empty if nothing is wrong.
    advice: Vec<String>,
}

#[derive(Debug, Serialize)]
struct Library {
    path: Option<PathBuf>,
    /// The rule of the search that led to the library.
    source: String,
    version: String,
    /// The memory that its communicators work on: `device` or `host`.
    memory: String,
    unique_id: Check,
    missing_functions: Vec<Missing>,
    /// Other libnccl files in this process, whose symbols may interfere with this one's.
    other_loaded_libraries: Vec<PathBuf>,
}

#[derive(Debug, Serialize)]
struct Tried {
    source: String,
    path: Option<PathBuf>,
    problem: String,
}

#[derive(Debug, Serialize)]
struct Missing {
    name: &'static str,
    since: String,
}

/// NVIDIA's driver, which NCCL needs, or what the process has in its place.
#[derive(Debug, Serialize)]
struct Driver {
    library: &'static str,
    loaded: bool,
    /// The file, if it is libnccl's stand-in for CUDA and not NVIDIA's.
    stand_in: Option<gpu::StandIn>,
    /// The number of GPUs, or of the stand-in's devices.
    gpus: usize,
    /// The reason why no GPU is available.
    problem: Option<String>,
}

#[derive(Debug, Serialize)]
struct Check {
    ok: bool,
    problem: Option<String>,
}

impl Report {
    fn new(named: Option<&Path>) -> Self {
        // Before the library is asked for its memory: the CPU implementation has that of CUDA if CUDA is there.
        let driver = Driver::new();
        let (library, error, attempts) = match &library::load(named) {
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
        let advice = match &library {
            None if named.is_some() => {
                vec!["give --library the file of an NCCL library, or leave it out to search for one".into()]
            }
            None if attempts.iter().any(library::is_named_by_variable) => {
                let variable = library::PATH_VARIABLE;
                vec![format!("set {variable} to the file of an NCCL library, or unset it to search for one")]
            }
            None => repairs(&attempts).chain(ways_to_get_nccl(&driver)).collect(),
            Some(library) => repairs(&attempts).chain(library.advice(&driver)).collect(),
        };
        let tried = attempts.iter().map(Tried::new).collect();
        Self { library, error, tried, header_version: Version::HEADER.to_string(), driver, advice }
    }

    /// Prints names on the left and findings on the right, one below the other.
    fn list(&self, out: &mut impl Write) -> IoResult<()> {
        let Self { library, error, tried, header_version, driver, advice } = self;
        let mut entry = |name: &str, findings: Vec<String>| -> IoResult<()> {
            let names = std::iter::once(name).chain(std::iter::repeat(""));
            for (name, finding) in names.zip(findings) {
                writeln!(out, "{name:<18}{finding}")?;
            }
            Ok(())
        };
        if let Some(library) = library {
            let path = library.path.as_ref().map_or_else(String::new, |path| format!("{} ", path.display()));
            entry("library", vec![format!("{path}({})", library.source)])?;
            entry("version", vec![library.version.clone()])?;
            entry("memory", vec![library.memory.clone()])?;
            entry("unique id", vec![library.unique_id.text("can be made")])?;
            let missing = library
                .missing_functions
                .iter()
                .map(|Missing { name, since }| format!("{name}, since {since}"));
            entry("missing functions", or_none(missing.collect()))?;
            let others = library.other_loaded_libraries.iter().map(|path| path.display().to_string());
            entry("other copies", or_none(others.collect()))?;
        }
        entry("library", error.iter().map(|error| format!("none: {error}")).collect())?;
        entry("header", vec![header_version.clone()])?;
        entry("searched", tried.iter().map(Tried::text).collect())?;
        entry("driver", vec![driver.text()])?;
        entry("to do", or_none(advice.clone()))
    }
}

/// Returns the advice about libraries that exist and cannot be loaded.
fn repairs(attempts: &[Attempt]) -> impl Iterator<Item = String> {
    let broken = attempts.iter().filter(|attempt| match &attempt.path {
        path if path.is_absolute() => path.exists(),
        path => !path.as_os_str().is_empty() && !attempt.problem.contains("No such file or directory"),
    });
    broken.map(|Attempt { source, path, .. }| format!("repair or remove {} ({source})", path.display()))
}

fn ways_to_get_nccl(driver: &Driver) -> impl Iterator<Item = String> {
    let cpu = (driver.gpus == 0).then(|| format!("without a GPU, {CPU_IMPLEMENTATION}"));
    let ways = [
        "install NCCL: pip install nvidia-nccl-cu12 (CUDA 12) or pip install nvidia-nccl-cu13 (CUDA 13)"
            .into(),
        format!("or, if it is in another place, set {} to its file", library::PATH_VARIABLE),
    ];
    ways.into_iter().chain(cpu)
}

fn or_none(findings: Vec<String>) -> Vec<String> {
    if findings.is_empty() { vec!["none".into()] } else { findings }
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
        Self {
            path,
            source: source.into(),
            version: nccl.version().to_string(),
            memory: nccl.memory_space().to_string(),
            missing_functions: missing
                .map(|function| Missing { name: function.name, since: function.since.to_string() })
                .collect(),
            unique_id: Check::new(nccl.unique_id()),
            other_loaded_libraries: nccl.other_loaded_libraries(),
        }
    }

    fn advice(&self, driver: &Driver) -> impl Iterator<Item = String> {
        // AMD's library needs another driver.
        let is_rccl = self.path.as_ref().is_some_and(|path| path.to_string_lossy().contains("librccl"));
        let needs_driver =
            self.memory == MemorySpace::Device.to_string() && !is_rccl && driver.problem.is_some();
        let gpu = format!("run on a machine with an NVIDIA GPU and its driver, or {CPU_IMPLEMENTATION}");
        let copies = "let all users of NCCL in the process load the same file".to_owned();
        let id = "set NCCL_DEBUG=INFO to see why no unique id can be made".to_owned();
        let advice = [
            needs_driver.then_some(gpu),
            (!self.other_loaded_libraries.is_empty()).then_some(copies),
            (!needs_driver && !self.unique_id.ok).then_some(id),
        ];
        advice.into_iter().flatten()
    }
}

impl Tried {
    fn new(attempt: &Attempt) -> Self {
        let Attempt { source, path, problem, .. } = attempt;
        let path = Some(path.clone()).filter(|path| !path.as_os_str().is_empty());
        Self { source: (*source).into(), path, problem: problem.clone() }
    }

    fn text(&self) -> String {
        let Self { source, path, problem } = self;
        match path {
            Some(path) => format!("{} ({source}): {problem}", path.display()),
            None => format!("{source}: {problem}"),
        }
    }
}

impl Driver {
    fn new() -> Self {
        let loaded = gpu::load_driver().is_ok();
        let (gpus, problem) = gpu::count().map_or_else(|problem| (0, Some(problem)), |gpus| (gpus, None));
        Self { library: gpu::DRIVER, loaded, stand_in: gpu::stand_in(), gpus, problem }
    }

    fn text(&self) -> String {
        let Self { library, loaded, stand_in, gpus, problem } = self;
        let (name, devices) = match stand_in {
            Some(stand_in) => (stand_in.to_string(), "devices"),
            None => ((*library).to_owned(), "GPUs"),
        };
        match problem {
            None => format!("{name}, {devices}: {gpus}"),
            Some(problem) if *loaded => format!("{name}: {problem}"),
            Some(problem) => problem.clone(),
        }
    }
}

impl Check {
    fn new<T, E: ToString>(result: Result<T, E>) -> Self {
        Self { ok: result.is_ok(), problem: result.err().map(|error| error.to_string()) }
    }

    fn text(&self, fine: &str) -> String {
        self.problem.clone().unwrap_or_else(|| fine.into())
    }
}
