//! The calls of NCCL that make up an operation.

use anyhow::{Context, Result};
use libnccl::buffer::AnyElement;
use libnccl::{Nccl, OnStream, Operator, PreMulSum, ReduceOp, Slice, SliceMut};

use super::buffers::Buffers;
use super::ranks::Rank;
use super::shape::{Case, Shape};
use crate::bench::benchmark::Benchmark;
use crate::bench::data::reduction::Reduction;
use crate::bench::parameters::Parameters;

/// Starts an operation on a rank, whose in-place form uses `recv` alone. `mul_sum` is the rank's sum of products, if that is
/// the reduction.
///
/// A library without `ncclAlltoAll`, `ncclGather` and `ncclScatter` gets sends and receives instead, as from nccl-tests.
pub(crate) fn start<'b, 'c>(
    on: OnStream<'b, 'c>,
    case: Case<'_>,
    member: &'c Rank,
    mul_sum: Option<&'b PreMulSum<'static, AnyElement>>,
    (send, recv): (Slice<'b, AnyElement>, SliceMut<'b, AnyElement>),
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
    let mut recv = recv;
    if in_place && benchmark.has_parts() && benchmark.operation().has_root() && rank != root {
        // What a rank other than the root has of the buffer.
        recv =
            recv.get_mut(rank * shape.count..(rank + 1) * shape.count).context("the buffer is too short")?;
    }
    match benchmark {
        Benchmark::AllToAllV => {
            let (mut sent, mut rest) = (0, recv);
            for peer in 0..ranks {
                let (to, from) = (shape.part(rank, peer), shape.part(peer, rank));
                if to > 0 {
                    let part = send.get(sent..sent + to).context("the buffer is too short")?;
                    comm.send(part, peer, on)?;
                    sent += to;
                }
                if from > 0 {
                    let (part, after) = rest.split_at_mut(from).context("the buffer is too short")?;
                    comm.recv(part, peer, on)?;
                    rest = after;
                }
            }
        }
        Benchmark::SendRecv => {
            comm.send(send, (rank + 1) % ranks, on)?;
            comm.recv(recv, (rank + ranks - 1) % ranks, on)?;
        }
        // Several groups: see `hypercube`.
        Benchmark::HyperCube => {}
        _ => benchmark.start(comm, (send, recv), in_place, op, root, on)?,
    }
    Ok(())
}

/// Gathers all ranks' parts at every rank: in each step, a rank and its neighbour along one edge of the hypercube exchange
/// all parts that they have.
pub(crate) fn hypercube(
    nccl: &Nccl,
    member: &Rank,
    buffers: &mut Buffers,
    start: usize,
    case: Case<'_>,
) -> Result<()> {
    let Case { shape: &Shape { count, .. }, in_place, .. } = case;
    let (rank, ranks, stream) =
        (member.communicator.rank(), member.communicator.size(), member.memory.stream());
    if !in_place {
        buffers.recv.enqueue_copy(start + rank * count, &buffers.send, start..start + count)?;
    }
    let mut parts = 1;
    while parts < ranks {
        let neighbour = rank ^ parts;
        // The first of the parts that a rank has in this step.
        let [own, other] = [rank, neighbour].map(|rank| {
            let first = start + rank / parts * parts * count;
            first..first + parts * count
        });
        let (own, other) = buffers.recv.parts(own, other)?;
        nccl.group(|group| {
            member.communicator.send(own, neighbour, group.stream(stream))?;
            member.communicator.recv(other, neighbour, group.stream(stream))
        })?;
        parts *= 2;
    }
    Ok(())
}
