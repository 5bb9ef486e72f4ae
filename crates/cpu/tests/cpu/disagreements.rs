//! Calls in which one rank, or each, does something else: every mistake in every collective, at a size of each transport, with
//! ranks as threads and as processes, on host memory and on the stand-in for CUDA.
//!
//! Each cell has a communicator of its own, so that the next one begins without a mistake. It is found if a rank gets an error:
//! of the call, or when it leaves.

#![allow(unsafe_code)] // CUDA's functions

use std::ffi::{CStr, c_int, c_void};
use std::fs;
use std::process::{Child, Stdio};
use std::ptr;
use std::thread;
use std::time::Instant;

use libnccl::sys::{ncclComm_t, ncclDataType_t, ncclRedOp_t, ncclResult_t};
use libnccl_test_support::shared_object;
use tempfile::TempDir;

use crate::common::processes::{self, RankProcess, finish};
use crate::common::{F32, I32, OK, STREAM, SUM, USAGE, async_error, last_error, on_threads, unique_id};

/// Published with the call by two ranks and by four; by four alone; only where the ranks are processes; never.
const SIZES: [usize; 4] = [4, 8 << 10, 16 << 10, 1 << 20];

#[derive(Debug, Clone, Copy, PartialEq)]
enum Function {
    AllReduce,
    Broadcast,
    Reduce,
    AllGather,
    ReduceScatter,
    AlltoAll,
    Gather,
    Scatter,
}

impl Function {
    const ALL: [Self; 8] = [
        Self::AllReduce,
        Self::Broadcast,
        Self::Reduce,
        Self::AllGather,
        Self::ReduceScatter,
        Self::AlltoAll,
        Self::Gather,
        Self::Scatter,
    ];

    fn has_root(self) -> bool {
        matches!(self, Self::Broadcast | Self::Reduce | Self::Gather | Self::Scatter)
    }

    fn reduces(self) -> bool {
        matches!(self, Self::AllReduce | Self::Reduce | Self::ReduceScatter)
    }
}

/// The mistake of the rank that errs.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Mistake {
    OtherRoot,
    /// So does every other rank.
    OwnRoot,
    OtherCount,
    OtherType,
    OtherReduction,
    OtherFunction(Function),
    NoCall,
}

#[derive(Debug, Clone, Copy)]
struct Cell {
    function: Function,
    bytes: usize,
    mistake: Mistake,
    errs: usize,
}

/// Returns the cells with this number of ranks. The first rank, which is the root, errs, or the last one.
fn cells(ranks: usize, sizes: &[usize]) -> Vec<Cell> {
    use Mistake::{NoCall, OtherCount, OtherFunction, OtherReduction, OtherRoot, OtherType, OwnRoot};
    let mut cells = vec![];
    for (number, function) in Function::ALL.into_iter().enumerate() {
        let mut mistakes = vec![OtherCount, OtherType, NoCall];
        mistakes.extend([1, 3, 5].map(|step| OtherFunction(Function::ALL[(number + step) % 8])));
        if function.has_root() {
            mistakes.extend([OtherRoot, OwnRoot]);
        }
        if function.reduces() {
            mistakes.push(OtherReduction);
        }
        for (mistake, bytes) in mistakes.iter().flat_map(|mistake| sizes.iter().map(|size| (*mistake, *size)))
        {
            cells.extend([0, ranks - 1].map(|errs| Cell { function, bytes, mistake, errs }));
        }
    }
    cells
}

#[derive(Debug, Clone, Copy)]
struct Call {
    function: Function,
    count: usize,
    data_type: ncclDataType_t,
    op: ncclRedOp_t,
    root: c_int,
}

impl Cell {
    /// Returns the call of a rank, unless it makes none.
    fn call(self, rank: usize, ranks: usize) -> Option<Call> {
        let Self { function, bytes, mistake, errs } = self;
        let mut call = Call { function, count: bytes / 4, data_type: F32, op: SUM, root: 0 };
        if mistake == Mistake::OwnRoot {
            call.root = rank as c_int;
        }
        if rank == errs {
            match mistake {
                Mistake::OwnRoot => {}
                Mistake::OtherRoot => call.root = ranks as c_int - 1,
                Mistake::OtherCount => call.count += 1,
                Mistake::OtherType => call.data_type = I32,
                Mistake::OtherReduction => call.op = ncclRedOp_t::ncclMax,
                Mistake::OtherFunction(other) => call.function = other,
                Mistake::NoCall => return None,
            }
        }
        Some(call)
    }
}

