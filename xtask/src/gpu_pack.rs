//! The GPU tests as a folder, for a machine with a GPU but without Rust and a checkout.

use std::env;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};
use serde_json::Value;

const SCRIPT: &str = include_str!("../../tests/gpu_smoke/run.sh");

/// Builds the programs in release mode and puts them into `directory`. Returns the script to run there.
pub(crate) fn pack(directory: &Path) -> Result<PathBuf> {
    fs::create_dir_all(directory).with_context(|| format!("cannot create {}", directory.display()))?;
    let builds: [(&str, &[&str]); 3] = [
        (
            "gpu_smoke",
            &["test", "--no-run", "--package", "libnccl", "--test", "gpu_smoke", "--features", "half"],
        ),
        ("nccl", &["build", "--package", "libnccl-cli", "--bin", "nccl"]),
        ("recovery", &["build", "--package", "libnccl", "--example", "recovery"]),
    ];
    for (name, arguments) in builds {
        let (built, target) = (build(name, arguments)?, directory.join(name));
        fs::copy(&built, &target)
            .with_context(|| format!("cannot copy {} to {}", built.display(), target.display()))?;
    }
    let script = directory.join("run.sh");
    fs::write(&script, SCRIPT)
        .and_then(|()| fs::set_permissions(&script, PermissionsExt::from_mode(0o755)))
        .with_context(|| format!("cannot write {}", script.display()))?;
    Ok(script)
}

fn build(name: &str, arguments: &[&str]) -> Result<PathBuf> {
    let cargo = env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let output = Command::new(cargo)
        .args(arguments)
        .args(["--release", "--quiet", "--message-format=json-render-diagnostics"])
        .current_dir(crate::checkout::root())
        .stderr(Stdio::inherit())
        .output()
        .context("cannot run cargo")?;
    if !output.status.success() {
        bail!("cannot build {name}");
    }
    let messages = String::from_utf8(output.stdout).context("cargo's output")?;
    messages
        .lines()
        .find_map(|message| executable(name, message))
        .with_context(|| format!("cargo did not report the executable {name}"))
}

/// Returns the path of the executable if this message of cargo's reports it.
fn executable(name: &str, message: &str) -> Option<PathBuf> {
    let message: Value = serde_json::from_str(message).ok()?;
    if message["target"]["name"] != name {
        return None;
    }
    message["executable"].as_str().map(PathBuf::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn executable_is_found_in_cargos_messages() {
        let artifact = |executable| {
            format!(
                r#"{{"reason":"compiler-artifact","target":{{"name":"nccl"}},"executable":{executable}}}"#
            )
        };
        assert_eq!(executable("nccl", &artifact(r#""/t/nccl""#)), Some("/t/nccl".into()));
        assert_eq!(executable("gpu_smoke", &artifact(r#""/t/nccl""#)), None);
        assert_eq!(executable("nccl", &artifact("null")), None);
        assert_eq!(executable("nccl", r#"{"reason":"build-finished","success":true}"#), None);
    }
}
