//! A model of the rendezvous (`src/bootstrap/rendezvous.rs`) that tries every order of a few ranks' steps, deaths and
//! cancellations.
//!
//! Each rank is a process, and messages arrive immediately. Time passes only in a state without another step, because
//! `LINGER` is far longer than any step.

use std::collections::HashSet;
use std::rc::Rc;

use Phase::{
    Absent, Accepting, Cancelled, Dead, Failed, Joined, Lingering, Looking, Opened, Releasing, Replacing,
    Sending, Telling, Waiting,
};

/// The state of a rank.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Phase {
    Absent,
    /// Searches for the root.
    Looking,
    /// The root: accepts the others, waits until they have opened the shared state, and releases them in rank order.
    Accepting,
    Sending,
    Releasing(usize),
    /// The root of a failed rendezvous, and the number of ranks that it has refused.
    Lingering(usize),
    /// A peer: has sent its hello, has opened the shared state.
    Waiting,
    Opened,
    /// A peer that has lost the root: tries to replace it, or to notify its replacement.
    Replacing,
    Telling,
    /// Has joined the shared state of a root.
    Joined(usize),
    Failed,
    Cancelled,
    Dead,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Message {
    Hello,
    Ready,
    SharedState,
    Success,
    Error,
    Aborted,
}

/// The connection of a peer.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Link {
    root: usize,
    /// The root has received the hello.
    is_accepted: bool,
    to_root: Vec<Message>,
    to_peer: Vec<Message>,
    root_is_open: bool,
    peer_is_open: bool,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct State {
    ranks: Vec<Phase>,
    links: Vec<Option<Link>>,
    listener: Option<usize>,
    faults: usize,
    /// Time has passed: a rank that joins now finds nothing of the rendezvous.
    is_late: bool,
}

impl State {
    fn new(ranks: usize, faults: usize) -> Self {
        Self { ranks: vec![Absent; ranks], links: vec![None; ranks], listener: None, faults, is_late: false }
    }

    /// Returns a changed copy.
    fn after(&self, change: impl FnOnce(&mut Self)) -> Self {
        let mut state = self.clone();
        change(&mut state);
        state
    }

    fn link(&mut self, peer: usize) -> &mut Link {
        self.links[peer].as_mut().expect("a peer has a connection")
    }

    /// Returns the peers that a root has accepted.
    fn accepted(&self, root: usize) -> Vec<usize> {
        let is_accepted = |link: &Link| link.root == root && link.is_accepted && link.root_is_open;
        (0..self.ranks.len()).filter(|peer| self.links[*peer].as_ref().is_some_and(is_accepted)).collect()
    }

    fn connect(&mut self, peer: usize, root: usize) {
        let (to_root, to_peer) = (vec![Message::Hello], vec![]);
        let (root_is_open, peer_is_open) = (true, true);
        self.links[peer] =
            Some(Link { root, is_accepted: false, to_root, to_peer, root_is_open, peer_is_open });
    }

    /// Sends a root's message to a peer, and closes the connection.
    fn dismiss(&mut self, peer: usize, message: Message) {
        let link = self.link(peer);
        link.to_peer.push(message);
        link.root_is_open = false;
    }

    /// Ends all roles of a rank.
    fn end(&mut self, rank: usize, phase: Phase) {
        self.ranks[rank] = phase;
        if self.listener == Some(rank) {
            self.listener = None;
        }
        if let Some(link) = &mut self.links[rank] {
            link.peer_is_open = false;
        }
        for link in self.links.iter_mut().flatten().filter(|link| link.root == rank) {
            link.root_is_open = false;
        }
    }

    /// Sends an error to all accepted peers, and waits for the other ranks.
    fn refuse_all(&mut self, root: usize) {
        let accepted = self.accepted(root);
        let refused = accepted.len();
        for peer in accepted {
            self.dismiss(peer, Message::Error);
        }
        self.linger(root, refused);
    }

    fn linger(&mut self, root: usize, refused: usize) {
        if refused + 1 == self.ranks.len() {
            self.end(root, Failed);
        } else {
            self.ranks[root] = Lingering(refused);
        }
    }

    /// Returns the state after each step that needs no time, no fault and no further rank.
    fn steps(&self) -> Vec<Self> {
        (0..self.ranks.len()).flat_map(|rank| self.steps_of(rank)).collect()
    }

