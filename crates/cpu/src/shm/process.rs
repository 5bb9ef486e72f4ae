//! Process identity, and checks whether a process is still running.
//!
//! A pid may be reused by a later process, which has another start time in `/proc`. A lock that the kernel releases when a process
//! dies would survive in its forked children; a start time does not.
//!
//! A process that executes another program remains the same process, but its rank no longer exists. The kernel places each
//! program's first stack at a random address, which `/proc` reports. Detecting the closing of the program's file descriptors
//! would be less reliable: forked children hold them, and programs close descriptors that they do not recognize.
//!
//! A forked child has a copy of its parent's communicators, but is not a rank of any of them: other ranks would mistake its calls for its
//! parent's calls. A child can create its own communicators.
#![allow(unsafe_code)]

use std::fs::{read_link, read_to_string};
use std::io::{self, ErrorKind};
use std::sync::Once;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, pidfd_open, test_kill_process};

use crate::diag::error::Error;

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Process {
    /// The pid in the PID namespace that all ranks share.
    pub(crate) pid: u64,
    /// The start time in clock ticks, which no other process with this pid has.
    pub(crate) identity: u64,
}

impl Process {
    /// Returns this process. It is looked up once, and again in a forked child.
    pub(crate) fn current() -> io::Result<Self> {
        static PID: AtomicU64 = AtomicU64::new(0);
        static IDENTITY: AtomicU64 = AtomicU64::new(0);
        let pid = std::process::id().into();
        if PID.load(Acquire) == pid {
            return Ok(Self { pid, identity: IDENTITY.load(Relaxed) });
        }
        check_proc(pid)?;
        let current = Self::from_pid(pid)?;
        IDENTITY.store(current.identity, Relaxed);
        PID.store(pid, Release);
        Ok(current)
    }

    pub(crate) fn from_pid(pid: u64) -> io::Result<Self> {
        Ok(Self { pid, identity: read_stat(pid)?.started })
    }

    /// Returns `true` if the process has certainly ended. Returns `false` if that is uncertain, for example without file descriptors or if
    /// `/proc` hides the process.
    pub(crate) fn ended(&self) -> bool {
        match read_stat(self.pid) {
            Ok(stat) => stat.has_ended() || stat.started != self.identity,
            Err(error) => error.kind() == ErrorKind::NotFound,
        }
    }

    /// Returns the mark of the program that the process runs: the start address of its first stack. Any other program that the
    /// process executes has another mark. Returns 0 if the mark is unknown because the first thread has exited or this process
    /// lacks permission.
    pub(crate) fn program(&self) -> u64 {
        read_stat(self.pid).map_or(0, |stat| stat.first_stack)
    }

    /// Returns `true` if the process certainly no longer runs the program with the mark `program`.
    pub(crate) fn has_executed_another(&self, program: u64) -> bool {
        program != 0 && ![0, program].contains(&self.program())
    }

    pub(crate) fn condition(&self) -> Option<&'static str> {
        if self.ended() {
            return Some("has ended");
        }
        self.is_stopped().then_some("is stopped by a signal or a debugger")
    }

    pub(crate) fn is_stopped(&self) -> bool {
        matches!(self.state(), Some('T' | 't'))
    }

    /// Returns the state of the process's first thread from `/proc`: `T` if it is stopped.
    pub(crate) fn state(&self) -> Option<char> {
        read_stat(self.pid).ok().map(|stat| stat.state)
    }
}

/// Checks that `/proc` shows this process under its pid.
fn check_proc(pid: u64) -> io::Result<()> {
    let shown = read_link("/proc/self")?;
    if shown.to_str().and_then(|shown| shown.parse().ok()) == Some(pid) {
        return Ok(());
    }
    Err(io::Error::other(format!(
        "/proc is of another PID namespace: it shows this process, {pid}, as {}; \
         mount the namespace's own (unshare --mount-proc)",
        shown.display()
    )))
}

/// The content of `/proc/<pid>/task/<pid>/stat`.
struct Stat {
    state: char,
    threads: u64,
    started: u64,
    /// The start address of the first stack, or 0 if this process may not trace that process.
    first_stack: u64,
}

impl Stat {
    /// Returns whether the process has ended. If only its first thread has, it is shown as a zombie with several threads.
    fn has_ended(&self) -> bool {
        matches!(self.state, 'Z' | 'X') && self.threads <= 1
    }
}

fn read_stat(pid: u64) -> io::Result<Stat> {
    // The first thread's file has the same content as the process's file. QEMU's user-mode emulation synthesizes the latter if a
    // process reads its own, with a slightly wrong start time.
    let path = format!("/proc/{pid}/task/{pid}/stat");
    let text = read_to_string(&path).map_err(|error| match Errno::from_io_error(&error) {
        // With the mount option hidepid, `/proc` hides processes that this process may not trace, for example in another user namespace.
        Some(Errno::SRCH | Errno::NOENT) if runs(pid) => ErrorKind::PermissionDenied.into(),
        Some(Errno::SRCH) => ErrorKind::NotFound.into(),
        _ => error,
    })?;
    parse(&text).ok_or_else(|| io::Error::new(ErrorKind::InvalidData, format!("{path}: {text}")))
}

