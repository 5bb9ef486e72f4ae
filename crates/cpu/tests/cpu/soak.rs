//! Random operations on random communicators, all results checked.
//!
//! Six ranks follow one program, which each of them generates from the same seed: collectives of any kind,
//! type, reduction, count and root, in place or not, sends and receives, alone and in groups, on the communicator
//! of all ranks and on communicators that are split, shrunk or created from new ids, and destroyed again.
//!
//! A failure prints its seed; `LIBNCCL_TEST_SOAK_SEED=<seed> cargo test -p libnccl-cpu --test cpu soak` repeats it.

use std::process::{Child, Stdio};
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use crate::common::call::{Block, Operation, Plan, TYPES};
use crate::common::processes::{self, RankProcess};
use crate::common::{Comm, OK, STREAM, busy, init_rank, last_error, unique_id};
use libnccl::sys::{ncclComm_t, ncclDataType_t, ncclResult_t, ncclUniqueId};
use libnccl_test_support::random_inputs::{Random, fresh_seed, from_environment, mix};

const RANKS: usize = 6;

/// Maximum number of elements of a block.
const MAX_COUNT: usize = 200_000;

/// Maximum number of bytes in a rank's buffer of one operation.
const MAX_BYTES: usize = 8 << 20;

/// Maximum number of communicators besides that of all ranks.
const MAX_COMMS: usize = 8;

/// Steps between two checks of the clock, which all ranks make together.
const STEPS_PER_CHECK: usize = 8;

/// Time without progress after which a soak counts as hung.
const LIMIT: Duration = Duration::from_secs(30);

/// Returns a random call.
fn plan(random: &mut Random, ranks: usize) -> Plan {
    let (operation, data) = (random.pick(&Operation::all()), random.pick(&TYPES));
    let largest = match random.below(32) {
        0 => MAX_COUNT,
        1 | 2 => 40_000,
        3..8 => 5000,
        8..20 => 600,
        _ => 16,
    };
    let count = random.below(largest + 1).min(MAX_BYTES / ranks / data.size);
    Plan { operation, data, count, ranks, case: random.next() >> 8 }
}

/// A communicator, as all ranks know it: its members in rank order, and this rank's handle if it is one.
struct KnownComm {
    members: Vec<usize>,
    comm: Option<ncclComm_t>,
}

/// Progress of a soak, for the watchdog.
#[derive(Debug, Default)]
struct Progress {
    operations: AtomicU64,
    splits: AtomicU64,
    /// Each rank's current step.
    current: [Mutex<String>; RANKS],
}

/// A rank of the soak.
struct Soak<'a> {
    rank: usize,
    seed: u64,
    step: u64,
    /// Generates the program, and is the same on all ranks.
    random: Random,
    /// Generates this rank's own choices.
    own: Random,
    /// This rank's memory that was used before.
    kept: Vec<Block>,
    known: Vec<KnownComm>,
    progress: &'a Progress,
}

type Outcome<T = ()> = Result<T, String>;

