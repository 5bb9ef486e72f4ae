//! Collectives: all ranks go through the same steps, a part of the data at a time.
//!
//! In each step a rank stages its part, waits for the others' parts, takes what it needs of them, and says
//! that it is done. With the first step comes a description of the call, which every rank compares with all
//! others.

use std::ops::Range;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use crate::buffer::{Source, Target};
use crate::data_type::{self, DataType};
use crate::failure::{Failure, Result};
use crate::reduction::{self, Reduction};
use crate::world::{DESCRIPTION, SLOTS, STAGE, World};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Function {
    AllReduce,
    Broadcast,
    Reduce,
    AllGather,
    ReduceScatter,
    AlltoAll,
    Gather,
    Scatter,
}

/// Who stages what for whom.
struct Shape {
    name: &'static str,
    /// Only the root stages anything.
    one_source: bool,
    /// Only the root takes anything.
    one_target: bool,
    /// A rank stages a part for each rank, instead of one for all.
    personal: bool,
    /// A rank reduces what it takes, instead of placing it side by side.
    reduces: bool,
}

const SHAPES: [Shape; 8] = [
    Shape { name: "ncclAllReduce", one_source: false, one_target: false, personal: false, reduces: true },
    Shape { name: "ncclBroadcast", one_source: true, one_target: false, personal: false, reduces: false },
    Shape { name: "ncclReduce", one_source: false, one_target: true, personal: false, reduces: true },
    Shape { name: "ncclAllGather", one_source: false, one_target: false, personal: false, reduces: false },
    Shape { name: "ncclReduceScatter", one_source: false, one_target: false, personal: true, reduces: true },
    Shape { name: "ncclAlltoAll", one_source: false, one_target: false, personal: true, reduces: false },
    Shape { name: "ncclGather", one_source: false, one_target: true, personal: false, reduces: false },
    Shape { name: "ncclScatter", one_source: true, one_target: false, personal: true, reduces: false },
];

impl Function {
    fn shape(self) -> &'static Shape {
        &SHAPES[self as usize]
    }

    pub(crate) fn name(self) -> &'static str {
        self.shape().name
    }
}

/// What every rank has to call alike. `count` is of the elements that go from one rank to one rank.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Call {
    pub(crate) function: Function,
    pub(crate) count: usize,
    pub(crate) data_type: DataType,
    /// Where the function reduces.
    pub(crate) reduction: Option<Reduction>,
    /// 0 where the function has none.
    pub(crate) root: usize,
}

impl Call {
    /// How many times `count` elements `rank` reads: 0 where its send buffer is of no interest.
    pub(crate) fn inputs(&self, rank: usize, ranks: usize) -> usize {
        let shape = self.function.shape();
        match (shape.one_source && rank != self.root, shape.personal) {
            (true, _) => 0,
            (false, true) => ranks,
            (false, false) => 1,
        }
    }

    /// How many times `count` elements `rank` writes: 0 where its receive buffer is of no interest.
    pub(crate) fn outputs(&self, rank: usize, ranks: usize) -> usize {
        let shape = self.function.shape();
        match (shape.one_target && rank != self.root, shape.one_source || shape.reduces) {
            (true, _) => 0,
            (false, true) => 1,
            (false, false) => ranks,
        }
    }

    fn description(&self) -> [u64; DESCRIPTION] {
        let reduction = self.reduction.map_or(u64::MAX, Reduction::number);
        let data_type = self.data_type.raw().0.into();
        [self.function as u64, self.count as u64, data_type, reduction, self.root as u64]
    }

    /// Runs the collective as `rank`.
    pub(crate) async fn run(self, world: &World, rank: usize, send: Source, receive: Target) -> Result {
        let ranks = world.ranks();
        let total = self.count * self.data_type.size();
        let (inputs, outputs) = (self.inputs(rank, ranks), self.outputs(rank, ranks));
        // The bytes of a part in one step: parts share a stage, and hold whole elements of any type.
        let most = (STAGE / if self.function.shape().personal { ranks } else { 1 }) & !7;
        let mut scratch = Scratch::new(total.min(most));
        let mut step = world.produced(rank).load(Relaxed);
        for at in (0..total).step_by(most) {
            let (length, first) = (most.min(total - at), at == 0);
            step += 1;
            for other in 0..ranks {
                world.wait(other, || world.consumed(other).load(Acquire) + SLOTS >= step).await?;
            }
            for input in 0..inputs {
                let place = world.stage(rank, step) + input * most;
                self.stage(world, place, send, input * total + at, scratch.input(length));
            }
            if first {
                for (word, value) in world.description(rank, step).into_iter().zip(self.description()) {
                    word.store(value, Relaxed);
                }
            }
            world.produced(rank).store(step, Release);
            // Everyone in the first step, because of the descriptions; later those whose parts are taken.
            let awaited = match (first, outputs) {
                (true, _) => 0..ranks,
                (false, 0) => 0..0,
                (false, _) => self.sources(ranks),
            };
            for other in awaited {
                world.wait(other, || world.produced(other).load(Acquire) >= step).await?;
            }
            let agreed = if first { agreement(world, step) } else { Ok(()) };
            if agreed.is_ok() && outputs > 0 {
                let part = if self.function.shape().personal { rank * most } else { 0 };
                self.take(world, Piece { step, at, length, total }, part, receive, &mut scratch);
            }
            world.consumed(rank).store(step, Release);
            agreed?;
        }
        Ok(())
    }

