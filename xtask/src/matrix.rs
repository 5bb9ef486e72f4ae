//! Every release of NCCL, loaded and linked: what it answers on a machine without a GPU, and whether that is what
//! `docs/compatibility.md` says.

use std::fs;
use std::path::Path;
use std::thread;
use std::time::Instant;

use anyhow::{Context, Result, anyhow, bail};
use clap::Args;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::headers;
use crate::official::{self, Part};
use crate::releases::{NEWEST, OLDEST, Selection};

mod cell;
mod page;
mod programs;

use cell::Cell;
use page::PAGE;
use programs::Program;

#[derive(Debug, Args)]
pub(crate) struct Options {
    #[command(flatten)]
    selection: Selection,
    /// Write nothing, which without --all is so in any case; fail if docs/compatibility.md says something else
    #[arg(long)]
    check: bool,
    /// Keep no library that had to be downloaded: a gigabyte at a time, in place of ten in the end
    #[arg(long)]
    drop: bool,
}

/// What is known about a release.
#[derive(Debug)]
struct Row {
    release: String,
    header_items: usize,
    /// The same for all programs.
    cell: Cell,
}

/// Runs the releases, and writes the page, or compares the rows with it.
pub(crate) fn run(root: &Path, options: &Options) -> Result<()> {
    if Path::new("/dev/nvidiactl").exists() {
        bail!("the matrix is about machines without a GPU, and this one has /dev/nvidiactl");
    }
    // The traps kill processes; what is left of them would fill the disk.
    setrlimit(Resource::Core, Rlimit { current: Some(0), ..getrlimit(Resource::Core) })?;
    let releases = options.selection.releases()?;
    let lasting = Lasting::of(options, &releases)?;
    if !options.drop {
        official::obtain_ahead(&releases, Part::All);
    }
    let programs = programs::build(root)?;
    let mut rows = Vec::new();
    let mut failed = Vec::new();
    for release in &releases {
        let start = Instant::now();
        match examine(root, &programs, release) {
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
        if release != NEWEST && release != OLDEST {
            lasting.drop_others(release)?;
        }
    }
    lasting.drop_others(NEWEST)?;
    lasting.drop_others(OLDEST)?;
    println!("{} of {} releases: all checks pass, and all programs agree", rows.len(), releases.len());
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
        bail!("{PAGE} says something else; `cargo xtask matrix --all` writes it anew");
    }
    println!("{PAGE} says the same");
    Ok(())
}

/// Which libraries stay when libraries are dropped: those that were there before.
struct Lasting(Option<Vec<String>>);

impl Lasting {
    fn of(options: &Options, releases: &[String]) -> Result<Self> {
        if !options.drop {
            return Ok(Self(None));
        }
        let mut lasting = Vec::new();
        for release in releases.iter().map(String::as_str).chain([NEWEST, OLDEST]) {
            if official::has_library(release)? {
                lasting.push(release.to_string());
            }
        }
        Ok(Self(Some(lasting)))
    }

    fn drop_others(&self, release: &str) -> Result<()> {
        match &self.0 {
            Some(lasting)
                if !lasting.iter().any(|stays| stays == release) && official::has_library(release)? =>
            {
                official::drop_library(release)
            }
            _ => Ok(()),
        }
    }
}

fn examine(root: &Path, programs: &[Program], release: &str) -> Result<Row> {
    let comparison = headers::compare(root, release, Part::All)?;
    if let Some(problem) = comparison.problem() {
        bail!(problem);
    }
    let library = official::obtain(release)?.join("lib/libnccl.so.2");
    // At the same time, because most of it is waiting for what hangs.
    let cells: Vec<Result<Cell>> = thread::scope(|scope| {
        let library = &library;
        let start = |program| scope.spawn(move || cell::examine(program, release, library));
        let threads: Vec<_> = programs.iter().map(start).collect();
        threads
            .into_iter()
            .map(|thread| thread.join().unwrap_or_else(|_| Err(anyhow!("a panic in the matrix itself"))))
            .collect()
    });
    let cells = programs
        .iter()
        .zip(cells)
        .map(|(program, cell)| cell.with_context(|| program.name.clone()))
        .collect::<Result<Vec<Cell>>>()?;
    let first = cells.first().context("there are no programs")?;
    let problems: Vec<String> = programs
        .iter()
        .zip(&cells)
        .flat_map(|(program, cell)| {
            cell::problems(cell, first).into_iter().map(|problem| format!("\n  {}: {problem}", program.name))
        })
        .collect();
    if !problems.is_empty() {
        bail!("{} problems{}", problems.len(), problems.concat());
    }
    Ok(Row { release: release.into(), header_items: comparison.items, cell: first.clone() })
}

/// Whether the page has these rows; prints those that it has not.
fn compare(committed: &str, rows: &[Row]) -> bool {
    let lines: Vec<&str> = committed.lines().collect();
    let found = rows.iter().flat_map(|row| [page::checks(row), page::traps(row)]);
    let other: Vec<String> = found.filter(|row| !lines.contains(&row.as_str())).collect();
    for row in &other {
        println!("not in {PAGE}: {row}");
    }
    other.is_empty()
}

/// The programs, in words.
fn ways() -> String {
    format!("three programs: one that loads it, one\nlinked with {NEWEST} and one linked with {OLDEST}")
}
