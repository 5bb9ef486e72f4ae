//! Eager: the inputs are published with the call, and every rank computes the whole of its own result.

use crate::coll::local_call::LocalCall;
use crate::coll::plan::{Call, Task};
use crate::coll::rank_args::RankArgs;
use crate::coll::transport::kernel;
use crate::reduce::reduction::Reduction;
use crate::shm::buffer::{ReadBuf, WriteBuf};

/// Computes this rank's result from what all ranks published in `step`.
pub(in crate::coll) fn run(call: &Call, local: &LocalCall<'_>, step: u64) {
    let shape = call.function.shape();
    for task in call.writers(local.context.rank).flat_map(|writer| call.tasks(writer)) {
        let to = local.recv.slice(call.part(shape.output, task.output));
        let part = call.part(shape.input, task.input);
        match call.reduction {
            None => to.copy(input(call, local, step, to, task.first).slice(part), false),
            Some(reduction) => reduce(call, local, step, task, to, part.start, reduction),
        }
    }
}

/// Returns the input of `source`, which has one.
#[inline]
fn input(
    call: &Call,
    LocalCall { context, send, .. }: &LocalCall<'_>,
    step: u64,
    to: WriteBuf,
    source: usize,
) -> ReadBuf {
    // This rank's own buffer is nearer than its published copy, unless the result overwrites it.
    if source == context.rank && !send.overlaps(to) {
        *send
    } else {
        context.state.eager(source, step, call.buffer(call.function.shape().input))
    }
}

/// Not inlined: the compiler would prepare for it before the loops over tasks, in each call that only copies.
#[inline(never)]
fn reduce(
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
        (input(call, local, step, to, source), factor(source))
    };
    to.fill(|result| kernel::reduce(call, reduction, result, at, task.sources, source));
}
