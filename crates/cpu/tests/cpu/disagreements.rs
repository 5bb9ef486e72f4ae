//! Mismatched calls: every mistake in every collective, at a size of each transport, with ranks as threads and as processes, on
//! host memory and on the CUDA emulation.
//!
//! Each cell has a separate communicator, so that the next one starts without a mistake. A mistake is found if a rank gets an
//! error from the call, or when it destroys its communicator.

#![allow(unsafe_code)] // CUDA's functions

use std::ffi::{CStr, c_int, c_void};
use std::ptr;

use libnccl::sys::{ncclComm_t, ncclDataType_t, ncclRedOp_t, ncclResult_t};
use libnccl_test_support::install_as;

use crate::common::processes::{self, RankProcess};
use crate::common::{
    Comm, F32, I32, Mode, OK, STREAM, SUM, USAGE, assert_last_error, async_error, in_group, init, last_error,
    on_threads, split,
};

/// Published with the call by two ranks and by four; by four alone; only where the ranks are processes; never.
const SIZES: [usize; 4] = [4, 8 << 10, 16 << 10, 1 << 20];

#[derive(Debug, Clone, Copy)]
struct Call {
    function: usize,
    count: usize,
    data_type: ncclDataType_t,
    op: ncclRedOp_t,
    root: c_int,
}

type Function = fn(Call, *const c_void, *mut c_void, ncclComm_t) -> ncclResult_t;

/// A collective, and whether it has a root and reduces.
const FUNCTIONS: [(Function, bool, bool); 8] = [
    (|a, s, r, c| nccl!(ncclAllReduce(s, r, a.count, a.data_type, a.op, c, STREAM)), false, true),
    (|a, s, r, c| nccl!(ncclBroadcast(s, r, a.count, a.data_type, a.root, c, STREAM)), true, false),
    (|a, s, r, c| nccl!(ncclReduce(s, r, a.count, a.data_type, a.op, a.root, c, STREAM)), true, true),
    (|a, s, r, c| nccl!(ncclAllGather(s, r, a.count, a.data_type, c, STREAM)), false, false),
    (|a, s, r, c| nccl!(ncclReduceScatter(s, r, a.count, a.data_type, a.op, c, STREAM)), false, true),
    (|a, s, r, c| nccl!(ncclAlltoAll(s, r, a.count, a.data_type, c, STREAM)), false, false),
    (|a, s, r, c| nccl!(ncclGather(s, r, a.count, a.data_type, a.root, c, STREAM)), true, false),
    (|a, s, r, c| nccl!(ncclScatter(s, r, a.count, a.data_type, a.root, c, STREAM)), true, false),
];

/// The mistake of the rank that errs.
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

/// A communicator in which a rank makes a mistake.
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
    for (function, (_, has_root, reduces)) in FUNCTIONS.into_iter().enumerate() {
        let mut mistakes = vec![OtherCount, OtherType, NoCall];
        mistakes.extend([1, 3, 5].map(|step| OtherFunction((function + step) % 8)));
        mistakes.extend([OtherRoot, OwnRoot].into_iter().filter(|_| has_root));
        mistakes.extend([OtherReduction].into_iter().filter(|_| reduces));
        for (mistake, bytes) in mistakes.iter().flat_map(|mistake| sizes.iter().map(|size| (*mistake, *size)))
        {
            cells.extend([0, ranks - 1].map(|errs| Cell { function, bytes, mistake, errs }));
        }
    }
    cells
}

impl Cell {
    /// Returns the call of a rank, unless it makes none.
    fn call(self, rank: usize, ranks: usize) -> Option<Call> {
        let Self { function, bytes, mistake, errs } = self;
        let mut call = Call { function, count: bytes / 4, data_type: F32, op: SUM, root: 0 };
        match mistake {
            Mistake::OwnRoot => call.root = rank as c_int,
            _ if rank != errs => {}
            Mistake::OtherRoot => call.root = ranks as c_int - 1,
            Mistake::OtherCount => call.count += 1,
            Mistake::OtherType => call.data_type = I32,
            Mistake::OtherReduction => call.op = ncclRedOp_t::ncclMax,
            Mistake::OtherFunction(other) => call.function = other,
            Mistake::NoCall => return None,
        }
        Some(call)
    }
}

