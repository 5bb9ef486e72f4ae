//! The builds of the program in `tests/matrix`: one loads NCCL, the others are linked with it.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::nvidia_packages;
use crate::releases::{NEWEST, OLDEST};

/// A build of the program.
#[derive(Debug)]
pub(super) struct Program {
    /// The name in messages.
    pub(super) name: String,
    file: PathBuf,
    /// The release that it is linked with, `None` if it loads the library.
    linked: Option<&'static str>,
}

impl Program {
    /// Returns the command that runs the program with this library, in an environment without anything else.
    pub(super) fn command(&self, library: &Path) -> Command {
        let mut command = Command::new(&self.file);
        command.env_clear();
        match (self.linked, library.parent()) {
            (Some(_), Some(directory)) => command.env("LD_LIBRARY_PATH", directory),
            _ => command.env("LIBNCCL_PATH", library),
        };
        command
    }
}

/// Builds the program that loads NCCL, and those that are linked with the newest and with the oldest release.
pub(super) fn build(root: &Path) -> Result<Vec<Program>> {
    let target = env::var_os("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), PathBuf::from);
    let target = std::path::absolute(target)?.join("matrix");
    let builds = [
        ("loaded".to_string(), "dlopen", None),
        (format!("linked with {}", *NEWEST), "link", Some(*NEWEST)),
        (format!("linked with {}", *OLDEST), "link", Some(*OLDEST)),
    ];
    let mut programs = Vec::new();
    for (name, feature, linked) in builds {
        let built = build_one(root, &target, feature, linked)
            .with_context(|| format!("the program that is {name}"))?;
        let file = target.join(name.replace(' ', "-"));
        fs::copy(&built, &file)
            .with_context(|| format!("cannot copy {} to {}", built.display(), file.display()))?;
        programs.push(Program { name, file, linked });
    }
    Ok(programs)
}

fn build_one(root: &Path, target: &Path, feature: &str, linked: Option<&str>) -> Result<PathBuf> {
    let mut cargo = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo.args(["build", "--quiet", "--locked", "--features", feature, "--manifest-path"]);
    cargo.arg(root.join("tests/matrix/Cargo.toml")).arg("--target-dir").arg(target);
    for variable in ["NCCL_LIB_DIR", "NCCL_HOME", "NCCL_STATIC", "LIBNCCL_NO_LINK"] {
        cargo.env_remove(variable);
    }
    if let Some(release) = linked {
        cargo.env("NCCL_LIB_DIR", nvidia_packages::obtain(release)?.join("lib"));
    }
    if !cargo.status().context("cannot run cargo")?.success() {
        bail!("cannot build tests/matrix");
    }
    Ok(target.join("debug/matrix"))
}