impl Soak<'_> {
    /// Runs until `end`, and then destroys the communicators, or aborts them after a failure, so that no rank waits for
    /// this one.
    fn run(all: ncclComm_t, rank: usize, seed: u64, end: Instant, progress: &Progress) -> Outcome {
        let mut soak = Soak {
            rank,
            seed,
            step: 0,
            random: Random(seed),
            own: Random(mix(seed ^ rank as u64)),
            kept: vec![],
            known: vec![KnownComm { members: (0..RANKS).collect(), comm: Some(all) }],
            progress,
        };
        let outcome = soak.steps(end);
        for comm in soak.known.iter().filter_map(|known| known.comm) {
            let code =
                if outcome.is_ok() { nccl!(ncclCommDestroy(comm)) } else { nccl!(ncclCommAbort(comm)) };
            if outcome.is_ok() {
                soak.expect(code, "ncclCommDestroy")?;
            }
        }
        outcome
    }

    fn note(&self, what: &str) {
        let text = format!("step {}: {what}", self.step);
        *self.progress.current[self.rank].lock().unwrap_or_else(PoisonError::into_inner) = text;
    }

    fn steps(&mut self, end: Instant) -> Outcome {
        while self.continues(end)? {
            for _ in 0..STEPS_PER_CHECK {
                self.step += 1;
                match self.random.below(12) {
                    0 => self.derive()?,
                    1 => self.destroy_one()?,
                    _ => self.operate()?,
                }
            }
        }
        Ok(())
    }

    fn expect(&self, code: ncclResult_t, what: &str) -> Outcome {
        if code == OK {
            return Ok(());
        }
        Err(format!(
            "seed {}, step {}, rank {}: {what}: {code:?}: {}",
            self.seed,
            self.step,
            self.rank,
            last_error()
        ))
    }

    /// Returns whether to continue, by rank 0's clock.
    fn continues(&self, end: Instant) -> Outcome<bool> {
        self.note("the broadcast of whether to continue");
        let mut on = u8::from(self.rank == 0 && Instant::now() < end);
        let all = self.known[0].comm.expect("every rank is a member");
        let code =
            nccl!(ncclBcast(ptr::from_mut(&mut on).cast(), 1, ncclDataType_t::ncclUint8, 0, all, STREAM));
        self.expect(code, "the broadcast of whether to continue")?;
        Ok(on == 1)
    }

    /// Runs one to four operations of any communicators, in a group or one after another.
    fn operate(&mut self) -> Outcome {
        let calls = if self.random.once_in(3) { 2 + self.random.below(3) } else { 1 };
        let grouped = self.random.coin();
        let mut local_calls = vec![];
        for _ in 0..calls {
            let index = self.random.below(self.known.len());
            let members = &self.known[index].members;
            let plan = plan(&mut self.random, members.len());
            let place = members.iter().position(|member| *member == self.rank);
            if let (Some(comm), Some(rank)) = (self.known[index].comm, place) {
                let from_nccl = (self.own.coin(), self.own.coin());
                local_calls.push((comm, plan, plan.prepare(rank, from_nccl, &mut self.kept)));
            }
        }
        if grouped {
            self.expect(nccl!(ncclGroupStart()), "ncclGroupStart")?;
        }
        let mut what = "a group of".to_owned();
        for (comm, plan, call) in &mut local_calls {
            self.note(&format!("{plan:?}"));
            self.expect(call.call(Comm(*comm)), &format!("{plan:?}"))?;
            what += &format!("\n    {plan:?}");
        }
        if grouped {
            self.note(&what);
            self.expect(nccl!(ncclGroupEnd()), &what)?;
        }
        self.progress.operations.fetch_add(local_calls.len() as u64, Relaxed);
        for (_, _, call) in local_calls {
            let checked = call.check(&mut self.kept);
            checked.map_err(|text| format!("seed {}, step {}: {text}", self.seed, self.step))?;
        }
        Ok(())
    }

    /// Creates communicators from an existing one.
    fn derive(&mut self) -> Outcome {
        if self.known.len() > MAX_COMMS {
            return self.destroy_one();
        }
        let parent = self.random.below(self.known.len());
        let members = self.known[parent].members.clone();
        let derivation =
            self.random.pick(&[Derivation::Split, Derivation::Split, Derivation::Shrink, Derivation::NewIds]);
        let colors = if derivation == Derivation::Shrink { 1 } else { 1 + self.random.below(3) };
        // A color, or none, and a key for each; keys may be equal, and then the parent's order counts.
        let choices: Vec<(Option<usize>, i32)> = members
            .iter()
            .map(|_| {
                let color = (!self.random.once_in(6)).then(|| self.random.below(colors));
                let key = self.random.below(5) as i32 - 2;
                (color, if derivation == Derivation::Shrink { 0 } else { key })
            })
            .collect();
        // A shrink has to exclude a rank.
        let all_stay = choices.iter().all(|(color, _)| color.is_some());
        let derivation =
            if derivation == Derivation::Shrink && all_stay { Derivation::Split } else { derivation };
        let groups: Vec<Vec<usize>> = (0..colors)
            .map(|color| {
                let mut places: Vec<usize> =
                    (0..members.len()).filter(|place| choices[*place].0 == Some(color)).collect();
                places.sort_by_key(|place| choices[*place].1);
                places.into_iter().map(|place| members[place]).collect()
            })
            .collect();
        self.note(&format!("{derivation:?} of {members:?} into {groups:?}"));
        let mine = match (members.iter().position(|member| *member == self.rank), self.known[parent].comm) {
            (Some(place), Some(comm)) => match derivation {
                Derivation::Split => self.split_here(comm, choices[place])?,
                Derivation::Shrink => self.shrink_here(comm, &choices, place)?,
                Derivation::NewIds => self.join_new(comm, &members, choices[place].0, &groups)?,
            },
            _ => None,
        };
        for members in groups.into_iter().filter(|members| !members.is_empty()) {
            let comm = members.contains(&self.rank).then_some(mine).flatten();
            if let Some(comm) = comm {
                self.check_identity(comm, &members)?;
            }
            self.known.push(KnownComm { members, comm });
        }
        self.progress.splits.fetch_add(1, Relaxed);
        Ok(())
    }

    fn split_here(
        &self,
        parent: ncclComm_t,
        (color, key): (Option<usize>, i32),
    ) -> Outcome<Option<ncclComm_t>> {
        let mut child = ptr::null_mut();
        let number = color.map_or(libnccl::sys::NCCL_SPLIT_NOCOLOR, |color| color as i32);
        let code = nccl!(ncclCommSplit(parent, number, key, &mut child, ptr::null_mut()));
        self.expect(code, "ncclCommSplit")?;
        if child.is_null() != color.is_none() {
            return Err(format!("seed {}, step {}: color {color:?} gave {child:?}", self.seed, self.step));
        }
        Ok(color.map(|_| child))
    }

    /// Shrinks by the ranks without a color, which make no call.
    fn shrink_here(
        &self,
        parent: ncclComm_t,
        choices: &[(Option<usize>, i32)],
        place: usize,
    ) -> Outcome<Option<ncclComm_t>> {
        let mut excluded: Vec<i32> = (0..choices.len())
            .filter(|place| choices[*place].0.is_none())
            .map(|place| place as i32)
            .collect();
        if choices[place].0.is_none() {
            return Ok(None);
        }
        let (list, length) = (excluded.as_mut_ptr(), excluded.len() as i32);
        let (mut child, flags) = (ptr::null_mut(), libnccl::sys::NCCL_SHRINK_DEFAULT as i32);
        let code = nccl!(ncclCommShrink(parent, list, length, &mut child, ptr::null_mut(), flags));
        self.expect(code, "ncclCommShrink")?;
        Ok(Some(child))
    }

    /// Initialises new communicators: the first member of each creates an id, and broadcasts it on the parent.
    fn join_new(
        &self,
        parent: ncclComm_t,
        members: &[usize],
        color: Option<usize>,
        groups: &[Vec<usize>],
    ) -> Outcome<Option<ncclComm_t>> {
        let mut mine = None;
        for (index, group) in groups.iter().enumerate().filter(|(_, group)| !group.is_empty()) {
            let mut id = if group[0] == self.rank { unique_id() } else { ncclUniqueId::default() };
            let root = members.iter().position(|member| *member == group[0]).expect("a member") as i32;
            let (place, length) = (id.internal.as_mut_ptr().cast(), id.internal.len());
            let code =
                nccl!(ncclBroadcast(place, place, length, ncclDataType_t::ncclInt8, root, parent, STREAM));
            self.expect(code, "the broadcast of an id")?;
            if color == Some(index) {
                mine = Some((id, group));
            }
        }
        let Some((id, group)) = mine else { return Ok(None) };
        let place = group.iter().position(|member| *member == self.rank).expect("a member");
        match init_rank(id, group.len(), place) {
            Ok(Comm(comm)) => Ok(Some(comm)),
            Err(code) => self.expect(code, "ncclCommInitRank").map(|()| None),
        }
    }

    fn check_identity(&self, comm: ncclComm_t, members: &[usize]) -> Outcome {
        let (mut count, mut rank) = (0, 0);
        self.expect(nccl!(ncclCommCount(comm, &mut count)), "ncclCommCount")?;
        self.expect(nccl!(ncclCommUserRank(comm, &mut rank)), "ncclCommUserRank")?;
        if count as usize == members.len() && members.get(rank as usize) == Some(&self.rank) {
            return Ok(());
        }
        Err(format!(
            "seed {}, step {}: rank {} is number {rank} of {count} in a communicator of {members:?}",
            self.seed, self.step, self.rank
        ))
    }

    /// Destroys a random communicator, but never that of all ranks.
    fn destroy_one(&mut self) -> Outcome {
        if self.known.len() == 1 {
            return Ok(());
        }
        let index = 1 + self.random.below(self.known.len() - 1);
        let finalize = self.random.coin();
        let Some(comm) = self.known.remove(index).comm else { return Ok(()) };
        self.note("destroying a communicator");
        if finalize {
            self.expect(nccl!(ncclCommFinalize(comm)), "ncclCommFinalize")?;
        }
        self.expect(nccl!(ncclCommDestroy(comm)), "ncclCommDestroy")
    }
}

