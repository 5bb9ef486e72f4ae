//! The supervisor: starts the ranks, and ends all of them if one fails.

use std::io::{self, ErrorKind, Write};
use std::os::unix::process::{ExitStatusExt, parent_id};
use std::process::{ExitCode, ExitStatus};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use rustix::process::Signal;
use signal_hook::consts::{SIGUSR1, SIGUSR2};
use signal_hook::iterator::Signals;

use super::arguments::RunArguments;
use super::descendants;
use super::event::Event;
use super::process::exit_code;
use super::ranks::{Job, Ranks};
use crate::exit_status;

/// The time that ranks have to end themselves, before they are killed.
const GRACE: Duration = Duration::from_secs(10);

/// The status that nobody is left to read.
const EXIT_WITHOUT_FRONT: u8 = 1;

/// The end of an attempt.
enum Outcome {
    Succeeded,
    /// The exit status of the first rank that failed.
    Failed(u8),
    /// The user has ended it, or reads no more; the exit status.
    Stopped(u8),
}

/// Runs the ranks until an attempt succeeds, or none is left.
pub(super) fn run(arguments: &RunArguments, mut signals: Signals) -> Result<ExitCode> {
    let (front, job) = (parent_id(), Job::new(arguments)?);
    let (sender, events) = channel();
    let to_events = sender.clone();
    thread::Builder::new()
        .spawn(move || signals.forever().try_for_each(|signal| to_events.send(Event::Signal(signal))))
        .context("cannot start a thread")?;
    for attempt in 0.. {
        let outcome = Attempt::run(arguments, &job, attempt, front, &sender, &events);
        // Also what the ranks have started.
        descendants::kill_all()?;
        match outcome? {
            (Outcome::Failed(_), ranks) if attempt < arguments.restart => {
                ranks.finish();
                if let Some(status) = late_status(&events, front) {
                    return Ok(status.into());
                }
                say(&format!("starting all ranks again, {} of {} times", attempt + 1, arguments.restart));
            }
            (outcome, ranks) => {
                ranks.finish();
                return Ok(match outcome {
                    Outcome::Succeeded => ExitCode::SUCCESS,
                    Outcome::Failed(code) | Outcome::Stopped(code) => code.into(),
                });
            }
        }
    }
    Ok(ExitCode::FAILURE)
}

/// Forgets what the ranks of an attempt have left. A signal that came after they had ended ends the job, as it would have ended
/// them: returns the exit status then.
fn late_status(events: &Receiver<Event>, front: u32) -> Option<u8> {
    let asks_for_the_end = |event| match event {
        Event::Signal(signal) if !matches!(signal, SIGUSR1 | SIGUSR2) => Some(signal),
        _ => None,
    };
    let late: Vec<_> = events.try_iter().filter_map(asks_for_the_end).collect();
    late.first().map(|signal| if parent_id() == front { status_of(*signal) } else { EXIT_WITHOUT_FRONT })
}

/// The ranks, and what has become of them.
struct Attempt {
    ranks: Ranks,
    outcome: Outcome,
    /// The time at which those that still run are killed.
    deadline: Option<Instant>,
}

impl Attempt {
    /// Starts the ranks and waits until all have ended.
    fn run(
        arguments: &RunArguments,
        job: &Job,
        number: u32,
        front: u32,
        sender: &Sender<Event>,
        events: &Receiver<Event>,
    ) -> Result<(Outcome, Ranks)> {
        let ranks = Ranks::start(job, arguments, number, sender)?;
        let mut attempt = Self { ranks, outcome: Outcome::Succeeded, deadline: None };
        while attempt.ranks.are_running() {
            let longest =
                attempt.deadline.map_or(Duration::MAX, |end| end.saturating_duration_since(Instant::now()));
            match events.recv_timeout(longest) {
                // The front was killed, so nobody waits for the ranks any more.
                Ok(Event::Signal(_)) if parent_id() != front => {
                    attempt.end(Outcome::Stopped(EXIT_WITHOUT_FRONT), Signal::KILL);
                }
                Ok(Event::Signal(signal)) => attempt.forward(signal),
                Ok(Event::Ended(rank)) => attempt.note_end(rank)?,
                Ok(Event::CannotPrint(error)) => attempt.note_lost_output(&error),
                Err(RecvTimeoutError::Timeout) => {
                    attempt.ranks.send(Signal::KILL);
                    attempt.deadline = None;
                }
                Err(RecvTimeoutError::Disconnected) => break,
            }
        }
        Ok((attempt.outcome, attempt.ranks))
    }

    /// Passes a signal on. The second one that asks for the end kills.
    fn forward(&mut self, signal: i32) {
        let Some(named) = Signal::from_named_raw(signal) else { return };
        if matches!(signal, SIGUSR1 | SIGUSR2) {
            self.ranks.send(named);
        } else if matches!(self.outcome, Outcome::Stopped(_)) {
            self.ranks.send(Signal::KILL);
        } else {
            self.end(Outcome::Stopped(status_of(signal)), named);
        }
    }

    /// Ends all ranks for the first reason.
    fn end(&mut self, outcome: Outcome, signal: Signal) {
        self.outcome = outcome;
        self.ranks.send(signal);
        self.deadline = Some(Instant::now() + GRACE);
    }

    fn note_end(&mut self, rank: usize) -> Result<()> {
        let (pid, status) = self.ranks.reap(rank)?;
        if !status.success() && matches!(self.outcome, Outcome::Succeeded) {
            let others = if self.ranks.are_running() { "; ending the others" } else { "" };
            say(&format!("rank {rank} (process {pid}) {}{others}", describe(status)));
            self.end(Outcome::Failed(exit_code(status)), Signal::TERM);
        }
        Ok(())
    }

    fn note_lost_output(&mut self, error: &io::Error) {
        if matches!(self.outcome, Outcome::Succeeded) {
            let code = if error.kind() == ErrorKind::BrokenPipe {
                exit_status::OUTPUT_CLOSED
            } else {
                say(&format!("the ranks' output cannot be written: {error}; ending them"));
                1
            };
            self.end(Outcome::Stopped(code), Signal::TERM);
        }
    }
}

/// Returns the exit status of a job that a signal has ended.
fn status_of(signal: i32) -> u8 {
    128u8.saturating_add_signed(signal as i8)
}

fn describe(status: ExitStatus) -> String {
    match (status.code(), status.signal()) {
        (Some(code), _) => format!("exited with status {code}"),
        (None, Some(signal)) => {
            let name = signal_hook::low_level::signal_name(signal).unwrap_or("unknown");
            format!("was ended by signal {signal} ({name})")
        }
        _ => format!("ended: {status}"),
    }
}

fn say(message: &str) {
    let _ = io::stderr().write_all(format!("nccl run: {message}\n").as_bytes());
}
