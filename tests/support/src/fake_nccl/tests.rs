//! What the callers of the fake rely on.

use std::thread;

use libnccl::{Communicator, Nccl, Result, Slice, StreamRef};

use super::FakeNccl;

/// Opens a library, with a communicator of four ranks.
fn open(fake: &FakeNccl) -> (Nccl, Communicator) {
    let nccl = fake.nccl();
    let comm = nccl.init_all(&[0]).unwrap().remove(0);
    fake.take_log();
    (nccl, comm)
}

fn send(comm: &Communicator) -> Result<()> {
    // SAFETY: never read: the fake moves no data.
    let buffer = unsafe { Slice::from_device_ptr(std::ptr::without_provenance::<f32>(0x100), 3) };
    comm.send(buffer, 1, StreamRef::DEFAULT)
}

#[test]
fn use_of_an_ended_communicator_and_an_open_group_are_violations() {
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

#[test]
fn call_of_another_thread_goes_to_the_fake_of_its_communicator() {
    let fakes = [FakeNccl::new(), FakeNccl::new()];
    let comms = fakes.each_ref().map(|fake| {
        fake.attach();
        open(fake).1
    });
    for comm in comms {
        thread::spawn(move || send(&comm).and_then(|()| comm.destroy())).join().unwrap().unwrap();
    }
    for fake in fakes {
        assert_eq!(fake.live_communicators(), 0);
    }
}