/// The functions of the emulated CUDA driver, if the process is to use it.
struct Cuda(*mut c_void);

// SAFETY: a handle of the dynamic linker.
unsafe impl Sync for Cuda {}

impl Cuda {
    fn load() -> Self {
        // SAFETY: a C string; its constructors have no contract.
        let library = unsafe { libc::dlopen(c"libcuda.so.1".as_ptr(), libc::RTLD_NOW) };
        assert!(!library.is_null(), "no emulated driver on LD_LIBRARY_PATH");
        let cuda = Self(library);
        cuda.call(c"cuInit", [0, 0]);
        cuda
    }

    /// Calls a function of at most two arguments, each of which fits into a register.
    fn call(&self, name: &CStr, arguments: [usize; 2]) {
        assert_eq!(self.code(name, arguments), 0, "{name:?}");
    }

    /// Returns whether an operation on the default stream has failed, once all are over.
    fn has_failed(&self) -> bool {
        self.code(c"cuStreamSynchronize", [0, 0]) != 0
    }

    fn code(&self, name: &CStr, [one, two]: [usize; 2]) -> c_int {
        // SAFETY: a valid handle and a C string.
        let function = unsafe { libc::dlsym(self.0, name.as_ptr()) };
        assert!(!function.is_null(), "{name:?}");
        // SAFETY: the callers pass CUDA's arguments, which are of these kinds; one too many is ignored.
        unsafe {
            std::mem::transmute::<*mut c_void, unsafe extern "C" fn(usize, usize) -> c_int>(function)(
                one, two,
            )
        }
    }

    /// Makes a device current on this thread.
    fn enter(&self, device: usize) {
        let mut context = 0_usize;
        self.call(c"cuDevicePrimaryCtxRetain", [(&raw mut context).expose_provenance(), device]);
        self.call(c"cuCtxSetCurrent", [context, 0]);
    }

    fn allocate(&self, bytes: usize) -> *mut c_void {
        let mut address = 0_usize;
        self.call(c"cuMemAlloc_v2", [(&raw mut address).expose_provenance(), bytes]);
        ptr::with_exposed_provenance_mut(address)
    }
}

rank_tasks! { "cells" => run_cells, "one_thread" => call_for_both_ranks }

/// Calls for both ranks in one thread, in a group and then without.
fn call_for_both_ranks(_: &RankProcess) {
    let cuda = Cuda::load();
    cuda.enter(0);
    let comms = init(Mode::Group, 2);
    let buffers = [0, 1].map(|device| {
        cuda.enter(device);
        cuda.allocate(4)
    });
    let sum = |rank: usize| {
        cuda.enter(rank);
        nccl!(ncclAllReduce(buffers[rank], buffers[rank], 1, F32, SUM, comms[rank].0, STREAM))
    };
    for _ in 0..3 {
        assert_eq!(in_group(|| assert_eq!([sum(0), sum(1)], [OK; 2])), OK, "{}", last_error());
    }
    assert_eq!([sum(0), sum(1)], [OK, USAGE]);
    assert_last_error("for rank 0 and rank 1 without a group around both calls");
    cuda.enter(0);
    assert!(cuda.has_failed(), "rank 0's last sum");
    assert!(comms.iter().all(|comm| async_error(comm.0) != OK));
}

#[test]
fn one_thread_for_two_ranks_without_group_on_streams_is_an_error() {
    let directory = tempfile::tempdir().unwrap();
    install_as(&directory.path().join("libcuda.so.1"), "cuda_cpu");
    let path = directory.path().to_str().unwrap();
    processes::run("one_thread", [[0, 1]], &[("LIBNCCL_CPU_DEVICES", "2"), ("LD_LIBRARY_PATH", path)]);
}

