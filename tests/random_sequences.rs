//! Random sequences of safe calls: operations, failing groups, windows, registrations, children, abort handles and
//! drops, in orders that nobody would write. Nothing may crash, hang, or leak threads, descriptors or memory.
//!
//! The ranks of a sequence are threads that follow one program, generated from the same seed. Now and then one of them
//! leaves it. `LIBNCCL_SEQUENCES=10000 cargo test --test random_sequences` runs more of them, and `.ci/sanitize` runs
//! them under an address sanitizer. A failure prints its seed; `LIBNCCL_SEED=<seed>` repeats it.
#![allow(unsafe_code)] // Registers windows; nothing else.
#![cfg(target_os = "linux")]

#[path = "../crates/cpu/tests/common/random.rs"]
#[allow(dead_code, unreachable_pub)]
mod random;

use std::io::{self, Write};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use libnccl::{
    AbortHandle, Communicator, Config, LoadError, MemoryStatistic, Nccl, NcclBuffer, ReduceOp, Registration,
    Result, ShrinkMode, Signal, StreamRef, UniqueId, WaitSignal, Window, WindowFlags,
};
use random::Random;

const STREAM: StreamRef<'static> = StreamRef::DEFAULT;

/// Longer than any step of a sequence on a busy machine, short enough for a sequence that waits for it.
const TIMEOUT: Duration = Duration::from_millis(150);

/// The time after which a sequence has hung.
const LIMIT: Duration = Duration::from_secs(60);

/// The elements of a buffer that may become a window.
const WINDOW: usize = 1024;

/// The number of windows. Safe code cannot free them, as nothing proves that other ranks do not use them: each keeps its
/// memory, and the descriptor by which other processes would map it.
static WINDOWS: AtomicUsize = AtomicUsize::new(0);

/// The growth of the process's memory, beyond the windows, that its allocator may cause.
const SLACK: usize = 32 << 20;

/// The parts of a rank that its communicators share.
struct Rank<'a> {
    nccl: &'a Nccl,
    /// The random numbers of the program, the same on all ranks.
    program: Random,
    /// The random numbers of this rank alone.
    own: Random,
    /// `true` if the communicators have a timeout, so that a rank may leave the program and stay.
    has_timeout: bool,
    handles: &'a Mutex<Vec<AbortHandle>>,
}

/// The things of a communicator that outlive a step.
#[derive(Default)]
struct Kept<'c> {
    registrations: Vec<Registration<'c>>,
    windows: Vec<Window<'c, f32>>,
}

