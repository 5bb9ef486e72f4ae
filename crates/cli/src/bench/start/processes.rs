//! The ranks as processes. The first error of a rank ends all ranks, and so does the end of the process that started them,
//! however it ends.

use std::io::{self, BufRead, BufReader, ErrorKind, PipeReader};
use std::process::{self, Child, ExitCode};
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use libnccl::UniqueId;
use rustix::process::{Pid, Signal, kill_process};

use super::{ID, PARENT, RANK, interrupt};
use crate::run::{check_rights, this_program};
use crate::{exit_status, output};

/// Runs the ranks as processes of this program, with the same arguments.
///
/// Must be called on the main thread: the kernel ends the ranks when the *thread* that started them ends.
pub(crate) fn run(id: &UniqueId, ranks: usize) -> Result<ExitCode> {
    const POLL_INTERVAL: Duration = Duration::from_millis(20);
    const ERROR_TIMEOUT: Duration = Duration::from_secs(1);
    const OUTPUT_TIMEOUT: Duration = Duration::from_secs(2);

    check_rights("nccl bench --processes")?;
    let received = interrupt::watch()?;
    // One pipe for all ranks, so that errors arrive in the order in which they were written.
    let (lines, input) = std::io::pipe().context("cannot create a pipe for the ranks' errors")?;
    let mut processes = Processes(Vec::new());
    for rank in 0..ranks {
        let mut command = this_program()?;
        command.env(RANK, rank.to_string()).env(ID, id.to_string()).env(PARENT, process::id().to_string());
        command.stdout(output::stdout_of_child()?).stderr(input.try_clone()?);
        processes.0.push(command.spawn().context("cannot start a process for a rank")?);
    }
    drop(input);
    let (sender, errors) = channel();
    thread::Builder::new().spawn(move || forward(lines, &sender))?;
    let mut interrupted: Option<Instant> = None;
    loop {
        let error = errors.try_recv();
        // The state is read after the error: a rank that was killed is the cause of the others' errors.
        let state = processes.state()?;
        let signal = received.load(Ordering::Relaxed);
        if signal != 0 {
            // Rank 0 writes what was measured, and the end of this function ends the others.
            let since = *interrupted.get_or_insert_with(|| {
                processes.signal_first(signal);
                Instant::now()
            });
            if processes.has_first_ended()? || since.elapsed() > OUTPUT_TIMEOUT {
                return Ok(interrupt::exit_code(signal).into());
            }
            thread::sleep(POLL_INTERVAL);
            continue;
        }
        match (state, error) {
            (State::OutputClosed, _) => return Err(io::Error::from(ErrorKind::BrokenPipe).into()),
            (State::Interrupted(code), _) => return Ok(code.into()),
            (State::Killed(reason), _) => bail!(reason),
            (_, Ok(error)) => bail!(error),
            (State::Failed(reason), _) => bail!(errors.recv_timeout(ERROR_TIMEOUT).unwrap_or(reason)),
            (State::Running, _) => thread::sleep(POLL_INTERVAL),
            (State::Succeeded, _) => return Ok(ExitCode::SUCCESS),
        }
    }
}

/// Sends the ranks' errors to `sender`, and writes their other lines to stderr.
fn forward(output: PipeReader, sender: &Sender<String>) {
    for line in BufReader::new(output).split(b'\n').map_while(Result::ok) {
        let line = String::from_utf8_lossy(&line);
        match line.strip_prefix("error: ") {
            Some(error) => drop(sender.send(error.into())),
            None => output::write_to_stderr(&format!("{line}\n")),
        }
    }
}

/// The processes of the ranks. Dropping kills those that still run.
struct Processes(Vec<Child>);

/// The state of a process. That of several processes is their maximum.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
enum State {
    Succeeded,
    Running,
    /// Exited with a failure, having printed the error.
    Failed(String),
    /// Exited after the output, because of a signal.
    Interrupted(u8),
    /// Killed by a signal.
    Killed(String),
    /// Could not print, because the reader of the output has closed it. That is the cause of the others' errors.
    OutputClosed,
}

impl Processes {
    fn state(&mut self) -> Result<State> {
        let mut worst = State::Succeeded;
        for (rank, process) in self.0.iter_mut().enumerate() {
            let state = match process.try_wait()? {
                Some(status) if status.success() => State::Succeeded,
                None => State::Running,
                Some(status) if status.code() == Some(exit_status::OUTPUT_CLOSED.into()) => {
                    State::OutputClosed
                }
                Some(status) if status.code().is_some_and(interrupt::is_exit_code) => {
                    State::Interrupted(status.code().map_or(1, |code| code as u8))
                }
                Some(status) => {
                    let reason = format!("rank {rank} ended: {status}");
                    if status.code().is_some() { State::Failed(reason) } else { State::Killed(reason) }
                }
            };
            worst = worst.max(state);
        }
        Ok(worst)
    }

    /// Sends a signal to rank 0, if it runs.
    fn signal_first(&self, signal: i32) {
        if let (Some(first), Some(signal)) = (self.0.first(), Signal::from_named_raw(signal)) {
            let _ = kill_process(Pid::from_child(first), signal);
        }
    }

    fn has_first_ended(&mut self) -> Result<bool> {
        self.0.first_mut().map_or(Ok(true), |first| Ok(first.try_wait()?.is_some()))
    }
}

impl Drop for Processes {
    fn drop(&mut self) {
        for process in &mut self.0 {
            // An error means that the process has already ended.
            let _ = process.kill();
            let _ = process.wait();
        }
    }
}
