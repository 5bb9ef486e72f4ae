//! Runs the checks of `tests/matrix` with releases of NCCL, loaded and linked, on a machine without a GPU, and compares
//! the results with `docs/generated/compatibility.md`.

use std::fs;
use std::path::Path;
use std::thread;
use std::time::Instant;

use anyhow::{Context, Result, anyhow, bail};
use clap::Args;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::build_script::BuildScript;
use crate::headers;
use crate::nvidia_packages::{self, Part};
use crate::releases::{NEWEST, OLDEST, Selection};

mod checks;
mod findings;
mod page;
mod programs;
mod quirks;
mod row;

use findings::Findings;
use page::PAGE;
use programs::Program;
use row::Row;

#[derive(Debug, Args)]
pub(crate) struct Options {
    #[command(flatten)]
    selection: Selection,
    /// Compare with docs/generated/compatibility.md instead of writing it; always so without --all
    #[arg(long)]
    check: bool,
    /// Remove each downloaded library after its run: needs 1 GB of disk space instead of 10 GB
    #[arg(long)]
    drop: bool,
}

/// Runs the selected releases, and writes the page or compares its rows.
pub(crate) fn run(root: &Path, options: &Options) -> Result<()> {
    if Path::new("/dev/nvidiactl").exists() {
        bail!("the matrix needs a machine without a GPU, and this one has /dev/nvidiactl");
    }
    // Some quirks crash the process; core dumps would fill the disk.
    setrlimit(Resource::Core, Rlimit { current: Some(0), ..getrlimit(Resource::Core) })?;
    let releases = options.selection.releases();
    let kept = KeptLibraries::new(options, &releases)?;
    if !options.drop {
        nvidia_packages::prefetch(&releases, Part::All);
    }
    let script = BuildScript::build(root)?;
    let programs = programs::build(root)?;
    let mut rows = Vec::new();
    let mut failed = Vec::new();
    for release in &releases {
        let start = Instant::now();
        match examine(root, &script, &programs, release) {
            Ok(row) => {
                println!(
                    "{release}: {} programs agree ({:.1} s)",
                    programs.len(),
                    start.elapsed().as_secs_f64()
                );
                rows.push(row);
            }
            Err(error) => {
                eprintln!("{release}: {error:#}");
                failed.push(release.as_str());
            }
        }
        if release != *NEWEST && release != *OLDEST {
            kept.remove_unless_kept(release)?;
        }
    }
    kept.remove_unless_kept(&NEWEST)?;
    kept.remove_unless_kept(&OLDEST)?;
    println!("{} of {} releases pass all checks, and all programs agree", rows.len(), releases.len());
    if !failed.is_empty() {
        bail!("{} of {} releases failed: {}", failed.len(), releases.len(), failed.join(", "));
    }
    let whole = options.selection.is_all();
    let path = root.join(PAGE);
    if whole && !options.check {
        return fs::write(&path, page::page(&rows)?)
            .with_context(|| format!("cannot write {}", path.display()));
    }
    let committed = fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
    if whole && committed != page::page(&rows)? || !whole && !compare(&committed, &rows) {
        bail!("{PAGE} is out of date; `cargo xtask matrix --all` writes it");
    }
    println!("{PAGE} is up to date");
    Ok(())
}

/// The releases whose library was there before, and so is not removed; `None` if no library is removed.
struct KeptLibraries(Option<Vec<String>>);

impl KeptLibraries {
    fn new(options: &Options, releases: &[String]) -> Result<Self> {
        if !options.drop {
            return Ok(Self(None));
        }
        let mut kept = Vec::new();
        for release in releases.iter().map(String::as_str).chain([*NEWEST, *OLDEST]) {
            if nvidia_packages::has_library(release)? {
                kept.push(release.to_string());
            }
        }
        Ok(Self(Some(kept)))
    }

    fn remove_unless_kept(&self, release: &str) -> Result<()> {
        match &self.0 {
            Some(kept)
                if !kept.iter().any(|kept| kept == release) && nvidia_packages::has_library(release)? =>
            {
                nvidia_packages::remove_library(release)
            }
            _ => Ok(()),
        }
    }
}

fn examine(root: &Path, script: &BuildScript, programs: &[Program], release: &str) -> Result<Row> {
    let directory = nvidia_packages::obtain(release)?;
    let comparison = headers::compare(root, script, &directory)?;
    if let Some(problem) = comparison.problem() {
        bail!(problem);
    }
    let library = directory.join("lib/libnccl.so.2");
    // In parallel, because most of the time is spent waiting for calls that hang.
    let findings: Vec<Result<Findings>> = thread::scope(|scope| {
        let library = &library;
        let start = |program| scope.spawn(move || findings::examine(program, release, library));
        let threads: Vec<_> = programs.iter().map(start).collect();
        threads
            .into_iter()
            .map(|thread| {
                thread.join().unwrap_or_else(|_| Err(anyhow!("the thread that runs the program panicked")))
            })
            .collect()
    });
    let findings = programs
        .iter()
        .zip(findings)
        .map(|(program, findings)| findings.with_context(|| program.name.clone()))
        .collect::<Result<Vec<Findings>>>()?;
    let first = findings.first().context("there are no programs")?;
    let problems: Vec<String> = programs
        .iter()
        .zip(&findings)
        .flat_map(|(program, findings)| {
            findings::problems(findings, first)
                .into_iter()
                .map(|problem| format!("\n  {}: {problem}", program.name))
        })
        .collect();
    if !problems.is_empty() {
        bail!("{} problems{}", problems.len(), problems.concat());
    }
    Ok(Row { release: release.into(), header_items: comparison.items, findings: first.clone() })
}

/// Returns whether the page has these rows; prints those that it lacks.
fn compare(committed: &str, rows: &[Row]) -> bool {
    let lines: Vec<&str> = committed.lines().collect();
    let found = rows.iter().flat_map(|row| [page::checks(row), page::quirks(row)]);
    let missing: Vec<String> = found.filter(|row| !lines.contains(&row.as_str())).collect();
    for row in &missing {
        println!("not in {PAGE}: {row}");
    }
    missing.is_empty()
}