    fn steps_of(&self, rank: usize) -> Vec<Self> {
        match self.ranks[rank] {
            Looking => vec![self.after(|state| match state.listener {
                Some(root) => {
                    state.connect(rank, root);
                    state.ranks[rank] = Waiting;
                }
                None => {
                    state.listener = Some(rank);
                    state.ranks[rank] = Accepting;
                }
            })],
            Accepting | Sending | Lingering(_) => self.steps_of_root(rank),
            Releasing(peer) if peer == self.ranks.len() => {
                vec![self.after(|state| state.end(rank, Joined(rank)))]
            }
            Releasing(peer) => vec![self.after(|state| {
                if peer != rank {
                    state.link(peer).to_peer.push(Message::Success);
                }
                state.ranks[rank] = Releasing(peer + 1);
            })],
            Waiting | Opened => self.steps_of_peer(rank),
            Replacing => vec![self.after(|state| match state.listener {
                Some(root) => {
                    state.connect(rank, root);
                    state.ranks[rank] = Telling;
                }
                None => {
                    state.listener = Some(rank);
                    state.ranks[rank] = Lingering(0);
                }
            })],
            Telling => {
                let link = self.links[rank].as_ref().expect("a peer has a connection");
                let is_gone = link.to_peer.is_empty() && !link.root_is_open;
                vec![self.after(|state| {
                    if is_gone {
                        state.ranks[rank] = Replacing;
                    } else {
                        state.link(rank).to_root.push(Message::Aborted);
                        state.end(rank, Failed);
                    }
                })]
            }
            Absent | Joined(_) | Failed | Cancelled | Dead => vec![],
        }
    }

    fn steps_of_root(&self, root: usize) -> Vec<Self> {
        let mut steps = vec![];
        for (peer, link) in self.links.iter().enumerate() {
            let Some(link) = link.as_ref().filter(|link| link.root == root && link.root_is_open) else {
                continue;
            };
            let message = link.to_root.first().copied();
            if message.is_none() && link.peer_is_open {
                continue;
            }
            steps.push(self.after(|state| {
                if message.is_some() {
                    state.link(peer).to_root.remove(0);
                }
                match (state.ranks[root], message) {
                    (Lingering(refused), Some(Message::Hello)) => {
                        state.dismiss(peer, Message::Error);
                        state.linger(root, refused + 1);
                    }
                    (Accepting, Some(Message::Hello)) => {
                        state.link(peer).is_accepted = true;
                        let accepted = state.accepted(root);
                        if accepted.len() + 1 == state.ranks.len() {
                            accepted
                                .into_iter()
                                .for_each(|peer| state.link(peer).to_peer.push(Message::SharedState));
                            state.ranks[root] = Sending;
                        }
                    }
                    (Sending, Some(Message::Ready)) => {
                        // No further message follows.
                        if state.accepted(root).into_iter().all(|peer| state.has_opened(peer)) {
                            state.listener = None;
                            state.ranks[root] = Releasing(0);
                        }
                    }
                    _ if link.is_accepted => state.refuse_all(root),
                    _ => state.link(peer).root_is_open = false,
                }
            }));
        }
        steps
    }

    /// Returns whether the root has received a peer's `Ready`.
    fn has_opened(&self, peer: usize) -> bool {
        let link = self.links[peer].as_ref().expect("a peer has a connection");
        !link.to_peer.contains(&Message::SharedState) && !link.to_root.contains(&Message::Ready)
    }

    fn steps_of_peer(&self, peer: usize) -> Vec<Self> {
        let link = self.links[peer].as_ref().expect("a peer has a connection");
        let message = link.to_peer.first().copied();
        if message.is_none() && link.root_is_open {
            return vec![];
        }
        vec![self.after(|state| {
            if message.is_some() {
                state.link(peer).to_peer.remove(0);
            }
            match message {
                Some(Message::SharedState) => {
                    state.link(peer).to_root.push(Message::Ready);
                    state.ranks[peer] = Opened;
                }
                Some(Message::Success) => state.end(peer, Joined(link.root)),
                Some(Message::Error) => state.end(peer, Failed),
                _ => {
                    state.end(peer, Failed);
                    state.ranks[peer] = Replacing;
                }
            }
        })]
    }

