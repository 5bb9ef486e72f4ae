//! A rank, which follows the program of its communicator's ranks, or deviates from it.
#![allow(unsafe_code)] // Registers windows and borrows communicators.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::Ordering::Relaxed;
use std::thread::{self, Scope};
use std::time::{Duration, Instant};

use libnccl::communicator::{MemoryStatistic, ShrinkMode};
use libnccl::error::{LoadError, ResultCode};
use libnccl::window::{Registration, Signal, WaitSignal, Window, WindowFlags};
use libnccl::{Communicator, Config, Error, Nccl, NcclBuffer, ReduceOp, Result, StreamRef, UniqueId};
use libnccl_observe::{RecordExt, Watchdog};
use libnccl_test_support::random_inputs::{Random, mix};

use crate::checks::{KEPT, Vault, WINDOW};

const STREAM: StreamRef<'static> = StreamRef::DEFAULT;

/// Longer than any step of a sequence on a busy machine, short enough for a sequence that waits for it.
const TIMEOUT: Duration = Duration::from_millis(150);

/// The timeout of groups some of whose ranks are late.
const SHORT_TIMEOUT: Duration = Duration::from_millis(3);

/// The state that the communicators of a rank share.
pub(crate) struct Rank<'scope, 'env> {
    pub(crate) nccl: &'env Nccl,
    /// The random numbers of the program, the same on all ranks.
    pub(crate) program: Random,
    /// The random numbers of this rank alone.
    pub(crate) own: Random,
    /// Set if the communicators have a timeout, so that a rank may deviate from the program without aborting.
    pub(crate) has_timeout: bool,
    pub(crate) scope: &'scope Scope<'scope, 'env>,
    pub(crate) vault: &'env Vault,
    pub(crate) watchdog: Option<&'env Watchdog>,
}

/// The objects of a communicator that live for more than one step.
#[derive(Default)]
struct Objects {
    buffers: Vec<NcclBuffer<f32>>,
    registrations: Vec<Registration>,
    windows: Vec<Window<f32>>,
}

/// The error of a rank that stops on purpose.
fn stopped() -> Error {
    LoadError::NoBackend.into()
}

impl<'scope, 'env> Rank<'scope, 'env> {
    fn config(&self) -> Config {
        if self.has_timeout { Config::new().timeout(TIMEOUT) } else { Config::new() }
    }

    /// Runs a background task after at most that many microseconds.
    fn later(&mut self, microseconds: usize, task: impl FnOnce() + Send + 'scope) {
        let delay = Duration::from_micros(self.own.below(microseconds) as u64);
        let due = Instant::now() + delay;
        self.scope.spawn(move || {
            if delay > Duration::from_millis(1) {
                thread::sleep(delay);
            }
            while Instant::now() < due {
                std::hint::spin_loop();
            }
            task();
        });
    }

    /// Creates a communicator, in a group or not.
    pub(crate) fn join(&mut self, size: usize, rank: usize, id: &UniqueId) -> Result<Communicator> {
        let config = self.config();
        let communicator = || self.nccl.communicator(size, rank, id).config(&config);
        if self.own.once_in(3) {
            return self.nccl.group(|g| communicator().init_in(g))?.finish();
        }
        communicator().init()
    }

    /// Runs random steps on a communicator, and destroys, aborts or drops it.
    pub(crate) fn live(&mut self, comm: Communicator, depth: usize) -> Result<()> {
        if self.own.once_in(12) {
            let handle = comm.abort_handle();
            self.later(5000, move || drop(handle.abort()));
        }
        if let Some(watchdog) = self.watchdog.filter(|_| self.own.coin()) {
            watchdog.watch(&comm)?;
        }
        let mut objects = Objects::default();
        let mut lived = Ok(());
        for _ in 0..1 + self.program.below(3) {
            lived = self.run_steps(&comm, &mut objects, depth);
            self.end_objects(&comm, &mut objects);
            if let Err(error) = &lived {
                assert!(!error.to_string().contains("is in use"), "nothing uses {comm:?}: {error}");
                break;
            }
        }
        if self.own.coin() {
            objects.buffers.clear();
        }
        let ended = self.end(comm, lived.is_ok());
        for buffer in objects.buffers {
            if self.own.coin() {
                // An error if it is a window, or registered with a communicator that could not deregister it.
                let _ = buffer.free();
            }
        }
        lived.and(ended)
    }

