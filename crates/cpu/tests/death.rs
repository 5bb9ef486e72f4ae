//! Ranks in processes that repeat one operation until one of them dies: the others get an error within a
//! second, and nothing is left behind.
//!
//! A rank's process is this test program, told by its environment to be one. It says on standard error what
//! happens to it and when, and takes orders on standard input.
//!
//! A failure tells its seed. `LIBNCCL_DEATH_SEED=<seed> cargo test -p libnccl-cpu --test death <operation>`
//! repeats it, as far as the timing of processes can be repeated.
#![allow(unsafe_code)]

mod common;
#[path = "common/random.rs"]
mod random;
#[path = "common/worker.rs"]
mod worker;

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Stdio};
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, Once, OnceLock};
use std::thread;
use std::time::{Duration, Instant};

use common::{Comm, OK, REMOTE, alone, hex, init_rank, unique_id, wait_for_guests};
use libnccl::sys::{ncclComm_t, ncclDataType_t, ncclRedOp_t, ncclResult_t, ncclUniqueId};
use random::Random;
use worker::{Orders, orders};

/// How soon the others have to know; the short form, which runs on any machine whatever else that does, only finds
/// those who never do.
const NOTICE: Duration = Duration::from_secs(1);
static STRICT: AtomicBool = AtomicBool::new(false);

/// How long anything may take before it counts as hung.
const LIMIT: Duration = Duration::from_secs(30);

const F32: ncclDataType_t = ncclDataType_t::ncclFloat32;
const SUM: ncclRedOp_t = ncclRedOp_t::ncclSum;

/// Elements of a small operation, and of a large one, which takes many steps, or is mapped, or read.
const SMALL: usize = 100;
const LARGE: usize = 1_100_000;
/// Elements of a block that goes from one rank to one rank.
const BLOCK: usize = LARGE;

macro_rules! operations {
    ($($name:ident: $step:expr;)*) => {
        /// What a rank can repeat: a name, and one step of it.
        const OPERATIONS: &[(&str, fn(&Rank, usize) -> ncclResult_t)] = &[$((stringify!($name), $step)),*];

        $(
            #[test]
            fn $name() {
                few(stringify!($name), a_death);
            }
        )*
    };
}

operations! {
    all_reduce_small: |rank, _| rank.all_reduce(SMALL, rank.comm);
    all_reduce_large: |rank, _| rank.all_reduce(LARGE, rank.comm);
    broadcast: |rank, root| {
        nccl!(ncclBroadcast(rank.send, rank.receive, LARGE, F32, root as i32, rank.comm, STREAM))
    };
    reduce: |rank, root| {
        nccl!(ncclReduce(rank.send, rank.receive, LARGE, F32, SUM, root as i32, rank.comm, STREAM))
    };
    all_gather: |rank, _| nccl!(ncclAllGather(rank.send, rank.receive, BLOCK, F32, rank.comm, STREAM));
    reduce_scatter: |rank, _| {
        nccl!(ncclReduceScatter(rank.send, rank.receive, BLOCK, F32, SUM, rank.comm, STREAM))
    };
    all_to_all: |rank, _| nccl!(ncclAlltoAll(rank.send, rank.receive, BLOCK, F32, rank.comm, STREAM));
    gather: |rank, root| {
        nccl!(ncclGather(rank.send, rank.receive, BLOCK, F32, root as i32, rank.comm, STREAM))
    };
    scatter: |rank, root| {
        nccl!(ncclScatter(rank.send, rank.receive, BLOCK, F32, root as i32, rank.comm, STREAM))
    };
    ring: |rank, _| rank.ring();
    split: |rank, _| rank.split();
}

const STREAM: libnccl::sys::cudaStream_t = ptr::null_mut();

/// A rank in its process.
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

    /// Splits the ranks into odd and even ones, and lets these do something.
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

/// Nanoseconds of a clock that all processes of the host share, which `Instant` does not tell.
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

/// Tells the parent something, in one piece.
fn say(what: &str) {
    let line = format!("\n{SAYS}{} {what}\n", now());
    // Nobody hears it if the parent is gone, and then the process ends anyway.
    let _ = std::io::stderr().write_all(line.as_bytes());
}

/// What the lines begin with that are meant for the parent.
const SAYS: &str = "a rank says ";

