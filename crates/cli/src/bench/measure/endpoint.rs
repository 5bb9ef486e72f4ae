//! A rank that exchanges messages with others, with its buffers.

use std::mem::ManuallyDrop;
use std::time::Duration;

use anyhow::{Context, Result};
use libnccl::{Communicator, Config, DataType, Nccl, ReduceOp};

use super::memory::{Buffer, Memory};
use crate::bench::start::job::Member;

/// The copies of what [`Endpoint::gather`] exchanges. The majority counts, as a rank that is looked for because it sends
/// wrong values sends these, too.
const COPIES: usize = 3;

/// A rank with a communicator of all ranks.
pub(crate) struct Endpoint {
    pub(crate) nccl: Nccl,
    /// Not dropped after an error: that would make the other ranks fail too, and one of their errors might be reported
    /// before the cause.
    pub(crate) communicator: ManuallyDrop<Communicator>,
    memory: Memory,
    /// The time that each call and its work may take.
    limit: Duration,
    elements: usize,
    send: Buffer,
    recv: Buffer,
    shared: Buffer,
}

/// The elements that were not received as they were sent.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(crate) struct Wrong {
    pub(crate) count: usize,
    /// The index of the first of them.
    pub(crate) first: usize,
    pub(crate) got: f32,
    pub(crate) expected: f32,
}

impl Endpoint {
    /// Creates the communicator of a member and buffers of `elements` elements. A call that takes longer than `limit` fails.
    pub(crate) fn new(member: &Member, elements: usize, limit: Option<Duration>) -> Result<Self> {
        let config = limit.map_or_else(Config::new, |limit| Config::new().timeout(limit));
        let Member { nccl, id, rank, local_rank, size, gpus, .. } = member;
        let memory = Memory::of(*local_rank, *gpus, false)?;
        Ok(Self {
            communicator: ManuallyDrop::new(nccl.communicator(*size, *rank, id).config(&config).init()?),
            elements,
            send: memory.buffer(nccl, DataType::Float32, elements)?,
            recv: memory.buffer(nccl, DataType::Float32, elements)?,
            shared: memory.buffer(nccl, DataType::Float32, 1)?,
            nccl: nccl.clone(),
            memory,
            limit: limit.unwrap_or(Duration::MAX),
        })
    }

    pub(crate) fn rank(&self) -> usize {
        self.communicator.rank()
    }

    pub(crate) fn size(&self) -> usize {
        self.communicator.size()
    }

    /// Returns the number of elements of the buffers.
    pub(crate) fn elements(&self) -> usize {
        self.elements
    }

    pub(crate) fn is_on_host(&self) -> bool {
        matches!(self.memory, Memory::Host)
    }

    /// Returns the address and the name of the GPU, or `host memory`.
    pub(crate) fn device(&self) -> Result<String> {
        Ok(self.memory.device()?.unwrap_or_else(|| "host memory".into()))
    }

    pub(crate) fn send(&self, count: usize, peer: usize) -> Result<()> {
        Ok(self.communicator.send(self.send.part(0..count)?, peer, self.memory.stream())?)
    }

    pub(crate) fn recv(&mut self, count: usize, peer: usize) -> Result<()> {
        Ok(self.communicator.recv(self.recv.part_mut(0..count)?, peer, self.memory.stream())?)
    }

    /// Sums the first `count` elements of what the ranks of `communicator` have filled in.
    pub(crate) fn all_reduce(&mut self, communicator: &Communicator, count: usize) -> Result<()> {
        let (send, recv) = (self.send.part(0..count)?, self.recv.part_mut(0..count)?);
        Ok(communicator.all_reduce(send, recv, ReduceOp::Sum, self.memory.stream())?)
    }

    /// Waits until the work on a communicator has ended. One that fails or takes too long is aborted, so that its work ends.
    pub(crate) fn synchronize(&self, communicator: &Communicator) -> Result<()> {
        let outcome = self.memory.synchronize_within(communicator, self.limit);
        if outcome.is_err() {
            // The cause is the error that is reported.
            let _ = communicator.abort_handle().abort();
        }
        outcome
    }

    /// Waits until the work on the communicator of all ranks has ended.
    pub(crate) fn wait(&self) -> Result<()> {
        self.synchronize(&self.communicator)
    }

    /// Waits until all ranks have come here.
    pub(crate) fn barrier(&mut self) -> Result<()> {
        self.communicator.barrier(self.shared.part_mut(0..1)?, self.memory.stream())?;
        self.wait()
    }

    /// Fills the first `count` elements to send, and clears those to receive.
    pub(crate) fn fill(&mut self, count: usize, element: impl Fn(usize) -> f32) -> Result<()> {
        let mut bytes = vec![0; count * size_of::<f32>()];
        for (index, bytes) in bytes.as_chunks_mut().0.iter_mut().enumerate() {
            *bytes = element(index).to_ne_bytes();
        }
        self.send.write(0, &bytes)?;
        self.recv.write(0, &(-1.0_f32).to_ne_bytes().repeat(count))
    }

    /// Compares the first `count` elements that were received.
    pub(crate) fn compare(&self, count: usize, expected: impl Fn(usize) -> f32) -> Result<Wrong> {
        let mut wrong = Wrong::default();
        for (index, bytes) in self.recv.read(0..count)?.as_chunks().0.iter().enumerate() {
            let (got, expected) = (f32::from_ne_bytes(*bytes), expected(index));
            if got != expected {
                if wrong.count == 0 {
                    wrong = Wrong { count: 0, first: index, got, expected };
                }
                wrong.count += 1;
            }
        }
        Ok(wrong)
    }

    /// Returns what each rank passes, the same number of values.
    pub(crate) fn gather(&mut self, values: &[f64]) -> Result<Vec<Vec<f64>>> {
        let (length, size) = (values.len(), self.size());
        let mut send = self.memory.buffer(&self.nccl, DataType::Float64, COPIES * length)?;
        let mut recv = self.memory.buffer(&self.nccl, DataType::Float64, COPIES * length * size)?;
        let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_ne_bytes()).collect();
        for copy in 0..COPIES {
            send.write(copy * length, &bytes)?;
        }
        let (from, to) = (send.part(0..COPIES * length)?, recv.part_mut(0..COPIES * length * size)?);
        self.communicator.all_gather(from, to, self.memory.stream())?;
        self.wait()?;
        let all = recv.read(0..COPIES * length * size)?;
        let all: Vec<_> = all.as_chunks().0.iter().map(|value| f64::from_ne_bytes(*value)).collect();
        let of_rank = |copies: &[f64]| -> Option<Vec<f64>> {
            (0..length)
                .map(|index| {
                    let [one, two, three] = [0, 1, 2].map(|copy| copies.get(copy * length + index).copied());
                    let is_same = |a: Option<f64>, b: Option<f64>| a.map(f64::to_bits) == b.map(f64::to_bits);
                    if is_same(one, two) || is_same(one, three) { one } else { two }
                })
                .collect()
        };
        all.chunks_exact(COPIES * length).map(of_rank).collect::<Option<_>>().context("no values")
    }

    /// Ends the communicator.
    pub(crate) fn destroy(self) -> Result<()> {
        Ok(ManuallyDrop::into_inner(self.communicator).destroy()?)
    }
}
