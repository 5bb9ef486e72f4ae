//! Slices and streams of the crate cudarc: the ranks compute the norm of a vector, of which each holds a part.
//!
//! ```console
//! $ cargo run --release --features cudarc --example cudarc -- 4
//! ```
//!
//! Needs NCCL and a GPU for each rank. Without them, it runs on the CPU backend and the CUDA emulation:
//!
//! ```console
//! $ cargo xtask cpu-so /tmp/cuda
//! $ LD_LIBRARY_PATH=/tmp/cuda cargo run --release --features cudarc --example cudarc -- 4
//! ```

use std::error::Error;
use std::thread;
use std::time::Duration;

use cudarc::driver::CudaContext;
use libnccl::{Nccl, ReduceOp, UniqueId};

/// The time after which a missing rank is an error.
const TIMEOUT: Duration = Duration::from_secs(60);

/// The number of elements of each rank.
const LENGTH: usize = 1000;

type Result<T> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

fn main() -> Result<()> {
    let ranks = std::env::args().nth(1).map_or(Ok(2), |ranks| ranks.parse())?;
    // SAFETY: the search for the driver loads CUDA's library or the emulation.
    if !unsafe { cudarc::driver::sys::is_culib_present() } {
        return Err("no libcuda.so.1: see the first lines of this example for the CUDA emulation".into());
    }
    let nccl = Nccl::load()?;
    let id = nccl.unique_id()?;
    let norms = thread::scope(|scope| {
        let start = |rank| {
            let nccl = &nccl;
            scope.spawn(move || norm(nccl, ranks, rank, &id))
        };
        let threads: Vec<_> = (0..ranks).map(start).collect();
        let join = |thread: thread::ScopedJoinHandle<_>| thread.join().map_err(|_| "a rank panicked")?;
        threads.into_iter().map(join).collect::<Result<Vec<f32>>>()
    })?;
    let expected = ((1..=ranks * LENGTH).map(|i| (i * i) as f64).sum::<f64>()).sqrt();
    println!("each of {ranks} ranks has the norm {:.0}, and {expected:.0} was expected", norms[0]);
    assert!(norms.iter().all(|norm| (f64::from(*norm) / expected - 1.0).abs() < 1e-5), "{norms:?}");
    Ok(())
}

/// Returns the norm of the vector 1, 2, 3, ... Each rank has [`LENGTH`] of its elements.
fn norm(nccl: &Nccl, ranks: usize, rank: usize, id: &UniqueId) -> Result<f32> {
    let context = CudaContext::new(rank)?;
    let stream = context.new_stream()?;
    let comm = nccl.communicator(ranks, rank, id).device(&context).timeout(TIMEOUT).init()?;
    let part: Vec<f32> = (1..=LENGTH).map(|i| (rank * LENGTH + i) as f32).collect();
    // A kernel of the program would do this on the device.
    let squares: f32 = part.iter().map(|x| x * x).sum();

    let mut sum = stream.clone_htod(&[squares])?;
    comm.all_reduce_in_place(&mut sum, ReduceOp::Sum, &stream)?;

    // A view is a buffer too: each rank copies its part to its offset in the whole vector.
    let part = stream.clone_htod(&part)?;
    let mut whole = stream.alloc_zeros::<f32>(ranks * LENGTH)?;
    comm.all_gather(&part, &mut whole, &stream)?;
    // A copy to the host would wait forever if another rank does not call.
    comm.synchronize(&stream, TIMEOUT)?;
    let own = whole.slice(rank * LENGTH..(rank + 1) * LENGTH);
    if stream.clone_dtoh(&own)? != stream.clone_dtoh(&part)? {
        return Err(format!("rank {rank} has not got its own part back").into());
    }

    let sum = stream.clone_dtoh(&sum)?;
    comm.destroy()?;
    Ok(sum[0].sqrt())
}