/// Zeroed memory for `count` elements, from NCCL or from the allocator. It lives as long as the process.
fn memory(count: usize, from_nccl: bool) -> *mut std::ffi::c_void {
    if !from_nccl {
        return vec![0f32; count].leak().as_mut_ptr().cast();
    }
    let mut memory = ptr::null_mut();
    assert_eq!(nccl!(ncclMemAlloc(&mut memory, count * size_of::<f32>())), OK);
    memory
}

/// What a rank's process does.
#[test]
fn worker() {
    static PANIC: AtomicBool = AtomicBool::new(false);
    static FINISH: OnceLock<String> = OnceLock::new();

    let Some(Orders { task: operation, id, ranks, own }) = orders() else { return };
    let none = rustix::process::Rlimit { current: Some(0), maximum: Some(0) };
    rustix::process::setrlimit(rustix::process::Resource::Core, none).expect("no core files");
    thread::spawn(|| {
        for order in std::io::stdin().lines().map_while(Result::ok) {
            match order.as_str() {
                "panic" => PANIC.store(true, Relaxed),
                "fork" => fork(),
                "exit" => {
                    say("dying");
                    std::process::exit(0);
                }
                "abort" => {
                    say("dying");
                    std::process::abort();
                }
                other => FINISH.set(other.to_owned()).expect("one end"),
            }
        }
        // The parent is gone.
        std::process::exit(1);
    });

    let from_nccl = random::from_environment("LIBNCCL_DEATH_FROM_NCCL") == Some(1);
    let (rank, count) = (own[0], LARGE.max(BLOCK * ranks));
    say("joining");
    let Comm(comm) = match init_rank(id, ranks, rank) {
        Ok(comm) => comm,
        Err(code) => return say(&format!("error {}", code.0)),
    };
    let me = Rank { comm, ranks, rank, send: memory(count, from_nccl), receive: memory(count, from_nccl) };
    let (_, step) = OPERATIONS.iter().find(|(name, _)| *name == operation).expect("an operation");
    say("joined");
    let mut turn = 0;
    let code = loop {
        if PANIC.load(Relaxed) {
            say("dying");
            panic!("on purpose");
        }
        match step(&me, turn % ranks) {
            OK => turn += 1,
            code => break code,
        }
    };
    say(&format!("error {}", code.0));
    // Each has to notice by itself, and not because another one left.
    while FINISH.get().is_none() {
        thread::sleep(Duration::from_millis(1));
    }
    let abort = FINISH.get().is_some_and(|how| how == "finish by aborting");
    assert_eq!(if abort { nccl!(ncclCommAbort(comm)) } else { nccl!(ncclCommDestroy(comm)) }, OK);
    say("ended");
}

/// Leaves a process that has all that this one has, and does nothing with it.
fn fork() {
    // SAFETY: what the new process calls may be called by a process that had several threads.
    match unsafe { libc::fork() } {
        0 => {
            // SAFETY: as above; it ends by itself if nobody else sees to it.
            unsafe { libc::alarm(LIMIT.as_secs() as u32) };
            loop {
                // SAFETY: as above.
                unsafe { libc::pause() };
            }
        }
        process => say(&format!("forked {process}")),
    }
}

/// What the parent hears of a process.
#[derive(Debug, Clone)]
struct Event {
    process: usize,
    time: u64,
    what: String,
}

impl std::fmt::Display for Event {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "at {} us process {}: {}", self.time / 1000, self.process, self.what)
    }
}

