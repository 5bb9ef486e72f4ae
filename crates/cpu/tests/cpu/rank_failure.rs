//! Rank processes that repeat one operation until one of them dies: the others get an error within a second, and no
//! files are left behind.
//!
//! A rank process reports events, with their times, on standard error, and takes commands on standard input.
//!
//! A failure prints its seed; `LIBNCCL_TEST_FAILURE_SEED=<seed> cargo test -p libnccl-cpu --test cpu <operation>`
//! repeats it, as far as the timing of processes can be repeated.
#![allow(unsafe_code)]

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Stdio};
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, Once, OnceLock};
use std::thread;
use std::time::{Duration, Instant};

use crate::common::processes::{self, RankProcess};
use crate::common::{
    Comm, F32, OK, PROGRESS, REMOTE, STREAM, SUM, async_error, busy, init_rank, last_error, rendezvous_name,
    unique_id, wait_async, wait_for_peers,
};
use libnccl::sys::{ncclComm_t, ncclConfig_t, ncclResult_t, ncclUniqueId};
use libnccl_test_support::random_inputs::{Random, fresh_seed, from_environment};

/// Time within which the survivors have to notice a failure. The short tests, which also run on a loaded machine, allow
/// more.
const NOTICE: Duration = Duration::from_secs(1);
static STRICT: AtomicBool = AtomicBool::new(false);

/// Time after which any step counts as hung.
const LIMIT: Duration = Duration::from_secs(30);

/// Elements of a small operation, and of a large one, which takes many steps or uses the peers' memory directly.
const SMALL: usize = 100;
const LARGE: usize = 1_100_000;
/// Elements of a block from one rank to one rank.
const BLOCK: usize = LARGE;

macro_rules! operations {
    ($($test:ident, $name:literal: $step:expr;)*) => {
        /// The operations that a rank can repeat: a name, and a function that runs one.
        const OPERATIONS: &[(&str, fn(&Rank, usize) -> ncclResult_t)] = &[$(($name, $step)),*];

        $(
            #[test]
            fn $test() {
                check_two_failures($name, fail_one_rank);
            }
        )*
    };
}

operations! {
    failure_ends_all_reduce_small, "all_reduce_small": |rank, _| rank.all_reduce(SMALL, rank.comm);
    failure_ends_all_reduce_large, "all_reduce_large": |rank, _| rank.all_reduce(LARGE, rank.comm);
    failure_ends_broadcast, "broadcast": |rank, root| {
        nccl!(ncclBroadcast(rank.send, rank.receive, LARGE, F32, root as i32, rank.comm, STREAM))
    };
    failure_ends_reduce, "reduce": |rank, root| {
        nccl!(ncclReduce(rank.send, rank.receive, LARGE, F32, SUM, root as i32, rank.comm, STREAM))
    };
    failure_ends_all_gather, "all_gather": |rank, _| {
        nccl!(ncclAllGather(rank.send, rank.receive, BLOCK, F32, rank.comm, STREAM))
    };
    failure_ends_reduce_scatter, "reduce_scatter": |rank, _| {
        nccl!(ncclReduceScatter(rank.send, rank.receive, BLOCK, F32, SUM, rank.comm, STREAM))
    };
    failure_ends_all_to_all, "all_to_all": |rank, _| {
        nccl!(ncclAlltoAll(rank.send, rank.receive, BLOCK, F32, rank.comm, STREAM))
    };
    failure_ends_gather, "gather": |rank, root| {
        nccl!(ncclGather(rank.send, rank.receive, BLOCK, F32, root as i32, rank.comm, STREAM))
    };
    failure_ends_scatter, "scatter": |rank, root| {
        nccl!(ncclScatter(rank.send, rank.receive, BLOCK, F32, root as i32, rank.comm, STREAM))
    };
    failure_ends_ring, "ring": |rank, _| rank.ring();
    failure_ends_split, "split": |rank, _| rank.split();
}

/// The rank of this process.
struct Rank {
    comm: ncclComm_t,
    ranks: usize,
    rank: usize,
    send: *mut std::ffi::c_void,
    receive: *mut std::ffi::c_void,
}

impl Rank {
    fn all_reduce(&self, count: usize, comm: ncclComm_t) -> ncclResult_t {
        nccl!(ncclAllReduce(self.send, self.receive, count, F32, SUM, comm, STREAM))
    }

