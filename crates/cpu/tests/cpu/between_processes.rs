//! Collectives between processes, to the bit, over each transport: memory from `ncclMemAlloc` is mapped, other memory
//! is staged, and with `NCCL_P2P_DISABLE=1` all of it is staged. Log lines name the transport.
//!
//! The number of a case determines all that a rank does, so each rank knows what the others send and checks what it
//! receives.
#![allow(unsafe_code)]

use std::ops::RangeInclusive;
use std::process::{Child, Stdio};
use std::sync::Mutex;

use libnccl_test_support::random_inputs::Random;

use crate::common::call::{Block, Operation, Plan, TYPES, Type};
use crate::common::memory::Memory;
use crate::common::processes::{self, RankProcess};
use crate::common::reference::{Function, Op};
use crate::common::{Comm, I32, OK, STREAM, SUM, busy, last_error, on_threads, unique_id};

/// Mixtures of memory that successive cases go through.
const MIXTURES: u64 = 5;

/// The origin of the ranks' buffers.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Kind {
    Allocator,
    Nccl,
    /// Some from the allocator, some from NCCL.
    Mixed,
}

const KINDS: [Kind; 3] = [Kind::Allocator, Kind::Nccl, Kind::Mixed];

#[derive(Debug, Clone, Copy, PartialEq)]
enum Extent {
    /// The conditions that bring out each transport.
    Short,
    /// Every function, reduction and count, but few of their combinations.
    Sampled,
    Full,
}

/// A rank with its communicator, and memory that it reuses.
struct Rank {
    rank: usize,
    ranks: usize,
    comm: Comm,
    kind: Kind,
    kept: Vec<Block>,
}

impl Rank {
    /// Returns whether the send and the receive buffer are from NCCL.
    fn kinds(&self, case: u64, random: &mut Random) -> (bool, bool) {
        match self.kind {
            Kind::Allocator => (false, false),
            Kind::Nccl => (true, true),
            Kind::Mixed => match case % MIXTURES {
                0 => (true, false),
                1 => (false, true),
                2 => (self.rank.is_multiple_of(2), self.rank.is_multiple_of(2)),
                3 => (true, true),
                _ => (random.coin(), random.coin()),
            },
        }
    }

    /// Makes and checks a call with `count` elements from one rank to one rank.
    fn call(&mut self, case: u64, operation: Operation, data: Type, count: usize) {
        let plan = Plan { operation, data, count, ranks: self.ranks, case };
        let from_nccl = self.kinds(case, &mut Random(case << 8 | self.rank as u64));
        let mut call = plan.prepare(self.rank, from_nccl, &mut self.kept);
        assert_eq!(call.call(self.comm), OK, "{plan:?}: {}", last_error());
        call.check(&mut self.kept).unwrap_or_else(|problem| panic!("{problem}"));
    }

