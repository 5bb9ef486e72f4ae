//! Wrong programs, each of which two processes run: the output of at least one of them names the cause.
//!
//! Those of `docs/what-it-finds.md` are in [`mistakes`](crate::mistakes), invalid buffers in
//! [`invalid_buffers`](crate::invalid_buffers).

use std::ffi::c_void;
use std::process::{Child, Stdio};
use std::ptr;
use std::sync::mpsc;
use std::thread;

use crate::common::processes::{self, RankProcess, finish};
use crate::common::{ARGUMENT, Comm, F32, OK, STREAM, SUM, last_error, unique_id, wait_for_peers};
use libnccl::sys::{
    ncclComm_t, ncclConfig_t, ncclDataType_t, ncclRedOp_t, ncclResult_t, ncclUniqueId, ncclWindow_t,
};

/// A name, the program of a rank, and what has to be printed.
type Program = (&'static str, fn(&RankProcess), &'static str);

const PROGRAMS: &[Program] = &[
    // Communicators.
    ("different_sizes", different_sizes, "the ranks passed different nranks: rank "),
    ("same_rank", |process| init(process.id, 2, 0), "two callers passed rank 0"),
    ("rank_too_large", |process| refused(process, 1, 2, 2), "invalid rank 2: it has to be in 0..2"),
    (
        "negative_rank",
        |process| refused(process, 0, 2, -1),
        "failed before all ranks had joined: invalid rank -1: it has to be in 0..2",
    ),
    (
        "no_ranks",
        |process| refused(process, 1, 0, 0),
        "failed before all ranks had joined: invalid number of ranks 0: it has to be in 1..=1024",
    ),
    (
        "no_place_for_the_communicator",
        null_communicator,
        "rank 1 failed before all ranks had joined: the pointer to the communicator is NULL",
    ),
    ("too_many_ids", too_many_ids, "failed before all ranks had joined: invalid number of unique ids 3"),
    (
        "failed_group_of_inits",
        failed_group,
        "rank 1 failed before all ranks had joined: ncclAllReduce in this group failed",
    ),
    (
        "zero_id",
        |process| init(ncclUniqueId::default(), 2, process.rank() as i32),
        "this unique id is not from",
    ),
    (
        "destroyed_twice",
        |process| twice(|comm| nccl!(ncclCommDestroy(comm)), process),
        "is not a communicator, or was destroyed",
    ),
    (
        "finalized_twice",
        |process| twice(|comm| nccl!(ncclCommFinalize(comm)), process),
        "has already been finalized",
    ),
    (
        "used_after_destroy",
        |process| then_sum(|comm| nccl!(ncclCommDestroy(comm)), process),
        "is not a communicator, or was destroyed",
    ),
    (
        "used_after_abort",
        |process| then_sum(|comm| nccl!(ncclCommAbort(comm)), process),
        "is not a communicator, or was destroyed",
    ),
    (
        "used_after_finalize",
        |process| then_sum(|comm| nccl!(ncclCommFinalize(comm)), process),
        "the communicator has been finalized",
    ),
    (
        "config_without_initializer",
        uninitialized_config,
        "the config was not initialized with NCCL_CONFIG_INITIALIZER",
    ),
    (
        "exit_without_destroy",
        exit_early,
        "rank 1 died: its process ended without destroying the communicator",
    ),
    // Arguments of operations.
    ("null_communicator", |_| report(sum(4, ptr::null_mut())), "the communicator is NULL"),
    (
        "address_for_a_communicator",
        |_| report(sum(4, ptr::without_provenance_mut(0xdead_bee0))),
        "is not a communicator, or was destroyed",
    ),
    ("unknown_type", |process| all_reduce(process, 4, ncclDataType_t(77), SUM), "invalid ncclDataType_t 77"),
    ("unknown_reduction", |process| all_reduce(process, 4, F32, ncclRedOp_t(77)), "reduction 77 is unknown"),
    (
        "negative_count",
        |process| all_reduce(process, usize::MAX, F32, SUM),
        "count 18446744073709551615 of ncclFloat32",
    ),
    ("null_buffer", null_buffer, "the pointer to the send buffer is NULL"),
    ("root_out_of_range", |process| broadcast(process, 2), "invalid root 2: it has to be in 0..2"),
    (
        "different_roots",
        |process| broadcast(process, process.rank() as i32),
        "ncclBroadcast(count 4, ncclFloat32, root 1)",
    ),
    // Groups and messages.
    ("group_end_without_start", |_| report(nccl!(ncclGroupEnd())), "ncclGroupEnd: not in a group call"),
    (
        "group_left_open_with_inits",
        open_group_of_inits,
        "a rank called ncclCommInitRank in a group that has not ended",
    ),
    (
        "exit_while_a_thread_has_a_group_open",
        exit_in_group,
        "ncclGroupEnd is missing before the exit of the process",
    ),
    (
        "split_that_is_refused_on_one_rank",
        |process| refused_split(process.join(), process.rank()),
        "and whose last call failed: the config was not initialized with NCCL_CONFIG_INITIALIZER",
    ),
    (
        "operation_that_is_refused_on_one_rank",
        |process| all_reduce(process, 4, [F32, ncclDataType_t(77)][process.rank()], SUM),
        "and whose last call failed: invalid ncclDataType_t 77",
    ),
    ("split_in_an_open_group", open_group_of_split, "called ncclCommSplit in a group that has not ended"),
    (
        "aborted_in_an_open_group",
        abort_in_group,
        "called ncclAllReduce(count 4, ncclFloat32, ncclSum) in a group that has not ended",
    ),
    (
        "messages_of_different_counts",
        different_messages,
        "send and receive do not match: rank 0 called ncclSend(count 4, ncclFloat32) to rank 1",
    ),
    (
        "both_send_first",
        both_send_first,
        "rank 0 of 2 still waits in call 1, ncclSend(count 1048576, ncclFloat32, peer 1), for rank 1",
    ),
    ("window_that_is_not_aligned", unaligned_window, "invalid window address"),
];