    fn record(&mut self, comm: &Communicator) {
        let recorder = comm.record(4 + self.own.below(20));
        self.later(3000, move || {
            let records = recorder.records();
            assert!(records.len() as u64 <= recorder.count(), "{records:?}");
            assert!(recorder.to_json("test").contains("test"));
        });
    }

    /// Aborts a communicator, perhaps during the call that follows.
    fn abort_in_call(&mut self, comm: &Communicator) {
        if self.own.once_in(5) {
            let (longest, handle) = (self.own.pick(&[10, 50, 200, 1000]), comm.abort_handle());
            self.later(longest, move || drop(handle.abort()));
        }
    }

    fn end(&mut self, comm: Communicator, has_lived: bool) -> Result<()> {
        // A rank that has failed does not wait for the others, which end alike.
        match if has_lived { self.program.below(4) } else { 2 + self.own.below(2) } {
            0 => comm.destroy(),
            1 => {
                let handle = comm.abort_handle();
                let finalized = comm.finalize()?;
                if self.own.coin() { finalized.destroy() } else { handle.abort() }
            }
            2 => comm.abort(),
            _ => {
                drop(comm);
                Ok(())
            }
        }
    }

    fn end_objects(&mut self, comm: &Communicator, objects: &mut Objects) {
        for window in std::mem::take(&mut objects.windows) {
            match self.own.below(4) {
                0 => drop(window.deregister()),
                1 => std::mem::forget(window),
                2 => self.later(500, move || drop(window)),
                _ => drop(window),
            }
        }
        let registrations = std::mem::take(&mut objects.registrations);
        let (number, mut deferred) = (registrations.len(), 0);
        for registration in registrations {
            match self.own.below(3) {
                0 => drop(registration.deregister()),
                1 => {
                    deferred += 1;
                    self.later(500, move || drop(registration));
                }
                _ => drop(registration),
            }
        }
        // A deferred one may find an abort in progress.
        let is_healthy = matches!(comm.async_error(), Ok(ResultCode::SUCCESS));
        KEPT.fetch_add(if is_healthy { deferred } else { number }, Relaxed);
    }

    fn run_steps(&mut self, comm: &Communicator, objects: &mut Objects, depth: usize) -> Result<()> {
        for _ in 0..self.program.below(7) {
            if self.own.once_in(40) {
                self.leave_program(comm)?;
            }
            if self.own.once_in(10) {
                self.record(comm);
            }
            // Each step draws the same numbers on all ranks, whether it succeeds or not.
            let (step, mut numbers) = (self.program.below(21), Random(self.program.next()));
            match step {
                0..9 => self.operate(step, &mut numbers, comm, objects)?,
                9..16 => self.run_group(step, &mut numbers, comm, depth)?,
                _ => self.derive(step, &mut numbers, comm, depth)?,
            }
        }
        Ok(())
    }

    /// Does something that the other ranks do not, or returns early.
    fn leave_program(&mut self, comm: &Communicator) -> Result<()> {
        match self.own.below(if self.has_timeout { 6 } else { 2 }) {
            0 => Err(stopped()),
            1 => comm.abort_handle().abort(),
            2 => {
                let count = 1 + self.own.below(5000);
                self.all_reduce(comm, count)
            }
            3 => comm.barrier(&mut [0_u8], STREAM),
            4 => self.fail_group(comm, false),
            _ => {
                thread::sleep(TIMEOUT * 2);
                Ok(())
            }
        }
    }