    /// Runs the combinations of this `run`.
    fn cases(&mut self, extent: Extent, run: u64) {
        // Each root by itself first: whether the others can access its memory may differ between roots.
        let mut case = 0;
        for operation in [Operation::Scatter, Operation::Broadcast, Operation::Gather] {
            for count in [5_000, 10_000] {
                for _ in 0..self.ranks {
                    self.call(case, operation, Type::of::<u64>(), count);
                    case += 1;
                }
            }
        }
        let rounds = if self.kind == Kind::Mixed || extent == Extent::Full { MIXTURES } else { 2 };
        // 6 kB are eager, and so are 40 kB if all are in memory that only their rank can use.
        for (operation, blocks) in [
            (Operation::Reduction(Function::AllReduce, Op::Sum), 1),
            (Operation::Reduction(Function::AllReduce, Op::PreMulSum), 1),
            (Operation::Reduction(Function::Reduce, Op::Avg), 1),
            (Operation::Reduction(Function::ReduceScatter, Op::PreMulSum), self.ranks),
            (Operation::AlltoAll, self.ranks),
        ] {
            for count in [751, 5_000, 37_500] {
                for _ in 0..rounds {
                    self.call(case, operation, Type::of::<f64>(), count / blocks);
                    case += 1;
                }
            }
        }
        if extent == Extent::Short {
            return;
        }
        let random = &mut Random(run);
        for operation in Operation::all() {
            for size in [1, 2, 4, 8] {
                let types: Vec<Type> = TYPES.into_iter().filter(|data| data.size == size).collect();
                let counts = counts(operation, size, self.ranks);
                for (index, count) in counts.iter().enumerate() {
                    let one_in = match (extent, counts.len() - index) {
                        (Extent::Full, 1 | 2) => 4,
                        (Extent::Full, _) => 1,
                        (_, 1) => 128,
                        (_, _) => 24,
                    };
                    case += 1;
                    if random.once_in(one_in) {
                        self.call(case, operation, types[case as usize % types.len()], *count);
                    }
                }
            }
        }
        if extent == Extent::Full {
            // Large enough for nontemporal writes.
            let count = (64 << 20) / 8 / self.ranks + 3;
            for operation in [
                Operation::Reduction(Function::AllReduce, Op::Sum),
                Operation::Broadcast,
                Operation::AllGather,
            ] {
                case += 1;
                self.call(case, operation, Type::of::<f64>(), count);
                self.kept.clear();
            }
        }
    }
}

/// Returns counts around every threshold of the transports; the last two are large.
fn counts(operation: Operation, size: usize, ranks: usize) -> Vec<usize> {
    let mut counts = vec![0, 1, 7, 2047, 2048, 2049];
    let [eager, longest] = [16, 64].map(|kib| (kib << 10) / size);
    for threshold in [eager / ranks, eager, longest / ranks, longest] {
        counts.extend([threshold - 1, threshold, threshold + 1]);
    }
    let blocks = if operation.sends_blocks() || operation.receives_blocks() { ranks } else { 1 };
    counts.extend([((64 << 10) + 3) / blocks, ((1 << 20) + 3) / blocks]);
    counts
}

/// Reduces in more allocations than ranks keep mappings of, and again after some were freed and their file descriptors'
/// numbers reused.
fn reduce_in_many_allocations(rank: usize, ranks: usize, comm: Comm) {
    const COUNT: usize = 5000;
    let mut memories: Vec<Memory> = (0..300).map(|_| Memory::new(COUNT)).collect();
    for round in 0..2 {
        for (index, memory) in memories.iter().enumerate() {
            let value = |rank: usize| (round * 1_000 + index * 10 + rank) as i32;
            memory.elements().fill(value(rank));
            let place = memory.start.cast();
            let code = nccl!(ncclAllReduce(place, place, COUNT, I32, SUM, comm.0, STREAM));
            assert_eq!(code, OK, "{}", last_error());
            let sum: i32 = (0..ranks).map(value).sum();
            assert!(memory.elements().iter().all(|element| *element == sum), "round {round}, {index}");
        }
        // Each rank frees different ones, so that equal descriptors belong to different allocations.
        memories.retain({
            let mut index = rank;
            move |_| {
                index += 1;
                !index.is_multiple_of(2 + rank)
            }
        });
        memories.resize_with(300, || Memory::new(COUNT));
    }
}

/// Drops this process's privileges, and optionally hides its memory from other processes without privileges.
fn drop_privileges(hide: bool) {
    // SAFETY: takes no pointers.
    if unsafe { libc::geteuid() } == 0 {
        const NOBODY: libc::uid_t = 65534;
        // SAFETY: as above.
        let code = unsafe { libc::setresuid(NOBODY, NOBODY, NOBODY) };
        assert_eq!(code, 0, "{}", std::io::Error::last_os_error());
    }
    // SAFETY: as above; this one takes a number.
    let code = unsafe { libc::prctl(libc::PR_SET_DUMPABLE, libc::c_ulong::from(!hide)) };
    assert_eq!(code, 0, "{}", std::io::Error::last_os_error());
}

