//! Collectives: publishing a call, comparing it with the other ranks', and the result of short ones.
//!
//! A call begins with a step in which every rank publishes its arguments; all compare. Short inputs are published with
//! them (eager), and every rank computes its own result: one step. Longer ones are
//! [used where they are](super::on_buffers).

use crate::coll::call_check;
use crate::coll::call_header::CallHeader;
use crate::coll::local_call::LocalCall;
use crate::coll::on_buffers;
use crate::coll::on_stream::OnStream;
use crate::coll::operation::Operation;
use crate::coll::plan::Call;
use crate::coll::rank_args::RankArgs;
use crate::coll::sizes::{ALWAYS_EAGER_MAX, PREFETCH_MAX};
use crate::coll::transport::{direct, eager};
use crate::diag::error::Result;
use crate::diag::settings::STRICT;
use crate::shm::buffer::{BufferRange, ReadBuf, WriteBuf};
use crate::shm::call_context::CallContext;
use crate::shm::layout::INLINE_MAX;

/// A collective of one rank, with its buffers.
#[derive(Debug)]
pub(crate) struct Collective {
    pub(crate) call: Call,
    /// The place of the reduction's scalar, if it is to be read when the collective runs.
    pub(crate) scalar: Option<ReadBuf>,
    pub(crate) send: ReadBuf,
    pub(crate) recv: WriteBuf,
}

impl Operation for Collective {
    fn header(&self) -> CallHeader {
        self.call.header()
    }

    fn buffers(&self) -> [usize; 2] {
        [self.send.start().addr(), self.recv.start().addr()]
    }

    fn ranges(&self) -> [BufferRange; 2] {
        [self.send.range(), self.recv.as_read().range()]
    }

    fn set_grouped(&mut self) {
        self.call.is_grouped = true;
    }

    fn resolve(&mut self, on_stream: &mut OnStream) -> Result {
        on_stream.resolve_read("the send buffer", &mut self.send)?;
        on_stream.resolve_write("the receive buffer", &mut self.recv)?;
        self.scalar.iter_mut().try_for_each(|scalar| on_stream.resolve_read("the reduction's scalar", scalar))
    }

    fn sending(&self, rank: usize, replace: impl FnOnce(ReadBuf, usize) -> ReadBuf) -> Option<Self> {
        let sends = self.call.input(rank) > 0;
        sends.then(|| Self { send: replace(self.send, self.call.data_type.size()), ..*self })
    }

    async fn run(&self, context: CallContext<'_>) -> Result {
        if let Some(place) = self.scalar {
            let known = Self { call: self.call.with_scalar(place), scalar: None, ..*self };
            // On the heap, so that the usual future stays small.
            return Box::pin(async move { known.run(context).await }).await;
        }
        if self.call.overwrites_input() && self.send.overlaps(self.recv) {
            let on_copy = self.send.with_copy(async |send| Self { send, ..*self }.run(context).await);
            return Box::pin(on_copy).await;
        }
        let local = &LocalCall { context, send: self.send, recv: self.recv };
        let (call, CallContext { state, rank, .. }) = (&self.call, context);
        if call.bytes == 0 {
            // On the heap, as in the following.
            return Box::pin(run_empty(call, local.context)).await;
        }
        if call.ranks == 1 {
            return direct::run(call, local, &[RankArgs::new(call, local, false)]);
        }
        let input = call.buffer(call.function.shape().input);
        let step = state.next_step(rank).await?;
        if input <= ALWAYS_EAGER_MAX {
            let rank_args = call.factor().map(|_| RankArgs::new(call, local, false).to_words());
            let mut copy = vec![];
            let data = local.send.bytes(0, local.send.length(), &mut copy);
            let header = call.header();
            let call_args = call_check::call_args(state, rank, header);
            state.publish(rank, step, call_args, data, rank_args);
            let mut sources = call.sources(rank);
            if call.function.shape().operation.has_root() {
                state.note_unawaited_call(rank, header.encode());
                if *STRICT {
                    sources = 0..call.ranks;
                }
            }
            state.wait_for(rank, step, sources.clone()).await?;
            // A longer input is prefetched by the processor, while it is read.
            if (INLINE_MAX + 1..=PREFETCH_MAX).contains(&input) {
                // It arrives while this rank does the rest.
                for other in sources.clone().filter(|other| *other != rank) {
                    state.eager(other, step, input).slice(call.needed(rank, input)).prefetch();
                }
            }
            if !state.all_made(call_args, rank, step, sources.clone()) {
                return Err(call_check::difference(state, rank, step, sources));
            }
            eager::run(call, local, step);
            return Ok(());
        }
        // On the heap, which only calls that take longer have to afford.
        Box::pin(on_buffers::run(call, local, step)).await
    }
}

/// Runs a call of count 0. It does not wait for the other ranks, as in NCCL, which discards it (`taskAppend` in
/// `enqueue.cc`); but their next calls tell whether all have made it. In strict mode it is a barrier.
async fn run_empty(call: &Call, CallContext { state, rank, .. }: CallContext<'_>) -> Result {
    if call.ranks == 1 {
        return Ok(());
    }
    if !*STRICT {
        let [head, _] = call.header().encode();
        state.note_empty_call(rank, head);
        return Ok(());
    }
    let step = state.next_step(rank).await?;
    let call_args = call_check::call_args(state, rank, call.header());
    state.publish(rank, step, call_args, &[], None);
    state.wait_all(rank, step).await?;
    if state.all_made(call_args, rank, step, 0..call.ranks) {
        return Ok(());
    }
    Err(call_check::difference(state, rank, step, 0..call.ranks))
}
