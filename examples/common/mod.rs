//! The ranks of a machine, one per thread, on its GPUs or on the CPU backend. Shared by the examples.
#![allow(dead_code, unsafe_code)] // No example uses everything; copies to and from GPUs are unsafe.

use std::env;
use std::error::Error;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use cudarc::driver::{CudaContext, CudaStream, result};
use libnccl::{Communicator, Config, Nccl, NcclBuffer, Result, StreamRef, UniqueId};

/// NCCL and this machine's GPUs, or the CPU backend if either is missing.
pub(crate) struct Machine {
    pub(crate) nccl: Nccl,
    /// The number of GPUs that this process sees and uses.
    pub(crate) gpus: usize,
}

/// A rank: its communicator, and the memory and the stream of its device.
pub(crate) struct Rank<'a> {
    pub(crate) nccl: &'a Nccl,
    pub(crate) comm: Communicator,
    stream: Option<Arc<CudaStream>>,
}

impl Machine {
    /// Looks for NCCL and for at least `ranks` GPUs, or for one GPU if ranks may share it (`NCCL_MULTI_RANK_GPU_ENABLE=1`).
    pub(crate) fn new(ranks: usize) -> Self {
        let gpus = gpus();
        let share = env::var_os("NCCL_MULTI_RANK_GPU_ENABLE").is_some_and(|value| value == "1");
        let wanted = if share { 1 } else { ranks };
        match Nccl::load() {
            Ok(nccl) if gpus >= wanted => {
                eprintln!("NCCL {} on {gpus} GPUs", nccl.version());
                Self { nccl, gpus }
            }
            _ => {
                eprintln!("the CPU backend of NCCL: for {ranks} ranks there are {gpus} GPUs, or no NCCL");
                Self { nccl: libnccl_cpu::nccl(), gpus: 0 }
            }
        }
    }

    /// Runs `program` once for each rank, each in a thread, and returns the results in the order of the ranks.
    pub(crate) fn run<T: Send>(
        &self,
        ranks: usize,
        program: impl Fn(&Rank<'_>) -> Result<T> + Sync,
    ) -> Result<Vec<T>> {
        let id = self.nccl.unique_id()?;
        thread::scope(|scope| {
            let start = |rank| {
                let (id, program) = (&id, &program);
                scope.spawn(move || program(&self.join(ranks, rank, id, &Config::default())?))
            };
            let threads: Vec<_> = (0..ranks).map(start).collect();
            threads.into_iter().map(|thread| thread.join().expect("no rank panics")).collect()
        })
    }

    /// Joins the other ranks, on the device with the rank's number, or one that they share.
    pub(crate) fn join(&self, ranks: usize, rank: usize, id: &UniqueId, config: &Config) -> Result<Rank<'_>> {
        self.create(rank, || self.nccl.communicator(ranks, rank, id).config(config).init())
    }

    /// Creates a rank with its communicator, while the device is current.
    pub(crate) fn create<E>(
        &self,
        device: usize,
        communicator: impl FnOnce() -> Result<Communicator, E>,
    ) -> Result<Rank<'_>, E> {
        let stream = (self.gpus > 0).then(|| stream(device % self.gpus));
        Ok(Rank { nccl: &self.nccl, comm: communicator()?, stream })
    }
}

impl Rank<'_> {
    /// Returns the stream of the rank's operations.
    pub(crate) fn stream(&self) -> StreamRef<'_> {
        // SAFETY: a stream of this rank's device, which lives as long as the rank.
        self.stream
            .as_ref()
            .map_or(StreamRef::DEFAULT, |stream| unsafe { StreamRef::from_raw(stream.cu_stream().cast()) })
    }

    /// Returns memory of the rank's device with these values.
    pub(crate) fn buffer(&self, values: &[f32]) -> Result<NcclBuffer<f32>> {
        let mut buffer = self.nccl.alloc(values.len())?;
        self.write(&mut buffer, values);
        Ok(buffer)
    }

    /// Copies values into a buffer of the same length, in the order of the stream.
    pub(crate) fn write(&self, buffer: &mut NcclBuffer<f32>, values: &[f32]) {
        assert_eq!(buffer.len(), values.len());
        match &self.stream {
            None => buffer.as_mut_slice().expect("host memory").copy_from_slice(values),
            // SAFETY: the buffer is as long as the values, which CUDA has read when this returns: they are pageable.
            Some(stream) => unsafe {
                let to = buffer.as_mut_ptr().addr() as u64;
                result::memcpy_htod_async(to, values, stream.cu_stream()).expect("a copy to the GPU");
            },
        }
    }

    /// Waits for the stream's work and returns its error: an operation may fail after its call has returned. On a GPU, an
    /// operation may never complete if a peer has exited.
    pub(crate) fn wait(&self, timeout: Duration) -> Result<()> {
        self.comm.synchronize(&self.stream(), timeout)
    }

    /// Waits as [`wait`](Self::wait) does, but keeps the communicator after the timeout, so that it can be shrunk.
    pub(crate) fn wait_or_keep(&self, timeout: Duration) -> Result<(), Box<dyn Error>> {
        let is_complete = self.comm.wait_for(&self.stream(), timeout)?;
        if is_complete { Ok(()) } else { Err(format!("no result after {timeout:?}").into()) }
    }

    /// Returns a copy of a buffer, once the stream's work is done.
    pub(crate) fn read(&self, buffer: &NcclBuffer<f32>) -> Vec<f32> {
        let Some(stream) = &self.stream else { return buffer.as_slice().expect("host memory").to_vec() };
        let mut values = vec![0.0; buffer.len()];
        // SAFETY: as many values as the buffer has, and the stream is waited for before they are used.
        unsafe {
            let from = buffer.as_ptr().addr() as u64;
            result::memcpy_dtoh_async(&mut values, from, stream.cu_stream()).expect("a copy from the GPU");
        }
        stream.synchronize().expect("the work on the GPU");
        values
    }
}

fn stream(device: usize) -> Arc<CudaStream> {
    let context = CudaContext::new(device).expect("a GPU that was counted");
    context.bind_to_thread().expect("its context");
    context.new_stream().expect("a stream")
}

/// Returns the number of GPUs.
fn gpus() -> usize {
    // SAFETY: loading the driver runs nothing but its initializers; cudarc panics where there is no driver.
    let has_driver = unsafe { cudarc::driver::sys::is_culib_present() };
    if has_driver { CudaContext::device_count().map_or(0, |count| count.max(0) as usize) } else { 0 }
}

/// Returns the number of ranks that the command line gives, or `default`.
pub(crate) fn ranks(default: usize) -> usize {
    env::args().nth(1).map_or(default, |ranks| match ranks.parse() {
        Ok(ranks @ 1..=64) => ranks,
        _ => {
            eprintln!("the number of ranks is {ranks:?}; expected 1 to 64");
            std::process::exit(2);
        }
    })
}

/// A small generator of random numbers (splitmix64), the same for every rank.
pub(crate) struct Random(pub(crate) u64);

impl Random {
    /// Returns a number from -1 to 1.
    pub(crate) fn number(&mut self) -> f32 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) as i32 as f32 / i32::MAX as f32
    }

    /// Returns `count` numbers.
    pub(crate) fn numbers(&mut self, count: usize) -> Vec<f32> {
        (0..count).map(|_| self.number()).collect()
    }
}
