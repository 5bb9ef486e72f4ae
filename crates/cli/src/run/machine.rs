//! The state machine of a job, without processes and clocks: it maps events to actions.

use std::time::Duration;

use rustix::process::Signal;

/// The time that ranks have to exit before they are killed.
const GRACE: Duration = Duration::from_secs(10);

/// The time before ranks are restarted. A signal that ends the job may reach the ranks first; it must reach the supervisor before
/// the restart.
const PAUSE: Duration = Duration::from_secs(1);

/// The time limit for printing after all ranks of an ended job have exited.
const PRINTING: Duration = Duration::from_secs(1);

/// The exit status if the front has exited and no process reads it.
const EXIT_WITHOUT_FRONT: u8 = 1;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Event {
    /// A signal for the ranks. SIGKILL means a second request to end the job.
    Signal(Signal),
    FrontEnded,
    /// The front was stopped (`true`) or continued.
    FrontStopped(bool),
    Started,
    NotStarted,
    /// A rank has exited with this status.
    Ended(u8),
    /// Output was lost; the job must exit with this status.
    OutputLost(u8),
    /// All output of the attempt has been printed.
    OutputEnded,
    /// The time of the last [`Action::Wait`] is over.
    Due,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Action {
    /// Start a rank. The result is [`Event::Started`] or [`Event::NotStarted`].
    Start {
        attempt: u32,
        rank: usize,
    },
    /// Send a signal to the running ranks.
    Send(Signal),
    /// Name the ranks that have survived SIGKILL.
    NameSurvivors,
    /// Report how the ranks have exited, and kill their remaining descendants. Ranks that have survived SIGKILL are left behind.
    Sweep,
    Wait(Duration),
    /// The last action.
    Exit(u8),
}

#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// The pause before the next attempt.
    #[default]
    Waiting,
    Running,
    /// All ranks have exited, and their output is being printed.
    Printing,
    Over,
}

#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
enum Outcome {
    #[default]
    Succeeded,
    /// The exit status of the first rank that failed.
    Failed(u8),
    /// The job must end with this exit status.
    Stopped(u8),
}

/// The state of a job. It begins before the first attempt, which is due immediately.
#[derive(Debug, Default, Clone)]
pub(super) struct Machine {
    ranks: usize,
    restarts: u32,
    next: u32,
    phase: Phase,
    outcome: Outcome,
    /// The number of ranks that the attempt has started; `running` of them have not exited.
    started: usize,
    running: usize,
    is_starting: bool,
    /// True if there is output to wait for.
    has_output: bool,
    is_stopped: bool,
    /// The number of expired waits since the ranks were sent SIGKILL; `None` before SIGKILL.
    waited: Option<u32>,
}

impl Machine {
    pub(super) fn new(ranks: usize, restarts: u32) -> Self {
        Self { ranks, restarts, ..Self::default() }
    }

    pub(super) fn is_sound(&self) -> bool {
        self.outcome == Outcome::Succeeded
    }

