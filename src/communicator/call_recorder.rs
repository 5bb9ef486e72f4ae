use std::hint;
use std::sync::Arc;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64};

use super::identity::{self, Identity};
use crate::recorder::{
    CommunicatorDump, IS_FIRST_OF_GROUP, IS_GROUPED, Place, Ring, encode_raw, process_document,
};
use crate::{MemorySpace, Operation, UniqueId, Version, sys};

/// The recorder of a communicator whose C calls are intercepted, for `libnccl-trace.so`: no part of the API.
///
/// Any thread may record; operations of several threads at the same time wait for each other.
#[derive(Debug)]
pub struct CallRecorder {
    ring: Ring,
    identity: Identity,
    name: Option<String>,
    /// The size, in the upper half, and the rank.
    membership: AtomicU64,
    memory_space: MemorySpace,
    state: AtomicU8,
    /// Set while a thread writes to the ring.
    is_locked: AtomicBool,
}

/// The call of an operation has not returned, or the end of its group.
const INSIDE: u8 = 1;
/// It has returned `ncclInProgress`.
const IN_PROGRESS: u8 = 2;
const FAILED: u8 = 4;
const ENDED: u8 = 8;
/// An operation has failed.
const HAS_ERROR: u8 = 16;

/// The arguments of a C call that are recorded.
#[derive(Debug, Clone, Copy)]
pub struct CallArguments {
    /// The method of `Communicator` that makes this call.
    pub operation: &'static Operation,
    /// `ncclDataType_t`.
    pub data_type: Option<sys::ncclDataType_t>,
    /// The numbers of elements that the rank sends and receives.
    pub elements: [usize; 2],
    /// The root or the other rank.
    pub rank: Option<i32>,
    /// The address of the stream.
    pub stream: usize,
}

/// The place of an operation in a group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GroupPlace {
    /// There is no group.
    Ungrouped,
    /// The first of its communicator.
    First,
    /// A later one.
    Later,
}

impl CallRecorder {
    /// Creates the recorder of a communicator with this identity, 0 if it is not known, and a ring of so many entries.
    #[must_use]
    pub fn new(
        identity: u64,
        name: Option<String>,
        [size, rank]: [u32; 2],
        memory_space: MemorySpace,
        entries: usize,
    ) -> Self {
        let recorder = Self {
            ring: Ring::new(entries),
            identity: Identity::default(),
            name,
            membership: AtomicU64::new(u64::from(size) << 32 | u64::from(rank)),
            memory_space,
            state: AtomicU8::new(0),
            is_locked: AtomicBool::new(false),
        };
        recorder.identity.set(identity);
        recorder
    }

    /// Returns the identity of communicators that an id creates.
    #[must_use]
    pub fn identity_of_unique_id(id: &sys::ncclUniqueId) -> u64 {
        identity::of_unique_id(&UniqueId::from_raw(*id))
    }

    /// Returns an identity for communicators that are created together in this process.
    #[must_use]
    pub fn identity_of_this_process() -> u64 {
        identity::of_this_process()
    }

    /// Returns the identity of the next child, of a color if there are several.
    #[must_use]
    pub fn identity_of_child(&self, color: i32) -> u64 {
        self.identity.of_child(color)
    }

    /// Returns the size and the rank.
    #[must_use]
    pub fn membership(&self) -> [u32; 2] {
        let membership = self.membership.load(Relaxed);
        [(membership >> 32) as u32, membership as u32]
    }

    /// Records an operation before its call.
    #[inline]
    pub fn begin(&self, arguments: CallArguments, place: GroupPlace) {
        let CallArguments { operation, data_type, elements, rank, stream } = arguments;
        let group = match place {
            GroupPlace::Ungrouped => 0,
            GroupPlace::First => IS_GROUPED | IS_FIRST_OF_GROUP,
            GroupPlace::Later => IS_GROUPED,
        };
        let call = encode_raw(operation, data_type.map(|data_type| data_type.0), rank);
        self.lock();
        self.ring.push(call | group, elements, stream, None);
        // One that was in progress is complete: NCCL begins no other before.
        self.state.store(self.state.load(Relaxed) & !IN_PROGRESS | INSIDE, Relaxed);
        self.unlock();
    }

    /// Records that the last operation, or its group, has returned.
    #[inline]
    pub fn finish(&self) {
        self.lock();
        self.state.store(self.state.load(Relaxed) & !INSIDE, Relaxed);
        self.unlock();
    }

    /// Records that the last operation, or its group, goes on after it has returned.
    #[cold]
    pub fn finish_in_progress(&self) {
        self.lock();
        self.state.store(self.state.load(Relaxed) & !INSIDE | IN_PROGRESS, Relaxed);
        self.unlock();
    }

    /// Records that nothing is in progress.
    pub fn complete(&self) {
        if self.state.load(Relaxed) & IN_PROGRESS != 0 {
            self.lock();
            self.state.store(self.state.load(Relaxed) & !IN_PROGRESS, Relaxed);
            self.unlock();
        }
    }

    /// Records that the last operation, or all of its group, has failed. Returns `true` if none has before.
    #[cold]
    pub fn fail(&self) -> bool {
        self.lock();
        self.ring.fail();
        let state = self.state.load(Relaxed);
        self.state.store(state & !(INSIDE | IN_PROGRESS) | HAS_ERROR, Relaxed);
        self.unlock();
        state & HAS_ERROR == 0
    }

    /// Records that the communicator has failed, and with it an operation that is in progress. Returns `false` if it had
    /// failed before.
    #[cold]
    pub fn fail_all(&self) -> bool {
        if self.is_inside() {
            self.fail();
        }
        self.set(FAILED) & FAILED == 0
    }

    /// Records the end of the communicator.
    pub fn end(&self) {
        self.set(ENDED);
    }

    /// Returns `true` while an operation is in progress.
    #[must_use]
    pub fn is_inside(&self) -> bool {
        self.state.load(Relaxed) & (INSIDE | IN_PROGRESS) != 0
    }

    /// Returns the records of communicators of this process as `Recorder::to_json` does, in their order; `version` is what
    /// `ncclGetVersion` returns.
    #[must_use]
    pub fn all_to_json(reason: &str, version: u32, recorders: &[Arc<Self>]) -> String {
        let documents = recorders.iter().map(|recorder| recorder.dump().to_document()).collect();
        process_document(reason, Some(Version::from_code(version).to_string()), documents).to_json()
    }

    fn dump(&self) -> CommunicatorDump<'_> {
        let ([size, rank], state) = (self.membership(), self.state.load(Relaxed));
        CommunicatorDump {
            id: self.identity.get(),
            name: self.name.clone(),
            place: Place {
                size: size as usize,
                rank: rank as usize,
                is_inside: state & (INSIDE | IN_PROGRESS) != 0,
                is_host: self.memory_space == MemorySpace::Host,
            },
            memory_space: self.memory_space,
            is_ended: state & ENDED != 0,
            is_failed: state & FAILED != 0,
            ring: Some(&self.ring),
        }
    }

    /// Adds a flag, and returns the flags before.
    fn set(&self, flag: u8) -> u8 {
        self.lock();
        let before = self.state.load(Relaxed);
        self.state.store(before | flag, Relaxed);
        self.unlock();
        before
    }

    #[inline]
    fn lock(&self) {
        while self.is_locked.swap(true, Acquire) {
            hint::spin_loop();
        }
    }

    #[inline]
    fn unlock(&self) {
        self.is_locked.store(false, Release);
    }
}
