//! The transports of collectives between processes: memory from `ncclMemAlloc` is mapped, other memory is staged, and with
//! `NCCL_P2P_DISABLE=1` all of it is staged. Log lines name the transport. (`tests/conformance` compares all operations.)
#![allow(unsafe_code)]

use crate::common::processes::{self, RankProcess};
use crate::common::{Comm, I32, Memory, OK, STREAM, all_reduce, busy, last_error, on_threads};

rank_tasks!(run_calls, run_calls_without_p2p_of_rank_1, run_many_allocations);

/// Elements of a rank's blocks, for each transport.
const COUNTS: [usize; 4] = [10_000, 20_000, 100_000, 751];

/// Calls collectives on memory of a kind: from the allocator, from NCCL, or mixed.
fn calls(rank: usize, ranks: usize, kind: &str, Comm(comm): Comm) {
    for (turn, count) in COUNTS.into_iter().flat_map(|count| (0..5).map(move |turn| (turn, count))) {
        let total = ranks * count;
        let mut own = [(); 2].map(|()| vec![0; total]);
        let nccl = [(); 2].map(|()| Memory::new(total));
        let from_nccl = [rank + turn, rank / 2 + turn / 2].map(|mixture| match kind {
            "nccl" => true,
            "allocator" => false,
            _ => mixture % 2 == 0,
        });
        let [own_from, own_to] = &mut own;
        let from = if from_nccl[0] { nccl[0].elements() } else { own_from };
        let to = if from_nccl[1] { nccl[1].elements() } else { own_to };
        let (element, root) = (|rank: usize, index: usize| (100_003 * rank + index) as i32, turn % ranks);
        from.iter_mut().enumerate().for_each(|(index, place)| *place = element(rank, index));
        let (send, receive) = (from.as_ptr().cast(), to.as_mut_ptr().cast());
        let code = nccl!(ncclScatter(send, receive, count, I32, root as i32, comm, STREAM));
        assert_eq!(code, OK, "{}", last_error());
        let is_right = |(index, found): (usize, &i32)| *found == element(root, rank * count + index);
        assert!(to[..count].iter().enumerate().all(is_right), "scatter of {count} in turn {turn} at {rank}");
        // The memory of each root alone is used first, then the memory of all ranks.
        if turn < ranks - 1 {
            continue;
        }
        let code = nccl!(ncclAlltoAll(send, receive, count, I32, comm, STREAM));
        assert_eq!(code, OK, "{}", last_error());
        let is_right =
            |(index, found): (usize, &i32)| *found == element(index / count, rank * count + index % count);
        assert!(to.iter().enumerate().all(is_right), "all-to-all of {count} in turn {turn} at {rank}");
    }
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
            assert_eq!(all_reduce(memory.elements(), comm.0), OK, "{}", last_error());
            let sum: i32 = (0..ranks).map(value).sum();
            assert!(memory.elements().iter().all(|element| *element == sum), "round {round}, {index}");
        }
        // Each rank frees different ones, so that equal descriptors belong to different allocations.
        let mut index = rank;
        memories.retain(|_| {
            index += 1;
            !index.is_multiple_of(2 + rank)
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

fn run_calls_without_p2p_of_rank_1(process: &RankProcess) {
    if process.rank() == 1 {
        // SAFETY: no other thread of this process uses the environment, and the variable has not been read.
        unsafe { std::env::set_var("NCCL_P2P_DISABLE", "1") };
    }
    run_calls(process);
}

/// Makes the calls on a kind of memory. The second argument is a rank whose memory is hidden.
fn run_calls(process: &RankProcess) {
    if let Some(hidden) = process.arguments.get(1) {
        drop_privileges(process.own.iter().any(|own| own.to_string() == *hidden));
    }
    on_own_ranks(process, |rank, comm| calls(rank, process.ranks, &process.arguments[0], comm));
}

/// Runs `task` in processes with these ranks, and returns the log lines about shared memory.
#[track_caller]
fn run(task: &str, processes: &[&[usize]]) -> Vec<String> {
    let _busy = busy();
    let log = [("NCCL_DEBUG", "INFO"), ("NCCL_DEBUG_SUBSYS", "SHM"), ("NCCL_DEBUG_FILE", "")];
    let printed = processes::run(task, processes, &log).concat();
    printed.lines().filter_map(|line| Some(line.split_once(" NCCL INFO ")?.1.to_owned())).collect()
}

const PROCESSES: [&[usize]; 3] = [&[0], &[1], &[2]];

const DIRECT: &str = ": direct, because the ranks can map each other's buffers";
const STAGED: &str = ": staged, because ";

/// Expects each of three ranks to have logged each of these transports once, and no others.
fn expect(lines: &[String], transports: &[&str]) {
    for transport in [DIRECT, STAGED] {
        let logged = lines.iter().filter(|line| line.contains(transport)).count();
        let expected = if transports.contains(&transport) { 3 } else { 0 };
        assert_eq!(logged, expected, "{transport:?}: {lines:#?}");
    }
}

#[test]
fn nccl_memory_is_mapped_and_other_memory_is_staged() {
    for processes in [&PROCESSES[..], &[&[2, 0], &[1]]] {
        for (kind, transports) in
            [("nccl", &[DIRECT][..]), ("allocator", &[STAGED]), ("mixed", &[DIRECT, STAGED])]
        {
            expect(&run(&format!("run_calls {kind}"), processes), transports);
        }
    }
}

#[test]
fn p2p_disable_on_one_rank_stages_all_ranks() {
    let lines = run("run_calls_without_p2p_of_rank_1 mixed", &PROCESSES);
    expect(&lines, &[STAGED]);
    let why = ": staged, because NCCL_P2P_DISABLE is 1 at rank 1";
    assert_eq!(lines.iter().filter(|line| line.ends_with(why)).count(), 3, "{lines:#?}");
}

#[test]
fn evicted_allocations_are_mapped_again() {
    expect(&run("run_many_allocations", &PROCESSES), &[DIRECT]);
    expect(&run("run_many_allocations", &[&[0, 2], &[1]]), &[DIRECT]);
}

/// A process that may not trace another sees neither its descriptors nor its memory.
#[test]
fn hidden_memory_of_one_rank_stages_all_ranks() {
    expect(&run("run_calls allocator 1", &PROCESSES), &[STAGED]);
    // A scatter from another root does not need the hidden rank's memory, and stays direct.
    let lines = run("run_calls nccl 1", &PROCESSES);
    expect(&lines, &[DIRECT, STAGED]);
    for text in
        ["memory of rank 1 is not used directly: ", "staged, because a rank cannot map another one's memory"]
    {
        assert!(lines.iter().any(|line| line.contains(text)), "{text}: {lines:#?}");
    }
    // The lack of privileges alone changes nothing.
    expect(&run("run_calls nccl 3", &PROCESSES), &[DIRECT]);
}
