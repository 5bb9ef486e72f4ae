//! `nccl doctor`: reports which NCCL library a program finds, why that one, and what it supports.

use std::io::{Result as IoResult, Write, stdout};
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Result;
use libnccl::{Attempt, Backend, LoadError, Nccl, Version};
use serde::Serialize;

use crate::args::DoctorArguments;
use crate::{gpu, library};

pub(crate) fn run(arguments: &DoctorArguments) -> Result<ExitCode> {
    let report = Report::new(library::load(arguments.library.as_deref()));
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
    /// The attempts that failed before.
    tried: Vec<Tried>,
    /// The release of the header that the bindings were generated from.
    header_version: String,
    driver: Driver,
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

/// NVIDIA's driver, which NCCL needs.
#[derive(Debug, Serialize)]
struct Driver {
    library: &'static str,
    loaded: bool,
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
    fn new(loaded: Result<Nccl, LoadError>) -> Self {
        let (library, error, tried) = match &loaded {
            Ok(nccl) => {
                let rejected = match nccl.backend() {
                    Backend::Loaded { rejected, .. } => rejected.iter().map(Tried::new).collect(),
                    _ => Vec::new(),
                };
                (Some(Library::new(nccl)), None, rejected)
            }
            // The error's own text repeats the attempts.
            Err(LoadError::NotFound { attempts }) => {
                let error = "no NCCL library could be loaded".into();
                (None, Some(error), attempts.iter().map(Tried::new).collect())
            }
            Err(error) => (None, Some(error.to_string()), Vec::new()),
        };
        Self { library, error, tried, header_version: Version::HEADER.to_string(), driver: Driver::new() }
    }

    /// Prints names on the left and findings on the right, one below the other.
    fn list(&self, out: &mut impl Write) -> IoResult<()> {
        let Self { library, error, tried, header_version, driver } = self;
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
        entry("tried before", tried.iter().map(Tried::text).collect())?;
        entry("driver", vec![driver.text()])
    }
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
        Self { library: gpu::DRIVER, loaded, gpus, problem }
    }

    fn text(&self) -> String {
        let Self { library, loaded, gpus, problem } = self;
        match problem {
            None => format!("{library}, GPUs: {gpus}"),
            Some(problem) if *loaded => format!("{library}: {problem}"),
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