    pub(super) fn on(&mut self, event: Event) -> Vec<Action> {
        let is_ending = matches!(self.outcome, Outcome::Stopped(_));
        let mut actions = match event {
            _ if self.phase == Phase::Over => return vec![],
            Event::Due if self.phase == Phase::Waiting => {
                (self.phase, self.outcome, self.has_output) = (Phase::Running, Outcome::Succeeded, true);
                (self.started, self.next, self.waited) = (0, self.next.saturating_add(1), None);
                vec![]
            }
            Event::Due if self.phase == Phase::Running => match self.waited {
                None => self.kill(),
                Some(0) => {
                    self.waited = Some(1);
                    vec![Action::NameSurvivors, Action::Send(Signal::KILL), Action::Wait(GRACE)]
                }
                // The job ends without the ranks that survive SIGKILL, and is not restarted while they run.
                Some(_) if !self.is_starting => {
                    if let Outcome::Failed(status) = self.outcome {
                        self.outcome = Outcome::Stopped(status);
                    }
                    self.running = 0;
                    vec![]
                }
                Some(_) => self.kill(),
            },
            Event::Due if is_ending => self.kill(),
            Event::Signal(signal @ (Signal::USR1 | Signal::USR2)) => vec![Action::Send(signal)],
            Event::Signal(signal) if !is_ending => self.end(Outcome::Stopped(status_of(signal)), signal),
            Event::Signal(Signal::KILL) => self.kill(),
            Event::FrontEnded => {
                self.has_output = false;
                self.end(Outcome::Stopped(EXIT_WITHOUT_FRONT), Signal::KILL)
            }
            Event::FrontStopped(is_stopped) => {
                self.is_stopped = is_stopped;
                vec![Action::Send(if is_stopped { Signal::STOP } else { Signal::CONT })]
            }
            Event::Started => {
                self.is_starting = false;
                if self.is_stopped { vec![Action::Send(Signal::STOP)] } else { vec![] }
            }
            Event::NotStarted => {
                (self.is_starting, self.running) = (false, self.running - 1);
                self.end(Outcome::Stopped(1), Signal::KILL)
            }
            // A rank that was left behind has exited.
            Event::Ended(_) if self.phase != Phase::Running => vec![],
            Event::Ended(status) => {
                self.running -= 1;
                match status {
                    1.. if self.is_sound() => self.end(Outcome::Failed(status), Signal::TERM),
                    _ => vec![],
                }
            }
            Event::OutputLost(status) => {
                self.restarts = 0;
                if self.is_sound() { self.end(Outcome::Stopped(status), Signal::TERM) } else { vec![] }
            }
            Event::OutputEnded => {
                self.has_output = false;
                vec![]
            }
            // The front and the supervisor may both get the same request.
            Event::Signal(_) | Event::Due => vec![],
        };
        self.proceed(&mut actions);
        actions
    }

    /// Sends a signal that ends all ranks, and stores the reason.
    fn end(&mut self, outcome: Outcome, signal: Signal) -> Vec<Action> {
        self.outcome = outcome;
        if signal == Signal::KILL {
            self.waited = self.waited.or(Some(0));
        }
        let time = if self.phase == Phase::Printing { PRINTING } else { GRACE };
        vec![Action::Send(signal), Action::Wait(time)]
    }

    /// Kills all ranks. In the phase `Printing`, also stops waiting for their output.
    fn kill(&mut self) -> Vec<Action> {
        self.has_output &= self.phase != Phase::Printing;
        self.waited = self.waited.or(Some(0));
        vec![Action::Send(Signal::KILL), Action::Wait(GRACE)]
    }

    /// Enters the next phase if the current one is complete.
    fn proceed(&mut self, actions: &mut Vec<Action>) {
        if self.phase == Phase::Running && !self.is_starting {
            if self.is_sound() && self.started < self.ranks {
                actions.push(Action::Start { attempt: self.next - 1, rank: self.started });
                (self.started, self.running, self.is_starting) = (self.started + 1, self.running + 1, true);
            } else if self.running == 0 {
                self.phase = Phase::Printing;
                actions.push(Action::Sweep);
                if matches!(self.outcome, Outcome::Stopped(_)) {
                    actions.push(Action::Wait(PRINTING));
                }
            }
        }
        let goes_on = match self.outcome {
            Outcome::Succeeded => self.next == 0,
            Outcome::Failed(_) => self.next <= self.restarts,
            Outcome::Stopped(_) => false,
        };
        if self.phase == Phase::Printing && !self.has_output {
            self.phase = Phase::Waiting;
            actions.push(Action::Wait(PAUSE));
        }
        if self.phase == Phase::Waiting && !goes_on {
            self.phase = Phase::Over;
            actions.push(Action::Exit(match self.outcome {
                Outcome::Succeeded => 0,
                Outcome::Failed(status) | Outcome::Stopped(status) => status,
            }));
        }
    }
}

fn status_of(signal: Signal) -> u8 {
    128u8.saturating_add_signed(signal.as_raw() as i8)
}

#[cfg(test)]
#[path = "../../tests/unit/run_machine.rs"]
mod tests;
