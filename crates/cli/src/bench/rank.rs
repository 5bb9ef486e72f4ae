//! The work of a rank, whether it is a thread or a process.

use std::io::{Stdout, stdout};
use std::mem::ManuallyDrop;
use std::ops::Range;
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use libnccl::{Communicator, DataType, Element, Nccl, ReduceOp, UniqueId};

use super::data::Data;
use super::memory::{Buffer, Memory};
use super::number::{Number, for_each_number};
use super::parameters::Parameters;
use super::pattern::Pattern;
use super::shape::Shape;
use super::table::{Measurement, Table};
use crate::bench::arguments::Operation;
use crate::gpu;

type Measure = fn(&mut Rank<'_>, &Parameters, Option<&mut Table<Stdout>>) -> Result<()>;

macro_rules! measures {
    ($($type:ty)*) => {
        [$((<$type>::DATA_TYPE, measure::<$type>)),*]
    };
}

/// The function that measures each data type.
const MEASURES: [(DataType, Measure); DataType::ALL.len()] = for_each_number!(measures);

/// Runs all measurements as rank `rank`, the one with the number `local_rank` on its host. Fails if results are wrong.
pub(crate) fn run(
    nccl: &Nccl,
    id: &UniqueId,
    rank: usize,
    local_rank: usize,
    parameters: &[Parameters],
) -> Result<()> {
    let wrong =
        measure_all(nccl, id, rank, local_rank, parameters).with_context(|| format!("rank {rank}"))?;
    ensure!(wrong == 0, "{wrong} elements are wrong");
    Ok(())
}

/// Returns the number of wrong elements on the rank that prints, 0 on the others.
fn measure_all(
    nccl: &Nccl,
    id: &UniqueId,
    rank: usize,
    local_rank: usize,
    parameters: &[Parameters],
) -> Result<u64> {
    let first = parameters.first().context("nothing to measure")?;
    let memory = Memory::of(local_rank, first.gpus)?;
    let mut rank = Rank {
        nccl,
        shared: memory.buffer(1)?,
        // Not dropped on failure: that would make the other ranks fail too, and one of their errors might be reported
        // before the cause. The program ends with the first error.
        communicator: ManuallyDrop::new(nccl.init_rank(first.ranks, rank, id)?),
        memory,
    };
    let mut table = rank.head(first)?;
    for parameters in parameters {
        let measure = MEASURES.iter().find(|(data_type, _)| *data_type == parameters.data_type);
        let (_, measure) = measure.with_context(|| format!("no Rust type for {}", parameters.data_type))?;
        measure(&mut rank, parameters, table.as_mut())?;
    }
    let wrong = table.map_or(Ok(0), Table::foot)?;
    ManuallyDrop::into_inner(rank.communicator).destroy()?;
    Ok(wrong)
}

/// A rank with its communicator.
struct Rank<'a> {
    nccl: &'a Nccl,
    communicator: ManuallyDrop<Communicator>,
    memory: Memory,
    /// The buffer of sums over all ranks.
    shared: Buffer<f64>,
}

/// The measurement of one data type and reduction.
struct Work<'w, 'a, T> {
    rank: &'w mut Rank<'a>,
    parameters: &'w Parameters,
    send: Buffer<T>,
    recv: Buffer<T>,
}