/// A way to create communicators from an existing one.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Derivation {
    Split,
    /// One new communicator of the ranks that are not excluded.
    Shrink,
    /// New unique ids.
    NewIds,
}

/// Returns the seed of a soak, which rank processes get from their environment.
fn seed() -> u64 {
    from_environment("LIBNCCL_TEST_SOAK_SEED").unwrap_or_else(fresh_seed)
}

/// Ends the program if the soak makes no progress: threads that hang cannot be ended otherwise.
fn watch(progress: &Progress, title: &str, done: &AtomicBool, verbose: bool) {
    const TICK: Duration = Duration::from_millis(20);
    let (start, mut reported) = (Instant::now(), Instant::now());
    let (mut last, mut idle) = (0, Duration::ZERO);
    while !done.load(Relaxed) {
        // Counts ticks rather than time: while the machine is suspended, nothing hangs.
        thread::sleep(TICK);
        let (operations, splits) = (progress.operations.load(Relaxed), progress.splits.load(Relaxed));
        idle = if operations == last { idle + TICK } else { Duration::ZERO };
        last = operations;
        if idle > LIMIT {
            eprintln!("{title}: no progress for {LIMIT:?} after {operations} operations, {splits} splits");
            for (rank, current) in progress.current.iter().enumerate() {
                let current = current.lock().unwrap_or_else(PoisonError::into_inner);
                // Ranks of other processes have no entry.
                if !current.is_empty() {
                    eprintln!("rank {rank}: {current}");
                }
            }
            std::process::exit(101);
        }
        if verbose && reported.elapsed() > Duration::from_secs(5) {
            reported = Instant::now();
            let elapsed = start.elapsed().as_secs();
            println!("{title}: {elapsed} s: {operations} operations, {splits} splits, summed over its ranks");
        }
    }
}