impl Call {
    fn make(self, comm: ncclComm_t, [from, to]: [*mut c_void; 2]) -> ncclResult_t {
        let Self { function, count, data_type, op, root } = self;
        match function {
            Function::AllReduce => nccl!(ncclAllReduce(from, to, count, data_type, op, comm, STREAM)),
            Function::Broadcast => nccl!(ncclBroadcast(from, to, count, data_type, root, comm, STREAM)),
            Function::Reduce => nccl!(ncclReduce(from, to, count, data_type, op, root, comm, STREAM)),
            Function::AllGather => nccl!(ncclAllGather(from, to, count, data_type, comm, STREAM)),
            Function::ReduceScatter => {
                nccl!(ncclReduceScatter(from, to, count, data_type, op, comm, STREAM))
            }
            Function::AlltoAll => nccl!(ncclAlltoAll(from, to, count, data_type, comm, STREAM)),
            Function::Gather => nccl!(ncclGather(from, to, count, data_type, root, comm, STREAM)),
            Function::Scatter => nccl!(ncclScatter(from, to, count, data_type, root, comm, STREAM)),
        }
    }
}

/// The functions of the stand-in for CUDA's driver, if the process is to use it.
struct Cuda(*mut c_void);

// SAFETY: a handle of the dynamic linker.
unsafe impl Sync for Cuda {}

impl Cuda {
    fn load() -> Self {
        // SAFETY: a C string; the stand-in's constructors have no contract.
        let library = unsafe { libc::dlopen(c"libcuda.so.1".as_ptr(), libc::RTLD_NOW) };
        assert!(!library.is_null(), "no stand-in on LD_LIBRARY_PATH");
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

    /// Makes a device that of this thread.
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
    let mut comms: [ncclComm_t; 2] = [ptr::null_mut(); 2];
    assert_eq!(nccl!(ncclCommInitAll(comms.as_mut_ptr(), 2, ptr::null())), OK);
    let buffers = [0, 1].map(|device| {
        cuda.enter(device);
        cuda.allocate(4)
    });
    let sum = |rank: usize| {
        cuda.enter(rank);
        nccl!(ncclAllReduce(buffers[rank], buffers[rank], 1, F32, SUM, comms[rank], STREAM))
    };
    for _ in 0..3 {
        assert_eq!(nccl!(ncclGroupStart()), OK);
        assert_eq!([sum(0), sum(1)], [OK; 2]);
        assert_eq!(nccl!(ncclGroupEnd()), OK, "{}", last_error());
    }
    assert_eq!([sum(0), sum(1)], [OK, USAGE]);
    assert!(
        last_error().contains("for rank 0 and rank 1 without a group around both calls"),
        "{}",
        last_error()
    );
    cuda.enter(0);
    assert!(cuda.has_failed(), "rank 0's last sum");
    assert!(!comms.map(async_error).contains(&OK));
}

#[test]
fn one_thread_for_two_ranks_without_group_on_streams_is_an_error() {
    let folder = stand_in();
    let mut command = processes::command("one_thread", &unique_id(), 2, &[0, 1]);
    command.env("LIBNCCL_CPU_DEVICES", "2").env("LD_LIBRARY_PATH", folder.path());
    finish(command.spawn().unwrap());
}

/// Returns a folder with the stand-in for CUDA's driver.
fn stand_in() -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    fs::copy(shared_object("cuda_cpu"), folder.path().join("libcuda.so.1")).unwrap();
    folder
}

