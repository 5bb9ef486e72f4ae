//! A process, known so that no other is taken for it, and whether it still runs.
//!
//! The start time tells it from a later process with the same number. A lock that the kernel drops at a
//! process's death would outlive it where the process has forked; this does not.

use std::io::{self, ErrorKind};
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use rustix::io::Errno;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Process {
    pub(crate) pid: u64,
    /// In the kernel's clock ticks since it booted.
    pub(crate) started: u64,
}

/// What `/proc/<pid>/task/<pid>/stat` says.
struct Status {
    ended: bool,
    started: u64,
}

impl Process {
    /// This process, looked up once. A process that forks has a child that looks for itself.
    pub(crate) fn current() -> io::Result<Self> {
        static PID: AtomicU64 = AtomicU64::new(0);
        static STARTED: AtomicU64 = AtomicU64::new(0);
        let pid = std::process::id().into();
        if PID.load(Acquire) == pid {
            return Ok(Self { pid, started: STARTED.load(Relaxed) });
        }
        let current = Self::of(pid)?;
        STARTED.store(current.started, Relaxed);
        PID.store(pid, Release);
        Ok(current)
    }

    pub(crate) fn of(pid: u64) -> io::Result<Self> {
        Ok(Self { pid, started: status(pid)?.started })
    }

    /// Whether the process certainly ended: in doubt (no file descriptor left, say) it did not.
    pub(crate) fn ended(&self) -> bool {
        match status(self.pid) {
            Ok(status) => status.ended || status.started != self.started,
            Err(error) => {
                error.kind() == ErrorKind::NotFound || Errno::from_io_error(&error) == Some(Errno::SRCH)
            }
        }
    }
}

fn status(pid: u64) -> io::Result<Status> {
    // What the first thread's file says of the process is the same. That of the whole process an emulator of
    // another processor makes up for the process itself, with a start time a little off.
    let path = format!("/proc/{pid}/task/{pid}/stat");
    let text = std::fs::read_to_string(&path)?;
    parse(&text).ok_or_else(|| io::Error::new(ErrorKind::InvalidData, format!("{path}: {text}")))
}

fn parse(text: &str) -> Option<Status> {
    // The name, the second field, may hold anything; it ends at the last parenthesis.
    let fields: Vec<&str> = text.rsplit_once(')')?.1.split_ascii_whitespace().collect();
    let (state, threads) = (*fields.first()?, fields.get(17)?.parse::<u64>().ok()?);
    // A process whose first thread has exited while others run shows as a zombie with several threads.
    let ended = matches!(state, "Z" | "X") && threads <= 1;
    Some(Status { ended, started: fields.get(19)?.parse().ok()? })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_runs() {
        assert!(!Process::current().unwrap().ended());
    }

    #[test]
    fn a_killed_process_has_ended_before_and_after_it_is_reaped() {
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let process = Process::of(child.id().into()).unwrap();
        assert!(!process.ended());
        assert!(
            Process { started: process.started + 1, ..process }.ended(),
            "the number was given to another"
        );
        child.kill().unwrap();
        let deadline = std::time::Instant::now() + std::time::Duration::from_secs(5);
        while !process.ended() {
            assert!(std::time::Instant::now() < deadline, "a zombie counts as ended");
        }
        child.wait().unwrap();
        assert!(process.ended());
    }

    #[test]
    fn a_name_with_spaces_and_parentheses_is_no_trap() {
        let line = "7 (a) Z (b)) S 1 7 7 0 -1 4 0 0 0 0 0 0 0 0 20 0 3 0 4711 0 0";
        let status = parse(line).unwrap();
        assert!(!status.ended);
        assert_eq!(status.started, 4711);
    }
}
