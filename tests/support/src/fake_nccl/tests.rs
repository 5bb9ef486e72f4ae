//! The checks of the fake that its callers rely on.

use super::FakeNccl;

#[test]
fn use_of_a_destroyed_communicator_an_open_group_and_a_leak_are_found() {
    let fake = FakeNccl::new();
    let nccl = fake.nccl();
    let mut comms = nccl.init_all(&[0, 1]).unwrap();
    let (_leaked, raw, table) = (comms.remove(1).into_raw(), comms.remove(0).into_raw(), nccl.as_raw());
    // SAFETY: the fake has no memory behind a handle.
    unsafe {
        table.ncclCommDestroy.unwrap()(raw);
        table.ncclCommAbort.unwrap()(raw);
        table.ncclGroupStart.unwrap()();
    }
    let expected = ["ncclCommAbort of comm0, which has ended 1 times", "a thread is in 1 groups"];
    assert_eq!(fake.violations(), expected);
    assert_eq!(fake.leaks(), ["comm1 is never ended"]);
    std::panic::catch_unwind(|| fake.assert_clean("with a leak")).unwrap_err();
}
