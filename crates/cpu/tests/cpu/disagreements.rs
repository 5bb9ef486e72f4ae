//! Mismatched calls: every mistake in every collective, at a size of each transport, with ranks as threads and as processes.
//!
//! Each cell has a separate communicator, so that the next one starts without a mistake. A mistake is found if a rank gets an
//! error from the call, or when it destroys its communicator.

#![allow(unsafe_code)] // CUDA's functions

use std::ffi::{CStr, c_int, c_void};
use std::ptr;

use libnccl::sys::ncclRedOp_t;
use libnccl_test_support::install_as;

use crate::common::processes::{self, RankProcess};
use crate::common::{
    Arguments, COLLECTIVES, Comm, F32, I32, OK, STREAM, SUM, USAGE, assert_last_error, async_error, has_root,
    in_group, init, last_error, on_threads, split,
};

/// Published with the call by two ranks and by four; by four alone; only where the ranks are processes; never.
const SIZES: [usize; 4] = [4, 8 << 10, 16 << 10, 1 << 20];

#[derive(Debug, Clone, Copy, PartialEq)]
enum Mistake {
    OtherRoot,
    /// Every rank makes this mistake.
    OwnRoot,
    OtherCount,
    OtherType,
    OtherReduction,
    OtherFunction(usize),
    NoCall,
}

/// A communicator in which a rank makes a mistake in a collective.
#[derive(Debug, Clone, Copy)]
struct Cell {
    function: usize,
    bytes: usize,
    mistake: Mistake,
    errs: usize,
}

/// Returns the cells with this number of ranks. The first rank, which is the root, errs, or the last one.
fn cells(ranks: usize, sizes: &[usize]) -> Vec<Cell> {
    use Mistake::{NoCall, OtherCount, OtherFunction, OtherReduction, OtherRoot, OtherType, OwnRoot};
    let mut cells = vec![];
    for (function, (name, _)) in COLLECTIVES.into_iter().enumerate() {
        let mut mistakes = vec![OtherCount, OtherType, NoCall];
        mistakes.extend([1, 3, 5].map(|step| OtherFunction((function + step) % 8)));
        mistakes.extend([OtherRoot, OwnRoot].into_iter().filter(|_| has_root(name)));
        mistakes.extend([OtherReduction].into_iter().filter(|_| name.contains("Reduce")));
        for (mistake, bytes) in mistakes.iter().flat_map(|mistake| sizes.iter().map(|size| (*mistake, *size)))
        {
            cells.extend([0, ranks - 1].map(|errs| Cell { function, bytes, mistake, errs }));
        }
    }
    cells
}

impl Cell {
    /// Returns the collective and the arguments of a rank, unless it makes no call.
    fn call(self, rank: usize, ranks: usize) -> Option<(usize, Arguments)> {
        let Self { mut function, bytes, mistake, errs } = self;
        let mut arguments = Arguments { count: bytes / 4, data: F32, op: SUM, root: 0 };
        match mistake {
            Mistake::OwnRoot => arguments.root = rank as c_int,
            _ if rank != errs => {}
            Mistake::OtherRoot => arguments.root = ranks as c_int - 1,
            Mistake::OtherCount => arguments.count += 1,
            Mistake::OtherType => arguments.data = I32,
            Mistake::OtherReduction => arguments.op = ncclRedOp_t::ncclMax,
            Mistake::OtherFunction(other) => function = other,
            Mistake::NoCall => return None,
        }
        Some((function, arguments))
    }
}

rank_tasks!(run_cells, call_for_both_ranks_on_streams);

/// Runs the cells on the ranks of this process, and prints for each rank in which cells it got an error.
fn run_cells(process: &RankProcess) {
    let sizes: Vec<usize> = process.arguments.iter().map(|size| size.parse().unwrap()).collect();
    let own = on_threads(process.own.len(), |index| {
        let rank = process.own[index];
        // Room for a block of each rank, and an element more.
        let length = (sizes.iter().max().unwrap() + 4) * process.ranks / 8 + 1;
        let (sent, mut received) = (vec![0_u64; length], vec![0_u64; length]);
        let parent = process.join_as(rank);
        let found = cells(process.ranks, &sizes).into_iter().map(|cell| {
            let Comm(comm) = split(parent.0, 0, 0).unwrap();
            let code = cell.call(rank, process.ranks).map_or(OK, |(function, arguments)| {
                COLLECTIVES[function].1(arguments, sent.as_ptr().cast(), received.as_mut_ptr().cast(), comm)
            });
            (code != OK) | (nccl!(ncclCommDestroy(comm)) != OK)
        });
        let found: String = found.map(|is_found| if is_found { '1' } else { '0' }).collect();
        parent.destroy();
        found
    });
    own.iter().for_each(|found| println!("found {found}"));
}

