//! The ranks of a thread: where they run, the memory for their buffers, and the data that they exchange between measurements.

use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher};
use std::mem::ManuallyDrop;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use anyhow::{Context, Result, ensure};
use bytemuck::cast_slice;
use libnccl::{Communicator, Config, DataType, Nccl, ReduceOp};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::memory::{Buffer, Memory};
use crate::bench::output::report;
use crate::bench::start::Job;
use crate::library;
use crate::system::{MEMORY_LIMITS, MEMORY_USES, System};

/// The maximum number of values that are reduced at a time.
const NUMBERS: usize = 1024;

/// The size in bytes of a record that ranks exchange about a measurement. The measured library sends the records, and may corrupt
/// them. Therefore, a record consists of several copies with checksums, and corrupt copies are ignored.
const RECORD: usize = COPIES * COPY;

const COPIES: usize = 3;

/// The size of a copy in bytes: a checksum, the length of the text, and the text.
const COPY: usize = 1024;

const HEADER: usize = size_of::<u64>() + size_of::<u16>();

pub(crate) struct Rank {
    /// Not dropped on failure: the other ranks would fail too, and one of their errors might be reported before the cause. The
    /// program exits with the first error.
    pub(crate) communicator: ManuallyDrop<Communicator>,
    pub(crate) memory: Memory,
    record: Buffer,
    records: Buffer,
    numbers: Buffer,
}

pub(crate) struct Ranks {
    pub(crate) nccl: Nccl,
    pub(crate) members: Vec<Rank>,
    /// See [`Job::operations`].
    pub(crate) operations: Option<Arc<AtomicU64>>,
}

impl Ranks {
    /// Creates the communicators of a thread's ranks, one for each of `memories`.
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
                record: memory.buffer(nccl, DataType::Uint8, RECORD)?,
                records: memory.buffer(nccl, DataType::Uint8, RECORD * size)?,
                numbers: memory.buffer(nccl, DataType::Uint64, NUMBERS)?,
                memory,
            })
        });
        let members = members.collect::<Result<_>>()?;
        Ok(Self { nccl: nccl.clone(), members, operations: job.operations.clone() })
    }

    pub(crate) fn first(&self) -> usize {
        self.members.first().map_or(0, |member| member.communicator.rank())
    }

    pub(crate) fn synchronize(&self) -> Result<()> {
        self.members.iter().try_for_each(|member| member.memory.synchronize(&member.communicator))
    }

    pub(crate) fn barrier(&mut self) -> Result<()> {
        self.reduce_numbers(1, ReduceOp::Max)
    }

    /// Gathers a record of each rank. `own` has the records of this thread's ranks.
    pub(crate) fn gather<R: Serialize + DeserializeOwned>(&mut self, own: &[R]) -> Result<Vec<R>> {
        for (member, record) in self.members.iter_mut().zip(own) {
            member.record.write(0, &encode(record)?)?;
        }
        self.nccl.try_group(|group| {
            self.members.iter_mut().try_for_each(|Rank { communicator, memory, record, records, .. }| {
                let bytes = RECORD * communicator.size();
                let (send, recv) = (record.part(0..RECORD)?, records.part_mut(0..bytes)?);
                anyhow::Ok(communicator.all_gather(send, recv, group.stream(memory.stream()))?)
            })
        })?;
        self.synchronize()?;
        let member = self.members.first().context("a thread without ranks")?;
        let records = member.records.read(0..RECORD * member.communicator.size())?;
        let decode = |(rank, bytes)| decode(bytes).with_context(|| format!("rank {rank}"));
        records.chunks_exact(RECORD).enumerate().map(decode).collect()
    }

    /// Reduces the values of all ranks. A thread's ranks share `own`, whose length must be the same on all threads.
    pub(crate) fn reduce(&mut self, own: &[u64], op: ReduceOp) -> Result<Vec<u64>> {
        let mut reduced = Vec::with_capacity(own.len());
        for part in own.chunks(NUMBERS) {
            self.members.iter_mut().try_for_each(|member| member.numbers.write(0, cast_slice(part)))?;
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

    pub(crate) fn describe(&mut self) -> Result<Vec<Description>> {
        self.gather(&self.members.iter().map(describe).collect::<Result<Vec<_>>>()?)
    }

    pub(crate) fn destroy(self) -> Result<()> {
        let own = |member: Rank| ManuallyDrop::into_inner(member.communicator);
        let mut communicators: Vec<Communicator> = self.members.into_iter().map(own).collect();
        match communicators.pop() {
            Some(only) if communicators.is_empty() => Ok(only.destroy()?),
            // If destroyed one after the other, ranks of one thread would wait for each other. A drop does not wait.
            _ => Ok(()),
        }
    }
}

fn encode(record: &impl Serialize) -> Result<Vec<u8>> {
    let text = serde_json::to_vec(record)?;
    ensure!(text.len() <= COPY - HEADER, "a record of {} bytes is longer than {}", text.len(), COPY - HEADER);
    let mut content = (text.len() as u16).to_le_bytes().to_vec();
    content.extend(text);
    let mut copy = checksum(&content).to_le_bytes().to_vec();
    copy.extend(content);
    copy.resize(COPY, 0);
    Ok(copy.repeat(COPIES))
}

fn decode<R: DeserializeOwned>(bytes: &[u8]) -> Result<R> {
    let text = bytes.chunks_exact(COPY).find_map(intact);
    serde_json::from_slice(text.context("its record arrived damaged")?).context("its record cannot be read")
}

fn intact(copy: &[u8]) -> Option<&[u8]> {
    let (expected, content) = copy.split_first_chunk()?;
    let (length, text) = content.split_first_chunk()?;
    let length = usize::from(u16::from_le_bytes(*length));
    let is_intact = checksum(content.get(..size_of::<u16>() + length)?) == u64::from_le_bytes(*expected);
    text.get(..length).filter(|_| is_intact)
}

fn checksum(content: &[u8]) -> u64 {
    BuildHasherDefault::<DefaultHasher>::default().hash_one(content)
}

#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Description {
    pub(crate) rank: report::Rank,
    pub(crate) device: i32,
    /// The available bytes of host memory; `None` if the rank uses a GPU's memory.
    host_bytes: Option<u64>,
    device_bytes: u64,
}