    fn ring(&self) -> ncclResult_t {
        let (next, before) = (self.rank + 1, self.rank + self.ranks - 1);
        let peer = |rank: usize| (rank % self.ranks) as i32;
        assert_eq!(nccl!(ncclGroupStart()), OK);
        let codes = [
            nccl!(ncclSend(self.send, LARGE, F32, peer(next), self.comm, STREAM)),
            nccl!(ncclRecv(self.receive, LARGE, F32, peer(before), self.comm, STREAM)),
            nccl!(ncclGroupEnd()),
        ];
        codes.into_iter().find(|code| *code != OK).unwrap_or(OK)
    }

    /// Splits the ranks into odd and even ones, and reduces on the child.
    fn split(&self) -> ncclResult_t {
        let (color, mut child) = (self.rank as i32 % 2, ptr::null_mut());
        match nccl!(ncclCommSplit(self.comm, color, 0, &mut child, ptr::null_mut())) {
            OK => {}
            code => return code,
        }
        let code = self.all_reduce(SMALL, child);
        assert_eq!(nccl!(ncclCommDestroy(child)), OK);
        code
    }
}

/// Returns the nanoseconds of a clock that all processes of the host share; `Instant` does not expose them.
fn now() -> u64 {
    unsafe extern "C" {
        fn clock_gettime(clock: std::ffi::c_int, time: *mut [std::ffi::c_long; 2]) -> std::ffi::c_int;
    }
    const MONOTONIC: std::ffi::c_int = 1;
    let mut time = [0; 2];
    // SAFETY: the C library's function, and `time` is laid out as its struct: seconds and nanoseconds.
    assert_eq!(unsafe { clock_gettime(MONOTONIC, &mut time) }, 0);
    time[0] as u64 * 1_000_000_000 + time[1] as u64
}

/// Reports an event to the parent, in one write.
fn report(event: &str) {
    let line = format!("\n{EVENT_PREFIX}{} {event}\n", now());
    // Fails if the parent is gone; then the process ends anyway.
    let _ = std::io::stderr().write_all(line.as_bytes());
}

/// Prefix of the lines that report events.
const EVENT_PREFIX: &str = "rank event ";

/// Returns zeroed memory for `count` elements, from NCCL or from the allocator; it is never freed.
fn memory(count: usize, from_nccl: bool) -> *mut std::ffi::c_void {
    if !from_nccl {
        return vec![0f32; count].leak().as_mut_ptr().cast();
    }
    let mut memory = ptr::null_mut();
    assert_eq!(nccl!(ncclMemAlloc(&mut memory, count * size_of::<f32>())), OK);
    memory
}

rank_tasks! { "repeat" => repeat_operation, "pending" => call_beside_a_failed_peer, "limit" => call_with_a_limit }

/// Repeats the operation of the first argument, in memory from NCCL if the second one is `nccl`, until it fails.
fn repeat_operation(process: &RankProcess) {
    static PANIC: AtomicBool = AtomicBool::new(false);
    static FINISH: OnceLock<String> = OnceLock::new();

    let none = rustix::process::Rlimit { current: Some(0), maximum: Some(0) };
    rustix::process::setrlimit(rustix::process::Resource::Core, none).expect("no core files");
    thread::spawn(|| {
        for command in std::io::stdin().lines().map_while(Result::ok) {
            match command.as_str() {
                "panic" => PANIC.store(true, Relaxed),
                "fork" => fork(),
                "exit" => {
                    report("dying");
                    std::process::exit(0);
                }
                "abort" => {
                    report("dying");
                    std::process::abort();
                }
                other => FINISH.set(other.to_owned()).expect("one command to finish"),
            }
        }
        // The parent is gone.
        std::process::exit(1);
    });

    let (operation, from_nccl) = (&process.arguments[0], process.arguments[1] == "nccl");
    let (ranks, rank) = (process.ranks, process.rank());
    let count = LARGE.max(BLOCK * ranks);
    report("joining");
    let Comm(comm) = match init_rank(process.id, ranks, rank) {
        Ok(comm) => comm,
        Err(code) => return report(&format!("error {}", code.0)),
    };
    let me = Rank { comm, ranks, rank, send: memory(count, from_nccl), receive: memory(count, from_nccl) };
    let (_, step) = OPERATIONS.iter().find(|(name, _)| name == operation).expect("an operation");
    report("joined");
    let mut turn = 0;
    let code = loop {
        if PANIC.load(Relaxed) {
            report("dying");
            panic!("on purpose");
        }
        match step(&me, turn % ranks) {
            OK => turn += 1,
            code => break code,
        }
    };
    report(&format!("error {}", code.0));
    // Each rank has to notice the failure itself, not that another survivor has left.
    while FINISH.get().is_none() {
        thread::sleep(Duration::from_millis(1));
    }
    let abort = FINISH.get().is_some_and(|how| how == "finish by abort");
    assert_eq!(if abort { nccl!(ncclCommAbort(comm)) } else { nccl!(ncclCommDestroy(comm)) }, OK);
    report("ended");
}

