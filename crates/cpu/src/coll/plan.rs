//! The plan of a collective: which rank computes which part of the result, from which inputs, in which order, and for which ranks. It
//! depends only on the arguments that all ranks agree on. Also the rank-specific data: the local buffers, and the arguments that ranks
//! publish.

use std::cmp::Ordering;
use std::ops::Range;
use std::sync::Once;

use libnccl::observer::Role;

use crate::coll::call::{CallHeader, Division, Function};
use crate::diag::debug;
use crate::diag::error::{Error, Result};
use crate::diag::settings::STRICT;
use crate::reduce::data_type::DataType;
use crate::reduce::reduction::{Factor, Reduction};
use crate::shm::buffer::{ReadBuf, WriteBuf};
use crate::shm::call_context::{CallContext, RemoteBuffer};
use crate::shm::layout::RANK_ARGS;
use crate::sync::primitive::LOOM;

/// Chunk sizes are multiples of this number of bytes: whole cache lines, and few chunks in a short call.
const CHUNK: usize = if LOOM { 64 } else { 512 };

/// The arguments of a collective that all ranks must agree on. `count` is the count that the caller passed.
#[derive(Clone, Copy)]
pub(crate) struct Call {
    pub(super) function: Function,
    count: usize,
    pub(super) data_type: DataType,
    /// `None` if the function does not reduce.
    pub(super) reduction: Option<Reduction>,
    /// 0 if the function has no root.
    root: usize,
    pub(super) ranks: usize,
    pub(super) bytes: usize,
    /// Number of bytes of a chunk if the elements are divided among the ranks.
    chunk: usize,
    pub(super) is_grouped: bool,
}

