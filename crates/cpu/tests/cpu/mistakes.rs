//! The mistakes of `docs/what-it-finds.md`: each is made here, and the texts that the page quotes must be printed. More programs
//! with mistakes follow, each with the text that names the cause.
//!
//! The environment is read once per process, so each rank runs in a separate process.

#![allow(unsafe_code)] // fork

use std::ffi::c_void;
use std::process::{Child, Stdio};
use std::ptr;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use crate::common::processes::{self, RankProcess, finish};
use crate::common::{Comm, F32, OK, SUM, init_rank, last_error, unique_id, wait_for_peers};
use libnccl::sys::{ncclComm_t, ncclConfig_t, ncclDataType_t, ncclRedOp_t, ncclResult_t, ncclUniqueId};

const PAGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/what-it-finds.md");

/// Elements that no transport buffers.
const LONG: usize = 1 << 20;

/// Defines a test for each mistake: two ranks run the function of this name, with these variables.
macro_rules! mistakes {
    ($($name:ident $(with $variable:literal = $value:literal)?),* $(,)?) => {
        rank_tasks! { $(stringify!($name) => $name,)* "program" => run_program }

        mod found {
            $(#[test]
            fn $name() {
                super::check(stringify!($name), &[$(($variable, $value))?]);
            })*
        }

        #[test]
        fn page_has_a_row_for_each_mistake() {
            let page = std::fs::read_to_string(PAGE).unwrap();
            let rows: Vec<_> = page.lines().filter_map(test_of_row).collect();
            assert_eq!(rows, [$(stringify!($name)),*]);
        }
    };
}

mistakes! {
    different_order,
    different_count,
    different_type,
    different_root,
    different_root_of_short_call,
    different_root_of_last_short_call,
    different_reduction,
    missing_rank,
    refused_rank,
    extra_call,
    extra_short_broadcast,
    different_communicator,
    two_communicators_in_different_order,
    one_thread_for_two_ranks_without_group,
    group_without_end,
    group_that_no_rank_ends,
    group_open_at_exit,
    different_groups,
    send_to_itself_without_group,
    unreceived_send,
    group_on_one_rank with "LIBNCCL_CPU_STRICT" = "1",
    two_threads,
    forked_child,
    one_id_for_two_communicators,
    buffers_that_overlap,
    wrong_offset_in_place,
    all_to_all_in_place with "LIBNCCL_CPU_STRICT" = "1",
    count_zero_on_one_rank,
    different_options,
    different_options_of_a_child,
    different_number_of_ids,
    different_window_sizes,
    communicator_not_destroyed with "NCCL_DEBUG" = "WARN",
}

/// Returns the name of the test in a row of the page's table.
fn test_of_row(line: &str) -> Option<&str> {
    line.strip_suffix("` |")?.rsplit_once('`').map(|(_, name)| name)
}

/// Makes the mistake, and checks that the ranks print every text in the third cell of the table row, where `…` is any text.
fn check(mistake: &str, variables: &[(&str, &str)]) {
    let page = std::fs::read_to_string(PAGE).unwrap();
    let row = page.lines().find(|line| test_of_row(line) == Some(mistake)).expect("a row with this test");
    let cell = row.split(" | ").nth(2).expect("a third cell");
    let printed = run(mistake, variables).concat();
    let texts: Vec<&str> = cell.split('`').skip(1).step_by(2).collect();
    assert!(!texts.is_empty(), "no text in {row}");
    for text in texts {
        assert!(printed.lines().any(|line| has_parts(line, text)), "no line like {text:?} in:\n{printed}");
    }
}

/// Runs a task on both ranks, with short limits, and returns what each prints.
fn run(task: &str, variables: &[(&str, &str)]) -> Vec<String> {
    let id = unique_id();
    let start = |rank| {
        let mut command = processes::command(task, &id, 2, &[rank]);
        // The log goes to the standard output.
        command.envs(processes::limits()).stdout(Stdio::piped());
        command.envs(variables.iter().copied()).spawn().unwrap()
    };
    let children: Vec<Child> = (0..2).map(start).collect();
    children.into_iter().map(finish).collect()
}

