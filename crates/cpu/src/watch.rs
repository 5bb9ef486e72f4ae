//! What a rank looks after while it waits for others to come to a new communicator.

use libnccl::sys::ncclResult_t;

use crate::communicator::{Communicator, Membership, Stop};
use crate::failure::{Failure, Result};

pub(crate) struct Watch<'a> {
    communicator: &'a Communicator,
    kin: Option<Kin<'a>>,
}

/// Ranks that are known from the communicator that the new one is made from.
struct Kin<'a> {
    parent: &'a Communicator,
    membership: &'a Membership,
    stopped: Option<Stop>,
    /// The numbers there of the first ranks here.
    members: &'a [usize],
    /// Whether the parent has to stay without an alarm.
    alarms: bool,
}

impl<'a> Watch<'a> {
    /// Nothing is known of the other ranks.
    pub(crate) fn new(communicator: &'a Communicator) -> Self {
        Self { communicator, kin: None }
    }

    /// The first ranks are `members` of the parent. `alarms`: it has to stay healthy meanwhile.
    pub(crate) fn with_kin(
        communicator: &'a Communicator,
        parent: &'a Communicator,
        membership: &'a Membership,
        members: &'a [usize],
        alarms: bool,
    ) -> Self {
        let stopped = parent.stopped();
        Self { communicator, kin: Some(Kin { parent, membership, stopped, members, alarms }) }
    }

    /// Whether this rank is to go on waiting.
    pub(crate) fn go_on(&self) -> Result {
        let ended = |what| Err(Failure::remote(format!("the communicator was {what} while its ranks met")));
        if self.communicator.is_cancelled() {
            return ended("aborted or destroyed");
        }
        match &self.kin {
            Some(kin) if kin.parent.is_cancelled() => ended("aborted or destroyed"),
            Some(kin) if kin.parent.stopped() != kin.stopped => ended("revoked"),
            _ => Ok(()),
        }
    }

    /// Has those who still [`expect`](Self::expect) this rank know that it will not come. What another one did, they
    /// see for themselves; but not what is this one's own trouble, and then it is out of step with its parent, too.
    pub(crate) fn stay_away(&self, failure: &Failure) {
        let Some(Kin { parent, membership, .. }) = &self.kin else { return };
        if failure.code == ncclResult_t::ncclSystemError || self.communicator.is_cancelled() {
            parent.fail(failure);
            membership.world.leave(membership.rank);
        }
    }

    /// Whether all `ranks` are known.
    pub(crate) fn knows(&self, ranks: usize) -> bool {
        self.kin.as_ref().is_some_and(|kin| kin.members.len() == ranks)
    }

    /// Whether `rank`, which has not come, still can.
    pub(crate) fn expect(&self, rank: usize) -> Result {
        let Some(kin) = &self.kin else { return Ok(()) };
        let world = &kin.membership.world;
        if kin.alarms {
            world.alarmed()?;
        }
        kin.members.get(rank).map_or(Ok(()), |member| world.lives(*member))
    }
}
