//! The arguments of a collective that differ between ranks: buffers and scalar.

use crate::coll::local_call::LocalCall;
use crate::coll::plan::Call;
use crate::reduce::reduction::Factor;
use crate::shm::layout::RANK_ARGS;
use crate::shm::peer_access::RemoteBuffer;

/// The arguments of a rank, as it publishes them.
#[derive(Debug, Clone, Copy)]
pub(super) struct RankArgs {
    pub(super) send: RemoteBuffer,
    pub(super) recv: RemoteBuffer,
    pub(super) factor: Option<Factor>,
}

impl RankArgs {
    #[inline]
    pub(super) fn new(call: &Call, local: &LocalCall<'_>, for_others: bool) -> Self {
        let other_processes = for_others && !local.context.state.is_one_process();
        Self {
            send: RemoteBuffer::new(local.send, other_processes),
            recv: RemoteBuffer::new(local.recv.as_read(), other_processes),
            factor: call.factor(),
        }
    }

    /// Returns `true` if the rank does not let others use its memory. Otherwise it has published at least one buffer.
    pub(super) fn is_private(&self) -> bool {
        !self.send.is_published() && !self.recv.is_published()
    }

    pub(super) fn to_words(self) -> [u64; RANK_ARGS] {
        let mut words = [0; RANK_ARGS];
        words[..4].copy_from_slice(&self.send.to_words());
        words[4..8].copy_from_slice(&self.recv.to_words());
        words[8] = self.factor.map_or(0, |Factor(bytes)| u64::from_ne_bytes(bytes));
        words
    }

    /// Returns what another rank published. All ranks have a factor, or none.
    pub(super) fn from_words([a, b, c, d, e, f, g, h, factor]: [u64; RANK_ARGS], has_factor: bool) -> Self {
        Self {
            send: RemoteBuffer::from_words([a, b, c, d]),
            recv: RemoteBuffer::from_words([e, f, g, h]),
            factor: has_factor.then_some(Factor(factor.to_ne_bytes())),
        }
    }
}
