//! Runs programs that may crash or hang.

use std::fmt;
use std::fs::File;
use std::io::{Read, Seek};
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use rustix::process::{Pid, Signal, kill_process_group};

/// The way in which a program ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum End {
    Success,
    Failure,
    /// Terminated by this signal.
    Signal(i32),
    /// Killed at the time limit.
    Timeout,
}

impl fmt::Display for End {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Success => f.write_str("done"),
            Self::Failure => f.write_str("failed"),
            Self::Signal(4) => f.write_str("SIGILL"),
            Self::Signal(6) => f.write_str("SIGABRT"),
            Self::Signal(7) => f.write_str("SIGBUS"),
            Self::Signal(8) => f.write_str("SIGFPE"),
            Self::Signal(11) => f.write_str("SIGSEGV"),
            Self::Signal(signal) => write!(f, "signal {signal}"),
            Self::Timeout => f.write_str("hangs"),
        }
    }
}

#[derive(Debug)]
pub(crate) struct Outcome {
    pub(crate) stdout: String,
    pub(crate) stderr: String,
    pub(crate) end: End,
}

impl Outcome {
    /// Returns the reason why the program failed, `None` if it succeeded.
    pub(crate) fn failure(&self) -> Option<String> {
        (self.end != End::Success).then(|| format!("{}: {}", self.end, self.stderr.trim()))
    }
}

/// Runs a command until it ends, or kills it at the time limit, with its whole group if it leads one.
pub(crate) fn run(command: &mut Command, limit: Duration) -> Result<Outcome> {
    // Files, because a pipe blocks the program unless it is emptied meanwhile.
    let (output, errors) = (tempfile::tempfile()?, tempfile::tempfile()?);
    let mut child = command
        .stdin(Stdio::null())
        .stdout(output.try_clone()?)
        .stderr(errors.try_clone()?)
        .spawn()
        .with_context(|| format!("cannot run {}", command.get_program().display()))?;
    let end = match wait(&mut child, limit)? {
        None => End::Timeout,
        Some(status) if status.success() => End::Success,
        Some(status) => status.signal().map_or(End::Failure, End::Signal),
    };
    Ok(Outcome { stdout: text(output)?, stderr: text(errors)?, end })
}

/// Returns the exit status, `None` if the program was killed at the time limit.
fn wait(child: &mut Child, limit: Duration) -> Result<Option<ExitStatus>> {
    let start = Instant::now();
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(Some(status));
        }
        if start.elapsed() >= limit {
            // The group exists only if the program leads one.
            if kill_process_group(Pid::from_child(child), Signal::KILL).is_err() {
                child.kill()?;
            }
            child.wait()?;
            return Ok(None);
        }
        // A long interval, so as not to disturb a measurement.
        thread::sleep(Duration::from_millis(20));
    }
}

fn text(mut file: File) -> Result<String> {
    file.rewind()?;
    let mut bytes = Vec::new();
    file.read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::CommandExt;

    use super::*;

    const MINUTE: Duration = Duration::from_secs(60);

    fn shell(script: &str, limit: Duration) -> Outcome {
        run(Command::new("sh").args(["-c", script]), limit).unwrap()
    }

    #[test]
    fn run_reports_success_failure_and_signal() {
        let done = shell("true", MINUTE);
        assert_eq!((done.end, done.failure()), (End::Success, None));
        let failed = shell("echo one; echo two >&2; exit 3", MINUTE);
        assert_eq!((&*failed.stdout, &*failed.stderr, failed.end), ("one\n", "two\n", End::Failure));
        assert_eq!(failed.failure().as_deref(), Some("failed: two"));
        assert_eq!(shell("kill -SEGV $$", MINUTE).end.to_string(), "SIGSEGV");
    }

    #[test]
    fn run_kills_a_program_at_the_time_limit() {
        let start = Instant::now();
        assert_eq!(shell("exec sleep 60", Duration::from_millis(50)).end, End::Timeout);
        assert!(start.elapsed() < MINUTE / 2);
    }

    #[test]
    fn run_kills_the_group_with_its_leader() {
        let start = Instant::now();
        let mut leader = Command::new("sh");
        leader.args(["-c", "sleep 60 & echo $!; wait"]).process_group(0);
        let outcome = run(&mut leader, Duration::from_secs(1)).unwrap();
        assert_eq!(outcome.end, End::Timeout);
        let child: u32 = outcome.stdout.trim().parse().unwrap();
        // It may remain a zombie, as its new parent need not wait for it.
        let status = || std::fs::read_to_string(format!("/proc/{child}/stat"));
        while status().is_ok_and(|status| !status.contains(") Z ")) {
            assert!(start.elapsed() < MINUTE / 2);
            thread::sleep(Duration::from_millis(5));
        }
    }
}