impl Rank<'_> {
    /// Runs random steps on a communicator, and ends it in one way or another.
    fn live(&mut self, comm: Communicator, depth: usize) -> Result<()> {
        if self.own.once_in(3) {
            self.handles.lock().unwrap_or_else(PoisonError::into_inner).push(comm.abort_handle());
        }
        let mut buffers = Vec::new();
        let lived = {
            let mut kept = Kept::default();
            let lived = self.steps(&comm, &mut buffers, &mut kept, depth);
            let Kept { registrations, windows } = kept;
            for window in windows {
                match self.own.below(3) {
                    0 => drop(window.deregister()),
                    1 => std::mem::forget(window),
                    _ => drop(window),
                }
            }
            for registration in registrations {
                if self.own.coin() {
                    drop(registration.deregister());
                }
            }
            lived
        };
        if self.own.coin() {
            buffers.clear();
        }
        // A rank that has failed does not wait for those that have not, and the others in the program end alike.
        let end = if lived.is_ok() { self.program.below(4) } else { 2 + self.own.below(2) };
        match end {
            0 => comm.destroy()?,
            1 => comm.finalize()?.destroy()?,
            2 => comm.abort()?,
            _ => drop(comm),
        }
        for buffer in buffers {
            if self.own.coin() {
                // An error if it is registered with a communicator that could not deregister it, or a window.
                let _ = NcclBuffer::free(buffer);
            }
        }
        lived
    }

    fn steps<'c>(
        &mut self,
        comm: &'c Communicator,
        buffers: &mut Vec<NcclBuffer<f32>>,
        kept: &mut Kept<'c>,
        depth: usize,
    ) -> Result<()> {
        for _ in 0..self.program.below(10) {
            if self.own.once_in(25) {
                self.leave_program(comm)?;
            }
            let step = self.program.below(16);
            // Each step draws the same numbers on all ranks, whether it succeeds or not.
            let mut numbers = Random::new(self.program.next());
            self.step(step, &mut numbers, comm, buffers, kept, depth)?;
        }
        Ok(())
    }

    /// Does something that the other ranks do not, or returns early.
    fn leave_program(&mut self, comm: &Communicator) -> Result<()> {
        match self.own.below(if self.has_timeout { 6 } else { 2 }) {
            0 => Err(LoadError::NoBackend.into()),
            1 => comm.abort_handle().abort(),
            2 => all_reduce(comm, 1 + self.own.below(5000)),
            3 => comm.barrier(&mut [0_u8], STREAM),
            4 => fail_group(self.nccl, comm, false),
            _ => {
                thread::sleep(TIMEOUT * 2);
                Ok(())
            }
        }
    }

    fn step<'c>(
        &mut self,
        step: usize,
        numbers: &mut Random,
        comm: &'c Communicator,
        buffers: &mut Vec<NcclBuffer<f32>>,
        kept: &mut Kept<'c>,
        depth: usize,
    ) -> Result<()> {
        let (nccl, rank, size) = (self.nccl, comm.rank(), comm.size());
        let (next, previous) = ((rank + 1) % size, (rank + size - 1) % size);
        match step {
            0 | 1 => all_reduce(comm, numbers.pick(&[0, 1, 100, 5_000, 70_000])),
            2 => {
                let count = numbers.pick(&[1, 3_000]);
                let mut all = vec![0_i64; count * size];
                comm.all_gather(&vec![rank as i64; count], &mut all, STREAM)?;
                comm.broadcast_in_place(&mut all, numbers.below(size), STREAM)
            }
            3 => {
                let count = numbers.pick(&[1, 10, 40_000]);
                let (sent, mut received) = (vec![rank as u32; count], vec![0_u32; count]);
                nccl.group(|g| {
                    g.send(comm, &sent, next, STREAM)?;
                    g.recv(comm, &mut received, previous, STREAM)
                })?;
                assert_eq!(received, vec![previous as u32; count]);
                Ok(())
            }
            4 if depth == 0 && numbers.once_in(3) => {
                fail_group(nccl, comm, numbers.coin())?;
                comm.revoke()?;
                self.child(comm.split(Some(0), 0)?, depth)
            }
            4 => comm.barrier(&mut [0_u8], STREAM),
            5 => {
                let mut buffer = nccl.alloc::<f32>(WINDOW)?;
                comm.all_reduce_in_place(&mut buffer, ReduceOp::Sum, STREAM)?;
                assert!(
                    buffer.as_slice().is_some_and(|elements| elements.iter().all(|element| *element == 0.0))
                );
                buffers.push(buffer);
                Ok(())
            }
            6 => {
                let Some(buffer) = buffers.last_mut() else { return Ok(()) };
                kept.registrations.push(comm.register(buffer)?);
                if self.own.coin() {
                    kept.registrations.swap_remove(0).deregister()?;
                }
                Ok(())
            }
            7 => {
                let mut buffer = nccl.alloc::<f32>(WINDOW)?;
                WINDOWS.fetch_add(1, Relaxed);
                // SAFETY: the ranks of the program give the same size, and no other ranks register any.
                let window = unsafe { comm.register_window(&mut buffer, WindowFlags::DEFAULT) }?;
                assert!(buffer.as_slice().is_none());
                comm.put_signal(
                    &[1.0; 7],
                    next,
                    window.at(numbers.below(WINDOW - 7)),
                    Signal::default(),
                    STREAM,
                )?;
                let from_previous = WaitSignal { count: 1, peer: previous as u32, signal: Signal::default() };
                comm.wait_signal(&[from_previous], STREAM)?;
                buffers.push(buffer);
                match self.own.below(3) {
                    0 => drop(window),
                    1 => drop(window.deregister()),
                    _ => kept.windows.push(window),
                }
                Ok(())
            }
            8 => {
                // Another rank may still write this one's buffer.
                if self.own.coin() {
                    buffers.clear();
                }
                Ok(())
            }
            9 if depth < 2 => {
                let color = (numbers.next() >> rank) as u32 & 1;
                self.child(comm.split((numbers.below(4) > 0).then_some(color), 0)?, depth)
            }
            10 => {
                comm.suspend()?;
                comm.resume()
            }
            11 if size > 1 && depth < 2 => {
                let excluded = numbers.below(size);
                let shrunk = || comm.shrink(&[excluded], ShrinkMode::Default, &Config::new());
                self.child((excluded != rank).then(shrunk).transpose()?, depth)
            }
            12 => {
                let _ = (comm.memory(MemoryStatistic::Total)?, comm.async_error()?);
                Ok(())
            }
            13 => {
                let op = comm.pre_mul_sum(3.0_f64)?;
                let mut values = [1.0, 2.0];
                op.all_reduce_in_place(&mut values, STREAM)?;
                assert_eq!(values, [3.0 * size as f64, 6.0 * size as f64]);
                Ok(())
            }
            14 => {
                let id = nccl.unique_id()?;
                let pending = nccl.group(|g| g.init_rank(1, 0, &id, &Config::new()))?;
                if self.own.coin() { all_reduce(&pending.finish()?, 3) } else { Ok(()) }
            }
            _ => Ok(()),
        }
    }

    fn child(&mut self, child: Option<Communicator>, depth: usize) -> Result<()> {
        // Ranks without a child go on with the program where the others do.
        let program = Random::new(self.program.next());
        let program = std::mem::replace(&mut self.program, program);
        let lived = child.map_or(Ok(()), |child| self.live(child, depth + 1));
        self.program = program;
        lived
    }
}