rank_tasks! { "wrong" => run_program }

fn run_program(process: &RankProcess) {
    let program = PROGRAMS.iter().find(|(name, ..)| *name == process.arguments[0]);
    program.map_or(any_stream as fn(&RankProcess), |(_, program, _)| *program)(process);
}

#[test]
fn wrong_program_prints_its_cause() {
    for (name, _, cause) in PROGRAMS {
        check(name, cause, &[]);
    }
}

#[test]
fn stream_of_host_memory_is_reported_in_strict_mode() {
    let cause = "ncclAllReduce(count 4, ncclFloat32, ncclSum): stream 0x1234 is neither used nor checked";
    check("any_stream", cause, &[("LIBNCCL_CPU_STRICT", "1")]);
}

fn check(name: &str, cause: &str, variables: &[(&str, &str)]) {
    let (id, task) = (unique_id(), format!("wrong {name}"));
    let start = |rank| {
        let mut command = processes::command(&task, &id, 2, &[rank]);
        command
            .stdout(Stdio::null())
            .envs(processes::limits())
            .envs(variables.iter().copied())
            .spawn()
            .unwrap()
    };
    let children: Vec<Child> = (0..2).map(start).collect();
    let printed: String = children.into_iter().map(finish).collect();
    assert!(printed.contains(cause), "{name}: no {cause:?} in:\n{printed}");
    assert!(
        !printed.contains("have joined; missing"),
        "{name}: a rank waited for one that never joins:\n{printed}"
    );
}

/// Prints the error of a call that failed.
fn report(code: ncclResult_t) {
    if code != OK {
        eprintln!("{code:?}: {}", last_error());
    }
}

fn init(id: ncclUniqueId, ranks: i32, rank: i32) {
    let mut comm = ptr::null_mut();
    report(nccl!(ncclCommInitRank(&mut comm, ranks, id, rank)));
}

/// Initializes, `wrong` with these arguments. It comes after the other rank: how long one that is refused stays, time decides.
fn refused(process: &RankProcess, wrong: usize, ranks: i32, rank: i32) {
    if process.rank() != wrong {
        return init(process.id, 2, process.rank() as i32);
    }
    wait_for_peers(&process.id, 0);
    init(process.id, ranks, rank);
}

fn different_sizes(process: &RankProcess) {
    init(process.id, 3 - process.rank() as i32, process.rank() as i32);
}

fn null_communicator(process: &RankProcess) {
    if process.rank() == 0 {
        return init(process.id, 2, 0);
    }
    wait_for_peers(&process.id, 0);
    report(nccl!(ncclCommInitRank(ptr::null_mut(), 2, process.id, 1)));
}

fn too_many_ids(process: &RankProcess) {
    let (mut comm, mut ids) = (ptr::null_mut(), [process.id; 3]);
    let number = [1, 3][process.rank()];
    if number > 1 {
        wait_for_peers(&process.id, 0);
    }
    let (rank, ids, config) = (process.rank() as i32, ids.as_mut_ptr(), ptr::null_mut());
    report(nccl!(ncclCommInitRankScalable(&mut comm, 2, rank, number, ids, config)));
}

/// Rank 1 initializes in a group, in which another call is refused.
fn failed_group(process: &RankProcess) {
    if process.rank() == 0 {
        return init(process.id, 2, 0);
    }
    wait_for_peers(&process.id, 0);
    let mut comm = ptr::null_mut();
    report(nccl!(ncclGroupStart()));
    report(nccl!(ncclCommInitRank(&mut comm, 2, process.id, 1)));
    report(sum(4, ptr::null_mut()));
    report(nccl!(ncclGroupEnd()));
}

