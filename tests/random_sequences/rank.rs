//! A rank, which follows the program of its communicator's ranks, or leaves it.
#![allow(unsafe_code)] // Registers windows.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::thread;
use std::time::Duration;

use libnccl::communicator::MemoryStatistic;
use libnccl::error::{LoadError, ResultCode};
use libnccl::window::{Registration, Signal, WaitSignal, Window, WindowFlags};
use libnccl::{Communicator, Config, Error, Nccl, NcclBuffer, ReduceOp, Result, UniqueId};
use libnccl_observe::{RecordExt, Watchdog};
use libnccl_test_support::random_inputs::Random;

use crate::buffer::{Act, Guard, Guarded, Refusal, Refused, STREAM, panic_on_purpose};
use crate::errand::Errands;
use crate::kind::{Kind, STEPS};
use crate::lent::Vault;
use crate::unruly::Unruly;
use crate::usage::{KEPT, WINDOW};

/// Longer than any step of a sequence on a busy machine, short enough for a sequence that waits for it.
const TIMEOUT: Duration = Duration::from_millis(150);

/// The parts of a rank that its communicators share.
pub(crate) struct Rank<'a> {
    pub(crate) nccl: &'a Nccl,
    /// The random numbers of the program, the same on all ranks.
    pub(crate) program: Random,
    /// The random numbers of this rank alone.
    pub(crate) own: Random,
    /// `true` if the communicators have a timeout, so that a rank may leave the program and stay.
    pub(crate) has_timeout: bool,
    pub(crate) errands: Errands,
    pub(crate) vault: &'a Vault,
    pub(crate) watchdog: Option<&'a Watchdog>,
}

/// The things of a communicator that outlive a step.
#[derive(Default)]
struct Kept {
    registrations: Vec<Registration>,
    windows: Vec<Window<f32>>,
}

/// An error for a rank that stops by itself.
pub(crate) fn stopped() -> Error {
    LoadError::NoBackend.into()
}

