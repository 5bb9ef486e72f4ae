//! Ranks in several processes, to the bit, whichever way they get at each other's memory: what is from
//! `ncclMemAlloc` they map, other memory they read or have staged, and with `NCCL_P2P_DISABLE=1` all is staged.
//! Debug output tells which way it was.
//!
//! A process is this test program, told by its environment which ranks are its own. All that a rank does follows
//! from the number of the case, so each knows what the others send and checks what it receives itself.
#![allow(unsafe_code)]

mod common;
#[path = "common/memory.rs"]
mod memory;
#[path = "common/random.rs"]
mod random;
#[path = "common/reference.rs"]
mod reference;
#[path = "common/worker.rs"]
mod worker;

use std::collections::HashMap;
use std::ops::Range;
use std::process::{Child, Stdio};
use std::ptr;
use std::rc::Rc;
use std::slice;
use std::sync::{Mutex, PoisonError};

use common::{Comm, OK, last_error, on_threads, unique_id};
use libnccl::sys::{ncclDataType_t, ncclRedOp_t, ncclResult_t};
use memory::Memory;
use random::Random;
use reference::{
    BFLOAT16, E4M3, FUNCTIONS, Function, HALF, Number, OPS, Op, Small, create, elements, last, load, reduced,
};
use worker::Orders;

/// Elements after which what a rank sends begins anew: no part of a buffer begins at a multiple of them.
const TILE: usize = 4099;

/// Bytes before and behind what is received, which stay.
const GUARD: usize = 64;
const UNTOUCHED: u8 = 0xa5;

#[derive(Debug, Clone, Copy)]
enum What {
    Reduction(Function, Op),
    Broadcast,
    AllGather,
    Gather,
    Scatter,
    AlltoAll,
}

impl What {
    fn all() -> Vec<Self> {
        let reductions =
            FUNCTIONS.into_iter().flat_map(|function| OPS.map(|op| Self::Reduction(function, op)));
        reductions
            .chain([Self::Broadcast, Self::AllGather, Self::Gather, Self::Scatter, Self::AlltoAll])
            .collect()
    }

    fn sends_blocks(self) -> bool {
        matches!(self, Self::Reduction(Function::ReduceScatter, _) | Self::Scatter | Self::AlltoAll)
    }

    fn receives_blocks(self) -> bool {
        matches!(self, Self::AllGather | Self::Gather | Self::AlltoAll)
    }

    fn sends(self, rank: usize, root: usize) -> bool {
        !matches!(self, Self::Broadcast | Self::Scatter) || rank == root
    }

    fn receives(self, rank: usize, root: usize) -> bool {
        !matches!(self, Self::Gather | Self::Reduction(Function::Reduce, _)) || rank == root
    }
}

/// Where the ranks' buffers are from.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Kind {
    Allocator,
    Nccl,
    /// Some from here, some from there.
    Mixed,
}

const KINDS: [Kind; 3] = [Kind::Allocator, Kind::Nccl, Kind::Mixed];

#[derive(Debug, Clone, Copy, PartialEq)]
enum Extent {
    /// Every function and reduction, and every count, but few of their combinations.
    Thinned,
    Full,
}

/// Some memory, in which buffers come to lie.
enum Block {
    Allocator(Vec<u64>),
    Nccl(Memory),
}

impl Block {
    fn new(from_nccl: bool, bytes: usize) -> Self {
        if from_nccl {
            Self::Nccl(Memory::new(bytes.div_ceil(4)))
        } else {
            Self::Allocator(vec![0; bytes.div_ceil(8)])
        }
    }

    fn is_from_nccl(&self) -> bool {
        matches!(self, Self::Nccl(_))
    }

    /// Given up before a call that uses the memory.
    fn bytes(&mut self) -> &mut [u8] {
        let (start, length) = match self {
            Self::Allocator(words) => (words.as_mut_ptr().cast(), words.len() * 8),
            Self::Nccl(memory) => (memory.start.cast(), memory.bytes()),
        };
        // SAFETY: as many initialized bytes, which nobody uses while no call does.
        unsafe { slice::from_raw_parts_mut(start, length) }
    }
}

