//! Collectives with a config for one call, and cost estimates of groups.

use std::ffi::c_void;
use std::ptr;

use crate::common::{
    self, ARGUMENT, Comm, I32, Mode, OK, STREAM, SUM, USAGE, alone, assert_last_error, init, last_error,
};
use libnccl::sys::{ncclCollConfig_t, ncclComm_t, ncclResult_t, ncclSimInfo_t};

/// Calls the collective of index `number`, with one element per rank.
fn call(
    number: usize,
    send: *mut c_void,
    receive: *mut c_void,
    comm: ncclComm_t,
    config: *const ncclCollConfig_t,
) -> ncclResult_t {
    match number {
        0 => nccl!(ncclAllReduceConfig(send, receive, 1, I32, SUM, comm, STREAM, config)),
        1 => nccl!(ncclBroadcastConfig(send, receive, 1, I32, 1, comm, STREAM, config)),
        2 => nccl!(ncclReduceConfig(send, receive, 1, I32, SUM, 1, comm, STREAM, config)),
        3 => nccl!(ncclAllGatherConfig(send, receive, 1, I32, comm, STREAM, config)),
        4 => nccl!(ncclReduceScatterConfig(send, receive, 1, I32, SUM, comm, STREAM, config)),
        5 => nccl!(ncclAlltoAllConfig(send, receive, 1, I32, comm, STREAM, config)),
        6 => nccl!(ncclGatherConfig(send, receive, 1, I32, 1, comm, STREAM, config)),
        _ => nccl!(ncclScatterConfig(send, receive, 1, I32, 1, comm, STREAM, config)),
    }
}

#[test]
fn malformed_collective_config_is_invalid_argument() {
    let _alone = alone();
    let comms = init(Mode::Group, 1);
    let Comm(comm) = comms[0];
    let mut memory = [0i32; 2];
    let place = memory.as_mut_ptr().cast();
    let refused = |change: &dyn Fn(&mut ncclCollConfig_t)| {
        let mut config = ncclCollConfig_t::initializer();
        change(&mut config);
        for number in 0..8 {
            assert_eq!(call(number, place, place, comm, &config), ARGUMENT, "{number}");
        }
        last_error()
    };
    assert!(refused(&|config| config.magic = 0).contains("the magic of the collective's config is 0x0"));
    for size in [0, 11] {
        assert!(refused(&|config| config.size = size).contains("has to have 12 or more"));
    }
    for policy in [4, 99, -1] {
        assert!(refused(&|config| config.CTAPolicy = policy).contains("at least 0 and at most 3"));
    }
    for force in [2, -1, i32::MIN] {
        assert!(refused(&|config| config.forceAlgSelection = force).contains("it has to be 0 or 1"));
    }
    // As from the header of NCCL 2.31.2.
    let short = ncclCollConfig_t { size: 64, version: 23102, ..ncclCollConfig_t::initializer() };
    assert_eq!(call(0, place, place, comm, &short), OK);
    // In a group it cancels the group, and the error names the function.
    let bad = ncclCollConfig_t { magic: 1, ..ncclCollConfig_t::initializer() };
    assert_eq!(nccl!(ncclGroupStart()), OK);
    assert_eq!(call(3, place, place, comm, &bad), ARGUMENT);
    assert_eq!(nccl!(ncclGroupEnd()), ARGUMENT);
    assert_last_error("ncclAllGatherConfig in this group failed");
    comms[0].destroy();
}

#[test]
fn simulated_group_returns_estimate_without_running() {
    let _alone = alone();
    let comms = init(Mode::Group, 2);
    let Comm(comm) = comms[0];
    let mut buffer = vec![1i32; 1 << 20];
    let place: *mut c_void = buffer.as_mut_ptr().cast();
    let estimate = |count: usize, calls: usize| {
        let mut info = ncclSimInfo_t::initializer();
        assert_eq!(nccl!(ncclGroupStart()), OK);
        for _ in 0..calls {
            // Only this rank: if it were launched, it would never end.
            assert_eq!(nccl!(ncclAllReduce(place, place, count, I32, SUM, comm, STREAM)), OK);
        }
        assert_eq!(nccl!(ncclGroupSimulateEnd(&mut info)), OK, "{}", last_error());
        info.estimatedTime
    };
    assert_eq!(estimate(1, 0), -1.0, "an empty group");
    let (short, two, long) = (estimate(1, 1), estimate(1, 2), estimate(1 << 20, 1));
    for (time, least, most) in [(short, 0.0, 100.0), (two, short, 2.0 * short), (long, 10.0 * short, 1e6)] {
        assert!(least < time, "{time} microseconds, above {least}");
        assert!(time <= most, "{time} microseconds, at most {most}");
    }
    // The end of an inner group does not end the outer one.
    let mut info = ncclSimInfo_t::initializer();
    assert_eq!(nccl!(ncclGroupStart()), OK);
    assert_eq!(nccl!(ncclGroupStart()), OK);
    assert_eq!(nccl!(ncclSend(place, 1, I32, 1, comm, STREAM)), OK);
    assert_eq!(nccl!(ncclGroupSimulateEnd(&mut info)), OK);
    assert_eq!(info.estimatedTime, -1.0);
    assert_eq!(nccl!(ncclGroupSimulateEnd(&mut info)), OK);
    assert!(info.estimatedTime > 0.0);
    comms.into_iter().for_each(Comm::destroy);
}

#[test]
fn group_simulate_end_misuse_returns_error() {
    let _alone = alone();
    let mut info = ncclSimInfo_t::initializer();
    assert_eq!(nccl!(ncclGroupSimulateEnd(&mut info)), USAGE, "not in a group");
    assert_last_error("ncclGroupSimulateEnd: not in a group call");
    assert_eq!(nccl!(ncclGroupStart()), OK);
    assert_eq!(nccl!(ncclGroupSimulateEnd(ptr::null_mut())), OK);
    let ends_with_error = |wrong: ncclSimInfo_t| {
        let mut info = wrong;
        assert_eq!(nccl!(ncclGroupStart()), OK);
        assert_eq!(nccl!(ncclGroupSimulateEnd(&mut info)), ARGUMENT);
        assert_last_error("NCCL_SIM_INFO_INITIALIZER");
        assert_eq!(nccl!(ncclGroupEnd()), USAGE, "the group has ended all the same");
    };
    ends_with_error(ncclSimInfo_t { magic: 0xcafe_beef, ..info });
    ends_with_error(ncclSimInfo_t { size: 11, ..info });
    // A failed call in the group is reported, and cancels the group.
    assert_eq!(nccl!(ncclGroupStart()), OK);
    assert_eq!(nccl!(ncclSend(ptr::null(), 1, I32, 0, ptr::null_mut(), STREAM)), ARGUMENT);
    assert_eq!(nccl!(ncclGroupSimulateEnd(&mut info)), ARGUMENT);
    assert_eq!(nccl!(ncclGroupEnd()), USAGE);
    // A communicator cannot be created in a simulation.
    let (mut comm, id) = (ptr::null_mut(), common::unique_id());
    assert_eq!(nccl!(ncclGroupStart()), OK);
    assert_eq!(nccl!(ncclCommInitRank(&mut comm, 1, id, 0)), OK);
    assert_eq!(nccl!(ncclGroupSimulateEnd(&mut info)), USAGE);
    assert!(comm.is_null());
}
