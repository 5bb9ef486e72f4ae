//! The CPU implementation as a shared object, which any program loads in place of NCCL.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};
use serde_json::Value;

/// Builds the shared object and copies it to `directory` as `libnccl.so.2`. Returns the path of the copy.
pub(crate) fn install(directory: &Path, release: bool) -> Result<PathBuf> {
    let built = build(release)?;
    fs::create_dir_all(directory).with_context(|| format!("cannot create {}", directory.display()))?;
    let target = directory.join("libnccl.so.2");
    // Copied to another name and then renamed: a program that has mapped the old file keeps it.
    let copy = directory.join(format!(".libnccl.so.2.{}", std::process::id()));
    fs::copy(&built, &copy)
        .and_then(|_| fs::rename(&copy, &target))
        .with_context(|| format!("cannot copy {} to {}", built.display(), target.display()))?;
    Ok(target)
}

fn build(release: bool) -> Result<PathBuf> {
    let cargo = env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let output = Command::new(cargo)
        .args(["build", "--quiet", "--package", "libnccl-cpu-so", "--message-format=json-render-diagnostics"])
        .args(release.then_some("--profile=shared-object"))
        .current_dir(crate::checkout::root())
        .stderr(Stdio::inherit())
        .output()
        .context("cannot run cargo")?;
    if !output.status.success() {
        bail!("cannot build libnccl-cpu-so");
    }
    let messages = String::from_utf8(output.stdout).context("cargo's output")?;
    messages.lines().find_map(shared_object).context("cargo did not report the shared object nccl_cpu")
}

/// Returns the path of the shared object if this message of cargo's reports it.
fn shared_object(message: &str) -> Option<PathBuf> {
    let message: Value = serde_json::from_str(message).ok()?;
    if message["reason"] != "compiler-artifact" || message["target"]["name"] != "nccl_cpu" {
        return None;
    }
    let mut files = message["filenames"].as_array()?.iter().filter_map(Value::as_str);
    files.find(|file| file.ends_with(".so")).map(PathBuf::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shared_object_is_found_in_cargos_messages() {
        let artifact = r#"{"reason":"compiler-artifact","target":{"name":"nccl_cpu","kind":["cdylib"]},
            "filenames":["/t/debug/libnccl_cpu.a","/t/debug/libnccl_cpu.so"]}"#;
        assert_eq!(shared_object(artifact), Some("/t/debug/libnccl_cpu.so".into()));
        assert_eq!(shared_object(&artifact.replace("nccl_cpu\"", "libc\"")), None);
        assert_eq!(shared_object(r#"{"reason":"build-finished","success":true}"#), None);
    }
}