fn all_reduce(comm: &Communicator, count: usize) -> Result<()> {
    let mut ones = vec![1.0_f32; count];
    comm.all_reduce_in_place(&mut ones, ReduceOp::Sum, STREAM)?;
    let wrong = ones.iter().position(|sum| *sum != comm.size() as f32);
    assert_eq!(wrong, None, "of {count}, on {comm:?}: {:?}", wrong.map(|index| ones[index]));
    Ok(())
}

/// Runs a group that fails, or panics, after its first operation.
fn fail_group(nccl: &Nccl, comm: &Communicator, panics: bool) -> Result<()> {
    let mut buffer = vec![7_u8; 100];
    let ended = catch_unwind(AssertUnwindSafe(|| {
        nccl.group(|g| -> Result<()> {
            g.all_reduce_in_place(comm, &mut buffer, ReduceOp::Max, STREAM)?;
            if panics { resume_unwind(Box::new("on purpose")) } else { Err(LoadError::NoBackend.into()) }
        })
    }));
    assert!(!matches!(ended, Ok(Ok(()))), "the group has succeeded");
    assert_eq!(buffer, [7; 100], "the group has started its operation");
    Ok(())
}

/// Runs one sequence. Returns the number of ranks that reached its end.
fn run(nccl: &Nccl, seed: u64) -> usize {
    let mut random = Random::new(seed);
    let (size, has_timeout) = (1 + random.below(3), random.below(3) > 0);
    let (id, handles) = (nccl.unique_id().unwrap(), Mutex::default());
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        let ranks: Vec<_> = (0..size)
            .map(|rank| {
                let (program, own) = (random.clone(), Random::new(random::mix(seed ^ (rank as u64 + 1))));
                let mut rank_of_id = Rank { nccl, program, own, has_timeout, handles: &handles };
                let id: &UniqueId = &id;
                scope.spawn(move || -> Result<()> {
                    let config = if has_timeout { Config::new().timeout(TIMEOUT) } else { Config::new() };
                    let comm = nccl.init_rank_with(size, rank, id, &config)?;
                    rank_of_id.live(comm, 0)
                })
            })
            .collect();
        let (handles, is_over, mut random) = (&handles, &is_over, Random::new(!seed));
        scope.spawn(move || {
            while !is_over.load(Relaxed) {
                thread::sleep(Duration::from_micros(random.below(20_000) as u64));
                let handle = handles.lock().unwrap_or_else(PoisonError::into_inner).pop();
                if let Some(handle) = handle.filter(|_| random.once_in(4)) {
                    drop(handle.abort());
                }
            }
        });
        let ends: Vec<_> = ranks.into_iter().map(thread::ScopedJoinHandle::join).collect();
        is_over.store(true, Relaxed);
        ends.into_iter().filter(|end| end.as_ref().expect("no assertion fails").is_ok()).count()
    })
}