/// Runs the cells on the ranks of this process, and prints for each rank in which cells it got an error.
fn run_cells(process: &RankProcess) {
    let (memory, sizes) = process.arguments.split_first().unwrap();
    let sizes: Vec<usize> = sizes.iter().map(|size| size.parse().unwrap()).collect();
    let cuda = (memory == "emulation").then(Cuda::load);
    let own = on_threads(process.own.len(), |index| {
        let rank = process.own[index];
        if let Some(cuda) = &cuda {
            cuda.enter(rank);
        }
        // Room for a block of each rank, and an element more.
        let bytes = (sizes.iter().max().unwrap() + 4) * process.ranks;
        let mut host = [(); 2].map(|()| vec![0_u64; if cuda.is_some() { 0 } else { bytes / 8 + 1 }]);
        let buffers = host.each_mut().map(|buffer| match &cuda {
            Some(cuda) => cuda.allocate(bytes),
            None => buffer.as_mut_ptr().cast::<c_void>(),
        });
        let parent = process.join_as(rank);
        let found = cells(process.ranks, &sizes).into_iter().map(|cell| {
            let Comm(comm) = split(parent.0, 0, 0).unwrap();
            let mut is_found = false;
            if let Some(call) = cell.call(rank, process.ranks) {
                is_found = FUNCTIONS[call.function].0(call, buffers[0], buffers[1], comm) != OK;
                if let Some(cuda) = &cuda
                    && cuda.has_failed()
                {
                    assert_eq!(nccl!(ncclCommAbort(comm)), OK);
                    return true;
                }
            }
            is_found | (nccl!(ncclCommDestroy(comm)) != OK)
        });
        let found: String = found.map(|is_found| if is_found { '1' } else { '0' }).collect();
        parent.destroy();
        found
    });
    own.iter().for_each(|found| println!("found {found}"));
}

/// Runs the cells with `ranks` ranks, in a process for each or as threads of one, and returns those that no rank found.
fn silent(ranks: usize, sizes: &[usize], are_processes: bool, memory: &str) -> Vec<String> {
    let directory = tempfile::tempdir().unwrap();
    install_as(&directory.path().join("libcuda.so.1"), "cuda_cpu");
    let sizes_text: Vec<String> = sizes.iter().map(ToString::to_string).collect();
    let task = format!("cells {memory} {}", sizes_text.join(" "));
    let mut variables = vec![("LIBNCCL_CPU_TIMEOUT", "20"), ("LIBNCCL_CPU_DEVICES", "8")];
    if memory == "emulation" {
        variables.push(("LD_LIBRARY_PATH", directory.path().to_str().unwrap()));
    }
    let all: Vec<usize> = (0..ranks).collect();
    let printed =
        processes::run(&task, all.chunks(if are_processes { 1 } else { ranks }), &variables).concat();
    let found: Vec<&str> =
        printed.lines().filter_map(|line| line.rsplit_once("found ").map(|(_, found)| found)).collect();
    assert_eq!(found.len(), ranks, "{printed}");
    let cells = cells(ranks, sizes);
    assert!(found.iter().all(|found| found.len() == cells.len()));
    let is_silent = |index: &usize| found.iter().all(|found| found.as_bytes()[*index] == b'0');
    (0..cells.len()).filter(is_silent).map(|index| format!("{:?}", cells[index])).collect()
}

fn check(ranks: &[usize], sizes: &[usize], kinds: &[bool], memories: &[&str]) {
    for ranks in ranks.iter().copied() {
        for (are_processes, memory) in
            kinds.iter().flat_map(|kind| memories.iter().map(|memory| (*kind, memory)))
        {
            let silent = silent(ranks, sizes, are_processes, memory);
            assert!(
                silent.is_empty(),
                "{ranks} ranks, processes: {are_processes}, {memory}: {}",
                silent.join("\n")
            );
        }
    }
}

#[test]
fn mistake_in_any_short_call_is_found() {
    check(&[2, 4], &SIZES[..2], &[false], &["host"]);
    check(&[2], &SIZES[..1], &[true], &["emulation"]);
}

#[test]
#[ignore = "takes a minute: .ci/long"]
fn mistake_in_any_call_is_found_at_every_size() {
    check(&[2, 3, 4, 8], &SIZES, &[false, true], &["host", "emulation"]);
}
