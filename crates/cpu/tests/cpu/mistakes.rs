//! The mistakes of `docs/what-it-finds.md`: each is made here, and the texts that the page quotes must be printed. A few more
//! mistakes are next to the text that names their cause.
//!
//! The environment is read once per process, so each rank runs in a separate process.

#![allow(unsafe_code)] // fork

use std::ffi::c_void;
use std::ptr;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use crate::common::processes::{self, RankProcess};
use crate::common::{
    self, Comm, F32, Memory, OK, STREAM, SUM, in_group, init_rank, init_with, last_error, on_threads, split,
    unique_id, wait_for_peers,
};
use libnccl::sys::{ncclConfig_t, ncclDataType_t, ncclRedOp_t, ncclResult_t};

const PAGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/what-it-finds.md");

const LONG: usize = 1 << 20;

rank_tasks!(make);

/// Makes the mistake of each row of the page's table, and checks that the ranks print every text in the row's third cell, where
/// `…` is any text. The fourth cell is the name that [`make`] has for it.
#[test]
fn mistakes_of_the_page_print_its_texts() {
    let page = std::fs::read_to_string(PAGE).unwrap();
    let (_, table) =
        page.split_once("| mistake | NCCL | the CPU backend says | test |\n").expect("the table");
    let rows: Vec<&str> = table.lines().skip(1).take_while(|line| line.starts_with('|')).collect();
    assert!(rows.len() > 30, "{rows:?}");
    let failures = on_threads(4, |thread| {
        rows.iter().skip(thread).step_by(4).filter_map(|row| missing_text(row)).collect::<String>()
    });
    assert_eq!(failures.concat(), "");
}

/// Makes the mistake of a row, and returns what the ranks did not print.
fn missing_text(row: &str) -> Option<String> {
    let cells: Vec<&str> = row.trim_matches(['|', ' ']).split(" | ").collect();
    let [title, _, texts, name] = cells[..] else { panic!("not four cells: {row}") };
    let variables: &[(&str, &str)] = match title {
        _ if title.contains("(strict") => &[("LIBNCCL_CPU_STRICT", "1")],
        _ if title.contains("`NCCL_DEBUG=WARN`") => &[("NCCL_DEBUG", "WARN")],
        _ => &[],
    };
    let printed = run(name.trim_matches('`'), variables).concat();
    let mut texts = texts.split('`').skip(1).step_by(2).peekable();
    assert!(texts.peek().is_some(), "no text in {row}");
    let text = texts.find(|text| !printed.lines().any(|line| has_parts(line, text)))?;
    Some(format!("{name}: no line like {text:?} in:\n{printed}\n"))
}

