//! One-sided operations: put into another rank's part of a window, signals, and waiting for them.
//!
//! A signal is a pair of counters for each pair of ranks: how often it was raised, which only the raising rank writes,
//! and how often that has been awaited, which only the waiting rank writes.

use std::sync::Arc;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use crate::coll::call_header::{CallHeader, PeerCall};
use crate::coll::on_stream::OnStream;
use crate::coll::operation::Operation;
use crate::coll::window::Window;
use crate::diag::error::Result;
use crate::shm::buffer::{BufferRange, ReadBuf, WriteBuf};
use crate::shm::call_context::CallContext;

/// The bytes from which on a put uses non-temporal stores.
const NON_TEMPORAL_MIN: usize = 4 << 20;

/// A write into another rank's memory, followed by a signal.
#[derive(Debug)]
pub(crate) struct PutSignal {
    pub(crate) from: ReadBuf,
    /// Memory of the same length, either the same or without overlap.
    pub(crate) to: WriteBuf,
    /// The window of `to`, which keeps it mapped.
    pub(crate) window: Arc<Window>,
    pub(crate) signal: Signal,
}

/// A signal at another rank.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Signal {
    pub(crate) peer: usize,
    pub(crate) index: usize,
}

/// A wait for signals, each of which is consumed.
#[derive(Debug)]
pub(crate) struct WaitSignals(pub(crate) Vec<AwaitedSignal>);

/// A number of signals of a peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct AwaitedSignal {
    pub(crate) peer: usize,
    pub(crate) index: usize,
    pub(crate) count: u64,
}

impl Operation for PutSignal {
    fn header(&self) -> CallHeader {
        CallHeader::of_bytes(PeerCall::PutSignal, self.signal.peer, self.from.length())
    }

    fn buffers(&self) -> [usize; 2] {
        [self.from.start().addr(), 0]
    }

    fn ranges(&self) -> [BufferRange; 2] {
        [self.from.range(), BufferRange::default()]
    }

    fn resolve(&mut self, on_stream: &mut OnStream) -> Result {
        on_stream.note_put(&self.to);
        on_stream.resolve_read("the local buffer", &mut self.from)
    }

    fn sending(&self, _: usize, replace: impl FnOnce(ReadBuf, usize) -> ReadBuf) -> Option<Self> {
        Some(Self { from: replace(self.from, 1), window: Arc::clone(&self.window), ..*self })
    }

    async fn run(&self, context: CallContext<'_>) -> Result {
        let Self { from, to, window, signal } = self;
        let CallContext { state, rank, .. } = context;
        let access = state.begin_access(rank)?;
        state.check_peer(signal.peer)?;
        window.check_open(state, signal.peer)?;
        to.copy(*from, from.length() >= NON_TEMPORAL_MIN);
        drop(access);
        signal.run(context).await
    }
}

impl Operation for Signal {
    fn header(&self) -> CallHeader {
        CallHeader::of_bytes(PeerCall::Signal, self.peer, 0)
    }

    /// Raises the signal. The peer that sees it sees all that this rank has written before.
    async fn run(&self, CallContext { state, rank, .. }: CallContext<'_>) -> Result {
        state.check_peer(self.peer)?;
        let (raised, _) = state.signal(rank, self.peer, self.index);
        raised.fetch_add(1, Release);
        state.wake_waiting(rank);
        Ok(())
    }
}

impl Operation for WaitSignals {
    fn header(&self) -> CallHeader {
        CallHeader::of_bytes(PeerCall::WaitSignal, self.0.first().map_or(0, |signal| signal.peer), 0)
    }

    async fn run(&self, CallContext { state, rank, .. }: CallContext<'_>) -> Result {
        for AwaitedSignal { peer, index, count } in &self.0 {
            let (raised, awaited) = state.signal(*peer, rank, *index);
            let before = awaited.load(Relaxed);
            state.wait(*peer, || raised.load(Acquire).wrapping_sub(before) >= *count).await?;
            awaited.store(before.wrapping_add(*count), Relaxed);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shm::liveness::AbortReason;
    use crate::shm::peer_access::PeerAccess;
    use crate::shm::process::Process;
    use crate::shm::shared_state::SharedState;
    use crate::sync::executor::run_one;

    #[test]
    fn signals_are_counted_by_pair_and_index_and_consumed_once() {
        let state = SharedState::create(&[Process::current().unwrap(); 3]).unwrap().0;
        let peers = PeerAccess::default();
        let context = |rank| CallContext { state: &state, rank, peers: &peers };
        for _ in 0..3 {
            run_one(Signal { peer: 1, index: 5 }.run(context(0)), 1, |_| ()).unwrap();
        }
        let wait_for = |peer, index, count| {
            let wait = WaitSignals(vec![AwaitedSignal { peer, index, count }]);
            // If they have not come yet, an abort ends the wait.
            run_one(wait.run(context(1)), 1, |_| state.set_abort(2, AbortReason::Failed))
        };
        wait_for(0, 5, 2).unwrap();
        wait_for(0, 5, 1).unwrap();
        wait_for(0, 5, 0).unwrap();
        for (peer, index) in [(0, 5), (0, 4), (2, 5)] {
            assert_eq!(wait_for(peer, index, 1).unwrap_err().text, "rank 2 failed");
        }
    }
}
