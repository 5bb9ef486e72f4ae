//! Starts the ranks as threads or as processes, unless a launcher has started them. The first error of a rank ends all ranks, and so does the end of the
//! process that started them, however it ends.

use std::env;
use std::io::{self, BufRead, BufReader, ErrorKind, PipeReader, Write, stderr};
use std::os::unix::process::parent_id;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::{self, Child, Command, ExitCode};
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail, ensure};
use libnccl::UniqueId;
use libnccl::launch::{Launch, LaunchError};
use rustix::process::{Pid, Signal, kill_process, set_parent_process_death_signal};

use super::interrupt;
use super::ranks::Place;
use super::thread::{self as rank_thread, Session};
use crate::{exit_status, output};

/// Environment variables that make a process a rank: the rank, the id, and the process id of the parent. The id is a
/// secret, and command lines are visible to all users.
const RANK: &str = "LIBNCCL_BENCH_RANK";
const ID: &str = "LIBNCCL_BENCH_ID";
const PARENT: &str = "LIBNCCL_BENCH_PARENT";

/// Runs the ranks of this process as threads, from that of `first` on.
pub(crate) fn threads(session: &Session, first: Place) -> Result<()> {
    let parameters = session.parameters.first().context("nothing to measure")?;
    let (sender, outcomes) = channel();
    for thread in 0..parameters.threads {
        let offset = thread * parameters.ranks_per_thread;
        let place = Place { rank: first.rank + offset, local_rank: first.local_rank + offset };
        let (session, sender) = (session.clone(), sender.clone());
        let run = move || {
            let outcome = catch_unwind(AssertUnwindSafe(|| rank_thread::run(&session, place)));
            // The receiver is gone if another rank has failed.
            let _ = sender.send(outcome.unwrap_or_else(|_| Err(anyhow!("rank {} panicked", place.rank))));
        };
        // Not scoped: after an error, the other threads may block in NCCL forever.
        thread::Builder::new()
            .name(format!("rank {}", place.rank))
            .spawn(run)
            .context("cannot start a thread for a rank")?;
    }
    drop(sender);
    outcomes.iter().collect()
}

/// Runs the ranks as processes of this program, with the same arguments.
///
/// Must be called on the main thread: the kernel ends the ranks when the *thread* that started them ends.
pub(crate) fn processes(id: &UniqueId, ranks: usize) -> Result<ExitCode> {
    const POLL_INTERVAL: Duration = Duration::from_millis(20);
    const ERROR_TIMEOUT: Duration = Duration::from_secs(1);
    const OUTPUT_TIMEOUT: Duration = Duration::from_secs(2);

    let received = interrupt::watch()?;
    // One pipe for all ranks, so that errors arrive in the order in which they were written.
    let (lines, input) = std::io::pipe().context("cannot create a pipe for the ranks' errors")?;
    let mut processes = Processes(Vec::new());
    for rank in 0..ranks {
        let mut command = Command::new(env::current_exe()?);
        command.args(env::args_os().skip(1));
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

/// Returns the id and the rank if this process was started as a rank. From then on it ends with its parent.
pub(crate) fn launched() -> Result<Option<(UniqueId, usize)>> {
    let (Ok(rank), Ok(id), Ok(parent)) = (env::var(RANK), env::var(ID), env::var(PARENT)) else {
        return Ok(None);
    };
    // The kernel sends the signal whatever ended the parent, SIGKILL included, so the parent handles no signals.
    set_parent_process_death_signal(Some(Signal::KILL)).context("cannot ask for the end with the parent")?;
    // No signal comes for a parent that ended before.
    ensure!(parent_id().to_string() == parent, "process {parent}, which started this rank, has ended");
    let rank = rank.parse().with_context(|| format!("invalid rank {RANK}={rank}"))?;
    let id = id.parse().with_context(|| format!("invalid id in {ID}"))?;
    Ok(Some((id, rank)))
}

/// Returns the process id of the parent of a process that was started as a rank.
pub(crate) fn parent() -> Option<String> {
    env::var(PARENT).ok()
}

/// Returns the place that a launcher has given to this process among others: torchrun, `mpirun`, `srun`, `nccl run`.
/// One that cannot be told is an error, and not a job of its own, as the other processes would be jobs of their own too.
pub(crate) fn by_launcher(ranks: Option<usize>, processes: bool) -> Result<Option<Launch>> {
    let launch = match Launch::from_env() {
        Ok(launch) if launch.size() > 1 => launch,
        Ok(_) | Err(libnccl::Error::Launch(LaunchError::NoLauncher)) => return Ok(None),
        Err(error) => return Err(error.into()),
    };
    if ranks.is_some() || processes {
        let (launcher, rank, size) = (launch.launcher(), launch.rank(), launch.size());
        bail!(
            "{launcher} started this as rank {rank} of {size}; --ranks and --processes are for ranks that nccl bench starts \
             itself"
        );
    }
    Ok(Some(launch))
}

/// Sends the ranks' errors to `sender`, and writes their other lines to stderr.
fn forward(output: PipeReader, sender: &Sender<String>) {
    for line in BufReader::new(output).split(b'\n').map_while(Result::ok) {
        let line = String::from_utf8_lossy(&line);
        match line.strip_prefix("error: ") {
            Some(error) => drop(sender.send(error.into())),
            None => drop(writeln!(stderr(), "{line}")),
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
