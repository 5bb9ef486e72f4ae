//! A program that may crash, or not return.

use std::fmt;
use std::fs::File;
use std::io::{Read, Seek};
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use rustix::process::{Pid, Signal, kill_process_group};

/// How a program ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum End {
    Success,
    Failure,
    /// By this signal.
    Death(i32),
    /// It was killed, because it was not done in time.
    Hang,
}

impl fmt::Display for End {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Success => f.write_str("done"),
            Self::Failure => f.write_str("failed"),
            Self::Death(4) => f.write_str("SIGILL"),
            Self::Death(6) => f.write_str("SIGABRT"),
            Self::Death(7) => f.write_str("SIGBUS"),
            Self::Death(8) => f.write_str("SIGFPE"),
            Self::Death(11) => f.write_str("SIGSEGV"),
            Self::Death(signal) => write!(f, "signal {signal}"),
            Self::Hang => f.write_str("hangs"),
        }
    }
}

#[derive(Debug)]
pub(crate) struct Ended {
    /// What it had printed by then.
    pub(crate) printed: String,
    pub(crate) complained: String,
    pub(crate) end: End,
}

impl Ended {
    /// Why it does not count as done.
    pub(crate) fn failure(&self) -> Option<String> {
        (self.end != End::Success).then(|| format!("{}: {}", self.end, self.complained.trim()))
    }
}

/// Runs a command to its end or the limit; then it is killed, with its whole group if it leads one.
pub(crate) fn run(command: &mut Command, limit: Duration) -> Result<Ended> {
    // Files take any amount, where pipes would have to be emptied meanwhile.
    let (output, errors) = (tempfile::tempfile()?, tempfile::tempfile()?);
    let mut child = command
        .stdin(Stdio::null())
        .stdout(output.try_clone()?)
        .stderr(errors.try_clone()?)
        .spawn()
        .with_context(|| format!("cannot run {}", command.get_program().display()))?;
    let end = match wait(&mut child, limit)? {
        None => End::Hang,
        Some(status) if status.success() => End::Success,
        Some(status) => status.signal().map_or(End::Failure, End::Death),
    };
    Ok(Ended { printed: text(output)?, complained: text(errors)?, end })
}

/// None if it had to be killed.
fn wait(child: &mut Child, limit: Duration) -> Result<Option<ExitStatus>> {
    let start = Instant::now();
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(Some(status));
        }
        if start.elapsed() >= limit {
            // There is no group of this number unless it leads one.
            if kill_process_group(Pid::from_child(child), Signal::KILL).is_err() {
                child.kill()?;
            }
            child.wait()?;
            return Ok(None);
        }
        // Seldom, so as not to disturb what may be measured.
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

    fn shell(script: &str, limit: Duration) -> Ended {
        run(Command::new("sh").args(["-c", script]), limit).unwrap()
    }

    #[test]
    fn ends_are_told_apart() {
        let done = shell("true", MINUTE);
        assert_eq!((done.end, done.failure()), (End::Success, None));
        let failed = shell("echo one; echo two >&2; exit 3", MINUTE);
        assert_eq!((&*failed.printed, &*failed.complained, failed.end), ("one\n", "two\n", End::Failure));
        assert_eq!(failed.failure().as_deref(), Some("failed: two"));
        assert_eq!(shell("kill -SEGV $$", MINUTE).end.to_string(), "SIGSEGV");
    }

    #[test]
    fn who_is_not_done_in_time_is_killed() {
        let start = Instant::now();
        assert_eq!(shell("exec sleep 60", Duration::from_millis(50)).end, End::Hang);
        assert!(start.elapsed() < MINUTE / 2);
    }

    #[test]
    fn a_group_is_killed_with_its_leader() {
        let start = Instant::now();
        let mut leader = Command::new("sh");
        leader.args(["-c", "sleep 60 & echo $!; wait"]).process_group(0);
        let ended = run(&mut leader, Duration::from_secs(1)).unwrap();
        assert_eq!(ended.end, End::Hang);
        let child: u32 = ended.printed.trim().parse().unwrap();
        // It may be that nobody waits for it.
        let status = || std::fs::read_to_string(format!("/proc/{child}/stat"));
        while status().is_ok_and(|status| !status.contains(") Z ")) {
            assert!(start.elapsed() < MINUTE / 2);
            thread::sleep(Duration::from_millis(5));
        }
    }
}
