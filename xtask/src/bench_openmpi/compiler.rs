//! The compiler of the programs in benches/openmpi.

use std::env;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::checkout::root;

/// Compiles sources in C, or in C++ with the ending `.cpp`, and links them to a program.
pub(crate) fn compile(program: &Path, sources: &[&str], arguments: &[String]) -> Result<()> {
    let compiler = env::var_os("CC").filter(|value| !value.is_empty()).unwrap_or_else(|| "cc".into());
    let status = Command::new(&compiler)
        .args(["-O2", "-Wall", "-Wextra", "-o"])
        .arg(program)
        .args(sources.iter().map(|source| root().join("benches/openmpi").join(source)))
        .args(arguments)
        .status()
        .with_context(|| format!("cannot run the C compiler, {}", compiler.display()))?;
    if !status.success() {
        bail!("cannot compile {}", program.display());
    }
    Ok(())
}
