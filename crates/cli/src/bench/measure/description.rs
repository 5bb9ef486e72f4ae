//! The ranks of a job: where they run, and the memory that their buffers may take.

use std::path::Path;

use anyhow::Result;
use serde::{Deserialize, Serialize};

use super::ranks::{Rank, Ranks};
use crate::bench::output::report;
use crate::gpu;
use crate::system::{MEMORY_LIMITS, MEMORY_USES, System};

#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Description {
    pub(crate) rank: report::Rank,
    pub(crate) device: i32,
    /// The free bytes of the host, unless the ranks use the memory of GPUs.
    host_bytes: Option<u64>,
    device_bytes: u64,
}

impl Ranks {
    pub(crate) fn describe(&mut self) -> Result<Vec<Description>> {
        let own = self.members.iter().map(describe).collect::<Result<Vec<_>>>()?;
        self.gather(&own)
    }
}

fn describe(rank: &Rank) -> Result<Description> {
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_else(|_| "localhost".into());
    let device = rank.memory.device()?;
    // The devices of the CUDA emulation have their memory from the host.
    let has_host_memory = device.is_none() || gpu::stand_in().is_some();
    Ok(Description {
        // A record has room for so much.
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

/// Returns the bytes that each rank may allocate: the least share that a rank has of its GPU's or its host's free memory. The
/// ranks of a host, and those of a GPU, have equal shares. A part is left for NCCL and other programs: of a GPU's memory as in
/// nccl-tests, 1/16 but at most 4 GiB; of a host's, 1/4.
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

/// Returns the bytes of host memory that are available: on the host, and in each control group that this process is in.
fn free_host_bytes(system: &System) -> Option<u64> {
    let host = number_after(&system.read("/proc/meminfo")?, "MemAvailable:").map(|kib| kib * 1024);
    let groups = system.control_groups("memory");
    groups.iter().filter_map(|group| free_bytes_of_group(system, group)).chain(host).min()
}

fn free_bytes_of_group(system: &System, group: &Path) -> Option<u64> {
    // "max", or in version 1 more than any host has, without a limit.
    let limit = system.number(group, &MEMORY_LIMITS)?;
    let stat = system.read(group.join("memory.stat"))?;
    // Version 1 has the second too, without the groups below.
    let cache = number_after(&stat, "total_inactive_file").or(number_after(&stat, "inactive_file"));
    let used = system.number(group, &MEMORY_USES)?.saturating_sub(cache.unwrap_or(0));
    Some(limit.saturating_sub(used))
}

fn number_after(text: &str, name: &str) -> Option<u64> {
    let mut lines = text.lines().map(str::split_whitespace);
    lines.find_map(|mut words| (words.next()? == name).then(|| words.next()?.parse().ok())?)
}

#[cfg(test)]
#[path = "../../../tests/unit/description.rs"]
mod tests;
