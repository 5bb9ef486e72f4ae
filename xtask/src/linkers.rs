//! Links the program in `tests/matrix` with every linker and several releases of NCCL, runs each build with every
//! library, and compares what it finds with `docs/generated/linkers.md`.

use std::collections::BTreeSet;
use std::env;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::LazyLock;
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use cuda_install::Profile;

use crate::cpu_so;
use crate::nvidia_packages;
use crate::process::{self, End};
use crate::releases::{NEWEST, OLDEST};

const PAGE: &str = "docs/generated/linkers.md";

/// The linkers: the title in the table, and the name that the C compiler knows.
const LINKERS: [(&str, &str); 4] = [("GNU ld", "bfd"), ("lld", "lld"), ("mold", "mold"), ("gold", "gold")];

/// The releases to link: one with every function, and two with fewer.
static RELEASES: LazyLock<[&str; 3]> = LazyLock::new(|| [*OLDEST, "2.18.3", *NEWEST]);

/// The time limit for one run, which suffices to read the library from a slow disk.
const LIMIT: Duration = Duration::from_secs(60);

/// A library to run programs with.
struct Library {
    title: String,
    /// The directory with its `libnccl.so.2`.
    directory: PathBuf,
    functions: BTreeSet<String>,
}

/// Links and runs everything, and writes the page or compares it.
pub(crate) fn run(root: &Path, check: bool) -> Result<()> {
    let target = env::var_os("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), PathBuf::from);
    let target = std::path::absolute(target)?.join("linkers");
    let mut libraries = Vec::new();
    for release in *RELEASES {
        libraries.push(library(release, nvidia_packages::obtain(release)?.join("lib"))?);
    }
    cpu_so::install(&target.join("cpu"), Profile::Debug)?;
    libraries.push(library("CPU backend", target.join("cpu"))?);

    let mut rows = String::new();
    let mut problems = String::new();
    for (linker, name) in LINKERS {
        for is_pie in [true, false] {
            let kind = if is_pie { "position-independent" } else { "at a fixed address" };
            for built in &libraries[..RELEASES.len()] {
                let program = build(root, &target, name, is_pie, &built.directory)
                    .with_context(|| format!("{linker}, {kind}, {}", built.title))?;
                write!(rows, "| {linker} | {kind} | {} |", built.title)?;
                for library in &libraries {
                    let cell = count(&program, library).unwrap_or_else(|problem| {
                        let cell = format!("{linker}, {kind}, built with {}", built.title);
                        problems += &format!("\n  {cell}, run with {}: {problem:#}", library.title);
                        "wrong".into()
                    });
                    write!(rows, " {cell} |")?;
                }
                println!("{}", rows.lines().next_back().unwrap_or_default());
                rows.push('\n');
            }
        }
    }
    ensure!(problems.is_empty(), "linked programs do not see the library that they run with:{problems}");

    crate::checkout::write_or_check(PAGE, &page(&libraries, &rows), check, "linkers")
}

fn page(libraries: &[Library], rows: &str) -> String {
    let titles: String = libraries.iter().map(|library| format!(" {} |", library.title)).collect();
    format!(
        "# Linkers\n\n\
         Written by `cargo xtask linkers`, and compared by `.ci/link`. A program was linked with three releases of NCCL\n\
         by each linker, once position-independent, as Rust programs are by default, and once at a fixed address\n\
         (`-C relocation-model=static`), and ran with each library. A cell is the number of functions of `nccl.h` that the\n\
         program has. All are as many as the library exports (`nm -D`), whatever release the program was built with;\n\
         calling one of the others is an error that names the release that has it.\n\n\
         | linker | program | built with |{titles}\n|---|---|---|{}\n{rows}",
        "---|".repeat(libraries.len())
    )
}

/// Returns a library with the functions that it exports.
fn library(title: &str, directory: PathBuf) -> Result<Library> {
    let file = directory.join("libnccl.so.2");
    let output =
        Command::new("nm").args(["-D", "--defined-only"]).arg(&file).output().context("cannot run nm")?;
    ensure!(output.status.success(), "nm {}: {}", file.display(), String::from_utf8_lossy(&output.stderr));
    let symbols = String::from_utf8_lossy(&output.stdout);
    let functions =
        symbols.lines().filter_map(|line| line.split_whitespace().nth(2)).map(String::from).collect();
    Ok(Library { title: title.into(), directory, functions })
}

/// Builds the program of `tests/matrix`, linked with the library in a directory, and returns its file.
fn build(root: &Path, target: &Path, linker: &str, is_pie: bool, directory: &Path) -> Result<PathBuf> {
    let host = host()?;
    let mut cargo = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo.args(["rustc", "--quiet", "--features", "link", "--target", &host, "--manifest-path"]);
    cargo.arg(root.join("tests/matrix/Cargo.toml")).arg("--target-dir").arg(target);
    for variable in ["NCCL_HOME", "NCCL_STATIC", "LIBNCCL_NO_LINK", "CARGO_ENCODED_RUSTFLAGS", "RUSTFLAGS"] {
        cargo.env_remove(variable);
    }
    if !is_pie {
        cargo.env("RUSTFLAGS", "-Crelocation-model=static");
    }
    cargo.env("LIBNCCL_BINDGEN", "never").env("NCCL_LIB_DIR", directory);
    // The last -fuse-ld counts; the toolchain may have one of its own before.
    cargo.arg("--").arg(format!("-Clink-arg=-fuse-ld={linker}"));
    // Shown only if it fails: rustc warns about gold each time.
    let output = cargo.output().context("cannot run cargo")?;
    ensure!(
        output.status.success(),
        "cannot build tests/matrix: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    Ok(target.join(host).join("debug/matrix"))
}

/// Returns the target that rustc compiles for by default.
fn host() -> Result<String> {
    let output = Command::new("rustc").arg("-vV").output().context("cannot run rustc")?;
    let text = String::from_utf8(output.stdout)?;
    let host = text.lines().find_map(|line| line.strip_prefix("host: "));
    Ok(host.context("rustc -vV names no host")?.into())
}

/// Runs a program with a library and returns the number of functions that it has, which are those of the library.
fn count(program: &Path, library: &Library) -> Result<String> {
    let mut command = Command::new(program);
    command.env_clear().env("LD_LIBRARY_PATH", &library.directory).env("NCCL_SOCKET_IFNAME", "lo");
    let outcome = process::run(command.arg("functions"), LIMIT)?;
    ensure!(outcome.end == End::Success, "{}: {}", outcome.end, outcome.stderr.trim());
    let file = format!("({}/libnccl.so.2)", library.directory.canonicalize()?.display());
    let mut present = 0;
    for line in outcome.stdout.lines() {
        let (name, state) = line.split_once('\t').with_context(|| format!("the program printed {line:?}"))?;
        let (expected, is_right) = if library.functions.contains(name) {
            present += 1;
            ("present".into(), state == "present")
        } else {
            let start = format!("{name} needs NCCL ");
            let is_right = state.starts_with(&start) && state.ends_with(&file);
            (format!("{start}... {file}"), is_right)
        };
        ensure!(is_right, "{name}: {state:?}, expected {expected:?}");
    }
    ensure!(present > 0, "the library has no function of NCCL's");
    Ok(present.to_string())
}
