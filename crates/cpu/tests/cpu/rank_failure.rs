//! Rank processes that repeat one operation until one of them dies: the others get an error within a second.
//!
//! A failure prints its seed; `LIBNCCL_TEST_FAILURE_SEED=<seed> cargo test -p libnccl-cpu --test cpu rank_failure` repeats it, as
//! far as the timing of processes can be repeated.
#![allow(unsafe_code)]

use std::collections::BTreeSet;
use std::ffi::c_void;
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::mem::ManuallyDrop;
use std::path::PathBuf;
use std::process::{Child, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use crate::common::processes::{self, RankProcess};
use crate::common::{
    Arguments, COLLECTIVES, Comm, F32, Memory, OK, PROGRESS, REMOTE, STREAM, SUM, Watchdog, async_error,
    busy, in_group, init_with, receive, split, unique_id, wait_async, wait_for_peers,
};
use libnccl::sys::{ncclComm_t, ncclResult_t, ncclUniqueId, ncclWaitSignalDesc_t};
use libnccl_test_support::random_inputs::{Random, fresh_seed, from_environment};

/// Time within which the survivors must detect a failure, and the limit on a loaded machine.
const NOTICE: Duration = Duration::from_secs(1);
const LOADED: Duration = Duration::from_secs(10);

/// Elements of a small operation, and of a large one, which takes many steps or uses the peers' memory directly.
const SMALL: usize = 100;
const LARGE: usize = 1_100_000;

/// The operations that a rank can repeat, apart from the collectives on large buffers.
const OTHERS: [&str; 4] = ["small", "ring", "signals", "split"];

struct Rank {
    comm: ncclComm_t,
    ranks: i32,
    rank: i32,
    send: *mut c_void,
    receive: *mut c_void,
}

impl Rank {
    fn operate(&self, name: &str, root: i32) -> ncclResult_t {
        let sum = |count| Arguments { count, data: F32, op: SUM, root };
        match name {
            "small" => COLLECTIVES[0].1(sum(SMALL), self.send, self.receive, self.comm),
            "ring" => self.ring(),
            "signals" => self.signals(),
            "split" => self.split(),
            _ => {
                let collective = COLLECTIVES.iter().find(|collective| collective.0 == name).expect(name);
                collective.1(sum(LARGE), self.send, self.receive, self.comm)
            }
        }
    }

    /// Returns the ranks after and before this one.
    fn neighbors(&self) -> [i32; 2] {
        [1, self.ranks - 1].map(|distance| (self.rank + distance) % self.ranks)
    }

    fn ring(&self) -> ncclResult_t {
        let [next, before] = self.neighbors();
        in_group(|| {
            nccl!(ncclSend(self.send, LARGE, F32, next, self.comm, STREAM));
            nccl!(ncclRecv(self.receive, LARGE, F32, before, self.comm, STREAM));
        })
    }

    fn signals(&self) -> ncclResult_t {
        let [next, peer] = self.neighbors();
        match nccl!(ncclSignal(next, 0, 0, 0, self.comm, STREAM)) {
            OK => {
                let mut one = ncclWaitSignalDesc_t { opCnt: 1, peer, sigIdx: 0, ctx: 0 };
                nccl!(ncclWaitSignal(1, &mut one, self.comm, STREAM))
            }
            code => code,
        }
    }

    fn split(&self) -> ncclResult_t {
        let child = match split(self.comm, self.rank % 2, 0) {
            Ok(child) => child,
            Err(code) => return code,
        };
        let code = nccl!(ncclAllReduce(self.send, self.receive, SMALL, F32, SUM, child.0, STREAM));
        child.destroy();
        code
    }
}

/// Returns zeroed memory for `count` elements, from NCCL or from the allocator; it is never freed.
fn memory(count: usize, from_nccl: bool) -> *mut c_void {
    if from_nccl {
        ManuallyDrop::new(Memory::new(count)).start.cast()
    } else {
        vec![0_f32; count].leak().as_mut_ptr().cast()
    }
}

rank_tasks!(repeat_operation, call_with_a_failed_peer);

/// Repeats the operation of the first argument, in memory from NCCL if the second one is `nccl`, until it fails. Tears down the
/// communicator at the end of the standard input. Dies before, in the way and after the microseconds of the other arguments.
fn repeat_operation(process: &RankProcess) {
    let [operation, kind, death @ ..] = &process.arguments[..] else { panic!("no operation") };
    let prepare_death = || {
        if let [cause, delay] = death {
            let (cause, delay) = (cause.clone(), Duration::from_micros(delay.parse().unwrap()));
            thread::spawn(move || {
                thread::sleep(delay);
                die(&cause);
            });
        }
    };
    if operation == "init" {
        prepare_death();
    }
    // Signals need a window, or this option.
    let (mut code, Comm(comm)) =
        init_with(process.id, process.ranks, process.rank(), |config| config.rmaEagerInit = 1);
    if code == OK {
        let (ranks, rank) = (process.ranks as i32, process.rank() as i32);
        let [send, receive] = [(); 2].map(|()| memory(LARGE * process.ranks, kind == "nccl"));
        let me = Rank { comm, ranks, rank, send, receive };
        prepare_death();
        code =
            (0..).map(|turn| me.operate(operation, turn % ranks)).find(|code| *code != OK).expect("an error");
    }
    eprintln!("\nerror {}", code.0);
    // Each rank must detect the failure itself, not the exit of another survivor.
    let _ = std::io::stdin().read_to_end(&mut vec![]);
    if !comm.is_null() {
        let is_abort = process.rank().is_multiple_of(2);
        assert_eq!(if is_abort { nccl!(ncclCommAbort(comm)) } else { nccl!(ncclCommDestroy(comm)) }, OK);
    }
}

/// Kills this process, or makes it exit.
fn die(cause: &str) {
    let none = rustix::process::Rlimit { current: Some(0), maximum: Some(0) };
    rustix::process::setrlimit(rustix::process::Resource::Core, none).expect("no core files");
    // SAFETY: the forked child, which inherits this process's descriptors, calls only async-signal-safe functions.
    unsafe {
        match cause {
            "exit" => std::process::exit(0),
            "crash" => std::process::abort(),
            "fork" if libc::fork() == 0 => {
                libc::alarm(5);
                libc::pause();
            }
            _ => {
                libc::kill(libc::getpid(), libc::SIGKILL);
            }
        }
    }
}

fn start(task: &str, id: &ncclUniqueId, ranks: usize, rank: usize) -> Child {
    let mut command = processes::command(&format!("repeat_operation {task}"), id, ranks, &[rank]);
    command.stdin(Stdio::piped()).spawn().unwrap()
}

/// Expects each process to report that another one has failed, within a limit for all of them, and to end then.
fn expect_errors(survivors: Vec<Child>, limit: Duration) {
    let (_watchdog, began) = (Watchdog::new(Duration::from_secs(60)), Instant::now());
    let reading = survivors.into_iter().map(|mut child| {
        let mut lines = BufReader::new(child.stderr.take().unwrap()).lines().map(Result::unwrap);
        let error = lines.find(|line| line.starts_with("error ")).expect("an error");
        assert_eq!(error, format!("error {}", REMOTE.0));
        (child, lines)
    });
    let survivors: Vec<_> = reading.collect();
    assert!(began.elapsed() < limit, "{:?}", began.elapsed());
    for (mut child, _lines) in survivors {
        drop(child.stdin.take());
        assert!(child.wait().unwrap().success());
    }
}

fn fail_one_rank(operation: &str, seed: u64, limit: Duration) {
    let mut random = Random(seed);
    let (ranks, memory) = (3 + random.below(2), random.pick(&["nccl", "allocator"]));
    let (cause, delay) = (random.pick(&["kill", "kill", "exit", "crash"]), random.below(150_000));
    println!(
        "{operation}, seed {seed}: one of {ranks} ranks, memory from {memory}, {cause} after {delay} us"
    );
    let (id, order) = (unique_id(), random.shuffled(ranks));
    let mut victim = start(&format!("{operation} {memory} {cause} {delay}"), &id, ranks, order[0]);
    let survivors: Vec<_> =
        order[1..].iter().map(|rank| start(&format!("{operation} {memory}"), &id, ranks, *rank)).collect();
    victim.wait().unwrap();
    expect_errors(survivors, limit);
}

/// Lists the files of this library that outlive their process.
fn leftovers() -> BTreeSet<PathBuf> {
    // A system may lack one of the directories.
    let entries = ["/dev/shm", "/tmp"].into_iter().filter_map(|name| fs::read_dir(name).ok()).flatten();
    let paths = entries.flatten().map(|entry| entry.path());
    paths.filter(|path| path.to_string_lossy().to_lowercase().contains("nccl")).collect()
}

/// Runs a number of failures, each with the next operation, and expects no files to be left behind.
fn fail(number: usize, first: u64, limit: Duration) {
    let operations: Vec<&str> = COLLECTIVES.iter().map(|collective| collective.0).chain(OTHERS).collect();
    let before = leftovers();
    for seed in (first..).take(number) {
        fail_one_rank(operations[seed as usize % operations.len()], seed, limit);
    }
    let left: Vec<_> = leftovers().difference(&before).cloned().collect();
    assert!(left.is_empty(), "left behind: {left:?}");
}

#[test]
fn failure_of_a_rank_ends_every_operation() {
    let all = COLLECTIVES.len() + OTHERS.len();
    fail(all, from_environment("LIBNCCL_TEST_FAILURE_SEED").unwrap_or(0), LOADED);
}

/// `cargo test --release -p libnccl-cpu --test cpu rank_failure -- --ignored --nocapture`
#[test]
#[ignore = "takes minutes: .ci/run long"]
fn two_hundred_rank_failures_are_noticed_within_a_second() {
    let _busy = busy();
    fail(200, from_environment("LIBNCCL_TEST_FAILURE_SEED").unwrap_or_else(fresh_seed), NOTICE);
}

/// The third rank never joins, and a forked child of the one that dies may keep its connections open.
#[test]
fn failure_during_init_ends_init() {
    for (victim, cause) in [(0, "kill"), (1, "kill"), (0, "fork"), (1, "fork")] {
        let (id, mut early) = (unique_id(), vec![]);
        // The first process is the root.
        for rank in 0..2 {
            let death = if rank == victim { format!("{cause} 1500000") } else { String::new() };
            early.push(start(format!("init - {death}").trim_end(), &id, 3, rank));
            wait_for_peers(&id, rank);
        }
        early.swap_remove(victim).wait().unwrap();
        expect_errors(early, LOADED);
        if victim == 0 && cause == "fork" {
            // The socket still exists, but no root accepts connections.
            expect_errors(vec![start("init -", &id, 3, 2)], LOADED);
        }
    }
}

/// With `LIBNCCL_CPU_FAILURES=wait`: rank 1 exits or tears down its communicator. A call of rank 0 that waits for it ends when
/// rank 0 aborts, or at the limit of waits.
fn call_with_a_failed_peer(process: &RankProcess) {
    let [way, kind] = &process.arguments[..] else { panic!("not two arguments") };
    let blocking = i32::from(kind != "nonblocking");
    let (_, comm) = init_with(process.id, 2, process.rank(), |config| config.blocking = blocking);
    assert_eq!(wait_async(comm.0), OK);
    if process.rank() == 1 {
        match way.as_str() {
            "abort" => assert_eq!(nccl!(ncclCommAbort(comm.0)), OK),
            "destroy" => comm.destroy(),
            _ => {}
        }
        return;
    }
    let mut place = [0_f32; 4];
    let mut call = || match kind.as_str() {
        "group" => in_group(|| assert_eq!(receive(&mut place, 1, { comm }.0), OK)),
        _ => receive(&mut place, 1, { comm }.0),
    };
    if kind == "limit" {
        assert_eq!([call(), async_error(comm.0)], [REMOTE; 2]);
        return comm.destroy();
    }
    thread::scope(|scope| {
        let waiting = scope.spawn(call);
        // The test sends a line once this process has reported the failure.
        std::io::stdin().read_line(&mut String::new()).unwrap();
        if kind == "nonblocking" {
            assert_eq!(waiting.join().unwrap(), PROGRESS);
            assert_eq!([async_error(comm.0), nccl!(ncclCommAbort(comm.0))], [PROGRESS, OK]);
        } else {
            assert_eq!(async_error(comm.0), OK, "as in NCCL");
            assert!(!waiting.is_finished());
            assert_eq!(nccl!(ncclCommAbort(comm.0)), OK);
            assert_eq!(waiting.join().unwrap(), REMOTE);
        }
    });
    eprintln!("ended by its own abort");
}

const FAILURES_WAIT: (&str, &str) = ("LIBNCCL_CPU_FAILURES", "wait");

#[test]
fn operation_with_failed_peer_stays_pending_until_its_rank_aborts_if_failures_wait() {
    for (way, reason) in [
        ("abort", "rank 1 aborted the communicator"),
        ("destroy", "rank 1 has finalized or destroyed its communicator"),
        ("exit", "rank 1 died: its process ended without destroying the communicator"),
    ] {
        for kind in ["alone", "group", "nonblocking"] {
            let id = unique_id();
            let start = |rank| {
                let mut command =
                    processes::command(&format!("call_with_a_failed_peer {way} {kind}"), &id, 2, &[rank]);
                command.envs([FAILURES_WAIT]).stdin(Stdio::piped()).spawn().unwrap()
            };
            let [mut waiting, failing] = [start(0), start(1)];
            let mut lines = BufReader::new(waiting.stderr.take().unwrap()).lines().map(Result::unwrap);
            let pending = lines.find(|line| line.contains("it stays pending until this rank aborts"));
            let pending = pending.expect("a report");
            assert!(pending.contains(&format!("an operation failed: {reason}; ")), "{pending}");
            assert!(pending.ends_with(" [failed-operation]"), "{pending}");
            waiting.stdin.take().unwrap().write_all(b"go\n").unwrap();
            assert!(lines.any(|line| line == "ended by its own abort"), "{way} {kind}");
            processes::finish_all([waiting, failing]);
        }
    }
}

#[test]
fn timeout_fails_a_pending_operation() {
    let variables = [&[FAILURES_WAIT][..], &processes::limits()].concat();
    let printed = processes::run("call_with_a_failed_peer destroy limit", [[0], [1]], &variables).concat();
    assert!(printed.contains("it stays pending until this rank aborts"), "{printed}");
}
