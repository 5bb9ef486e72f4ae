//! A program that may not run for ever.

use std::io::{Read, Seek};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitStatus};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use rustix::process::{Pid, Signal, kill_process_group};

/// How a program ended.
#[derive(Debug)]
pub(crate) struct Ended {
    /// What it had printed by then.
    pub(crate) printed: String,
    /// Why it does not count as done.
    pub(crate) failure: Option<String>,
}

/// Runs a command, in a process group of its own, to its end or the limit; then it is killed.
pub(crate) fn run(command: &mut Command, limit: Duration) -> Result<Ended> {
    // A file takes any amount, where a pipe would have to be emptied meanwhile.
    let mut output = tempfile::tempfile()?;
    let mut child = command
        .stdout(output.try_clone()?)
        .process_group(0)
        .spawn()
        .with_context(|| format!("cannot run {}", command.get_program().display()))?;
    let failure = match wait(&mut child, limit)? {
        Some(status) if status.success() => None,
        Some(status) => Some(format!("it failed ({status}); its reason stands above")),
        None => Some(format!("a hang: it was killed after {} seconds", limit.as_secs())),
    };
    output.rewind()?;
    let mut printed = String::new();
    output.read_to_string(&mut printed)?;
    Ok(Ended { printed, failure })
}

/// None if it had to be killed.
fn wait(child: &mut Child, limit: Duration) -> Result<Option<ExitStatus>> {
    let start = Instant::now();
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(Some(status));
        }
        if start.elapsed() >= limit {
            if let Some(group) = Pid::from_raw(child.id().cast_signed()) {
                kill_process_group(group, Signal::KILL)?;
            }
            child.wait()?;
            return Ok(None);
        }
        // Seldom, so as not to disturb what is being measured.
        thread::sleep(Duration::from_millis(20));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str, limit: Duration) -> Ended {
        run(Command::new("sh").args(["-c", script]), limit).unwrap()
    }

    #[test]
    fn what_was_printed_before_a_failure_is_kept() {
        let minute = Duration::from_secs(60);
        let ended = shell("echo one; exit 3", minute);
        assert_eq!(ended.printed, "one\n");
        assert!(ended.failure.is_some_and(|reason| reason.contains("exit status: 3")));
        assert!(shell("true", minute).failure.is_none());
    }

    #[test]
    fn a_program_that_goes_on_is_killed_with_its_children() {
        let start = Instant::now();
        let ended = shell("sleep 60 & wait", Duration::ZERO);
        assert!(ended.failure.is_some_and(|reason| reason.starts_with("a hang")));
        assert!(start.elapsed() < Duration::from_secs(30));
    }
}