/// A task of one rank. It reads part `input` of the send buffers of `sources` ranks, in the order `first`, `first + 1`, ...
/// (wrapping from the last rank to rank 0). It writes the combined result to part `output` of the receive buffers of one rank or
/// all ranks.
#[derive(Clone, Copy)]
pub(super) struct Task {
    pub(super) input: usize,
    pub(super) first: usize,
    pub(super) sources: usize,
    pub(super) output: usize,
    /// The receiving rank, or `None` for all ranks.
    pub(super) target: Option<usize>,
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
        // A short call avoids the division.
        let chunk = if bytes <= CHUNK {
            CHUNK
        } else {
            (count.div_ceil(ranks) * data_type.size()).next_multiple_of(CHUNK)
        };
        Self { function, count, data_type, reduction, root, ranks, bytes, chunk, is_grouped: false }
    }

    pub(super) fn with_function(&self, function: Function) -> Self {
        Self { function, ..*self }
    }

    /// Returns the call with the scalar that is currently stored at `place`.
    pub(super) fn with_scalar(&self, place: ReadBuf) -> Self {
        let mut scalar = [0; 8];
        place.read(0, &mut scalar[..place.length()]);
        Self { reduction: Some(Reduction::PreMulSum(scalar)), ..*self }
    }

    /// Returns the number of bytes that `rank` sends, or 0 if its send buffer is not used.
    pub(crate) fn input(&self, rank: usize) -> usize {
        let shape = self.function.shape();
        if shape.operation.is_sender(rank == self.root) { self.buffer(shape.input) } else { 0 }
    }

    /// Returns the number of bytes that `rank` receives, or 0 if its receive buffer is not used.
    pub(crate) fn output(&self, rank: usize) -> usize {
        let shape = self.function.shape();
        if shape.operation.is_receiver(rank == self.root) { self.buffer(shape.output) } else { 0 }
    }

    /// Returns an error if the buffers of `rank` overlap but are not in place. In place, the rank's own blocks of both buffers
    /// coincide. If both buffers have a block for each rank, NCCL accepts a call in place but does not define its result. Such a
    /// call causes a warning, or an error in strict mode.
    #[inline]
    pub(crate) fn check_overlap(&self, rank: usize, send: ReadBuf, recv: WriteBuf) -> Result {
        if send.length() == 0 || recv.length() == 0 || !send.overlaps(recv) {
            return Ok(());
        }
        let shape = self.function.shape();
        let from = send.start().addr() + self.own_block(rank, shape.input);
        let to = recv.start().addr() + self.own_block(rank, shape.output);
        if from != to || (self.overwrites_input() && *STRICT) {
            return Err(self.overlap(rank, send, recv));
        }
        if self.overwrites_input() {
            self.warn_in_place();
        }
        Ok(())
    }

    /// Returns whether a call in place would overwrite unread input of another rank: both buffers have a block for each rank.
    pub(super) fn overwrites_input(&self) -> bool {
        let shape = self.function.shape();
        shape.input == Division::Blocks && shape.output == Division::Blocks && self.ranks > 1
    }

    /// Warns about a call in place whose result NCCL does not define. Warns only once, because programs make such calls in loops.
    #[cold]
    #[inline(never)]
    fn warn_in_place(&self) {
        static WARNED: Once = Once::new();
        WARNED.call_once(|| {
            debug::warn_on_stderr(&format!(
                "{}: sendbuff is recvbuff, and the result is undefined in NCCL (here it is the same as for two buffers; \
                 LIBNCCL_CPU_STRICT=1 makes it an error)",
                self.function.symbol()
            ));
        });
    }

    /// Returns the offset in bytes of the block of `rank` in a buffer with this division.
    fn own_block(&self, rank: usize, division: Division) -> usize {
        if division == Division::Blocks { rank * self.bytes } else { 0 }
    }

    #[cold]
    #[inline(never)]
    fn overlap(&self, rank: usize, send: ReadBuf, recv: WriteBuf) -> Error {
        let shape = self.function.shape();
        let (from, to) = (send.start().addr(), recv.start().addr());
        let place = match to.cmp(&from) {
            Ordering::Less => format!("sendbuff is recvbuff + {} bytes", from - to),
            Ordering::Equal => "sendbuff is recvbuff".into(),
            Ordering::Greater => format!("recvbuff is sendbuff + {} bytes", to - from),
        };
        let block =
            |division| format!("{} bytes (rank {rank} x count elements)", self.own_block(rank, division));
        let rule = match (shape.input, shape.output) {
            (Division::Blocks, Division::Blocks) if from == to => {
                "it has no form in place (LIBNCCL_CPU_STRICT is 1)".into()
            }
            (Division::Blocks, Division::Blocks) => "it has no form in place".into(),
            (Division::Blocks, _) => {
                format!("an in-place call needs recvbuff = sendbuff + {}", block(shape.input))
            }
            (_, Division::Blocks) => {
                format!("an in-place call needs sendbuff = recvbuff + {}", block(shape.output))
            }
            _ => "an in-place call needs sendbuff = recvbuff".into(),
        };
        Error::argument(format!(
            "{}: the send buffer ({} bytes) and the receive buffer ({} bytes) overlap: {place}; {rule}",
            shape.operation.function,
            send.length(),
            recv.length()
        ))
    }

    pub(super) fn buffer(&self, division: Division) -> usize {
        self.bytes * if division == Division::Blocks { self.ranks } else { 1 }
    }

    pub(super) fn part(&self, division: Division, index: usize) -> Range<usize> {
        let Self { bytes, chunk, .. } = *self;
        match division {
            Division::Whole => 0..bytes,
            Division::Blocks => index * bytes..(index + 1) * bytes,
            Division::Chunks => (index * chunk).min(bytes)..((index + 1) * chunk).min(bytes),
        }
    }

    pub(super) fn tasks(&self, rank: usize) -> impl Iterator<Item = Task> {
        let is_receiver = self.function.shape().operation.is_receiver(rank == self.root);
        let number = match self.gathers() {
            true if is_receiver => self.ranks,
            true => 0,
            false => 1,
        };
        (0..number).map(move |index| self.task(rank, index))
    }

    /// Returns whether a rank has one task for each rank's input, instead of a single task.
    fn gathers(&self) -> bool {
        self.function.shape().output == Division::Blocks
    }

    #[inline]
    fn task(&self, rank: usize, index: usize) -> Task {
        let (shape, ranks, root, gathers) = (self.function.shape(), self.ranks, self.root, self.gathers());
        Task {
            input: if shape.input == Division::Whole { 0 } else { rank },
            first: match (shape.operation.reduces, shape.operation.role) {
                _ if gathers => index,
                // In the order of NCCL's ring, which ends at the rank that keeps the result.
                (true, Role::RootReceives) => root + 1,
                (true, _) => rank + 1,
                (false, _) => root,
            },
            sources: if shape.operation.reduces { ranks } else { 1 },
            output: match shape.output {
                _ if gathers => index,
                Division::Chunks => rank,
                _ => 0,
            },
            target: match (shape.output, shape.operation.role) {
                (Division::Chunks, Role::RootReceives) => Some(root),
                (Division::Chunks, _) => None,
                _ => Some(rank),
            },
        }
    }

    /// Returns the ranks whose tasks write to the receive buffer of `rank`.
    pub(super) fn writers(&self, rank: usize) -> Range<usize> {
        if !self.shares_results() {
            rank..rank + 1
        } else if self.output(rank) == 0 {
            0..0
        } else if self.bytes <= self.chunk {
            0..1
        } else {
            0..self.bytes.div_ceil(self.chunk)
        }
    }

    /// Returns whether the result of a task is also received by ranks that do not run it.
    pub(super) fn shares_results(&self) -> bool {
        self.function.shape().output == Division::Chunks
    }

    /// Returns the ranks whose inputs affect the result of `rank`.
    pub(super) fn sources(&self, rank: usize) -> Range<usize> {
        match self.function.shape().operation.role {
            Role::RootSends => self.root..self.root + 1,
            Role::RootReceives if rank != self.root => rank..rank + 1,
            _ => 0..self.ranks,
        }
    }

    /// Returns the bytes that `rank` needs of another rank's input, which has `length` bytes.
    pub(super) fn needed(&self, rank: usize, length: usize) -> Range<usize> {
        match self.function.shape().input {
            Division::Blocks => self.part(Division::Blocks, rank),
            Division::Whole | Division::Chunks => 0..length,
        }
    }

    /// Returns the number of bytes that all ranks together write.
    pub(super) fn written(&self) -> usize {
        let shape = self.function.shape();
        let receivers = match shape.operation.role {
            // The root usually has its part in place already.
            Role::RootSends => self.ranks - 1,
            Role::RootReceives => 1,
            _ => self.ranks,
        };
        self.buffer(shape.output) * receivers
    }

    /// Returns the factor of this rank's input, or `None` if the reduction has no factor.
    pub(super) fn factor(&self) -> Option<Factor> {
        self.reduction.and_then(|reduction| reduction.factor(self.data_type, self.ranks))
    }

    pub(super) fn header(&self) -> CallHeader {
        CallHeader::Collective {
            function: self.function,
            data_type: self.data_type.raw().0 as u8,
            reduction: self.reduction.map_or(CallHeader::NO_REDUCTION, Reduction::number),
            root: self.root as u32,
            count: self.count as u64,
            is_grouped: self.is_grouped,
        }
    }
}

