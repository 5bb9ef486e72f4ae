//! The messages that a pair exchanges.

use std::time::Instant;

use anyhow::Result;

use super::arguments::PairsArguments;
use super::matrix::{Link, Pairs};
use super::{Measured, lock};
use crate::bench::measure::endpoint::{Endpoint, Wrong};
use crate::bench::output::progress::Progress;
use crate::bench::start::job::Member;

/// The measurements of a link. The best counts, as other work of the machine makes the others worse and none better.
const BATCHES: usize = 10;

/// The elements of a message whose time is the latency: 8 bytes.
const SHORT: usize = 2;

/// The values of a link that its two ranks know.
const VALUES: usize = 6;

/// Measures all pairs, one after the other, which rank 0 puts into `measured`.
pub(crate) fn pairs(member: &Member, arguments: &PairsArguments, measured: &Measured) -> Result<()> {
    let bytes = arguments.size.unwrap_or(if member.gpus == 0 { 4 << 20 } else { 64 << 20 });
    let elements = (usize::try_from(bytes)? / size_of::<f32>()).max(SHORT);
    let messages = (arguments.iters as usize).div_ceil(BATCHES);
    let mut endpoint = Endpoint::new(member, elements, None)?;
    let (own, size) = (member.rank, member.size);
    let progress = (own == 0).then(|| {
        let bytes = (elements * size_of::<f32>()) as u64;
        let library = format!("{} ({})", member.nccl.version(), member.nccl.backend());
        let (device, launch) = (endpoint.device()?, member.launch.clone());
        let pairs = Pairs::new(library, device, launch, bytes, messages * BATCHES, size);
        let number = pairs.number() as u64;
        *lock(measured) = Some(pairs);
        anyhow::Ok(Progress::new(Some(number), "pairs", member.parent.as_deref()))
    });
    let progress = progress.transpose()?;
    endpoint.barrier()?;
    for low in 0..size {
        for high in low + 1..size {
            let values = match own {
                rank if rank == low => pair(&mut endpoint, high, elements, messages)?,
                rank if rank == high => pair(&mut endpoint, low, elements, messages)?,
                _ => [0.0; VALUES],
            };
            // The others wait for the pair, too.
            let all = endpoint.gather(&values)?;
            let Some(progress) = &progress else { continue };
            let link = |from: usize, to: usize| Link {
                latency_us: all[low][0],
                median_latency_us: all[low][1],
                bandwidth: all[from][2],
                median_bandwidth: all[from][3],
                // The receiver has counted.
                wrong: all[to][4] as u64,
                first_wrong: (all[to][4] > 0.0).then(|| all[to][5] as u64),
            };
            // A signal may have taken them.
            if let Some(pairs) = lock(measured).as_mut() {
                pairs.links[low][high] = Some(link(low, high));
                pairs.links[high][low] = Some(link(high, low));
            }
            progress.row(|| format!("ranks {low} and {high}"), || ());
        }
    }
    endpoint.destroy()
}

/// Measures this rank's side of a pair: the latency and the bandwidth of what it sends, best and median, and the wrong
/// elements that it receives, with the index of the first.
fn pair(endpoint: &mut Endpoint, peer: usize, elements: usize, messages: usize) -> Result<[f64; VALUES]> {
    let (own, is_first) = (endpoint.rank(), endpoint.rank() < peer);
    let element = |rank: usize| move |index: usize| ((index * 31 + rank * 7) % 251 + 1) as f32;
    endpoint.fill(elements, element(own))?;
    // NCCL connects at the first message.
    round_trip(endpoint, peer, is_first)?;
    let mut wrong = Wrong::default();
    for sends in [is_first, !is_first] {
        stream(endpoint, peer, elements, 1, sends)?;
        if !sends {
            endpoint.wait()?;
            wrong = endpoint.compare(elements, element(peer))?;
        }
    }
    let mut latencies = vec![];
    for _ in 0..BATCHES {
        let begin = Instant::now();
        for _ in 0..messages {
            round_trip(endpoint, peer, is_first)?;
        }
        endpoint.wait()?;
        latencies.push(begin.elapsed().as_secs_f64() * 1e6 / messages as f64 / 2.0);
    }
    let mut bandwidths = vec![];
    for sends in [is_first, !is_first] {
        for _ in 0..BATCHES {
            let begin = Instant::now();
            stream(endpoint, peer, elements, messages, sends)?;
            endpoint.wait()?;
            if sends {
                let bytes = (elements * size_of::<f32>() * messages) as f64;
                bandwidths.push(bytes / 1e9 / begin.elapsed().as_secs_f64());
            }
        }
    }
    latencies.sort_by(f64::total_cmp);
    bandwidths.sort_by(|one, two| two.total_cmp(one));
    Ok([
        latencies[0],
        latencies[BATCHES / 2],
        bandwidths[0],
        bandwidths[BATCHES / 2],
        wrong.count as f64,
        wrong.first as f64,
    ])
}

/// Sends a short message there and back.
fn round_trip(endpoint: &mut Endpoint, peer: usize, is_first: bool) -> Result<()> {
    if is_first {
        endpoint.send(SHORT, peer)?;
        endpoint.recv(SHORT, peer)
    } else {
        endpoint.recv(SHORT, peer)?;
        endpoint.send(SHORT, peer)
    }
}

/// Sends long messages, and receives a short one as the receipt; or the other side of it.
fn stream(endpoint: &mut Endpoint, peer: usize, elements: usize, messages: usize, sends: bool) -> Result<()> {
    for _ in 0..messages {
        if sends { endpoint.send(elements, peer) } else { endpoint.recv(elements, peer) }?;
    }
    if sends { endpoint.recv(SHORT, peer) } else { endpoint.send(SHORT, peer) }
}
