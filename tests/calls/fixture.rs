//! The fake library, communicators and buffers that the tests start from.

use std::any::Any;
use std::cell::RefCell;
use std::ptr;

use libnccl::{
    CollectiveConfig, Communicator, DeviceSlice, DeviceSliceMut, Nccl, Result, StreamRef, UniqueId, Version,
};
use libnccl_test_support::fake_nccl::FakeNccl;

/// A fake library, and two communicators.
pub(crate) struct Fixture {
    pub(crate) fake: FakeNccl,
    pub(crate) nccl: Nccl,
    /// `comm0` in the log.
    pub(crate) comm: Communicator,
    /// `comm1` in the log, for methods that consume a communicator.
    spare: RefCell<Option<Communicator>>,
    pub(crate) config: CollectiveConfig,
}

impl Fixture {
    pub(crate) fn new() -> Self {
        Self::of_release(Version::HEADER)
    }

    pub(crate) fn of_release(version: Version) -> Self {
        let fake = FakeNccl::of_release(version);
        let nccl = fake.nccl();
        let mut comms = nccl.init_all(&[0, 1]).unwrap();
        fake.take_log();
        let spare = RefCell::new(comms.pop());
        let config = CollectiveConfig::new().min_ctas(2).user_profiler_tag(7);
        Self { fake, nccl, comm: comms.remove(0), spare, config }
    }

    pub(crate) fn spare(&self) -> Communicator {
        self.spare.take().unwrap()
    }

    /// Drops everything, and asserts that everything has ended.
    pub(crate) fn close(self, context: &str) {
        let fake = self.fake.clone();
        drop(self);
        fake.assert_clean(context);
    }
}

/// A method's result, kept until the log has been read: its drop calls NCCL too.
pub(crate) type Kept = Box<dyn Any>;

pub(crate) fn keep<T: Any>(value: T) -> Kept {
    Box::new(value)
}

pub(crate) const SEND: usize = 0x1_0000;
pub(crate) const RECV: usize = 0x2_0000;

/// A buffer at [`SEND`].
pub(crate) fn send<T: libnccl::Element>(length: usize) -> DeviceSlice<'static, T> {
    // SAFETY: never read: the fake moves no data.
    unsafe { DeviceSlice::from_raw_parts(ptr::without_provenance(SEND), length) }
}

/// A buffer at [`RECV`].
pub(crate) fn recv<T: libnccl::Element>(length: usize) -> DeviceSliceMut<'static, T> {
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

/// Starts an `all_reduce`, where any operation would do.
pub(crate) fn work(comm: &Communicator) -> Result<()> {
    comm.all_reduce(send::<f32>(3), recv::<f32>(3), libnccl::ReduceOp::Sum, stream())
}

/// The line of [`work`] in the log.
pub(crate) const WORK: &str = "ncclAllReduce(0x10000, 0x20000, 3, Float32, Sum, comm0, 0x5)";
