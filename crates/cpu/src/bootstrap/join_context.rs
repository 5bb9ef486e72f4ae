//! The conditions under which a rank keeps waiting for others to join.

use crate::diag::error::Result;
use crate::shm::shared_state::SharedState;

/// The conditions of one join.
pub(crate) struct JoinContext<'a> {
    /// The name of the new communicator, in reports.
    pub(crate) name: &'a str,
    /// Returns an error if the caller has cancelled the join.
    pub(crate) check_cancelled: &'a dyn Fn() -> Result,
    /// Takes the text that says for whom this rank waits; empty if for nobody.
    pub(crate) waits_for: &'a dyn Fn(String),
    /// The communicator that the new one is made from, if any.
    pub(crate) parent: Option<ParentComm<'a>>,
}

/// A communicator to which ranks of the new one belong already.
#[derive(Debug)]
pub(crate) struct ParentComm<'a> {
    pub(crate) state: &'a SharedState,
    /// The parent's ranks that become the first ranks of the new communicator.
    pub(crate) members: &'a [usize],
    /// Set if an abort of the parent fails the join.
    pub(crate) must_be_healthy: bool,
}

impl JoinContext<'_> {
    /// Returns `true` if all `ranks` are members of the parent, which then see each other's state there.
    pub(super) fn all_are_members(&self, ranks: usize) -> bool {
        self.parent.as_ref().is_some_and(|parent| parent.members.len() == ranks)
    }

    /// Returns the name of a rank that has not joined: its number, and that in the parent.
    pub(super) fn name(&self, rank: usize) -> String {
        match self.parent.as_ref().and_then(|parent| parent.members.get(rank)) {
            Some(member) => format!("{rank} (rank {member} of the parent)"),
            None => rank.to_string(),
        }
    }

    /// Returns an error if `rank`, which has not joined, cannot join any more.
    pub(super) fn check_alive(&self, rank: usize) -> Result {
        let Some(parent) = &self.parent else { return Ok(()) };
        if parent.must_be_healthy {
            parent.state.check_abort()?;
        }
        parent.members.get(rank).map_or(Ok(()), |member| parent.state.check_alive(*member))
    }
}