/// Returns whether a process with this pid runs, without `/proc`.
fn runs(pid: u64) -> bool {
    let Some(pid) = i32::try_from(pid).ok().and_then(Pid::from_raw) else { return false };
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    match pidfd_open(pid, PidfdFlags::empty()) {
        // It is readable once all threads have ended.
        Ok(pidfd) => poll(&mut [PollFd::new(&pidfd, PollFlags::IN)], Some(&now)) != Ok(1),
        // No such process, an older kernel, a seccomp filter, or no file descriptor.
        Err(_) => test_kill_process(pid) != Err(Errno::SRCH),
    }
}

fn parse(text: &str) -> Option<Stat> {
    // The second field, the name, may contain any characters. It ends at the last parenthesis.
    let fields: Vec<&str> = text.rsplit_once(')')?.1.split_ascii_whitespace().collect();
    let number = |index: usize| fields.get(index)?.parse().ok();
    Some(Stat {
        state: fields.first()?.chars().next()?,
        threads: number(17)?,
        started: number(19)?,
        first_stack: number(25).unwrap_or(0),
    })
}

static GENERATION: AtomicUsize = AtomicUsize::new(0);

static PROCESS: AtomicU32 = AtomicU32::new(0);
static PARENT: AtomicU32 = AtomicU32::new(0);

/// Returns the number of forks that led to this process since [`watch_forks`] was called.
#[inline]
pub(crate) fn fork_generation() -> usize {
    GENERATION.load(Relaxed)
}

/// Starts counting forks made by the C library's `fork`.
pub(crate) fn watch_forks() {
    static WATCH: Once = Once::new();
    WATCH.call_once(|| {
        PROCESS.store(std::process::id(), Relaxed);
        // SAFETY: the handler only does what a forked child may do: it calls getpid and writes atomics. It stays loaded, because the C
        // library removes the handlers of an unloaded library. It fails only if there is no memory.
        unsafe { libc::pthread_atfork(None, None, Some(count_fork)) };
    });
}

extern "C" fn count_fork() {
    PARENT.store(PROCESS.swap(std::process::id(), Relaxed), Relaxed);
    GENERATION.fetch_add(1, Relaxed);
}

/// Returns the error for using an inherited `what` in a forked child.
pub(crate) fn inherited(what: &str) -> Error {
    Error::usage(format!(
        "{what} was created before process {} forked this process, {}, which has no rank in it: a forked child can create \
         its own communicators",
        PARENT.load(Relaxed),
        PROCESS.load(Relaxed)
    ))
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader, Write};
    use std::process::{Command, Stdio};
    use std::time::{Duration, Instant};

    use super::*;

    #[test]
    fn process_that_executes_another_program_has_another_mark() {
        let randomizes = read_to_string("/proc/sys/kernel/randomize_va_space").unwrap();
        if randomizes.trim() == "0" {
            println!("skipped: the kernel does not randomize addresses");
            return;
        }
        let current = Process::current().unwrap();
        assert!(!current.has_executed_another(current.program()) && current.program() != 0);
        for _ in 0..5 {
            let mut child = Command::new("sh")
                .args(["-c", "echo it runs; read line; exec sleep 60"])
                .stdin(Stdio::piped())
                .stdout(Stdio::piped())
                .spawn()
                .unwrap();
            // The child may have been started without running the program yet.
            BufReader::new(child.stdout.take().unwrap()).read_line(&mut String::new()).unwrap();
            let process = Process::from_pid(child.id().into()).unwrap();
            let program = process.program();
            assert!(program != 0 && !process.has_executed_another(program));
            child.stdin.take().unwrap().write_all(b"go on\n").unwrap();
            let deadline = Instant::now() + Duration::from_secs(5);
            while !process.has_executed_another(program) {
                assert!(Instant::now() < deadline);
            }
            assert!(!process.has_executed_another(0) && !process.ended());
            child.kill().unwrap();
            child.wait().unwrap();
            assert!(!process.has_executed_another(program), "nothing is known of it");
        }
    }

    #[test]
    fn stat_with_spaces_and_parentheses_in_the_name_is_parsed() {
        let line = "7 (a) Z (b)) S 1 7 7 0 -1 4 0 0 0 0 0 0 0 0 20 0 3 0 4711 0 0";
        let stat = parse(line).unwrap();
        assert!(!stat.has_ended());
        assert_eq!(stat.started, 4711);
    }
}
