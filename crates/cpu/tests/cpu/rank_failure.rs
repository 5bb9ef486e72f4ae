//! Rank processes that repeat one operation until one of them dies: the others get an error within a second.
//!
//! A rank process prints its progress on standard error, and takes commands on standard input. A failure prints its seed;
//! `LIBNCCL_TEST_FAILURE_SEED=<seed> cargo test -p libnccl-cpu --test cpu rank_failure` repeats it, as far as the timing of
//! processes can be repeated.
#![allow(unsafe_code)]

use std::ffi::c_void;
use std::io::{BufRead, BufReader, Write};
use std::mem::ManuallyDrop;
use std::process::{Child, Stdio};
use std::sync::mpsc::{self, Receiver};
use std::thread;
use std::time::{Duration, Instant};

use crate::common::processes::{self, RankProcess};
use crate::common::{
    Arguments, COLLECTIVES, Comm, F32, Memory, OK, PROGRESS, REMOTE, STREAM, SUM, async_error, busy,
    in_group, init_with, receive, split, unique_id, wait_async, wait_for_peers,
};
use libnccl::sys::{ncclComm_t, ncclResult_t, ncclUniqueId, ncclWaitSignalDesc_t};
use libnccl_test_support::random_inputs::{Random, fresh_seed, from_environment};

/// Time within which the survivors must detect a failure, the limit on a loaded machine, and the limit of any other step.
const NOTICE: Duration = Duration::from_secs(1);
const LOADED: Duration = Duration::from_secs(10);
const LIMIT: Duration = Duration::from_secs(30);

/// Elements of a small operation, and of a large one, which takes many steps or uses the peers' memory directly.
const SMALL: usize = 100;
const LARGE: usize = 1_100_000;

/// The operations that a rank can repeat, apart from the collectives on large buffers.
const OTHERS: [&str; 4] = ["small", "ring", "signals", "split"];

/// The rank of this process.
struct Rank {
    comm: ncclComm_t,
    ranks: i32,
    rank: i32,
    send: *mut c_void,
    receive: *mut c_void,
}