/// Forks a child that inherits this process's descriptors, and does nothing.
fn fork() {
    // SAFETY: the child calls only async-signal-safe functions.
    match unsafe { libc::fork() } {
        0 => {
            // SAFETY: as above; the alarm ends the child if the test does not.
            unsafe { libc::alarm(LIMIT.as_secs() as u32) };
            loop {
                // SAFETY: as above.
                unsafe { libc::pause() };
            }
        }
        process => report(&format!("forked {process}")),
    }
}

/// An event of a rank process.
#[derive(Debug, Clone)]
struct Event {
    process: usize,
    time: u64,
    text: String,
}

impl std::fmt::Display for Event {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "at {} us process {}: {}", self.time / 1000, self.process, self.text)
    }
}

/// The processes of a run, which are killed when it is dropped.
struct Ranks {
    ranks: usize,
    operation: &'static str,
    from_nccl: bool,
    id: ncclUniqueId,
    processes: Vec<Child>,
    sender: Sender<Event>,
    receiver: Receiver<Event>,
    events: Vec<Event>,
    /// The processes' other lines: panics.
    output: Arc<Mutex<String>>,
    /// The first words of a failure.
    title: String,
}

impl Drop for Ranks {
    fn drop(&mut self) {
        for process in &mut self.processes {
            // It may have ended.
            let _ = process.kill();
            let _ = process.wait();
        }
    }
}

impl Ranks {
    fn new(operation: &'static str, ranks: usize, from_nccl: bool, title: String) -> Self {
        // Starts the measurement.
        longest_stall();
        let (sender, receiver) = channel();
        let (id, output) = (unique_id(), Default::default());
        let (processes, events) = (vec![], vec![]);
        Self { ranks, operation, from_nccl, id, processes, sender, receiver, events, output, title }
    }

    /// Starts a process for a rank, and returns its index.
    fn start(&mut self, rank: usize) -> usize {
        let process = self.processes.len();
        let memory = if self.from_nccl { "nccl" } else { "allocator" };
        let mut child =
            processes::command(&format!("repeat {} {memory}", self.operation), &self.id, self.ranks, &[rank])
                .stdin(Stdio::piped())
                .spawn()
                .expect("this program can be started");
        let errors = BufReader::new(child.stderr.take().expect("a pipe"));
        let (sender, output) = (self.sender.clone(), Arc::clone(&self.output));
        thread::spawn(move || {
            for line in errors.lines().map_while(Result::ok) {
                let event = line.strip_prefix(EVENT_PREFIX).and_then(|event| event.split_once(' '));
                match event.and_then(|(time, text)| Some((time.parse().ok()?, text.to_owned()))) {
                    // The receiver is gone if the run is over.
                    Some((time, text)) => drop(sender.send(Event { process, time, text })),
                    None if line.is_empty() => {}
                    None => *output.lock().expect("output") += &format!("process {process}: {line}\n"),
                }
            }
        });
        self.processes.push(child);
        process
    }

    fn command(&mut self, process: usize, command: &str) {
        let pipe = self.processes[process].stdin.as_mut().expect("a pipe");
        // It may have ended.
        let _ = writeln!(pipe, "{command}");
    }

    /// Makes a process die, and returns the time of its death.
    fn kill(&mut self, process: usize, cause: DeathCause) -> u64 {
        if cause == DeathCause::Kill {
            let time = now();
            self.processes[process].kill().expect("a process can be killed");
            return time;
        }
        self.command(process, cause.command());
        self.expect(LIMIT, "the victim does not die", |ranks| ranks.has_reported(process, "dying"));
        self.event(process, "dying").expect("just seen").time
    }

