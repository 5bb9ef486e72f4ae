//! Initialization: ids, configs, failures, log lines and time.

use std::process::Stdio;
use std::ptr;
use std::thread;
use std::time::{Duration, Instant};

use libnccl::sys::{ncclConfig_t, ncclResult_t};

use super::calls::join;
use crate::common::memory::Memory;
use crate::common::processes::{self, RankProcess, finish, kill, resume, spawn, stop};
use crate::common::watchdog::Watchdog;
use crate::common::{
    ARGUMENT, Comm, I32, Mode, OK, PROGRESS, REMOTE, SOON, STREAM, USAGE, all_reduce, alone,
    assert_last_error, async_error, init, init_nonblocking, init_rank, last_error, on_threads, unique_id,
    wait_async, wait_for_peers,
};

/// Logs an initialization, a split, a destruction and an abort.
pub(crate) fn log_lifecycle(process: &RankProcess) {
    let Comm(comm) = join(process);
    let (mut config, mut child) = (ncclConfig_t::initializer(), ptr::null_mut());
    config.commName = c"the child".as_ptr();
    assert_eq!(nccl!(ncclCommSplit(comm, 0, 0, &mut child, &mut config)), OK);
    Comm(child).destroy();
    assert_eq!(nccl!(ncclCommAbort(comm)), OK);
}

/// Expects that the ranks cannot join, and prints why.
pub(crate) fn fail_init(process: &RankProcess) {
    let joined = init_rank(process.id, process.ranks, process.rank());
    assert!(matches!(joined.map(drop), Err(USAGE | REMOTE)));
    eprintln!("{}", last_error());
}

#[test]
fn null_handle_of_object_pending_in_open_group_is_explained() {
    const ABSENT: &str = "has a handle only after the outermost ncclGroupEnd";
    let (_alone, _watchdog) = (alone(), Watchdog::new());
    let (start, end) = (|| assert_eq!(nccl!(ncclGroupStart()), OK), || nccl!(ncclGroupEnd()));
    let (parent, memory) = (init(Mode::Group, 1)[0].0, Memory::new(1024));
    let (mut comm, mut window, none) = (ptr::null_mut(), ptr::null_mut(), ptr::null_mut());
    let out = &raw mut comm;
    let makers: [&dyn Fn() -> ncclResult_t; 3] = [
        &|| nccl!(ncclCommInitRank(out, 1, unique_id(), 0)),
        &|| nccl!(ncclCommInitRankConfig(out, 1, unique_id(), 0, ptr::null_mut())),
        &|| nccl!(ncclCommSplit(parent, 0, 0, out, ptr::null_mut())),
    ];
    for make in &makers {
        start();
        assert_eq!(make(), OK, "{}", last_error());
        assert_eq!(nccl!(ncclCommCount(none, &mut 0)), ARGUMENT);
        assert_last_error("the communicator is NULL; this thread's group is open");
        assert_last_error(ABSENT);
        assert_eq!(all_reduce(&mut [1], none), ARGUMENT);
        assert_last_error(ABSENT);
        // The call has failed the group, and the group's end returns the same error.
        assert_eq!(end(), ARGUMENT);
        assert_last_error(
            "ncclAllReduce in this group failed: the communicator is NULL; this thread's group",
        );
    }
    start();
    start();
    assert_eq!(makers[0](), OK);
    assert_eq!(end(), OK, "the inner group ends");
    assert_eq!(nccl!(ncclCommCount(none, &mut 0)), ARGUMENT);
    assert_last_error(ABSENT);
    assert_eq!(end(), OK);
    Comm(comm).destroy();
    start();
    assert_eq!(nccl!(ncclCommWindowRegister(parent, memory.start.cast(), 4096, &mut window, 0)), OK);
    let put = nccl!(ncclPutSignal(memory.start.cast(), 1, I32, 0, window, 0, 0, 0, 0, parent, STREAM));
    assert_eq!(put, ARGUMENT);
    assert_last_error("NULL is not a window of this communicator; this thread's group is open");
    assert_eq!(end(), ARGUMENT);
    // Outside such a group, the error does not mention one.
    for in_group in [false, true] {
        (if in_group { start } else { || () })();
        assert_eq!(nccl!(ncclCommCount(none, &mut 0)), ARGUMENT);
        assert_eq!(last_error(), "the communicator is NULL");
        assert_eq!(if in_group { end() } else { OK }, OK);
    }
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
    let (_alone, _watchdog) = (alone(), Watchdog::new());
    let fail = |id| {
        let (mut comm, mut config) = (ptr::null_mut(), ncclConfig_t::initializer());
        config.splitShare = 2;
        assert_eq!(nccl!(ncclCommInitRankConfig(&mut comm, 4, id, 1, &mut config)), ARGUMENT);
        assert_last_error("invalid config value 2 of splitShare");
    };
    let (first, between, last) = (unique_id(), unique_id(), unique_id());
    let others = |id, ranks: &[i32]| -> Vec<Comm> {
        ranks.iter().map(|rank| init_nonblocking(id, 4, *rank)).collect()
    };
    let expect = |comms: Vec<Comm>| {
        for comm in comms {
            assert_eq!(wait_async(comm.0), REMOTE, "{}", last_error());
            assert_last_error(REASON);
            comm.destroy();
        }
    };

    thread::scope(|scope| {
        scope.spawn(|| fail(first));
        wait_for_peers(&first, 0);
        expect(others(first, &[0, 2, 3]));
    });

    let root = spawn("fail_init", &between, 4, 3);
    wait_for_peers(&between, 0);
    let mut comms = others(between, &[0]);
    wait_for_peers(&between, 1);
    fail(between);
    comms.extend(others(between, &[2]));
    expect(comms);
    let printed = finish(root);
    assert!(printed.contains(REASON), "{printed}");

    let comms = others(last, &[0]);
    wait_for_peers(&last, 0);
    let peers = [2, 3].map(|rank| spawn("fail_init", &last, 4, rank));
    wait_for_peers(&last, 2);
    fail(last);
    expect(comms);
    for printed in peers.map(finish) {
        assert!(printed.contains(REASON), "{printed}");
    }
}