rank_tasks! {
    "cases" => run_cases,
    "many_allocations" => run_many_allocations,
}

/// Runs `body` for each rank of this process on a thread.
fn on_own_ranks(process: &RankProcess, body: impl Fn(usize, Comm) + Sync) {
    // Ends the test harness's unfinished line.
    println!();
    on_threads(process.own.len(), |index| {
        let rank = process.own[index];
        let comm = process.join_as(rank);
        body(rank, comm);
        comm.destroy();
    });
}

fn run_many_allocations(process: &RankProcess) {
    on_own_ranks(process, |rank, comm| reduce_in_many_allocations(rank, process.ranks, comm));
}

/// Runs the cases of an extent, a kind of memory and a run; further arguments restrict the access to a rank's memory.
fn run_cases(process: &RankProcess) {
    let words: Vec<&str> = process.arguments.iter().map(String::as_str).collect();
    let [extent, kind, run, ref restriction @ ..] = words[..] else { panic!("{words:?}") };
    let is_own = |rank: &str| process.own.iter().any(|own| own.to_string() == rank);
    if let ["hidden", rank] = *restriction {
        drop_privileges(is_own(rank));
    }
    let kind = KINDS.into_iter().find(|known| format!("{known:?}") == kind).unwrap();
    let extent = match extent {
        "full" => Extent::Full,
        "sampled" => Extent::Sampled,
        _ => Extent::Short,
    };
    on_own_ranks(process, |rank, comm| {
        let ranks = process.ranks;
        let mut rank = Rank { rank, ranks, comm, kind, kept: vec![] };
        rank.cases(extent, run.parse().unwrap());
    });
}

/// Runs `task` in processes with these ranks, those at `disabled` with `NCCL_P2P_DISABLE=1`, and returns the log lines
/// about shared memory.
fn run(task: &str, processes: &[&[usize]], disabled: &[usize]) -> Vec<String> {
    let _busy = busy();
    let (id, ranks) = (unique_id(), processes.iter().map(|own| own.len()).sum());
    let start = |(index, own): (usize, &&[usize])| {
        processes::command(task, &id, ranks, own)
            .env("NCCL_P2P_DISABLE", if disabled.contains(&index) { "1" } else { "0" })
            .env("NCCL_DEBUG", "INFO")
            .env("NCCL_DEBUG_SUBSYS", "SHM")
            .env_remove("NCCL_DEBUG_FILE")
            .stdout(Stdio::piped())
            .spawn()
            .unwrap()
    };
    let children: Vec<Mutex<Option<Child>>> =
        processes.iter().enumerate().map(start).map(Some).map(Mutex::new).collect();
    let texts = on_threads(children.len(), |index| {
        let child = children[index].lock().unwrap().take();
        processes::finish(child.unwrap())
    });
    let lines = texts.iter().flat_map(|text| text.lines());
    lines.filter_map(|line| Some(line.split_once(" NCCL INFO ")?.1.to_owned())).collect()
}

/// One process per rank.
const PROCESSES: [&[usize]; 4] = [&[0], &[1], &[2], &[3]];

const DIRECT: &str = ": direct, because the ranks can map each other's buffers";
const STAGED: &str = ": staged, because ";

/// Expects every rank to have logged each of these transports once, and no others.
fn expect(lines: &[String], ranks: usize, transports: &[&str]) {
    for transport in [DIRECT, STAGED] {
        let logged = lines.iter().filter(|line| line.contains(transport)).count();
        let expected = if transports.contains(&transport) { ranks } else { 0 };
        assert_eq!(logged, expected, "{transport:?}: {lines:#?}");
    }
}

/// Returns the transports for memory of a kind where access is unrestricted.
fn expected_transports(kind: Kind) -> &'static [&'static str] {
    match kind {
        Kind::Nccl => &[DIRECT],
        Kind::Allocator => &[STAGED],
        Kind::Mixed => &[DIRECT, STAGED],
    }
}

