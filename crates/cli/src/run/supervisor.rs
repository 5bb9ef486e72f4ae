//! The supervisor: starts the ranks, and ends all of them if one fails.

use std::io::{self, ErrorKind, Read, Write};
use std::os::unix::process::parent_id;
use std::process::ExitCode;
use std::sync::mpsc::{Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Result;
use rustix::process::{Pid, Signal};
use signal_hook::iterator::Signals;

use super::RunArguments;
use super::machine::{Action, Event, Machine};
use super::process::{self, exit_code, is_stopped, requests_the_end, spawn};
use super::ranks::{Ranks, Report};
use crate::output;

/// The time after which the ranks are stopped when the front is.
const LOOK_INTERVAL: Duration = Duration::from_millis(100);

/// Runs the ranks until an attempt succeeds, or all attempts have failed.
pub(super) fn run(arguments: &RunArguments, colors: &str, signals: Signals) -> Result<ExitCode> {
    let (reports, next) = channel();
    listen(&reports, signals)?;
    let mut ranks = Ranks::new(arguments, colors, reports.clone())?;
    let mut machine = Machine::new(arguments.ranks, arguments.restart);
    let (mut problem, mut first, mut is_read) = (None, None, true);
    let mut deadline = Some(Instant::now());
    loop {
        let longest = deadline.map_or(Duration::MAX, |end| end.saturating_duration_since(Instant::now()));
        let event = match next.recv_timeout(longest) {
            Ok(Report::Event(event)) => event,
            Ok(Report::Ended(rank)) => {
                let (status, is_first) = reap(&mut ranks, rank, machine.is_sound(), arguments.inherit)?;
                first = is_first.then_some(rank).or(first);
                Event::Ended(status)
            }
            Ok(Report::CannotPrint(error)) => Event::OutputLost(status_of(&error, machine.is_sound())),
            Err(_) => {
                deadline = None;
                Event::Due
            }
        };
        // If the reader has closed the output, exit statuses are not reported.
        is_read &= !matches!(event, Event::OutputLost(output::CLOSED));
        for action in machine.on(event) {
            match action {
                Action::Start { attempt, rank } => {
                    if attempt > 0 && rank == 0 {
                        first = None;
                        say(&format!("starting all ranks again, {attempt} of {} times", arguments.restart));
                    }
                    let started = ranks.start(attempt, rank);
                    let event = if started.is_ok() { Event::Started } else { Event::NotStarted };
                    problem = problem.or(started.err());
                    let _ = reports.send(Report::Event(event));
                }
                Action::Send(signal) => ranks.send(signal),
                Action::NameSurvivors => {
                    for (rank, pid) in ranks.running() {
                        let end = format!("has survived SIGKILL: its state is {}", process::state(pid));
                        say(&format!("rank {rank} (process {pid}) {end}"));
                    }
                }
                Action::Sweep => {
                    if is_read && !arguments.inherit {
                        ranks.ends(first).iter().for_each(|end| say(end));
                    }
                    let left_behind: Vec<Pid> = ranks.running().map(|(_, pid)| pid).collect();
                    sweep(&left_behind);
                    ranks.close();
                }
                Action::Wait(time) => deadline = Some(Instant::now() + time),
                Action::Exit(status) => return problem.map_or(Ok(status.into()), Err),
            }
        }
    }
}

/// Kills the remaining descendants of the ranks, except ranks that have survived SIGKILL. Does not affect the exit status of the job.
fn sweep(left_behind: &[Pid]) {
    match process::kill_all(left_behind) {
        Ok(left) => left.into_iter().for_each(|pid| {
            let state = process::state(pid);
            say(&format!("process {pid}, which a rank started, has survived SIGKILL: its state is {state}"));
        }),
        Err(error) => say(&format!("processes of the ranks may be left: {error:#}")),
    }
}

fn listen(reports: &Sender<Report>, mut signals: Signals) -> Result<()> {
    // Signals forwarded by the front. The pipe is closed when the front exits for any reason.
    let to_reports = reports.clone();
    spawn(move || {
        for signal in io::stdin().lock().bytes().map_while(Result::ok) {
            let event = match Signal::from_named_raw(signal.into()) {
                Some(Signal::PIPE) => Event::OutputLost(output::CLOSED),
                Some(signal) => Event::Signal(signal),
                None => continue,
            };
            to_reports.send(Report::Event(event))?;
        }
        to_reports.send(Report::Event(Event::FrontEnded))
    })?;
    // Signals sent to every process of the job. The ranks get the other signals themselves.
    let to_reports = reports.clone();
    spawn(move || {
        let ends =
            signals.forever().filter_map(Signal::from_named_raw).filter(|signal| requests_the_end(*signal));
        ends.map(Event::Signal).try_for_each(|signal| to_reports.send(Report::Event(signal)))
    })?;
    // A process is not notified when its parent is stopped.
    let (front, to_reports) = (parent_id() as i32, reports.clone());
    spawn(move || {
        let mut was_stopped = false;
        loop {
            thread::sleep(LOOK_INTERVAL);
            if is_stopped(front) != was_stopped {
                was_stopped = !was_stopped;
                let _ = to_reports.send(Report::Event(Event::FrontStopped(was_stopped)));
            }
        }
    })
}

/// Returns the exit status of a rank, and whether it is the first rank that failed. The first failure is printed immediately, unless
/// the rank has exited normally and the ranks report their failures themselves, as in `nccl bench`.
fn reap(ranks: &mut Ranks, rank: usize, is_sound: bool, ranks_report: bool) -> Result<(u8, bool)> {
    let (pid, status) = ranks.reap(rank)?;
    let is_first = !status.success() && is_sound;
    if is_first && !(ranks_report && status.code().is_some()) {
        let others = if ranks.running().next().is_some() { "; ending the others" } else { "" };
        say(&format!("rank {rank} (process {pid}) {}{others}", process::describe(status, None, "was")));
    }
    Ok((exit_code(status), is_first))
}

/// Returns the exit status of a job whose output is lost. The reason is printed, if it is the first problem.
fn status_of(error: &io::Error, is_first: bool) -> u8 {
    if error.kind() == ErrorKind::BrokenPipe {
        return output::CLOSED;
    }
    if is_first {
        say(&format!("the ranks' output cannot be written: {error}; ending them"));
    }
    1
}

fn say(message: &str) {
    let _ = io::stderr().write_all(format!("nccl run: {message}\n").as_bytes());
}
