//! Reports of long waits, and timeouts by `LIBNCCL_CPU_TIMEOUT`.
//!
//! The environment is read once per process, so each rank runs in a separate process.

use std::io::{BufRead, BufReader};
use std::process::Child;
use std::ptr;
use std::thread;
use std::time::{Duration, Instant};

use crate::common::processes::{self, RankProcess, finish, kill, stop};
use crate::common::{
    Memory, OK, PROGRESS, REMOTE, USAGE, all_reduce, alone, async_error, broadcast, in_group, init,
    init_nonblocking, init_rank, init_with, last_error, receive, send, unique_id, wait_async, wait_for_peers,
};
use libnccl::observer::CommunicatorId;
use libnccl::sys::{ncclComm_t, ncclConfig_t, ncclResult_t, ncclUniqueId};

rank_tasks!(follow, sum_until_error);

const LONG: usize = 8 << 20;

/// Prints the error of a call, which must be a timeout of a wait.
fn print_remote_error(code: ncclResult_t) {
    assert_eq!(code, REMOTE);
    eprintln!("error: {}", last_error());
}

fn follow(process: &RankProcess) {
    let (mut comm, mut number) = (ptr::null_mut(), [0_i32]);
    for word in process.arguments.iter().map(String::as_str) {
        match word {
            "join" => comm = process.join().0,
            "join-named" => {
                let name = |config: &mut ncclConfig_t| config.commName = c"the name".as_ptr();
                comm = init_with(process.id, process.ranks, process.rank(), name).1.0;
            }
            "late" => {
                let is_slow = std::env::var_os("LIBNCCL_TEST_SLOW").is_some();
                thread::sleep(Duration::from_secs(if is_slow { 8 } else { 3 }));
            }
            "absent" => processes::outlast_the_limit(),
            "sleep" => {
                eprintln!("asleep");
                thread::sleep(Duration::from_secs(60));
            }
            "broadcast" => assert_eq!(broadcast(&mut number, 0, comm), OK),
            "right-group" => {
                let mut sums = [1.0; 3];
                assert_eq!(in_group(|| assert_eq!(all_reduce(&mut sums, comm), OK)), OK);
            }
            // These time out.
            "init" => {
                let joined = init_rank(process.id, process.ranks, process.rank());
                print_remote_error(joined.map(drop).expect_err("other ranks are absent"));
            }
            "short-sum" => print_remote_error(all_reduce(&mut [1.0; 1], comm)),
            "other-sum" => print_remote_error(all_reduce(&mut [1.0; 4], comm)),
            "long-sum" => print_remote_error(all_reduce(&mut [1.0; 70_000], comm)),
            "receive-from-last" => print_remote_error(receive(&mut number, process.ranks - 1, comm)),
            "send" => print_remote_error(send(&number, 0, comm)),
            "group" => print_remote_error(in_group(|| assert_eq!(all_reduce(&mut number, comm), OK))),
            _ => panic!("{word}"),
        }
    }
}

/// Sums in memory from NCCL, or else of the program, until a sum fails.
fn sum_until_error(process: &RankProcess) {
    let comm = process.join();
    let (memory, mut own) = (Memory::new(LONG), vec![0; LONG]);
    let elements = if process.arguments[0] == "nccl" { memory.elements() } else { &mut own[..] };
    while all_reduce(elements, comm.0) == OK {}
}

/// Returns the name that reports use for the communicator with this id.
fn name(id: &ncclUniqueId) -> String {
    format!("in communicator {}", CommunicatorId::of_unique_id(&libnccl::UniqueId::from_c_chars(id.internal)))
}

fn start(tasks: &[&str]) -> Vec<Child> {
    let id = unique_id();
    let command = |(rank, task): (usize, &&str)| start_rank(task, &id, tasks.len(), rank);
    tasks.iter().enumerate().map(command).collect()
}

fn start_rank(task: &str, id: &ncclUniqueId, ranks: usize, rank: usize) -> Child {
    let mut command = processes::command(&format!("follow {task}"), id, ranks, &[rank]);
    command.envs(processes::limits()).spawn().unwrap()
}

/// Checks that the text has all `parts`, in order, and the first exactly once.
#[track_caller]
fn assert_parts(text: &str, parts: &[&str]) {
    assert_eq!(text.matches(parts[0]).count(), 1, "{text}");
    let mut rest = text;
    for part in parts {
        rest = rest.split_once(part).unwrap_or_else(|| panic!("no {part:?} in {text}")).1;
    }
}