/// Runs some ranks of a soak as threads of this process.
fn on_threads(ranks: &[usize], id: ncclUniqueId, seed: u64, time: Duration, verbose: bool) -> Outcome {
    let (progress, done, title) =
        (Progress::default(), AtomicBool::new(false), format!("soak with seed {seed}"));
    let end = Instant::now() + time;
    let outcomes: Vec<Outcome> = thread::scope(|scope| {
        let threads: Vec<_> = ranks
            .iter()
            .map(|rank| {
                let progress = &progress;
                scope.spawn(move || {
                    let Comm(comm) = init_rank(id, RANKS, *rank)
                        .map_err(|code| format!("seed {seed}: init: {code:?}: {}", last_error()))?;
                    Soak::run(comm, *rank, seed, end, progress)
                })
            })
            .collect();
        scope.spawn(|| watch(&progress, &title, &done, verbose));
        let outcomes =
            threads.into_iter().map(|thread| thread.join().unwrap_or(Err(format!("{title}: a panic"))));
        let outcomes = outcomes.collect();
        done.store(true, Relaxed);
        outcomes
    });
    let (operations, splits) = (progress.operations.into_inner(), progress.splits.into_inner());
    println!("{title}: {operations} operations, {splits} splits, summed over {} ranks", ranks.len());
    let failures: Vec<String> = outcomes.into_iter().filter_map(Result::err).collect();
    if failures.is_empty() {
        // Even the shortest soak completes an operation.
        return if operations > 0 { Ok(()) } else { Err(format!("{title}: no operation has completed")) };
    }
    Err(failures.join("\n"))
}

