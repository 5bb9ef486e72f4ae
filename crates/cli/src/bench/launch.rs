//! Starts the ranks, as threads or as processes. The first error of any of them ends them all.

use std::env;
use std::io::{BufRead, BufReader, PipeReader, Write, stderr};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::{Child, Command};
use std::sync::mpsc::{Sender, channel};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};
use libnccl::{Nccl, UniqueId};

use super::parameters::Parameters;
use super::rank;

/// What makes a process a rank: its number, and the id, which is a secret and so no argument that all can see.
const RANK: &str = "LIBNCCL_BENCH_RANK";
const ID: &str = "LIBNCCL_BENCH_ID";

/// Runs the ranks as threads.
pub(crate) fn threads(nccl: &Nccl, id: &UniqueId, ranks: usize, parameters: &[Parameters]) -> Result<()> {
    let (sender, outcomes) = channel();
    for rank in 0..ranks {
        let (nccl, id, parameters, sender) = (nccl.clone(), *id, parameters.to_vec(), sender.clone());
        let run = move || {
            let outcome = catch_unwind(AssertUnwindSafe(|| rank::run(&nccl, &id, rank, &parameters)));
            // No one listens any more if another rank has failed.
            let _ = sender.send(outcome.unwrap_or_else(|_| Err(anyhow!("rank {rank} panicked"))));
        };
        // Not scoped: after an error, the other threads may wait in NCCL for ever.
        thread::Builder::new().name(format!("rank {rank}")).spawn(run).context("no thread for a rank")?;
    }
    drop(sender);
    outcomes.iter().collect()
}

/// Runs the ranks as processes: this program again, with the same arguments.
pub(crate) fn processes(id: &UniqueId, ranks: usize) -> Result<()> {
    const PAUSE: Duration = Duration::from_millis(20);
    const LAST_WORDS: Duration = Duration::from_secs(1);

    // One pipe for all, so that what was written first is read first.
    let (output, input) = std::io::pipe().context("no pipe for the ranks' errors")?;
    let mut processes = Processes(Vec::new());
    for rank in 0..ranks {
        let mut command = Command::new(env::current_exe()?);
        command.args(env::args_os().skip(1));
        command.env(RANK, rank.to_string()).env(ID, id.to_string()).stderr(input.try_clone()?);
        processes.0.push(command.spawn().context("no process for a rank")?);
    }
    drop(input);
    let (sender, errors) = channel();
    thread::Builder::new().spawn(move || forward(output, &sender))?;
    loop {
        let error = errors.try_recv();
        // Looked at after: a rank that others complain about may have been killed.
        match (processes.state()?, error) {
            (State::Killed(how), _) => bail!(how),
            (_, Ok(error)) => bail!(error),
            (State::Failed(how), _) => bail!(errors.recv_timeout(LAST_WORDS).unwrap_or(how)),
            (State::Running, _) => thread::sleep(PAUSE),
            (State::Ended, _) => return Ok(()),
        }
    }
}

/// If this process is a rank of another: what to join.
pub(crate) fn launched() -> Result<Option<(UniqueId, usize)>> {
    let (Ok(rank), Ok(id)) = (env::var(RANK), env::var(ID)) else { return Ok(None) };
    let rank = rank.parse().with_context(|| format!("{RANK}={rank} is no rank"))?;
    let id = id.parse().with_context(|| format!("{ID} is no id"))?;
    Ok(Some((id, rank)))
}

/// Passes on what the ranks write, but for their errors: the first is `sender`'s, the others are its consequences.
fn forward(output: PipeReader, sender: &Sender<String>) {
    for line in BufReader::new(output).split(b'\n').map_while(Result::ok) {
        let line = String::from_utf8_lossy(&line);
        match line.strip_prefix("error: ") {
            Some(error) => drop(sender.send(error.into())),
            None => drop(writeln!(stderr(), "{line}")),
        }
    }
}

/// Killed, if they still run, when dropped.
struct Processes(Vec<Child>);

/// How a process is; of several, the greatest counts.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
enum State {
    Ended,
    Running,
    /// It says why itself.
    Failed(String),
    Killed(String),
}

impl Processes {
    fn state(&mut self) -> Result<State> {
        let mut worst = State::Ended;
        for (rank, process) in self.0.iter_mut().enumerate() {
            let state = match process.try_wait()? {
                Some(status) if status.success() => State::Ended,
                None => State::Running,
                Some(status) => {
                    let how = format!("rank {rank} ended: {status}");
                    if status.code().is_some() { State::Failed(how) } else { State::Killed(how) }
                }
            };
            worst = worst.max(state);
        }
        Ok(worst)
    }
}

impl Drop for Processes {
    fn drop(&mut self) {
        for process in &mut self.0 {
            // An error means that it has ended.
            let _ = process.kill();
            let _ = process.wait();
        }
    }
}
