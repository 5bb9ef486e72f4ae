//! The build script of libnccl. It also runs tasks of `cargo xtask`, because it contains the bindgen configuration and the header
//! comparison.

use std::env;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use anyhow::{Context, Result, bail};
use serde_json::Value;

#[derive(Debug)]
pub(crate) struct BuildScript(PathBuf);

impl BuildScript {
    /// Builds libnccl with a unique set of features, so that no other build is replaced. Returns the build script even if libnccl
    /// itself fails to compile, for example with a changed header.
    pub(crate) fn build(root: &Path) -> Result<Self> {
        let mut cargo = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
        cargo.args(["check", "--quiet", "--package", "libnccl", "--no-default-features"]);
        cargo.args(["--features", "bindgen", "--message-format=json"]).current_dir(root);
        let output = cargo.output().context("cannot run cargo")?;
        let messages = String::from_utf8(output.stdout).context("cargo's output")?;
        let Some(file) = messages.lines().find_map(file_of) else {
            bail!("cannot build libnccl's build script: {}", String::from_utf8_lossy(&output.stderr).trim());
        };
        Ok(Self(file))
    }

    /// Runs a task on a directory. If the task fails, the output contains the error.
    pub(crate) fn run(&self, root: &Path, task: &str, directory: &Path) -> Result<Output> {
        let mut command = Command::new(&self.0);
        command.arg(task).arg(directory).current_dir(root).env("CARGO_MANIFEST_DIR", root);
        command.output().with_context(|| format!("cannot run {}", self.0.display()))
    }
}

/// Returns the error that the build script printed, or its exit status.
pub(crate) fn failure(output: &Output) -> String {
    match String::from_utf8_lossy(&output.stderr).trim() {
        "" => format!("libnccl's build script: {}", output.status),
        reason => reason.to_owned(),
    }
}

/// Returns the path of the build script if this is cargo's message about it. libnccl is the only local package of the build.
fn file_of(message: &str) -> Option<PathBuf> {
    let message: Value = serde_json::from_str(message).ok()?;
    let is_local = message["package_id"].as_str()?.starts_with("path+");
    let is_build_script =
        message["reason"] == "compiler-artifact" && message["target"]["kind"][0] == "custom-build";
    message["filenames"][0].as_str().filter(|_| is_local && is_build_script).map(PathBuf::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn file_of_the_build_script_is_found_in_cargos_messages() {
        let message = |package: &str, kind: &str| {
            format!(
                r#"{{"reason":"compiler-artifact","package_id":"{package}","target":{{"kind":["{kind}"]}},
                "filenames":["/t/debug/build/libnccl-1/build-script-build"]}}"#
            )
        };
        let (local, other) = ("path+file:///w#libnccl@0.1.0", "registry+https://example.org#libc@0.2.171");
        let found = file_of(&message(local, "custom-build"));
        assert_eq!(found, Some("/t/debug/build/libnccl-1/build-script-build".into()));
        assert_eq!(file_of(&message(other, "custom-build")), None);
        assert_eq!(file_of(&message(local, "lib")), None);
        assert_eq!(file_of(r#"{"reason":"build-finished","success":true}"#), None);
    }
}