    /// Returns a process's first event whose text starts with `prefix`.
    fn event(&self, process: usize, prefix: &str) -> Option<&Event> {
        self.events.iter().find(|event| event.process == process && event.text.starts_with(prefix))
    }

    fn has_reported(&self, process: usize, prefix: &str) -> bool {
        self.event(process, prefix).is_some()
    }

    /// Receives events until `done`, and returns whether that happened in time.
    fn wait_until(&mut self, limit: Duration, done: impl Fn(&Self) -> bool) -> bool {
        let deadline = Instant::now() + limit;
        while !done(self) {
            let left = deadline.saturating_duration_since(Instant::now());
            match self.receiver.recv_timeout(left) {
                Ok(event) => self.events.push(event),
                Err(_) => return done(self),
            }
        }
        true
    }

    fn expect(&mut self, limit: Duration, otherwise: &str, done: impl Fn(&Self) -> bool) {
        if !self.wait_until(limit, done) {
            self.fail(&format!("after {limit:?}: {otherwise}"));
        }
    }

    fn fail(&self, reason: &str) -> ! {
        let output = self.output.lock().expect("output").clone();
        let events: Vec<String> = self.events.iter().map(ToString::to_string).collect();
        panic!("{}: {reason}\n{}\n{output}", self.title, events.join("\n"))
    }

    /// Expects each of these processes to report an error soon after `death`, and returns the longest delay.
    fn expect_errors(&mut self, processes: &[usize], death: u64, code: Option<ncclResult_t>) -> Duration {
        self.expect(LIMIT, "a survivor hangs", |ranks| {
            processes.iter().all(|process| ranks.has_reported(*process, "error"))
        });
        let mut slowest = Duration::ZERO;
        for process in processes {
            let event = self.event(*process, "error").expect("just seen").clone();
            if code.is_some_and(|code| event.text != format!("error {}", code.0)) {
                self.fail(&format!("process {process} reports {:?}, expected the code {code:?}", event.text));
            }
            let Some(after) = event.time.checked_sub(death) else {
                self.fail(&format!("process {process} has an error before any rank died"));
            };
            slowest = slowest.max(Duration::from_nanos(after));
        }
        let stall = longest_stall();
        let notice = if STRICT.load(Relaxed) { NOTICE } else { 10 * NOTICE };
        if slowest > notice + stall {
            self.fail(&format!(
                "the last survivor noticed after {slowest:?}; this process was stalled for {stall:?}"
            ));
        }
        slowest
    }

    /// Ends the survivors' communicators by abort or destroy, neither of which may hang.
    fn finish(&mut self, processes: &[usize], random: &mut Random) {
        for process in processes {
            self.command(*process, random.pick(&["finish by abort", "finish by destroy"]));
        }
        self.expect(LIMIT, "a survivor does not end", |ranks| {
            processes.iter().all(|process| ranks.has_reported(*process, "ended"))
        });
    }
}

/// Returns the longest time since the last call in which this process could not run. The machine was suspended or
/// overloaded then, which excuses the survivors' delays.
fn longest_stall() -> Duration {
    static LONGEST: AtomicU64 = AtomicU64::new(0);
    static CLOCK: Once = Once::new();
    const TICK: Duration = Duration::from_millis(5);
    CLOCK.call_once(|| {
        thread::spawn(|| {
            loop {
                let start = Instant::now();
                thread::sleep(TICK);
                LONGEST.fetch_max(start.elapsed().saturating_sub(TICK).as_nanos() as u64, Relaxed);
            }
        });
    });
    Duration::from_nanos(LONGEST.swap(0, Relaxed))
}

/// The cause of a rank's death.
#[derive(Debug, Clone, Copy, PartialEq)]
enum DeathCause {
    Kill,
    Exit,
    Abort,
    Panic,
}

impl DeathCause {
    fn command(self) -> &'static str {
        match self {
            Self::Kill => "kill",
            Self::Exit => "exit",
            Self::Abort => "abort",
            Self::Panic => "panic",
        }
    }
}

/// Lists the files of this library that outlive their process.
fn leftovers() -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    for folder in ["/dev/shm", "/tmp"] {
        // A system may lack one of them.
        for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
            let name = entry.file_name().to_string_lossy().into_owned();
            if name.to_lowercase().contains("nccl") {
                names.insert(format!("{folder}/{name}"));
            }
        }
    }
    names
}

