//! Buffers and observers whose code panics or uses the library.
#![allow(unsafe_code)] // Declares `into_slice` as the trait demands.

use std::error::Error as StdError;
use std::fmt;
use std::panic::resume_unwind;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::thread;

use libnccl::buffer::{Buffer, BufferResult};
use libnccl::observer::{CommunicatorEvent, Membership, Observer, OperationEnd, OperationStart};
use libnccl::{Communicator, Group, Nccl, ReduceOp, Result, Slice, StreamRef};

use crate::checks::Vault;

pub(crate) const STREAM: StreamRef<'static> = StreamRef::DEFAULT;

/// Panics without a message.
pub(crate) fn panic_on_purpose() -> ! {
    resume_unwind(Box::new(OnPurpose { panics: false }))
}

/// Panics with a payload that panics when it is dropped.
pub(crate) fn panic_twice_on_purpose() -> ! {
    resume_unwind(Box::new(OnPurpose { panics: true }))
}

/// The payload of a panic that belongs to a sequence.
struct OnPurpose {
    panics: bool,
}

impl Drop for OnPurpose {
    fn drop(&mut self) {
        if self.panics && !thread::panicking() {
            panic_on_purpose();
        }
    }
}

/// An observer that panics, and uses NCCL itself.
#[derive(Default)]
pub(crate) struct HostileObserver(AtomicU64);

impl HostileObserver {
    fn act(&self) {
        match self.0.fetch_add(1, Relaxed) % 8 {
            2 => panic_on_purpose(),
            4 => panic_twice_on_purpose(),
            7 => {
                // Refused in an open group.
                let comms = libnccl_cpu::nccl().init_all(&[0]);
                let _ = comms.and_then(|comms| comms[0].barrier(&mut [0_u8], STREAM));
            }
            _ => {}
        }
    }
}

impl Observer for HostileObserver {
    fn on_start(&self, _: &OperationStart<'_>) {
        self.act();
    }

    fn on_end(&self, _: &OperationEnd<'_>) {
        self.act();
    }

    fn on_communicator(&self, _: &Membership, _: CommunicatorEvent) {
        self.act();
    }
}

/// The ways in which a buffer refuses its elements. All except the panic return an error.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Refusal {
    Error,
    /// The error's text opens a group and creates a communicator.
    ReenteringText,
    PanickingText,
    /// Uses the communicator first.
    Reenters,
    Panics,
}

/// A buffer that is not ready.
pub(crate) struct Refused<'a> {
    pub(crate) refusal: Refusal,
    pub(crate) comm: &'a Communicator,
}

#[derive(Debug)]
struct NotReady(Refusal);

impl fmt::Display for NotReady {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Refusal::PanickingText => panic_on_purpose(),
            Refusal::ReenteringText => {
                let nccl = libnccl_cpu::nccl();
                write!(f, "{:?}, {:?}", nccl.group(|_| Ok(())), nccl.init_all(&[0]))
            }
            _ => f.write_str("not ready"),
        }
    }
}

impl StdError for NotReady {}

impl<'a> Buffer<'a> for Refused<'a> {
    type Element = f32;
    type Guard = ();

    unsafe fn into_slice(self, _: StreamRef<'a>) -> BufferResult<(Slice<'a, f32>, ())> {
        match self.refusal {
            Refusal::Panics => panic_on_purpose(),
            Refusal::Reenters => drop(self.comm.barrier(&mut [0_u8], STREAM)),
            _ => {}
        }
        Err(Box::new(NotReady(self.refusal)))
    }
}

/// The action of a guard when it is dropped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Act {
    /// Uses the communicator.
    Operates,
    /// Uses it in a new group.
    OpensGroup,
    /// Uses the group to which the guard belonged.
    UsesOldGroup,
    /// Opens a group inside the one to which the guard belonged, and uses the communicator in there.
    NestsInOldGroup,
    Panics,
}

/// A buffer with a guard.
pub(crate) struct Guarded<'a, 'e> {
    pub(crate) elements: &'a [f32],
    pub(crate) guard: Guard<'a, 'e>,
}

/// A guard that does something when it is dropped.
pub(crate) struct Guard<'a, 'e> {
    pub(crate) act: Act,
    pub(crate) nccl: &'a Nccl,
    pub(crate) comm: &'a Communicator,
    pub(crate) vault: &'a Vault,
    /// The group of the operation, if it has one.
    pub(crate) group: Option<&'a Group<'a, 'e>>,
}

impl<'a, 'e: 'a> Buffer<'a> for Guarded<'a, 'e> {
    type Element = f32;
    type Guard = Guard<'a, 'e>;

    unsafe fn into_slice(self, _: StreamRef<'a>) -> BufferResult<(Slice<'a, f32>, Guard<'a, 'e>)> {
        Ok((self.elements.into(), self.guard))
    }
}

impl Guard<'_, '_> {
    /// Checks a sum, unless the communicator has an error.
    fn sum(&self, sum: impl FnOnce(&[f32], &mut [f32]) -> Result<()>) {
        let (ones, mut sums) = (self.vault.buffer([1.0; 500]), self.vault.buffer([0.0; 500]));
        if sum(&ones, &mut sums).is_ok() {
            let size = self.comm.size() as f32;
            assert!(sums.iter().all(|sum| *sum == size), "{:?}: {} instead of {size}", self.act, sums[0]);
        }
    }
}

impl Drop for Guard<'_, '_> {
    fn drop(&mut self) {
        if thread::panicking() {
            return;
        }
        let comm = self.comm;
        match (self.act, self.group) {
            (Act::Panics, _) => panic_on_purpose(),
            (Act::Operates, _) => self.sum(|send, recv| comm.all_reduce(send, recv, ReduceOp::Sum, STREAM)),
            (Act::OpensGroup, _) => self.sum(|send, recv| {
                self.nccl.group(|g| comm.all_reduce(send, recv, ReduceOp::Sum, g.stream(STREAM)))
            }),
            (Act::UsesOldGroup, Some(group)) => {
                let used = comm.all_reduce_in_place::<f32>(&mut [], ReduceOp::Sum, group.stream(STREAM));
                assert!(used.is_err(), "a group that has ended took an operation");
            }
            (Act::NestsInOldGroup, Some(group)) => {
                self.sum(|send, recv| group.group(|_| comm.all_reduce(send, recv, ReduceOp::Sum, STREAM)));
                // The guard of a refused operation is dropped before the group ends.
                let used = comm.all_reduce_in_place::<f32>(&mut [], ReduceOp::Sum, group.stream(STREAM));
                if used.is_err_and(|error| error.to_string().ends_with("the group has ended")) {
                    assert!(group.group(|_| Ok(())).is_err(), "a group opened in one that has ended");
                }
            }
            (Act::UsesOldGroup | Act::NestsInOldGroup, None) => {}
        }
    }
}
