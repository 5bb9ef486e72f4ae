//! Measures cold builds of libnccl beside cudarc's, for docs/building.md.

use std::env;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use clap::Args;

use crate::bench_mpi::median;

/// A program with nothing but one dependency: its name, the line of its Cargo.toml, and how much of cudarc's time it may
/// take.
struct Subject {
    name: &'static str,
    dependency: String,
    limit: f64,
}

/// Options of `cargo xtask build-time`.
#[derive(Debug, Args)]
pub(crate) struct Options {
    /// The number of builds of each, by turns
    #[arg(long, default_value_t = 5)]
    rounds: usize,
}

/// Builds each by turns, and prints the medians; an error if one is beyond its limit.
pub(crate) fn run(root: &Path, options: &Options) -> Result<()> {
    ensure!(options.rounds > 0, "invalid --rounds 0; expected at least 1");
    let subjects = subjects(root);
    let scratch = tempfile::tempdir()?;
    for subject in &subjects {
        create(&scratch.path().join(subject.name), subject)?;
    }
    let mut times = vec![Vec::new(); subjects.len()];
    for _ in 0..options.rounds {
        for (subject, times) in subjects.iter().zip(&mut times) {
            times.push(build(&scratch.path().join(subject.name))?);
        }
    }

    let medians: Vec<f64> = times.into_iter().filter_map(median).collect();
    println!("| program with | packages | median of {} | of cudarc's | limit |", options.rounds);
    println!("|---|---|---|---|---|");
    let mut beyond = Vec::new();
    for (subject, median) in subjects.iter().zip(&medians) {
        let Subject { name, limit, .. } = subject;
        let share = median / medians[0];
        let packages = packages(&scratch.path().join(name))?;
        println!("| {name} | {packages} | {median:.1} s | {share:.2} | {limit} |");
        if share > *limit {
            beyond.push(*name);
        }
    }
    ensure!(beyond.is_empty(), "beyond the limit: {}", beyond.join(", "));
    Ok(())
}

/// Returns cudarc first, with the features that users of its nccl need.
fn subjects(root: &Path) -> Vec<Subject> {
    let path = format!("path = {:?}", root.display().to_string());
    vec![
        Subject {
            name: "cudarc",
            dependency: "cudarc = { version = \"0.19.10\", default-features = false, \
                         features = [\"std\", \"driver\", \"nccl\", \"dynamic-loading\", \"cuda-12060\"] }"
                .into(),
            limit: 1.0,
        },
        Subject {
            name: "libnccl-without-bindgen",
            dependency: format!("libnccl = {{ {path}, default-features = false, features = [\"dlopen\"] }}"),
            limit: 1.6,
        },
        Subject { name: "libnccl", dependency: format!("libnccl = {{ {path} }}"), limit: 4.5 },
    ]
}

/// Creates the program, and downloads what it needs, which the builds do not.
fn create(directory: &Path, subject: &Subject) -> Result<()> {
    let Subject { name, dependency, .. } = subject;
    fs::create_dir_all(directory.join("src"))?;
    fs::write(directory.join("src/main.rs"), "fn main() {}\n")?;
    let manifest = format!(
        "[package]\nname = \"program\"\nversion = \"0.0.0\"\nedition = \"2024\"\n\n[workspace]\n\n[dependencies]\n{dependency}\n"
    );
    fs::write(directory.join("Cargo.toml"), manifest)?;
    cargo(directory, &["fetch", "--quiet"]).map(drop).with_context(|| format!("cannot fetch {name}"))
}

/// Builds the program into an empty directory, and returns the seconds.
fn build(directory: &Path) -> Result<f64> {
    let target = tempfile::tempdir()?;
    let path = target.path().to_str().context("the temporary directory's name is not UTF-8")?;
    let start = Instant::now();
    cargo(directory, &["build", "--quiet", "--offline", "--target-dir", path])?;
    Ok(start.elapsed().as_secs_f64())
}

/// Returns the number of packages that are built for the program, without itself.
fn packages(directory: &Path) -> Result<usize> {
    let tree = ["tree", "--offline", "--edges", "normal,build", "--prefix", "none", "--no-dedupe"];
    let printed = cargo(directory, &tree)?;
    let mut packages: Vec<&str> = printed.lines().collect();
    packages.sort_unstable();
    packages.dedup();
    Ok(packages.len() - 1)
}

/// Returns what cargo prints; without the settings of this process's cargo, which ran this program.
fn cargo(directory: &Path, arguments: &[&str]) -> Result<String> {
    let mut cargo = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo.args(arguments).current_dir(directory).env_remove("CARGO_TARGET_DIR").env_remove("RUSTFLAGS");
    // As cargo builds a package from a registry, which cudarc is here and libnccl is to its users. A path is built
    // incrementally, which takes longer the first time.
    cargo.env("CARGO_INCREMENTAL", "0");
    let output = cargo.output().context("cannot run cargo")?;
    ensure!(
        output.status.success(),
        "cargo {}: {}",
        arguments.join(" "),
        String::from_utf8_lossy(&output.stderr)
    );
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}
