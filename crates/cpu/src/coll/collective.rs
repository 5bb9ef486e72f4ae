//! Collectives: publishing a call, comparing it with the other ranks' calls, and choosing a transport.
//!
//! In the first step of a call, every rank publishes its arguments and compares them with the other ranks' arguments. Short inputs are
//! published with the arguments, and every rank computes its own result: one step. For longer inputs, ranks publish the buffer locations.
//! If every rank can use all other ranks' buffers, each rank runs its tasks on them, and a second step confirms that all ranks are done.
//! Otherwise the ranks stage their inputs in shared memory. The log states once per communicator why the direct transport is not used.

use libnccl::observer::Role;

use crate::coll::call;
use crate::coll::call::CallHeader;
use crate::coll::function::{Division, Function};
use crate::coll::operation::OnStream;
use crate::coll::operation::Operation;
use crate::coll::plan::Call;
use crate::coll::plan::LocalCall;
use crate::coll::plan::RankArgs;
use crate::coll::transports::{run_direct, run_eager, run_staged};
use crate::diag::debug::{self, Subsystem};
use crate::diag::error::{Error, Result};
use crate::diag::settings::STRICT;
use crate::shm::access::Exposed;
use crate::shm::buffer::{BufferRange, ReadBuf, WriteBuf};
use crate::shm::call_context::CallContext;
use crate::shm::layout::{EAGER_MAX, INLINE_MAX};
use crate::shm::mem_alloc;
use crate::shm::peer_access::RemoteBuffer;
use crate::shm::shared_state::SharedState;
use crate::sync::primitive::LOOM;

/// Inputs of up to this many bytes are eager in any memory. Longer inputs of up to [`EAGER_MAX`] bytes are eager only if they are
/// in memory that other ranks cannot use and would be staged otherwise. Without eager calls, calls of up to 16 KiB took 1.8 times as long
/// (geometric mean; AMD EPYC family 26 model 2).
const ALWAYS_EAGER_MAX: usize = if LOOM { EAGER_MAX } else { 16 << 10 };

/// Inputs of other ranks of up to this many bytes are prefetched completely. The processor prefetches longer inputs while it reads them.
const PREFETCH_MAX: usize = 1 << 10;

/// One rank's collective, with its buffers.
#[derive(Debug)]
pub(crate) struct Collective {
    pub(crate) call: Call,
    /// The location of the reduction's scalar if it is read when the collective runs.
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
            // On the heap, to keep the common future small.
            return Box::pin(async move { known.run(context).await }).await;
        }
        if self.call.overwrites_input() && self.send.overlaps(self.recv) {
            let on_copy = self.send.with_copy(async |send| Self { send, ..*self }.run(context).await);
            return Box::pin(on_copy).await;
        }
        let local = &LocalCall { context, send: self.send, recv: self.recv };
        let (call, CallContext { state, rank, .. }) = (&self.call, context);
        if call.bytes == 0 {
            // On the heap, as below.
            return Box::pin(run_empty(call, local.context)).await;
        }
        if call.ranks == 1 {
            return run_direct(call, local, &[RankArgs::new(call, local, false)]);
        }
        let input = call.buffer(call.function.shape().input);
        let step = state.next_step(rank).await?;
        if input <= ALWAYS_EAGER_MAX {
            let rank_args = call.factor().map(|_| RankArgs::new(call, local, false).to_words());
            let mut copy = vec![];
            let data = local.send.bytes(0, local.send.length(), &mut copy);
            let header = call.header();
            let call_args = call::call_args(state, rank, header);
            state.publish(rank, step, call_args, data, rank_args);
            let mut sources = call.sources(rank);
            if call.function.shape().operation.has_root() {
                state.note_unawaited_call(rank, header.encode());
                if *STRICT {
                    sources = 0..call.ranks;
                }
            }
            state.wait_for(rank, step, sources.clone()).await?;
            // The processor prefetches a longer input while reading it.
            if (INLINE_MAX + 1..=PREFETCH_MAX).contains(&input) {
                // The data arrives while this rank continues.
                for other in sources.clone().filter(|other| *other != rank) {
                    state.eager(other, step, input).slice(call.needed(rank, input)).prefetch();
                }
            }
            if !state.all_made(call_args, rank, step, sources.clone()) {
                return Err(call::difference(state, rank, step, sources));
            }
            run_eager(call, local, step);
            return Ok(());
        }
        // On the heap: only calls that take longer pay for the allocation.
        Box::pin(run_on_buffers(call, local, step)).await
    }
}