/// Runs `body`, and expects it to leave no files behind.
fn leaving_nothing<T>(title: &str, body: impl FnOnce() -> T) -> T {
    let before = leftovers();
    let result = body();
    let left: Vec<String> = leftovers().difference(&before).cloned().collect();
    assert!(left.is_empty(), "{title}: left behind: {left:?}");
    result
}

/// Kills one of the ranks that repeat an operation, and returns the time until the last survivor has noticed.
fn fail_one_rank(operation: &'static str, seed: u64) -> Duration {
    let mut random = Random(seed);
    let (ranks, from_nccl) = (3 + random.below(2), random.coin());
    // Processes are numbered in the order of their start, which is not that of the ranks.
    let (order, victim) = (random.shuffled(ranks), random.below(ranks));
    let cause = random.pick(&[
        DeathCause::Kill,
        DeathCause::Kill,
        DeathCause::Exit,
        DeathCause::Abort,
        DeathCause::Panic,
    ]);
    let delay = Duration::from_micros(random.below(150_000) as u64);
    let title = format!(
        "operation {operation}, seed {seed}: rank {} of {ranks}, process {victim}, dies by {cause:?} after \
         {delay:?}, memory from {}",
        order[victim],
        if from_nccl { "ncclMemAlloc" } else { "the allocator" }
    );
    leaving_nothing(&title.clone(), || {
        let mut run = Ranks::new(operation, ranks, from_nccl, title);
        for rank in order {
            run.start(rank);
        }
        run.expect(LIMIT, "the ranks do not join", |run| {
            (0..ranks).all(|rank| run.has_reported(rank, "joined"))
        });
        thread::sleep(delay);
        let death = run.kill(victim, cause);
        let survivors: Vec<usize> = (0..ranks).filter(|process| *process != victim).collect();
        let slowest = run.expect_errors(&survivors, death, Some(REMOTE));
        run.finish(&survivors, &mut random);
        slowest
    })
}

/// Kills a rank during initialisation: either while another one is missing, or as the last to join.
fn fail_one_rank_at_init(_: &'static str, seed: u64) -> Duration {
    let mut random = Random(seed);
    let ranks = 3 + random.below(2);
    let order = random.shuffled(ranks);
    let one_is_missing = random.coin();
    let cause = random.pick(&[DeathCause::Kill, DeathCause::Kill, DeathCause::Exit, DeathCause::Abort]);
    let delay = Duration::from_micros(random.below(if one_is_missing { 30_000 } else { 3000 }) as u64);
    let title = format!(
        "operation init, seed {seed}: one of {ranks} ranks dies by {cause:?}, {delay:?} after it began to \
         join, {}",
        if one_is_missing { "while one is missing" } else { "as the last one" }
    );
    leaving_nothing(&title.clone(), || {
        let mut run = Ranks::new("all_reduce_small", ranks, false, title);
        let early = ranks - 1;
        for rank in &order[..early] {
            run.start(*rank);
        }
        wait_for_peers(&run.id, early - 1);
        if one_is_missing {
            let victim = random.below(early);
            let survivors: Vec<usize> = (0..early).filter(|process| *process != victim).collect();
            thread::sleep(delay);
            let death = run.kill(victim, cause);
            return run.expect_errors(&survivors, death, None);
        }
        let survivors: Vec<usize> = (0..early).collect();
        let victim = run.start(order[early]);
        run.expect(LIMIT, "a rank does not start", |run| run.has_reported(victim, "joining"));
        thread::sleep(delay);
        let death = run.kill(victim, cause);
        let noticed = |run: &Ranks| {
            survivors.iter().any(|rank| run.has_reported(*rank, "joined") || run.has_reported(*rank, "error"))
        };
        if run.wait_until(NOTICE, noticed) {
            return run.expect_errors(&survivors, death, None);
        }
        // It died before it connected, so another process can take its place.
        let substitute = run.start(order[early]);
        let everyone: Vec<usize> = survivors.iter().copied().chain([substitute]).collect();
        run.expect(LIMIT, "the ranks do not join after one was replaced", |run| {
            everyone.iter().all(|rank| run.has_reported(*rank, "joined"))
        });
        let death = run.kill(substitute, DeathCause::Kill);
        run.expect_errors(&survivors, death, Some(REMOTE))
    })
}

