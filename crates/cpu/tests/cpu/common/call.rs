//! Calls of collectives, and exchanges of messages, each with its buffers and a check of what it has received, to the bit.
//!
//! A plan and a rank determine all that the rank sends, so each rank knows what the others send.

use std::collections::HashMap;
use std::fmt::{self, Debug};
use std::marker::PhantomData;
use std::ops::Range;
use std::ptr;
use std::sync::{Arc, LazyLock, Mutex, PoisonError};

use libnccl::sys::{ncclDataType_t, ncclResult_t};
use libnccl_test_support::random_inputs::Random;

use super::memory::Memory;
use super::reference::{
    BFLOAT16, E4M3, E5M2, FUNCTIONS, Function, HALF, Number, OPS, Op, Small, elements, last, load, reduce,
    reduced,
};
use super::{Comm, OK, STREAM};

/// Elements after which a rank's data repeats: no part of a buffer begins at a multiple of it.
const TILE: usize = 4099;

/// Bytes before and behind a buffer, which must not change.
const GUARD: usize = 64;
const UNTOUCHED: u8 = 0xa5;

#[derive(Debug, Clone, Copy)]
pub(crate) enum Operation {
    Reduction(Function, Op),
    Broadcast,
    AllGather,
    Gather,
    Scatter,
    AlltoAll,
    /// Every rank sends to the rank that is `root` after it, perhaps itself.
    Exchange,
}

impl Operation {
    pub(crate) fn all() -> Vec<Self> {
        let reductions =
            FUNCTIONS.into_iter().flat_map(|function| OPS.map(|op| Self::Reduction(function, op)));
        let others =
            [Self::Broadcast, Self::AllGather, Self::Gather, Self::Scatter, Self::AlltoAll, Self::Exchange];
        reductions.chain(others).collect()
    }

    pub(crate) fn sends_blocks(self) -> bool {
        matches!(self, Self::Reduction(Function::ReduceScatter, _) | Self::Scatter | Self::AlltoAll)
    }

    pub(crate) fn receives_blocks(self) -> bool {
        matches!(self, Self::AllGather | Self::Gather | Self::AlltoAll)
    }

    fn sends(self, rank: usize, root: usize) -> bool {
        !matches!(self, Self::Broadcast | Self::Scatter) || rank == root
    }

    fn receives(self, rank: usize, root: usize) -> bool {
        !matches!(self, Self::Gather | Self::Reduction(Function::Reduce, _)) || rank == root
    }
}

type Prepare = fn(Plan, usize, (bool, bool), &mut Vec<Block>) -> Box<dyn PreparedCall>;

/// An element type.
#[derive(Clone, Copy)]
pub(crate) struct Type {
    raw: ncclDataType_t,
    pub(crate) size: usize,
    prepare: Prepare,
}

impl Type {
    pub(crate) const fn of<T: Number + 'static>() -> Self {
        Self { raw: T::RAW, size: T::SIZE, prepare: prepare::<T> }
    }
}

impl Debug for Type {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.raw.fmt(f)
    }
}

pub(crate) const TYPES: [Type; 12] = [
    Type::of::<i8>(),
    Type::of::<u8>(),
    Type::of::<i32>(),
    Type::of::<u32>(),
    Type::of::<i64>(),
    Type::of::<u64>(),
    Type::of::<Small<HALF>>(),
    Type::of::<f32>(),
    Type::of::<f64>(),
    Type::of::<Small<BFLOAT16>>(),
    Type::of::<Small<E4M3>>(),
    Type::of::<Small<E5M2>>(),
];

/// A call, as all of its ranks know it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Plan {
    pub(crate) operation: Operation,
    pub(crate) data: Type,
    /// The number of elements from one rank to one rank.
    pub(crate) count: usize,
    pub(crate) ranks: usize,
    /// Determines the elements, and what each rank chooses for itself.
    pub(crate) case: u64,
}

impl Plan {
    /// Prepares the call of a rank. `from_nccl` says which of its send and its receive buffer are from `ncclMemAlloc`; some are
    /// in `kept` memory that was used before.
    pub(crate) fn prepare(
        self,
        rank: usize,
        from_nccl: (bool, bool),
        kept: &mut Vec<Block>,
    ) -> Box<dyn PreparedCall> {
        (self.data.prepare)(self, rank, from_nccl, kept)
    }