impl Task {
    pub(super) fn sources(self, ranks: usize) -> impl Iterator<Item = usize> {
        (0..self.sources).map(move |index| self.source(index, ranks))
    }

    #[inline]
    pub(super) fn source(self, index: usize, ranks: usize) -> usize {
        let rank = self.first + index;
        if rank < ranks { rank } else { rank - ranks }
    }

    pub(super) fn targets(self, ranks: usize) -> impl Iterator<Item = usize> {
        self.target.map_or(0..ranks, |target| target..target + 1)
    }
}

#[derive(Clone, Copy)]
pub(super) struct LocalCall<'a> {
    pub(super) context: CallContext<'a>,
    pub(super) send: ReadBuf,
    pub(super) recv: WriteBuf,
}

#[derive(Clone, Copy)]
pub(super) struct RankArgs {
    pub(super) send: RemoteBuffer,
    pub(super) recv: RemoteBuffer,
    pub(super) factor: Option<Factor>,
}

impl RankArgs {
    #[inline]
    pub(super) fn new(call: &Call, local: &LocalCall<'_>, for_others: bool) -> Self {
        let other_processes = for_others && !local.context.state.is_one_process();
        Self {
            send: RemoteBuffer::new(local.send, other_processes),
            recv: RemoteBuffer::new(local.recv.as_read(), other_processes),
            factor: call.factor(),
        }
    }

    /// Returns whether the rank does not share its memory with other ranks. Otherwise it has published at least one buffer.
    pub(super) fn is_private(&self) -> bool {
        !self.send.is_published() && !self.recv.is_published()
    }

    pub(super) fn to_words(self) -> [u64; RANK_ARGS] {
        let mut words = [0; RANK_ARGS];
        words[..4].copy_from_slice(&self.send.to_words());
        words[4..8].copy_from_slice(&self.recv.to_words());
        words[8] = self.factor.map_or(0, |Factor(bytes)| u64::from_ne_bytes(bytes));
        words
    }

    /// Decodes the words that another rank published. Either all ranks have a factor, or none has.
    pub(super) fn from_words([a, b, c, d, e, f, g, h, factor]: [u64; RANK_ARGS], has_factor: bool) -> Self {
        Self {
            send: RemoteBuffer::from_words([a, b, c, d]),
            recv: RemoteBuffer::from_words([e, f, g, h]),
            factor: has_factor.then_some(Factor(factor.to_ne_bytes())),
        }
    }
}