impl Rank<'_> {
    pub(crate) fn config(&mut self) -> Config {
        let config = if self.has_timeout { Config::new().timeout(TIMEOUT) } else { Config::new() };
        if Kind::UnrulyObserver.is_on() && self.own.below(2) == 0 {
            return config.observer(Arc::new(Unruly::default()));
        }
        config
    }

    /// Joins in one way or another.
    pub(crate) fn join(&mut self, size: usize, rank: usize, id: &UniqueId) -> Result<Communicator> {
        let config = self.config();
        match self.own.below(3) {
            0 if Kind::InitInGroup.is_on() => self
                .nccl
                .group(|g| self.nccl.communicator(size, rank, id).config(&config).init_in(g))?
                .finish(),
            _ => self.nccl.communicator(size, rank, id).config(&config).init(),
        }
    }

    /// Runs random steps on a communicator, and ends it in one way or another.
    pub(crate) fn live(&mut self, comm: Communicator, depth: usize) -> Result<()> {
        self.attract_others(&comm)?;
        let mut buffers = Vec::new();
        let lived = self.run_phases(&comm, &mut buffers, depth);
        if self.own.coin() {
            buffers.clear();
        }
        let ended = self.end(comm, lived.is_ok());
        for buffer in buffers {
            if self.own.coin() {
                // An error if it is registered with a communicator that could not deregister it, or a window.
                let _ = NcclBuffer::free(buffer);
            }
        }
        lived.and(ended)
    }

    /// Lets other threads look at a communicator, or end it.
    fn attract_others(&mut self, comm: &Communicator) -> Result<()> {
        let delay = Duration::from_micros(self.own.below(5000) as u64);
        if Kind::Abort.is_on() && self.own.once_in(12) {
            self.errands.abort(comm.abort_handle(), delay);
        }
        if let Some(watchdog) = self.watchdog.filter(|_| self.own.coin()) {
            watchdog.watch(comm)?;
        }
        if Kind::Record.is_on() && self.own.once_in(6) {
            self.record(comm);
        }
        Ok(())
    }

    fn record(&mut self, comm: &Communicator) {
        let recorder = comm.record(4 + self.own.below(20));
        let look = move || {
            let records = recorder.records();
            assert!(records.len() as u64 <= recorder.count(), "{records:?}");
            assert!(recorder.to_json("look").contains("look"));
        };
        self.errands.look(look, Duration::from_micros(self.own.below(3000) as u64));
    }

    /// Aborts a communicator while the call that follows is in progress, perhaps.
    pub(crate) fn abort_in_call(&mut self, comm: &Communicator) {
        if Kind::AbortInCall.is_on() && self.own.once_in(5) {
            let longest = self.own.pick(&[10, 50, 200, 1000]);
            let delay = Duration::from_micros(self.own.below(longest) as u64);
            self.errands.abort_at_once(comm.abort_handle(), delay);
        }
    }

    /// Ends a communicator.
    fn end(&mut self, comm: Communicator, has_lived: bool) -> Result<()> {
        // A rank that has failed does not wait for those that have not, and the others in the program end alike.
        let end = if has_lived { self.program.below(4) } else { 2 + self.own.below(2) };
        match end {
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

    fn run_phases(
        &mut self,
        comm: &Communicator,
        buffers: &mut Vec<NcclBuffer<f32>>,
        depth: usize,
    ) -> Result<()> {
        for _ in 0..1 + self.program.below(3) {
            let mut kept = Kept::default();
            let ran = self.run_steps(comm, buffers, &mut kept, depth);
            self.end_kept(comm, kept);
            if let Err(error) = &ran {
                assert!(!error.to_string().contains("is in use"), "nothing uses {comm:?}: {error}");
            }
            ran?;
        }
        Ok(())
    }

    fn end_kept(&mut self, comm: &Communicator, kept: Kept) {
        let Kept { registrations, windows } = kept;
        let delay = Duration::from_micros(self.own.below(500) as u64);
        for window in windows {
            match self.own.below(4) {
                0 => drop(window.deregister()),
                1 => std::mem::forget(window),
                2 => self.errands.drop(window, delay),
                _ => drop(window),
            }
        }
        let (number, mut later) = (registrations.len(), 0);
        for registration in registrations {
            match self.own.below(3) {
                0 => drop(registration.deregister()),
                1 => {
                    later += 1;
                    self.errands.drop(registration, delay);
                }
                _ => drop(registration),
            }
        }
        // Those that end later may find an abort in progress.
        let is_healthy = matches!(comm.async_error(), Ok(ResultCode::SUCCESS));
        KEPT.fetch_add(if is_healthy { later } else { number }, Relaxed);
    }

    fn run_steps(
        &mut self,
        comm: &Communicator,
        buffers: &mut Vec<NcclBuffer<f32>>,
        kept: &mut Kept,
        depth: usize,
    ) -> Result<()> {
        for _ in 0..self.program.below(7) {
            if Kind::Leave.is_on() && self.own.once_in(40) {
                self.leave_program(comm)?;
            }
            if Kind::Record.is_on() && self.own.once_in(30) {
                self.record(comm);
            }
            let step = self.program.pick(&STEPS);
            // Each step draws the same numbers on all ranks, whether it succeeds or not.
            let mut numbers = Random(self.program.next());
            if step.is_on() {
                self.step(step, &mut numbers, comm, buffers, kept, depth)?;
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

    fn step(
        &mut self,
        step: Kind,
        numbers: &mut Random,
        comm: &Communicator,
        buffers: &mut Vec<NcclBuffer<f32>>,
        kept: &mut Kept,
        depth: usize,
    ) -> Result<()> {
        let (nccl, rank, size) = (self.nccl, comm.rank(), comm.size());
        match step {
            Kind::AllReduce => self.all_reduce(comm, numbers.pick(&[0, 1, 100, 5_000, 70_000])),
            Kind::AllGather => {
                let count = numbers.pick(&[1, 3_000]);
                let (own, mut all) =
                    (self.vault.lend(vec![rank as i64; count]), self.vault.lend(vec![0_i64; count * size]));
                comm.all_gather(&*own, &mut *all, STREAM)?;
                assert!(all.iter().enumerate().all(|(index, from)| *from == (index / count) as i64));
                comm.broadcast_in_place(&mut *all, numbers.below(size), STREAM)
            }
            Kind::Exchange => self.exchange(comm, numbers.pick(&[1, 10, 40_000]), None),
            Kind::Barrier => comm.barrier(&mut [0_u8], STREAM),
            Kind::PreMulSum => {
                let op = comm.pre_mul_sum(3.0_f32)?;
                let mut values = self.vault.lend([1.0, 2.0]);
                comm.all_reduce_in_place(&mut *values, &op, STREAM)?;
                if self.own.coin() {
                    self.errands.drop(op, Duration::from_micros(self.own.below(500) as u64));
                }
                assert_eq!(values[..], [3.0 * size as f32, 6.0 * size as f32]);
                Ok(())
            }
            Kind::Alloc => {
                // Another rank may still write this one's.
                if self.own.coin() {
                    buffers.clear();
                }
                let mut buffer = nccl.alloc::<f32>(WINDOW)?;
                comm.all_reduce_in_place(&mut buffer, ReduceOp::Sum, STREAM)?;
                assert!(
                    buffer.as_slice().is_some_and(|elements| elements.iter().all(|element| *element == 0.0))
                );
                buffers.push(buffer);
                Ok(())
            }
            Kind::Register => {
                let Some(buffer) = buffers.last_mut() else { return Ok(()) };
                let registered = comm.register(buffer);
                KEPT.fetch_add(usize::from(registered.is_err()), Relaxed);
                kept.registrations.push(registered?);
                if self.own.coin() {
                    kept.registrations.swap_remove(0).deregister()?;
                }
                Ok(())
            }
            Kind::Window => self.put_into_window(numbers, comm, buffers, kept),
            Kind::Suspend => {
                comm.suspend()?;
                comm.resume()
            }
            Kind::Query => {
                let _ = (comm.memory(MemoryStatistic::Total)?, comm.async_error()?);
                Ok(())
            }
            Kind::FailingGroup if depth == 0 && numbers.once_in(3) => {
                self.fail_group(comm, numbers.coin())?;
                comm.revoke()?;
                self.live_in_child(comm.split(Some(0), 0).init()?, depth)
            }
            Kind::InitInGroup => {
                let id = nccl.unique_id()?;
                let pending = nccl.group(|g| nccl.communicator(1, 0, &id).init_in(g))?;
                if self.own.coin() { self.all_reduce(&pending.finish()?, 3) } else { Ok(()) }
            }
            Kind::MixedGroup if numbers.once_in(8) => self.mix_group(),
            Kind::GroupTimeout if self.has_timeout => {
                self.exchange(comm, 3_000, Some(Duration::from_millis(3)))
            }
            Kind::RefusedBuffer | Kind::PanickingText | Kind::PanickingBuffer => {
                self.refuse(Refusal::of(step, numbers), numbers, comm)
            }
            Kind::Guard | Kind::NestedAfterEnd | Kind::PanickingGuard => {
                self.guard(Act::of(step, numbers), numbers.below(3) > 0, comm)
            }
            _ => self.create(step, numbers, comm, depth),
        }
    }

    pub(crate) fn all_reduce(&self, comm: &Communicator, count: usize) -> Result<()> {
        let mut ones = self.vault.lend(vec![1.0_f32; count]);
        comm.all_reduce_in_place(&mut *ones, ReduceOp::Sum, STREAM)?;
        let wrong = ones.iter().position(|sum| *sum != comm.size() as f32);
        assert_eq!(wrong, None, "of {count}, on {comm:?}: {:?}", wrong.map(|index| ones[index]));
        Ok(())
    }

    /// Sends to the next rank and receives from the one before, in a group; with a limit, some are late.
    pub(crate) fn exchange(
        &mut self,
        comm: &Communicator,
        count: usize,
        limit: Option<Duration>,
    ) -> Result<()> {
        let (rank, size) = (comm.rank(), comm.size());
        let (next, previous) = ((rank + 1) % size, (rank + size - 1) % size);
        let (sent, mut received) =
            (self.vault.lend(vec![rank as u32; count]), self.vault.lend(vec![u32::MAX; count]));
        if let Some(limit) = limit.filter(|_| self.own.once_in(3)) {
            thread::sleep(limit * self.own.below(4) as u32);
        }
        self.nccl.group(|g| {
            if let Some(limit) = limit {
                g.timeout(limit);
            }
            comm.send(&*sent, next, g.stream(STREAM))?;
            comm.recv(&mut *received, previous, g.stream(STREAM))
        })?;
        let wrong = received.iter().position(|from| *from as usize != previous);
        assert_eq!(wrong, None, "of {count} from {previous}: {:?}", wrong.map(|index| received[index]));
        Ok(())
    }

    fn put_into_window(
        &mut self,
        numbers: &mut Random,
        comm: &Communicator,
        buffers: &mut Vec<NcclBuffer<f32>>,
        kept: &mut Kept,
    ) -> Result<()> {
        let (rank, size) = (comm.rank(), comm.size());
        let (next, previous) = ((rank + 1) % size, (rank + size - 1) % size);
        let mut buffer = self.nccl.alloc::<f32>(WINDOW)?;
        KEPT.fetch_add(1, Relaxed);
        // SAFETY: the ranks of the program give the same size, and no other ranks register any.
        let window = unsafe { comm.register_window(&mut buffer, WindowFlags::DEFAULT) }?;
        assert!(buffer.as_slice().is_none());
        let target = window.at(numbers.below(WINDOW - 7));
        comm.put_signal(&[1.0; 7], next, target, Signal::default(), STREAM)?;
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

    /// Runs a group that fails, or panics, after its first operation.
    fn fail_group(&self, comm: &Communicator, panics: bool) -> Result<()> {
        let mut buffer = vec![7_u8; 100];
        let ended = catch_unwind(AssertUnwindSafe(|| {
            self.nccl.group(|g| -> Result<()> {
                comm.all_reduce_in_place(&mut buffer, ReduceOp::Max, g.stream(STREAM))?;
                if panics { panic_on_purpose() } else { Err(stopped()) }
            })
        }));
        assert!(!matches!(ended, Ok(Ok(()))), "the group has succeeded");
        assert_eq!(buffer, [7; 100], "the group has started its operation");
        Ok(())
    }

    /// Creates a communicator, whose other rank never comes, in one group with an operation. It has to end, with whatever
    /// error.
    fn mix_group(&self) -> Result<()> {
        let config = Config::new().timeout(TIMEOUT);
        let (own, missing) = (self.nccl.unique_id()?, self.nccl.unique_id()?);
        let alone = self.nccl.communicator(1, 0, &own).config(&config).init()?;
        let mut values = self.vault.lend([1.0_f32; 3]);
        let _ = self.nccl.group(|g| {
            let pending = self.nccl.communicator(2, 0, &missing).config(&config).init_in(g)?;
            alone.all_reduce_in_place(&mut *values, ReduceOp::Sum, g.stream(STREAM))?;
            Ok(pending)
        });
        Ok(())
    }

    /// Passes a buffer that refuses, alone or in a group, and goes on.
    fn refuse(&mut self, refusal: Refusal, numbers: &mut Random, comm: &Communicator) -> Result<()> {
        let (is_grouped, is_first) = (numbers.coin(), numbers.below(4) > 0);
        let (mut sums, mut first) = (self.vault.lend([0.0_f32; 4]), self.vault.lend([0.0_f32; 4]));
        let ended = catch_unwind(AssertUnwindSafe(|| {
            let refused = Refused { refusal, comm };
            if !is_grouped {
                return comm.all_reduce(refused, &mut *sums, ReduceOp::Sum, STREAM);
            }
            self.nccl.group(|g| {
                if !is_first {
                    comm.all_reduce_in_place(&mut *first, ReduceOp::Sum, g.stream(STREAM))?;
                }
                comm.all_reduce(refused, &mut *sums, ReduceOp::Sum, g.stream(STREAM))
            })
        }));
        assert!(!matches!(ended, Ok(Ok(()))), "a buffer that refuses was taken");
        if is_grouped && !is_first {
            // The communicator has failed.
            return Err(stopped());
        }
        self.exchange(comm, 20_000, None)
    }

    /// Passes a buffer whose guard does something, alone or in a group.
    fn guard(&mut self, act: Act, is_grouped: bool, comm: &Communicator) -> Result<()> {
        let (nccl, vault) = (self.nccl, self.vault);
        let (ones, mut sums) = (vault.lend([1.0_f32; 300]), vault.lend([0.0_f32; 300]));
        let elements = &*ones;
        let ended = catch_unwind(AssertUnwindSafe(|| {
            if is_grouped {
                nccl.group(|g| {
                    let guard = Guard { act, nccl, comm, vault, group: Some(g) };
                    comm.all_reduce(Guarded { elements, guard }, &mut *sums, ReduceOp::Sum, g.stream(STREAM))
                })
            } else {
                let guard = Guard { act, nccl, comm, vault, group: None };
                comm.all_reduce(Guarded { elements, guard }, &mut *sums, ReduceOp::Sum, STREAM)
            }
        }));
        match ended {
            Ok(ended) => {
                ended?;
                assert!(sums.iter().all(|sum| *sum == comm.size() as f32), "{act:?}: {}", sums[0]);
                Ok(())
            }
            Err(_) if act == Act::Panics => Ok(()),
            Err(panic) => std::panic::resume_unwind(panic),
        }
    }
}
