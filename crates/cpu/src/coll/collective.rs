//! Collectives: publishing a call, comparing it with the other ranks' calls, and the transports.
//!
//! In the first step of a call, every rank publishes its arguments and compares them with the other ranks' arguments. All transports
//! (docs/design.md) follow the same [plan](super::plan), so a result does not depend on size, memory, or the number of processes.

use std::ops::Range;

use libnccl::observer::Role;

use crate::coll::call::{self, CallHeader, Division, Function};
use crate::coll::operation::{self, OnStream, Operation};
use crate::coll::plan::{Call, LocalCall, RankArgs, Task};
use crate::diag::debug::{self, Subsystem};
use crate::diag::error::{Error, Result};
use crate::diag::settings::STRICT;
use crate::reduce::reduction::{self, Factor, Reduction};
use crate::shm::access::Exposed;
use crate::shm::buffer::{self, BufferRange, ReadBuf, WriteBuf};
use crate::shm::call_context::{CallContext, RemoteBuffer};
use crate::shm::layout::{EAGER_MAX, INLINE_MAX, STAGE};
use crate::shm::mem_alloc;
use crate::shm::shared_state::SharedState;
use crate::sync::primitive::LOOM;

/// Inputs of up to this many bytes are eager (published with the arguments) in any memory. Longer inputs of up to [`EAGER_MAX`]
/// bytes are eager only if other ranks cannot use their memory, so that they would otherwise be staged. docs/cpu-performance.md
/// lists the gain of each mechanism.
const ALWAYS_EAGER_MAX: usize = if LOOM { EAGER_MAX } else { 16 << 10 };

/// Maximum size in bytes of another rank's input that is prefetched explicitly. The processor prefetches longer inputs itself.
const PREFETCH_MAX: usize = 1 << 10;

pub(crate) struct Collective {
    pub(crate) call: Call,
    /// The location of the reduction's scalar if the scalar is read when the collective runs.
    pub(crate) scalar: Option<ReadBuf>,
    pub(crate) send: ReadBuf,
    pub(crate) recv: WriteBuf,
}

