//! Collectives: publishing a call, comparing it with the other ranks', and choosing a transport.
//!
//! A call begins with a step in which every rank publishes its arguments; all compare. Short inputs are published with
//! them (eager), in two parts where that is faster, and every rank computes its own result: one step. So are longer ones
//! that would have to be staged. Otherwise, if every rank can use the others' buffers, each does its tasks on them
//! (direct, or by cross-memory attach), and a second step says that all are done. Otherwise the ranks stage their inputs
//! in shared memory. Where there is a choice of the latter, one rank publishes that of its tuner with its arguments. The
//! log says once per communicator why the direct transport is not used.

use std::time::Instant;

use crate::coll::call_check;
use crate::coll::call_header::CallHeader;
use crate::coll::function::{Division, Function};
use crate::coll::local_call::LocalCall;
use crate::coll::on_stream::OnStream;
use crate::coll::operation::Operation;
use crate::coll::plan::Call;
use crate::coll::rank_args::RankArgs;
use crate::coll::transport::{cma, direct, eager, staged};
use crate::diag::debug::{self, Subsystem};
use crate::diag::error::{Error, Result};
use crate::diag::strict::STRICT;
use crate::shm::buffer::{self, ReadBuf, WriteBuf};
use crate::shm::call_context::CallContext;
use crate::shm::layout::{EAGER_MAX, INLINE_MAX};
use crate::shm::peer_access::{RemoteBuffer, is_shm_disabled};
use crate::shm::shared_state::SharedState;
use crate::shm::tuner::Method;
use crate::sync::backoff;
use crate::sync::primitive::LOOM;

/// Bytes of an input up to which it is eager whatever memory it is in; longer ones that only their rank can use are, up to
/// [`EAGER_MAX`], where they would be staged.
const ALWAYS_EAGER_MAX: usize = if LOOM { EAGER_MAX } else { 16 << 10 };

/// Bytes of it for two ranks, where another step costs less than another copy, unless they are processes that reduce. More
/// ranks often have to wait for a CPU in each step.
const ALWAYS_EAGER_MAX_OF_TWO: usize = if LOOM { EAGER_MAX } else { 8 << 10 };

/// Bytes of an input up to which the others' are prefetched whole; longer ones the processor prefetches while it reads.
const PREFETCH_MAX: usize = 1 << 10;

/// A collective of one rank, with its buffers.
#[derive(Debug)]
pub(crate) struct Collective {
    pub(crate) call: Call,
    /// The place of the reduction's scalar, if it is to be read when the collective runs.
    pub(crate) scalar: Option<ReadBuf>,
    pub(crate) send: ReadBuf,
    pub(crate) recv: WriteBuf,
}

/// The transport of a call whose inputs are not eager.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Transport {
    Direct,
    Cma,
    Staged,
}

impl Operation for Collective {
    fn header(&self) -> CallHeader {
        self.call.header()
    }

    fn buffers(&self) -> [usize; 2] {
        [self.send.start().addr(), self.recv.start().addr()]
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
        let local = &LocalCall { context, send: self.send, recv: self.recv };
        let (call, CallContext { state, rank, .. }) = (&self.call, context);
        if call.bytes == 0 {
            // On the heap, as in the following.
            return Box::pin(run_empty(call, local.context)).await;
        }
        if call.ranks == 1 {
            return direct::run(call, local, &[rank_args(call, local, false)]);
        }
        let input = call.buffer(call.function.shape().input);
        let step = state.next_step(rank).await?;
        if input <= always_eager_max(call, state) {
            if is_in_parts(call, input) {
                return run_in_parts(call, local, step).await;
            }
            let rank_args = call.factor().map(|_| rank_args(call, local, false).to_words());
            let mut copy = vec![];
            let data = local.send.bytes(0, local.send.length(), &mut copy);
            let call_args = call_check::call_args(state, rank, call.header());
            state.publish(rank, step, call_args, data, rank_args);
            let sources = call.sources(rank);
            state.wait_for(rank, step, sources.clone()).await?;
            // What this rank waits for comes first, but a longer input only while it is read.
            let is_short = input <= PREFETCH_MAX;
            if input > INLINE_MAX && is_short {
                // It arrives while this rank does the rest.
                for other in sources.clone().filter(|other| *other != rank) {
                    state.eager(other, step, input).slice(call.needed(rank, input)).prefetch();
                }
            }
            state.prewrite(rank, step);
            if !is_short {
                state.prefetch(rank, step, input);
            }
            if !state.all_made(call_args, rank, step, sources.clone()) {
                return Err(call_check::difference(state, rank, step, sources));
            }
            eager::run(call, local, step, call.writers(rank));
            if is_short {
                state.prefetch(rank, step, input);
            }
            return Ok(());
        }
        // On the heap, which only calls that take longer have to afford.
        Box::pin(run_on_buffers(call, local, step)).await
    }
}