#[test]
fn wait_for_rank_without_call_is_reported_once_and_times_out() {
    let id = unique_id();
    let ranks = [(0, "join-named long-sum"), (1, "join-named absent")];
    let printed = processes::finish_all(ranks.map(|(rank, task)| start_rank(task, &id, 2, rank)));
    assert_parts(
        &printed[0],
        &[
            "libnccl-cpu: after ",
            &format!(" s, {} (the name), ", name(&id)),
            "rank 0 of 2 still waits in call 1, ncclAllReduce(count 70000, ncclFloat64, ncclSum), for rank 1 (process ",
            "), which has called nothing on this communicator [late-rank]\n",
            "error: ",
            "rank 0 waited longer than LIBNCCL_CPU_TIMEOUT for rank 1 (more on its standard error)",
        ],
    );
}

/// Rank 1 is behind in the collectives, but rank 0 does not wait for it.
#[test]
fn receive_waits_for_its_peer_alone() {
    let tasks = ["join broadcast receive-from-last", "join absent", "join broadcast absent"];
    let printed = processes::finish_all(start(&tasks)).swap_remove(0);
    for part in [
        "rank 0 of 3 still waits in call 2, ncclRecv(count 1, ncclInt32, peer 2), for rank 2 (process ",
        "error: rank 0 waited longer than LIBNCCL_CPU_TIMEOUT for rank 2 ",
    ] {
        assert!(printed.contains(part), "{printed}");
    }
    assert!(!printed.contains("for rank 1 "), "{printed}");
}

#[test]
fn short_call_after_its_peers_timed_out_is_an_error() {
    let jobs = [
        ["join short-sum", "join late short-sum"],
        ["join receive-from-last", "join late send"],
        ["join short-sum", "join late group"],
    ];
    for printed in processes::finish_all(jobs.iter().flat_map(|tasks| start(tasks))) {
        let text = "error: rank 0 waited longer than LIBNCCL_CPU_TIMEOUT for rank 1 ";
        assert!(printed.contains(text), "{printed}");
    }
}

#[test]
fn stopped_process_is_reported_with_its_last_call() {
    let mut children = start(&["join right-group other-sum", "join right-group sleep"]);
    let mut other = children.pop().unwrap();
    let errors = other.stderr.as_mut().unwrap();
    assert!(BufReader::new(errors).lines().any(|line| line.unwrap() == "asleep"));
    stop(&other);
    let printed = finish(children.pop().unwrap());
    kill(&mut other);
    assert_parts(
        &printed,
        &[
            "rank 0 of 2 still waits in call 2, ncclAllReduce(count 4, ncclFloat64, ncclSum), for rank 1 (",
            "), which has called nothing since call 1, ncclAllReduce(count 3, ncclFloat64, ncclSum) and is stopped by a signal",
        ],
    );
}

/// A process that is killed on drop, also if it is stopped.
struct Peer(Child);

impl Drop for Peer {
    fn drop(&mut self) {
        kill(&mut self.0);
    }
}

/// The peer is stopped at any time, in most rounds while it accesses the memory of this rank.
#[test]
fn abort_with_a_stopped_peer_returns_and_the_peer_writes_no_more() {
    let _alone = alone();
    for (round, kind) in (0..).zip(["nccl", "nccl", "nccl", "heap", "heap"]) {
        let id = unique_id();
        let mut peer = Peer(processes::spawn(&format!("sum_until_error {kind}"), &id, 2, 1));
        let comm = init_nonblocking(id, 2, 0);
        assert_eq!(wait_async(comm.0), OK, "{}", last_error());
        let (memory, mut own) = (Memory::new(LONG), vec![0; LONG]);
        let elements = if kind == "nccl" { memory.elements() } else { &mut own[..] };
        thread::scope(|scope| {
            let child = &peer.0;
            scope.spawn(move || {
                thread::sleep(Duration::from_millis(200 + 23 * round));
                stop(child);
            });
            // A sum that takes long on a busy machine is aborted while the peer runs, and tests less.
            while async_error(comm.0) == OK {
                assert!(matches!(all_reduce(elements, comm.0), OK | PROGRESS));
                let begin = Instant::now();
                while async_error(comm.0) == PROGRESS && begin.elapsed() < Duration::from_secs(1) {
                    thread::sleep(Duration::from_millis(1));
                }
            }
        });
        // If it waited for the peer, the guard would abort this program.
        assert_eq!(nccl!(ncclCommAbort(comm.0)), OK);
        elements.fill(-1);
        processes::resume(&peer.0);
        assert!(peer.0.wait().unwrap().success());
        assert!(elements.iter().all(|element| *element == -1), "{kind}, round {round}: written later");
    }
}