    /// Returns the state after each rank's arrival and after each fault.
    fn events(&self) -> Vec<Self> {
        let mut events = vec![];
        for (rank, phase) in self.ranks.iter().enumerate() {
            match phase {
                Absent => events.push(self.after(|state| state.ranks[rank] = Looking)),
                Joined(_) | Failed | Cancelled | Dead => {}
                _ if self.faults == 0 => {}
                _ => {
                    events.push(self.after(|state| {
                        state.faults -= 1;
                        state.end(rank, Dead);
                    }));
                    events.push(self.after(|state| {
                        state.faults -= 1;
                        match phase {
                            Accepting | Sending => {
                                for peer in state.accepted(rank) {
                                    state.dismiss(peer, Message::Aborted);
                                }
                            }
                            Waiting | Opened => state.link(rank).to_root.push(Message::Aborted),
                            _ => {}
                        }
                        // A root that releases the others no longer checks for cancellation.
                        if !matches!(phase, Releasing(_)) {
                            state.end(rank, Cancelled);
                        }
                    }));
                }
            }
        }
        events
    }

    /// Returns the state after `LINGER`.
    fn later(&self) -> Self {
        self.after(|state| {
            state.is_late = true;
            for rank in 0..state.ranks.len() {
                if matches!(state.ranks[rank], Lingering(_) | Replacing | Telling) {
                    state.end(rank, Failed);
                }
            }
        })
    }

    /// Checks a state without another step.
    fn check_quiet(&self, faults: usize) -> Result<(), &'static str> {
        let any = |matches: fn(&Phase) -> bool| self.ranks.iter().any(matches);
        let waits = any(|phase| matches!(phase, Accepting | Sending | Waiting | Opened)) && !self.is_late;
        if any(|phase| matches!(phase, Failed | Lingering(_))) && waits {
            return Err("a rank waits though another has received the failure");
        }
        let all_came = !any(|phase| matches!(phase, Absent));
        if all_came && self.faults == faults && !self.ranks.iter().all(|phase| matches!(phase, Joined(_))) {
            return Err("a rank has not joined though nothing failed");
        }
        if all_came && waits && !any(|phase| matches!(phase, Cancelled | Dead)) {
            return Err("a rank waits though all came");
        }
        Ok(())
    }

    /// Checks any state.
    fn check(&self) -> Result<(), &'static str> {
        let mut roots =
            self.ranks.iter().filter_map(|phase| if let Joined(root) = phase { Some(root) } else { None });
        let Some(first) = roots.next() else { return Ok(()) };
        if roots.any(|root| root != first) {
            return Err("ranks have joined different states");
        }
        if self.ranks.iter().any(|phase| matches!(phase, Absent | Looking | Waiting | Accepting)) {
            return Err("a rank has joined though another has not opened the state");
        }
        Ok(())
    }
}

/// A state and its history.
struct Trace {
    state: State,
    before: Option<Rc<Trace>>,
}

impl Trace {
    fn describe(&self) -> String {
        let before = self.before.as_ref().map_or_else(String::new, |before| before.describe());
        format!("{before}{:?}\n", self.state)
    }
}

/// Tries every order and returns the number of states.
fn explore(ranks: usize, faults: usize) -> usize {
    let first = State::new(ranks, faults);
    let mut seen = HashSet::from([first.clone()]);
    let mut next = vec![Rc::new(Trace { state: first, before: None })];
    while let Some(trace) = next.pop() {
        let mut states = trace.state.steps();
        let quiet = if states.is_empty() { trace.state.check_quiet(faults) } else { Ok(()) };
        if let Err(mistake) = quiet.and(trace.state.check()) {
            panic!("{mistake}:\n{}", trace.describe());
        }
        if states.is_empty() && !trace.state.is_late {
            states.push(trace.state.later());
        }
        states.extend(trace.state.events());
        for state in states {
            if seen.insert(state.clone()) {
                next.push(Rc::new(Trace { state, before: Some(Rc::clone(&trace)) }));
            }
        }
    }
    seen.len()
}

#[test]
fn rendezvous_without_faults_joins_all_in_every_order() {
    for (ranks, states) in [(2, 50), (3, 200), (4, 900)] {
        assert!(explore(ranks, 0) > states, "too few states to have tried every order of {ranks} ranks");
    }
}

#[test]
fn failed_rendezvous_leaves_no_rank_waiting_in_any_order() {
    for (ranks, faults, states) in [(2, 2, 400), (3, 2, 10_000), (4, 1, 40_000)] {
        assert!(explore(ranks, faults) > states, "too few states to have tried every order of {ranks} ranks");
    }
}