/// Runs the cells on the ranks of this process, and prints for each rank in which cells it was told of a mistake.
fn run_cells(process: &RankProcess) {
    let (memory, sizes) = process.arguments.split_first().unwrap();
    let sizes: Vec<usize> = sizes.iter().map(|size| size.parse().unwrap()).collect();
    let cuda = (memory == "stand-in").then(Cuda::load);
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
        let told = cells(process.ranks, &sizes).into_iter().map(|cell| {
            let mut comm = ptr::null_mut();
            let split = nccl!(ncclCommSplit(parent.0, 0, 0, &mut comm, ptr::null_mut()));
            assert_eq!(split, OK, "{}", last_error());
            let mut is_told = false;
            if let Some(call) = cell.call(rank, process.ranks) {
                is_told = call.make(comm, buffers) != OK;
                if let Some(cuda) = &cuda
                    && cuda.has_failed()
                {
                    assert_eq!(nccl!(ncclCommAbort(comm)), OK);
                    return true;
                }
            }
            is_told | (nccl!(ncclCommDestroy(comm)) != OK)
        });
        let told: String = told.map(|is_told| if is_told { '1' } else { '0' }).collect();
        parent.destroy();
        told
    });
    own.iter().for_each(|told| println!("told {told}"));
}

/// Runs the cells with `ranks` ranks, in a process for each or as threads of one, and returns those that no rank was told of.
fn silent(ranks: usize, sizes: &[usize], are_processes: bool, memory: &str) -> Vec<String> {
    let folder = stand_in();
    let id = unique_id();
    let sizes_text: Vec<String> = sizes.iter().map(ToString::to_string).collect();
    let task = format!("cells {memory} {}", sizes_text.join(" "));
    let all: Vec<usize> = (0..ranks).collect();
    let mut children: Vec<Child> = vec![];
    for own in all.chunks(if are_processes { 1 } else { ranks }) {
        let mut command = processes::command(&task, &id, ranks, own);
        command.env("LIBNCCL_CPU_TIMEOUT", "20").env("LIBNCCL_CPU_DEVICES", "8");
        if memory == "stand-in" {
            command.env("LD_LIBRARY_PATH", folder.path());
        }
        children.push(command.stdout(Stdio::piped()).spawn().unwrap());
    }
    // All at once: each prints more than its pipe holds.
    let finishing: Vec<_> = children.into_iter().map(|child| thread::spawn(|| finish(child))).collect();
    let printed: String = finishing.into_iter().map(|rank| rank.join().unwrap()).collect();
    let told: Vec<&str> =
        printed.lines().filter_map(|line| line.rsplit_once("told ").map(|(_, told)| told)).collect();
    assert_eq!(told.len(), ranks, "{printed}");
    let cells = cells(ranks, sizes);
    assert!(told.iter().all(|told| told.len() == cells.len()));
    let is_silent = |index: &usize| told.iter().all(|told| told.as_bytes()[*index] == b'0');
    (0..cells.len()).filter(is_silent).map(|index| format!("{:?}", cells[index])).collect()
}

fn check(ranks: &[usize], sizes: &[usize], kinds: &[bool], memories: &[&str]) {
    let (mut number, mut failed) = (0, String::new());
    for ranks in ranks.iter().copied() {
        for are_processes in kinds.iter().copied() {
            for memory in memories {
                let begin = Instant::now();
                let silent = silent(ranks, sizes, are_processes, memory);
                let kind = if are_processes { "processes" } else { "threads" };
                number += cells(ranks, sizes).len();
                println!("{ranks} {kind}, {memory}: {} silent, {:?}", silent.len(), begin.elapsed());
                silent.iter().for_each(|cell| failed += &format!("{ranks} {kind}, {memory}: {cell}\n"));
            }
        }
    }
    assert!(failed.is_empty(), "of {number}, nothing found:\n{failed}");
}

#[test]
fn mistake_in_any_short_call_is_found() {
    check(&[2, 4], &SIZES[..2], &[false], &["host"]);
    check(&[2], &SIZES[..1], &[true], &["stand-in"]);
}

#[test]
#[ignore = "takes a minute: .ci/long"]
fn mistake_in_any_call_is_found_at_every_size() {
    check(&[2, 3, 4, 8], &SIZES, &[false, true], &["host", "stand-in"]);
}
