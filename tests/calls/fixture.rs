//! The fake library, communicators and buffers that the tests start from.

use std::any::Any;
use std::cell::RefCell;
use std::ptr;
use std::time::Duration;

use libnccl::communicator::AbortHandle;
use libnccl::config::CollectiveConfig;
use libnccl::{Communicator, Config, Nccl, Result, Slice, SliceMut, StreamRef, UniqueId, Version};
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
    /// The timeout of the communicators. Without one, they block.
    timeout: Option<Duration>,
}

impl Fixture {
    pub(crate) fn new() -> Self {
        Self::of_version(Version::HEADER)
    }

    pub(crate) fn of_version(version: Version) -> Self {
        let fixture = Self::of(FakeNccl::of_version(version), None).unwrap();
        fixture.fake.take_log();
        fixture
    }

    /// Creates communicators of a fake, with this timeout.
    pub(crate) fn of(fake: FakeNccl, timeout: Option<Duration>) -> Result<Self> {
        let nccl = fake.load()?;
        // Queried once, when first needed: here, as this call is not a method's.
        let _ = nccl.memory_space();
        let mut comms = match timeout {
            None => nccl.init_all(&[0, 1])?,
            Some(timeout) => {
                let config = Config::new().timeout(timeout);
                [(); 2]
                    .map(|()| nccl.communicator(4, 2, &id(1)).config(&config).init())
                    .into_iter()
                    .collect::<Result<_>>()?
            }
        };
        let spare = RefCell::new(comms.pop());
        let config = CollectiveConfig::new().min_ctas(2).user_profiler_tag(7);
        Ok(Self { fake, nccl, comm: comms.remove(0), spare, config, timeout })
    }

    /// Returns options that make a communicator nonblocking.
    pub(crate) fn timed(&self) -> Config {
        Config::new().timeout(self.timeout.unwrap_or(Duration::from_secs(10)))
    }

    /// Returns handles of both communicators.
    pub(crate) fn abort_handles(&self) -> Vec<AbortHandle> {
        let spare = self.spare.borrow();
        [&self.comm].into_iter().chain(spare.as_ref()).map(Communicator::abort_handle).collect()
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
pub(crate) fn send<T: libnccl::Element>(length: usize) -> Slice<'static, T> {
    // SAFETY: never read: the fake moves no data.
    unsafe { Slice::from_device_ptr(ptr::without_provenance(SEND), length) }
}

/// A buffer at [`RECV`].
pub(crate) fn recv<T: libnccl::Element>(length: usize) -> SliceMut<'static, T> {
    // SAFETY: as above.
    unsafe { SliceMut::from_device_ptr(ptr::without_provenance_mut(RECV), length) }
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