fn describe(rank: &Rank) -> Result<Description> {
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_else(|_| "localhost".into());
    let device = rank.memory.device()?;
    // The CUDA emulation's devices use host memory.
    let has_host_memory = device.is_none() || library::emulation().is_some();
    Ok(Description {
        // Limited by the size of a record.
        rank: report::Rank {
            rank: rank.communicator.rank(),
            host: host.trim().chars().take(64).collect(),
            pid: std::process::id(),
            device: device.map(|name| name.chars().take(128).collect()),
        },
        device: rank.communicator.device(),
        host_bytes: if has_host_memory { free_host_bytes(&System::here()) } else { None },
        device_bytes: u64::try_from(rank.memory.free_bytes()?)?,
    })
}

/// Returns the number of bytes that each rank may allocate: the smallest of the ranks' shares of free memory.
///
/// The ranks on a GPU or host share its free memory equally. Some is left for NCCL and other programs: on a GPU, 1/16 but at most
/// 4 GiB, as in nccl-tests; on a host, 1/4.
pub(crate) fn available_bytes(ranks: &[Description]) -> u64 {
    let shares = ranks.iter().map(|Description { rank, host_bytes, device_bytes, .. }| {
        let on_host = ranks.iter().filter(|other| other.rank.host == rank.host);
        let on_device = on_host.clone().filter(|other| other.rank.device == rank.device).count() as u64;
        let on_host = on_host.count() as u64;
        let host = host_bytes.map_or(u64::MAX, |bytes| (bytes - bytes / 4) / on_host);
        let usable = device_bytes - (device_bytes / 16).min(4 << 30);
        let device = rank.device.as_ref().map_or(u64::MAX, |_| usable / on_device);
        host.min(device)
    });
    shares.min().unwrap_or(u64::MAX)
}

/// Returns the available bytes of host memory: the minimum over the host and this process's control groups.
fn free_host_bytes(system: &System) -> Option<u64> {
    let host = number_after(&system.read("/proc/meminfo")?, "MemAvailable:").map(|kib| kib * 1024);
    let groups = system.control_groups("memory");
    groups.iter().filter_map(|group| free_bytes_of_group(system, group)).chain(host).min()
}

fn free_bytes_of_group(system: &System, group: &Path) -> Option<u64> {
    // Without a limit: "max", or in version 1 a number greater than any host's memory.
    let limit = system.number(group, &MEMORY_LIMITS)?;
    let stat = system.read(group.join("memory.stat"))?;
    // Version 1 has the second key too, but there it excludes child groups.
    let cache = number_after(&stat, "total_inactive_file").or(number_after(&stat, "inactive_file"));
    let used = system.number(group, &MEMORY_USES)?.saturating_sub(cache.unwrap_or(0));
    Some(limit.saturating_sub(used))
}

fn number_after(text: &str, name: &str) -> Option<u64> {
    let mut lines = text.lines().map(str::split_whitespace);
    lines.find_map(|mut words| (words.next()? == name).then(|| words.next()?.parse().ok())?)
}

#[cfg(test)]
#[path = "../../../tests/unit/bench_ranks.rs"]
mod tests;