/// Measures all sizes of one data type and reduction, a row each.
fn measure<T: Number>(
    rank: &mut Rank<'_>,
    parameters: &Parameters,
    mut table: Option<&mut Table<Stdout>>,
) -> Result<()> {
    let largest = Shape::of(parameters, parameters.max_bytes)?.total();
    let (send, recv) = (rank.memory.buffer::<T>(largest)?, rank.memory.buffer::<T>(largest)?);
    let mut work = Work { rank, parameters, send, recv };
    for bytes in [parameters.max_bytes, parameters.min_bytes] {
        let shape = Shape::of(parameters, bytes)?;
        work.repeat(parameters.warmup_iters, &shape, false)?;
    }
    for (row, bytes) in parameters.sizes().enumerate() {
        let shape = Shape::of(parameters, bytes)?;
        let out_of_place = work.measurement(&shape, false, 2 * row)?;
        // Sendrecv has no in-place form: the buffer sent would be overwritten.
        let in_place = match parameters.operation {
            Operation::SendRecv => None,
            _ => Some(work.measurement(&shape, true, 2 * row + 1)?),
        };
        if let Some(table) = &mut table {
            table.row(parameters, &shape, out_of_place, in_place)?;
        }
    }
    Ok(())
}

impl Rank<'_> {
    /// Returns the table with its head on rank 0, which prints; `None` on the others.
    fn head(&mut self, parameters: &Parameters) -> Result<Option<Table<Stdout>>> {
        let ranks = self.descriptions()?;
        if self.communicator.rank() != 0 {
            return Ok(None);
        }
        let library = format!("{} ({})", self.nccl.version(), self.nccl.backend());
        let stand_in = if parameters.gpus > 0 { gpu::stand_in() } else { None };
        let mut table = Table::new(stdout());
        table.head(&library, stand_in.as_ref(), parameters, &ranks)?;
        Ok(Some(table))
    }

    /// Gathers the description of each rank.
    fn descriptions(&mut self) -> Result<Vec<String>> {
        const LENGTH: usize = 160;
        let Self { memory, communicator, .. } = self;
        let host =
            std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_else(|_| "localhost".into());
        let mut own = format!(
            "Rank {:2} Group  0 Pid {:6} on {:>10} device {:2} {}",
            communicator.rank(),
            std::process::id(),
            host.trim(),
            communicator.device(),
            memory.describe()?,
        )
        .into_bytes();
        own.resize(LENGTH, 0);
        let mut send = memory.buffer::<u8>(LENGTH)?;
        let mut recv = memory.buffer::<u8>(LENGTH * communicator.size())?;
        send.write(0, &own)?;
        communicator.all_gather(
            send.first(LENGTH),
            recv.first_mut(LENGTH * communicator.size()),
            memory.stream(),
        )?;
        memory.synchronize(communicator)?;
        let all = recv.read(0..LENGTH * communicator.size())?;
        let text = |one: &[u8]| String::from_utf8_lossy(one).trim_end_matches('\0').to_owned();
        Ok(all.chunks_exact(LENGTH).map(text).collect())
    }

    /// Returns the sum of all ranks' values.
    fn sum(&mut self, value: f64) -> Result<f64> {
        self.shared.write(0, &[value])?;
        let shared = self.shared.first_mut(1);
        self.communicator.all_reduce_in_place(shared, ReduceOp::Sum, self.memory.stream())?;
        self.memory.synchronize(&self.communicator)?;
        self.shared.read(0..1)?.first().copied().context("no sum")
    }
}

impl<T: Number> Work<'_, '_, T> {
    fn measurement(&mut self, shape: &Shape, in_place: bool, seed: usize) -> Result<Measurement> {
        let Parameters { op, ranks, iters, check, .. } = *self.parameters;
        let data = Data { op, ranks, seed };
        self.fill(shape, in_place, &data)?;
        self.repeat(1, shape, in_place)?;
        self.rank.sum(0.0)?; // A barrier.
        let start = Instant::now();
        self.repeat(iters, shape, in_place)?;
        let seconds = start.elapsed().as_secs_f64() / f64::from(iters);
        let seconds = self.rank.sum(seconds)? / ranks as f64;
        let wrong = if check {
            // The buffer is filled again, because in-place operations have overwritten it.
            self.fill(shape, in_place, &data)?;
            self.repeat(1, shape, in_place)?;
            let wrong = self.wrong(shape, in_place, &data)?;
            Some(self.rank.sum(wrong as f64)? as u64)
        } else {
            None
        };
        Ok(Measurement { seconds, wrong })
    }