/// Runs a call of count 0. As in NCCL, which discards it (`taskAppend` in `enqueue.cc`), it does not wait for other ranks. The next calls
/// reveal whether all ranks made it. In strict mode it is a barrier.
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
    let call_args = call::call_args(state, rank, call.header());
    state.publish(rank, step, call_args, &[], None);
    state.wait_all(rank, step).await?;
    if state.all_made(call_args, rank, step, 0..call.ranks) {
        return Ok(());
    }
    Err(call::difference(state, rank, step, 0..call.ranks))
}

/// The transport of a call whose inputs are not eager.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Transport {
    Direct,
    Staged,
}

/// Runs a call on the ranks' buffers, whose locations are published in `step`.
async fn run_on_buffers(call: &Call, local: &LocalCall<'_>, step: u64) -> Result {
    let CallContext { state, rank, .. } = local.context;
    let own = RankArgs::new(call, local, true);
    let taken = mem_alloc::taken();
    let call_args = call::call_args(state, rank, call.header());
    let is_eager_if_private = is_eager_if_private(call, state);
    let is_eager = |args: &RankArgs| is_eager_if_private && !args.send.is_shared();
    let (mut copy, length) = (vec![], if is_eager(&own) { local.send.length() } else { 0 });
    state.publish(rank, step, call_args, local.send.bytes(0, length, &mut copy), Some(own.to_words()));
    let buffers = [local.send, local.recv.as_read()];
    let exposed = Exposed { buffers: &buffers, windows: 0 };
    if let Err(error) = state.wait_all(rank, step).await {
        state.quiesce(rank, exposed).await;
        return Err(error);
    }
    if !state.all_made(call_args, rank, step, 0..call.ranks) {
        return Err(call::difference(state, rank, step, 0..call.ranks));
    }
    let args = |rank| RankArgs::from_words(state.rank_args(rank, step), own.factor.is_some());
    let args: Vec<RankArgs> = (0..call.ranks).map(args).collect();
    if args.iter().all(is_eager) {
        run_eager(call, local, step);
        return Ok(());
    }
    // Other ranks wrote to the file while another communicator's failure made this process's pages private.
    let check_taken = |()| {
        if mem_alloc::taken() == taken || own.recv.is_still(local.recv.as_read()) {
            return Ok(());
        }
        Err(Error::remote(
            "the receive buffer shares pages with memory that was taken back from a process that is stopped, and may lack what \
             other ranks wrote",
        ))
    };
    let done = transfer(call, local, &args).await.and_then(check_taken);
    if done.is_err() {
        state.quiesce(rank, exposed).await;
    }
    done
}

/// Returns whether inputs in memory that other ranks cannot use are published with the arguments: staging would copy as much. Returns
/// `false` if more than two ranks reduce whole inputs, because each rank would do the work of all.
fn is_eager_if_private(call: &Call, state: &SharedState) -> bool {
    let shape = call.function.shape();
    call.buffer(shape.input) <= EAGER_MAX
        && (call.ranks == 2 || !shape.operation.reduces || shape.input == Division::Blocks)
        && !state.is_one_process()
}

/// Returns the call in the form that splits the work of a broadcast among the ranks.
fn spread(call: &Call) -> Call {
    let shape = call.function.shape();
    let is_broadcast = shape.operation.role == Role::RootSends
        && shape.output == Division::Whole
        && shape.input == Division::Whole;
    call.with_function(if is_broadcast { Function::SCATTER_ALLGATHER } else { call.function })
}

