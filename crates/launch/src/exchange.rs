//! One exchange of an id, as a rank takes part in it.

use super::connection::Deadline;
use super::environment::Environment;
use super::error::LaunchError;
use super::job::Name;
use super::rendezvous::Rendezvous;

pub(super) struct Exchange<'a> {
    pub(super) environment: &'a Environment,
    pub(super) rendezvous: &'a Rendezvous,
    /// The name of the communicator.
    pub(super) name: Name,
    pub(super) deadline: Deadline,
}

impl Exchange<'_> {
    pub(super) fn problem(&self, problem: String) -> LaunchError {
        LaunchError::Rendezvous { rendezvous: Box::new(self.rendezvous.clone()), problem: problem.into() }
    }

    /// Returns the error of an exchange with the number of `missing` ranks, of which `ranks` are the first.
    pub(super) fn missing_ranks(
        &self,
        ranks: &[u32],
        missing: u32,
        detail: impl Into<Box<str>>,
    ) -> LaunchError {
        LaunchError::MissingRanks {
            ranks: ranks.iter().map(|rank| *rank as usize).collect(),
            missing: missing as usize,
            size: self.environment.ranks.size as usize,
            elapsed: self.deadline.elapsed(),
            detail: detail.into(),
        }
    }
}