/// A stretch of a block.
struct Buffer {
    block: Block,
    bytes: Range<usize>,
}

impl Buffer {
    fn bytes(&mut self) -> &mut [u8] {
        &mut self.block.bytes()[self.bytes.clone()]
    }

    fn start(&mut self) -> *mut u8 {
        self.bytes().as_mut_ptr()
    }

    /// Whether nobody has written around it.
    fn is_guarded(&mut self) -> bool {
        let Range { start, end } = self.bytes;
        let bytes = self.block.bytes();
        [&bytes[start - GUARD..start], &bytes[end..end + GUARD]].concat() == [UNTOUCHED; 2 * GUARD]
    }
}

/// A rank with its communicator, and the memory that it keeps for later.
struct Rank {
    rank: usize,
    ranks: usize,
    comm: Comm,
    kind: Kind,
    kept: Vec<Block>,
    /// What the ranks send over and over, by type.
    tiles: HashMap<u32, Rc<[Vec<u8>]>>,
}

impl Rank {
    /// A buffer somewhere inside new memory, or inside some that was used before.
    fn buffer(&mut self, random: &mut Random, from_nccl: bool, bytes: usize, align: usize) -> Buffer {
        let start = GUARD + if random.coin() { random.below(4096 / align) * align } else { 0 };
        let needed = start + bytes + GUARD;
        let fits = |block: &mut Block| block.is_from_nccl() == from_nccl && block.bytes().len() >= needed;
        let place = if random.once_in(3) { None } else { self.kept.iter_mut().position(fits) };
        let mut block = match place {
            Some(index) => self.kept.swap_remove(index),
            None => Block::new(from_nccl, needed),
        };
        block.bytes()[start - GUARD..needed].fill(UNTOUCHED);
        Buffer { block, bytes: start..start + bytes }
    }

    fn keep(&mut self, random: &mut Random, buffer: Buffer) {
        if self.kept.len() >= 5 {
            self.kept.swap_remove(random.below(5));
        }
        self.kept.push(buffer.block);
    }

    /// Where the send and the receive buffer are from.
    fn kinds(&self, case: u64, random: &mut Random) -> (bool, bool) {
        match self.kind {
            Kind::Allocator => (false, false),
            Kind::Nccl => (true, true),
            Kind::Mixed => match case % 5 {
                0 => (true, false),
                1 => (false, true),
                2 => (self.rank.is_multiple_of(2), self.rank.is_multiple_of(2)),
                3 => (true, true),
                _ => (random.coin(), random.coin()),
            },
        }
    }

    /// One call, with `count` elements from one rank to one rank.
    fn call<T: Number>(&mut self, case: u64, what: What, count: usize) {
        let Self { rank, ranks, comm, .. } = *self;
        let root = case as usize % ranks;
        let title =
            format!("case {case}: {what:?} of {count} {:?}, rank {rank} of {ranks}, root {root}", T::RAW);
        // What only this rank decides.
        let random = &mut Random::new(case << 8 | rank as u64);
        let tiles = self.tiles::<T>();
        let shift = case as usize * 997 % TILE;
        let total = |blocks| if blocks { ranks * count } else { count };
        let (input, output) = (total(what.sends_blocks()), total(what.receives_blocks()));
        let (input_bytes, output_bytes) = (input * T::SIZE, output * T::SIZE);
        let (sends, receives) = (what.sends(rank, root), what.receives(rank, root));
        let (send_kind, receive_kind) = self.kinds(case, random);
        let in_place = sends && receives && !matches!(what, What::AlltoAll) && random.coin();
        let own = rank * count * T::SIZE;

        let longer = input_bytes.max(output_bytes);
        let mut first = self.buffer(random, send_kind, if in_place { longer } else { input_bytes }, T::SIZE);
        let mut second =
            if in_place { None } else { Some(self.buffer(random, receive_kind, output_bytes, T::SIZE)) };
        // Where in the first buffer both are that share it.
        let send_at = if in_place && what.receives_blocks() { own } else { 0 };
        let receive_at = if in_place && what.sends_blocks() { own } else { 0 };
        let sent = tiled::<T>(&tiles[rank], shift, input);
        first.bytes()[send_at..][..input_bytes].copy_from_slice(&sent);
        let send = if sends { first.start().wrapping_add(send_at) } else { ptr::null_mut() };
        let receive = match &mut second {
            _ if !receives => ptr::null_mut(),
            Some(second) => second.start(),
            None => first.start().wrapping_add(receive_at),
        };

        let code = issue::<T>(what, send, receive, count, root, rank, comm);
        assert_eq!(code, OK, "{title}: {}", last_error());

        assert!(first.is_guarded(), "{title}: written around the first buffer");
        if let Some(second) = &mut second {
            assert!(first.bytes() == sent, "{title}: written to the send buffer");
            assert!(second.is_guarded(), "{title}: written around the receive buffer");
        }
        let buffer = second.as_mut().unwrap_or(&mut first);
        let received = &buffer.bytes()[receive_at..][..output_bytes];
        if receives {
            check::<T>(what, &tiles, shift, count, root, rank, received, &title);
        } else {
            assert!(received.iter().all(|byte| *byte == UNTOUCHED), "{title}: received what is not its own");
        }
        self.keep(random, first);
        second.into_iter().for_each(|second| self.keep(random, second));
    }

