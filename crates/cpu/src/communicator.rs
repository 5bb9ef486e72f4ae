//! A communicator: one rank's part in a world.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use libnccl::sys::{ncclRedOp_t, ncclResult_t};

use crate::data_type::DataType;
use crate::failure::{Failure, Result};
use crate::reduction::Reduction;
use crate::world::{Alarm, World};

#[derive(Debug)]
pub(crate) struct Communicator {
    world: Arc<World>,
    rank: usize,
    device: i32,
    finalized: AtomicBool,
    /// After this nothing works any more.
    failure: OnceLock<Failure>,
    scalars: Mutex<BTreeMap<u32, (DataType, [u8; 8])>>,
}

impl Communicator {
    pub(crate) fn new(world: Arc<World>, rank: usize, device: i32) -> Self {
        Self {
            world,
            rank,
            device,
            finalized: AtomicBool::new(false),
            failure: OnceLock::new(),
            scalars: Mutex::default(),
        }
    }

    pub(crate) fn world(&self) -> &World {
        &self.world
    }

    pub(crate) fn rank(&self) -> usize {
        self.rank
    }

    pub(crate) fn ranks(&self) -> usize {
        self.world.ranks()
    }

    pub(crate) fn device(&self) -> i32 {
        self.device
    }

    /// Whether operations can be started.
    pub(crate) fn ready(&self) -> Result {
        if self.finalized.load(Relaxed) {
            return Err(Failure::usage("the communicator has been finalized"));
        }
        match self.failure.get() {
            None => Ok(()),
            Some(failure) => Err(Failure {
                text: format!("the communicator has failed: {}", failure.text),
                ..failure.clone()
            }),
        }
    }

    /// What went wrong so far, other ranks' ends included.
    pub(crate) fn state(&self) -> ncclResult_t {
        if self.failure.get().is_none() && !self.finalized.load(Relaxed) {
            self.world.patrol();
            if let Err(failure) = self.world.alarmed() {
                self.note(&failure);
            }
        }
        self.failure.get().map_or(ncclResult_t::ncclSuccess, |failure| failure.code)
    }

    /// Takes note of an operation's failure: after some the ranks are no longer in step.
    pub(crate) fn note(&self, failure: &Failure) {
        if matches!(failure.code, ncclResult_t::ncclRemoteError | ncclResult_t::ncclInternalError) {
            // The first one counts.
            let _ = self.failure.set(failure.clone());
        }
    }

    /// Says that no more operations come from this rank. All that were started have ended.
    pub(crate) fn finalize(&self) -> Result {
        if self.finalized.swap(true, Relaxed) {
            return Err(Failure::argument("the communicator has already been finalized"));
        }
        self.world.leave(self.rank);
        Ok(())
    }

    /// Ends the others' waiting for this rank, and its own.
    pub(crate) fn give_up(&self, reason: Alarm) {
        self.world.alarm(self.rank, reason);
    }

    /// A new reduction that multiplies this rank's inputs by an element first.
    pub(crate) fn create_scalar(&self, data_type: DataType, scalar: [u8; 8]) -> ncclRedOp_t {
        // Numbers are never given twice, so that one that was destroyed, or is another communicator's, is
        // noticed.
        static NEXT: AtomicU32 = AtomicU32::new(ncclRedOp_t::ncclNumOps.0);
        let number = NEXT.fetch_add(1, Relaxed);
        self.scalars().insert(number, (data_type, scalar));
        ncclRedOp_t(number)
    }

    pub(crate) fn destroy_scalar(&self, op: ncclRedOp_t) -> Result {
        match self.scalars().remove(&op.0) {
            Some(_) => Ok(()),
            None => Err(Failure::argument(format!(
                "reduction {} is not one that this communicator created",
                op.0
            ))),
        }
    }

    pub(crate) fn reduction(&self, op: ncclRedOp_t, data_type: DataType) -> Result<Reduction> {
        Ok(match op {
            ncclRedOp_t::ncclSum => Reduction::Sum,
            ncclRedOp_t::ncclProd => Reduction::Prod,
            ncclRedOp_t::ncclMax => Reduction::Max,
            ncclRedOp_t::ncclMin => Reduction::Min,
            ncclRedOp_t::ncclAvg => Reduction::Avg,
            custom => match self.scalars().get(&custom.0) {
                Some((own, scalar)) if *own == data_type => Reduction::PreMulSum(*scalar),
                Some((own, _)) => {
                    return Err(Failure::argument(format!(
                        "reduction {} was created for {own:?}, not for {data_type:?}",
                        custom.0
                    )));
                }
                None => {
                    return Err(Failure::argument(format!(
                        "reduction {} is unknown to this communicator",
                        custom.0
                    )));
                }
            },
        })
    }

    fn scalars(&self) -> std::sync::MutexGuard<'_, BTreeMap<u32, (DataType, [u8; 8])>> {
        self.scalars.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Communicator {
    /// Nothing comes from a rank whose communicator is gone, however it went.
    fn drop(&mut self) {
        self.world.leave(self.rank);
    }
}
