//! Reports of long waits, and timeouts by `LIBNCCL_CPU_TIMEOUT`.
//!
//! The environment is read once per process, so each rank runs in a separate process.

use std::io::{BufRead, BufReader};
use std::process::Child;
use std::ptr;
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use crate::common::memory::Memory;
use crate::common::processes::{self, RankProcess, finish, kill, stop};
use crate::common::{
    Comm, I32, LIMIT, Mode, OK, PROGRESS, REMOTE, STREAM, SUM, all_reduce, alone, async_error, init,
    init_nonblocking, init_rank, last_error, unique_id, wait_async, wait_for_peers,
};
use libnccl::observer::CommunicatorId;
use libnccl::sys::{ncclComm_t, ncclConfig_t, ncclResult_t, ncclUniqueId};

rank_tasks! { "rank" => follow, "sum_until_error" => sum_until_error }

/// The elements of a sum that takes most of a process's time.
const LONG: usize = 8 << 20;

/// Prints the error of a call, which must be a timeout of a wait.
fn print_remote_error(code: ncclResult_t) {
    assert_eq!(code, REMOTE);
    eprintln!("error: {}", last_error());
}

/// Follows the script in its arguments.
fn follow(process: &RankProcess) {
    let (mut comm, mut number) = (ptr::null_mut(), 0_i32);
    let place = (&raw mut number).cast();
    for word in process.arguments.iter().map(String::as_str) {
        match word {
            "join" => comm = process.join().0,
            "child" => comm = named_child(process),
            "late" => {
                let is_slow = std::env::var_os("LIBNCCL_TEST_SLOW").is_some();
                thread::sleep(Duration::from_secs(if is_slow { 8 } else { 3 }));
            }
            "absent" => processes::outlast_the_limit(),
            "sleep" => {
                eprintln!("asleep");
                thread::sleep(Duration::from_secs(60));
            }
            "right-sum" => assert_eq!(all_reduce(&mut [1.0; 3], comm), OK),
            // These time out.
            "init" => {
                let joined = init_rank(process.id, process.ranks, process.rank());
                print_remote_error(joined.map(drop).expect_err("other ranks are absent"));
            }
            "short-sum" => print_remote_error(all_reduce(&mut [1.0; 1], comm)),
            "other-sum" => print_remote_error(all_reduce(&mut [1.0; 4], comm)),
            "long-sum" => print_remote_error(all_reduce(&mut [1.0; 70_000], comm)),
            "receive" => print_remote_error(nccl!(ncclRecv(place, 1, I32, 1, comm, STREAM))),
            "send" => print_remote_error(nccl!(ncclSend(place, 1, I32, 0, comm, STREAM))),
            "group" => {
                assert_eq!(nccl!(ncclGroupStart()), OK);
                assert_eq!(nccl!(ncclAllReduce(place, place, 1, I32, SUM, comm, STREAM)), OK);
                print_remote_error(nccl!(ncclGroupEnd()));
            }
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

/// Returns this process's rank in a named child of the communicator.
fn named_child(process: &RankProcess) -> ncclComm_t {
    let (parent, mut child) = (process.join().0, ptr::null_mut());
    let mut config = ncclConfig_t { commName: c"the child".as_ptr(), ..ncclConfig_t::initializer() };
    let key = process.rank() as i32;
    assert_eq!(nccl!(ncclCommSplit(parent, 0, key, &mut child, &mut config)), OK);
    child
}

/// Returns the name that reports use for the communicator with this id.
fn name(id: &ncclUniqueId) -> String {
    format!("in communicator {}", CommunicatorId::of_unique_id(&libnccl::UniqueId::from_c_chars(id.internal)))
}

/// Starts a task on each rank, with short limits.
fn start(tasks: &[&str], ranks: usize) -> Vec<Child> {
    let id = unique_id();
    let command = |(rank, task): (usize, &&str)| start_rank(task, &id, ranks, rank);
    tasks.iter().enumerate().map(command).collect()
}

fn start_rank(task: &str, id: &ncclUniqueId, ranks: usize, rank: usize) -> Child {
    let mut command = processes::command(&format!("rank {task}"), id, ranks, &[rank]);
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
    let printed: Vec<_> = start(&["join long-sum", "join absent"], 2).into_iter().map(finish).collect();
    assert_parts(
        &printed[0],
        &[
            "rank 0 of 2 still waits in call 1, ncclAllReduce(count 70000, ncclFloat64, ncclSum), for rank 1 (process ",
            "), which has called nothing on this communicator [late-rank]\n",
            "error: ",
            "rank 0 waited longer than LIBNCCL_CPU_TIMEOUT for rank 1 (more on its standard error)",
        ],
    );
}

#[test]
fn short_call_after_its_peers_timed_out_is_an_error() {
    let jobs = [
        ("join short-sum", "join late short-sum"),
        ("join receive", "join late send"),
        ("join short-sum", "join late group"),
    ];
    let jobs = jobs.map(|(waits, comes)| start(&[waits, comes], 2));
    for printed in jobs.into_iter().flatten().map(finish) {
        assert!(
            printed.contains("error: rank 0 waited longer than LIBNCCL_CPU_TIMEOUT for rank 1 "),
            "{printed}"
        );
    }
}

#[test]
fn stopped_process_is_reported_with_its_last_call() {
    let mut children = start(&["join right-sum other-sum", "join right-sum sleep"], 2);
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
struct Peer(Option<Child>);

impl Drop for Peer {
    fn drop(&mut self) {
        self.0.iter_mut().for_each(kill);
    }
}

/// The peer is stopped at any time, in most rounds while it accesses the memory of this rank.
#[test]
fn abort_with_a_stopped_peer_returns_and_the_peer_writes_no_more() {
    let _alone = alone();
    for (kind, rounds) in [("nccl", 4), ("heap", 2)] {
        for round in 0..rounds {
            let id = unique_id();
            let mut peer = Peer(Some(processes::spawn(&format!("sum_until_error {kind}"), &id, 2, 1)));
            let comm = init_nonblocking(id, 2, 0);
            assert_eq!(wait_async(comm.0), OK, "{}", last_error());
            let (memory, mut own) = (Memory::new(LONG), vec![0; LONG]);
            let elements = if kind == "nccl" { memory.elements() } else { &mut own[..] };
            let sum = |elements: &mut [i32]| {
                assert!(matches!(all_reduce(elements, comm.0), OK | PROGRESS));
                let begin = Instant::now();
                while async_error(comm.0) == PROGRESS && begin.elapsed() < Duration::from_secs(1) {
                    thread::sleep(Duration::from_millis(1));
                }
                async_error(comm.0) == OK
            };
            thread::scope(|scope| {
                let child = peer.0.as_ref().unwrap();
                let stopped = scope.spawn(move || {
                    thread::sleep(Duration::from_millis(200 + 23 * round));
                    stop(child);
                });
                // One that takes long on a busy machine is aborted while the peer runs, and tests less.
                while sum(elements) {}
                stopped.join().unwrap();
            });
            let (sender, receiver) = mpsc::channel();
            thread::scope(|scope| {
                scope.spawn(move || {
                    // The whole of it, which can be sent to another thread.
                    let Comm(handle) = { comm };
                    assert_eq!(nccl!(ncclCommAbort(handle)), OK);
                    sender.send(()).unwrap();
                });
                let returned = receiver.recv_timeout(LIMIT);
                if returned.is_err() {
                    // Or the abort would never return.
                    processes::resume(peer.0.as_ref().unwrap());
                }
                assert_eq!(returned, Ok(()), "{kind}, round {round}: the abort waits for the peer");
            });
            elements.fill(-1);
            let child = peer.0.take().unwrap();
            processes::resume(&child);
            finish(child);
            assert!(elements.iter().all(|element| *element == -1), "{kind}, round {round}: written later");
        }
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

#[test]
fn report_names_the_communicator() {
    let id = unique_id();
    let ranks = ["join long-sum", "join absent"]
        .iter()
        .enumerate()
        .map(|(rank, task)| start_rank(task, &id, 2, rank));
    let children = start(&["child long-sum", "child absent"], 2);
    let printed: Vec<_> = ranks.collect::<Vec<_>>().into_iter().map(finish).collect();
    assert_parts(
        &printed[0],
        &["libnccl-cpu: after ", &format!(" s, {}, rank 0 of 2 still waits", name(&id))],
    );
    let printed: Vec<_> = children.into_iter().map(finish).collect();
    assert_parts(
        &printed[0],
        &[" s, in communicator ", " (the child), rank 0 of 2 still waits in call 1, ncclAllReduce"],
    );
}

/// Rank 1 tears down its communicator while rank 0 waits in a call. (The error used to name only rank 1.)
#[test]
fn error_of_a_departing_peer_names_the_waiting_call() {
    const LONG: usize = 1_000_000;
    type Call = fn(ncclComm_t) -> ncclResult_t;
    type Leave = fn(ncclComm_t) -> ncclResult_t;
    let receive: Call = |comm| nccl!(ncclRecv([0; 9].as_mut_ptr().cast(), 9, I32, 1, comm, STREAM));
    let send: Call = |comm| nccl!(ncclSend(vec![0; LONG].as_ptr().cast(), LONG, I32, 1, comm, STREAM));
    let in_group: Call = |comm| {
        let mut places = [[0; 9]; 3];
        assert_eq!(nccl!(ncclGroupStart()), OK);
        assert_eq!(nccl!(ncclSend(places[0].as_ptr().cast(), 9, I32, 1, comm, STREAM)), OK);
        assert_eq!(nccl!(ncclSend(places[1].as_ptr().cast(), 9, I32, 1, comm, STREAM)), OK);
        assert_eq!(nccl!(ncclRecv(places[2].as_mut_ptr().cast(), 9, I32, 1, comm, STREAM)), OK);
        nccl!(ncclGroupEnd())
    };
    let window: Call = |comm| {
        let (memory, mut window) = (Memory::new(1024), ptr::null_mut());
        nccl!(ncclCommWindowRegister(comm, memory.start.cast(), 4096, &mut window, 0))
    };
    let broadcast: Call = |comm| {
        let place = [0; 9].as_mut_ptr().cast();
        nccl!(ncclBroadcast(place, place, 9, I32, 1, comm, STREAM))
    };
    let destroy: Leave = |comm| nccl!(ncclCommDestroy(comm));
    let finalize: Leave = |comm| nccl!(ncclCommFinalize(comm));
    let abort: Leave = |comm| nccl!(ncclCommAbort(comm));
    let left = "rank 1 has left: its communicator was finalized or destroyed";
    let _alone = alone();
    for (call, leave, reason, waits) in [
        (receive, destroy, left, "call 1, ncclRecv(count 9, ncclInt32, peer 1)"),
        (receive, finalize, left, "call 1, ncclRecv(count 9, ncclInt32, peer 1)"),
        (send, destroy, left, "call 1, ncclSend(count 1000000, ncclInt32, peer 1)"),
        (in_group, destroy, left, "call 3, ncclRecv(count 9, ncclInt32, peer 1)"),
        (window, destroy, left, "call 1, ncclCommWindowRegister"),
        (broadcast, finalize, left, "call 1, ncclBroadcast(count 9, ncclInt32, root 1)"),
        (broadcast, abort, "rank 1 aborted the communicator", "call 1, ncclBroadcast(count 9"),
    ] {
        let comms = init(Mode::Group, 2);
        let text = thread::scope(|scope| {
            let waiting = scope.spawn(|| {
                let comm = comms[0];
                assert_eq!(call(comm.0), REMOTE);
                last_error()
            });
            thread::sleep(Duration::from_millis(50));
            let comm = comms[1];
            // A rank must make the collective calls that the others have begun before it is destroyed.
            let left = leave(comm.0);
            assert!([OK, ncclResult_t::ncclInvalidUsage].contains(&left), "{left:?}");
            waiting.join().unwrap()
        });
        assert!(text.starts_with(&format!("{reason}; rank 0 of 2 was in {waits}")), "{text}");
        comms[0].destroy();
        if nccl!(ncclCommCount(comms[1].0, &mut 0)) == OK {
            comms[1].destroy();
        }
    }
}

/// Rank 0 begins with one communicator, and rank 1 with the other.
#[test]
fn communicators_created_in_opposite_orders_name_the_deadlocked_processes() {
    let ids = [unique_id(), unique_id()];
    let ranks = [0, 1].map(|rank| start_rank("init", &ids[rank], 2, rank));
    let processes = ranks.each_ref().map(Child::id);
    for (rank, printed) in ranks.map(finish).into_iter().enumerate() {
        let [name, other, process] = [name(&ids[rank]), (1 - rank).to_string(), processes[rank].to_string()];
        let text = format!(
            "{name}, 1 of 2 ranks have joined; missing: rank {other}; joined: rank {rank} (process {process})"
        );
        assert!(printed.contains(&text), "{text}\n{printed}");
    }
}
