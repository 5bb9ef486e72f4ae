//! Staged: the ranks copy their inputs through shared memory, a window at a time, one step a window.

use std::ops::Range;

use crate::coll::function::Division;
use crate::coll::local_call::LocalCall;
use crate::coll::plan::Call;
use crate::coll::rank_args::RankArgs;
use crate::coll::transport::kernel::{self, Output};
use crate::diag::error::Result;
use crate::shm::call_context::CallContext;
use crate::shm::layout::STAGE;

/// Does this rank's tasks. In each step a rank stages a window of its input, copies the results that others made of the
/// window before, and does its tasks on this one.
pub(in crate::coll) async fn run(call: &Call, local: &LocalCall<'_>, args: &[RankArgs]) -> Result {
    let LocalCall { context: CallContext { state, rank, .. }, send, recv } = *local;
    let shape = call.function.shape();
    let shares = call.shares_results();
    let cells = if shape.input == Division::Whole { 1 } else { call.ranks };
    let window = (STAGE / (cells + usize::from(shares))) & !63;
    // The parts are nearly equal, and the first one is the longest.
    let windows = call.part(shape.input, 0).len().div_ceil(window);
    let slice = |division, index, at: usize| {
        let Range { start, end } = call.part(division, index);
        (start + at * window).min(end)..(start + (at + 1) * window).min(end)
    };
    let cell = |owner, step, index, length| state.staged(owner, step, index * window, length);
    for at in 0..windows + usize::from(shares) {
        let step = state.next_step(rank).await?;
        if at < windows && call.input(rank) > 0 {
            // Input that only this rank needs stays where it is.
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
