//! Parties of a multi-party computation, in the shape of iris-mpc's: in one group, each sends views of its shares to the
//! next party, and receives those of the previous one.
//!
//! The argument is `before` or `after`. Prints what each party has received.

#![deny(unsafe_code)]

mod after;
mod before;
mod party;

use std::thread;

use cudarc::driver::CudaContext;

use party::{Party, Result};

const PARTIES: usize = 3;

/// The number of elements of a share.
const LENGTH: usize = 8;

fn main() -> Result {
    match std::env::args().nth(1).as_deref() {
        Some("before") => run::<before::Party>(),
        Some("after") => run::<after::Party>(),
        other => Err(format!("the form is {other:?}; expected before or after").into()),
    }
}

fn run<P: Party>() -> Result {
    // CUDA before NCCL.
    CudaContext::new(0)?;
    let id = &P::id()?;
    let received = thread::scope(|scope| {
        let threads: Vec<_> =
            (0..PARTIES).map(|rank| scope.spawn(move || run_party::<P>(rank, id))).collect();
        threads.into_iter().map(|thread| thread.join().expect("no party panics")).collect::<Result<Vec<_>>>()
    })?;
    for (rank, (_, [codes, masks])) in received.iter().enumerate() {
        println!("party {rank} received {codes:?} and {masks:?}");
    }
    Ok(())
}

/// Exchanges shares of codes and of masks, the first half in one group and the rest in another. Returns also the party,
/// which ends when all of them are done.
fn run_party<P: Party>(rank: usize, id: &str) -> Result<(P, [Vec<u32>; 2])> {
    let stream = CudaContext::new(rank)?.new_stream()?;
    let party = P::join(&stream, rank, PARTIES, id)?;
    let share =
        |of: u32| (0..LENGTH as u32).map(|index| 100 * rank as u32 + 10 * of + index).collect::<Vec<_>>();
    let shares = [stream.clone_htod(&share(0))?, stream.clone_htod(&share(5))?];
    let mut received = [stream.alloc_zeros(LENGTH)?, stream.alloc_zeros(LENGTH)?];
    party.exchange(&shares, &mut received, 0..LENGTH / 2)?;
    // Another thread of the party.
    thread::scope(|scope| {
        let rest = scope.spawn(|| party.exchange(&shares, &mut received, LENGTH / 2..LENGTH));
        rest.join().expect("no thread panics")
    })?;
    let received = [stream.clone_dtoh(&received[0])?, stream.clone_dtoh(&received[1])?];
    Ok((party, received))
}