/// Runs the cells with `ranks` ranks, in a process for each or as threads of one, and expects some rank to find each mistake.
fn check(ranks: usize, sizes: &[usize], are_processes: bool) {
    let sizes_text: Vec<String> = sizes.iter().map(ToString::to_string).collect();
    let all: Vec<usize> = (0..ranks).collect();
    let processes = all.chunks(if are_processes { 1 } else { ranks });
    let task = format!("run_cells {}", sizes_text.join(" "));
    let printed = processes::run(&task, processes, &[("LIBNCCL_CPU_TIMEOUT", "20")]).concat();
    let found: Vec<&str> =
        printed.lines().filter_map(|line| line.rsplit_once("found ").map(|(_, found)| found)).collect();
    assert_eq!(found.len(), ranks, "{printed}");
    for (index, cell) in cells(ranks, sizes).iter().enumerate() {
        let is_found = found.iter().any(|found| found.as_bytes()[index] == b'1');
        assert!(is_found, "{ranks} ranks, processes: {are_processes}: {cell:?}");
    }
}

#[test]
fn mistake_in_any_short_call_is_found() {
    [2, 4].iter().for_each(|ranks| check(*ranks, &SIZES[..2], false));
    check(2, &SIZES[..1], true);
}

#[test]
#[ignore = "takes a minute: .ci/run long"]
fn mistake_in_any_call_is_found_at_every_size() {
    for ranks in [2, 3, 4, 8] {
        [false, true].iter().for_each(|are_processes| check(ranks, &SIZES, *are_processes));
    }
}

/// Calls a function of the emulated CUDA driver with at most two arguments, each of which fits into a register.
fn cuda(name: &CStr, [one, two]: [usize; 2]) -> c_int {
    // SAFETY: C strings; the library's constructors have no contract. The callers pass CUDA's arguments, which are of these
    // kinds; one too many is ignored.
    unsafe {
        let library = libc::dlopen(c"libcuda.so.1".as_ptr(), libc::RTLD_NOW);
        assert!(!library.is_null(), "no emulated driver on LD_LIBRARY_PATH");
        let function = libc::dlsym(library, name.as_ptr());
        assert!(!function.is_null(), "{name:?}");
        std::mem::transmute::<*mut c_void, unsafe extern "C" fn(usize, usize) -> c_int>(function)(one, two)
    }
}

fn enter(device: usize) {
    let mut context = 0_usize;
    let address = (&raw mut context).expose_provenance();
    assert_eq!(cuda(c"cuDevicePrimaryCtxRetain", [address, device]), 0);
    assert_eq!(cuda(c"cuCtxSetCurrent", [context, 0]), 0);
}

fn call_for_both_ranks_on_streams(_: &RankProcess) {
    assert_eq!(cuda(c"cuInit", [0, 0]), 0);
    enter(0);
    let comms = init(2);
    let buffers = [0, 1].map(|device| {
        enter(device);
        let mut address = 0_usize;
        assert_eq!(cuda(c"cuMemAlloc_v2", [(&raw mut address).expose_provenance(), 4]), 0);
        ptr::with_exposed_provenance_mut::<c_void>(address)
    });
    let sum = |rank: usize| {
        enter(rank);
        nccl!(ncclAllReduce(buffers[rank], buffers[rank], 1, F32, SUM, comms[rank].0, STREAM))
    };
    for _ in 0..3 {
        assert_eq!(in_group(|| assert_eq!([sum(0), sum(1)], [OK; 2])), OK, "{}", last_error());
    }
    assert_eq!([sum(0), sum(1)], [OK, USAGE]);
    assert_last_error("for rank 0 and rank 1 without a group around both calls");
    enter(0);
    assert_ne!(cuda(c"cuStreamSynchronize", [0, 0]), 0, "rank 0's last sum");
    assert!(comms.iter().all(|comm| async_error(comm.0) != OK));
}

#[test]
fn one_thread_for_two_ranks_without_group_on_streams_is_an_error() {
    let directory = tempfile::tempdir().unwrap();
    install_as(&directory.path().join("libcuda.so.1"), "cuda_cpu");
    let path = directory.path().to_str().unwrap();
    processes::run(
        "call_for_both_ranks_on_streams",
        [[0, 1]],
        &[("LIBNCCL_CPU_DEVICES", "2"), ("LD_LIBRARY_PATH", path)],
    );
}
