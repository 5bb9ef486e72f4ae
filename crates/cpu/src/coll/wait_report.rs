//! The report of a long wait: which rank waits for which, in which call, and the current calls of the awaited ranks.
//!
//! The call in which a rank waits is available only inside its operation, which is polled. A thread that has waited for long
//! therefore sets a flag, and each of its pending operations adds its description at the next poll.

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::mem::ManuallyDrop;
use std::time::Duration;

use cuda_common::finding::Finding;
use libnccl::sys::ncclResult_t;

use crate::coll::call::{CallHeader, PeerCall};
use crate::coll::operation::BoxedOperation;
use crate::diag::error::{Error, Result};
use crate::diag::report;
use crate::diag::settings::{STRICT, TIMEOUT, WARN_AFTER};
use crate::shm::call_context::CallContext;
use crate::shm::layout::MESSAGE_MAX;
use crate::shm::liveness;
use crate::shm::process::Process;
use crate::shm::shared_state::SharedState;

thread_local! {
    static IS_ASKED: Cell<bool> = const { Cell::new(false) };
    /// Without a destructor, so that the list lasts as long as the thread. [`WaitReport`] empties it.
    static ANSWERS: RefCell<ManuallyDrop<Vec<Wait>>> = const { RefCell::new(ManuallyDrop::new(Vec::new())) };
}

struct Wait {
    communicator: String,
    rank: usize,
    /// One of the awaited ranks.
    late: usize,
    text: String,
}

const MAX_NAMED: usize = 8;

/// Runs an operation. Meanwhile, other ranks can see its call, and the operation describes its wait if the thread waits for long.
pub(crate) async fn run(
    mut running: BoxedOperation<'_>,
    header: CallHeader,
    context: CallContext<'_>,
) -> Result {
    let number = context.state.begin_call(context.rank, header.encode());
    let mut has_answered = false;
    let result = poll_fn(|waker| {
        let polled = running.as_mut().poll(waker);
        if polled.is_pending() && IS_ASKED.get() && !std::mem::replace(&mut has_answered, true) {
            ANSWERS.with_borrow_mut(|answers| answers.push(Wait::new(number, header, context)));
        }
        polled
    })
    .await;
    context.state.end_call(context.rank);
    result.map_err(|error| name_call(error, number, header, context))
}

/// Adds to a remote error the call that failed, because a group or a stream may have many calls.
#[cold]
pub(crate) fn name_call(error: Error, number: u64, header: CallHeader, context: CallContext<'_>) -> Error {
    if error.code != ncclResult_t::ncclRemoteError {
        return error;
    }
    let CallContext { state, rank, .. } = context;
    Error::remote(format!("{}; rank {rank} of {} was in call {number}, {header}", error.text, state.ranks()))
}

fn take_answers() -> Vec<Wait> {
    ANSWERS.with_borrow_mut(|answers| std::mem::take(&mut **answers))
}

#[derive(Default)]
pub(crate) struct WaitReport {
    is_done: bool,
    waits: Vec<Wait>,
}

impl Drop for WaitReport {
    /// Discards descriptions that were added after the wait ended.
    fn drop(&mut self) {
        if IS_ASKED.replace(false) {
            drop(take_answers());
        }
    }
}

impl WaitReport {
    /// Reports a long wait, and marks all ranks in `waiting` as timed out at the limit. Must be called periodically while this
    /// thread waits. `waited` is the time without progress.
    pub(crate) fn check<'a>(
        &mut self,
        waited: Duration,
        waiting: impl IntoIterator<Item = (&'a SharedState, usize)>,
    ) {
        let Some(is_late) = self.due(waited) else { return };
        if !self.is_done && !IS_ASKED.replace(true) {
            return;
        }
        IS_ASKED.set(false);
        if !self.is_done {
            self.waits = take_answers();
            self.waits.iter().for_each(|wait| wait.report(waited));
        }
        self.is_done = true;
        if is_late {
            for (state, rank) in waiting {
                let own = |wait: &&Wait| wait.communicator == state.name() && wait.rank == rank;
                let late = self.waits.iter().find(own).map_or_else(liveness::awaited, |wait| wait.late);
                state.set_timed_out(rank, late);
            }
        }
    }

    /// Like [`check`](Self::check), for a thread that waits only in this call.
    pub(crate) fn check_call(
        &mut self,
        waited: Duration,
        number: u64,
        header: CallHeader,
        context: CallContext<'_>,
    ) {
        let Some(is_late) = self.due(waited) else { return };
        if self.is_done && !is_late {
            return;
        }
        let wait = Wait::new(number, header, context);
        if !std::mem::replace(&mut self.is_done, true) {
            wait.report(waited);
        }
        if is_late {
            context.state.set_timed_out(context.rank, wait.late);
        }
    }