#[test]
fn peer_names_the_unresponsive_root() {
    let id = unique_id();
    let mut root = start_rank("init", &id, 2, 0);
    wait_for_peers(&id, 0);
    stop(&root);
    let printed = finish(start_rank("init", &id, 2, 1));
    kill(&mut root);
    let report = format!(
        "{}, rank 1 of 2 still waits for the root of its id, the rank that joined first (process {}), which is stopped by \
         a signal or a debugger",
        name(&id),
        root.id()
    );
    assert_eq!(printed.matches(&report).count(), 3, "the report, and once more with the error: {printed}");
    assert_parts(&printed, &["error: ", &report, " (LIBNCCL_CPU_TIMEOUT)"]);
}

#[test]
fn peer_reports_that_the_root_waits_for_other_ranks() {
    let id = unique_id();
    let root = start_rank("init", &id, 3, 0);
    wait_for_peers(&id, 0);
    let printed = finish(start_rank("init", &id, 3, 1));
    assert_parts(
        &printed,
        &[
            "rank 1 of 3 still waits for the root of its id, the rank that joined first (process ",
            "), which waits for the ranks that are missing and reports them [late-rank]\n",
            "error: ",
            "2 of 3 ranks have joined; missing: rank 2; joined: ranks ",
            ") (LIBNCCL_CPU_TIMEOUT)",
        ],
    );
    assert!(finish(root).contains(&format!("{}, 2 of 3 ranks have joined; missing: rank 2", name(&id))));
}

/// Rank 1 tears down its communicator while rank 0 waits in a call. (The error used to name only rank 1.)
#[test]
fn error_of_a_departing_peer_names_the_waiting_call() {
    let call = |kind, comm: ncclComm_t| match kind {
        "receive" => receive(&mut [0; 9], 1, comm),
        "send" => send(&vec![0; 1_000_000], 1, comm),
        "broadcast" => broadcast(&mut [0; 9], 1, comm),
        "group" => {
            let (sent, mut received) = ([0; 9], [0; 9]);
            in_group(|| assert_eq!([send(&sent, 1, comm), receive(&mut received, 1, comm)], [OK; 2]))
        }
        _ => {
            let (memory, mut window) = (Memory::new(1024), ptr::null_mut());
            nccl!(ncclCommWindowRegister(comm, memory.start.cast(), 4096, &mut window, 0))
        }
    };
    let _alone = alone();
    for (kind, is_abort, waits) in [
        ("receive", false, "call 1, ncclRecv(count 9, ncclInt32, peer 1)"),
        ("send", false, "call 1, ncclSend(count 1000000, ncclInt32, peer 1)"),
        ("broadcast", false, "call 1, ncclBroadcast(count 9, ncclInt32, root 1)"),
        ("broadcast", true, "call 1, ncclBroadcast(count 9, ncclInt32, root 1)"),
        ("group", false, "call 2, ncclRecv(count 9, ncclInt32, peer 1)"),
        ("window", false, "call 1, ncclCommWindowRegister"),
    ] {
        let comms = init(2);
        let text = thread::scope(|scope| {
            let comm = comms[0];
            let waiting = scope.spawn(move || (call(kind, { comm }.0), last_error()));
            thread::sleep(Duration::from_millis(50));
            // A rank must make the collective calls that the others have begun before it is destroyed.
            let code =
                if is_abort { nccl!(ncclCommAbort(comms[1].0)) } else { nccl!(ncclCommDestroy(comms[1].0)) };
            assert!([OK, USAGE].contains(&code));
            let (code, text) = waiting.join().unwrap();
            assert_eq!(code, REMOTE, "{text}");
            text
        });
        let reason =
            if is_abort { "aborted the communicator" } else { "has finalized or destroyed its communicator" };
        assert!(text.starts_with(&format!("rank 1 {reason}; rank 0 of 2 was in {waits}")), "{text}");
        comms[0].destroy();
    }
}
