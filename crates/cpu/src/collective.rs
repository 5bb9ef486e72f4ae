//! Collectives: who makes which part of the result out of which inputs, and the ways to get it done.
//!
//! A call begins with a step in which every rank says what it calls and where its buffers are; all compare.
//! Short inputs travel along, and every rank makes what it needs: one step. Otherwise, if every rank can use
//! the others' buffers, each makes its pieces from there and puts them where they belong; then a step says that
//! all are done. Otherwise the ranks stage their inputs in shared memory, a window at a time. When a communicator
//! first goes a way that others would not have had to, debug output tells why.

use std::ops::Range;

use crate::agreement;
use crate::buffer::{self, Source, Target};
use crate::data_type::{self, DataType};
use crate::debug::{self, Subsystem};
use crate::failure::Result;
use crate::reach::{Seat, Whereabouts};
use crate::reduction::{self, Factor, Reduction};
use crate::segment::TINY;
use crate::world::{OWN, PAYLOAD, STAGE, World};

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
    /// A broadcast in which all ranks have a share of the work. No rank calls it by this name.
    Spread,
}

/// What the result is made of.
struct Shape {
    name: &'static str,
    /// Whether only the root sends, or only the root receives.
    root: Root,
    /// How the send and the receive buffers are divided.
    input: Division,
    output: Division,
    reduces: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Root {
    None,
    Sends,
    Receives,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Division {
    /// `count` elements in one part.
    Whole,
    /// `count` elements divided among the ranks.
    Chunks,
    /// `count` elements for each rank.
    Blocks,
}

const SHAPES: [Shape; 9] = {
    use Division::{Blocks, Chunks, Whole};
    const fn shape(
        name: &'static str,
        root: Root,
        input: Division,
        output: Division,
        reduces: bool,
    ) -> Shape {
        Shape { name, root, input, output, reduces }
    }
    [
        shape("ncclAllReduce", Root::None, Chunks, Chunks, true),
        shape("ncclBroadcast", Root::Sends, Whole, Whole, false),
        shape("ncclReduce", Root::Receives, Chunks, Chunks, true),
        shape("ncclAllGather", Root::None, Whole, Blocks, false),
        shape("ncclReduceScatter", Root::None, Blocks, Whole, true),
        shape("ncclAlltoAll", Root::None, Blocks, Blocks, false),
        shape("ncclGather", Root::Receives, Whole, Blocks, false),
        shape("ncclScatter", Root::Sends, Blocks, Whole, false),
        shape("ncclBroadcast", Root::Sends, Chunks, Chunks, false),
    ]
};

/// What the bytes of a chunk are a multiple of: whole cache lines, and few pieces of what is short.
const CHUNK: usize = if TINY { 64 } else { 512 };

/// Bytes that are reduced at a time, so that they stay in the nearest cache.
const BLOCK: usize = 4 << 10;

/// The same where the result goes around the caches: reading and writing the memory take turns more often.
const BURST: usize = 1 << 10;

/// Bytes that travel with a call at most where another step costs less than another copy: with two ranks. More of them
/// often have to wait for a processor in each step.
const NEAR: usize = if TINY { PAYLOAD } else { 4 << 10 };

/// From pieces of so many bytes on, another process's memory is read instead of staged.
const READ: usize = 64 << 10;

/// From so many bytes on that all ranks together write, they go around the caches.
const STREAM: usize = 32 << 20;

impl Function {
    fn shape(self) -> &'static Shape {
        &SHAPES[self as usize]
    }

    pub(crate) fn name(self) -> &'static str {
        self.shape().name
    }
}

/// How a call gets done whose inputs do not travel along.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Way {
    /// From the ranks' buffers, mapped where they are another process's.
    Direct,
    Read,
    Staged,
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
    pub(crate) ranks: usize,
    /// Bytes of `count` elements.
    bytes: usize,
    /// Bytes of a chunk where they are divided among the ranks.
    chunk: usize,
}