    /// The ranks that stage anything.
    fn sources(&self, ranks: usize) -> Range<usize> {
        if self.function.shape().one_source { self.root..self.root + 1 } else { 0..ranks }
    }

    /// Stages the part of the send buffer that begins at `from`, as long as `scratch`.
    fn stage(&self, world: &World, place: usize, send: Source, from: usize, scratch: &mut [u8]) {
        if let Some(reduction) = self.reduction {
            send.read(from, scratch);
            reduction.prepare(self.data_type, world.ranks(), scratch);
            world.segment().write(place, scratch);
        } else {
            world.segment().store(place, send, from, scratch.len());
        }
    }

    /// Takes the others' parts of a piece, which begin at `part` of their stages: for reductions in the order
    /// of the ranks, so that all get the same bits.
    fn take(&self, world: &World, piece: Piece, part: usize, receive: Target, scratch: &mut Scratch) {
        let Piece { step, at, length, total } = piece;
        let ranks = world.ranks();
        let sources = self.sources(ranks);
        let Some(reduction) = self.reduction else {
            for (output, source) in sources.enumerate() {
                world.segment().load(world.stage(source, step) + part, receive, output * total + at, length);
            }
            return;
        };
        let (result, input) = scratch.both(length);
        for source in sources {
            if source == 0 {
                world.segment().read(world.stage(source, step) + part, result);
            } else {
                world.segment().read(world.stage(source, step) + part, input);
                reduction.combine(self.data_type, result, input);
            }
        }
        reduction.finish(self.data_type, ranks, result);
        receive.write(at, result);
    }
}

/// What one step moves: `length` bytes from `at` on, of `total` that go from one rank to one rank.
#[derive(Debug, Clone, Copy)]
struct Piece {
    step: u64,
    at: usize,
    length: usize,
    total: usize,
}

/// Compares what the ranks say they called. All ranks see the same and come to the same result.
fn agreement(world: &World, step: u64) -> Result {
    let of = |rank: usize| world.description(rank, step).map(|word| word.load(Relaxed));
    let first = of(0);
    match (1..world.ranks()).map(|rank| (rank, of(rank))).find(|(_, other)| *other != first) {
        None => Ok(()),
        Some((rank, other)) => Err(Failure::usage(format!(
            "the ranks called different collectives: rank {rank} called {}, rank 0 called {}",
            tell(other),
            tell(first)
        ))),
    }
}

/// A description in words. It comes from another rank, so its numbers may be any.
fn tell([function, count, data_type, reduction, root]: [u64; DESCRIPTION]) -> String {
    let Some(shape) = usize::try_from(function).ok().and_then(|index| SHAPES.get(index)) else {
        return format!("function {function}");
    };
    let mut text = format!("{}(count {count}, {}", shape.name, data_type::name(data_type));
    if shape.reduces {
        text += &format!(", {}", reduction::name(reduction));
    }
    if shape.one_source || shape.one_target {
        text += &format!(", root {root}");
    }
    text + ")"
}

/// Private memory to compute in: the staged parts of other ranks may not be changed.
struct Scratch(Vec<u8>);

impl Scratch {
    fn new(length: usize) -> Self {
        Self(vec![0; 2 * length])
    }

    fn input(&mut self, length: usize) -> &mut [u8] {
        &mut self.0[..length]
    }

    fn both(&mut self, length: usize) -> (&mut [u8], &mut [u8]) {
        let half = self.0.len() / 2;
        let (result, input) = self.0.split_at_mut(half);
        (&mut result[..length], &mut input[..length])
    }
}
