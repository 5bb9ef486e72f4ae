//! Process identity, and whether a process still runs.
//!
//! The start time distinguishes a process from a later one with the same pid. A lock that the kernel releases at a
//! process's death would live on in the children that it forked; this does not.

use std::io::{self, ErrorKind};
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use rustix::io::Errno;

/// A process, identified by pid and start time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Process {
    pub(crate) pid: u64,
    /// The start time in clock ticks since boot.
    pub(crate) started: u64,
}

/// The content of `/proc/<pid>/task/<pid>/stat`.
struct Status {
    ended: bool,
    stopped: bool,
    started: u64,
}

impl Process {
    /// Returns this process, looked up once, and once more in a forked child.
    pub(crate) fn current() -> io::Result<Self> {
        static PID: AtomicU64 = AtomicU64::new(0);
        static STARTED: AtomicU64 = AtomicU64::new(0);
        let pid = std::process::id().into();
        if PID.load(Acquire) == pid {
            return Ok(Self { pid, started: STARTED.load(Relaxed) });
        }
        let current = Self::from_pid(pid)?;
        STARTED.store(current.started, Relaxed);
        PID.store(pid, Release);
        Ok(current)
    }

    pub(crate) fn from_pid(pid: u64) -> io::Result<Self> {
        Ok(Self { pid, started: status(pid)?.started })
    }

    /// Returns `true` if the process has certainly ended; in doubt (out of file descriptors, say), `false`.
    pub(crate) fn ended(&self) -> bool {
        match status(self.pid) {
            Ok(status) => status.ended || status.started != self.started,
            Err(error) => {
                error.kind() == ErrorKind::NotFound || Errno::from_io_error(&error) == Some(Errno::SRCH)
            }
        }
    }

    /// Describes the state of a process that does not run as usual.
    pub(crate) fn condition(&self) -> Option<&'static str> {
        match status(self.pid) {
            Ok(status) if status.ended || status.started != self.started => Some("has ended"),
            Ok(status) if status.stopped => Some("is stopped by a signal or a debugger"),
            _ => None,
        }
    }
}

fn status(pid: u64) -> io::Result<Status> {
    // The first thread's file has the same content as the process's. QEMU's user-mode emulation makes up the latter for
    // a process that looks at itself, with a start time that is slightly off.
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
    Some(Status { ended, stopped: matches!(state, "T" | "t"), started: fields.get(19)?.parse().ok()? })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn current_process_has_not_ended() {
        assert!(!Process::current().unwrap().ended());
    }

    #[test]
    fn killed_process_has_ended_before_and_after_reaping() {
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let process = Process::from_pid(child.id().into()).unwrap();
        assert!(!process.ended());
        assert!(Process { started: process.started + 1, ..process }.ended(), "another process has this pid");
        child.kill().unwrap();
        let deadline = std::time::Instant::now() + std::time::Duration::from_secs(5);
        while !process.ended() {
            assert!(std::time::Instant::now() < deadline, "a zombie counts as ended");
        }
        child.wait().unwrap();
        assert!(process.ended());
    }

    #[test]
    fn stat_with_spaces_and_parentheses_in_the_name_is_parsed() {
        let line = "7 (a) Z (b)) S 1 7 7 0 -1 4 0 0 0 0 0 0 0 0 20 0 3 0 4711 0 0";
        let status = parse(line).unwrap();
        assert!(!status.ended);
        assert_eq!(status.started, 4711);
    }
}
