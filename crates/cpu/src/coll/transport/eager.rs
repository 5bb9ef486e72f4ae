//! Eager: the inputs are published with the call, and every rank computes the whole of its own result.

use crate::coll::local_call::LocalCall;
use crate::coll::plan::{Call, Task};
use crate::coll::rank_args::RankArgs;
use crate::coll::transport::kernel;
use crate::reduce::reduction::Reduction;
use crate::shm::call_context::CallContext;

/// Computes this rank's result from what all ranks published in `step`.
pub(in crate::coll) fn run(call: &Call, local: &LocalCall<'_>, step: u64) {
    for writer in call.writers(local.context.rank) {
        for task in call.tasks(writer) {
            run_task(call, local, step, task);
        }
    }
}

fn run_task(call: &Call, LocalCall { context, send, recv }: &LocalCall<'_>, step: u64, task: Task) {
    let CallContext { state, rank, .. } = *context;
    let shape = call.function.shape();
    let from = call.part(shape.input, task.input);
    let to = recv.slice(call.part(shape.output, task.output));
    let input = |source| {
        // This rank's own buffer is nearer than its published copy, unless the result overwrites it.
        let whole = if source == rank && !send.overlaps(to) {
            *send
        } else {
            state.eager(source, step, call.input(source))
        };
        whole.slice(from.clone())
    };
    let Some(reduction) = call.reduction else {
        return to.copy(input(task.first), false);
    };
    let common = call.factor();
    let factor = |source| match reduction {
        Reduction::PreMulSum(_) => RankArgs::from_words(state.rank_args(source, step), true).factor,
        _ => common,
    };
    let input = |source| (input(source), factor(source));
    to.fill(|result| kernel::reduce(call, reduction, result, 0, task.sources(call.ranks).map(input)));
}
