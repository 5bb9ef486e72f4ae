//! The report of messages that nobody received, when a rank leaves.
//!
//! A rank that leaves knows which messages were sent to it, and which of its own are left in the mailbox of a rank that
//! has left before. A message in the mailbox of a rank that is still there may yet be received: that rank will know.

use std::sync::atomic::Ordering::SeqCst;

use crate::coll::call_header::CallHeader;
use crate::coll::point_to_point;
use crate::diag::finding::Finding;
use crate::diag::report;
use crate::shm::mailbox::Mailbox;
use crate::shm::shared_state::SharedState;
use crate::sync::primitive::fence;

/// Calls that a report names at most.
const MAX_NAMED: usize = 8;

/// Reports the messages that nobody received and that `rank`, which has departed just now, knows of.
pub(crate) fn report(state: &SharedState, rank: usize) {
    // Of two ranks that leave at the same time, at least one sees that of the other.
    fence(SeqCst);
    for peer in 0..state.ranks() {
        report_mailbox(state, peer, rank, rank);
        if peer != rank && state.has_departed(peer) {
            report_mailbox(state, rank, peer, rank);
        }
    }
}

/// Reports the messages in the mailbox from `sender` to `receiver`, one of which is `rank`.
fn report_mailbox(state: &SharedState, sender: usize, receiver: usize, rank: usize) {
    let Some(mailbox) = Mailbox::of_sent(state, sender, receiver) else { return };
    let sends = point_to_point::unread(&mailbox, receiver);
    let messages = match sends.len() {
        0 => return,
        1 => format!("a message of rank {sender} was"),
        many => format!("{many} messages of rank {sender} were"),
    };
    let mut kinds: Vec<(CallHeader, usize)> = vec![];
    for send in sends {
        match kinds.iter_mut().find(|(kind, _)| *kind == send) {
            Some((_, number)) => *number += 1,
            None => kinds.push((send, 1)),
        }
    }
    let more = if kinds.len() > MAX_NAMED { ", ..." } else { "" };
    let named: Vec<String> =
        kinds.iter().take(MAX_NAMED).map(|(send, number)| format!("{number} x {send}")).collect();
    let text = format!(
        "in {}, rank {rank} of {} leaves, and {messages} never received by rank {receiver}: {}{more}",
        state.name(),
        state.ranks(),
        named.join(", ")
    );
    report::report(Finding::UnreceivedMessage, rank, &text);
}
