//! The order of operations that a seed gives.

use crate::handle::StreamId;

/// An operation that nothing holds back any more but its turn.
#[derive(Debug)]
struct Ready {
    stream: StreamId,
    turns: u32,
}

/// The result of a turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Turn {
    /// The stream whose operation had the turn.
    pub(crate) stream: StreamId,
    /// True if that was the operation's last turn, in which it is executed.
    pub(crate) executes: bool,
}

/// Ready operations, and the generator that decides which of them goes on.
#[derive(Debug)]
pub(crate) struct Turns {
    generator: fastrand::Rng,
    ready: Vec<Ready>,
}

impl Turns {
    /// Creates the order of a seed.
    pub(crate) fn new(seed: u64) -> Self {
        Self { generator: fastrand::Rng::with_seed(seed), ready: Vec::new() }
    }

    /// Adds a stream whose next operation is ready, and draws how long it takes.
    pub(crate) fn add(&mut self, stream: StreamId) {
        // Some operations take very long, so that others overtake them by far.
        let turns =
            if self.generator.u32(..8) == 0 { self.generator.u32(8..64) } else { self.generator.u32(..4) };
        self.ready.push(Ready { stream, turns });
    }

    /// Gives one of the ready operations a turn.
    pub(crate) fn turn(&mut self) -> Option<Turn> {
        if self.ready.is_empty() {
            return None;
        }
        let drawn = self.generator.usize(..self.ready.len());
        let ready = &mut self.ready[drawn];
        let mut turn = Turn { stream: ready.stream, executes: false };
        match ready.turns.checked_sub(1) {
            Some(rest) => ready.turns = rest,
            None => {
                turn.executes = true;
                self.ready.remove(drawn);
            }
        }
        Some(turn)
    }

    /// Draws how many turns pass during a call.
    pub(crate) fn during_call(&mut self) -> u32 {
        self.generator.u32(..4)
    }

    /// Returns whether an operation waits for its turn.
    pub(crate) fn has_ready(&self) -> bool {
        !self.ready.is_empty()
    }
}
