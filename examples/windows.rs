//! One-sided communication: the ranks compute how heat spreads along a rod. Each rank writes the edges of its part into its
//! neighbors' memory, and raises a signal there. No receive is posted. Needs NCCL 2.29.2 or newer.
//!
//! ```console
//! $ cargo run --release --example windows -- 4
//! ```
#![allow(unsafe_code)] // Windows are unsafe to register: nothing compares their lengths.

mod common;

use common::{Machine, Rank, ranks};
use libnccl::window::{Signal, WaitSignal, WindowFlags};
use libnccl::{Result, Slice, SliceMut};

/// The number of cells of the whole rod. Its ends are kept at the temperatures 1 and 0.
const CELLS: usize = 64;
const STEPS: usize = 200;

fn main() -> Result<()> {
    let ranks = ranks(4);
    assert!(CELLS.is_multiple_of(ranks), "{CELLS} cells cannot be divided among {ranks} ranks");
    let machine = Machine::new(ranks);
    if let Err(missing) = machine.nccl.require("ncclPutSignal") {
        println!("skipped: {missing}");
        return Ok(());
    }
    let parts = machine.run(ranks, |rank| spread(rank, CELLS / ranks))?;
    let mut expected = vec![0.0; CELLS];
    (0..STEPS).for_each(|_| expected = step(1.0, &expected, 0.0));
    assert_eq!(parts.concat(), expected);
    println!(
        "{CELLS} cells on {ranks} ranks after {STEPS} steps: as on one, from {:.3} to {:.3}",
        expected[0],
        expected[CELLS - 1]
    );
    Ok(())
}

/// Computes one rank's part of the rod.
fn spread(rank: &Rank<'_>, cells: usize) -> Result<Vec<f32>> {
    let (comm, stream) = (&rank.comm, rank.stream());
    let own = comm.rank();
    let neighbors = [own.checked_sub(1), Some(own + 1).filter(|next| *next < comm.size())];
    // The values that the left and the right neighbor write here, then the values that this rank writes there: NCCL puts
    // only from windows.
    let mut memory = rank.nccl.alloc::<f32>(4)?;
    // SAFETY: all ranks register four elements.
    let window = unsafe { comm.register_window(&mut memory, WindowFlags::COLL_SYMMETRIC) }?;
    let mut edges = rank.buffer(&[0.0; 2])?;
    let mut around = rank.buffer(&[1.0, 0.0])?;
    let mut part = vec![0.0; cells];
    for _ in 0..STEPS {
        rank.write(&mut edges, &[part[0], part[cells - 1]]);
        copy(rank, edges.get(..), memory.get_mut(2..))?;
        let mut signals = Vec::new();
        for (side, peer) in neighbors.into_iter().enumerate() {
            let (Some(peer), Some(edge)) = (peer, memory.get(2 + side..=2 + side)) else { continue };
            // This rank is the right neighbor of its left neighbor.
            comm.put_signal(edge, peer, window.at(1 - side), Signal::default(), stream)?;
            signals.push(WaitSignal { count: 1, peer: peer as u32, signal: Signal::default() });
        }
        if !signals.is_empty() {
            comm.wait_signal(&signals, stream)?;
        }
        for (side, _) in neighbors.iter().enumerate().filter(|(_, peer)| peer.is_some()) {
            copy(rank, memory.get(side..=side), around.get_mut(side..=side))?;
        }
        let ends = rank.read(&around);
        part = step(ends[0], &part, ends[1]);
        // No rank writes its next edges before all have read these.
        comm.barrier(&mut edges, stream)?;
    }
    rank.read(&edges);
    Ok(part)
}

/// Copies on the device, to or from a window, with a send from this rank to itself.
fn copy(rank: &Rank<'_>, from: Option<Slice<'_, f32>>, to: Option<SliceMut<'_, f32>>) -> Result<()> {
    let (Some(from), Some(to)) = (from, to) else { return Ok(()) };
    let (comm, own, stream) = (&rank.comm, rank.comm.rank(), rank.stream());
    rank.nccl.group(|g| {
        comm.send(from, own, g.stream(stream))?;
        comm.recv(to, own, g.stream(stream))
    })
}

/// Returns the temperatures one step later. `left` and `right` are next to the part's ends.
fn step(left: f32, part: &[f32], right: f32) -> Vec<f32> {
    let at = |index: usize| match index {
        0 => left,
        _ => part.get(index - 1).copied().unwrap_or(right),
    };
    (1..=part.len())
        .map(|index| at(index) + 0.25 * (at(index - 1) - 2.0 * at(index) + at(index + 1)))
        .collect()
}
