//! The program in `tests/matrix`, in each way in which NCCL comes into a process.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::official;
use crate::releases::{NEWEST, OLDEST};

/// The program, built one way.
#[derive(Debug)]
pub(super) struct Program {
    /// As messages call it.
    pub(super) name: String,
    file: PathBuf,
    /// The release that it is linked with, if it is.
    linked: Option<&'static str>,
}

impl Program {
    /// With this library in the place of its own, and nothing else in its environment that could matter to NCCL.
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

/// Builds the program that loads, and those that are linked: with the newest release, and with the oldest.
pub(super) fn build(root: &Path) -> Result<Vec<Program>> {
    let target = env::var_os("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), PathBuf::from);
    let target = std::path::absolute(target)?.join("matrix");
    let ways = [
        ("loaded".to_string(), "dlopen", None),
        (format!("linked with {NEWEST}"), "link", Some(NEWEST)),
        (format!("linked with {OLDEST}"), "link", Some(OLDEST)),
    ];
    let mut programs = Vec::new();
    for (name, feature, linked) in ways {
        let built =
            build_one(root, &target, feature, linked).with_context(|| format!("the program, {name}"))?;
        let file = target.join(name.replace(' ', "-"));
        fs::copy(&built, &file)
            .with_context(|| format!("cannot copy {} to {}", built.display(), file.display()))?;
        programs.push(Program { name, file, linked });
    }
    Ok(programs)
}

fn build_one(root: &Path, target: &Path, feature: &str, linked: Option<&str>) -> Result<PathBuf> {
    let mut cargo = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo.args(["build", "--quiet", "--features", feature, "--manifest-path"]);
    cargo.arg(root.join("tests/matrix/Cargo.toml")).arg("--target-dir").arg(target);
    for variable in ["NCCL_LIB_DIR", "NCCL_HOME", "NCCL_STATIC", "LIBNCCL_NO_LINK"] {
        cargo.env_remove(variable);
    }
    if let Some(release) = linked {
        cargo.env("NCCL_LIB_DIR", official::obtain(release)?.join("lib"));
    }
    if !cargo.status().context("cannot run cargo")?.success() {
        bail!("tests/matrix does not build");
    }
    Ok(target.join("debug/matrix"))
}