    fn tiles<T: Number>(&mut self) -> Rc<[Vec<u8>]> {
        let tile = |rank| elements::<T>(u64::from(T::RAW.0) << 8 | rank as u64, TILE);
        Rc::clone(self.tiles.entry(T::RAW.0).or_insert_with(|| (0..self.ranks).map(tile).collect()))
    }

    /// The combinations that are up in this `run`.
    fn cases(&mut self, extent: Extent, run: u64) {
        // First of every root by itself: what the others may do with its memory need not hold for all.
        let mut case = 0;
        for what in [What::Scatter, What::Broadcast, What::Gather] {
            for _ in 0..self.ranks {
                self.call::<u32>(case, what, 20_000);
                case += 1;
            }
        }
        let random = &mut Random::new(run);
        for what in What::all() {
            for size in 0..4 {
                let counts = counts(what, 1 << size, self.ranks);
                for (index, count) in counts.iter().enumerate() {
                    let one_in = match (extent, counts.len() - index) {
                        (Extent::Full, 1 | 2) => 4,
                        (Extent::Full, _) => 1,
                        (Extent::Thinned, 1) => 128,
                        (Extent::Thinned, _) => 24,
                    };
                    case += 1;
                    if random.once_in(one_in) {
                        self.typed(case, what, size, *count);
                    }
                }
            }
        }
        if extent == Extent::Full {
            // So long that results go around the caches.
            let count = (64 << 20) / 8 / self.ranks + 3;
            for what in [What::Reduction(Function::AllReduce, Op::Sum), What::Broadcast, What::AllGather] {
                case += 1;
                self.call::<f64>(case, what, count);
                self.kept.clear();
            }
        }
    }

    /// A call with a type of `1 << size` bytes.
    fn typed(&mut self, case: u64, what: What, size: usize, count: usize) {
        match (size, case % 2) {
            (0, 0) => self.call::<i8>(case, what, count),
            (0, _) => self.call::<Small<E4M3>>(case, what, count),
            (1, 0) => self.call::<Small<HALF>>(case, what, count),
            (1, _) => self.call::<Small<BFLOAT16>>(case, what, count),
            (2, 0) => self.call::<u32>(case, what, count),
            (2, _) => self.call::<f32>(case, what, count),
            (_, 0) => self.call::<i64>(case, what, count),
            (_, _) => self.call::<f64>(case, what, count),
        }
    }
}

/// Elements around all that changes the way; the last two are long.
fn counts(what: What, size: usize, ranks: usize) -> Vec<usize> {
    let mut counts = vec![0, 1, 7, 2047, 2048, 2049];
    let (short, payload) = ((8 << 10) / size, (16 << 10) / size);
    for border in [short, payload, payload / ranks, short * ranks] {
        counts.extend([border - 1, border, border + 1]);
    }
    let blocks = if what.sends_blocks() || what.receives_blocks() { ranks } else { 1 };
    counts.extend([((64 << 10) + 3) / blocks, ((1 << 20) + 3) / blocks]);
    counts
}

