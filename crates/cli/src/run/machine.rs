//! The course of a job without its processes and its time: events in, actions out.

use std::time::Duration;

use rustix::process::Signal;

/// The time that ranks have to end themselves, before they are killed.
const GRACE: Duration = Duration::from_secs(10);

/// The time before ranks are started again. Who ends a job sends a signal to each of its processes, and the ranks may get theirs
/// first: the supervisor's has to come before they start again.
const PAUSE: Duration = Duration::from_secs(1);

/// The time that is left to print, once all ranks of a job that is to end have ended.
const PRINTING: Duration = Duration::from_secs(1);

/// The status that nobody is left to read.
const EXIT_WITHOUT_FRONT: u8 = 1;

/// An event in the course of a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Event {
    /// A signal for the ranks; SIGKILL is the second request for their end.
    Signal(Signal),
    FrontEnded,
    /// The front was stopped, or goes on.
    FrontStopped(bool),
    Started,
    NotStarted,
    /// A rank has ended with this exit status.
    Ended(u8),
    /// Output was lost, which is to be the exit status of the job.
    OutputLost(u8),
    /// All output of the attempt has been printed.
    OutputEnded,
    /// The time of the last [`Action::Wait`] is over.
    Due,
}

/// An action that an event asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Action {
    /// Start a rank, which is an event.
    Start {
        attempt: u32,
        rank: usize,
    },
    /// Send a signal to the ranks that have been started and have not ended.
    Send(Signal),
    /// Name the ranks that SIGKILL has not ended.
    NameSurvivors,
    /// Say how the ranks have ended, and kill the processes that they have left. Ranks that SIGKILL has not ended are left behind.
    Sweep,
    Wait(Duration),
    /// The last action.
    Exit(u8),
}

#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// The next attempt waits for its time.
    #[default]
    Waiting,
    Running,
    /// All ranks have ended, and what they have written is being printed.
    Printing,
    Over,
}

/// The end of an attempt.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
enum Outcome {
    #[default]
    Succeeded,
    /// The exit status of the first rank that failed.
    Failed(u8),
    /// The job is to end, with this exit status.
    Stopped(u8),
}

/// The state of a job. It begins with the wait for the first attempt, which is due at once.
#[derive(Debug, Default, Clone)]
pub(super) struct Machine {
    ranks: usize,
    restarts: u32,
    /// The number of the next attempt.
    next: u32,
    phase: Phase,
    outcome: Outcome,
    /// The number of the ranks of the attempt that have been started, and of those that have not ended.
    started: usize,
    running: usize,
    is_starting: bool,
    /// There is output, and somebody waits for it.
    has_output: bool,
    is_stopped: bool,
    /// The number of times that the time has run out since the ranks were sent SIGKILL; `None` before.
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
                // The job ends without the ranks that SIGKILL does not end, and does not start again beside them.
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
            // A rank that was left behind.
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
            // The same request may come to the front and to the supervisor.
            Event::Signal(_) | Event::Due => vec![],
        };
        self.proceed(&mut actions);
        actions
    }

    /// Ends all ranks for a reason.
    fn end(&mut self, outcome: Outcome, signal: Signal) -> Vec<Action> {
        self.outcome = outcome;
        if signal == Signal::KILL {
            self.waited = self.waited.or(Some(0));
        }
        let time = if self.phase == Phase::Printing { PRINTING } else { GRACE };
        vec![Action::Send(signal), Action::Wait(time)]
    }

    /// Ends all ranks at once, and the wait for their output.
    fn kill(&mut self) -> Vec<Action> {
        self.has_output &= self.phase != Phase::Printing;
        self.waited = self.waited.or(Some(0));
        vec![Action::Send(Signal::KILL), Action::Wait(GRACE)]
    }

    /// Goes on to the next phase, if this one is over.
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
mod tests {
    use rustix::process::Signal;

    use super::{Action, Event, Machine, Outcome, Phase};

    const RANKS: usize = 2;
    const RESTARTS: u32 = 1;

    /// A job whose processes, pipes and clock are numbers.
    #[derive(Default, Clone)]
    struct Job {
        machine: Machine,
        is_starting: bool,
        running: usize,
        /// The ranks that SIGKILL has not ended were named, and so many were left behind.
        are_named: bool,
        abandoned: usize,
        /// The ranks that run have been sent a signal that ends them, and the one that none survives.
        is_told: bool,
        is_killed: bool,
        has_output: bool,
        is_swept: bool,
        is_waiting: bool,
        front_is_there: bool,
        front_is_stopped: bool,
        is_stopped: bool,
        /// An event has come after which no rank may start.
        has_to_end: bool,
        /// A signal or the front's end was among them.
        is_asked: bool,
        attempts: u32,
        exits: Vec<u8>,
    }

    impl Job {
        fn new() -> Self {
            let machine = Machine::new(RANKS, RESTARTS);
            let (is_swept, is_waiting, front_is_there) = (true, true, true);
            Self { machine, is_swept, is_waiting, front_is_there, ..Self::default() }
        }

        /// Returns the events that can come now.
        fn possible(&self) -> Vec<Event> {
            let mut events =
                vec![Event::Signal(Signal::USR1), Event::Signal(Signal::TERM), Event::OutputLost(141)];
            if self.has_to_end {
                events.push(Event::Signal(Signal::KILL));
            }
            if self.front_is_there {
                events.extend([Event::FrontEnded, Event::FrontStopped(!self.front_is_stopped)]);
            }
            if self.is_starting {
                events.extend([Event::Started, Event::NotStarted]);
            }
            if self.running > usize::from(self.is_starting) {
                events.extend([Event::Ended(0), Event::Ended(7)]);
            }
            if self.abandoned > 0 {
                events.push(Event::Ended(137));
            }
            if self.is_swept && self.has_output {
                events.push(Event::OutputEnded);
            }
            if self.is_waiting {
                events.push(Event::Due);
            }
            events
        }

