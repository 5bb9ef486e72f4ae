//! The measurement of an operation, by the ranks of a thread.

pub(crate) mod memory;
pub(crate) mod ranks;

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use cudarc::driver::CudaGraph;
use libnccl::buffer::AnyElement;
use libnccl::{Nccl, OnStream, Operator, PreMulSum, ReduceOp, Slice, SliceMut};
use rustix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};

use super::arguments::{Blocking, Procedure};
use super::benchmark::{Benchmark, Shape};
use super::data::{Arithmetic, Comparison, Data, FirstWrong, Reduction, factor};
use super::output::report::{Iterations, Measured};
use super::parameters::{Case, Parameters};
use super::statistics::{Times, iteration_columns, median};
use memory::{Buffers, Registrations};
use ranks::{Rank, Ranks};

const MAX_SINGLE_ITERATIONS: u32 = 10_000;

/// The maximum number of ranks that are delayed in turn. If there are more ranks, none is delayed.
const MAX_RANKS_IN_TURN: usize = 64;

/// The number of iterations that each rank begins after all others.
const TURNS: usize = 3;

/// Buffers of a data type on the ranks of a thread.
pub(crate) struct Work<'w> {
    pub(crate) ranks: &'w mut Ranks,
    buffers: Vec<Buffers>,
    arithmetic: Arithmetic,
    /// The number of elements in each buffer, counted from the first used one.
    length: usize,
    registrations: Registrations,
    /// Each rank's operator for [`Reduction::MulSum`]; empty until it is measured.
    mul_sums: Vec<PreMulSum<'static, AnyElement>>,
    /// True if all ranks are on one host, and thus have one clock.
    has_one_clock: bool,
}

#[derive(Debug, Clone)]
pub(crate) struct Measurement {
    pub(crate) measured: Measured,
    /// The first mismatch of each rank that has any.
    pub(crate) wrong: Vec<(usize, FirstWrong)>,
    /// The columns for single iterations, if they are to be printed.
    pub(crate) columns: Option<[f64; 4]>,
}

/// The result of one rank: times per operation, and mismatches.
#[derive(Debug, Serialize, Deserialize)]
struct Outcome {
    seconds: f64,
    cpu_seconds: f64,
    comparison: Option<Comparison>,
    iterations: Option<Iterations>,
}

impl<'w> Work<'w> {
    pub(crate) fn new(ranks: &'w mut Ranks, parameters: &Parameters, has_one_clock: bool) -> Result<Self> {
        let largest = parameters.shape(parameters.last_size())?.total();
        let Procedure { agg_iters, local_register, .. } = parameters.procedure;
        let too_large = || format!("{agg_iters} times {largest} elements exceed the address space");
        let length = largest.checked_mul(agg_iters as usize).with_context(too_large)?;
        let allocated = length.checked_add(parameters.unalign).with_context(too_large)?;
        let arithmetic = Arithmetic::new(parameters.data_type)?;
        let buffers = |member| Buffers::new(&ranks.nccl, member, parameters.data_type, allocated);
        let mut buffers = ranks.members.iter().map(buffers).collect::<Result<Vec<_>>>()?;
        let registrations = Registrations::new(ranks, &mut buffers, local_register)?;
        Ok(Self { ranks, buffers, arithmetic, length, registrations, mul_sums: vec![], has_one_clock })
    }

    /// Deregisters the buffers. All ranks must call this.
    pub(crate) fn finish(mut self) -> Result<()> {
        self.registrations.end(self.ranks, &mut self.buffers)
    }

    /// Creates the measured reduction if it is not built into NCCL, then runs the warm-up iterations of all sizes.
    pub(crate) fn warm_up(&mut self, parameters: &Parameters) -> Result<()> {
        if parameters.op() == Some(Reduction::MulSum) && self.mul_sums.is_empty() {
            let (data_type, size) = (parameters.data_type, parameters.data_type.size());
            let mul_sum = |Rank { communicator, .. }: &Rank| {
                let scalar = self.arithmetic.integer(factor(communicator.rank()));
                communicator.pre_mul_sum_any(data_type, &scalar[..size])
            };
            self.mul_sums = self.ranks.members.iter().map(mul_sum).collect::<libnccl::Result<_>>()?;
        }
        for bytes in parameters.warmup_sizes() {
            let case = Case { parameters, shape: parameters.shape(bytes)?, in_place: false };
            for iteration in 0..parameters.procedure.warmup_iters {
                self.iterate(case, iteration as usize, 1)?;
            }
            self.ranks.synchronize()?;
        }
        Ok(())
    }

