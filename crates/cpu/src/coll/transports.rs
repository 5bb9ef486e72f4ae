//! Transports: how the bytes of a collective are moved. All transports follow the same [plan](super::plan), so a result does not depend on
//! size, memory, or the number of processes.
//!
//! - Eager: the inputs are published with the call, and every rank computes its whole result.
//! - Direct: every rank runs its tasks on the ranks' own buffers. Buffers of other processes are mapped.
//! - Staged: the ranks copy their inputs through shared memory, one window per step.

use std::ops::Range;

use crate::coll::function::Division;
use crate::coll::kernel::{self, Output};
use crate::coll::plan::LocalCall;
use crate::coll::plan::RankArgs;
use crate::coll::plan::{Call, Task};
use crate::diag::error::Result;
use crate::reduce::reduction::Reduction;
use crate::shm::buffer::{ReadBuf, WriteBuf};
use crate::shm::call_context::CallContext;
use crate::shm::layout::STAGE;

/// Computes this rank's result from the inputs that all ranks published in `step`.
pub(super) fn run_eager(call: &Call, local: &LocalCall<'_>, step: u64) {
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

/// Not inlined: otherwise the compiler hoists its setup before the loop over tasks, which slows calls that only copy.
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
    to.fill(|result| kernel::reduce(call, reduction, result, at, task.sources, source));
}

/// Number of bytes of a task after which a rank checks whether the communicator was aborted. An abort waits for this check.
const STRETCH: usize = 4 << 20;

/// Runs this rank's tasks.
pub(super) fn run_direct(call: &Call, local: &LocalCall<'_>, args: &[RankArgs]) -> Result {
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
            let nontemporal = kernel::is_nontemporal(call);
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
            kernel::run(call, &sources, &targets);
        }
    }
    Ok(())
}

/// Runs this rank's tasks. In each step, a rank stages a window of its input, copies the other ranks' results of the previous window, and
/// runs its tasks on the current window.
pub(super) async fn run_staged(call: &Call, local: &LocalCall<'_>, args: &[RankArgs]) -> Result {
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
                let (_, to) = cell(rank, step, index, from.len());
                to.copy(send.slice(from), false);
            }
        }
        state.announce(rank, step);
        state.wait_all(rank, step).await?;
        if shares && at > 0 && call.output(rank) > 0 {
            for writer in (rank + 1..call.ranks).chain(0..rank) {
                let to = slice(shape.output, writer, at - 1);
                let (from, _) = cell(writer, step - 1, cells, to.len());
                recv.slice(to).copy(from, kernel::is_nontemporal(call));
            }
        }
        for task in call.tasks(rank).filter(|_| at < windows) {
            let from = slice(shape.input, task.input, at);
            let to = slice(shape.output, task.output, at);
            let source = |source| {
                let index = if shape.input == Division::Whole { 0 } else { task.input };
                let (staged, _) = cell(source, step, index, from.len());
                (if source == rank { send.slice(from.clone()) } else { staged }, args[source].factor)
            };
            let sources: Vec<_> = task.sources(call.ranks).map(source).collect();
            let mut targets = vec![];
            if task.target != Some(rank) {
                let (_, memory) = cell(rank, step, cells, to.len());
                targets.push(Output { memory, nontemporal: false, is_own: false });
            }
            if task.target.is_none_or(|target| target == rank) {
                let nontemporal = kernel::is_nontemporal(call);
                targets.push(Output { memory: recv.slice(to), nontemporal, is_own: true });
            }
            kernel::run(call, &sources, &targets);
        }
    }
    Ok(())
}