impl Rank {
    /// Makes the calls of an operation.
    fn operate(&self, name: &str, root: i32) -> ncclResult_t {
        let sum = |count| Arguments { count, data_type: F32, op: SUM, root };
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

    /// Splits the ranks into odd and even ones, and reduces on the child.
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

/// Prints a line on standard error, in one write.
fn report(event: &str) {
    // Fails if the parent has exited; then the process ends anyway.
    let _ = std::io::stderr().write_all(format!("\n{event}\n").as_bytes());
}

/// Repeats the operation of the first argument, in memory from NCCL if the second one is `nccl`, until it fails.
fn repeat_operation(process: &RankProcess) {
    let none = rustix::process::Rlimit { current: Some(0), maximum: Some(0) };
    rustix::process::setrlimit(rustix::process::Resource::Core, none).expect("no core files");
    let (sender, finish) = mpsc::channel();
    thread::spawn(move || {
        for command in std::io::stdin().lines().map_while(Result::ok) {
            match command.as_str() {
                "exit" => std::process::exit(0),
                "crash" => std::process::abort(),
                "fork" => fork(),
                other => sender.send(other.to_owned()).expect("the main thread waits"),
            }
        }
        // The parent has exited.
        std::process::exit(1);
    });

    let (operation, from_nccl) = (&process.arguments[0], process.arguments[1] == "nccl");
    // Signals need a window, or this.
    let (code, Comm(comm)) =
        init_with(process.id, process.ranks, process.rank(), |config| config.rmaEagerInit = 1);
    if code != OK {
        return report(&format!("error {}", code.0));
    }
    let (ranks, rank) = (process.ranks as i32, process.rank() as i32);
    let [send, receive] = [(); 2].map(|()| memory(LARGE * process.ranks, from_nccl));
    let me = Rank { comm, ranks, rank, send, receive };
    report("joined");
    let error = (0..)
        .map(|turn| me.operate(operation, turn % ranks))
        .find(|code| *code != OK)
        .expect("it runs until an error");
    report(&format!("error {}", error.0));
    // Each rank must detect the failure itself, not the exit of another survivor.
    let is_abort = finish.recv().expect("a command") == "abort";
    assert_eq!(if is_abort { nccl!(ncclCommAbort(comm)) } else { nccl!(ncclCommDestroy(comm)) }, OK);
    report("ended");
}

/// Forks a child that inherits this process's descriptors, and does nothing.
fn fork() {
    // SAFETY: the child calls only async-signal-safe functions; the alarm kills it if the test does not.
    let child = unsafe { libc::fork() };
    if child == 0 {
        loop {
            // SAFETY: as above.
            unsafe { (libc::alarm(LIMIT.as_secs() as u32), libc::pause()) };
        }
    }
    report(&format!("forked {child}"));
}

/// The process of a rank, which is killed when it is dropped.
struct Process {
    child: Child,
    lines: Receiver<String>,
    seen: String,
}

impl Drop for Process {
    fn drop(&mut self) {
        // It may have ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Process {
    fn start(operation: &str, id: &ncclUniqueId, ranks: usize, rank: usize, memory: &str) -> Self {
        let mut command =
            processes::command(&format!("repeat_operation {operation} {memory}"), id, ranks, &[rank]);
        let mut child = command.stdin(Stdio::piped()).spawn().expect("this program can be started");
        let (sender, lines) = mpsc::channel();
        let errors = BufReader::new(child.stderr.take().expect("a pipe"));
        // The receiver is dropped when the test ends.
        thread::spawn(move || errors.lines().map_while(Result::ok).try_for_each(|line| sender.send(line)));
        Self { child, lines, seen: String::new() }
    }

    /// Waits for a line that begins so, and returns the rest of it.
    #[track_caller]
    fn expect(&mut self, start: &str, limit: Duration) -> String {
        let deadline = Instant::now() + limit;
        loop {
            match self.lines.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
                Ok(line) => match line.strip_prefix(start) {
                    Some(rest) => return rest.trim().to_owned(),
                    None => self.seen += &(line + "\n"),
                },
                Err(error) => panic!("no {start:?} within {limit:?}, {error}:\n{}", self.seen),
            }
        }
    }

    fn command(&mut self, command: &str) {
        // It may have ended.
        let _ = writeln!(self.child.stdin.as_mut().expect("a pipe"), "{command}");
    }

    /// Kills the process with a signal, or makes it exit.
    fn die(&mut self, cause: &str) {
        if cause == "kill" {
            self.child.kill().expect("a process can be killed");
        }
        self.command(cause);
        self.child.wait().expect("it ends");
    }
}

/// Expects each process to report that another one has failed, within a limit for all of them.
fn expect_errors(survivors: &mut [Process], limit: Duration) {
    let deadline = Instant::now() + limit;
    for survivor in survivors.iter_mut() {
        let error = survivor.expect("error ", deadline.saturating_duration_since(Instant::now()));
        assert_eq!(error, REMOTE.0.to_string());
    }
}

/// Kills one of the ranks that repeat an operation.
fn fail_one_rank(operation: &str, seed: u64, limit: Duration) {
    let mut random = Random(seed);
    let (ranks, memory) = (3 + random.below(2), random.pick(&["nccl", "allocator"]));
    let cause = random.pick(&["kill", "kill", "exit", "crash"]);
    println!(
        "operation {operation}, seed {seed}: one of {ranks} ranks, memory from {memory}, dies by {cause}"
    );
    let (id, order) = (unique_id(), random.shuffled(ranks));
    let mut all: Vec<_> =
        order.iter().map(|rank| Process::start(operation, &id, ranks, *rank, memory)).collect();
    all.iter_mut().for_each(|process| drop(process.expect("joined", LIMIT)));
    thread::sleep(Duration::from_micros(random.below(150_000) as u64));
    all.swap_remove(random.below(ranks)).die(cause);
    expect_errors(&mut all, limit);
    for survivor in &mut all {
        survivor.command(random.pick(&["abort", "destroy"]));
        survivor.expect("ended", LIMIT);
    }
}

/// Runs a number of failures, each with the next operation.
fn fail(number: usize, first: u64, limit: Duration) {
    let operations: Vec<&str> = COLLECTIVES.iter().map(|collective| collective.0).chain(OTHERS).collect();
    for seed in (first..).take(number) {
        fail_one_rank(operations[seed as usize % operations.len()], seed, limit);
    }
}

#[test]
fn failure_of_a_rank_ends_every_operation() {
    let all = COLLECTIVES.len() + OTHERS.len();
    fail(all, from_environment("LIBNCCL_TEST_FAILURE_SEED").unwrap_or(0), LOADED);
}

/// `cargo test --release -p libnccl-cpu --test cpu rank_failure -- --ignored --nocapture`
#[test]
#[ignore = "takes minutes: .ci/long"]
fn two_hundred_rank_failures_are_noticed_within_a_second() {
    let _busy = busy();
    fail(200, from_environment("LIBNCCL_TEST_FAILURE_SEED").unwrap_or_else(fresh_seed), NOTICE);
}

/// A rank dies during initialization, or another rank does while its forked child keeps the connections open.
#[test]
fn failure_during_init_ends_init() {
    for (victim, forks) in [(0, false), (1, false), (0, true), (1, true)] {
        let id = unique_id();
        let start = |rank| Process::start("small", &id, 3, rank, "allocator");
        // The first process is the root.
        let mut early = vec![];
        for rank in 0..2 {
            early.push(start(rank));
            wait_for_peers(&id, rank);
        }
        let child = forks.then(|| {
            early[victim].command("fork");
            early[victim].expect("forked ", LIMIT).parse().expect("a number")
        });
        early.swap_remove(victim).die("kill");
        expect_errors(&mut early, LOADED);
        if victim == 0 && forks {
            // The socket still exists, but no root accepts connections.
            expect_errors(&mut [start(2)], LOADED);
        }
        if let Some(child) = child.and_then(rustix::process::Pid::from_raw) {
            rustix::process::kill_process(child, rustix::process::Signal::KILL).expect("the child is alive");
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
        ("destroy", "rank 1 has left: its communicator was finalized or destroyed"),
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