/// Runs each kind of memory with numbers of ranks; two reduce in another way than more.
fn all_transports(extent: &str, numbers: [RangeInclusive<usize>; 3]) {
    for (number, (kind, numbers)) in KINDS.into_iter().zip(numbers).enumerate() {
        for ranks in numbers {
            let lines =
                run(&format!("cases {extent} {kind:?} {}", 10 * number + ranks), &PROCESSES[..ranks], &[]);
            expect(&lines, ranks, expected_transports(kind));
        }
    }
}

fn p2p_disabled(extent: &str, ranks: usize, disabled: &[usize]) {
    let lines = run(&format!("cases {extent} Mixed {}", 30 + ranks), &PROCESSES[..ranks], disabled);
    expect(&lines, ranks, &[STAGED]);
    let why = format!(": staged, because NCCL_P2P_DISABLE is 1 at rank {}", disabled[0]);
    assert_eq!(lines.iter().filter(|line| line.ends_with(&why)).count(), ranks, "{lines:#?}");
}

/// Checks ranks that are threads of one process together with other processes.
fn threads_with_processes(extent: &str, kind: Kind, processes: &[&[usize]]) {
    let ranks = processes.iter().map(|own| own.len()).sum();
    let lines = run(&format!("cases {extent} {kind:?} {}", 40 + ranks), processes, &[]);
    expect(&lines, ranks, expected_transports(kind));
}

#[test]
fn all_transports_match_reference() {
    all_transports("sampled", [3..=3, 2..=2, 2..=3]);
}

#[test]
fn p2p_disable_at_one_rank_makes_all_stage() {
    p2p_disabled("short", 2, &[0, 1]);
    p2p_disabled("short", 3, &[1]);
}

#[test]
fn threads_with_processes_match_reference() {
    threads_with_processes("sampled", Kind::Allocator, &[&[0, 2], &[1]]);
    threads_with_processes("sampled", Kind::Nccl, &[&[3, 0], &[1, 2]]);
    threads_with_processes("short", Kind::Mixed, &[&[0], &[1, 2]]);
}

/// For a release build.
#[test]
#[ignore = "takes minutes: .ci/long"]
fn all_combinations_match_reference() {
    all_transports("full", [const { 2..=4 }; 3]);
    for ranks in 2..=4 {
        for rank in 0..ranks {
            p2p_disabled("full", ranks, &[rank]);
        }
        p2p_disabled("full", ranks, &[0, 1, 2, 3]);
    }
    for kind in KINDS {
        for processes in [&[&[0, 2][..], &[1]][..], &[&[0], &[1, 2]], &[&[3, 0], &[1, 2]]] {
            threads_with_processes("full", kind, processes);
        }
    }
}

#[test]
fn evicted_allocations_are_mapped_again() {
    expect(&run("many_allocations", &PROCESSES[..3], &[]), 3, &[DIRECT]);
    expect(&run("many_allocations", &[&[0, 2], &[1]], &[]), 3, &[DIRECT]);
}

/// A process that may not trace another sees neither its descriptors nor its memory.
#[test]
fn hidden_memory_of_one_rank_makes_all_stage() {
    let lines = run("cases short Allocator 50 hidden 1", &PROCESSES[..3], &[]);
    expect(&lines, 3, &[STAGED]);
    let logged = |lines: &[String], text| lines.iter().any(|line| line.contains(text));

    // A broadcast from another root does not need the hidden rank's memory, and stays direct.
    let lines = run("cases short Nccl 50 hidden 1", &PROCESSES[..3], &[]);
    expect(&lines, 3, &[DIRECT, STAGED]);
    assert!(logged(&lines, "memory of rank 1 is not used directly: "), "{lines:#?}");
    assert!(logged(&lines, "staged, because a rank cannot map another one's memory"), "{lines:#?}");

    // The lack of privileges alone changes nothing.
    let lines = run("cases short Nccl 50 hidden 3", &PROCESSES[..3], &[]);
    expect(&lines, 3, &[DIRECT]);
}