fn sum(count: usize, comm: ncclComm_t) -> ncclResult_t {
    let mut buffer = vec![0_f32; count];
    let place: *mut c_void = buffer.as_mut_ptr().cast();
    nccl!(ncclAllReduce(place, place, count, F32, SUM, comm, STREAM))
}

fn twice(call: fn(ncclComm_t) -> ncclResult_t, process: &RankProcess) {
    let Comm(comm) = process.join();
    report(call(comm));
    report(call(comm));
}

fn then_sum(call: fn(ncclComm_t) -> ncclResult_t, process: &RankProcess) {
    let Comm(comm) = process.join();
    report(call(comm));
    report(sum(4, comm));
}

fn uninitialized_config(process: &RankProcess) {
    let (mut config, mut child) = (ncclConfig_t { size: 0, ..ncclConfig_t::initializer() }, ptr::null_mut());
    report(nccl!(ncclCommSplit(process.join().0, 0, 0, &mut child, &mut config)));
}

fn exit_early(process: &RankProcess) {
    let Comm(comm) = process.join();
    if process.rank() == 0 {
        report(sum(4, comm));
    }
}

fn all_reduce(process: &RankProcess, count: usize, data_type: ncclDataType_t, op: ncclRedOp_t) {
    let (mut buffer, comm) = ([0_f32; 4], process.join());
    let place: *mut c_void = buffer.as_mut_ptr().cast();
    let code = nccl!(ncclAllReduce(place, place, count, data_type, op, comm.0, STREAM));
    report(code);
    if code == ARGUMENT && process.arguments[0] == "operation_that_is_refused_on_one_rank" {
        processes::outlast_the_limit();
    }
}

fn any_stream(process: &RankProcess) {
    let (mut buffer, comm) = ([0_f32; 4], process.join());
    let place: *mut c_void = buffer.as_mut_ptr().cast();
    report(nccl!(ncclAllReduce(place, place, 4, F32, SUM, comm.0, ptr::without_provenance_mut(0x1234))));
}

fn null_buffer(process: &RankProcess) {
    let (mut buffer, comm) = ([0_f32; 4], process.join());
    let place: *mut c_void = buffer.as_mut_ptr().cast();
    report(nccl!(ncclAllReduce(ptr::null(), place, 4, F32, SUM, comm.0, STREAM)));
}

fn broadcast(process: &RankProcess, root: i32) {
    let (mut buffer, comm) = ([0_f32; 4], process.join());
    let place: *mut c_void = buffer.as_mut_ptr().cast();
    report(nccl!(ncclBroadcast(place, place, 4, F32, root, comm.0, STREAM)));
    report(nccl!(ncclCommDestroy(comm.0)));
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

fn exit_in_group(process: &RankProcess) {
    let (comm, (open, opened)) = (process.join(), mpsc::channel());
    thread::spawn(move || {
        report(nccl!(ncclGroupStart()));
        report(sum(4, { comm }.0));
        open.send(()).unwrap();
        loop {
            thread::park();
        }
    });
    opened.recv().unwrap();
    std::process::exit(0);
}

/// The other rank waits until its limit.
fn refused_split(comm: Comm, rank: usize) {
    let (mut config, mut child) = (ncclConfig_t::initializer(), ptr::null_mut());
    config.size *= 1 - rank;
    report(nccl!(ncclCommSplit(comm.0, 0, 0, &mut child, &mut config)));
    if rank == 1 {
        processes::outlast_the_limit();
    }
}

fn abort_in_group(process: &RankProcess) {
    let comm = process.join();
    report(nccl!(ncclGroupStart()));
    report(sum(4, comm.0));
    report(nccl!(ncclCommAbort(comm.0)));
}

fn different_messages(process: &RankProcess) {
    let (mut buffer, Comm(comm)) = ([0_f32; 8], process.join());
    let place: *mut c_void = buffer.as_mut_ptr().cast();
    report(match process.rank() {
        0 => nccl!(ncclSend(place, 4, F32, 1, comm, STREAM)),
        _ => nccl!(ncclRecv(place, 8, F32, 0, comm, STREAM)),
    });
}

fn both_send_first(process: &RankProcess) {
    const COUNT: usize = 1 << 20;
    let (mut buffer, Comm(comm)) = (vec![0_f32; COUNT], process.join());
    let (place, peer) = (buffer.as_mut_ptr().cast::<c_void>(), 1 - process.rank() as i32);
    report(nccl!(ncclSend(place, COUNT, F32, peer, comm, STREAM)));
    report(nccl!(ncclRecv(place, COUNT, F32, peer, comm, STREAM)));
}

fn unaligned_window(process: &RankProcess) {
    let (comm, mut memory, mut window) =
        (process.join(), ptr::null_mut::<c_void>(), ptr::null_mut() as ncclWindow_t);
    report(nccl!(ncclMemAlloc(&mut memory, 8192)));
    let inside = memory.wrapping_byte_add(8);
    report(nccl!(ncclCommWindowRegister(comm.0, inside, 4096, &mut window, 0)));
}