/// Returns `true` if two ranks reduce an eager input in two parts: a rank reads the first part of the other while its stores
/// of the second one are still on their way.
fn is_in_parts(call: &Call, input: usize) -> bool {
    input > PREFETCH_MAX
        && call.ranks == 2
        && call.function == Function::AllReduce
        && buffer::stores_to_prefetched_lines_are_fast()
}

/// Runs an all-reduce of two ranks in two parts, each of which is announced by itself.
async fn run_in_parts(call: &Call, local: &LocalCall<'_>, step: u64) -> Result {
    let CallContext { state, rank, .. } = local.context;
    let (other, input) = (1 - rank, local.send.length());
    let parts = [0, 1].map(|index| call.part(Division::Chunks, index));
    let rank_args = call.factor().map(|_| rank_args(call, local, false).to_words());
    let call_args = call_check::call_args(state, rank, call.header());
    let mut copy = vec![];
    let (first, second) = local.send.bytes(0, input, &mut copy).split_at(parts[1].start);
    state.publish(rank, step, call_args, first, rank_args);
    state.publish_rest(rank, step, parts[1].start, second);
    state.wait_for(rank, step, 0..2).await?;
    state.prewrite(rank, step);
    state.prefetch(rank, step, input);
    if !state.all_made(call_args, rank, step, 0..2) {
        return Err(call_check::difference(state, rank, step, 0..2));
    }
    for (index, part) in parts.into_iter().enumerate() {
        if index == 1 {
            state.wait_for_rest(other, step).await?;
        }
        state.eager(other, step, input).slice(part).prefetch();
        eager::run(call, local, step, index..index + 1);
    }
    Ok(())
}

/// Returns the bytes of an input up to which it is eager whatever memory it is in.
fn always_eager_max(call: &Call, state: &SharedState) -> usize {
    let of_two = call.ranks == 2 && (state.is_one_process() || !call.function.shape().operation.reduces);
    if of_two { ALWAYS_EAGER_MAX_OF_TWO } else { ALWAYS_EAGER_MAX }
}

