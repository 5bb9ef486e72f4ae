//! The mistakes of `docs/what-it-finds.md`: each is made here, and what the page says about it has to be printed.
//!
//! The environment is read once per process, so each rank runs in a process of its own.

mod common;

use std::ffi::c_void;
use std::process::Child;
use std::ptr;

use common::processes::{self, RankProcess, finish};
use common::{Comm, OK, init_rank, last_error, unique_id};
use libnccl::sys::{ncclComm_t, ncclDataType_t, ncclRedOp_t, ncclResult_t};

const PAGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/what-it-finds.md");

const FLOAT: ncclDataType_t = ncclDataType_t::ncclFloat32;
const SUM: ncclRedOp_t = ncclRedOp_t::ncclSum;

/// Elements that no transport buffers.
const LONG: usize = 1 << 20;

/// Makes a test of each mistake, which two ranks make in the function of this name, with these variables.
macro_rules! mistakes {
    ($($name:ident $(with $variable:literal = $value:literal)?),* $(,)?) => {
        rank_tasks! { $(stringify!($name) => $name),* }

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
    different_reduction,
    missing_rank,
    extra_call,
    different_communicator,
    two_communicators_in_different_order,
    one_thread_for_two_ranks_without_group,
}

/// Returns the name of the test in a row of the page's table.
fn test_of_row(line: &str) -> Option<&str> {
    line.strip_suffix("` |")?.rsplit_once('`').map(|(_, name)| name)
}

/// Makes the mistake, and checks that the ranks print every text in the third cell of its row, where `…` is any text.
fn check(mistake: &str, variables: &[(&str, &str)]) {
    let page = std::fs::read_to_string(PAGE).unwrap();
    let row = page.lines().find(|line| test_of_row(line) == Some(mistake)).expect("a row with this test");
    let cell = row.split(" | ").nth(2).expect("a third cell");
    let id = unique_id();
    let start = |rank| {
        let mut command = processes::command(mistake, &id, 2, &[rank]);
        command.env("LIBNCCL_CPU_WARN_AFTER", "1").env("LIBNCCL_CPU_TIMEOUT", "3");
        command.envs(variables.iter().copied()).spawn().unwrap()
    };
    let children: Vec<Child> = (0..2).map(start).collect();
    let printed: String = children.into_iter().map(finish).collect();
    let texts: Vec<&str> = cell.split('`').skip(1).step_by(2).collect();
    assert!(!texts.is_empty(), "no text in {row}");
    for text in texts {
        assert!(printed.lines().any(|line| has_parts(line, text)), "no line like {text:?} in:\n{printed}");
    }
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
    all_reduce(count, FLOAT, SUM, comm);
}

fn broadcast(count: usize, root: i32, comm: Comm) {
    let mut buffer = vec![0_u64; count];
    let place: *mut c_void = buffer.as_mut_ptr().cast();
    report(nccl!(ncclBroadcast(place, place, count, FLOAT, root, comm.0, ptr::null_mut())));
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
    let types = [FLOAT, ncclDataType_t::ncclInt64];
    all_reduce(4, types[process.rank()], SUM, process.join());
}

fn different_root(process: &RankProcess) {
    broadcast(LONG, process.rank() as i32, process.join());
}

fn different_reduction(process: &RankProcess) {
    let reductions = [SUM, ncclRedOp_t::ncclMax];
    all_reduce(4, FLOAT, reductions[process.rank()], process.join());
}

fn missing_rank(process: &RankProcess) {
    if process.rank() == 0 {
        report(init_rank(process.id, process.ranks, 0).expect_err("the other rank is absent"));
    }
}

fn extra_call(process: &RankProcess) {
    let comm = process.join();
    sum(4, comm);
    if process.rank() == 0 {
        sum(4, comm);
    }
    comm.destroy();
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