    fn root(&self) -> usize {
        (self.case % self.ranks as u64) as usize
    }

    /// Returns the index in its tile of the first element that a rank sends.
    fn shift(&self) -> usize {
        (self.case % TILE as u64) as usize * 997 % TILE
    }
}

/// A rank's call, with its buffers.
pub(crate) trait PreparedCall: Send {
    fn call(&mut self, comm: Comm) -> ncclResult_t;

    /// Compares the buffers with what they should have after the call, and keeps their memory.
    fn check(self: Box<Self>, kept: &mut Vec<Block>) -> Result<(), String>;
}

/// Memory for buffers.
pub(crate) enum Block {
    Allocator(Vec<u8>),
    Nccl(Memory),
}

impl Block {
    fn new(from_nccl: bool, bytes: usize) -> Self {
        if from_nccl { Self::Nccl(Memory::new(bytes.div_ceil(4))) } else { Self::Allocator(vec![0; bytes]) }
    }

    fn is_from_nccl(&self) -> bool {
        matches!(self, Self::Nccl(_))
    }

    /// Returns the bytes, for use while no call uses them.
    fn bytes(&mut self) -> &mut [u8] {
        match self {
            Self::Allocator(bytes) => bytes,
            Self::Nccl(memory) => memory.as_bytes(),
        }
    }
}

/// A range of a block.
struct Buffer {
    block: Block,
    bytes: Range<usize>,
}

impl Buffer {
    /// Creates a buffer inside new memory, or inside memory used before.
    fn new(random: &mut Random, from_nccl: bool, bytes: usize, align: usize, kept: &mut Vec<Block>) -> Self {
        // What is not aligned has to work, too.
        let align = if random.once_in(8) { 1 } else { align };
        let offset = GUARD + if random.coin() { random.below(4096 / align) * align } else { 0 };
        let needed = 8 + offset + bytes + GUARD;
        let fits = |block: &mut Block| block.is_from_nccl() == from_nccl && block.bytes().len() >= needed;
        let place = if random.once_in(3) { None } else { kept.iter_mut().position(fits) };
        let mut block = match place {
            Some(index) => kept.swap_remove(index),
            None => Block::new(from_nccl, needed),
        };
        let start = block.bytes().as_ptr().align_offset(8) + offset;
        block.bytes()[start - GUARD..][..bytes + 2 * GUARD].fill(UNTOUCHED);
        Self { block, bytes: start..start + bytes }
    }

    fn bytes(&mut self) -> &mut [u8] {
        &mut self.block.bytes()[self.bytes.clone()]
    }

    fn at(&mut self, offset: usize) -> *mut u8 {
        self.bytes().as_mut_ptr().wrapping_add(offset)
    }

    /// Returns whether the bytes around the buffer are unchanged.
    fn is_guarded(&mut self) -> bool {
        let Range { start, end } = self.bytes;
        let bytes = self.block.bytes();
        [&bytes[start - GUARD..start], &bytes[end..end + GUARD]].concat() == [UNTOUCHED; 2 * GUARD]
    }

    fn keep(self, random: &mut Random, kept: &mut Vec<Block>) {
        if kept.len() >= 5 {
            kept.swap_remove(random.below(5));
        }
        kept.push(self.block);
    }
}

struct Prepared<T> {
    plan: Plan,
    rank: usize,
    /// Makes the choices of this rank alone.
    random: Random,
    /// The repeating data of each rank.
    tiles: Arc<[Vec<u8>]>,
    first: Buffer,
    /// `None` in place: the first buffer also receives.
    second: Option<Buffer>,
    send_at: usize,
    receive_at: usize,
    data: PhantomData<T>,
}

