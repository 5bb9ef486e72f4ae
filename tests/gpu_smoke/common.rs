//! The form of a scenario, and what scenarios share.

use std::time::{Duration, Instant};

use libnccl::error::ResultCode;
use libnccl::{Communicator, ReduceOp, Result};

use crate::device::{Buffer, Device};
use crate::rank::{Rank, Setting};

/// A setting, a name, and what each rank does.
pub(crate) type Scenario = (Setting, &'static str, fn(&Rank));

macro_rules! scenarios {
    ($($setting:ident: $($(#[$attribute:meta])* $name:ident),*;)*) => {
        pub(crate) const SCENARIOS: &[$crate::common::Scenario] = &[$($(
            $(#[$attribute])*
            ($crate::rank::Setting::$setting, stringify!($name), $name)
        ),*),*];
    };
}
pub(crate) use scenarios;

pub(crate) const COUNT: usize = 1000;
/// A limit for what should happen at once.
pub(crate) const MOMENT: Duration = Duration::from_secs(1);
/// A limit for calls that wait for nothing, but may do much.
pub(crate) const SHORT: Duration = Duration::from_secs(10);

pub(crate) fn within<T>(limit: Duration, what: impl FnOnce() -> T) -> T {
    let start = Instant::now();
    let value = what();
    assert!(start.elapsed() < limit, "it took {:?}", start.elapsed());
    value
}

/// Starts an in-place sum over the ranks.
pub(crate) fn sum(device: &Device, communicator: &Communicator, buffer: &mut Buffer) -> Result<()> {
    communicator.all_reduce_in_place(buffer.slice_mut::<i32>(COUNT), ReduceOp::Sum, device.stream())
}

/// Asserts that an `all_reduce` is right, after which all ranks are connected.
pub(crate) fn assert_works(device: &Device, communicator: &Communicator) {
    let mut buffer = device.upload(&[communicator.rank() as i32 + 3; COUNT]);
    sum(device, communicator, &mut buffer).unwrap();
    let expected: i32 = (0..communicator.size() as i32).map(|rank| rank + 3).sum();
    assert_eq!(buffer.read::<i32>(COUNT), [expected; COUNT]);
    assert_eq!(communicator.async_error().unwrap(), ResultCode::SUCCESS);
}

/// Creates the rank's communicator, and connects it with the others.
pub(crate) fn connected(rank: &Rank) -> (Device, Communicator) {
    let (device, comm) = (Device::new(), rank.join("communicator"));
    assert_works(&device, &comm);
    (device, comm)
}
