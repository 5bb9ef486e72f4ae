//! Cross-memory attach: every rank copies its tasks' data out of, and into, the memory of the other ranks' processes.

use std::cell::Cell;

use crate::coll::local_call::LocalCall;
use crate::coll::plan::{Call, Task};
use crate::coll::rank_args::RankArgs;
use crate::coll::sizes::{CMA_BLOCK, CMA_MIN, CMA_MIN_OF_REDUCTION};
use crate::coll::transport::kernel;
use crate::diag::error::Result;
use crate::reduce::reduction::Reduction;
use crate::shm::call_context::CallContext;

/// Returns `true` if this may be faster than staging: it saves a copy, but is slow for short data. The
/// [`tuner`](crate::shm::tuner) knows which is.
pub(in crate::coll) fn is_worthwhile(call: &Call) -> bool {
    let shape = call.function.shape();
    call.part(shape.input, 0).len() >= if shape.operation.reduces { CMA_MIN_OF_REDUCTION } else { CMA_MIN }
}

/// Does this rank's tasks.
pub(in crate::coll) fn run(call: &Call, local: &LocalCall<'_>, args: &[RankArgs]) -> Result {
    let CallContext { state, rank, .. } = local.context;
    let _access = state.begin_access(rank)?;
    call.tasks(rank).try_for_each(|task| match call.reduction {
        Some(reduction) => reduce(call, local, args, task, reduction),
        None => copy(call, local, args, task),
    })
}

fn copy(call: &Call, local: &LocalCall<'_>, args: &[RankArgs], task: Task) -> Result {
    let LocalCall { context, send, recv } = *local;
    let (shape, rank) = (call.function.shape(), context.rank);
    let (from, to) = (call.part(shape.input, task.input), call.part(shape.output, task.output));
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
    Ok(())
}

/// Reduces by blocks, which are read into this rank's staging buffer: nobody else uses it in this call, and what was staged
/// there before has been read, as all ranks have begun this call.
fn reduce(call: &Call, local: &LocalCall<'_>, args: &[RankArgs], task: Task, reduction: Reduction) -> Result {
    let LocalCall { context, send, recv } = *local;
    let (shape, state, rank) = (call.function.shape(), context.state, context.rank);
    let (from, to) = (call.part(shape.input, task.input), call.part(shape.output, task.output));
    let scratch = |slot, length| state.staged(rank, 0, slot * CMA_BLOCK, length);
    let is_target = task.targets(call.ranks).any(|target| target == rank);
    for at in (0..from.len()).step_by(CMA_BLOCK) {
        let part = at..from.len().min(at + CMA_BLOCK);
        let failed = Cell::new(None);
        // The first two are needed at a time, and the others one by one.
        let source = |index| {
            let source = task.source(index, call.ranks);
            let start = from.start + part.start;
            let block = if source == rank {
                send.slice(start..start + part.len())
            } else {
                let (block, memory) = scratch(index % 2, part.len());
                context
                    .read(source, args[source].send, start, memory)
                    .unwrap_or_else(|error| failed.set(Some(error)));
                block
            };
            (block, args[source].factor)
        };
        let start = to.start + part.start;
        let own = is_target.then(|| recv.slice(start..start + part.len()));
        let result = own.filter(|own| !send.overlaps(*own)).unwrap_or_else(|| scratch(2, part.len()).1);
        result.fill(|result| kernel::reduce(call, reduction, result, 0, task.sources, source));
        if let Some(error) = failed.take() {
            return Err(error);
        }
        if let Some(own) = own {
            own.copy(result.as_read(), false);
        }
        for target in task.targets(call.ranks).filter(|target| *target != rank) {
            context.write(target, args[target].recv, start, result.as_read())?;
        }
    }
    Ok(())
}