fn prepare<T: Number + 'static>(
    plan: Plan,
    rank: usize,
    from_nccl: (bool, bool),
    kept: &mut Vec<Block>,
) -> Box<dyn PreparedCall> {
    let Plan { operation, count, ranks, case, .. } = plan;
    let (mut random, root) = (Random(case << 8 | rank as u64), plan.root());
    let total = |blocks| T::SIZE * if blocks { ranks * count } else { count };
    let (input, output) = (total(operation.sends_blocks()), total(operation.receives_blocks()));
    let in_place = operation.sends(rank, root)
        && operation.receives(rank, root)
        && !matches!(operation, Operation::AlltoAll | Operation::Exchange)
        && random.coin();
    let mut buffer = |from_nccl, bytes| Buffer::new(&mut random, from_nccl, bytes, T::SIZE, kept);
    let mut first = buffer(from_nccl.0, if in_place { input.max(output) } else { input });
    let second = (!in_place).then(|| buffer(from_nccl.1, output));
    // In place, the smaller buffer is the rank's own block of the larger.
    let own = rank * count * T::SIZE;
    let send_at = if in_place && operation.receives_blocks() { own } else { 0 };
    let receive_at = if in_place && operation.sends_blocks() { own } else { 0 };
    let tiles = tiles::<T>(ranks);
    first.bytes()[send_at..][..input].copy_from_slice(&tiled::<T>(&tiles[rank], plan.shift(), input));
    Box::new(Prepared::<T> {
        plan,
        rank,
        random,
        tiles,
        first,
        second,
        send_at,
        receive_at,
        data: PhantomData,
    })
}

impl<T: Number> PreparedCall for Prepared<T> {
    fn call(&mut self, comm: Comm) -> ncclResult_t {
        let (Plan { operation, count, ranks, .. }, root) = (self.plan, self.plan.root());
        let (sends, receives) = (operation.sends(self.rank, root), operation.receives(self.rank, root));
        let from = if sends { self.first.at(self.send_at).cast() } else { ptr::null_mut() };
        let to = match &mut self.second {
            _ if !receives => ptr::null_mut(),
            Some(second) => second.at(0).cast(),
            None => self.first.at(self.receive_at).cast(),
        };
        let (raw, number) = (T::RAW, root as i32);
        let has_one_buffer = self.second.is_none() || !sends;
        match operation {
            Operation::Reduction(function, op) => {
                reduce::<T>(function, op, from, to, count, number, self.rank, comm)
            }
            // Another form of the same call.
            Operation::Broadcast if has_one_buffer && self.random.coin() => {
                nccl!(ncclBcast(to, count, raw, number, comm.0, STREAM))
            }
            Operation::Broadcast => nccl!(ncclBroadcast(from, to, count, raw, number, comm.0, STREAM)),
            Operation::AllGather => nccl!(ncclAllGather(from, to, count, raw, comm.0, STREAM)),
            Operation::Gather => nccl!(ncclGather(from, to, count, raw, number, comm.0, STREAM)),
            Operation::Scatter => nccl!(ncclScatter(from, to, count, raw, number, comm.0, STREAM)),
            Operation::AlltoAll => nccl!(ncclAlltoAll(from, to, count, raw, comm.0, STREAM)),
            Operation::Exchange => {
                let target = ((self.rank + root) % ranks) as i32;
                let source = ((self.rank + ranks - root) % ranks) as i32;
                let codes = [
                    nccl!(ncclGroupStart()),
                    nccl!(ncclSend(from, count, raw, target, comm.0, STREAM)),
                    nccl!(ncclRecv(to, count, raw, source, comm.0, STREAM)),
                    nccl!(ncclGroupEnd()),
                ];
                codes.into_iter().find(|code| *code != OK).unwrap_or(OK)
            }
        }
    }

    fn check(mut self: Box<Self>, kept: &mut Vec<Block>) -> Result<(), String> {
        let problem = self.problem();
        let Self { plan, rank, mut random, first, second, .. } = *self;
        first.keep(&mut random, kept);
        second.into_iter().for_each(|second| second.keep(&mut random, kept));
        problem
            .map_or(Ok(()), |problem| Err(format!("{plan:?}, rank {rank}, root {}: {problem}", plan.root())))
    }
}

