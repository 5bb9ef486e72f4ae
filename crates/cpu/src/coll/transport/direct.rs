//! Direct: every rank does its tasks on the ranks' own buffers, mapped if they belong to another process.

use crate::coll::local_call::LocalCall;
use crate::coll::plan::Call;
use crate::coll::rank_args::RankArgs;
use crate::coll::transport::kernel::{self, Output};
use crate::diag::error::Result;
use crate::shm::call_context::CallContext;

/// Does this rank's tasks.
pub(in crate::coll) fn run(call: &Call, local: &LocalCall<'_>, args: &[RankArgs]) -> Result {
    let LocalCall { context, send, recv } = *local;
    let CallContext { state, rank, .. } = context;
    let shape = call.function.shape();
    let _access = state.begin_access(rank)?;
    for task in call.tasks(rank) {
        let (from, to) = (call.part(shape.input, task.input), call.part(shape.output, task.output));
        let source = |source: usize| {
            let whole = if source == rank {
                send
            } else {
                context.read_buf(source, args[source].send, call.input(source))?
            };
            Ok((whole.slice(from.clone()), args[source].factor))
        };
        let target = |target: usize| {
            let whole = if target == rank {
                recv
            } else {
                context.write_buf(target, args[target].recv, call.output(target))?
            };
            let nontemporal = kernel::is_nontemporal(call);
            Ok(Output { memory: whole.slice(to.clone()), nontemporal, is_own: target == rank })
        };
        // The data is already there.
        let is_in_place = |target: &usize| {
            let RankArgs { send, recv, .. } = args[*target];
            !shape.operation.reduces && *target != rank && *target == task.first && send == recv
        };
        let sources: Vec<_> = task.sources(call.ranks).map(source).collect::<Result<_>>()?;
        let targets = task.targets(call.ranks).filter(|target| !is_in_place(target));
        let targets: Vec<_> = targets.map(target).collect::<Result<_>>()?;
        kernel::run(call, &sources, &targets);
    }
    Ok(())
}