/// The bytes of the elements from `start` on of what is this tile over and over.
fn tiled<T: Number>(tile: &[u8], start: usize, count: usize) -> Vec<u8> {
    let skipped = start % TILE * T::SIZE;
    let mut bytes = Vec::with_capacity(skipped + count * T::SIZE);
    bytes.extend_from_slice(&tile[skipped..]);
    while bytes.len() < count * T::SIZE {
        bytes.extend_from_slice(tile);
    }
    bytes.truncate(count * T::SIZE);
    bytes
}

fn issue<T: Number>(
    what: What,
    send: *mut u8,
    receive: *mut u8,
    count: usize,
    root: usize,
    rank: usize,
    comm: Comm,
) -> ncclResult_t {
    let (from, to, root, stream) = (send.cast(), receive.cast(), root as i32, ptr::null_mut());
    match what {
        What::Reduction(function, op) => {
            let created = create::<T>(op, rank, comm);
            let code = match function {
                Function::AllReduce => {
                    nccl!(ncclAllReduce(from, to, count, T::RAW, created, comm.0, stream))
                }
                Function::Reduce => nccl!(ncclReduce(from, to, count, T::RAW, created, root, comm.0, stream)),
                Function::ReduceScatter => {
                    nccl!(ncclReduceScatter(from, to, count, T::RAW, created, comm.0, stream))
                }
            };
            if op == Op::PreMulSum {
                assert_eq!(nccl!(ncclRedOpDestroy(created, comm.0)), OK);
            }
            code
        }
        What::Broadcast => nccl!(ncclBroadcast(from, to, count, T::RAW, root, comm.0, stream)),
        What::AllGather => nccl!(ncclAllGather(from, to, count, T::RAW, comm.0, stream)),
        What::Gather => nccl!(ncclGather(from, to, count, T::RAW, root, comm.0, stream)),
        What::Scatter => nccl!(ncclScatter(from, to, count, T::RAW, root, comm.0, stream)),
        What::AlltoAll => nccl!(ncclAlltoAll(from, to, count, T::RAW, comm.0, stream)),
    }
}

/// Compares what `rank` received with what it has to be, given the tiles that the ranks send from `shift` on.
#[allow(clippy::too_many_arguments)]
fn check<T: Number>(
    what: What,
    tiles: &[Vec<u8>],
    shift: usize,
    count: usize,
    root: usize,
    rank: usize,
    received: &[u8],
    title: &str,
) {
    let ranks = tiles.len();
    let all = |start| (0..ranks).flat_map(|from| tiled::<T>(&tiles[from], shift + start, count)).collect();
    let expected: Vec<u8> = match what {
        What::Reduction(function, op) => {
            let first = if function == Function::ReduceScatter { rank * count } else { 0 };
            let mut known: Vec<Option<T>> = vec![None; ranks * TILE];
            for index in 0..count {
                let (of, last) =
                    ((shift + first + index) % TILE, last::<T>(function, ranks, count, root, first + index));
                let expected =
                    *known[last * TILE + of].get_or_insert_with(|| reduced::<T>(op, tiles, of, last));
                let got = load::<T>(received, index);
                assert!(
                    got.bits() == expected.bits() || (got.is_nan() && expected.is_nan()),
                    "{title}, at {index}: got {got:?}, not {expected:?}"
                );
            }
            return;
        }
        What::Broadcast => tiled::<T>(&tiles[root], shift, count),
        What::AllGather | What::Gather => all(0),
        What::Scatter => tiled::<T>(&tiles[root], shift + rank * count, count),
        What::AlltoAll => all(rank * count),
    };
    let wrong = received.iter().zip(&expected).position(|(got, expected)| got != expected);
    assert!(wrong.is_none() && received.len() == expected.len(), "{title}: wrong at byte {wrong:?}");
}