/// A piece of the result: part `input` of the ranks `first`, `first + 1`, ... (`sources` of them, after the last
/// rank comes the first), in this order, becomes part `output` of one rank's receive buffer, or of all.
#[derive(Debug, Clone, Copy)]
struct Piece {
    input: usize,
    first: usize,
    sources: usize,
    output: usize,
    target: Option<usize>,
}

/// What a rank said of its buffers.
#[derive(Debug, Clone, Copy)]
struct Own {
    send: Whereabouts,
    receive: Whereabouts,
    factor: Option<Factor>,
}

/// This rank's part in a call.
#[derive(Debug)]
pub(crate) struct Part<'a> {
    pub(crate) seat: Seat<'a>,
    pub(crate) send: Source,
    pub(crate) receive: Target,
}

impl Call {
    pub(crate) fn new(
        function: Function,
        count: usize,
        data_type: DataType,
        reduction: Option<Reduction>,
        root: usize,
        ranks: usize,
    ) -> Self {
        let bytes = count * data_type.size();
        // A short call does without the division.
        let chunk = if bytes <= CHUNK {
            CHUNK
        } else {
            (count.div_ceil(ranks) * data_type.size()).next_multiple_of(CHUNK)
        };
        Self { function, count, data_type, reduction, root, ranks, bytes, chunk }
    }

    /// The same with the scalar that lies there now.
    pub(crate) fn with_scalar(&self, place: Source) -> Self {
        let mut scalar = [0; 8];
        place.read(0, &mut scalar[..place.length()]);
        Self { reduction: Some(Reduction::PreMulSum(scalar)), ..*self }
    }

    /// Bytes that `rank` reads: 0 where its send buffer is of no interest.
    pub(crate) fn input(&self, rank: usize) -> usize {
        let shape = self.function.shape();
        if shape.root == Root::Sends && rank != self.root { 0 } else { self.buffer(shape.input) }
    }

    /// Bytes that `rank` writes: 0 where its receive buffer is of no interest.
    pub(crate) fn output(&self, rank: usize) -> usize {
        let shape = self.function.shape();
        if shape.root == Root::Receives && rank != self.root { 0 } else { self.buffer(shape.output) }
    }

    fn buffer(&self, division: Division) -> usize {
        self.bytes * if division == Division::Blocks { self.ranks } else { 1 }
    }

    /// The bytes of a part of a buffer.
    fn part(&self, division: Division, index: usize) -> Range<usize> {
        let Self { bytes, chunk, .. } = *self;
        match division {
            Division::Whole => 0..bytes,
            Division::Blocks => index * bytes..(index + 1) * bytes,
            Division::Chunks => (index * chunk).min(bytes)..((index + 1) * chunk).min(bytes),
        }
    }

    /// The pieces of the result that `rank` makes.
    fn pieces(&self, rank: usize) -> impl Iterator<Item = Piece> {
        let (shape, ranks, root) = (self.function.shape(), self.ranks, self.root);
        // One of each rank, instead of one.
        let gathers = matches!(self.function, Function::AllGather | Function::AlltoAll | Function::Gather);
        let number = match self.function {
            Function::Gather if rank != root => 0,
            _ if gathers => ranks,
            _ => 1,
        };
        let piece = Piece {
            input: if shape.input == Division::Whole { 0 } else { rank },
            first: match (shape.reduces, shape.root) {
                // In the order of NCCL's ring, which ends at the rank that keeps the result.
                (true, Root::Receives) => root + 1,
                (true, _) => rank + 1,
                (false, _) => root,
            },
            sources: if shape.reduces { ranks } else { 1 },
            output: if shape.output == Division::Chunks { rank } else { 0 },
            target: match self.function {
                Function::AllReduce | Function::Spread => None,
                Function::Reduce => Some(root),
                _ => Some(rank),
            },
        };
        let of = move |index| if gathers { Piece { first: index, output: index, ..piece } } else { piece };
        (0..number).map(of)
    }

