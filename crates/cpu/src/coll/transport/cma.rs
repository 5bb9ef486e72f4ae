//! Cross-memory attach: every rank copies its tasks' data out of, and into, the memory of the other ranks' processes.

use crate::coll::local_call::LocalCall;
use crate::coll::plan::Call;
use crate::coll::rank_args::RankArgs;
use crate::coll::transport::kernel;
use crate::diag::error::Result;
use crate::shm::call_context::CallContext;

/// The bytes of a part below which a system call always takes longer than staging.
const MIN: usize = 16 << 10;

/// Returns `true` if this may be faster than staging: it saves a copy, but is slow for short data, and no help to a
/// reduction, for which the CPU has to read every byte anyway. The [`tuner`](crate::shm::tuner) knows which is.
pub(in crate::coll) fn is_worthwhile(call: &Call) -> bool {
    let shape = call.function.shape();
    !shape.reduces && call.part(shape.input, 0).len() >= MIN
}

/// Does this rank's tasks.
pub(in crate::coll) fn run(call: &Call, local: &LocalCall<'_>, args: &[RankArgs]) -> Result {
    let LocalCall { context, send, recv } = *local;
    let CallContext { state, rank, .. } = context;
    let shape = call.function.shape();
    let _access = state.begin_access(rank)?;
    for task in call.tasks(rank) {
        let from = call.part(shape.input, task.input);
        let to = call.part(shape.output, task.output);
        let own = recv.slice(to.clone());
        if task.first == rank {
            own.copy(send.slice(from), kernel::is_nontemporal(call));
        } else {
            context.read(task.first, args[task.first].send, from.start, own)?;
        }
        for target in task.targets(call.ranks).filter(|target| *target != rank) {
            if target != task.first || args[target].send != args[target].recv {
                context.write(target, args[target].recv, to.start, own.as_read())?;
            }
        }
    }
    Ok(())
}