/// Transfers the data of a call after all ranks' arguments have been received.
async fn transfer(call: &Call, local: &LocalCall<'_>, args: &[RankArgs]) -> Result {
    let CallContext { state, peers, .. } = local.context;
    let spread = spread(call);
    let (transport, chosen) = choose(call, &spread, local, args).await?;
    if peers.is_first_use(transport as u8) {
        debug::info(Subsystem::SharedMemory, || describe(&spread, transport, local.context, args));
    }
    let done = match transport {
        Transport::Direct => run_direct(chosen, local, args),
        Transport::Staged => return run_staged(chosen, local, args).await,
    };
    // The other ranks wait for this step even if this rank failed; their results are then incomplete.
    let all_done = local.context.all_agree(done.is_ok()).await?;
    done?;
    if !all_done {
        // If the communicator was aborted, this error states the cause.
        state.check_abort()?;
        return Err(Error::remote("another rank failed to do its part of the operation"));
    }
    Ok(())
}

/// Chooses the transport, the same on all ranks, and the form of the call. `spread` splits the work of a broadcast among the ranks.
async fn choose<'a>(
    call: &'a Call,
    spread: &'a Call,
    local: &LocalCall<'_>,
    args: &[RankArgs],
) -> Result<(Transport, &'a Call)> {
    if args.iter().any(RankArgs::is_private) {
        return Ok((Transport::Staged, call));
    }
    for form in [spread, call] {
        if local.context.all_can_map(&shared_buffers(form, args)).await? {
            return Ok((Transport::Direct, form));
        }
    }
    Ok((Transport::Staged, call))
}

/// Returns the buffers that other ranks use in a direct call, with their owners.
fn shared_buffers(call: &Call, args: &[RankArgs]) -> Vec<(usize, RemoteBuffer)> {
    let senders = (0..call.ranks).filter(|rank| call.input(*rank) > 0);
    let receivers = (0..call.ranks).filter(|rank| call.shares_results() && call.output(*rank) > 0);
    let sends = senders.map(|rank| (rank, args[rank].send));
    sends.chain(receivers.map(|rank| (rank, args[rank].recv))).collect()
}

/// Describes the transport of a call and why it was chosen.
fn describe(call: &Call, transport: Transport, context: CallContext<'_>, args: &[RankArgs]) -> String {
    let how = match transport {
        Transport::Direct if context.state.is_one_process() => {
            "direct, because all ranks are in one process".into()
        }
        Transport::Direct => "direct, because the ranks can map each other's buffers".into(),
        Transport::Staged => format!("staged, because {}", obstacle(call, args)),
    };
    format!("{} of {} bytes on rank {}: {how}", call.function.symbol(), call.bytes, context.rank)
}

/// Returns the reason why the ranks cannot use each other's buffers directly.
fn obstacle(call: &Call, args: &[RankArgs]) -> String {
    if let Some(rank) = args.iter().position(RankArgs::is_private) {
        return format!("NCCL_P2P_DISABLE is 1 at rank {rank}");
    }
    let private = |buffer: fn(&RankArgs) -> RemoteBuffer, is_used: &dyn Fn(usize) -> bool| {
        (0..call.ranks).find(|rank| is_used(*rank) && !buffer(&args[*rank]).is_shared())
    };
    let sends = private(|args| args.send, &|rank| call.input(rank) > 0).map(|rank| ("send", rank));
    let receives = || private(|args| args.recv, &|rank| call.shares_results() && call.output(rank) > 0);
    match sends.or_else(|| receives().map(|rank| ("receive", rank))) {
        Some((buffer, rank)) => format!("the {buffer} buffer of rank {rank} is not from ncclMemAlloc"),
        None => "a rank cannot map another one's memory".into(),
    }
}
