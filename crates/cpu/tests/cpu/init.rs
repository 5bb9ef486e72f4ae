//! Initialization: ids, configs and failures.

use std::ptr;
use std::thread;
use std::time::Duration;

use libnccl::sys::ncclResult_t;

use crate::common::processes::{RankProcess, finish, resume, spawn, stop};
use crate::common::{
    ARGUMENT, Comm, I32, Memory, OK, REMOTE, STREAM, USAGE, all_reduce, alone, assert_last_error, in_group,
    init, init_nonblocking, init_rank, init_with, last_error, on_threads, unique_id, wait_async,
    wait_for_peers,
};

rank_tasks!(fail_init);

#[test]
fn null_handle_of_object_pending_in_open_group_is_explained() {
    let (_alone, parent, none) = (alone(), init(1)[0].0, ptr::null_mut());
    let (memory, mut comm, mut window) = (Memory::new(1024), ptr::null_mut(), ptr::null_mut());
    let (out, place) = (&raw mut comm, memory.start.cast());
    let makers: [&dyn Fn() -> ncclResult_t; 2] =
        [&|| nccl!(ncclCommInitRank(out, 1, unique_id(), 0)), &|| {
            nccl!(ncclCommSplit(parent, 0, 0, out, ptr::null_mut()))
        }];
    for make in makers {
        let code = in_group(|| {
            assert_eq!(make(), OK, "{}", last_error());
            assert_eq!(nccl!(ncclCommCount(none, &mut 0)), ARGUMENT);
            assert_last_error("the communicator is NULL; this thread's group is open");
            assert_last_error("has a handle only after the outermost ncclGroupEnd");
            assert_eq!(all_reduce(&mut [1], none), ARGUMENT);
        });
        // The call has failed the group, and the group's end returns the same error.
        assert_eq!(code, ARGUMENT);
        assert_last_error(
            "ncclAllReduce in this group failed: the communicator is NULL; this thread's group",
        );
    }
    let code = in_group(|| {
        assert_eq!(nccl!(ncclCommWindowRegister(parent, place, 4096, &mut window, 0)), OK);
        assert_eq!(nccl!(ncclPutSignal(place, 1, I32, 0, window, 0, 0, 0, 0, parent, STREAM)), ARGUMENT);
        assert_last_error("NULL is not a window of this communicator; this thread's group is open");
    });
    assert_eq!(code, ARGUMENT);
    // Where no object is pending, the error does not mention a group.
    let count = || {
        assert_eq!(nccl!(ncclCommCount(none, &mut 0)), ARGUMENT);
        assert_eq!(last_error(), "the communicator is NULL");
    };
    assert_eq!(in_group(count), OK);
    Comm(parent).destroy();
}

#[test]
fn run_ranks_with_count_out_of_range_error_has_the_number() {
    for ranks in [1025, i32::MAX as usize, i32::MAX as usize + 1, usize::MAX] {
        let error = libnccl_cpu::run_ranks(ranks, |_| panic!("ran")).unwrap_err().to_string();
        assert!(error.contains(&ranks.to_string()), "{error}");
    }
    assert!(libnccl_cpu::run_ranks(0, |_| panic!("ran")).is_err());
}

/// The others fail with its reason, whether it calls first, between them or last.
#[test]
fn invalid_config_on_one_rank_fails_the_others() {
    const REASON: &str = "rank 1 failed before all ranks had joined: \
                          invalid config value 2 of splitShare: it has to be 0 or 1";
    let _alone = alone();
    for order in [[1, 0, 2], [0, 1, 2], [0, 2, 1]] {
        let (id, mut comms) = (unique_id(), vec![]);
        let fail = || {
            let (code, Comm(comm)) = init_with(id, 3, 1, |config| config.splitShare = 2);
            assert_eq!((code, comm.is_null()), (ARGUMENT, true));
            assert_last_error("invalid config value 2 of splitShare");
        };
        thread::scope(|scope| {
            for (place, rank) in order.into_iter().enumerate() {
                match (rank, place) {
                    // It waits for the root.
                    (1, 0) => drop(scope.spawn(fail)),
                    (1, _) => fail(),
                    _ => comms.push(init_nonblocking(id, 3, rank)),
                }
                if place == 0 || place == 1 && order[2] == 1 {
                    wait_for_peers(&id, place);
                }
            }
            for comm in comms {
                assert_eq!(wait_async(comm.0), REMOTE, "{}", last_error());
                assert_last_error(REASON);
                comm.destroy();
            }
        });
    }
}

fn fail_init(process: &RankProcess) {
    assert_eq!(init_rank(process.id, process.ranks, process.rank()), Err(USAGE));
    eprintln!("{}", last_error());
}

/// The root finds two ranks waiting: the one that is missing, and one whose number is beyond the root's number of ranks.
#[test]
fn rank_beyond_the_roots_nranks_fails_all_ranks() {
    const MISTAKE: &str = "the ranks passed different nranks: rank 2 passed 3, rank 0 passed 2";
    let (_alone, id) = (alone(), unique_id());
    let root = spawn("fail_init", &id, 2, 0);
    wait_for_peers(&id, 0);
    stop(&root);
    let peers = [(2, 1), (3, 2)].map(|(ranks, rank)| {
        let peer = init_nonblocking(id, ranks, rank);
        // Time to say hello.
        thread::sleep(Duration::from_millis(200));
        peer
    });
    resume(&root);
    for peer in peers {
        assert_eq!(wait_async(peer.0), USAGE, "{}", last_error());
        assert_last_error(MISTAKE);
        peer.destroy();
    }
    assert!(finish(root).contains(MISTAKE));
}

#[test]
fn last_error_is_the_threads_or_the_latest() {
    let _alone = alone();
    let fail = |count| assert_eq!(nccl!(ncclCommInitAll(&mut ptr::null_mut(), count, ptr::null())), ARGUMENT);
    on_threads(1, |_| {
        fail(-1);
        on_threads(1, |_| {
            assert_last_error("invalid number of ranks -1");
            fail(-2);
            assert_last_error("invalid number of ranks -2");
        });
        assert_last_error("invalid number of ranks -1");
    });
}
