//! What the callers of the fake rely on.

use std::thread;

use libnccl::sys::Functions;
use libnccl::{Communicator, DeviceSlice, Error, Nccl, Result, StreamRef, Version};

use super::rule::AsyncStates;
use super::{ErrorText, FakeNccl, INVALID_ARGUMENT, Output, Rule};

/// Opens a library, with a communicator of four ranks.
fn open(fake: &FakeNccl) -> (Nccl, Communicator) {
    let nccl = fake.nccl();
    let comm = nccl.init_all(&[0]).unwrap().remove(0);
    fake.take_log();
    (nccl, comm)
}

fn send(comm: &Communicator) -> Result<()> {
    // SAFETY: never read: the fake moves no data.
    let buffer = unsafe { DeviceSlice::from_raw_parts(std::ptr::without_provenance::<f32>(0x100), 3) };
    comm.send(buffer, 1, StreamRef::DEFAULT)
}

#[test]
fn log_has_each_call_with_its_arguments_once() {
    let fake = FakeNccl::new();
    let (nccl, comm) = open(&fake);
    send(&comm).unwrap();
    assert_eq!(fake.take_log(), ["ncclSend(0x100, 3, Float32, 1, comm0, null)"]);
    assert_eq!(fake.take_log(), [""; 0]);
    let mut memory = nccl.alloc::<u8>(2).unwrap();
    nccl.group(|g| g.broadcast_in_place(&comm, &mut memory, 0, StreamRef::DEFAULT)).unwrap();
    let grouped = "ncclBroadcast(memory, memory, 2, Uint8, 0, comm0, null)";
    assert_eq!(fake.take_log(), ["ncclMemAlloc(&, 2)", "ncclGroupStart()", grouped, "ncclGroupEnd()"]);
    assert_eq!(fake.take_started(), ["ncclSend(0x100, 3, Float32, 1, comm0, null)", grouped]);
}

#[test]
fn rule_applies_to_one_call_or_to_all_until_repaired() {
    let fake = FakeNccl::new();
    let (_nccl, comm) = open(&fake);
    let codes = || [(); 3].map(|()| send(&comm).err().and_then(|error| Some(error.code()?.as_raw().0)));
    fake.answer_once("ncclSend", 1, 3);
    assert!(!fake.has_deviated());
    assert_eq!(codes(), [None, Some(3), None]);
    assert!(fake.has_deviated());
    fake.answer("ncclSend", 6);
    assert_eq!(codes(), [Some(6); 3]);
    fake.repair();
    assert_eq!(codes(), [None; 3]);
    comm.destroy().unwrap();
    fake.assert_clean("repaired");
}

#[test]
fn rule_replaces_what_a_call_writes() {
    let fake = FakeNccl::new();
    let (nccl, _comm) = open(&fake);
    let rule = Rule { output: Some(Output::Zeros), ..Rule::always("ncclMemAlloc", 0) };
    fake.add_rule(rule);
    let error = nccl.alloc::<u8>(1).unwrap_err();
    assert!(matches!(error, Error::Nccl { .. } | Error::InvalidUsage { .. }), "{error}");
    fake.set_error_text(ErrorText::Megabyte);
    fake.answer("ncclMemAlloc", INVALID_ARGUMENT);
    let Error::Nccl { message, .. } = nccl.alloc::<u8>(1).unwrap_err() else { panic!("no error of NCCL") };
    assert_eq!(message.len(), 1 << 20);
}

#[test]
fn function_is_missing_in_libraries_opened_after_its_removal() {
    let fake = FakeNccl::of_release(Version::new(2, 17, 1));
    let nccl = fake.load().unwrap();
    assert_eq!(nccl.version(), Version::new(2, 17, 1));
    assert!(nccl.require("ncclCommSplit").is_err());
    fake.remove_functions(|name| name == "ncclSend");
    assert!(nccl.require("ncclSend").is_ok());
    assert!(fake.load().unwrap().require("ncclSend").is_err());
    fake.repair();
    let all = fake.load().unwrap();
    assert!(Functions::NAMES.iter().all(|name| all.require(name).is_ok()));
}

#[test]
fn states_are_reported_first_once_and_then_in_turn() {
    let mut states = AsyncStates::new([7], [0, 6]);
    assert_eq!([(); 4].map(|()| states.next()), [7, 0, 6, 0]);
    let fake = FakeNccl::new();
    let (_nccl, comm) = open(&fake);
    fake.set_async_states([7, 7], 0);
    assert_eq!([(); 3].map(|()| comm.async_error().unwrap().as_raw().0), [7, 7, 0]);
    assert_eq!(fake.async_states_left(), 0);
}

#[test]
fn use_of_an_ended_communicator_and_an_open_group_are_violations() {
    let fake = FakeNccl::new();
    let (nccl, comm) = open(&fake);
    let (raw, table) = (comm.into_raw(), nccl.as_raw());
    // SAFETY: what the fake is asked for: it has no memory behind a handle.
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
