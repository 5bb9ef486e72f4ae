//! The tests for a GPU, as a folder for a machine that has one and nothing else: neither Rust nor a checkout.

use std::env;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};
use serde_json::Value;

const SCRIPT: &str = include_str!("../../tests/gpu_smoke/run.sh");

/// Builds what is needed, optimised and without debugging information, and puts it into `directory`. Answers the
/// script to run there.
pub(crate) fn pack(directory: &Path) -> Result<PathBuf> {
    fs::create_dir_all(directory).with_context(|| format!("cannot create {}", directory.display()))?;
    let builds: [(&str, &[&str]); 2] = [
        (
            "gpu_smoke",
            &["test", "--no-run", "--package", "libnccl", "--test", "gpu_smoke", "--features", "half"],
        ),
        ("nccl", &["build", "--package", "libnccl-cli", "--bin", "nccl"]),
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
        .current_dir(crate::root())
        .stderr(Stdio::inherit())
        .output()
        .context("cannot run cargo")?;
    if !output.status.success() {
        bail!("{name} does not build");
    }
    let messages = String::from_utf8(output.stdout).context("cargo's output")?;
    messages
        .lines()
        .find_map(|message| executable(name, message))
        .with_context(|| format!("cargo built {name}, but no executable"))
}

/// The executable, where cargo's message is about it.
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
    fn cargo_says_where_an_executable_is() {
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
