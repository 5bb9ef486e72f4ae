//! Collectives whose inputs are too long to be published whatever memory they are in: choosing a transport.
//!
//! If every rank can use the others' buffers, each does its tasks on them (direct, or by cross-memory attach), and a second
//! step says that all are done. Otherwise the ranks stage their inputs in shared memory, unless these are short enough to
//! be published with the arguments, which copies as much. Where there is a choice, one rank publishes that of its tuner with
//! its arguments. The log says once per communicator why the direct transport is not used.

use std::time::Instant;

use libnccl::observer::Role;

use crate::coll::call_check;
use crate::coll::function::{Division, Function};
use crate::coll::local_call::LocalCall;
use crate::coll::plan::Call;
use crate::coll::rank_args::RankArgs;
use crate::coll::transport::{cma, direct, eager, staged};
use crate::diag::debug::{self, Subsystem};
use crate::diag::error::{Error, Result};
use crate::shm::access::Exposed;
use crate::shm::call_context::CallContext;
use crate::shm::layout::EAGER_MAX;
use crate::shm::mem_alloc;
use crate::shm::peer_access::{RemoteBuffer, is_shm_disabled};
use crate::shm::shared_state::SharedState;
use crate::shm::tuner::Method;
use crate::sync::backoff;

/// The transport of a call whose inputs are not eager.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Transport {
    Direct,
    Cma,
    Staged,
}

/// Runs a call on the ranks' buffers, which they publish in `step`.
pub(super) async fn run(call: &Call, local: &LocalCall<'_>, step: u64) -> Result {
    let CallContext { state, rank, peers } = local.context;
    let mut own = RankArgs::new(call, local, true);
    let taken = mem_alloc::taken();
    let methods = if rank == call.last_rank() { methods(call, local, &own) } else { &[] };
    let tunes = !methods.is_empty();
    if tunes {
        own.method = peers.tuner.choose(call.function.number(), call.bytes, methods);
    }
    let mut begin = tunes.then(Instant::now);
    let call_args = call_check::call_args(state, rank, call.header());
    let is_eager_if_private = is_eager_if_private(call, state);
    let is_eager = |args: &RankArgs| is_eager_if_private && !args.send.is_shared();
    let (mut copy, length) = (vec![], if is_eager(&own) { local.send.length() } else { 0 });
    state.publish(rank, step, call_args, local.send.bytes(0, length, &mut copy), Some(own.to_words()));
    let buffers = [local.send, local.recv.as_read()];
    // Ranks that have seen all arguments may read and write by address from now on, if that is known to work.
    let mut exposed =
        Exposed { buffers: &buffers, by_address: peers.readable.get() == Some(&true), windows: 0 };
    if let Err(error) = state.wait_all(rank, step).await {
        state.quiesce(rank, exposed).await;
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
    // Written to the file by other ranks, while another communicator's failure made the pages here private.
    let check_taken = |transport| {
        if mem_alloc::taken() == taken || own.recv.is_still(local.recv.as_read()) {
            return Ok(transport);
        }
        Err(Error::remote(
            "the receive buffer shares pages with memory that was taken back from a process that is stopped, and may lack what \
             other ranks wrote",
        ))
    };
    match transfer(call, local, &args, &mut exposed.by_address).await.and_then(check_taken) {
        Ok(transport) => {
            let method = match transport {
                Transport::Direct => None,
                Transport::Cma => Some(Method::Cma),
                Transport::Staged if own.method == Method::StagedNontemporal => Some(own.method),
                Transport::Staged => Some(Method::Staged),
            };
            if let (Some(begin), Some(method)) = (begin, method) {
                peers.tuner.record(call.function.number(), call.bytes, method, begin.elapsed());
            }
            Ok(())
        }
        Err(error) => {
            state.quiesce(rank, exposed).await;
            Err(error)
        }
    }
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
    let shape = call.function.shape();
    let is_broadcast = shape.operation.role == Role::RootSends
        && shape.output == Division::Whole
        && shape.input == Division::Whole;
    call.with_function(if is_broadcast { Function::SCATTER_ALLGATHER } else { call.function })
}

/// Moves the data of a call, once all ranks' arguments are known. Returns the transport, and stores in `by_address` whether
/// ranks access each other's memory by its address.
async fn transfer(
    call: &Call,
    local: &LocalCall<'_>,
    args: &[RankArgs],
    by_address: &mut bool,
) -> Result<Transport> {
    let CallContext { state, peers, .. } = local.context;
    let spread = spread(call);
    let (transport, chosen) = choose(call, &spread, local, args).await?;
    *by_address = transport == Transport::Cma;
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