/// The processes of a run, which ends with it.
struct Ranks {
    ranks: usize,
    operation: &'static str,
    from_nccl: bool,
    id: ncclUniqueId,
    processes: Vec<Child>,
    sender: Sender<Event>,
    receiver: Receiver<Event>,
    events: Vec<Event>,
    /// What other lines the processes printed: panics.
    text: Arc<Mutex<String>>,
    /// What failures begin with.
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
        // From here on it counts.
        standstill();
        let (sender, receiver) = channel();
        let (id, text) = (unique_id(), Default::default());
        let (processes, events) = (vec![], vec![]);
        Self { ranks, operation, from_nccl, id, processes, sender, receiver, events, text, title }
    }

    /// Starts a process for a rank, and returns its index.
    fn start(&mut self, rank: usize) -> usize {
        let process = self.processes.len();
        let mut child = worker::command(self.operation, &self.id, self.ranks, &[rank])
            .env("LIBNCCL_DEATH_FROM_NCCL", u8::from(self.from_nccl).to_string())
            .stdin(Stdio::piped())
            .spawn()
            .expect("this program can be started");
        let errors = BufReader::new(child.stderr.take().expect("a pipe"));
        let (sender, text) = (self.sender.clone(), Arc::clone(&self.text));
        thread::spawn(move || {
            for line in errors.lines().map_while(Result::ok) {
                let said = line.strip_prefix(SAYS).and_then(|said| said.split_once(' '));
                match said.and_then(|(time, what)| Some((time.parse().ok()?, what.to_owned()))) {
                    // Nobody listens any more if the run is over.
                    Some((time, what)) => drop(sender.send(Event { process, time, what })),
                    None if line.is_empty() => {}
                    None => *text.lock().expect("text") += &format!("process {process}: {line}\n"),
                }
            }
        });
        self.processes.push(child);
        process
    }

    fn order(&mut self, process: usize, what: &str) {
        let pipe = self.processes[process].stdin.as_mut().expect("a pipe");
        // It may have ended.
        let _ = writeln!(pipe, "{what}");
    }

    /// Lets a process die, and returns when.
    fn end(&mut self, process: usize, how: End) -> u64 {
        if how == End::Kill {
            let time = now();
            self.processes[process].kill().expect("a process can be killed");
            return time;
        }
        self.order(process, how.order());
        self.expect(LIMIT, "the victim does not die", |ranks| ranks.said(process, "dying"));
        self.event(process, "dying").expect("just seen").time
    }

    /// What a process said that begins so.
    fn event(&self, process: usize, what: &str) -> Option<&Event> {
        self.events.iter().find(|event| event.process == process && event.what.starts_with(what))
    }

    fn said(&self, process: usize, what: &str) -> bool {
        self.event(process, what).is_some()
    }

    /// Listens until `done`, and says whether it came to that in time.
    fn listen(&mut self, limit: Duration, done: impl Fn(&Self) -> bool) -> bool {
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
        if !self.listen(limit, done) {
            self.fail(&format!("after {limit:?}: {otherwise}"));
        }
    }

    fn fail(&self, what: &str) -> ! {
        let text = self.text.lock().expect("text").clone();
        let events: Vec<String> = self.events.iter().map(ToString::to_string).collect();
        panic!("{}: {what}\n{}\n{text}", self.title, events.join("\n"))
    }

    /// Expects each of these processes to have an error soon after `death`, and returns the slowest's time.
    fn expect_errors(&mut self, processes: &[usize], death: u64, code: Option<ncclResult_t>) -> Duration {
        self.expect(LIMIT, "a survivor hangs", |ranks| {
            processes.iter().all(|process| ranks.said(*process, "error"))
        });
        let mut slowest = Duration::ZERO;
        for process in processes {
            let event = self.event(*process, "error").expect("just seen").clone();
            if code.is_some_and(|code| event.what != format!("error {}", code.0)) {
                self.fail(&format!("process {process} says {:?}, expected the code {code:?}", event.what));
            }
            let Some(after) = event.time.checked_sub(death) else {
                self.fail(&format!("process {process} has an error before anybody died"));
            };
            slowest = slowest.max(Duration::from_nanos(after));
        }
        let standstill = standstill();
        let notice = if STRICT.load(Relaxed) { NOTICE } else { 10 * NOTICE };
        if slowest > notice + standstill {
            self.fail(&format!(
                "it took {slowest:?} until the last one noticed; this process stood still for {standstill:?}"
            ));
        }
        slowest
    }

    /// Ends the survivors' communicators: neither way may hang.
    fn finish(&mut self, processes: &[usize], random: &mut Random) {
        for process in processes {
            self.order(*process, random.pick(&["finish by aborting", "finish by destroying"]));
        }
        self.expect(LIMIT, "a survivor does not come to its end", |ranks| {
            processes.iter().all(|process| ranks.said(*process, "ended"))
        });
    }
}