    /// Measures an operation of one size. All ranks must call this.
    pub(crate) fn measure(&mut self, case: Case<'_>, seed: usize) -> Result<Measurement> {
        let Procedure { iters, agg_iters, cudagraph, .. } = case.parameters.procedure;
        self.fill(case, &self.data(case.parameters, seed))?;
        self.iterate(case, 0, 1)?;
        self.ranks.synchronize()?;
        self.ranks.barrier()?;
        let (elapsed, started) = if cudagraph > 0 { self.launch(case)? } else { self.repeat(case)? };
        let (mut times, mut columns) = (None, None);
        if case.parameters.iteration_times && cudagraph == 0 {
            let taken = self.times(case)?;
            let printed = &case.parameters.columns;
            if printed.per_iter_timing {
                let slowest = self.ranks.reduce(&taken.durations, ReduceOp::Max)?;
                let counted = slowest.get(printed.per_iter_skip as usize..).unwrap_or_default();
                columns = Some(iteration_columns(counted, agg_iters));
            }
            times = Some(taken);
        }
        let comparisons = self.check(case, seed)?;
        let operations = f64::from(iters) * f64::from(agg_iters) * f64::from(cudagraph.max(1));
        let first = self.ranks.first();
        let outcome = |member| Outcome {
            seconds: elapsed.as_secs_f64() / operations,
            cpu_seconds: started.as_secs_f64() / operations,
            comparison: comparisons.as_ref().and_then(|comparisons| comparisons.get(member).cloned()),
            iterations: times.as_ref().map(|times| times.summary(first + member, agg_iters)),
        };
        let outcomes: Vec<_> = (0..self.ranks.members.len()).map(outcome).collect();
        Ok(measurement(case, self.ranks.gather(&outcomes)?, columns))
    }

    fn data(&self, parameters: &Parameters, seed: usize) -> Data {
        Data { arithmetic: self.arithmetic, op: parameters.op, ranks: parameters.ranks, seed }
    }

    /// Runs all iterations, as nccl-tests does. Returns the measured time, and the time until the last operation was started.
    fn repeat(&mut self, case: Case<'_>) -> Result<(Duration, Duration)> {
        let Procedure { iters, agg_iters, blocking, .. } = case.parameters.procedure;
        let start = Instant::now();
        let mut counted = Duration::ZERO;
        for iteration in 0..iters as usize {
            let begin = Instant::now();
            self.iterate(case, iteration, agg_iters)?;
            match blocking {
                Blocking::None => {}
                Blocking::Wait => self.ranks.synchronize()?,
                Blocking::Barrier | Blocking::UncountedBarrier => {
                    self.ranks.synchronize()?;
                    counted += begin.elapsed();
                    self.ranks.barrier()?;
                }
            }
        }
        if blocking == Blocking::UncountedBarrier {
            return Ok((counted, counted));
        }
        let started = start.elapsed();
        self.ranks.synchronize()?;
        Ok((start.elapsed(), started))
    }

    /// Captures all iterations in one CUDA graph per rank, and launches the graphs. Returns the times as [`Self::repeat`] does.
    fn launch(&mut self, case: Case<'_>) -> Result<(Duration, Duration)> {
        let Procedure { iters, agg_iters, cudagraph, .. } = case.parameters.procedure;
        let graphs = self.capture(case, iters, agg_iters)?;
        self.ranks.barrier()?;
        let start = Instant::now();
        for _ in 0..cudagraph {
            graphs.iter().try_for_each(CudaGraph::launch)?;
        }
        let started = start.elapsed();
        self.ranks.synchronize()?;
        Ok((start.elapsed(), started))
    }