/// Makes a mistake on both ranks, with short limits, and returns what each prints.
fn run(mistake: &str, variables: &[(&str, &str)]) -> Vec<String> {
    let variables = [&processes::limits(), variables].concat();
    processes::run(&format!("make {mistake}"), [[0], [1]], &variables)
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

fn report(code: ncclResult_t) {
    if code != OK {
        eprintln!("{code:?}: {}", last_error());
    }
}

fn all_reduce(count: usize, data_type: ncclDataType_t, op: ncclRedOp_t, comm: Comm) {
    let mut buffer = vec![0_u64; count];
    let place: *mut c_void = buffer.as_mut_ptr().cast();
    report(nccl!(ncclAllReduce(place, place, count, data_type, op, comm.0, STREAM)));
}

fn sum(count: usize, comm: Comm) {
    all_reduce(count, F32, SUM, comm);
}

fn broadcast(count: usize, root: usize, comm: Comm) {
    report(common::broadcast(&mut vec![0_f32; count], root, comm.0));
}

fn send(count: usize, peer: usize, comm: Comm) {
    report(common::send(&vec![0_f32; count], peer, comm.0));
}

fn receive(count: usize, peer: usize, comm: Comm) {
    report(common::receive(&mut vec![0_f32; count], peer, comm.0));
}

/// Makes the mistake of the first argument, or a part of it, as one of two ranks.
fn make(process: &RankProcess) {
    let (rank, none) = (process.rank(), ptr::null_mut());
    let init = |rank| report(init_rank(process.id, 2, rank).err().unwrap_or(OK));
    // Once rank 0 waits for rank 1.
    let fails_later = |fail: &dyn Fn()| {
        if rank == 0 {
            return init(0);
        }
        wait_for_peers(&process.id, 0);
        fail();
    };
    match process.arguments[0].as_str() {
        "missing_rank" if rank == 1 => {}
        "missing_rank" => init(0),
        "refused_rank" => fails_later(&|| init(7)),
        "too_many_ids" => fails_later(&|| {
            let mut ids = [process.id; 3];
            report(nccl!(ncclCommInitRankScalable(
                &mut { none },
                2,
                1,
                3,
                ids.as_mut_ptr(),
                ptr::null_mut()
            )));
        }),
        "failed_group_of_inits" => fails_later(&|| {
            let mut comm = none;
            report(in_group(|| {
                report(nccl!(ncclCommInitRank(&mut comm, 2, process.id, 1)));
                sum(4, Comm(none));
            }));
        }),
        "group_left_open_with_inits" => {
            report(nccl!(ncclGroupStart()));
            report(nccl!(ncclCommInitRank(&mut { none }, 2, process.id, rank as i32)));
        }
        "same_rank" => init(0),
        "one_thread_for_two_ranks_without_group" if rank == 1 => {}
        "one_thread_for_two_ranks_without_group" => {
            common::init(2).into_iter().for_each(|comm| sum(4, comm));
        }
        "one_id_for_two_communicators" => {
            sum(4, process.join());
            init(rank);
        }
        "different_options" => {
            let change = |config: &mut ncclConfig_t| {
                config.commName = [c"data", c"model"][rank].as_ptr();
                config.minCTAs = [config.minCTAs, 4][rank];
            };
            report(init_with(process.id, 2, rank, change).0);
        }
        "different_number_of_ids" => {
            let (mut ids, number) = ([process.id, unique_id()], rank as i32 + 1);
            let ids = ids.as_mut_ptr();
            report(nccl!(ncclCommInitRankScalable(
                &mut { none },
                2,
                rank as i32,
                number,
                ids,
                ptr::null_mut()
            )));
        }
        mistake => make_as_member(mistake, rank, process.join()),
    }
}

fn make_as_member(mistake: &str, rank: usize, comm: Comm) {
    let child = || split(comm.0, 0, 0).unwrap();
    let destroy = || report(nccl!(ncclCommDestroy(comm.0)));
    match mistake {
        "different_order" => {
            let calls: [&dyn Fn(); 2] = [&|| sum(LONG, comm), &|| broadcast(LONG, 0, comm)];
            calls[rank]();
            calls[1 - rank]();
        }
        "different_count" => sum(4 + rank, comm),
        "different_type" => all_reduce(4, [F32, ncclDataType_t::ncclInt64][rank], SUM, comm),
        "different_root" => broadcast(LONG, rank, comm),
        // Each rank passes itself as the root, and waits for no other rank.
        "different_root_of_short_call" => {
            broadcast(1, rank, comm);
            sum(4, comm);
        }
        "different_root_of_last_short_call" => {
            broadcast(1, rank, comm);
            destroy();
        }
        "different_reduction" => all_reduce(4, F32, [SUM, ncclRedOp_t::ncclMax][rank], comm),
        "extra_call" => {
            (0..2 - rank).for_each(|_| sum(4, comm));
            destroy();
        }
        // The root waits for no other rank.
        "extra_short_broadcast" => {
            sum(4, comm);
            (rank..1).for_each(|_| broadcast(1, 0, comm));
            destroy();
        }
        "different_communicator" => sum(4, [comm, child()][rank]),
        "two_communicators_in_different_order" => {
            let comms = [comm, child()];
            sum(LONG, comms[rank]);
            sum(LONG, comms[1 - rank]);
        }
        "group_without_end" if rank == 1 => {
            report(nccl!(ncclGroupStart()));
            sum(4, comm);
            processes::outlast_the_limit();
        }
        "group_without_end" => sum(4, comm),
        // Each rank ends one group fewer than it has started.
        "group_that_no_rank_ends" => {
            report(nccl!(ncclGroupStart()));
            report(in_group(|| sum(4, comm)));
            destroy();
        }
        "aborted_in_an_open_group" => {
            report(nccl!(ncclGroupStart()));
            sum(4, comm);
            report(nccl!(ncclCommAbort(comm.0)));
        }
        // The group is open on a thread that still runs when the process exits.
        "group_open_at_exit" => {
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
        // Rank 1 makes the calls of rank 0's group one by one.
        "different_groups" => {
            let mut buffers = [[0_f32; 4]; 2];
            let mut both =
                || buffers.iter_mut().for_each(|buffer| report(common::all_reduce(buffer, comm.0)));
            if rank == 0 { report(in_group(both)) } else { both() }
        }
        "send_to_itself_without_group" => {
            send(4, rank, comm);
            receive(4, rank, comm);
        }
        "unreceived_send" => {
            (rank..1).for_each(|_| (0..2).for_each(|_| send(1000, 1, comm)));
            sum(4, comm);
            destroy();
        }
        // Rank 0's collective and send are one group; rank 1 makes the calls one by one, in the other order.
        "group_on_one_rank" if rank == 0 => {
            let (mut summed, sent) = (vec![0_f32; LONG], vec![0_f32; LONG]);
            report(in_group(|| {
                report(common::all_reduce(&mut summed, comm.0));
                report(common::send(&sent, 1, comm.0));
            }));
        }
        "group_on_one_rank" => {
            receive(LONG, 0, comm);
            sum(LONG, comm);
        }
        // The first thread waits for the other rank, which is late.
        "two_threads" if rank == 1 => {
            thread::sleep(Duration::from_millis(1500));
            sum(3, comm);
        }
        "two_threads" => thread::scope(|scope| {
            scope.spawn(|| sum(3, comm));
            thread::sleep(Duration::from_millis(500));
            sum(3, comm);
        }),
        "forked_child" => {
            // SAFETY: the child makes one call, which is refused, and ends.
            let child = unsafe { libc::fork() };
            sum(4, comm);
            if child == 0 {
                // SAFETY: ends the process immediately.
                unsafe { libc::_exit(0) };
            }
            // SAFETY: a child of this process, and no pointer for its status.
            unsafe { libc::waitpid(child, ptr::null_mut(), 0) };
        }
        "buffers_that_overlap" => {
            let mut buffer = [0_f32; 20];
            let start = buffer.as_mut_ptr();
            let (from, to) = (start.cast(), start.wrapping_add(3).cast());
            report(nccl!(ncclAllReduce(from, to, 16, F32, SUM, comm.0, STREAM)));
        }
        // In place, a rank's own block is at its rank times the count.
        "wrong_offset_in_place" => {
            let mut buffer = [0_f32; 32];
            let start = buffer.as_mut_ptr();
            let (from, to) = (start.wrapping_add(8).cast(), start.cast());
            report(nccl!(ncclAllGather(from, to, 16, F32, comm.0, STREAM)));
        }
        // NCCL does not document it, but its tests do it: without strict mode, it is a warning.
        "all_to_all_in_place" => {
            for count in [1, 2048, 1 << 18] {
                let of = |from, to| vec![(2 * from + to) as f32; count];
                let mut buffer = [of(rank, 0), of(rank, 1)].concat();
                let place = buffer.as_mut_ptr().cast();
                let code = nccl!(ncclAlltoAll(place, place, count, F32, comm.0, STREAM));
                report(code);
                assert!(code != OK || buffer == [of(0, rank), of(1, rank)].concat());
            }
        }
        "count_zero_on_one_rank" => {
            (rank..1).for_each(|_| sum(0, comm));
            sum(4, comm);
        }
        "different_options_of_a_child" => {
            let mut config = ncclConfig_t { trafficClass: rank as i32, ..ncclConfig_t::initializer() };
            report(nccl!(ncclCommSplit(comm.0, 0, 0, &mut ptr::null_mut(), &mut config)));
        }
        "different_window_sizes" => {
            let (memory, size) = (Memory::new(2048), 4096 * (1 + rank));
            report(nccl!(ncclCommWindowRegister(comm.0, memory.start.cast(), size, &mut ptr::null_mut(), 0)));
            std::mem::forget(memory);
        }
        "communicator_not_destroyed" => sum(4, comm),
        "refused_operation" => {
            all_reduce(4, [F32, ncclDataType_t(77)][rank], SUM, comm);
            (0..rank).for_each(|_| processes::outlast_the_limit());
        }
        "any_stream" => {
            let (mut buffer, stream) = ([0_f32; 4], ptr::without_provenance_mut(0x1234));
            let place = buffer.as_mut_ptr().cast();
            report(nccl!(ncclAllReduce(place, place, 4, F32, SUM, comm.0, stream)));
        }
        _ => panic!("{mistake}"),
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

#[test]
fn different_arguments_are_an_error_on_all_ranks_in_strict_mode() {
    for mistake in [
        "different_options",
        "different_options_of_a_child",
        "different_number_of_ids",
        "different_window_sizes",
    ] {
        for (strict, is_error) in [("0", false), ("1", true)] {
            for printed in run(mistake, &[("LIBNCCL_CPU_STRICT", strict)]) {
                let has_error = printed.contains("ncclResult_t(5): the ranks called ");
                let is_strict = has_error && printed.contains("(LIBNCCL_CPU_STRICT is 1)");
                assert_eq!(is_strict, is_error, "{mistake}: {printed}");
            }
        }
    }
}

#[test]
fn mistake_at_init_in_a_group_or_in_arguments_prints_its_cause() {
    const STRICT: &[(&str, &str)] = &[("LIBNCCL_CPU_STRICT", "1")];
    for (mistake, variables, cause) in [
        ("same_rank", &[][..], "two callers passed rank 0"),
        ("too_many_ids", &[], "joined: invalid number of unique ids 3"),
        ("failed_group_of_inits", &[], "joined: ncclAllReduce in this group failed"),
        ("group_left_open_with_inits", &[], "called ncclCommInitRank in a group that has not ended"),
        (
            "aborted_in_an_open_group",
            &[],
            "called ncclAllReduce(count 4, ncclFloat32, ncclSum) in a group that has not ended",
        ),
        ("refused_operation", &[], "and whose last call failed: invalid ncclDataType_t 77"),
        ("any_stream", STRICT, "(count 4, ncclFloat32, ncclSum): stream 0x1234 is neither used nor checked"),
    ] {
        let printed = run(mistake, variables).concat();
        assert!(printed.contains(cause), "{mistake}: no {cause:?} in:\n{printed}");
        let waited = "have joined; missing";
        assert!(!printed.contains(waited), "{mistake}: a rank waited for one that never joins:\n{printed}");
    }
}

#[test]
fn missing_call_fails_destroy_unless_failures_are_only_reported() {
    for (failures, is_error) in [("", true), ("error", true), ("report", false), ("wait", false)] {
        let printed = run("extra_short_broadcast", &[("LIBNCCL_CPU_FAILURES", failures)]).concat();
        assert!(
            printed.contains(" last; comm ") && printed.contains("[missing-call]"),
            "{failures}: {printed}"
        );
        // The rank that is destroyed last, or both if at the same time.
        assert_eq!(printed.contains("ncclResult_t("), is_error, "{failures}: {printed}");
    }
}
