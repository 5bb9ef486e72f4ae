//! Collectives whose inputs are too long to be published whatever memory they are in: choosing a transport.
//!
//! If every rank can use the others' buffers, each does its tasks on them (direct), and a second step says that all are done.
//! Otherwise the ranks stage their inputs in shared memory, unless these are short enough to be published with the arguments,
//! which copies as much. The log says once per communicator why the direct transport is not used.

use libnccl::observer::Role;

use crate::coll::call_check;
use crate::coll::function::{Division, Function};
use crate::coll::local_call::LocalCall;
use crate::coll::plan::Call;
use crate::coll::rank_args::RankArgs;
use crate::coll::transport::{direct, eager, staged};
use crate::diag::debug::{self, Subsystem};
use crate::diag::error::{Error, Result};
use crate::shm::access::Exposed;
use crate::shm::call_context::CallContext;
use crate::shm::layout::EAGER_MAX;
use crate::shm::mem_alloc;
use crate::shm::peer_access::RemoteBuffer;
use crate::shm::shared_state::SharedState;

/// The transport of a call whose inputs are not eager.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Transport {
    Direct,
    Staged,
}

/// Runs a call on the ranks' buffers, which they publish in `step`.
pub(super) async fn run(call: &Call, local: &LocalCall<'_>, step: u64) -> Result {
    let CallContext { state, rank, .. } = local.context;
    let own = RankArgs::new(call, local, true);
    let taken = mem_alloc::taken();
    let call_args = call_check::call_args(state, rank, call.header());
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
        return Err(call_check::difference(state, rank, step, 0..call.ranks));
    }
    let args = |rank| RankArgs::from_words(state.rank_args(rank, step), own.factor.is_some());
    let args: Vec<RankArgs> = (0..call.ranks).map(args).collect();
    if args.iter().all(is_eager) {
        eager::run(call, local, step);
        return Ok(());
    }
    // Written to the file by other ranks, while another communicator's failure made the pages here private.
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

/// Returns `true` if inputs that only their ranks can use are published with the arguments: staging would copy as much of
/// them. More than two ranks that reduce whole inputs would each do the work of all.
fn is_eager_if_private(call: &Call, state: &SharedState) -> bool {
    let shape = call.function.shape();
    call.buffer(shape.input) <= EAGER_MAX
        && (call.ranks == 2 || !shape.operation.reduces || shape.input == Division::Blocks)
        && !state.is_one_process()
}

/// Returns the form of a call in which the ranks share the work of a broadcast.
fn spread(call: &Call) -> Call {
    let shape = call.function.shape();
    let is_broadcast = shape.operation.role == Role::RootSends
        && shape.output == Division::Whole
        && shape.input == Division::Whole;
    call.with_function(if is_broadcast { Function::SCATTER_ALLGATHER } else { call.function })
}

/// Moves the data of a call, once all ranks' arguments are known.
async fn transfer(call: &Call, local: &LocalCall<'_>, args: &[RankArgs]) -> Result {
    let CallContext { state, peers, .. } = local.context;
    let spread = spread(call);
    let (transport, chosen) = choose(call, &spread, local, args).await?;
    if peers.is_first_use(transport as u8) {
        debug::info(Subsystem::SharedMemory, || describe(&spread, transport, local.context, args));
    }
    let done = match transport {
        Transport::Direct => direct::run(chosen, local, args),
        Transport::Staged => return staged::run(chosen, local, args).await,
    };
    // The others wait for this step even if this rank has failed; their results are not complete then.
    let all_done = local.context.all_agree(done.is_ok()).await?;
    done?;
    if !all_done {
        // It knows why.
        state.check_abort()?;
        return Err(Error::remote("another rank failed to do its part of the operation"));
    }
    Ok(())
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
        Transport::Staged => format!("staged, because {}", obstacle(call, args)),
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