/// More allocations than ranks remember of each other, in the order of `turns`, and all again after some are
/// freed and others made, which get the file descriptors' numbers.
fn many_allocations(rank: usize, ranks: usize, comm: Comm) {
    const COUNT: usize = 5000;
    let mut memories: Vec<Memory> = (0..300).map(|_| Memory::new(COUNT)).collect();
    for round in 0..3 {
        for (index, memory) in memories.iter().enumerate() {
            let value = |rank: usize| (round * 1_000 + index * 10 + rank) as i32;
            memory.elements().fill(value(rank));
            let (place, data_type, op) =
                (memory.start.cast(), ncclDataType_t::ncclInt32, ncclRedOp_t::ncclSum);
            let code = nccl!(ncclAllReduce(place, place, COUNT, data_type, op, comm.0, ptr::null_mut()));
            assert_eq!(code, OK, "{}", last_error());
            let sum: i32 = (0..ranks).map(value).sum();
            assert!(memory.elements().iter().all(|element| *element == sum), "round {round}, {index}");
        }
        // Each rank frees others, so that equal numbers are of different allocations.
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

/// Lets no process but one with privileges look into this one, and gives up its own privileges, so that it is
/// not such a process.
fn hide(from_others: bool) {
    // SAFETY: takes no pointers.
    if unsafe { libc::geteuid() } == 0 {
        const NOBODY: libc::uid_t = 65534;
        // SAFETY: as above.
        let code = unsafe { libc::setresuid(NOBODY, NOBODY, NOBODY) };
        assert_eq!(code, 0, "{}", std::io::Error::last_os_error());
    }
    // SAFETY: as above; this one takes a number.
    let code = unsafe { libc::prctl(libc::PR_SET_DUMPABLE, libc::c_ulong::from(!from_others)) };
    assert_eq!(code, 0, "{}", std::io::Error::last_os_error());
}

/// Has the kernel refuse a call to this thread and those that it starts.
fn forbid(call: libc::c_long) {
    use libc::{BPF_ABS, BPF_JEQ, BPF_JMP, BPF_JUMP, BPF_K, BPF_LD, BPF_RET, BPF_STMT, BPF_W};
    let refused = libc::SECCOMP_RET_ERRNO | libc::EPERM as u32;
    // SAFETY: they only put numbers together. The call's number is the first word of what is looked at.
    let mut filter = unsafe {
        [
            BPF_STMT((BPF_LD | BPF_W | BPF_ABS) as u16, 0),
            BPF_JUMP((BPF_JMP | BPF_JEQ | BPF_K) as u16, call as u32, 0, 1),
            BPF_STMT((BPF_RET | BPF_K) as u16, refused),
            BPF_STMT((BPF_RET | BPF_K) as u16, libc::SECCOMP_RET_ALLOW),
        ]
    };
    let program = libc::sock_fprog { len: filter.len() as u16, filter: filter.as_mut_ptr() };
    // SAFETY: takes numbers.
    let code = unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) };
    assert_eq!(code, 0, "{}", std::io::Error::last_os_error());
    // SAFETY: a program of as many instructions as it says, which the kernel copies.
    let code = unsafe { libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const program) };
    assert_eq!(code, 0, "{}", std::io::Error::last_os_error());
}

/// What a process does.
#[test]
fn worker() {
    let Some(Orders { task, id, ranks, own }) = worker::orders() else { return };
    let words: Vec<&str> = task.split(' ').collect();
    if let [.., "hidden", rank] = words[..] {
        hide(own.iter().any(|own| own.to_string() == rank));
    }
    if let [.., "without", call, "at", rank] = words[..]
        && own.iter().any(|own| own.to_string() == rank)
    {
        forbid(if call == "reading" { libc::SYS_process_vm_readv } else { libc::SYS_process_vm_writev });
    }
    // What was printed before has no end yet.
    println!();
    on_threads(own.len(), |index| {
        let rank = own[index];
        let comm = worker::join(id, ranks, rank);
        match words[..] {
            ["many", "allocations"] => many_allocations(rank, ranks, comm),
            [extent, kind, run, ..] => {
                let kind = KINDS.into_iter().find(|known| format!("{known:?}") == kind).unwrap();
                let extent = if extent == "full" { Extent::Full } else { Extent::Thinned };
                let mut rank = Rank { rank, ranks, comm, kind, kept: vec![], tiles: HashMap::new() };
                rank.cases(extent, run.parse().unwrap());
            }
            _ => panic!("{task}"),
        }
        comm.destroy();
    });
}