    /// Whether others than who makes a piece receive it.
    fn shares_results(&self) -> bool {
        self.function.shape().output == Division::Chunks
    }

    /// The ranks whose inputs `rank` makes its result of.
    fn heard(&self, rank: usize) -> Range<usize> {
        match self.function.shape().root {
            Root::Sends => self.root..self.root + 1,
            Root::Receives if rank != self.root => rank..rank + 1,
            _ => 0..self.ranks,
        }
    }

    fn common(&self) -> [u64; 2] {
        let reduction = self.reduction.map_or(0xff, Reduction::number);
        let data_type = u64::from(self.data_type.raw().0);
        [
            self.function as u64 | data_type << 8 | reduction << 16 | (self.root as u64) << 32,
            self.count as u64,
        ]
    }

    /// Runs the collective.
    pub(crate) async fn run(&self, part: &Part<'_>) -> Result {
        let Seat { world, rank, .. } = part.seat;
        if self.ranks == 1 {
            let own = self.own(part, false);
            return self.direct(part, &[own]);
        }
        let most = if self.ranks == 2 { NEAR } else { PAYLOAD };
        let travels = self.buffer(self.function.shape().input) <= most;
        let step = world.next_step(rank).await?;
        if travels {
            self.say(part, step);
            let heard = self.heard(rank);
            world.wait_for(rank, step, heard.clone()).await?;
            // It comes while this rank does the rest.
            for other in heard.clone().filter(|other| *other != rank) {
                let said = world.payload(other, step, self.input(other));
                said.slice(self.needed(rank, said.length())).prefetch();
            }
            world.make_ready(rank, step, self.buffer(self.function.shape().input));
            agreement::check(world, rank, step, heard)?;
            self.over_payloads(part, step);
            return Ok(());
        }
        // The rest is only for what takes longer than finding some memory.
        Box::pin(self.over_buffers(part, step)).await
    }

    /// Says what this rank calls, with its input.
    fn say(&self, part: &Part<'_>, step: u64) {
        let Seat { world, rank, .. } = part.seat;
        let own = self.factor().map(|_| self.own(part, false).words());
        world.say(rank, step, self.common(), part.send.bytes(0, part.send.length()), own);
    }

    /// Makes the result out of the ranks' buffers, after they have said in `step` where these are.
    async fn over_buffers(&self, part: &Part<'_>, step: u64) -> Result {
        let Seat { world, rank, .. } = part.seat;
        let own = self.own(part, true);
        world.say(rank, step, self.common(), &[], Some(own.words()));
        if let Err(failure) = world.all(rank, step).await {
            world.retreat(rank).await;
            return Err(failure);
        }
        agreement::check(world, rank, step, 0..self.ranks)?;
        let said = |rank| Own::from_words(world.own(rank, step), own.factor.is_some());
        let said: Vec<Own> = (0..self.ranks).map(said).collect();
        let result = self.with_buffers(part, &said).await;
        if result.is_err() {
            world.retreat(rank).await;
        }
        result
    }

    /// The same once they are known.
    async fn with_buffers(&self, part: &Part<'_>, said: &[Own]) -> Result {
        let Seat { reach, world, rank } = part.seat;
        let spread = if self.function == Function::Broadcast { Function::Spread } else { self.function };
        let spread = Self { function: spread, ..*self };
        let (way, call) = self.choose(part, &spread, said).await?;
        if reach.is_new(way as u8) {
            debug::info(Subsystem::SharedMemory, || spread.tell_way(way, world, rank, said));
        }
        let done = match way {
            Way::Direct => call.direct(part, said),
            Way::Read => call.read(part, said),
            Way::Staged => return call.staged(part, said).await,
        };
        // The others wait for this step even if this rank has failed.
        let step = world.next_step(rank).await?;
        world.announce(rank, step);
        world.all(rank, step).await?;
        done
    }

