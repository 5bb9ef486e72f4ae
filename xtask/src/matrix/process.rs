//! A program that may crash, or not return.

use std::fmt;
use std::fs::File;
use std::io::{Read, Seek};
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

/// How a program ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum End {
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
pub(super) struct Ended {
    /// What it had printed by then.
    pub(super) printed: String,
    pub(super) complained: String,
    pub(super) end: End,
}

/// Runs a command to its end or the limit; then it is killed.
pub(super) fn run(command: &mut Command, limit: Duration) -> Result<Ended> {
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
            child.kill()?;
            child.wait()?;
            return Ok(None);
        }
        thread::sleep(Duration::from_millis(5));
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
    use super::*;

    fn shell(script: &str, limit: Duration) -> Ended {
        run(Command::new("sh").args(["-c", script]), limit).unwrap()
    }

    #[test]
    fn ends_are_told_apart() {
        let minute = Duration::from_secs(60);
        assert_eq!(shell("true", minute).end, End::Success);
        let failed = shell("echo one; echo two >&2; exit 3", minute);
        assert_eq!((&*failed.printed, &*failed.complained, failed.end), ("one\n", "two\n", End::Failure));
        assert_eq!(shell("kill -SEGV $$", minute).end.to_string(), "SIGSEGV");
        let start = Instant::now();
        assert_eq!(shell("exec sleep 60", Duration::from_millis(50)).end, End::Hang);
        assert!(start.elapsed() < Duration::from_secs(30));
    }
}
