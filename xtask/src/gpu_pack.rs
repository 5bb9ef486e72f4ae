//! The GPU tests as a directory, for a machine with a GPU but without Rust and a checkout.

use std::env;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use cuda_install::build_target;

const SCRIPT: &str = include_str!("../../tests/conformance/run.sh");

/// Builds the programs in release mode and puts them into `directory`. Returns the script to run there.
pub(crate) fn pack(directory: &Path) -> Result<PathBuf> {
    fs::create_dir_all(directory).with_context(|| format!("cannot create {}", directory.display()))?;
    let builds: [(&str, &str, &[&str]); 3] = [
        ("conformance", "libnccl", &["test", "--no-run", "--test", "conformance"]),
        ("nccl", "libnccl-cli", &["build", "--bin", "nccl"]),
        ("recovery", "libnccl", &["build", "--example", "recovery"]),
    ];
    for (name, package, arguments) in builds {
        let mut cargo = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
        cargo.args(arguments).args(["--release", "--quiet"]).current_dir(crate::root());
        let (built, target) = (build_target(&mut cargo, package, name, "")?, directory.join(name));
        fs::copy(&built, &target)
            .with_context(|| format!("cannot copy {} to {}", built.display(), target.display()))?;
    }
    let script = directory.join("run.sh");
    fs::write(&script, SCRIPT)
        .and_then(|()| fs::set_permissions(&script, PermissionsExt::from_mode(0o755)))
        .with_context(|| format!("cannot write {}", script.display()))?;
    Ok(script)
}