/// The longest time since the last call for which this process did not get to run: then the machine stood
/// still, or had too much to do, and nobody can be blamed for being late.
fn standstill() -> Duration {
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

/// How a rank dies.
#[derive(Debug, Clone, Copy, PartialEq)]
enum End {
    Kill,
    Exit,
    Abort,
    Panic,
}

impl End {
    fn order(self) -> &'static str {
        match self {
            Self::Kill => "kill",
            Self::Exit => "exit",
            Self::Abort => "abort",
            Self::Panic => "panic",
        }
    }
}

/// Whatever of ours a process can leave behind outside itself.
fn remains() -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    for folder in ["/dev/shm", "/tmp"] {
        // A system may have none.
        for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
            let name = entry.file_name().to_string_lossy().into_owned();
            if name.to_lowercase().contains("nccl") {
                names.insert(format!("{folder}/{name}"));
            }
        }
    }
    names
}

/// Runs `body` and expects that nothing is left afterwards.
fn leaving_nothing<T>(title: &str, body: impl FnOnce() -> T) -> T {
    let before = remains();
    let result = body();
    let left: Vec<String> = remains().difference(&before).cloned().collect();
    assert!(left.is_empty(), "{title}: left behind: {left:?}");
    result
}

/// All ranks run, and one dies. Returns how long the others took to notice.
fn a_death(operation: &'static str, seed: u64) -> Duration {
    let mut random = Random::new(seed);
    let (ranks, from_nccl) = (3 + random.below(2), random.coin());
    // Processes are numbered in the order of their start, which is not that of the ranks.
    let (order, victim) = (random.shuffled(ranks), random.below(ranks));
    let end = random.pick(&[End::Kill, End::Kill, End::Exit, End::Abort, End::Panic]);
    let delay = Duration::from_micros(random.below(150_000) as u64);
    let title = format!(
        "operation {operation}, seed {seed}: rank {} of {ranks}, process {victim}, dies by {end:?} after \
         {delay:?}, memory from {}",
        order[victim],
        if from_nccl { "ncclMemAlloc" } else { "the allocator" }
    );
    leaving_nothing(&title.clone(), || {
        let mut run = Ranks::new(operation, ranks, from_nccl, title);
        for rank in order {
            run.start(rank);
        }
        run.expect(LIMIT, "the ranks do not meet", |run| (0..ranks).all(|rank| run.said(rank, "joined")));
        thread::sleep(delay);
        let death = run.end(victim, end);
        let survivors: Vec<usize> = (0..ranks).filter(|process| *process != victim).collect();
        let slowest = run.expect_errors(&survivors, death, Some(REMOTE));
        run.finish(&survivors, &mut random);
        slowest
    })
}

/// A rank dies while the ranks meet: while one is still missing, or as the last one that comes.
fn a_death_at_init(_: &'static str, seed: u64) -> Duration {
    let mut random = Random::new(seed);
    let ranks = 3 + random.below(2);
    let order = random.shuffled(ranks);
    let one_is_missing = random.coin();
    let end = random.pick(&[End::Kill, End::Kill, End::Exit, End::Abort]);
    let delay = Duration::from_micros(random.below(if one_is_missing { 30_000 } else { 3000 }) as u64);
    let title = format!(
        "operation init, seed {seed}: one of {ranks} ranks dies by {end:?}, {delay:?} after it began to \
         join, {}",
        if one_is_missing { "while one is missing" } else { "as the last one" }
    );
    leaving_nothing(&title.clone(), || {
        let mut run = Ranks::new("all_reduce_small", ranks, false, title);
        let early = ranks - 1;
        for rank in &order[..early] {
            run.start(*rank);
        }
        wait_for_guests(&run.id, early - 1);
        if one_is_missing {
            let victim = random.below(early);
            let survivors: Vec<usize> = (0..early).filter(|process| *process != victim).collect();
            thread::sleep(delay);
            let death = run.end(victim, end);
            return run.expect_errors(&survivors, death, None);
        }
        let survivors: Vec<usize> = (0..early).collect();
        let victim = run.start(order[early]);
        run.expect(LIMIT, "a rank does not start", |run| run.said(victim, "joining"));
        thread::sleep(delay);
        let death = run.end(victim, end);
        let stirred =
            |run: &Ranks| survivors.iter().any(|rank| run.said(*rank, "joined") || run.said(*rank, "error"));
        if run.listen(NOTICE, stirred) {
            return run.expect_errors(&survivors, death, None);
        }
        // It died before anybody knew of it, so another one can take its place.
        let heir = run.start(order[early]);
        let everyone: Vec<usize> = survivors.iter().copied().chain([heir]).collect();
        run.expect(LIMIT, "the ranks do not meet after one was replaced", |run| {
            everyone.iter().all(|rank| run.said(*rank, "joined"))
        });
        let death = run.end(heir, End::Kill);
        run.expect_errors(&survivors, death, Some(REMOTE))
    })
}

