//! The order of operations that a seed gives.

use crate::handle::StreamId;

/// A stream whose next operation only waits for its turns.
#[derive(Debug)]
struct Ready {
    stream: StreamId,
    turns: u32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Turn {
    pub(crate) stream: StreamId,
    /// Whether it was the last turn, after which the operation is executed.
    pub(crate) executes: bool,
}

#[derive(Debug)]
pub(crate) struct Turns {
    generator: fastrand::Rng,
    ready: Vec<Ready>,
}

impl Turns {
    pub(crate) fn new(seed: u64) -> Self {
        Self { generator: fastrand::Rng::with_seed(seed), ready: Vec::new() }
    }

    pub(crate) fn add(&mut self, stream: StreamId) {
        // Some operations take very long, so that others overtake them by far.
        let turns =
            if self.generator.u32(..8) == 0 { self.generator.u32(8..64) } else { self.generator.u32(..4) };
        self.ready.push(Ready { stream, turns });
    }

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

    pub(crate) fn during_call(&mut self) -> u32 {
        self.generator.u32(..4)
    }

    pub(crate) fn has_ready(&self) -> bool {
        !self.ready.is_empty()
    }
}
