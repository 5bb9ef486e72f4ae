//! The teams of a communicator: ranks at equal distances, which include the caller.
//!
//! NCCL computes them from the ranks of each host. The LSA team is that of the ranks whose windows the caller reaches by
//! addresses. Those are all, as all are on one host; on CUDA devices, the ranks of one process, as the stand-in for CUDA maps
//! no memory of another. A team has the same size everywhere and consecutive ranks.
#![allow(unsafe_code, non_snake_case)]

use std::ffi::c_int;

use libnccl::sys::device::{ncclCftTeamMode_t, ncclTeam_t};
use libnccl::sys::ncclComm_t;

use super::ffi_guard::guard;
use crate::comm::communicator::Communicator;
use crate::comm::handle;
use crate::diag::error::Result;
use crate::shm::call_context::CallContext;

pub(super) unsafe extern "C" fn ncclTeamWorld(comm: ncclComm_t) -> ncclTeam_t {
    of_communicator(comm, |_, context| world(context)).unwrap_or(NONE)
}

pub(super) unsafe extern "C" fn ncclTeamLsa(comm: ncclComm_t) -> ncclTeam_t {
    of_communicator(comm, lsa).unwrap_or(NONE)
}

pub(super) unsafe extern "C" fn ncclTeamRail(comm: ncclComm_t) -> ncclTeam_t {
    let team = of_communicator(comm, |communicator, context| {
        outer(world(context), lsa(communicator, context).nRanks)
    });
    team.unwrap_or(NONE)
}

/// Returns the caller alone, or what divides such a team: there are no logical endpoints.
pub(super) unsafe extern "C" fn ncclTeamCft(comm: ncclComm_t, mode: ncclCftTeamMode_t) -> ncclTeam_t {
    let team = of_communicator(comm, |communicator, context| match mode {
        ncclCftTeamMode_t::NCCL_CFT_TEAM_FLAT => ALONE,
        ncclCftTeamMode_t::NCCL_CFT_TEAM_HIER_MULTIMEM => outer(ALONE, ALONE.nRanks),
        ncclCftTeamMode_t::NCCL_CFT_TEAM_HIER_LSA => outer(ALONE, lsa(communicator, context).nRanks),
        _ => NONE,
    });
    team.unwrap_or(NONE)
}

pub(super) unsafe extern "C" fn ncclTeamCftMultimem(comm: ncclComm_t) -> ncclTeam_t {
    of_communicator(comm, |_, _| ALONE).unwrap_or(NONE)
}

pub(super) unsafe extern "C" fn ncclTeamRankToWorld(
    comm: ncclComm_t,
    team: ncclTeam_t,
    rank: c_int,
) -> c_int {
    number_in(of_communicator(comm, |_, context| world(context)), team, rank)
}

pub(super) unsafe extern "C" fn ncclTeamRankToLsa(comm: ncclComm_t, team: ncclTeam_t, rank: c_int) -> c_int {
    number_in(of_communicator(comm, lsa), team, rank)
}

/// The team of what is no communicator, as that of NCCL where it fails.
const NONE: ncclTeam_t = ncclTeam_t { nRanks: 0, rank: 0, stride: 0 };

const ALONE: ncclTeam_t = ncclTeam_t { nRanks: 1, rank: 0, stride: 1 };

fn of_communicator(
    comm: ncclComm_t,
    find: impl Fn(&Communicator, CallContext<'_>) -> ncclTeam_t,
) -> Option<ncclTeam_t> {
    let mut team = None;
    guard(|| -> Result {
        let communicator = handle::get(comm)?;
        team = Some(find(&communicator, communicator.check_ready()?));
        Ok(())
    });
    team
}

fn world(CallContext { state, rank, .. }: CallContext<'_>) -> ncclTeam_t {
    ncclTeam_t { nRanks: state.ranks() as c_int, rank: rank as c_int, stride: 1 }
}

pub(super) fn lsa(communicator: &Communicator, context: CallContext<'_>) -> ncclTeam_t {
    let state = context.state;
    let size = if communicator.driver().is_none() || state.is_one_process() {
        state.ranks()
    } else {
        let processes: Vec<_> = (0..state.ranks()).map(|rank| state.process(rank)).collect();
        common_length(&processes)
    };
    ncclTeam_t { nRanks: size as c_int, rank: (context.rank % size) as c_int, stride: 1 }
}

/// Returns the greatest length into which all runs of equal neighbours can be divided.
fn common_length<T: PartialEq>(all: &[T]) -> usize {
    all.chunk_by(PartialEq::eq).map(<[T]>::len).fold(0, greatest_common_divisor)
}

fn greatest_common_divisor(a: usize, b: usize) -> usize {
    if b == 0 { a } else { greatest_common_divisor(b, a % b) }
}

/// Returns the ranks of `team` that have the caller's number in parts of `size` ranks.
fn outer(team: ncclTeam_t, size: c_int) -> ncclTeam_t {
    ncclTeam_t { nRanks: team.nRanks / size, rank: team.rank / size, stride: team.stride * size }
}

/// Returns the number in `own` of rank `rank` of `team`, both of which the caller is in, as NCCL computes it of any numbers; -1
/// without a communicator.
fn number_in(own: Option<ncclTeam_t>, team: ncclTeam_t, rank: c_int) -> c_int {
    let distance = rank.wrapping_sub(team.rank).wrapping_mul(team.stride);
    own.map_or(-1, |own| own.rank.wrapping_add(distance))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lsa_team_of_processes_is_of_one_size_and_in_one_process() {
        for (processes, expected) in [
            ("aaaa", 4),
            ("aabb", 2),
            ("aaaabb", 2),
            ("aaabb", 1),
            ("abab", 1),
            ("aabbaa", 2),
            ("aaaaaabbbbbbcccccc", 6),
            ("aaaaaabbbcccccccccccc", 3),
        ] {
            assert_eq!(common_length(processes.as_bytes()), expected, "{processes}");
        }
    }
}