    /// Runs an operation, or uses memory of NCCL.
    fn operate(
        &mut self,
        step: usize,
        numbers: &mut Random,
        comm: &Communicator,
        objects: &mut Objects,
    ) -> Result<()> {
        let (rank, size) = (comm.rank(), comm.size());
        match step {
            0 | 1 => self.all_reduce(comm, numbers.pick(&[0, 1, 100, 5_000, 70_000])),
            2 => {
                let count = numbers.pick(&[1, 3_000]);
                let own = self.vault.buffer(vec![rank as f32; count]);
                let mut all = self.vault.buffer(vec![0.0; count * size]);
                comm.all_gather(&*own, &mut *all, STREAM)?;
                assert!(all.iter().enumerate().all(|(index, from)| *from == (index / count) as f32));
                comm.broadcast_in_place(&mut *all, numbers.below(size), STREAM)
            }
            3 => comm.barrier(&mut [0_u8], STREAM),
            4 => {
                let op = comm.pre_mul_sum(3.0_f32)?;
                let mut values = self.vault.buffer([1.0, 2.0]);
                comm.all_reduce_in_place(&mut *values, &op, STREAM)?;
                if self.own.coin() {
                    self.later(500, move || drop(op));
                }
                assert_eq!(values[..], [3.0 * size as f32, 6.0 * size as f32]);
                Ok(())
            }
            5 => {
                // Another rank may still write to this rank's.
                if self.own.coin() {
                    objects.buffers.clear();
                }
                let mut buffer = self.nccl.alloc::<f32>(WINDOW)?;
                comm.all_reduce_in_place(&mut buffer, ReduceOp::Sum, STREAM)?;
                assert_eq!(buffer.as_slice(), Some(&[0.0; WINDOW][..]));
                objects.buffers.push(buffer);
                Ok(())
            }
            6 => {
                let Some(buffer) = objects.buffers.last_mut() else { return Ok(()) };
                let registered = comm.register(buffer);
                KEPT.fetch_add(usize::from(registered.is_err()), Relaxed);
                objects.registrations.push(registered?);
                if self.own.coin() {
                    objects.registrations.swap_remove(0).deregister()?;
                }
                Ok(())
            }
            7 => self.put_into_window(numbers, comm, objects),
            _ => {
                comm.suspend()?;
                comm.resume()?;
                let _ = (comm.memory(MemoryStatistic::Total)?, comm.async_error()?);
                Ok(())
            }
        }
    }

    fn run_group(
        &mut self,
        step: usize,
        numbers: &mut Random,
        comm: &Communicator,
        depth: usize,
    ) -> Result<()> {
        match step {
            9 if depth == 0 && numbers.once_in(3) => {
                self.fail_group(comm, numbers.coin())?;
                comm.revoke()?;
                self.live_in_child(comm.split(Some(0), 0).init()?, depth)
            }
            10 => {
                let id = self.nccl.unique_id()?;
                let pending = self.nccl.group(|g| self.nccl.communicator(1, 0, &id).init_in(g))?;
                if self.own.coin() { self.all_reduce(&pending.finish()?, 3) } else { Ok(()) }
            }
            11 if self.has_timeout => self.exchange(comm, 3_000, Some(SHORT_TIMEOUT)),
            12 if self.has_timeout => self.borrow(comm),
            _ => self.exchange(comm, numbers.pick(&[1, 10, 40_000]), None),
        }
    }

    /// Derives a communicator from another, and uses it.
    fn derive(&mut self, step: usize, numbers: &mut Random, comm: &Communicator, depth: usize) -> Result<()> {
        let (rank, size) = (comm.rank(), comm.size());
        match step {
            16 | 17 if depth < 2 => {
                let color = (numbers.next() >> rank) as u32 & 1;
                let color = (numbers.below(4) > 0).then_some(color);
                self.abort_in_call(comm);
                self.live_in_child(comm.split(color, 0).init()?, depth)
            }
            18 if size > 1 && depth < 2 => {
                let excluded = numbers.below(size);
                let mode = numbers.pick(&[ShrinkMode::Default, ShrinkMode::Default, ShrinkMode::Abort]);
                self.abort_in_call(comm);
                let shrunk = || comm.shrink(&[excluded], mode).init();
                self.live_in_child((excluded != rank).then(shrunk).transpose()?, depth)
            }
            // Without a timeout, a rank that joins waits for ranks that have failed meanwhile.
            19 if size < 4 && depth < 2 && self.has_timeout => self.grow(comm, depth),
            _ => Ok(()),
        }
    }

    /// Runs the program of a child. Ranks without a child continue at the same point of the program as the others.
    fn live_in_child(&mut self, child: Option<Communicator>, depth: usize) -> Result<()> {
        let program = Random(self.program.next());
        let program = std::mem::replace(&mut self.program, program);
        let lived = child.map_or(Ok(()), |child| self.live(child, depth + 1));
        self.program = program;
        lived
    }

    fn grow(&mut self, comm: &Communicator, depth: usize) -> Result<()> {
        let size = comm.size() + 1;
        let id = (comm.rank() == 0).then(|| comm.unique_id()).transpose()?;
        let mut new = Rank { program: self.program.clone(), own: Random(mix(self.own.next())), ..*self };
        let config = self.config();
        self.abort_in_call(comm);
        if let Some(id) = id {
            let config = config.clone();
            // The errors of the new rank are its own.
            self.scope.spawn(move || -> Result<()> {
                let comm = new.nccl.communicator(size, size - 1, &id).grow().config(&config).init()?;
                new.live_in_child(Some(comm), depth)
            });
        }
        let grown = comm.grow(size, id.as_ref()).config(&config).init()?;
        self.live_in_child(Some(grown), depth)
    }

