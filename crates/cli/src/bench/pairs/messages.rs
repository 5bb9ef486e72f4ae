//! The messages that a pair exchanges.

use std::time::Instant;

use anyhow::Result;

use super::arguments::PairsArguments;
use super::matrix::{Link, Pairs};
use crate::bench::measure::endpoint::{Endpoint, Wrong};
use crate::bench::start::job::Member;

/// The measurements of a link. The best counts, as other work of the machine makes the others worse and none better.
const BATCHES: usize = 10;

/// The elements of a message whose time is the latency: 8 bytes.
const SHORT: usize = 2;

/// The values of a link that its two ranks know.
const VALUES: usize = 6;

/// Measures all pairs. Returns them on rank 0, which prints.
pub(crate) fn pairs(member: &Member, arguments: &PairsArguments) -> Result<Option<Pairs>> {
    let bytes = arguments.size.unwrap_or(if member.gpus == 0 { 4 << 20 } else { 64 << 20 });
    let elements = (usize::try_from(bytes)? / size_of::<f32>()).max(SHORT);
    let messages = (arguments.iters as usize).div_ceil(BATCHES);
    let mut endpoint = Endpoint::new(member, elements, None)?;
    let (own, size) = (member.rank, member.size);
    let device = endpoint.device()?;
    // For each peer.
    let mut values = vec![[0.0; VALUES]; size];
    for low in 0..size {
        for high in low + 1..size {
            endpoint.barrier()?;
            let peer = match own {
                rank if rank == low => high,
                rank if rank == high => low,
                _ => continue,
            };
            values[peer] = pair(&mut endpoint, peer, elements, messages)?;
        }
    }
    let all = endpoint.gather(values.as_flattened())?;
    let links = (0..size).map(|from| {
        let link = |to: usize| {
            let of = |rank: usize, peer: usize, value: usize| all[rank][peer * VALUES + value];
            let (low, high) = (from.min(to), from.max(to));
            (from != to).then(|| Link {
                latency_us: of(low, high, 0),
                median_latency_us: of(low, high, 1),
                bandwidth: of(from, to, 2),
                median_bandwidth: of(from, to, 3),
                // The receiver has counted.
                wrong: of(to, from, 4) as u64,
                first_wrong: (of(to, from, 4) > 0.0).then(|| of(to, from, 5) as u64),
            })
        };
        (0..size).map(link).collect()
    });
    let links: Vec<Vec<Option<Link>>> = links.collect();
    let library = format!("{} ({})", endpoint.nccl.version(), endpoint.nccl.backend());
    endpoint.destroy()?;
    let bytes = (elements * size_of::<f32>()) as u64;
    let iters = messages * BATCHES;
    Ok((own == 0).then(|| Pairs::new(library, device, member.launch.clone(), bytes, iters, links)))
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
