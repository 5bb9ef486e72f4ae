use rustix::process::Signal;

use super::{Action, Event, Machine, Outcome, Phase};

const RANKS: usize = 2;
const RESTARTS: u32 = 1;

/// A simulated job, whose processes, pipes and clock are numbers.
#[derive(Default, Clone)]
struct Job {
    machine: Machine,
    is_starting: bool,
    running: usize,
    /// The number of ranks that survived SIGKILL, once they were named and left behind.
    are_named: bool,
    abandoned: usize,
    /// The running ranks have been sent a signal that ends them, or SIGKILL.
    is_signaled: bool,
    is_killed: bool,
    has_output: bool,
    is_swept: bool,
    is_waiting: bool,
    front_is_there: bool,
    front_is_stopped: bool,
    is_stopped: bool,
    /// An event has occurred after which no rank may start.
    has_to_end: bool,
    /// One of these events was a signal, or the exit of the front.
    is_end_requested: bool,
    attempts: u32,
    exits: Vec<u8>,
}

impl Job {
    fn new() -> Self {
        let machine = Machine::new(RANKS, RESTARTS);
        let (is_swept, is_waiting, front_is_there) = (true, true, true);
        Self { machine, is_swept, is_waiting, front_is_there, ..Self::default() }
    }

    /// Returns the events that are possible now.
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
            Event::Signal(_) => (self.has_to_end, self.is_end_requested) = (true, true),
            Event::OutputLost(_) => self.has_to_end = true,
            Event::FrontEnded => {
                (self.has_to_end, self.is_end_requested, self.front_is_there) = (true, true, false);
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
            assert!(self.running == 0 || self.is_signaled || !self.exits.is_empty(), "nobody ends the ranks");
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
                    assert_eq!((self.running, self.is_swept), (0, true), "the attempt before is not over");
                    assert_eq!(attempt, self.attempts);
                    self.attempts += 1;
                    (self.has_output, self.is_swept) = (true, false);
                    (self.is_signaled, self.is_killed, self.are_named) = (false, false, false);
                }
                assert!(!self.is_signaled, "a rank starts after the others were sent a signal");
                (self.is_starting, self.is_stopped) = (true, false);
                self.running += 1;
            }
            Action::Send(Signal::STOP) => self.is_stopped = true,
            Action::Send(Signal::CONT) => self.is_stopped = false,
            Action::Send(Signal::USR1) => {}
            Action::Send(signal) => {
                self.is_signaled = true;
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

    /// Lets time pass: only inevitable events occur.
    fn run_out(mut self) {
        for _ in 0..30 {
            let event = match self.running - usize::from(self.is_starting) {
                _ if self.is_starting => Event::Started,
                1.. if self.is_killed || !self.is_signaled => Event::Ended(0),
                // The reader may have closed the output before.
                0 if self.is_swept && self.has_output && !self.is_end_requested => Event::OutputEnded,
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

/// Six events in every possible order, at every point of two attempts. Afterwards the job runs to its end.
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
        &[Event::Due, Event::Started, Event::Started, Event::Ended(7), Event::Ended(0), Event::OutputEnded],
    ];
    for way in ways {
        let mut job = Job::new();
        way.iter().for_each(|event| job.on(*event));
        explore(&job, 6, &mut orders);
    }
    assert!(orders > 500_000, "{orders} orders are few");
}
