//! What the tests start from.

use std::any::Any;
use std::cell::RefCell;
use std::ptr;

use libnccl::{
    CollectiveConfig, Communicator, DeviceSlice, DeviceSliceMut, Nccl, Result, StreamRef, UniqueId, Version,
};

use crate::recorder::Recorder;

/// A recording, and two communicators.
pub(crate) struct World {
    pub(crate) recorder: Recorder,
    pub(crate) nccl: Nccl,
    /// `comm0` of the logs.
    pub(crate) comm: Communicator,
    /// `comm1`, for methods that consume it.
    spare: RefCell<Option<Communicator>>,
    pub(crate) config: CollectiveConfig,
}

impl World {
    pub(crate) fn new() -> Self {
        Self::of(Version::HEADER)
    }

    pub(crate) fn of(version: Version) -> Self {
        let recorder = Recorder::of(version);
        let nccl = recorder.nccl();
        let mut comms = nccl.init_all(&[0, 1]).unwrap();
        recorder.take_log();
        let spare = RefCell::new(comms.pop());
        let config = CollectiveConfig::new().min_ctas(2).user_profiler_tag(7);
        Self { recorder, nccl, comm: comms.remove(0), spare, config }
    }

    pub(crate) fn spare(&self) -> Communicator {
        self.spare.take().unwrap()
    }

    /// Ends everything, and checks that everything has ended.
    pub(crate) fn close(self, context: &str) {
        let recorder = self.recorder.clone();
        drop(self);
        recorder.assert_clean(context);
    }
}

/// What a method returned: kept until the log has been read, as its drop calls NCCL too.
pub(crate) type Kept = Box<dyn Any>;

pub(crate) fn keep<T: Any>(value: T) -> Kept {
    Box::new(value)
}

pub(crate) const SEND: usize = 0x1_0000;
pub(crate) const RECV: usize = 0x2_0000;

/// A buffer at [`SEND`].
pub(crate) fn send<T>(length: usize) -> DeviceSlice<'static, T> {
    // SAFETY: never read, as the recorder does nothing.
    unsafe { DeviceSlice::from_raw_parts(ptr::without_provenance(SEND), length) }
}

/// A buffer at [`RECV`].
pub(crate) fn recv<T>(length: usize) -> DeviceSliceMut<'static, T> {
    // SAFETY: as above.
    unsafe { DeviceSliceMut::from_raw_parts(ptr::without_provenance_mut(RECV), length) }
}

pub(crate) fn stream() -> StreamRef<'static> {
    // SAFETY: as above.
    unsafe { StreamRef::from_raw(ptr::without_provenance_mut(0x5)) }
}

pub(crate) fn id(byte: u8) -> UniqueId {
    UniqueId::from_bytes([byte; UniqueId::BYTES])
}

/// An `all_reduce`, for tests that are not about what it is.
pub(crate) fn work(comm: &Communicator) -> Result<()> {
    comm.all_reduce(send::<f32>(3), recv::<f32>(3), libnccl::ReduceOp::Sum, stream())
}

/// Its line in the log.
pub(crate) const WORK: &str = "ncclAllReduce(0x10000, 0x20000, 3, Float32, Sum, comm0, 0x5)";