impl Operation for Collective {
    fn header(&self) -> CallHeader {
        self.call.header()
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

/// Runs a call of count 0. NCCL discards such a call (`taskAppend` in `enqueue.cc`), so it does not wait for other ranks. The
/// next calls reveal whether all ranks made it. In strict mode, it is a barrier.
async fn run_empty(call: &Call, CallContext { state, rank, .. }: CallContext<'_>) -> Result {
    if call.ranks == 1 {
        return Ok(());
    }
    if !*STRICT {
        let [head, _] = call.header().encode();
        state.note_empty_call(rank, head);
        return Ok(());
    }
    operation::make_together(state, rank, call.header(), &[]).await.map(drop)
}

/// The transport of a call whose inputs are not eager.
#[derive(Clone, Copy, PartialEq, Eq)]
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

/// Returns whether inputs in memory that other ranks cannot use are published with the arguments, because staging would copy as
/// much. Returns `false` if more than two ranks reduce whole inputs, because every rank would then compute the whole result.
fn is_eager_if_private(call: &Call, state: &SharedState) -> bool {
    let shape = call.function.shape();
    call.buffer(shape.input) <= EAGER_MAX
        && (call.ranks == 2 || !shape.operation.reduces || shape.input == Division::Blocks)
        && !state.is_one_process()
}

/// Returns a broadcast in the form that splits its work among the ranks, and any other call unchanged.
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

/// Chooses, alike on all ranks, the transport and `call` or `spread`, which splits the work of a broadcast among the ranks.
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

fn obstacle(call: &Call, args: &[RankArgs]) -> String {
    let buffers = shared_buffers(call, args);
    if let Some(rank) = args.iter().position(RankArgs::is_private) {
        format!("NCCL_P2P_DISABLE is 1 at rank {rank}")
    } else if let Some((rank, _)) = buffers.iter().find(|(_, buffer)| !buffer.is_shared()) {
        format!("a buffer of rank {rank} is not from ncclMemAlloc")
    } else {
        "a rank cannot map another one's memory".into()
    }
}

/// Computes this rank's result from the inputs that all ranks published in `step`.
fn run_eager(call: &Call, local: &LocalCall<'_>, step: u64) {
    let shape = call.function.shape();
    for task in call.writers(local.context.rank).flat_map(|writer| call.tasks(writer)) {
        let to = local.recv.slice(call.part(shape.output, task.output));
        let part = call.part(shape.input, task.input);
        match call.reduction {
            None => to.copy(published_input(call, local, step, to, task.first).slice(part), false),
            Some(reduction) => reduce_published(call, local, step, task, to, part.start, reduction),
        }
    }
}

/// Returns the input of `source`, which must have one.
#[inline]
fn published_input(
    call: &Call,
    LocalCall { context, send, .. }: &LocalCall<'_>,
    step: u64,
    to: WriteBuf,
    source: usize,
) -> ReadBuf {
    // This rank's own buffer is closer than its published copy. The copy is used only if the result overwrites the buffer.
    if source == context.rank && !send.overlaps(to) {
        *send
    } else {
        context.state.eager(source, step, call.buffer(call.function.shape().input))
    }
}

/// Reduces the published inputs of `task`. Not inlined: hoisting its setup out of the loop slows calls that only copy.
#[inline(never)]
fn reduce_published(
    call: &Call,
    local: &LocalCall<'_>,
    step: u64,
    task: Task,
    to: WriteBuf,
    at: usize,
    reduction: Reduction,
) {
    let state = local.context.state;
    let common = call.factor();
    let factor = |source| match reduction {
        Reduction::PreMulSum(_) => RankArgs::from_words(state.rank_args(source, step), true).factor,
        _ => common,
    };
    let source = |index| {
        let source = task.source(index, call.ranks);
        (published_input(call, local, step, to, source), factor(source))
    };
    to.fill(|result| reduce(call, reduction, result, at, task.sources, source));
}

/// Number of bytes of a task after which a rank checks whether the communicator was aborted. An abort waits for this check.
const STRETCH: usize = 4 << 20;

fn run_direct(call: &Call, local: &LocalCall<'_>, args: &[RankArgs]) -> Result {
    let LocalCall { context, send, recv } = *local;
    let CallContext { state, rank, .. } = context;
    let shape = call.function.shape();
    let _access = state.begin_access(rank)?;
    for task in call.tasks(rank) {
        let (from, to) = (call.part(shape.input, task.input), call.part(shape.output, task.output));
        let (mut sources, mut targets) = (vec![], vec![]);
        for source in task.sources(call.ranks) {
            let whole = if source == rank {
                send
            } else {
                context.read_buf(source, args[source].send, call.input(source))?
            };
            sources.push((whole.slice(from.clone()), args[source].factor));
        }
        for target in task.targets(call.ranks) {
            let args = &args[target];
            if !shape.operation.reduces && target != rank && target == task.first && args.send == args.recv {
                // The data is already there.
                continue;
            }
            let whole = if target == rank {
                recv
            } else {
                context.write_buf(target, args.recv, call.output(target))?
            };
            let nontemporal = is_nontemporal(call);
            targets.push(Output { memory: whole.slice(to.clone()), nontemporal, is_own: target == rank });
        }
        for at in (0..from.len()).step_by(STRETCH) {
            if at > 0 {
                state.check_abort()?;
            }
            let part = at..from.len().min(at + STRETCH);
            let sources: Vec<_> =
                sources.iter().map(|(source, factor)| (source.slice(part.clone()), *factor)).collect();
            let slice = |target: &Output| Output { memory: target.memory.slice(part.clone()), ..*target };
            let targets: Vec<_> = targets.iter().map(slice).collect();
            run_task(call, &sources, &targets);
        }
    }
    Ok(())
}

/// Runs this rank's tasks. In each step, a rank stages a window of its input, copies the other ranks' results of the previous window, and
/// runs its tasks on the current window.
async fn run_staged(call: &Call, local: &LocalCall<'_>, args: &[RankArgs]) -> Result {
    let LocalCall { context: CallContext { state, rank, .. }, send, recv } = *local;
    let shape = call.function.shape();
    let shares = call.shares_results();
    let cells = if shape.input == Division::Whole { 1 } else { call.ranks };
    let window = (STAGE / (cells + usize::from(shares))) & !63;
    // The parts are almost equal, and the first part is the longest.
    let windows = call.part(shape.input, 0).len().div_ceil(window);
    let slice = |division, index, at: usize| {
        let Range { start, end } = call.part(division, index);
        (start + at * window).min(end)..(start + (at + 1) * window).min(end)
    };
    let cell = |owner, step, index, length| state.staged(owner, step, index * window, length);
    for at in 0..windows + usize::from(shares) {
        let step = state.next_step(rank).await?;
        if at < windows && call.input(rank) > 0 {
            // Input that only this rank needs is not staged.
            let is_needed = |index: &usize| shape.input == Division::Whole || *index != rank;
            for index in (0..cells).filter(is_needed) {
                let from = slice(shape.input, index, at);
                let to = cell(rank, step, index, from.len());
                to.copy(send.slice(from), false);
            }
        }
        state.announce(rank, step);
        state.wait_all(rank, step).await?;
        if shares && at > 0 && call.output(rank) > 0 {
            for writer in (rank + 1..call.ranks).chain(0..rank) {
                let to = slice(shape.output, writer, at - 1);
                let from = cell(writer, step - 1, cells, to.len()).as_read();
                recv.slice(to).copy(from, is_nontemporal(call));
            }
        }
        for task in call.tasks(rank).filter(|_| at < windows) {
            let from = slice(shape.input, task.input, at);
            let to = slice(shape.output, task.output, at);
            let source = |source| {
                let index = if shape.input == Division::Whole { 0 } else { task.input };
                let staged = cell(source, step, index, from.len()).as_read();
                (if source == rank { send.slice(from.clone()) } else { staged }, args[source].factor)
            };
            let sources: Vec<_> = task.sources(call.ranks).map(source).collect();
            let mut targets = vec![];
            if task.target != Some(rank) {
                let memory = cell(rank, step, cells, to.len());
                targets.push(Output { memory, nontemporal: false, is_own: false });
            }
            if task.target.is_none_or(|target| target == rank) {
                let nontemporal = is_nontemporal(call);
                targets.push(Output { memory: recv.slice(to), nontemporal, is_own: true });
            }
            run_task(call, &sources, &targets);
        }
    }
    Ok(())
}

/// Block size in bytes of a reduction of two sources into the rank's own buffer, from which each block is copied to the other
/// targets. For more sources, [`BLOCK_OF_MORE`] is smaller, because the result is read again for each source.
const BLOCK: usize = 32 << 10;
const BLOCK_OF_MORE: usize = 8 << 10;

/// Block size in bytes of a reduction into a scratch buffer.
const SCRATCH: usize = 16 << 10;

/// Block size in bytes of a reduction whose result is written with non-temporal stores. With small blocks, reads and writes of
/// memory alternate more often.
const NONTEMPORAL_BLOCK: usize = 1 << 10;

/// Block size in bytes of a reduction with both non-temporal and ordinary targets.
const MIXED_BLOCK: usize = 4 << 10;

/// Block size in bytes of a copy to several ranks, so that the block stays in the second-level cache.
const COPY_BLOCK: usize = 256 << 10;

/// If all ranks together write at least this many bytes, non-temporal stores are used.
const NONTEMPORAL_MIN: usize = 32 << 20;

/// Returns whether the result is too long to remain in a cache until it is used.
fn is_nontemporal(call: &Call) -> bool {
    call.written() >= NONTEMPORAL_MIN
}

#[derive(Clone, Copy)]
struct Output {
    memory: WriteBuf,
    /// Set if `memory` is written with non-temporal stores.
    nontemporal: bool,
    /// Set for the rank's own buffer, whose cache lines no other core holds.
    is_own: bool,
}

/// Reduces `sources`, or copies the only source, into all `targets`.
fn run_task(call: &Call, sources: &[(ReadBuf, Option<Factor>)], targets: &[Output]) {
    let Some(reduction) = call.reduction else {
        sources.iter().for_each(|(source, _)| copy_to_all(*source, targets));
        return;
    };
    let length = sources.first().map_or(0, |(source, _)| source.length());
    let reduce = |result: &mut [u8], at| {
        reduce(call, reduction, result, at, sources.len(), |index| sources[index]);
    };
    let overlaps = |memory| sources.iter().any(|(source, _)| source.overlaps(memory));
    let any_nontemporal = targets.iter().any(|target| target.nontemporal);
    let own = targets.iter().position(|target| target.is_own && !any_nontemporal && !overlaps(target.memory));
    if let Some(own) = own {
        let block = if sources.len() > 2 { BLOCK_OF_MORE } else { BLOCK };
        for at in (0..length).step_by(block) {
            let part = at..length.min(at + block);
            let to = targets[own].memory.slice(part.clone());
            to.fill(|result| reduce(result, at));
            for (_, other) in targets.iter().enumerate().filter(|(index, _)| *index != own) {
                other.memory.slice(part.clone()).copy(to.as_read(), false);
            }
        }
        return;
    }
    let block = if !any_nontemporal {
        SCRATCH
    } else if targets.iter().all(|target| target.nontemporal) {
        NONTEMPORAL_BLOCK
    } else {
        MIXED_BLOCK
    };
    let mut scratch = vec![0; block.min(length)];
    for at in (0..length).step_by(block) {
        let result = &mut scratch[..block.min(length - at)];
        reduce(result, at);
        for Output { memory, nontemporal, .. } in targets {
            if *nontemporal {
                memory.write_nontemporal(at, result);
            } else {
                memory.write(at, result);
            }
        }
    }
    if any_nontemporal {
        buffer::store_fence();
    }
}

/// Copies `source` into all `targets`. With several targets, it copies block by block, so that `source` is read from memory once.
fn copy_to_all(source: ReadBuf, targets: &[Output]) {
    let length = source.length();
    let block = if targets.len() > 1 { COPY_BLOCK } else { length.max(1) };
    for at in (0..length).step_by(block) {
        let part = at..length.min(at + block);
        for Output { memory, nontemporal, .. } in targets {
            memory.slice(part.clone()).copy(source.slice(part.clone()), *nontemporal);
        }
    }
}

/// Fills `result` with the reduction of `count` sources, at least one, from their byte `at` on.
fn reduce(
    call: &Call,
    reduction: Reduction,
    result: &mut [u8],
    at: usize,
    count: usize,
    source: impl Fn(usize) -> (ReadBuf, Option<Factor>),
) {
    let (data_type, length) = (call.data_type, result.len());
    // Empty unless a source is in a window.
    let (mut one, mut two) = (vec![], vec![]);
    let (left, left_factor) = source(0);
    let left = left.bytes(at, length, &mut one);
    if count == 1 {
        reduction::begin(data_type, result, left, left_factor);
    } else {
        let (right, right_factor) = source(1);
        let right = right.bytes(at, length, &mut two);
        reduction::join(reduction, data_type, result, left, right, left_factor.zip(right_factor));
    }
    for (source, factor) in (2..count).map(source) {
        reduction::combine(reduction, data_type, result, source.bytes(at, length, &mut one), factor);
    }
    reduction::finish(reduction, data_type, call.ranks, result);
}