/// Returns `true` if inputs that only their ranks can use are published with the arguments: staging would copy as much of
/// them. More than two ranks that reduce whole inputs would each do the work of all.
fn is_eager_if_private(call: &Call, state: &SharedState) -> bool {
    let shape = call.function.shape();
    call.buffer(shape.input) <= EAGER_MAX
        && (call.ranks == 2 || !shape.operation.reduces || shape.input == Division::Blocks)
        && !state.is_one_process()
        && !cma::is_worthwhile(&spread(call))
        && !staged::has_choice(call)
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

/// Runs a call on the ranks' buffers, which they publish in `step`.
async fn run_on_buffers(call: &Call, local: &LocalCall<'_>, step: u64) -> Result {
    let CallContext { state, rank, peers } = local.context;
    let mut own = rank_args(call, local, true);
    let methods = if rank == call.last_rank() { methods(call, local, &own) } else { &[] };
    let tunes = !methods.is_empty();
    if tunes {
        own.method = peers.tuner.choose(call.function as u8, call.bytes, methods);
    }
    let mut begin = tunes.then(Instant::now);
    let call_args = call_check::call_args(state, rank, call.header());
    let is_eager_if_private = is_eager_if_private(call, state);
    let is_eager = |args: &RankArgs| is_eager_if_private && !args.send.is_shared();
    let (mut copy, length) = (vec![], if is_eager(&own) { local.send.length() } else { 0 });
    state.publish(rank, step, call_args, local.send.bytes(0, length, &mut copy), Some(own.to_words()));
    if let Err(error) = state.wait_all(rank, step).await {
        state.quiesce(rank).await;
        return Err(error);
    }
    if !state.all_made(call_args, rank, step, 0..call.ranks) {
        return Err(call_check::difference(state, rank, step, 0..call.ranks));
    }
    let args = |rank| RankArgs::from_words(state.rank_args(rank, step), own.factor.is_some());
    let args: Vec<RankArgs> = (0..call.ranks).map(args).collect();
    if args.iter().all(is_eager) {
        eager::run(call, local, step, call.writers(rank));
        return Ok(());
    }
    if tunes && !backoff::is_oversubscribed(call.ranks) {
        // All ranks are here, and the time to wait for them does not count. Ranks that share a CPU may have done much of
        // the call before this one gets to see it.
        begin = Some(Instant::now());
    }
    match transfer(call, local, &args).await {
        Ok(transport) => {
            let method = match transport {
                Transport::Direct => None,
                Transport::Cma => Some(Method::Cma),
                Transport::Staged if own.method == Method::StagedNontemporal => Some(own.method),
                Transport::Staged => Some(Method::Staged),
            };
            if let (Some(begin), Some(method)) = (begin, method) {
                peers.tuner.record(call.function as u8, call.bytes, method, begin.elapsed());
            }
            Ok(())
        }
        Err(error) => {
            state.quiesce(rank).await;
            Err(error)
        }
    }
}

/// Returns the methods that the ranks may have to choose from: none if there is no choice.
fn methods(call: &Call, local: &LocalCall<'_>, own: &RankArgs) -> &'static [Method] {
    const ALL: [Method; 3] = [Method::Staged, Method::Cma, Method::StagedNontemporal];
    let CallContext { state, peers, .. } = local.context;
    if state.is_one_process() || own.send.is_shared() && own.recv.is_shared() {
        return &[];
    }
    let is_read = cma::is_worthwhile(&spread(call)) && peers.readable.get() != Some(&false);
    match (is_read, staged::has_choice(call)) {
        (true, _) if is_shm_disabled() => &[],
        (true, true) => &ALL,
        (true, false) => &[Method::Staged, Method::Cma],
        (false, true) => &[Method::Staged, Method::StagedNontemporal],
        (false, false) => &[],
    }
}

/// Returns the form of a call in which the ranks share the work of a broadcast.
fn spread(call: &Call) -> Call {
    let is_broadcast = call.function == Function::Broadcast;
    call.with_function(if is_broadcast { Function::ScatterAllgather } else { call.function })
}

/// Moves the data of a call, once all ranks' arguments are known. Returns the way.
async fn transfer(call: &Call, local: &LocalCall<'_>, args: &[RankArgs]) -> Result<Transport> {
    let CallContext { state, peers, .. } = local.context;
    let spread = spread(call);
    let (transport, chosen) = choose(call, &spread, local, args).await?;
    if peers.is_first_use(transport as u8) {
        debug::info(Subsystem::SharedMemory, || describe(&spread, transport, local.context, args));
    }
    let done = match transport {
        Transport::Direct => direct::run(chosen, local, args),
        Transport::Cma => cma::run(chosen, local, args),
        Transport::Staged => {
            staged::run(chosen, local, args).await?;
            return Ok(transport);
        }
    };
    // The others wait for this step even if this rank has failed; their results are not complete then.
    let all_done = local.context.all_agree(done.is_ok()).await?;
    done?;
    if !all_done {
        // It knows why.
        state.check_abort()?;
        return Err(Error::remote("another rank failed to do its part of the operation"));
    }
    Ok(transport)
}

/// Chooses the transport, the same at all ranks, and the form of the call: `spread` shares the work of a broadcast.
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
    // A buffer of every rank, since the answer also holds for calls that use the memory of other ranks.
    let buffer = |rank| (rank, if call.input(rank) > 0 { args[rank].send } else { args[rank].recv });
    let buffers: Vec<_> = (0..call.ranks).map(buffer).collect();
    let method = args[call.last_rank()].method;
    if cma::is_worthwhile(spread) && method == Method::Cma && local.context.all_can_read(&buffers).await? {
        return Ok((Transport::Cma, spread));
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

/// Describes the transport of a call and the reason for it.
fn describe(call: &Call, transport: Transport, context: CallContext<'_>, args: &[RankArgs]) -> String {
    let how = match transport {
        Transport::Direct if context.state.is_one_process() => {
            "direct, because all ranks are in one process".into()
        }
        Transport::Direct => "direct, because the ranks can map each other's buffers".into(),
        Transport::Cma => format!("read across processes, because {}", obstacle(call, args)),
        Transport::Staged => format!("staged, because {}{}", obstacle(call, args), cma_obstacle(call, args)),
    };
    format!("{} of {} bytes on rank {}: {how}", call.function.symbol(), call.bytes, context.rank)
}

/// Returns the reason for which the ranks do not use each other's buffers directly.
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

/// Returns the reason for which the ranks do not read each other's memory either, if they might.
fn cma_obstacle(call: &Call, args: &[RankArgs]) -> &'static str {
    if args.iter().any(RankArgs::is_private) {
        ""
    } else if args[call.last_rank()].method != Method::Cma {
        ", and reading across processes was slower lately, or has yet to be tried"
    } else if cma::is_worthwhile(call) {
        ", nor can every rank read and write the others' memory"
    } else {
        ", and it is too short to read across processes"
    }
}

#[inline]
fn rank_args(call: &Call, local: &LocalCall<'_>, for_others: bool) -> RankArgs {
    let other_processes = for_others && !local.context.state.is_one_process();
    RankArgs {
        send: RemoteBuffer::new(local.send, other_processes),
        recv: RemoteBuffer::new(local.recv.as_read(), other_processes),
        factor: call.factor(),
        method: Method::Cma,
    }
}