fn has_parts(line: &str, pattern: &str) -> bool {
    let mut rest = line;
    pattern.split('…').all(|part| match rest.split_once(part) {
        Some((_, after)) => {
            rest = after;
            true
        }
        None => false,
    })
}

/// Prints the error of a call that failed.
fn report(code: ncclResult_t) {
    if code != OK {
        eprintln!("{code:?}: {}", last_error());
    }
}

fn all_reduce(count: usize, data_type: ncclDataType_t, op: ncclRedOp_t, comm: Comm) {
    let mut buffer = vec![0_u64; count];
    let place: *mut c_void = buffer.as_mut_ptr().cast();
    report(nccl!(ncclAllReduce(place, place, count, data_type, op, comm.0, ptr::null_mut())));
}

fn sum(count: usize, comm: Comm) {
    all_reduce(count, F32, SUM, comm);
}

fn broadcast(count: usize, root: i32, comm: Comm) {
    let mut buffer = vec![0_u64; count];
    let place: *mut c_void = buffer.as_mut_ptr().cast();
    report(nccl!(ncclBroadcast(place, place, count, F32, root, comm.0, ptr::null_mut())));
}

/// Creates a second communicator of all ranks.
fn duplicate(comm: Comm) -> Comm {
    let mut other: ncclComm_t = ptr::null_mut();
    assert_eq!(nccl!(ncclCommSplit(comm.0, 0, 0, &mut other, ptr::null_mut())), OK);
    Comm(other)
}

fn different_order(process: &RankProcess) {
    let comm = process.join();
    let calls: [&dyn Fn(); 2] = [&|| sum(LONG, comm), &|| broadcast(LONG, 0, comm)];
    calls[process.rank()]();
    calls[1 - process.rank()]();
}

fn different_count(process: &RankProcess) {
    sum(4 + process.rank(), process.join());
}

fn different_type(process: &RankProcess) {
    let types = [F32, ncclDataType_t::ncclInt64];
    all_reduce(4, types[process.rank()], SUM, process.join());
}

fn different_root(process: &RankProcess) {
    broadcast(LONG, process.rank() as i32, process.join());
}

/// Each rank passes itself as the root, and waits for no other rank.
fn different_root_of_short_call(process: &RankProcess) {
    let comm = process.join();
    broadcast(1, process.rank() as i32, comm);
    sum(4, comm);
}

/// Each rank passes itself as the root, and makes no other call.
fn different_root_of_last_short_call(process: &RankProcess) {
    let comm = process.join();
    broadcast(1, process.rank() as i32, comm);
    report(nccl!(ncclCommDestroy(comm.0)));
}

fn different_reduction(process: &RankProcess) {
    let reductions = [SUM, ncclRedOp_t::ncclMax];
    all_reduce(4, F32, reductions[process.rank()], process.join());
}

fn missing_rank(process: &RankProcess) {
    if process.rank() == 0 {
        report(init_rank(process.id, process.ranks, 0).expect_err("the other rank is absent"));
    }
}

fn refused_rank(process: &RankProcess) {
    let rank = [0, 7][process.rank()];
    if process.rank() == 1 {
        wait_for_peers(&process.id, 0);
    }
    report(init_rank(process.id, process.ranks, rank).expect_err("rank 7 is refused"));
}

fn extra_call(process: &RankProcess) {
    let comm = process.join();
    sum(4, comm);
    if process.rank() == 0 {
        sum(4, comm);
    }
    report(nccl!(ncclCommDestroy(comm.0)));
}

/// The root waits for no other rank.
fn extra_short_broadcast(process: &RankProcess) {
    let comm = process.join();
    sum(4, comm);
    if process.rank() == 0 {
        broadcast(1, 0, comm);
    }
    report(nccl!(ncclCommDestroy(comm.0)));
}

