//! The ranks that a thread drives, and the data that they exchange besides the measured operations.

use std::mem::ManuallyDrop;

use anyhow::{Context, Result};
use libnccl::{Communicator, Config, DataType, Nccl, ReduceOp};
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::memory::{Buffer, Memory};
use super::record;
use crate::bench::start::Job;

/// The number of numbers that are reduced at a time.
const NUMBERS: usize = 1024;

pub(crate) struct Rank {
    /// Not dropped on failure: that would make the other ranks fail too, and one of their errors might be reported before
    /// the cause. The program ends with the first error.
    pub(crate) communicator: ManuallyDrop<Communicator>,
    pub(crate) memory: Memory,
    record: Buffer,
    records: Buffer,
    numbers: Buffer,
}

pub(crate) struct Ranks {
    pub(crate) nccl: Nccl,
    pub(crate) members: Vec<Rank>,
}

impl Ranks {
    /// Creates the communicators of a thread's ranks, which have these memories.
    pub(crate) fn new(job: &Job, thread: usize, memories: Vec<Memory>, config: &Config) -> Result<Self> {
        let Job { nccl, id, size, .. } = job;
        let first = job.rank(thread);
        let communicators = match &memories[..] {
            [memory] => {
                memory.make_current()?;
                vec![nccl.communicator(*size, first, id).config(config).init()?]
            }
            memories => {
                let pending = nccl.try_group(|group| {
                    let members = memories.iter().zip(first..);
                    let create = members.map(|(memory, rank)| {
                        memory.make_current()?;
                        Ok(nccl.communicator(*size, rank, id).config(config).init_in(group)?)
                    });
                    create.collect::<Result<Vec<_>>>()
                })?;
                pending.into_iter().map(|pending| pending.finish()).collect::<libnccl::Result<_>>()?
            }
        };
        let members = memories.into_iter().zip(communicators).map(|(memory, communicator)| {
            Ok(Rank {
                communicator: ManuallyDrop::new(communicator),
                record: memory.buffer(nccl, DataType::Uint8, record::BYTES)?,
                records: memory.buffer(nccl, DataType::Uint8, record::BYTES * size)?,
                numbers: memory.buffer(nccl, DataType::Uint64, NUMBERS)?,
                memory,
            })
        });
        Ok(Self { nccl: nccl.clone(), members: members.collect::<Result<_>>()? })
    }

    pub(crate) fn first(&self) -> usize {
        self.members.first().map_or(0, |member| member.communicator.rank())
    }

    /// Waits until all work of this thread's ranks has finished.
    pub(crate) fn synchronize(&self) -> Result<()> {
        self.members.iter().try_for_each(|member| member.memory.synchronize(&member.communicator))
    }

    pub(crate) fn barrier(&mut self) -> Result<()> {
        self.reduce_numbers(1, ReduceOp::Max)
    }

    /// Gathers a record of each rank. `own` has the records of this thread's ranks.
    pub(crate) fn gather<R: Serialize + DeserializeOwned>(&mut self, own: &[R]) -> Result<Vec<R>> {
        for (member, record) in self.members.iter_mut().zip(own) {
            member.record.write(0, &record::encode(record)?)?;
        }
        self.nccl.try_group(|group| {
            self.members.iter_mut().try_for_each(|Rank { communicator, memory, record, records, .. }| {
                let bytes = record::BYTES * communicator.size();
                let (send, recv) = (record.part(0..record::BYTES)?, records.part_mut(0..bytes)?);
                anyhow::Ok(communicator.all_gather(send, recv, group.stream(memory.stream()))?)
            })
        })?;
        self.synchronize()?;
        let member = self.members.first().context("a thread without ranks")?;
        let records = member.records.read(0..record::BYTES * member.communicator.size())?;
        let decode = |(rank, bytes)| record::decode(bytes).with_context(|| format!("rank {rank}"));
        records.chunks_exact(record::BYTES).enumerate().map(decode).collect()
    }

    /// Reduces numbers over all ranks. The ranks of a thread pass the same numbers, and all ranks equally many.
    pub(crate) fn reduce(&mut self, own: &[u64], op: ReduceOp) -> Result<Vec<u64>> {
        let mut reduced = Vec::with_capacity(own.len());
        for part in own.chunks(NUMBERS) {
            let bytes: Vec<u8> = part.iter().flat_map(|number| number.to_ne_bytes()).collect();
            for member in &mut self.members {
                member.numbers.write(0, &bytes)?;
            }
            self.reduce_numbers(part.len(), op)?;
            let member = self.members.first().context("a thread without ranks")?;
            let bytes = member.numbers.read(0..part.len())?;
            reduced.extend(bytes.as_chunks().0.iter().map(|number| u64::from_ne_bytes(*number)));
        }
        Ok(reduced)
    }

    fn reduce_numbers(&mut self, count: usize, op: ReduceOp) -> Result<()> {
        self.nccl.try_group(|group| {
            self.members.iter_mut().try_for_each(|Rank { communicator, memory, numbers, .. }| {
                let numbers = numbers.part_mut(0..count)?;
                anyhow::Ok(communicator.all_reduce_in_place(numbers, op, group.stream(memory.stream()))?)
            })
        })?;
        self.synchronize()
    }

    pub(crate) fn destroy(mut self) -> Result<()> {
        if self.members.len() == 1
            && let Some(member) = self.members.pop()
        {
            return Ok(ManuallyDrop::into_inner(member.communicator).destroy()?);
        }
        // Ranks of one thread would wait for each other if one was destroyed after the other: a drop does not wait.
        let communicators =
            self.members.into_iter().map(|member| ManuallyDrop::into_inner(member.communicator));
        drop(communicators.collect::<Vec<_>>());
        Ok(())
    }
}
