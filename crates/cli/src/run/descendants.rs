//! The descendants of this process, which has to adopt orphans.

use std::fs;

use anyhow::{Context, Result};
use rustix::process::{Pid, Signal, WaitOptions, getpid, kill_process, waitpid};

use super::process::state_and_parent;

/// Kills all descendants but these children, and waits for them. They become children of this process as their parents end.
pub(super) fn kill_all(others: &[Pid]) -> Result<()> {
    loop {
        // A child keeps its process id until it is waited for below.
        let mut descendants = children()?;
        descendants.retain(|child| !others.contains(child));
        if descendants.is_empty() {
            return Ok(());
        }
        for child in &descendants {
            let _ = kill_process(*child, Signal::KILL);
        }
        for child in descendants {
            rustix::io::retry_on_intr(|| waitpid(Some(child), WaitOptions::empty()))
                .context("cannot wait for a process")?;
        }
    }
}

/// Returns the children of this process.
pub(super) fn children() -> Result<Vec<Pid>> {
    let this = getpid();
    let processes = fs::read_dir("/proc").context("/proc cannot be read")?.filter_map(|entry| {
        let pid = entry.ok()?.file_name().to_str()?.parse().ok()?;
        (state_and_parent(pid)?.1 == this).then(|| Pid::from_raw(pid))?
    });
    Ok(processes.collect())
}