fn different_communicator(process: &RankProcess) {
    let comm = process.join();
    let comms = [comm, duplicate(comm)];
    sum(4, comms[process.rank()]);
}

fn two_communicators_in_different_order(process: &RankProcess) {
    let comm = process.join();
    let comms = [comm, duplicate(comm)];
    sum(LONG, comms[process.rank()]);
    sum(LONG, comms[1 - process.rank()]);
}

fn one_thread_for_two_ranks_without_group(process: &RankProcess) {
    if process.rank() == 1 {
        return;
    }
    let mut comms: [ncclComm_t; 2] = [ptr::null_mut(); 2];
    assert_eq!(nccl!(ncclCommInitAll(comms.as_mut_ptr(), 2, ptr::null())), OK);
    comms.into_iter().for_each(|comm| sum(4, Comm(comm)));
}

fn group_without_end(process: &RankProcess) {
    let comm = process.join();
    if process.rank() == 1 {
        report(nccl!(ncclGroupStart()));
        sum(4, comm);
        return processes::outlast_the_limit();
    }
    sum(4, comm);
}

/// Each rank ends one group fewer than it has started.
fn group_that_no_rank_ends(process: &RankProcess) {
    let comm = process.join();
    report(nccl!(ncclGroupStart()));
    report(nccl!(ncclGroupStart()));
    sum(4, comm);
    report(nccl!(ncclGroupEnd()));
    report(nccl!(ncclCommDestroy(comm.0)));
}

/// The group is open on a thread that still runs when the process exits.
fn group_open_at_exit(process: &RankProcess) {
    let comm = process.join();
    let (sender, receiver) = mpsc::channel();
    thread::spawn(move || {
        report(nccl!(ncclGroupStart()));
        sum(4, comm);
        sum(5, comm);
        sender.send(()).unwrap();
        loop {
            thread::park();
        }
    });
    receiver.recv().unwrap();
    std::process::exit(0);
}

/// Rank 0's two sums are one group; rank 1 makes them one by one.
fn different_groups(process: &RankProcess) {
    let comm = process.join();
    if process.rank() == 1 {
        return (0..2).for_each(|_| sum(4, comm));
    }
    let mut buffers = [[0_f32; 4]; 2];
    report(nccl!(ncclGroupStart()));
    for buffer in &mut buffers {
        let place = buffer.as_mut_ptr().cast();
        report(nccl!(ncclAllReduce(place, place, 4, F32, SUM, comm.0, ptr::null_mut())));
    }
    report(nccl!(ncclGroupEnd()));
}

fn send(count: usize, peer: usize, comm: Comm) {
    let buffer = vec![0_f32; count];
    let place = buffer.as_ptr().cast();
    report(nccl!(ncclSend(place, count, F32, peer as i32, comm.0, ptr::null_mut())));
}

fn receive(count: usize, peer: usize, comm: Comm) {
    let mut buffer = vec![0_f32; count];
    let place = buffer.as_mut_ptr().cast();
    report(nccl!(ncclRecv(place, count, F32, peer as i32, comm.0, ptr::null_mut())));
}

fn send_to_itself_without_group(process: &RankProcess) {
    let comm = process.join();
    send(4, process.rank(), comm);
    receive(4, process.rank(), comm);
}

fn unreceived_send(process: &RankProcess) {
    let comm = process.join();
    if process.rank() == 0 {
        send(1000, 1, comm);
        send(1000, 1, comm);
    }
    sum(4, comm);
    comm.destroy();
}

/// Rank 0's collective and send are one group; rank 1 makes the calls one by one, in the other order.
fn group_on_one_rank(process: &RankProcess) {
    let comm = process.join();
    if process.rank() == 0 {
        let mut buffers = [vec![0_f32; LONG], vec![0_f32; LONG]];
        let [summed, sent] = buffers.each_mut().map(|buffer| buffer.as_mut_ptr().cast::<c_void>());
        report(nccl!(ncclGroupStart()));
        report(nccl!(ncclAllReduce(summed, summed, LONG, F32, SUM, comm.0, ptr::null_mut())));
        report(nccl!(ncclSend(sent, LONG, F32, 1, comm.0, ptr::null_mut())));
        report(nccl!(ncclGroupEnd()));
    } else {
        receive(LONG, 0, comm);
        sum(LONG, comm);
    }
}