/// Has processes with these ranks do `task`, those at `disabled` with `NCCL_P2P_DISABLE=1`; returns what debug
/// output tells of shared memory.
fn run(task: &str, processes: &[&[usize]], disabled: &[usize]) -> Vec<String> {
    // More processes than processors only wait for each other.
    static ALONE: Mutex<()> = Mutex::new(());
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let (id, ranks) = (unique_id(), processes.iter().map(|own| own.len()).sum());
    let start = |(index, own): (usize, &&[usize])| {
        worker::command(task, &id, ranks, own)
            .env("NCCL_P2P_DISABLE", if disabled.contains(&index) { "1" } else { "0" })
            // Reading may be slower on this machine.
            .env("NCCL_SHM_DISABLE", if task.ends_with("at their will") { "0" } else { "1" })
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
        worker::finish(child.unwrap())
    });
    let lines = texts.iter().flat_map(|text| text.lines());
    lines.filter_map(|line| Some(line.split_once(" NCCL INFO ")?.1.to_owned())).collect()
}

/// A process a rank.
const PROCESSES: [&[usize]; 4] = [&[0], &[1], &[2], &[3]];

const DIRECT: &str = ": direct, because the ranks can map each other's buffers";
const READ: &str = ": read across processes, because the ";
const STAGED: &str = ": staged, because ";

/// Expects every rank to have told once of each of these ways, and of no others.
fn expect(lines: &[String], ranks: usize, ways: &[&str]) {
    for way in [DIRECT, READ, STAGED] {
        let told = lines.iter().filter(|line| line.contains(way)).count();
        let expected = if ways.contains(&way) { ranks } else { 0 };
        assert_eq!(told, expected, "{way:?}: {lines:#?}");
    }
}

/// The ways for memory of a kind where nothing is forbidden.
fn ways(kind: Kind) -> &'static [&'static str] {
    match (kind, reading_is_allowed()) {
        (Kind::Nccl, _) => &[DIRECT],
        (Kind::Allocator, true) => &[READ, STAGED],
        (Kind::Allocator, false) => &[STAGED],
        (Kind::Mixed, true) => &[DIRECT, READ, STAGED],
        (Kind::Mixed, false) => &[DIRECT, STAGED],
    }
}

/// Whether the kernel lets processes of one user read each other. Some containers, and emulators of another
/// processor, do not let one read even itself.
fn reading_is_allowed() -> bool {
    let scope = std::fs::read_to_string("/proc/sys/kernel/yama/ptrace_scope");
    let scope = scope.map_or(0, |scope| scope.trim().parse().unwrap_or(0));
    // SAFETY: takes nothing.
    let allowed = scope == 0 || (scope < 3 && unsafe { libc::geteuid() } == 0);
    // SAFETY: reads nothing, to nowhere.
    allowed && unsafe { libc::process_vm_readv(libc::getpid(), ptr::null(), 0, ptr::null(), 0, 0) } == 0
}

fn every_way(extent: &str) {
    for (number, kind) in KINDS.into_iter().enumerate() {
        for ranks in 2..=4 {
            let lines = run(&format!("{extent} {kind:?} {}", 10 * number + ranks), &PROCESSES[..ranks], &[]);
            expect(&lines, ranks, ways(kind));
        }
    }
}

fn disabled(extent: &str, ranks: usize, disabled: &[usize]) {
    let lines = run(&format!("{extent} Mixed {}", 30 + ranks), &PROCESSES[..ranks], disabled);
    expect(&lines, ranks, &[STAGED]);
    let why = format!(": staged, because NCCL_P2P_DISABLE is 1 at rank {}", disabled[0]);
    assert_eq!(lines.iter().filter(|line| line.ends_with(&why)).count(), ranks, "{lines:#?}");
}

/// Threads of one process, and another process.
fn houses(extent: &str, kind: Kind, processes: &[&[usize]]) {
    let ranks = processes.iter().map(|own| own.len()).sum();
    let lines = run(&format!("{extent} {kind:?} {}", 40 + ranks), processes, &[]);
    expect(&lines, ranks, ways(kind));
}

#[test]
fn every_way_is_exact() {
    every_way("thinned");
}