    fn repeat(&mut self, times: u32, shape: &Shape, in_place: bool) -> Result<()> {
        for _ in 0..times {
            self.start(shape, in_place)?;
        }
        self.rank.memory.synchronize(&self.rank.communicator)
    }

    fn start(&mut self, shape: &Shape, in_place: bool) -> libnccl::Result<()> {
        let Parameters { operation, op, root, ranks, .. } = *self.parameters;
        let (comm, stream) = (&*self.rank.communicator, self.rank.memory.stream());
        let send = self.send.first(shape.send);
        let recv = self.recv.first_mut(if in_place { shape.total() } else { shape.recv });
        match (operation, in_place) {
            (Operation::AllReduce, false) => comm.all_reduce(send, recv, op, stream),
            (Operation::AllReduce, true) => comm.all_reduce_in_place(recv, op, stream),
            (Operation::Broadcast, false) => comm.broadcast(send, recv, root, stream),
            (Operation::Broadcast, true) => comm.broadcast_in_place(recv, root, stream),
            (Operation::Reduce, false) => comm.reduce(send, recv, op, root, stream),
            (Operation::Reduce, true) => comm.reduce_in_place(recv, op, root, stream),
            (Operation::AllGather, false) => comm.all_gather(send, recv, stream),
            (Operation::AllGather, true) => comm.all_gather_in_place(recv, stream),
            (Operation::ReduceScatter, false) => comm.reduce_scatter(send, recv, op, stream),
            (Operation::ReduceScatter, true) => comm.reduce_scatter_in_place(recv, op, stream),
            (Operation::SendRecv, _) => self.rank.nccl.group(|group| {
                group.send(comm, send, (comm.rank() + 1) % ranks, stream)?;
                group.recv(comm, recv, (comm.rank() + ranks - 1) % ranks, stream)
            }),
        }
    }

    /// Writes the data to send, and a different pattern where data will be received.
    fn fill(&mut self, shape: &Shape, in_place: bool, data: &Data) -> Result<()> {
        let rank = self.rank.communicator.rank();
        let sent = data.sent(rank);
        self.recv.fill(0..shape.total(), &Pattern::untouched())?;
        if in_place {
            self.recv.fill(shape.sent_in_place(rank), &sent)
        } else {
            self.send.fill(0..shape.send, &sent)
        }
    }

    /// Returns the number of wrong elements on this rank.
    fn wrong(&self, shape: &Shape, in_place: bool, data: &Data) -> Result<usize> {
        let rank = self.rank.communicator.rank();
        let start = if in_place { shape.received_in_place(rank).start } else { 0 };
        let expected = self.expected(shape, in_place, data).into_iter();
        expected.map(|(part, pattern)| self.recv.wrong(start + part.start..start + part.end, &pattern)).sum()
    }

    /// Returns the ranges that this rank receives, with their expected elements.
    fn expected(&self, shape: &Shape, in_place: bool, data: &Data) -> Vec<(Range<usize>, Pattern<T>)> {
        let Parameters { operation, root, ranks, .. } = *self.parameters;
        let rank = self.rank.communicator.rank();
        let count = shape.count;
        let all = |pattern| vec![(0..count, pattern)];
        match operation {
            Operation::AllReduce => all(data.reduced()),
            Operation::Broadcast => all(data.sent(root)),
            Operation::Reduce if rank == root => all(data.reduced()),
            // The receive buffer stays unchanged.
            Operation::Reduce if in_place => all(data.sent(rank)),
            Operation::Reduce => all(Pattern::untouched()),
            Operation::AllGather => {
                (0..ranks).map(|from| (from * count..(from + 1) * count, data.sent(from))).collect()
            }
            Operation::ReduceScatter => all(data.reduced().from(rank * count)),
            Operation::SendRecv => all(data.sent((rank + ranks - 1) % ranks)),
        }
    }
}