        fn on(&mut self, event: Event) {
            match event {
                Event::Signal(Signal::USR1) => {}
                Event::Signal(_) => (self.has_to_end, self.is_asked) = (true, true),
                Event::OutputLost(_) => self.has_to_end = true,
                Event::FrontEnded => {
                    (self.has_to_end, self.is_asked, self.front_is_there) = (true, true, false);
                }
                Event::FrontStopped(is_stopped) => self.front_is_stopped = is_stopped,
                Event::Started => self.is_starting = false,
                Event::NotStarted => {
                    (self.has_to_end, self.is_starting) = (true, false);
                    self.running -= 1;
                }
                Event::Ended(_) if self.running == 0 => self.abandoned -= 1,
                Event::Ended(_) => self.running -= 1,
                Event::OutputEnded => self.has_output = false,
                Event::Due => self.is_waiting = false,
            }
            for action in self.machine.on(event) {
                assert!(self.exits.is_empty(), "{action:?} after the end");
                self.perform(action);
            }
            if matches!(event, Event::Ended(1..) | Event::NotStarted) || self.has_to_end {
                assert!(self.running == 0 || self.is_told || !self.exits.is_empty(), "nobody ends the ranks");
            }
            assert!(
                self.is_starting
                    || self.is_killed
                    || self.is_stopped == self.front_is_stopped
                    || self.running == 0,
                "the ranks do not do what the front does"
            );
        }

        fn perform(&mut self, action: Action) {
            match action {
                Action::Start { attempt, rank } => {
                    assert!(!self.has_to_end, "a rank of an ended job starts");
                    if rank == 0 {
                        assert_eq!(
                            (self.running, self.is_swept),
                            (0, true),
                            "the attempt before is not over"
                        );
                        assert_eq!(attempt, self.attempts);
                        self.attempts += 1;
                        (self.has_output, self.is_swept) = (true, false);
                        (self.is_told, self.is_killed, self.are_named) = (false, false, false);
                    }
                    assert!(!self.is_told, "a rank starts after the others were told to end");
                    (self.is_starting, self.is_stopped) = (true, false);
                    self.running += 1;
                }
                Action::Send(Signal::STOP) => self.is_stopped = true,
                Action::Send(Signal::CONT) => self.is_stopped = false,
                Action::Send(Signal::USR1) => {}
                Action::Send(signal) => {
                    self.is_told = true;
                    self.is_killed |= signal == Signal::KILL;
                }
                Action::Sweep => {
                    assert!(self.running == 0 || self.are_named, "ranks are left behind");
                    assert!(!self.is_swept);
                    (self.abandoned, self.running, self.is_swept) = (self.running, 0, true);
                }
                Action::NameSurvivors => {
                    assert!(self.is_killed && self.running > 0, "no rank survives SIGKILL");
                    self.are_named = true;
                }
                Action::Wait(_) => self.is_waiting = true,
                Action::Exit(status) => {
                    assert_eq!((self.running, self.is_swept), (0, true), "processes are left");
                    self.exits.push(status);
                }
            }
        }

        /// Lets time pass: nothing happens any more but what has to.
        fn run_out(mut self) {
            for _ in 0..30 {
                let event = match self.running - usize::from(self.is_starting) {
                    _ if self.is_starting => Event::Started,
                    1.. if self.is_killed || !self.is_told => Event::Ended(0),
                    // Who ends a job may have stopped reading before.
                    0 if self.is_swept && self.has_output && !self.is_asked => Event::OutputEnded,
                    _ if !self.exits.is_empty() => break,
                    _ => {
                        assert!(self.is_waiting, "nothing will ever happen");
                        Event::Due
                    }
                };
                self.on(event);
            }
            assert_eq!(self.exits.len(), 1, "the end is to be reported once");
            assert!(self.exits[0] != 0 || !self.has_to_end || self.machine.outcome == Outcome::Succeeded);
            assert_eq!(self.machine.phase, Phase::Over);
        }
    }

    /// Six events in every order that can be, at every point of two attempts. After each the job runs out.
    #[test]
    fn every_order_of_events_ends_the_job_once_and_leaves_nothing() {
        fn explore(job: &Job, events: usize, orders: &mut usize) {
            job.clone().run_out();
            *orders += 1;
            for event in job.possible() {
                if events > 0 {
                    let mut job = job.clone();
                    job.on(event);
                    explore(&job, events - 1, orders);
                }
            }
        }
        let mut orders = 0;
        // The first attempt, the end of a rank in it, and the second.
        let ways: [&[Event]; 5] = [
            &[],
            &[Event::Due],
            &[Event::Due, Event::Started, Event::Started],
            &[Event::Due, Event::Started, Event::Started, Event::Ended(7), Event::Ended(7)],
            &[
                Event::Due,
                Event::Started,
                Event::Started,
                Event::Ended(7),
                Event::Ended(0),
                Event::OutputEnded,
            ],
        ];
        for way in ways {
            let mut job = Job::new();
            way.iter().for_each(|event| job.on(*event));
            explore(&job, 6, &mut orders);
        }
        assert!(orders > 500_000, "{orders} orders are few");
    }
}