/// Runs a test with two fixed seeds, or with the seed to repeat and the next.
fn check_two_failures(operation: &'static str, test: fn(&'static str, u64) -> Duration) {
    let first = from_environment("LIBNCCL_TEST_FAILURE_SEED").unwrap_or(1);
    for seed in first..first + 2 {
        test(operation, seed);
    }
}

#[test]
fn failure_during_init_ends_init() {
    check_two_failures("init", fail_one_rank_at_init);
}

/// A rank dies during initialisation, while its forked child keeps the connections open.
#[test]
fn init_fails_when_forked_child_outlives_failed_rank() {
    for victim in 0..2 {
        let title = format!("process {victim} has forked and dies before the last rank has joined");
        let mut run = Ranks::new("all_reduce_small", 3, false, title);
        for rank in 0..2 {
            run.start(rank);
            run.expect(LIMIT, "a rank does not start", |run| run.has_reported(rank, "joining"));
            // So that the first process is the root.
            thread::sleep(Duration::from_millis(200));
        }
        run.command(victim, "fork");
        run.expect(LIMIT, "the victim does not fork", |run| run.has_reported(victim, "forked"));
        let child = run.event(victim, "forked").expect("just seen").text.split_once(' ').expect("a number").1;
        let child = rustix::process::Pid::from_raw(child.parse().expect("a number")).expect("a process");
        let death = run.kill(victim, DeathCause::Kill);
        run.expect_errors(&[1 - victim], death, Some(REMOTE));
        if victim == 0 {
            // The socket still exists, but no root accepts connections.
            let late = run.start(2);
            run.expect_errors(&[late], death, Some(REMOTE));
        }
        rustix::process::kill_process(child, rustix::process::Signal::KILL).expect("the child is alive");
    }
}

/// No survivor is left that could clean up.
#[test]
fn killing_all_ranks_leaves_no_files_or_sockets() {
    for from_nccl in [false, true] {
        let title = "all ranks are killed at once";
        let name = leaving_nothing(title, || {
            let mut run = Ranks::new("all_reduce_large", 4, from_nccl, title.into());
            for rank in 0..4 {
                run.start(rank);
            }
            run.expect(LIMIT, "the ranks do not join", |run| {
                (0..4).all(|rank| run.has_reported(rank, "joined"))
            });
            thread::sleep(Duration::from_millis(50));
            for process in 0..4 {
                run.kill(process, DeathCause::Kill);
            }
            rendezvous_name(&run.id)
        });
        let sockets = std::fs::read_to_string("/proc/net/unix").expect("the kernel lists its sockets");
        assert!(!sockets.contains(&name), "the rendezvous socket still exists");
    }
}

/// `cargo test --release -p libnccl-cpu --test cpu rank_failure -- --ignored --nocapture`
#[test]
#[ignore = "takes minutes: .ci/long"]
fn two_hundred_rank_failures_are_noticed_within_a_second() {
    let _busy = busy();
    STRICT.store(true, Relaxed);
    let first = from_environment("LIBNCCL_TEST_FAILURE_SEED").unwrap_or_else(fresh_seed);
    println!("seeds from {first} on");
    let (mut slowest, mut failures) = (Duration::ZERO, vec![]);
    for index in 0..200 {
        let seed = first + index;
        let operation =
            OPERATIONS.get(index as usize % (OPERATIONS.len() + 1)).map_or("init", |(name, _)| name);
        let test = if operation == "init" { fail_one_rank_at_init } else { fail_one_rank };
        match std::panic::catch_unwind(|| test(operation, seed)) {
            Ok(noticed) => {
                slowest = slowest.max(noticed);
                println!("{index}: {operation}, seed {seed}: {noticed:?}, slowest so far {slowest:?}");
            }
            Err(_) => failures.push(format!("{operation} with seed {seed}")),
        }
    }
    assert!(failures.is_empty(), "{} of 200 failed: {failures:?}", failures.len());
}