/// The root finds two ranks waiting: the one that is missing, and one whose number is beyond the root's number of ranks.
#[test]
fn rank_beyond_the_roots_nranks_is_invalid_usage_on_all_ranks() {
    let (_alone, _watchdog) = (alone(), Watchdog::new());
    for _ in 0..3 {
        let id = unique_id();
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
            assert_last_error("the ranks passed different nranks: rank 2 passed 3, rank 0 passed 2");
            peer.destroy();
        }
        let printed = finish(root);
        assert!(printed.contains("different nranks: rank 2 passed 3, rank 0 passed 2"), "{printed}");
    }
}

/// In any order. A rank that calls after the others have joined waits for more ranks.
#[test]
fn different_nranks_in_one_process_are_invalid_usage() {
    const RANKS: [(i32, i32); 3] = [(2, 0), (2, 1), (3, 2)];
    let (_alone, _watchdog) = (alone(), Watchdog::new());
    let rounds: Vec<[Comm; 3]> = (0..40)
        .map(|round| {
            let (id, mut comms) = (unique_id(), [Comm(ptr::null_mut()); 3]);
            for index in [0, 1, 2].map(|index| (index + round) % 3) {
                let (ranks, rank) = RANKS[index];
                comms[index] = init_nonblocking(id, ranks, rank);
            }
            comms
        })
        .collect();
    let start = Instant::now();
    let codes = |comms: &[Comm; 3]| comms.map(|comm| async_error(comm.0));
    let is_settled = |codes: [ncclResult_t; 3]| !codes.contains(&PROGRESS) || codes[..2] == [OK; 2];
    while !rounds.iter().all(|comms| is_settled(codes(comms))) && start.elapsed() < SOON {
        thread::sleep(Duration::from_millis(5));
    }
    let all: Vec<[ncclResult_t; 3]> = rounds.iter().map(codes).collect();
    assert!(!all.as_flattened().contains(&ncclResult_t::ncclInternalError), "{all:?}");
    assert!(all.contains(&[USAGE; 3]), "{all:?}");
    for comm in rounds.as_flattened() {
        assert_eq!(nccl!(ncclCommAbort(comm.0)), OK);
    }
}

/// The root of the rendezvous dies or is aborted, and may not wait to notify a rank that connects later. A rank that connected
/// before gets the error too.
#[test]
fn init_after_root_exit_returns_remote_error() {
    let (_alone, _watchdog) = (alone(), Watchdog::new());
    for is_killed in [true, false] {
        let id = unique_id();
        let mut process = is_killed.then(|| spawn("hang", &id, 4, 0));
        let root = (!is_killed).then(|| init_nonblocking(id, 4, 0));
        wait_for_peers(&id, 0);
        let early = init_nonblocking(id, 4, 1);
        wait_for_peers(&id, 1);
        process.iter_mut().for_each(kill);
        root.iter().for_each(|root| assert_eq!(nccl!(ncclCommAbort(root.0)), OK));
        let late = init_nonblocking(id, 4, 2);
        assert_eq!([wait_async(early.0), wait_async(late.0)], [REMOTE; 2]);
        let how = if is_killed { "" } else { "was cancelled or aborted " };
        assert_last_error(&format!("{how}before all ranks had joined"));
        [early, late].into_iter().for_each(Comm::destroy);
    }
}

#[test]
fn log_reports_init_destroy_and_abort() {
    let (_alone, _watchdog) = (alone(), Watchdog::new());
    let mut command = processes::command("log", &unique_id(), 1, &[0]);
    for name in ["NCCL_DEBUG_SUBSYS", "NCCL_DEBUG_FILE"] {
        command.env_remove(name);
    }
    let text = finish(command.env("NCCL_DEBUG", "INFO").stdout(Stdio::piped()).spawn().unwrap());
    let lines: Vec<&str> = text.lines().filter(|line| line.contains(" NCCL INFO ")).collect();
    let endings =
        ["- Init START", "- Init COMPLETE", "- Init COMPLETE", "- Destroy COMPLETE", "- Abort COMPLETE"];
    let events: Vec<&&str> = lines.iter().filter(|line| line.contains("nranks")).collect();
    assert_eq!(events.len(), endings.len(), "{text}");
    for (line, ending) in events.iter().zip(endings) {
        assert!(line.ends_with(ending), "{line}");
        assert!(line.contains(" rank 0 nranks 1 cudaDev 0 commId 0x"), "{line}");
    }
    for (line, comm) in [(events[1], "comm 0x10 rank"), (events[2], "comm 0x20 (the child) rank")] {
        assert!(line.contains(comm), "{line}");
    }
}

#[test]
fn function_table_is_complete() {
    let _alone = alone();
    assert!(libnccl_cpu::TABLE.present().all(|(_, present)| present));
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