    fn capture(&mut self, case: Case<'_>, iterations: u32, operations: u32) -> Result<Vec<CudaGraph>> {
        self.ranks.members.iter().try_for_each(|member| member.memory.begin_capture())?;
        for iteration in 0..iterations as usize {
            self.iterate(case, iteration, operations)?;
        }
        self.ranks.members.iter().map(|member| member.memory.end_capture()).collect()
    }

    /// Measures single iterations: first without delays, then with each thread in turn delayed until all others have begun.
    fn times(&mut self, case: Case<'_>) -> Result<Times> {
        let iterations = case.parameters.procedure.iters.min(MAX_SINGLE_ITERATIONS) as usize;
        let (mut begins, mut times) = (Vec::with_capacity(iterations), Times::default());
        self.ranks.barrier()?;
        for iteration in 0..iterations {
            begins.push(now());
            times.durations.push(self.timed(case, iteration)?);
        }
        if self.has_one_clock {
            let first = self.ranks.reduce(&begins, ReduceOp::Min)?;
            times.delays =
                begins.iter().zip(first).map(|(begin, first)| begin.saturating_sub(first)).collect();
        }
        if (2..=MAX_RANKS_IN_TURN).contains(&case.parameters.ranks) {
            let own = self.ranks.first()..self.ranks.first() + self.ranks.members.len();
            // Within this delay, the others begin, and finish the work that does not depend on this rank.
            let delay = Duration::from_nanos(2 * median(&times.durations).unwrap_or_default() as u64)
                + Duration::from_micros(100);
            let turns = (0..TURNS).flat_map(|_| (0..case.parameters.ranks).step_by(own.len()));
            for (turn, rank) in turns.enumerate() {
                self.ranks.barrier()?;
                if own.contains(&rank) {
                    std::thread::sleep(delay);
                    times.last.push(self.timed(case, turn)?);
                } else {
                    self.timed(case, turn)?;
                }
            }
        }
        Ok(times)
    }

    fn timed(&mut self, case: Case<'_>, iteration: usize) -> Result<u64> {
        let begin = Instant::now();
        self.iterate(case, iteration, case.parameters.procedure.agg_iters)?;
        self.ranks.synchronize()?;
        Ok(u64::try_from(begin.elapsed().as_nanos())?)
    }

    /// Runs the operation again, and compares each rank's result. Returns `None` if results are not to be checked.
    fn check(&mut self, case: Case<'_>, seed: usize) -> Result<Option<Vec<Comparison>>> {
        let mut last: Option<Vec<Comparison>> = None;
        for check in 0..case.parameters.procedure.check {
            let counts: Vec<_> = last.iter().flatten().map(|comparison| comparison.wrong).collect();
            if check > 0 && self.ranks.gather(&counts)?.iter().any(|count| *count > 0) {
                break;
            }
            let data = self.data(case.parameters, seed + check as usize);
            // The buffer is filled again, because in-place operations have overwritten it.
            self.fill(case, &data)?;
            if case.parameters.procedure.cudagraph > 0 {
                self.capture(case, 1, 1)?.iter().try_for_each(CudaGraph::launch)?;
            } else {
                self.iterate(case, 0, 1)?;
            }
            self.ranks.synchronize()?;
            let compare = |buffers: &Buffers| buffers.compare(case, &data);
            last = Some(self.buffers.iter().map(compare).collect::<Result<Vec<_>>>()?);
        }
        Ok(last)
    }

    fn fill(&mut self, case: Case<'_>, data: &Data) -> Result<()> {
        self.buffers.iter_mut().try_for_each(|buffers| buffers.fill(case, data))
    }

