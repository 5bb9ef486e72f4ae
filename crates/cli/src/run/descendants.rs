//! The descendants of this process, which has to adopt orphans.

use std::fs;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use rustix::process::{Pid, Signal, WaitOptions, getpid, kill_process, waitpid};

use super::process::state_and_parent;

/// Kills all descendants but these children, and waits for them until the `limit`. They become children of this process as their
/// parents end. Returns the ones that SIGKILL has not ended.
pub(super) fn kill_all(others: &[Pid], limit: Duration) -> Result<Vec<Pid>> {
    let start = Instant::now();
    loop {
        // A child keeps its process id until it is waited for below.
        let mut descendants = children()?;
        descendants.retain(|child| !others.contains(child));
        for child in &descendants {
            let _ = kill_process(*child, Signal::KILL);
        }
        for child in &descendants {
            rustix::io::retry_on_intr(|| waitpid(Some(*child), WaitOptions::NOHANG))
                .context("cannot wait for a process")?;
        }
        if descendants.is_empty() || start.elapsed() >= limit {
            return Ok(descendants);
        }
        thread::sleep(Duration::from_millis(1));
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
