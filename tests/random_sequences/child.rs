//! Communicators that are made from others.
#![allow(unsafe_code)] // Borrows communicators.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::thread;
use std::time::Duration;

use libnccl::communicator::ShrinkMode;
use libnccl::{Communicator, ReduceOp, Result};
use libnccl_observe::RecordExt;
use libnccl_test_support::random_inputs::{Random, mix};

use crate::buffer::STREAM;
use crate::kind::Kind;
use crate::rank::{Rank, stopped};

impl Rank<'_> {
    /// Creates a communicator from another, in the way of that kind, and uses it.
    pub(crate) fn create(
        &mut self,
        step: Kind,
        numbers: &mut Random,
        comm: &Communicator,
        depth: usize,
    ) -> Result<()> {
        let (rank, size) = (comm.rank(), comm.size());
        match step {
            Kind::Split if depth < 2 => {
                let color = (numbers.next() >> rank) as u32 & 1;
                let color = (numbers.below(4) > 0).then_some(color);
                self.abort_in_call(comm);
                self.live_in_child(comm.split(color, 0).init()?, depth)
            }
            Kind::Shrink if size > 1 && depth < 2 => {
                let excluded = numbers.below(size);
                let mode = numbers.pick(&[ShrinkMode::Default, ShrinkMode::Default, ShrinkMode::Abort]);
                self.abort_in_call(comm);
                let shrunk = || comm.shrink(&[excluded], mode).init();
                self.live_in_child((excluded != rank).then(shrunk).transpose()?, depth)
            }
            // Without a limit, a rank that joins waits for those that have failed meanwhile.
            Kind::Grow if size < 4 && depth < 2 && self.has_timeout => self.grow(comm, depth),
            Kind::Borrowed if self.has_timeout => self.borrow(comm),
            Kind::RecordInGroup => self.record_in_group(numbers, comm),
            _ => Ok(()),
        }
    }

    /// Runs the program of a child; ranks without one go on with the program where the others do.
    pub(crate) fn live_in_child(&mut self, child: Option<Communicator>, depth: usize) -> Result<()> {
        let program = Random(self.program.next());
        let program = std::mem::replace(&mut self.program, program);
        let lived = child.map_or(Ok(()), |child| self.live(child, depth + 1));
        self.program = program;
        lived
    }

    fn grow(&mut self, comm: &Communicator, depth: usize) -> Result<()> {
        let size = comm.size() + 1;
        let id = (comm.rank() == 0).then(|| comm.unique_id()).transpose()?;
        let mut new = self.sibling();
        let config = self.config();
        self.abort_in_call(comm);
        thread::scope(|scope| {
            let joined = id.map(|id| {
                let config = &config;
                scope.spawn(move || {
                    let joined = new.nccl.communicator(size, size - 1, &id).grow().config(config).init();
                    joined.and_then(|comm| new.live_in_child(Some(comm), depth))
                })
            });
            let grown = comm.grow(size, id.as_ref()).config(&config).init();
            let lived = grown.and_then(|grown| self.live_in_child(Some(grown), depth));
            // The errors of the new rank are its own.
            joined.into_iter().for_each(|joined| drop(joined.join().expect("no assertion fails")));
            lived
        })
    }

    /// Returns a rank with the same program.
    fn sibling(&mut self) -> Self {
        Self {
            program: self.program.clone(),
            own: Random(mix(self.own.next())),
            errands: self.errands.clone(),
            ..*self
        }
    }

    /// Borrows a communicator that nothing else uses or ends, and uses it with a limit, with ranks that are late.
    fn borrow(&mut self, comm: &Communicator) -> Result<()> {
        const LIMIT: Duration = Duration::from_millis(3);
        let Some(owner) = comm.split(Some(0), 0).init()? else { return Ok(()) };
        let nccl = self.nccl;
        let exchange = |borrowed: &Communicator| self.exchange(borrowed, 40_000, Some(LIMIT));
        // SAFETY: live, and used by nothing else as long as it is borrowed.
        let used = unsafe { Communicator::borrow_raw(nccl, owner.as_raw(), exchange) };
        if used.is_err() {
            // Those that are late write what they send.
            thread::sleep(LIMIT * 4);
        }
        used
    }

    /// Begins to record in a group, of which an operation is then refused.
    fn record_in_group(&mut self, numbers: &mut Random, comm: &Communicator) -> Result<()> {
        let Some(child) = comm.split(Some(0), 0).init()? else { return Ok(()) };
        let (is_refused, is_message) = (numbers.coin(), numbers.coin());
        let mut values = self.vault.lend([1.0_f32; 3]);
        let (sent, mut received) = ([1.0_f32], [0.0_f32]);
        let mut recorder = None;
        let ended = self.nccl.group(|g| {
            child.all_reduce_in_place(&mut *values, ReduceOp::Sum, g.stream(STREAM))?;
            recorder = Some(child.record(16));
            let _ = match (is_refused, is_message) {
                (false, _) => Ok(()),
                (_, true) => child.send(&sent, 99, g.stream(STREAM)),
                (_, false) => child.broadcast(&sent, &mut received, 99, g.stream(STREAM)),
            };
            Ok(())
        });
        assert!(!is_refused || ended.is_err(), "an operation with rank 99 was taken");
        let Some(recorder) = recorder else { return Err(stopped()) };
        let read = catch_unwind(AssertUnwindSafe(|| (recorder.count(), recorder.records())));
        let (count, records) = read.expect("records can be read");
        assert_eq!(records.len() as u64, count, "{records:?}");
        assert!(count <= 1, "{count} records of 1 operation: {records:?}");
        if ended.is_ok() {
            self.all_reduce(&child, 10)?;
        }
        Ok(())
    }
}