/// The first thread waits for the other rank, which is late.
fn two_threads(process: &RankProcess) {
    let comm = process.join();
    if process.rank() == 1 {
        thread::sleep(Duration::from_millis(1500));
        return sum(3, comm);
    }
    thread::scope(|scope| {
        scope.spawn(|| sum(3, comm));
        thread::sleep(Duration::from_millis(500));
        sum(3, comm);
    });
}

fn forked_child(process: &RankProcess) {
    let comm = process.join();
    if process.rank() == 0 {
        // SAFETY: the child makes one call, which is refused, and ends.
        let child = unsafe { libc::fork() };
        if child == 0 {
            sum(4, comm);
            // SAFETY: ends the process immediately.
            unsafe { libc::_exit(0) };
        }
        // SAFETY: a child of this process, and no pointer for its status.
        unsafe { libc::waitpid(child, ptr::null_mut(), 0) };
    }
    sum(4, comm);
}

fn one_id_for_two_communicators(process: &RankProcess) {
    let comm = process.join();
    sum(4, comm);
    report(init_rank(process.id, process.ranks, process.rank()).expect_err("the id is used"));
}

fn buffers_that_overlap(process: &RankProcess) {
    let comm = process.join();
    let mut buffer = vec![0_f32; 20];
    let (from, to) = (buffer.as_mut_ptr().cast::<c_void>(), buffer[3..].as_mut_ptr().cast::<c_void>());
    report(nccl!(ncclAllReduce(from, to, 16, F32, SUM, comm.0, ptr::null_mut())));
}

/// In place, a rank's own block is at its rank times the count.
fn wrong_offset_in_place(process: &RankProcess) {
    let comm = process.join();
    let mut buffer = vec![0_f32; 32];
    let (from, to) = (buffer[8..].as_mut_ptr().cast::<c_void>(), buffer.as_mut_ptr().cast::<c_void>());
    report(nccl!(ncclAllGather(from, to, 16, F32, comm.0, ptr::null_mut())));
}

/// NCCL does not document it, but its tests do it: without strict mode, it is a warning.
fn all_to_all_in_place(process: &RankProcess) {
    let comm = process.join();
    for count in [1, 2048, 1 << 18] {
        let of = |from, to| vec![(2 * from + to) as f32; count];
        let mut buffer = [of(process.rank(), 0), of(process.rank(), 1)].concat();
        let place = buffer.as_mut_ptr().cast::<c_void>();
        let code = nccl!(ncclAlltoAll(place, place, count, F32, comm.0, ptr::null_mut()));
        report(code);
        assert!(code != OK || buffer == [of(0, process.rank()), of(1, process.rank())].concat());
    }
}

#[test]
fn all_to_all_in_place_succeeds_and_warns_once() {
    for printed in run("all_to_all_in_place", &[]) {
        let warning =
            "libnccl-cpu: ncclAlltoAll: sendbuff is recvbuff, and the result is undefined in NCCL (";
        assert_eq!(printed.matches(warning).count(), 1, "{printed}");
    }
}

fn count_zero_on_one_rank(process: &RankProcess) {
    let comm = process.join();
    if process.rank() == 0 {
        sum(0, comm);
    }
    sum(4, comm);
}

fn different_options(process: &RankProcess) {
    let rank = process.rank();
    let mut config =
        ncclConfig_t { commName: [c"data", c"model"][rank].as_ptr(), ..ncclConfig_t::initializer() };
    if rank == 1 {
        config.minCTAs = 4;
    }
    let mut comm = ptr::null_mut();
    report(nccl!(ncclCommInitRankConfig(&mut comm, 2, process.id, rank as i32, &mut config)));
}

