//! Eager: the inputs are published with the call, and every rank computes the whole of its own result.

use crate::coll::local_call::LocalCall;
use crate::coll::plan::{Call, Task};
use crate::coll::rank_args::RankArgs;
use crate::coll::transport::kernel;
use crate::reduce::reduction::Reduction;
use crate::shm::buffer::{ReadBuf, WriteBuf};

/// Computes this rank's result from what all ranks published in `step`.
pub(in crate::coll) fn run(call: &Call, local: &LocalCall<'_>, step: u64) {
    for writer in call.writers(local.context.rank) {
        for task in call.tasks(writer) {
            run_task(call, local, step, task);
        }
    }
}

fn run_task(call: &Call, local: &LocalCall<'_>, step: u64, task: Task) {
    let to = local.recv.slice(call.part(call.function.shape().output, task.output));
    match call.reduction {
        None => to.copy(input(call, local, step, task, to, task.first), false),
        Some(reduction) => reduce(call, local, step, task, to, reduction),
    }
}

/// Returns the part of the input of `source` that a task uses.
#[inline]
fn input(
    call: &Call,
    LocalCall { context, send, .. }: &LocalCall<'_>,
    step: u64,
    task: Task,
    to: WriteBuf,
    source: usize,
) -> ReadBuf {
    // This rank's own buffer is nearer than its published copy, unless the result overwrites it.
    let whole = if source == context.rank && !send.overlaps(to) {
        *send
    } else {
        context.state.eager(source, step, call.input(source))
    };
    whole.slice(call.part(call.function.shape().input, task.input))
}

/// Not inlined: the compiler would prepare for it before the loops over tasks, in each call that only copies.
#[inline(never)]
fn reduce(call: &Call, local: &LocalCall<'_>, step: u64, task: Task, to: WriteBuf, reduction: Reduction) {
    let state = local.context.state;
    let common = call.factor();
    let factor = |source| match reduction {
        Reduction::PreMulSum(_) => RankArgs::from_words(state.rank_args(source, step), true).factor,
        _ => common,
    };
    let source = |index| {
        let source = task.source(index, call.ranks);
        (input(call, local, step, task, to, source), factor(source))
    };
    to.fill(|result| kernel::reduce(call, reduction, result, 0, task.sources, source));
}