    /// Returns `None` if there is nothing to report yet, and otherwise whether the wait has timed out.
    fn due(&mut self, waited: Duration) -> Option<bool> {
        let is_late = TIMEOUT.is_some_and(|limit| waited >= limit);
        if !is_late && WARN_AFTER.is_none_or(|limit| waited < limit) {
            self.is_done = false;
            return None;
        }
        Some(is_late)
    }
}

impl Wait {
    fn new(number: u64, header: CallHeader, context: CallContext<'_>) -> Self {
        let CallContext { state, rank, .. } = context;
        let mut late = match header {
            CallHeader::PointToPoint { .. } => vec![],
            _ => state.ranks_behind(rank),
        };
        if late.is_empty() {
            late.push(liveness::awaited());
        }
        let text = describe_late(number, header, &late, context);
        Self { communicator: state.name().into(), rank, late: late[0], text }
    }

    fn report(&self, waited: Duration) {
        let text = format!("after {:.1} s, in {}, {}", waited.as_secs_f64(), self.communicator, self.text);
        report::report(Finding::LateRank, self.rank, &text);
    }
}

/// Describes the ranks that the call in progress waits for. Can be called on any thread. Returns `None` if no call is in
/// progress, or if no rank is behind this rank.
pub(crate) fn describe_running(context: CallContext<'_>) -> Option<String> {
    let CallContext { state, rank, .. } = context;
    let header = CallHeader::running(state, rank)?;
    let late = match header {
        CallHeader::PointToPoint { peer, .. } => vec![peer as usize],
        _ => state.ranks_behind(rank),
    };
    let are_ranks = !late.is_empty() && late.iter().all(|late| *late < state.ranks());
    are_ranks.then(|| describe_late(state.calls(rank), header, &late, context))
}

fn describe_late(
    number: u64,
    header: CallHeader,
    late: &[usize],
    CallContext { state, rank, .. }: CallContext<'_>,
) -> String {
    let named = late.iter().take(MAX_NAMED).map(|late| describe_peer(state, rank, *late)).collect::<Vec<_>>();
    let more = late.len().saturating_sub(MAX_NAMED);
    let more = if more == 0 { String::new() } else { format!("; and for {more} more") };
    format!(
        "rank {rank} of {} still waits in call {number}, {header}, for {}{more}{}",
        state.ranks(),
        named.join("; for "),
        explain(header, state)
    )
}

/// Explains why a send waits here but not in NCCL. Returns an empty string for other calls.
fn explain(header: CallHeader, state: &SharedState) -> String {
    let CallHeader::PointToPoint { call: PeerCall::Send, .. } = header else { return String::new() };
    if *STRICT {
        return " (LIBNCCL_CPU_STRICT is 1: every send waits for its receiver)".into();
    }
    format!(
        " (NCCL would queue the send on its stream; here it returns immediately only if it has at most \
         {MESSAGE_MAX} bytes and fits, with all that the peer has not received, into {} bytes)",
        state.mailbox_size()
    )
}

fn describe_peer(state: &SharedState, rank: usize, peer: usize) -> String {
    let (number, (words, runs)) = (state.calls(peer), state.last_call(peer));
    let last = CallHeader::decode(words);
    let call = match number {
        0 => "which has called nothing on this communicator".into(),
        _ if runs => format!("which is in call {number}, {last}"),
        _ => format!("which has called nothing since call {number}, {last}"),
    };
    let process = state.process(peer);
    let elsewhere = if runs { None } else { call_elsewhere(state, process) };
    let elsewhere = elsewhere
        .map_or_else(String::new, |call| format!("; its process is in {call} on another communicator"));
    let failure = if runs { None } else { state.failed_call(peer) };
    let failure = failure.map_or_else(String::new, |text| format!(", and whose last call failed: {text}"));
    let condition = process.condition().map_or_else(String::new, |condition| format!(" and {condition}"));
    let group = if state.is_in_group(peer) {
        ", and has calls in a group that has not ended: ncclGroupEnd is missing, or late"
    } else if !runs && state.have_one_maker(rank, peer) {
        ", and belongs to the same thread: a thread with several ranks must make their calls in one group, from ncclGroupStart to \
         ncclGroupEnd"
    } else {
        ""
    };
    format!("rank {peer} (process {}), {call}{failure}{group}{elsewhere}{condition}", process.pid)
}

/// Returns the call that a process is running on another communicator than `state`. Finds only communicators of this process.
fn call_elsewhere(state: &SharedState, process: Process) -> Option<CallHeader> {
    SharedState::registered().iter().filter(|other| !std::ptr::eq(&***other, state)).find_map(|other| {
        let mut own = (0..other.ranks()).filter(|rank| other.process(*rank) == process);
        own.find_map(|rank| CallHeader::running(other, rank))
    })
}