fn different_options_of_a_child(process: &RankProcess) {
    let (comm, mut child) = (process.join(), ptr::null_mut());
    let mut config = ncclConfig_t { trafficClass: process.rank() as i32, ..ncclConfig_t::initializer() };
    report(nccl!(ncclCommSplit(comm.0, 0, 0, &mut child, &mut config)));
}

/// Rank 1 passes a second id.
fn different_number_of_ids(process: &RankProcess) {
    let (rank, mut comm) = (process.rank() as i32, ptr::null_mut());
    let mut ids = [process.id, unique_id()];
    report(nccl!(ncclCommInitRankScalable(&mut comm, 2, rank, rank + 1, ids.as_mut_ptr(), ptr::null_mut())));
}

fn different_window_sizes(process: &RankProcess) {
    let (comm, mut memory, mut window) = (process.join(), ptr::null_mut(), ptr::null_mut());
    assert_eq!(nccl!(ncclMemAlloc(&mut memory, 8192)), OK);
    let size = 4096 * (1 + process.rank());
    report(nccl!(ncclCommWindowRegister(comm.0, memory, size, &mut window, 0)));
}

#[test]
fn different_arguments_are_an_error_on_all_ranks_in_strict_mode() {
    let tasks = [
        "different_options",
        "different_options_of_a_child",
        "different_number_of_ids",
        "different_window_sizes",
    ];
    for task in tasks {
        for (strict, is_error) in [("0", false), ("1", true)] {
            for printed in run(task, &[("LIBNCCL_CPU_STRICT", strict)]) {
                let has_error = printed.contains("ncclResult_t(5): the ranks called ");
                let is_strict = has_error && printed.contains("(LIBNCCL_CPU_STRICT is 1)");
                assert_eq!(is_strict, is_error, "{task}: {printed}");
            }
        }
    }
}

fn communicator_not_destroyed(process: &RankProcess) {
    sum(4, process.join());
}

/// A name, the program of a rank, and the text that one of the ranks must print.
type Program = (&'static str, fn(&RankProcess), &'static str);

const PROGRAMS: [Program; 12] = [
    // Initialization with a mistake on one rank, which the others abort.
    ("same_rank", |process| init(process.id, 2, 0), "two callers passed rank 0"),
    (
        "negative_rank",
        |p| wrong_init(p, |id| init(id, 2, -1)),
        "joined: invalid rank -1: it has to be in 0..2",
    ),
    (
        "no_ranks",
        |p| wrong_init(p, |id| init(id, 0, 0)),
        "joined: invalid number of ranks 0: it has to be in 1..=1024",
    ),
    (
        "no_place_for_the_communicator",
        |p| wrong_init(p, |id| report(nccl!(ncclCommInitRank(ptr::null_mut(), 2, id, 1)))),
        "rank 1 failed before all ranks had joined: the pointer to the communicator is NULL",
    ),
    ("too_many_ids", |p| wrong_init(p, init_with_three_ids), "joined: invalid number of unique ids 3"),
    (
        "failed_group_of_inits",
        |p| wrong_init(p, init_in_a_failed_group),
        "rank 1 failed before all ranks had joined: ncclAllReduce in this group failed",
    ),
    // Groups.
    (
        "group_left_open_with_inits",
        open_group_of_inits,
        "a rank called ncclCommInitRank in a group that has not ended",
    ),
    (
        "exit_while_a_thread_has_a_group_open",
        group_open_at_exit,
        "ncclGroupEnd is missing before the exit of the process",
    ),
    ("split_in_an_open_group", open_group_of_split, "called ncclCommSplit in a group that has not ended"),
    (
        "aborted_in_an_open_group",
        abort_in_group,
        "called ncclAllReduce(count 4, ncclFloat32, ncclSum) in a group that has not ended",
    ),
    // Calls that are refused on one rank, while the other waits until its limit.
    (
        "refused_split",
        refused_split,
        "and whose last call failed: the config was not initialized with NCCL_CONFIG_INITIALIZER",
    ),
    ("refused_operation", refused_operation, "and whose last call failed: invalid ncclDataType_t 77"),
];