    /// Starts the operations of an iteration on the ranks of the thread, in a group if there are several.
    ///
    /// As in nccl-tests, successive iterations use different parts of the buffers, so that the data is not in a cache.
    fn iterate(&mut self, case: Case<'_>, iteration: usize, operations: u32) -> Result<()> {
        if let Some(count) = &self.ranks.operations {
            count.fetch_add(1, Ordering::Relaxed);
        }
        let Case { parameters, shape, in_place } = case;
        let (total, operations) = (shape.total(), operations as usize);
        let places = self.length.checked_div(total * operations).unwrap_or(1).max(1);
        let start = parameters.unalign + iteration % places * total * operations;
        // Sends and receives must be called in a group.
        let needs_group = parameters.benchmark.operation().function == "ncclSend";
        let Self { ranks: Ranks { nccl, members, .. }, buffers, mul_sums, .. } = self;
        match (&members[..], &mut buffers[..]) {
            ([member], [buffers]) if parameters.benchmark == Benchmark::HyperCube => {
                hypercube(nccl, member, buffers, start, case)
            }
            ([member], [buffers]) if operations == 1 && !needs_group => {
                let send = buffers.send.part(start..start + shape.send)?;
                let recv = buffers.recv.part_mut(start..start + if in_place { total } else { shape.recv })?;
                let on = member.memory.stream().into();
                start_on(on, case, member, mul_sums.first(), (send, recv))
            }
            (members, buffers) => nccl.try_group(|group| {
                for (index, (member, buffers)) in members.iter().zip(buffers).enumerate() {
                    let Buffers { send, recv, .. } = buffers;
                    let mut rest = recv.part_mut(start..start + operations * total)?;
                    for operation in 0..operations {
                        let sent = start + operation * total;
                        let Some((part, after)) = rest.split_at_mut(total) else { break };
                        rest = after;
                        let length = if in_place { total } else { shape.recv };
                        let Some(recv) = part.get_mut(..length) else { break };
                        let on = group.stream(member.memory.stream());
                        let views = (send.part(sent..sent + shape.send)?, recv);
                        start_on(on, case, member, mul_sums.get(index), views)?;
                    }
                }
                Ok(())
            }),
        }
    }
}

fn measurement(case: Case<'_>, outcomes: Vec<Outcome>, columns: Option<[f64; 4]>) -> Measurement {
    let times: Vec<_> = outcomes.iter().map(|outcome| outcome.seconds).collect();
    let seconds = case.parameters.columns.average.of(&times);
    let bytes = case.shape.moved() * case.parameters.data_type.size();
    // With a time of 0, the bandwidth would be infinite, which JSON cannot express.
    let algbw = if seconds > 0.0 { bytes as f64 / 1e9 / seconds } else { 0.0 };
    let cpu_seconds = outcomes.first().map_or(0.0, |outcome| outcome.cpu_seconds);
    let measured = Measured {
        time_us: if case.parameters.columns.report_cputime { cpu_seconds } else { seconds } * 1e6,
        algbw,
        busbw: algbw * case.parameters.benchmark.bus_factor(case.parameters.ranks),
        wrong: outcomes.iter().map(|outcome| Some(outcome.comparison.as_ref()?.wrong as u64)).sum(),
        iterations: outcomes.iter().filter_map(|outcome| outcome.iterations.clone()).collect(),
    };
    let wrong = outcomes.into_iter().enumerate();
    let wrong = wrong.filter_map(|(rank, outcome)| Some((rank, outcome.comparison?.first?))).collect();
    Measurement { measured, wrong, columns }
}