/// The resources of this process.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Usage {
    threads: usize,
    descriptors: usize,
    bytes: usize,
}

fn usage() -> Usage {
    let count = |path| std::fs::read_dir(path).map_or(0, Iterator::count);
    let pages = std::fs::read_to_string("/proc/self/statm").unwrap();
    let resident: usize = pages.split(' ').nth(1).and_then(|pages| pages.parse().ok()).unwrap();
    Usage { threads: count("/proc/self/task"), descriptors: count("/proc/self/fd"), bytes: resident * 4096 }
}

#[test]
fn random_sequences_crash_hang_and_leak_nothing() {
    static SEED: AtomicU64 = AtomicU64::new(0);
    let number = |name| random::from_environment(name);
    let count = number("LIBNCCL_SEQUENCES").unwrap_or(60);
    let first = number("LIBNCCL_SEED").unwrap_or_else(random::fresh_seed);
    let nccl = libnccl_cpu::nccl();
    let start = Mutex::new(Instant::now());
    let is_over = AtomicBool::new(false);
    let (mut completed, mut warm) = (0, None);
    thread::scope(|scope| {
        scope.spawn(|| {
            while !is_over.load(Relaxed) {
                thread::sleep(Duration::from_millis(50));
                if start.lock().unwrap().elapsed() > LIMIT {
                    // Not by a macro, whose text would be lost with the process.
                    let _ = writeln!(io::stderr(), "the sequence of seed {} hangs", SEED.load(Relaxed));
                    std::process::abort();
                }
            }
        });
        let ended = catch_unwind(AssertUnwindSafe(|| {
            for seed in first..first + count {
                SEED.store(seed, Relaxed);
                *start.lock().unwrap() = Instant::now();
                completed += run(&nccl, seed);
                // Caches of the allocator and of the implementation are full by then.
                if seed == first + count / 2 {
                    warm = Some((settled(3), WINDOWS.load(Relaxed)));
                }
            }
        }));
        is_over.store(true, Relaxed);
        ended.unwrap_or_else(|panic| {
            eprintln!("in the sequence of seed {}", SEED.load(Relaxed));
            resume_unwind(panic)
        });
    });
    let (warm, windows) = warm.expect("there are sequences");
    // Without the thread that looks for hangs.
    let end = settled(2);
    let windows = WINDOWS.load(Relaxed) - windows;
    println!(
        "{count} sequences from seed {first}, {completed} ranks to the end; in the second half, {windows} windows: \
         {warm:?}, then {end:?}"
    );
    assert!(end.threads <= 2, "{end:?}");
    assert!(end.descriptors <= warm.descriptors + windows, "{warm:?} {end:?}");
    assert!(end.bytes <= warm.bytes + windows * WINDOW * size_of::<f32>() + SLACK, "{warm:?} {end:?}");
}

/// Returns the usage as soon as there are no more than so many threads, or after a while.
fn settled(threads: usize) -> Usage {
    let start = Instant::now();
    loop {
        let now = usage();
        if now.threads <= threads || start.elapsed() > Duration::from_secs(10) {
            return now;
        }
        thread::sleep(Duration::from_millis(20));
    }
}