fn run_program(process: &RankProcess) {
    let program = PROGRAMS.iter().find(|(name, ..)| *name == process.arguments[0]);
    program.map_or(any_stream as fn(&RankProcess), |(_, program, _)| *program)(process);
}

#[test]
fn program_with_a_mistake_prints_its_cause() {
    let strict: (_, _, &[_]) = (
        "any_stream",
        "ncclAllReduce(count 4, ncclFloat32, ncclSum): stream 0x1234 is neither used nor checked",
        &[("LIBNCCL_CPU_STRICT", "1")],
    );
    let programs = PROGRAMS.iter().map(|(name, _, cause)| (*name, *cause, &[][..]));
    for (name, cause, variables) in programs.chain([strict]) {
        let printed = run(&format!("program {name}"), variables).concat();
        assert!(printed.contains(cause), "{name}: no {cause:?} in:\n{printed}");
        let waited = "have joined; missing";
        assert!(!printed.contains(waited), "{name}: a rank waited for one that never joins:\n{printed}");
    }
}

fn init(id: ncclUniqueId, ranks: i32, rank: i32) {
    let mut comm = ptr::null_mut();
    report(nccl!(ncclCommInitRank(&mut comm, ranks, id, rank)));
}

/// Initializes, rank 1 with a mistake, once the other rank waits.
fn wrong_init(process: &RankProcess, wrong: fn(ncclUniqueId)) {
    if process.rank() == 0 {
        return init(process.id, 2, 0);
    }
    wait_for_peers(&process.id, 0);
    wrong(process.id);
}

fn init_with_three_ids(id: ncclUniqueId) {
    let mut comm = ptr::null_mut();
    report(nccl!(ncclCommInitRankScalable(&mut comm, 2, 1, 3, [id; 3].as_mut_ptr(), ptr::null_mut())));
}

fn init_in_a_failed_group(id: ncclUniqueId) {
    let mut comm = ptr::null_mut();
    report(nccl!(ncclGroupStart()));
    report(nccl!(ncclCommInitRank(&mut comm, 2, id, 1)));
    sum(4, Comm(ptr::null_mut()));
    report(nccl!(ncclGroupEnd()));
}

fn open_group_of_inits(process: &RankProcess) {
    report(nccl!(ncclGroupStart()));
    init(process.id, 2, process.rank() as i32);
}

fn open_group_of_split(process: &RankProcess) {
    let (comm, mut child) = (process.join(), ptr::null_mut());
    report(nccl!(ncclGroupStart()));
    report(nccl!(ncclCommSplit(comm.0, 0, 0, &mut child, ptr::null_mut())));
    report(nccl!(ncclCommDestroy(comm.0)));
}

fn abort_in_group(process: &RankProcess) {
    let comm = process.join();
    report(nccl!(ncclGroupStart()));
    sum(4, comm);
    report(nccl!(ncclCommAbort(comm.0)));
}

fn refused_split(process: &RankProcess) {
    let (comm, mut config, mut child) = (process.join(), ncclConfig_t::initializer(), ptr::null_mut());
    config.size *= 1 - process.rank();
    report(nccl!(ncclCommSplit(comm.0, 0, 0, &mut child, &mut config)));
    if process.rank() == 1 {
        processes::outlast_the_limit();
    }
}

fn refused_operation(process: &RankProcess) {
    let comm = process.join();
    all_reduce(4, [F32, ncclDataType_t(77)][process.rank()], SUM, comm);
    if process.rank() == 1 {
        processes::outlast_the_limit();
    }
}

fn any_stream(process: &RankProcess) {
    let (mut buffer, comm) = ([0_f32; 4], process.join());
    let (place, stream) = (buffer.as_mut_ptr().cast(), ptr::without_provenance_mut(0x1234));
    report(nccl!(ncclAllReduce(place, place, 4, F32, SUM, comm.0, stream)));
}
