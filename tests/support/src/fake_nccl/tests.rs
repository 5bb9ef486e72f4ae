//! The checks of the fake that its callers rely on.

use libnccl::{Communicator, Nccl};

use super::FakeNccl;

/// Opens a library, with a communicator of four ranks.
fn open(fake: &FakeNccl) -> (Nccl, Communicator) {
    let nccl = fake.nccl();
    let comm = nccl.init_all(&[0]).unwrap().remove(0);
    fake.take_log();
    (nccl, comm)
}

#[test]
fn use_of_a_destroyed_communicator_and_an_open_group_are_violations() {
    let fake = FakeNccl::new();
    let (nccl, comm) = open(&fake);
    let (raw, table) = (comm.into_raw(), nccl.as_raw());
    // SAFETY: the fake has no memory behind a handle.
    unsafe {
        table.ncclCommDestroy.unwrap()(raw);
        table.ncclCommAbort.unwrap()(raw);
        table.ncclGroupStart.unwrap()();
    }
    let expected = ["ncclCommAbort of comm0, which has ended 1 times", "a thread is in 1 groups"];
    assert_eq!(fake.violations(), expected);
}

#[test]
#[should_panic(expected = "comm0 is never ended")]
fn communicator_that_never_ends_is_not_clean() {
    let fake = FakeNccl::new();
    let (_nccl, comm) = open(&fake);
    let _raw = comm.into_raw();
    fake.assert_clean("given up");
}