impl<T: Number> Prepared<T> {
    /// Returns what is wrong in the buffers.
    fn problem(&mut self) -> Option<String> {
        let (Plan { operation, count, ranks, .. }, rank) = (self.plan, self.rank);
        if !self.first.is_guarded() {
            return Some("written around the first buffer".into());
        }
        if let Some(second) = &mut self.second {
            let length = self.first.bytes.len() / T::SIZE;
            if self.first.bytes() != tiled::<T>(&self.tiles[rank], self.plan.shift(), length * T::SIZE) {
                return Some("written to the send buffer".into());
            }
            if !second.is_guarded() {
                return Some("written around the receive buffer".into());
            }
        }
        let length = T::SIZE * if operation.receives_blocks() { ranks * count } else { count };
        let buffer = self.second.as_mut().unwrap_or(&mut self.first);
        let received = &buffer.bytes()[self.receive_at..][..length];
        if operation.receives(rank, self.plan.root()) {
            wrong::<T>(self.plan, rank, &self.tiles, received)
        } else {
            let is_untouched = received.iter().all(|byte| *byte == UNTOUCHED);
            (!is_untouched).then(|| "received data as a rank that receives nothing".into())
        }
    }
}

/// Returns the repeating data of each rank.
fn tiles<T: Number>(ranks: usize) -> Arc<[Vec<u8>]> {
    type Tiles = HashMap<(u32, usize), Arc<[Vec<u8>]>>;
    static TILES: LazyLock<Mutex<Tiles>> = LazyLock::new(Mutex::default);
    let tile = |rank| elements::<T>(u64::from(T::RAW.0) << 8 | rank as u64, TILE);
    let mut known = TILES.lock().unwrap_or_else(PoisonError::into_inner);
    Arc::clone(known.entry((T::RAW.0, ranks)).or_insert_with(|| (0..ranks).map(tile).collect()))
}

/// Returns as many bytes, from element `start` on, of a repeated tile.
fn tiled<T: Number>(tile: &[u8], start: usize, bytes: usize) -> Vec<u8> {
    let skipped = start % TILE * T::SIZE;
    let mut tiled = tile[skipped..].to_vec();
    while tiled.len() < bytes {
        tiled.extend_from_slice(tile);
    }
    tiled.truncate(bytes);
    tiled
}

/// Returns the first difference between the bytes that a rank has received and the expected ones.
fn wrong<T: Number>(plan: Plan, rank: usize, tiles: &[Vec<u8>], received: &[u8]) -> Option<String> {
    let (Plan { operation, count, ranks, .. }, root, shift) = (plan, plan.root(), plan.shift());
    let from = |from: usize, start| tiled::<T>(&tiles[from], shift + start, count * T::SIZE);
    let each = |from: &dyn Fn(usize) -> Vec<u8>| (0..ranks).map(from).collect::<Vec<_>>().concat();
    let expected = match operation {
        Operation::Reduction(function, op) => {
            let first = if function == Function::ReduceScatter { rank * count } else { 0 };
            let mut known: Vec<Option<T>> = vec![None; ranks * TILE];
            return (0..count).find_map(|index| {
                let of = (shift + first + index) % TILE;
                let last = last::<T>(function, ranks, count, root, first + index);
                let expected = *known[last * TILE + of].get_or_insert_with(|| reduced(op, tiles, of, last));
                let got = load::<T>(received, index);
                let is_right = got.bits() == expected.bits() || (got.is_nan() && expected.is_nan());
                (!is_right).then(|| {
                    let sent: Vec<u64> = tiles.iter().map(|tile| load::<T>(tile, of).bits()).collect();
                    format!("element {index} is {got:?}, not {expected:?}; sent {sent:x?}")
                })
            });
        }
        Operation::Broadcast => from(root, 0),
        Operation::AllGather | Operation::Gather => each(&|peer| from(peer, 0)),
        Operation::Scatter => from(root, rank * count),
        Operation::AlltoAll => each(&|peer| from(peer, rank * count)),
        Operation::Exchange => from((rank + ranks - root) % ranks, 0),
    };
    if received == expected {
        return None;
    }
    let first = received.iter().zip(&expected).position(|(got, expected)| got != expected)?;
    Some(format!("byte {first} is {:#x}, not {:#x}", received[first], expected[first]))
}
