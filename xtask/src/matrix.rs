//! The behavior of NCCL's versions on a machine without a GPU, as the program of tests/matrix finds it.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;

use anyhow::{Context, Result, ensure};

use crate::nvidia_packages::{self, VERSIONS};
use crate::{execute, headers};

/// The rows of all versions.
const TABLE: &str = "docs/generated/compatibility.tsv";

/// Runs the program with each version, loaded and linked, and compares the versions' headers with ours. Prints the rows. Fails if
/// the builds differ, or if a row is not in the table.
pub(crate) fn run(root: &Path, versions: &[String]) -> Result<()> {
    if Path::new("/dev/nvidiactl").exists() {
        println!("skipped: the matrix is for machines without a GPU");
        return Ok(());
    }
    let programs = build(root)?;
    let titles = execute(Command::new(&programs[0]).arg("titles"))?;
    print!("{titles}");
    let mut found = titles;
    let all: Vec<&str> =
        if versions.is_empty() { VERSIONS.clone() } else { versions.iter().map(String::as_str).collect() };
    for version in all {
        let was_kept = nvidia_packages::is_kept(version)?;
        let package = nvidia_packages::obtain(version)?;
        headers::compare(root, &[version])?;
        let row = row(&programs, version, &package.join("lib"))?;
        print!("{row}");
        found += &row;
        // All packages together have 10 GB.
        if !was_kept {
            fs::remove_dir_all(package)?;
        }
    }
    let table = fs::read_to_string(root.join(TABLE)).with_context(|| format!("cannot read {TABLE}"))?;
    let new: Vec<&str> = found.lines().filter(|row| !table.lines().any(|line| line == *row)).collect();
    ensure!(new.is_empty(), "these rows are not in {TABLE}:\n{}", new.join("\n"));
    ensure!(
        !versions.is_empty() || found == table,
        "{TABLE} has rows of other versions than our header, or in another order"
    );
    Ok(())
}

/// Builds the program loaded, linked with the oldest version, and linked with the newest, in the directory `matrix` next to cargo's
/// `debug` and `release`.
fn build(root: &Path) -> Result<Vec<PathBuf>> {
    let executable = env::current_exe()?;
    let target = executable.ancestors().nth(2).context("this program is not in a target directory")?;
    let directory = target.join("matrix");
    let linked =
        [VERSIONS.first(), VERSIONS.last()].into_iter().flatten().map(|version| ("link", Some(version)));
    let builds = [("dlopen", None)].into_iter().chain(linked);
    builds
        .map(|(feature, version)| {
            let mut cargo = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
            cargo.args(["build", "--quiet", "--locked", "--manifest-path", "tests/matrix/Cargo.toml"]);
            cargo.args(["--features", feature, "--target-dir"]).arg(&directory);
            if let Some(version) = version {
                cargo.env("NCCL_LIB_DIR", nvidia_packages::obtain(version)?.join("lib"));
            }
            execute(cargo.current_dir(root))?;
            let program = directory
                .join(version.map_or("loaded".to_owned(), |version| format!("linked with {version}")));
            fs::copy(directory.join("debug/matrix"), &program)?;
            Ok(program)
        })
        .collect()
}

/// Returns a version's row, on which all programs must agree.
fn row(programs: &[PathBuf], version: &str, lib: &Path) -> Result<String> {
    let library = lib.join("libnccl.so.2");
    let find = |program: &Path| {
        let mut command = Command::new(program);
        command.env_clear().env("LIBNCCL_PATH", &library).env("LD_LIBRARY_PATH", lib);
        execute(command.args(["row", version]).arg(&library))
    };
    // Concurrently, because they wait for calls that hang.
    let found = thread::scope(|scope| {
        let threads: Vec<_> = programs.iter().map(|program| scope.spawn(|| find(program))).collect();
        let join =
            |thread: thread::ScopedJoinHandle<'_, Result<String>>| thread.join().expect("it does not panic");
        threads.into_iter().map(join).collect::<Result<Vec<_>>>()
    })?;
    for (program, findings) in programs.iter().zip(&found) {
        ensure!(
            *findings == found[0],
            "{}, NCCL {version}:\n{findings}\nand loaded:\n{}",
            program.display(),
            found[0]
        );
    }
    found[0].split_inclusive('\n').next().map(str::to_owned).context("the program prints nothing")
}