    /// The way that all ranks go, and whether as `spread` or as `self`.
    async fn choose<'a>(
        &'a self,
        part: &Part<'_>,
        spread: &'a Self,
        said: &[Own],
    ) -> Result<(Way, &'a Self)> {
        if said.iter().any(Own::is_hidden) {
            return Ok((Way::Staged, self));
        }
        for call in [spread, self] {
            if part.seat.everywhere(&call.used(said)).await? {
                return Ok((Way::Direct, call));
            }
        }
        // Of every rank, since the answer also holds for calls that use the memory of others.
        let any = |rank| (rank, if self.input(rank) > 0 { said[rank].send } else { said[rank].receive });
        let any: Vec<_> = (0..self.ranks).map(any).collect();
        if spread.is_read() && part.seat.readable(&any).await? {
            return Ok((Way::Read, spread));
        }
        Ok((Way::Staged, self))
    }

    /// That the call goes `way`, and why it is this one.
    fn tell_way(&self, way: Way, world: &World, rank: usize, said: &[Own]) -> String {
        let Self { bytes, .. } = self;
        let how = match way {
            Way::Direct if world.is_one_process() => "direct, because all ranks are in one process".into(),
            Way::Direct => "direct, because the ranks can map each other's buffers".into(),
            Way::Read => format!("read across processes, because {}", self.obstacle(said)),
            Way::Staged => format!("staged, because {}{}", self.obstacle(said), self.no_reading(said)),
        };
        format!("{} of {bytes} bytes on rank {rank}: {how}", self.function.name())
    }

    /// Why the ranks do not use each other's buffers directly.
    fn obstacle(&self, said: &[Own]) -> String {
        if let Some(rank) = said.iter().position(Own::is_hidden) {
            return format!("NCCL_P2P_DISABLE is 1 at rank {rank}");
        }
        let private = |buffer: fn(&Own) -> Whereabouts, used: &dyn Fn(usize) -> bool| {
            (0..self.ranks).find(|rank| used(*rank) && !buffer(&said[*rank]).is_shared())
        };
        let sends = private(|own| own.send, &|rank| self.input(rank) > 0).map(|rank| ("send", rank));
        let receives = || private(|own| own.receive, &|rank| self.shares_results() && self.output(rank) > 0);
        match sends.or_else(|| receives().map(|rank| ("receive", rank))) {
            Some((buffer, rank)) => format!("the {buffer} buffer of rank {rank} is not from ncclMemAlloc"),
            None => "a rank cannot map another one's memory".into(),
        }
    }

    /// Why the ranks do not read each other's memory either, where they might.
    fn no_reading(&self, said: &[Own]) -> &'static str {
        if said.iter().any(Own::is_hidden) {
            ""
        } else if self.function.shape().reduces {
            ", and reading across processes is for what is only copied"
        } else if self.is_read() {
            ", nor can every rank read and write the others' memory faster"
        } else {
            ", and it is too short to read across processes"
        }
    }

    fn own(&self, part: &Part<'_>, others: bool) -> Own {
        let others = others && !part.seat.world.is_one_process();
        Own {
            send: Whereabouts::new(part.send.start(), self.input(part.seat.rank), others),
            receive: Whereabouts::new(part.receive.start(), self.output(part.seat.rank), others),
            factor: self.factor(),
        }
    }

    fn factor(&self) -> Option<Factor> {
        self.reduction.and_then(|reduction| reduction.factor(self.data_type, self.ranks))
    }

    /// The buffers that other ranks use in the direct way, with their owners.
    fn used(&self, said: &[Own]) -> Vec<(usize, Whereabouts)> {
        let senders = (0..self.ranks).filter(|rank| self.input(*rank) > 0);
        let receivers = (0..self.ranks).filter(|rank| self.shares_results() && self.output(*rank) > 0);
        let sends = senders.map(|rank| (rank, said[rank].send));
        sends.chain(receivers.map(|rank| (rank, said[rank].receive))).collect()
    }

    /// What `rank` uses of another one's input, which has `length` bytes.
    fn needed(&self, rank: usize, length: usize) -> Range<usize> {
        match self.function.shape().input {
            Division::Blocks => self.part(Division::Blocks, rank),
            Division::Whole | Division::Chunks => 0..length,
        }
    }

    /// Makes what this rank receives out of what all said along with `step`.
    fn over_payloads(&self, part: &Part<'_>, step: u64) {
        let rank = part.seat.rank;
        // Those whose pieces come here and are not empty.
        let makers = if !self.shares_results() {
            rank..rank + 1
        } else if self.output(rank) == 0 {
            0..0
        } else if self.bytes <= self.chunk {
            0..1
        } else {
            0..self.bytes.div_ceil(self.chunk)
        };
        for maker in makers {
            for piece in self.pieces(maker) {
                self.over_payload(part, step, piece);
            }
        }
    }

    /// Makes a piece of it.
    fn over_payload(&self, Part { seat, send, receive }: &Part<'_>, step: u64, piece: Piece) {
        let shape = self.function.shape();
        let from = self.part(shape.input, piece.input);
        let to = receive.slice(self.part(shape.output, piece.output));
        let input = |source| {
            // This rank's own is nearer than what it has just said, but the result may go where it is.
            let whole = if source == seat.rank && !send.overlaps(to) {
                *send
            } else {
                seat.world.payload(source, step, self.input(source))
            };
            whole.slice(from.clone())
        };
        let Some(reduction) = self.reduction else {
            return to.copy(input(piece.first), false);
        };
        let common = self.factor();
        let factor = |source| match reduction {
            Reduction::PreMulSum(_) => Own::from_words(seat.world.own(source, step), true).factor,
            _ => common,
        };
        let input = |source| (input(source), factor(source));
        to.fill(|result| self.reduce(reduction, result, 0, piece.sources(self.ranks).map(input)));
    }

    /// Makes this rank's pieces straight from the ranks' buffers.
    fn direct(&self, part: &Part<'_>, said: &[Own]) -> Result {
        let Part { seat, send, receive } = *part;
        let Seat { world, rank, .. } = seat;
        let shape = self.function.shape();
        let mut scratch = vec![0; BLOCK.min(self.bytes)];
        let _touch = world.touch(rank)?;
        for piece in self.pieces(rank) {
            let (from, to) = (self.part(shape.input, piece.input), self.part(shape.output, piece.output));
            let source = |source: usize| {
                let whole = if source == rank {
                    send
                } else {
                    seat.source(source, said[source].send, self.input(source))?
                };
                Ok((whole.slice(from.clone()), said[source].factor))
            };
            let target = |target: usize| {
                let whole = if target == rank {
                    receive
                } else {
                    seat.target(target, said[target].receive, self.output(target))?
                };
                Ok(whole.slice(to.clone()))
            };
            // Where it is already.
            let in_place = |target: &usize| {
                let Own { send, receive, .. } = said[*target];
                !shape.reduces && *target != rank && *target == piece.first && send == receive
            };
            let sources: Vec<_> = piece.sources(self.ranks).map(source).collect::<Result<_>>()?;
            let targets = piece.targets(self.ranks).filter(|target| !in_place(target));
            let targets: Vec<_> = targets.map(target).collect::<Result<_>>()?;
            self.make(&sources, &targets, &mut scratch);
        }
        Ok(())
    }

    /// Whether reading other processes' memory is faster than staging: only one copy, but slow for what is short,
    /// and no help where the processor has to see the bytes anyway.
    fn is_read(&self) -> bool {
        let shape = self.function.shape();
        !shape.reduces && self.part(shape.input, 0).len() >= READ
    }

    /// Copies this rank's pieces out of the memory of the other ranks' processes, and into it.
    fn read(&self, part: &Part<'_>, said: &[Own]) -> Result {
        let Part { seat, send, receive } = *part;
        let Seat { world, rank, .. } = seat;
        let shape = self.function.shape();
        let _touch = world.touch(rank)?;
        for piece in self.pieces(rank) {
            let from = self.part(shape.input, piece.input);
            let to = self.part(shape.output, piece.output);
            let own = receive.slice(to.clone());
            if piece.first == rank {
                own.copy(send.slice(from), self.streams());
            } else {
                seat.read(piece.first, said[piece.first].send, from.start, own)?;
            }
            for target in piece.targets(self.ranks).filter(|target| *target != rank) {
                if target != piece.first || said[target].send != said[target].receive {
                    seat.write(target, said[target].receive, to.start, own.source())?;
                }
            }
        }
        Ok(())
    }

    /// Makes this rank's pieces from what the ranks stage of their inputs, a window at a time. In each step a
    /// rank stages a window, takes what others made of the one before, and makes its own of this one.
    async fn staged(&self, part: &Part<'_>, said: &[Own]) -> Result {
        let Part { seat: Seat { world, rank, .. }, send, receive } = *part;
        let shape = self.function.shape();
        let shares = self.shares_results();
        let cells = if shape.input == Division::Whole { 1 } else { self.ranks };
        let window = (STAGE / (cells + usize::from(shares))) & !63;
        // The parts are nearly equal, and the first one is the longest.
        let windows = self.part(shape.input, 0).len().div_ceil(window);
        let slice = |division, index, at: usize| {
            let Range { start, end } = self.part(division, index);
            (start + at * window).min(end)..(start + (at + 1) * window).min(end)
        };
        let cell = |owner, step, index, length| world.staged(owner, step, index * window, length);
        let mut scratch = vec![0; BLOCK.min(self.bytes)];
        for at in 0..windows + usize::from(shares) {
            let step = world.next_step(rank).await?;
            if at < windows && self.input(rank) > 0 {
                // What only this rank needs stays where it is.
                let needed = |index: &usize| shape.input == Division::Whole || *index != rank;
                for index in (0..cells).filter(needed) {
                    let from = slice(shape.input, index, at);
                    let (_, to) = cell(rank, step, index, from.len());
                    to.copy(send.slice(from), false);
                }
            }
            world.announce(rank, step);
            world.all(rank, step).await?;
            if shares && at > 0 && self.output(rank) > 0 {
                for maker in (rank + 1..self.ranks).chain(0..rank) {
                    let to = slice(shape.output, maker, at - 1);
                    let (from, _) = cell(maker, step - 1, cells, to.len());
                    receive.slice(to).copy(from, self.streams());
                }
            }
            for piece in self.pieces(rank).filter(|_| at < windows) {
                let from = slice(shape.input, piece.input, at);
                let to = slice(shape.output, piece.output, at);
                let source = |source| {
                    let index = if shape.input == Division::Whole { 0 } else { piece.input };
                    let (staged, _) = cell(source, step, index, from.len());
                    (if source == rank { send.slice(from.clone()) } else { staged }, said[source].factor)
                };
                let sources: Vec<_> = piece.sources(self.ranks).map(source).collect();
                let mut targets = vec![];
                if piece.target != Some(rank) {
                    targets.push(cell(rank, step, cells, to.len()).1);
                }
                if piece.target.is_none_or(|target| target == rank) {
                    targets.push(receive.slice(to));
                }
                self.make(&sources, &targets, &mut scratch);
            }
        }
        Ok(())
    }

    /// Makes `result` of what the sources hold from `at` on.
    fn reduce(
        &self,
        reduction: Reduction,
        result: &mut [u8],
        at: usize,
        mut sources: impl Iterator<Item = (Source, Option<Factor>)>,
    ) {
        let (data_type, length) = (self.data_type, result.len());
        match (sources.next(), sources.next()) {
            (Some((left, left_factor)), Some((right, right_factor))) => {
                let (left, right) = (left.bytes(at, length), right.bytes(at, length));
                reduction.join(data_type, result, left, left_factor, right, right_factor);
            }
            (Some((only, factor)), None) => {
                reduction.begin(data_type, result, only.bytes(at, length), factor);
            }
            (None, _) => {}
        }
        for (source, factor) in sources {
            reduction.combine(data_type, result, source.bytes(at, length), factor);
        }
        reduction.finish(data_type, self.ranks, result);
    }

    /// Whether the result is too long to be still in a cache when it is needed.
    fn streams(&self) -> bool {
        let shape = self.function.shape();
        let receivers = match shape.root {
            Root::None => self.ranks,
            // The root usually has its own where it belongs.
            Root::Sends => self.ranks - 1,
            Root::Receives => 1,
        };
        self.buffer(shape.output) * receivers >= STREAM
    }

    /// Reduces `sources`, or copies the only one, into all `targets`.
    fn make(&self, sources: &[(Source, Option<Factor>)], targets: &[Target], scratch: &mut [u8]) {
        let streams = self.streams();
        let Some(reduction) = self.reduction else {
            for target in targets {
                sources.iter().for_each(|(source, _)| target.copy(*source, streams));
            }
            return;
        };
        let length = sources.first().map_or(0, |(source, _)| source.length());
        let block = if streams { BURST } else { BLOCK };
        for at in (0..length).step_by(block) {
            let result = &mut scratch[..block.min(length - at)];
            self.reduce(reduction, result, at, sources.iter().copied());
            for target in targets {
                if streams {
                    target.write_around_caches(at, result);
                } else {
                    target.write(at, result);
                }
            }
        }
        if streams {
            buffer::settle();
        }
    }
}