/// Runs a soak in processes, each with some of the ranks.
fn in_processes(ranks_of_processes: &[&[usize]], seed: u64, time: Duration, verbose: bool) -> Outcome {
    let id = unique_id();
    let children: Vec<Child> = ranks_of_processes
        .iter()
        .enumerate()
        .map(|(index, ranks)| {
            processes::command("soak", &id, RANKS, ranks)
                .env("LIBNCCL_TEST_SOAK_SEED", seed.to_string())
                .env("LIBNCCL_TEST_SOAK_MILLISECONDS", time.as_millis().to_string())
                .env("LIBNCCL_TEST_SOAK_VERBOSE", u8::from(verbose && index == 0).to_string())
                .stdout(if verbose && index == 0 { Stdio::inherit() } else { Stdio::null() })
                .spawn()
                .expect("this program can be started")
        })
        .collect();
    // Each process has its own watchdog, so each ends.
    let mut failures = vec![];
    for child in children {
        let output = child.wait_with_output().expect("a child ends");
        if !output.status.success() {
            failures.push(format!("{}: {}", output.status, String::from_utf8_lossy(&output.stderr)));
        }
    }
    if failures.is_empty() { Ok(()) } else { Err(format!("seed {seed}:\n{}", failures.join("\n"))) }
}

rank_tasks! { "soak" => soak_in_process }

/// Runs this process's ranks of a soak.
fn soak_in_process(process: &RankProcess) {
    let number = |name| from_environment(name).unwrap_or_else(|| panic!("{name} is not set"));
    let time = Duration::from_millis(number("LIBNCCL_TEST_SOAK_MILLISECONDS"));
    let verbose = number("LIBNCCL_TEST_SOAK_VERBOSE") == 1;
    on_threads(&process.own, process.id, seed(), time, verbose).unwrap_or_else(|text| panic!("{text}"));
}

const SHORT: Duration = Duration::from_millis(600);

#[test]
fn random_operations_on_threads_match_reference() {
    let _busy = busy();
    on_threads(&[0, 1, 2, 3, 4, 5], unique_id(), seed(), SHORT, false)
        .unwrap_or_else(|text| panic!("{text}"));
}

#[test]
fn random_operations_in_processes_match_reference() {
    let _busy = busy();
    in_processes(&[&[0], &[3, 1], &[2], &[4], &[5]], seed(), SHORT, false)
        .unwrap_or_else(|text| panic!("{text}"));
}

/// `LIBNCCL_TEST_SOAK_SECONDS=600 cargo test --release -p libnccl-cpu --test cpu soak -- --ignored --nocapture`
#[test]
#[ignore = "takes as long as LIBNCCL_TEST_SOAK_SECONDS says: .ci/long"]
fn random_operations_for_given_time_match_reference() {
    let _busy = busy();
    let seconds = from_environment("LIBNCCL_TEST_SOAK_SECONDS").unwrap_or(60);
    let (half, seed) = (Duration::from_secs(seconds) / 2, seed());
    println!("seed {seed}: {half:?} with threads, then {half:?} with processes");
    on_threads(&[0, 1, 2, 3, 4, 5], unique_id(), seed, half, true).unwrap_or_else(|text| panic!("{text}"));
    in_processes(&[&[0], &[3, 1], &[2], &[4], &[5]], seed + 1, half, true)
        .unwrap_or_else(|text| panic!("{text}"));
}