    /// Borrows a communicator that nothing else uses or ends, and uses it with a timeout, with ranks that are late.
    fn borrow(&mut self, comm: &Communicator) -> Result<()> {
        let Some(owner) = comm.split(Some(0), 0).init()? else { return Ok(()) };
        let nccl = self.nccl;
        let exchange = |borrowed: &Communicator| self.exchange(borrowed, 40_000, Some(SHORT_TIMEOUT));
        // SAFETY: live, and used by nothing else as long as it is borrowed.
        let used = unsafe { Communicator::borrow_raw(nccl, owner.as_raw(), exchange) };
        if used.is_err() {
            // Until the late ranks have written their data.
            thread::sleep(SHORT_TIMEOUT * 4);
        }
        used
    }

    fn all_reduce(&self, comm: &Communicator, count: usize) -> Result<()> {
        let mut ones = self.vault.buffer(vec![1.0; count]);
        comm.all_reduce_in_place(&mut *ones, ReduceOp::Sum, STREAM)?;
        assert!(ones.iter().all(|sum| *sum == comm.size() as f32), "{count} elements on {comm:?}");
        Ok(())
    }

    /// Sends to the next rank and receives from the previous one, in a group; with a timeout, some ranks are late.
    fn exchange(&mut self, comm: &Communicator, count: usize, timeout: Option<Duration>) -> Result<()> {
        let (rank, size) = (comm.rank(), comm.size());
        let (next, previous) = ((rank + 1) % size, (rank + size - 1) % size);
        let sent = self.vault.buffer(vec![rank as f32; count]);
        let mut received = self.vault.buffer(vec![-1.0; count]);
        if let Some(timeout) = timeout.filter(|_| self.own.once_in(3)) {
            thread::sleep(timeout * self.own.below(4) as u32);
        }
        self.nccl.group(|g| {
            if let Some(timeout) = timeout {
                g.timeout(timeout);
            }
            comm.send(&*sent, next, g.stream(STREAM))?;
            comm.recv(&mut *received, previous, g.stream(STREAM))
        })?;
        assert!(received.iter().all(|from| *from == previous as f32), "{count} elements from {previous}");
        Ok(())
    }

    fn put_into_window(
        &mut self,
        numbers: &mut Random,
        comm: &Communicator,
        objects: &mut Objects,
    ) -> Result<()> {
        let (rank, size) = (comm.rank(), comm.size());
        let (next, previous) = ((rank + 1) % size, (rank + size - 1) % size);
        let mut buffer = self.nccl.alloc::<f32>(WINDOW)?;
        KEPT.fetch_add(1, Relaxed);
        // SAFETY: the ranks of the program pass the same size, and no other ranks register any.
        let window = unsafe { comm.register_window(&mut buffer, WindowFlags::DEFAULT) }?;
        assert!(buffer.as_slice().is_none());
        let target = window.at(numbers.below(WINDOW - 7));
        comm.put_signal(&[1.0; 7], next, target, Signal::default(), STREAM)?;
        let from_previous = WaitSignal { count: 1, peer: previous as u32, signal: Signal::default() };
        comm.wait_signal(&[from_previous], STREAM)?;
        objects.buffers.push(buffer);
        match self.own.below(3) {
            0 => drop(window),
            1 => drop(window.deregister()),
            _ => objects.windows.push(window),
        }
        Ok(())
    }

    /// Runs a group that fails, or panics, after its first operation.
    fn fail_group(&self, comm: &Communicator, panics: bool) -> Result<()> {
        let mut buffer = vec![7_u8; 100];
        let ended = catch_unwind(AssertUnwindSafe(|| {
            self.nccl.group(|g| -> Result<()> {
                comm.all_reduce_in_place(&mut buffer, ReduceOp::Max, g.stream(STREAM))?;
                if panics { resume_unwind(Box::new(())) } else { Err(stopped()) }
            })
        }));
        assert!(!matches!(ended, Ok(Ok(()))), "the group has succeeded");
        assert_eq!(buffer, [7; 100], "the group has started its operation");
        Ok(())
    }
}