impl Piece {
    fn sources(self, ranks: usize) -> impl Iterator<Item = usize> {
        let around = move |rank| if rank < ranks { rank } else { rank - ranks };
        (self.first..self.first + self.sources).map(around)
    }

    fn targets(self, ranks: usize) -> impl Iterator<Item = usize> {
        self.target.map_or(0..ranks, |target| target..target + 1)
    }
}

impl Own {
    /// Whether the rank keeps the others out of its memory. It has at least one buffer to tell of otherwise.
    fn is_hidden(&self) -> bool {
        !self.send.is_told() && !self.receive.is_told()
    }

    fn words(self) -> [u64; OWN] {
        let mut words = [0; OWN];
        words[..4].copy_from_slice(&self.send.words());
        words[4..8].copy_from_slice(&self.receive.words());
        words[8] = self.factor.map_or(0, |Factor(bytes)| u64::from_ne_bytes(bytes));
        words
    }

    /// What another rank said; `reduces` with a factor or not, all ranks alike.
    fn from_words([a, b, c, d, e, f, g, h, factor]: [u64; OWN], scales: bool) -> Self {
        Self {
            send: Whereabouts::from_words([a, b, c, d]),
            receive: Whereabouts::from_words([e, f, g, h]),
            factor: scales.then_some(Factor(factor.to_ne_bytes())),
        }
    }
}

/// The words that all ranks have in common, if they are of a collective.
pub(crate) fn tell([head, count]: [u64; 2]) -> Option<String> {
    let [function, data_type, reduction, ..] = head.to_le_bytes();
    let shape = SHAPES.get(usize::from(function))?;
    let mut text = format!("{}(count {count}, {}", shape.name, data_type::name(data_type.into()));
    if shape.reduces {
        text += &format!(", {}", reduction::name(reduction.into()));
    }
    if shape.root != Root::None {
        text += &format!(", root {}", head >> 32);
    }
    Some(text + ")")
}