/// Two deaths, with seeds that are always the same, or with the one to repeat and the next.
fn few(operation: &'static str, test: fn(&'static str, u64) -> Duration) {
    let _alone = alone();
    let first = random::from_environment("LIBNCCL_DEATH_SEED").unwrap_or(1);
    for seed in first..first + 2 {
        test(operation, seed);
    }
}

#[test]
fn init() {
    few("init", a_death_at_init);
}

/// A rank dies while the ranks meet, and a process that it has forked keeps its end of the connections open.
#[test]
fn init_with_an_heir() {
    let _alone = alone();
    for victim in 0..2 {
        let title = format!("process {victim} has forked and dies before the last rank has come");
        let mut run = Ranks::new("all_reduce_small", 3, false, title);
        for rank in 0..2 {
            run.start(rank);
            run.expect(LIMIT, "a rank does not start", |run| run.said(rank, "joining"));
            // So that the first one hosts the meeting.
            thread::sleep(Duration::from_millis(200));
        }
        run.order(victim, "fork");
        run.expect(LIMIT, "the victim does not fork", |run| run.said(victim, "forked"));
        let heir = run.event(victim, "forked").expect("just seen").what.split_once(' ').expect("a number").1;
        let heir = rustix::process::Pid::from_raw(heir.parse().expect("a number")).expect("a process");
        let death = run.end(victim, End::Kill);
        run.expect_errors(&[1 - victim], death, Some(REMOTE));
        if victim == 0 {
            // The meeting point is still there, but nobody at it.
            let late = run.start(2);
            run.expect_errors(&[late], death, Some(REMOTE));
        }
        rustix::process::kill_process(heir, rustix::process::Signal::KILL).expect("it is still there");
    }
}

/// All at once, in the middle of it: there is nobody left who could tidy up.
#[test]
fn nothing_is_left_of_ranks_that_all_die_at_once() {
    let _alone = alone();
    for from_nccl in [false, true] {
        let title = "all ranks are killed at once";
        let public = leaving_nothing(title, || {
            let mut run = Ranks::new("all_reduce_large", 4, from_nccl, title.into());
            for rank in 0..4 {
                run.start(rank);
            }
            run.expect(LIMIT, "the ranks do not meet", |run| (0..4).all(|rank| run.said(rank, "joined")));
            thread::sleep(Duration::from_millis(50));
            for process in 0..4 {
                run.end(process, End::Kill);
            }
            hex(&run.id.internal[8..24])
        });
        let sockets = std::fs::read_to_string("/proc/net/unix").expect("the kernel lists its sockets");
        assert!(!sockets.contains(&public), "the meeting point is still there");
    }
}

/// `cargo test --release -p libnccl-cpu --test death -- --ignored --nocapture`
#[test]
#[ignore = "takes minutes"]
fn two_hundred_deaths() {
    let _alone = alone();
    STRICT.store(true, Relaxed);
    let first = random::from_environment("LIBNCCL_DEATH_SEED").unwrap_or_else(random::fresh_seed);
    println!("seeds from {first} on");
    let (mut slowest, mut failures) = (Duration::ZERO, vec![]);
    for kill in 0..200 {
        let (seed, index) = (first + kill, kill as usize % (OPERATIONS.len() + 1));
        let operation = OPERATIONS.get(index).map_or("init", |(name, _)| name);
        let test = if operation == "init" { a_death_at_init } else { a_death };
        match std::panic::catch_unwind(|| test(operation, seed)) {
            Ok(noticed) => {
                slowest = slowest.max(noticed);
                println!("{kill}: {operation}, seed {seed}: {noticed:?}, slowest so far {slowest:?}");
            }
            Err(_) => failures.push(format!("{operation} with seed {seed}")),
        }
    }
    assert!(failures.is_empty(), "{} of 200 failed: {failures:?}", failures.len());
}