/// They measure, and may come to different results.
#[test]
fn ranks_agree_on_what_is_faster() {
    let lines = run("thinned Allocator 60 at their will", &PROCESSES[..3], &[]);
    let read = lines.iter().any(|line| line.contains(READ));
    expect(&lines, 3, if read { &[READ, STAGED] } else { &[STAGED] });
    let slower = "memory of other ranks is staged: reading a megabyte takes ";
    let staged = lines.iter().any(|line| line.starts_with(slower)) || !reading_is_allowed();
    assert_eq!(staged, !read, "{lines:#?}");
}

#[test]
fn ranks_agree_if_one_keeps_the_others_out() {
    disabled("thinned", 2, &[0, 1]);
    disabled("thinned", 2, &[0]);
    disabled("thinned", 3, &[1]);
    disabled("thinned", 4, &[3]);
}

#[test]
fn threads_and_processes_are_exact() {
    houses("thinned", Kind::Allocator, &[&[0, 2], &[1]]);
    houses("thinned", Kind::Nccl, &[&[3, 0], &[1, 2]]);
    houses("thinned", Kind::Mixed, &[&[0], &[1, 2]]);
}

/// For a release build.
#[test]
#[ignore = "takes minutes"]
fn full() {
    every_way("full");
    for ranks in 2..=4 {
        for rank in 0..ranks {
            disabled("full", ranks, &[rank]);
        }
        disabled("full", ranks, &[0, 1, 2, 3]);
    }
    for kind in KINDS {
        for processes in [&[&[0, 2][..], &[1]][..], &[&[0], &[1, 2]], &[&[3, 0], &[1, 2]]] {
            houses("full", kind, processes);
        }
    }
}

#[test]
fn allocations_that_are_forgotten_are_found_again() {
    expect(&run("many allocations", &PROCESSES[..3], &[]), 3, &[DIRECT]);
    expect(&run("many allocations", &[&[0, 2], &[1]], &[]), 3, &[DIRECT]);
}

/// Another rank is nobody's debugger, so it sees neither this one's files nor its memory.
#[test]
fn ranks_agree_if_the_memory_of_one_is_hidden() {
    let lines = run("thinned Allocator 50 hidden 1", &PROCESSES[..3], &[]);
    expect(&lines, 3, &[STAGED]);
    let told = |lines: &[String], what| lines.iter().any(|line| line.contains(what));
    assert!(told(&lines, "memory of rank 1 cannot be read and is staged: "), "{lines:#?}");

    assert!(told(&lines, ", nor can every rank read and write the others' memory faster"), "{lines:#?}");

    // Even so, nobody needs the hidden rank's memory for a broadcast of another one, which is direct.
    let lines = run("thinned Nccl 50 hidden 1", &PROCESSES[..3], &[]);
    expect(&lines, 3, &[DIRECT, STAGED]);
    assert!(told(&lines, "memory of rank 1 is not used directly: "), "{lines:#?}");
    assert!(told(&lines, "staged, because a rank cannot map another one's memory"), "{lines:#?}");

    // It is not for another reason: that they have no privileges, say.
    let lines = run("thinned Nccl 50 hidden 3", &PROCESSES[..3], &[]);
    expect(&lines, 3, &[DIRECT]);
}

/// As under a container's filter of calls: a broadcast needs to read and to write, and a rank that may not do one of
/// them finds out before it counts on it.
#[test]
fn ranks_agree_if_one_may_not_read_or_not_write() {
    if !reading_is_allowed() {
        return println!("skipped: the kernel lets no process read another");
    }
    for (call, what) in [
        ("reading", "cannot be read and is staged: Operation not permitted"),
        ("writing", "cannot be written and is staged: Operation not permitted"),
    ] {
        let lines = run(&format!("thinned Allocator 60 without {call} at 1"), &PROCESSES[..3], &[]);
        expect(&lines, 3, &[STAGED]);
        let told = |what| lines.iter().filter(|line| line.contains(what)).count();
        assert_eq!(told(what), 1, "{call}: {lines:#?}");
        assert!(
            told(", nor can every rank read and write the others' memory faster") > 0,
            "{call}: {lines:#?}"
        );
    }
}