/// Returns the time in nanoseconds of the monotonic clock, which all processes of a host share.
fn now() -> u64 {
    let time = clock_gettime(ClockId::Monotonic);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// Starts an operation on a rank. The in-place form uses only `recv`.
///
/// If the library lacks `ncclAlltoAll`, `ncclGather` or `ncclScatter`, uses sends and receives, as nccl-tests does.
fn start_on<'b, 'c>(
    on: OnStream<'b, 'c>,
    case: Case<'_>,
    member: &'c Rank,
    mul_sum: Option<&'b PreMulSum<'static, AnyElement>>,
    (send, mut recv): (Slice<'b, AnyElement>, SliceMut<'b, AnyElement>),
) -> Result<()> {
    let Case { parameters, shape, in_place } = case;
    let &Parameters { benchmark, root, ranks, .. } = parameters;
    let comm = &member.communicator;
    let rank = comm.rank();
    let op: Operator<'b, AnyElement> = match parameters.op() {
        // Nothing is reduced.
        None => ReduceOp::Sum.into(),
        Some(Reduction::Op(op)) => op.into(),
        Some(Reduction::MulSum) => mul_sum.context("the sum of products was not created")?.into(),
    };
    if in_place && benchmark.has_parts() && benchmark.operation().has_root() && rank != root {
        // The part of the buffer on a rank other than the root.
        recv =
            recv.get_mut(rank * shape.count..(rank + 1) * shape.count).context("the buffer is too short")?;
    }
    match (benchmark, in_place) {
        (Benchmark::AllReduce, false) => comm.all_reduce(send, recv, op, on)?,
        (Benchmark::AllReduce, true) => comm.all_reduce_in_place(recv, op, on)?,
        (Benchmark::Broadcast, false) => comm.broadcast(send, recv, root, on)?,
        (Benchmark::Broadcast, true) => comm.broadcast_in_place(recv, root, on)?,
        (Benchmark::Reduce, false) => comm.reduce(send, recv, op, root, on)?,
        (Benchmark::Reduce, true) => comm.reduce_in_place(recv, op, root, on)?,
        (Benchmark::AllGather, false) => comm.all_gather(send, recv, on)?,
        (Benchmark::AllGather, true) => comm.all_gather_in_place(recv, on)?,
        (Benchmark::ReduceScatter, false) => comm.reduce_scatter(send, recv, op, on)?,
        (Benchmark::ReduceScatter, true) => comm.reduce_scatter_in_place(recv, op, on)?,
        (Benchmark::AllToAll, _) => comm.all_to_all(send, recv, on)?,
        (Benchmark::Gather, false) => comm.gather(send, recv, root, on)?,
        (Benchmark::Gather, true) => comm.gather_in_place(recv, root, on)?,
        (Benchmark::Scatter, false) => comm.scatter(send, recv, root, on)?,
        (Benchmark::Scatter, true) => comm.scatter_in_place(recv, root, on)?,
        (Benchmark::AllToAllV, _) => {
            let (mut sent, mut rest) = (0, recv);
            for peer in 0..ranks {
                let (to, from) = (shape.part(rank, peer), shape.part(peer, rank));
                if to > 0 {
                    comm.send(send.get(sent..sent + to).context("the buffer is too short")?, peer, on)?;
                    sent += to;
                }
                if from > 0 {
                    let (part, after) = rest.split_at_mut(from).context("the buffer is too short")?;
                    comm.recv(part, peer, on)?;
                    rest = after;
                }
            }
        }
        (Benchmark::SendRecv, _) => {
            comm.send(send, (rank + 1) % ranks, on)?;
            comm.recv(recv, (rank + ranks - 1) % ranks, on)?;
        }
        // Several groups: see `hypercube`.
        (Benchmark::HyperCube, _) => {}
    }
    Ok(())
}

/// Gathers all ranks' parts: in each step, a rank exchanges its parts with the neighbor along one edge of the hypercube.
fn hypercube(nccl: &Nccl, member: &Rank, buffers: &mut Buffers, start: usize, case: Case<'_>) -> Result<()> {
    let Case { shape: Shape { count, .. }, in_place, .. } = case;
    let (rank, ranks, stream) =
        (member.communicator.rank(), member.communicator.size(), member.memory.stream());
    if !in_place {
        buffers.recv.enqueue_copy(start + rank * count, &buffers.send, start..start + count)?;
    }
    let mut parts = 1;
    while parts < ranks {
        let neighbor = rank ^ parts;
        // The first of a rank's parts in this step.
        let [own, other] = [rank, neighbor].map(|rank| {
            let first = start + rank / parts * parts * count;
            first..first + parts * count
        });
        let (own, other) = buffers.recv.parts(own, other)?;
        nccl.group(|group| {
            member.communicator.send(own, neighbor, group.stream(stream))?;
            member.communicator.recv(other, neighbor, group.stream(stream))
        })?;
        parts *= 2;
    }
    Ok(())
}
