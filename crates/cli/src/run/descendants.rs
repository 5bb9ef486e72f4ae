//! The descendants of this process, which has to adopt orphans.

use std::fs;

use anyhow::{Context, Result};
use rustix::io::Errno;
use rustix::process::{Pid, Signal, WaitOptions, getpid, kill_process, wait};

/// Kills all descendants and waits for them. They become children of this process as their parents end.
pub(super) fn kill_all() -> Result<()> {
    loop {
        // A child keeps its process id until it is waited for below.
        for child in children()? {
            let _ = kill_process(child, Signal::KILL);
        }
        match wait(WaitOptions::empty()) {
            Ok(_) => while matches!(wait(WaitOptions::NOHANG), Ok(Some(_))) {},
            Err(Errno::CHILD) => return Ok(()),
            Err(Errno::INTR) => {}
            Err(error) => return Err(error).context("cannot wait for processes"),
        }
    }
}

fn children() -> Result<Vec<Pid>> {
    let this = getpid();
    let processes = fs::read_dir("/proc").context("/proc cannot be read")?.filter_map(|entry| {
        let pid = entry.ok()?.file_name().to_str()?.parse().ok()?;
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        (parent(&stat)? == this).then(|| Pid::from_raw(pid))?
    });
    Ok(processes.collect())
}

/// Returns the parent from a line of `/proc/PID/stat`: the second field after the name, which is in parentheses and may
/// hold any character.
fn parent(stat: &str) -> Option<Pid> {
    Pid::from_raw(stat.rsplit_once(')')?.1.split_whitespace().nth(1)?.parse().ok()?)
}

#[cfg(test)]
mod tests {
    use rustix::process::Pid;

    #[test]
    fn parent_is_found_behind_any_name() {
        assert_eq!(super::parent("71 (a) S 3) R 42 71 71 0"), Pid::from_raw(42));
        assert_eq!(super::parent("71 (init) S 0 1 1"), None);
        assert_eq!(super::parent("71 init"), None);
    }
}