/// With `LIBNCCL_CPU_FAILURES=wait`: rank 1 goes in one of the ways; a call of rank 0 that waits for it ends once rank 0 aborts.
fn call_beside_a_failed_peer(process: &RankProcess) {
    let [way, kind] = &process.arguments[..] else { panic!("not two arguments") };
    let mut config =
        ncclConfig_t { blocking: i32::from(kind != "nonblocking"), ..ncclConfig_t::initializer() };
    let mut comm = ptr::null_mut();
    let rank = process.rank() as i32;
    let code = nccl!(ncclCommInitRankConfig(&mut comm, 2, process.id, rank, &mut config));
    assert!(code == OK || code == PROGRESS, "{}", last_error());
    assert_eq!(wait_async(comm), OK);
    if rank == 1 {
        match way.as_str() {
            "abort" => assert_eq!(nccl!(ncclCommAbort(comm)), OK),
            "destroy" => Comm(comm).destroy(),
            _ => {}
        }
        return;
    }
    let handle = comm.addr();
    let receive = move || {
        let (comm, mut place) = (ptr::without_provenance_mut(handle), [0_f32; 4]);
        let mut start = || nccl!(ncclRecv(place.as_mut_ptr().cast(), 4, F32, 1, comm, STREAM));
        match kind.as_str() {
            "group" => {
                assert_eq!([nccl!(ncclGroupStart()), start()], [OK; 2]);
                nccl!(ncclGroupEnd())
            }
            _ => start(),
        }
    };
    thread::scope(|scope| {
        let waiting = scope.spawn(receive);
        // The other process sends a line once this one has reported the failure.
        std::io::stdin().read_line(&mut String::new()).unwrap();
        if kind == "nonblocking" {
            assert_eq!(waiting.join().unwrap(), PROGRESS);
            assert_eq!(async_error(comm), PROGRESS);
            assert_eq!(nccl!(ncclCommAbort(comm)), OK);
        } else {
            assert_eq!(async_error(comm), OK, "as in NCCL");
            assert!(!waiting.is_finished());
            assert_eq!(nccl!(ncclCommAbort(comm)), OK);
            assert_eq!(waiting.join().unwrap(), REMOTE);
        }
    });
    eprintln!("ended by its own abort");
}

#[test]
fn operation_with_a_failed_peer_stays_pending_until_the_own_abort_if_failures_wait() {
    for (way, reason) in [
        ("abort", "rank 1 aborted the communicator"),
        ("destroy", "rank 1 has left: its communicator was finalized or destroyed"),
        ("exit", "rank 1 died: its process ended without destroying the communicator"),
    ] {
        for kind in ["alone", "group", "nonblocking"] {
            let id = unique_id();
            let start = |rank| {
                let mut command = processes::command(&format!("pending {way} {kind}"), &id, 2, &[rank]);
                command.env("LIBNCCL_CPU_FAILURES", "wait").stdin(Stdio::piped()).stdout(Stdio::null());
                command.spawn().unwrap()
            };
            let [mut waiting, failing] = [start(0), start(1)];
            let mut lines = BufReader::new(waiting.stderr.take().unwrap()).lines().map(Result::unwrap);
            let pending = lines
                .find(|line| line.contains("it stays pending until this rank aborts"))
                .expect("a report");
            assert!(pending.contains(&format!("an operation failed: {reason}; ")), "{pending}");
            assert!(pending.ends_with(" [failed-operation]"), "{pending}");
            waiting.stdin.take().unwrap().write_all(b"go\n").unwrap();
            assert!(lines.any(|line| line == "ended by its own abort"), "{way} {kind}");
            processes::finish(waiting);
            processes::finish(failing);
        }
    }
}

/// `LIBNCCL_CPU_TIMEOUT` ends the call on the host.
fn call_with_a_limit(process: &RankProcess) {
    let comm = process.join();
    if process.rank() == 0 {
        let place = [0_f32; 4].as_mut_ptr().cast();
        assert_eq!(nccl!(ncclRecv(place, 4, F32, 1, comm.0, STREAM)), REMOTE);
        assert_eq!(async_error(comm.0), REMOTE);
    }
    comm.destroy();
}

#[test]
fn limit_of_waits_ends_an_operation_that_stays_pending() {
    let id = unique_id();
    let start = |rank| {
        let mut command = processes::command("limit", &id, 2, &[rank]);
        command.env("LIBNCCL_CPU_FAILURES", "wait").envs(processes::limits()).spawn().unwrap()
    };
    let printed = [start(0), start(1)].map(processes::finish).concat();
    assert!(printed.contains("it stays pending until this rank aborts"), "{printed}");
}
