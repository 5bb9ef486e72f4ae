//! Nonblocking communicators: waits, timeouts, and aborts from other threads.

use std::thread;
use std::time::Duration;

use libnccl::communicator::{Health, ShrinkMode};
use libnccl::{Communicator, Config, Error, Nccl, Result};
use libnccl_test_support::fake_nccl::{ErrorText, FakeNccl, IN_PROGRESS, SUCCESS};
use libnccl_test_support::init_in_group;

use crate::fixture::{Fixture, id, recv, send, stream, work};

const TIMEOUT: Duration = Duration::from_millis(30);

fn timed() -> Config {
    Config::new().timeout(TIMEOUT)
}

/// Creates a fake library and a nonblocking communicator.
fn nonblocking() -> (FakeNccl, Nccl, Communicator) {
    let fake = FakeNccl::new();
    let nccl = fake.nccl();
    let comm = nccl.communicator(4, 2, &id(1)).config(&timed()).init().unwrap();
    fake.take_log();
    (fake, nccl, comm)
}

fn aborts(fake: &FakeNccl) -> usize {
    fake.take_log().iter().filter(|call| call.starts_with("ncclCommAbort")).count()
}

#[test]
fn ranks_of_a_group_that_times_out_are_all_aborted() {
    let fake = FakeNccl::new();
    let nccl = fake.nccl();
    fake.set_code_once("ncclGroupEnd", 0, IN_PROGRESS);
    fake.set_async_states([], IN_PROGRESS);
    let error = init_in_group(&nccl, 3, &timed()).unwrap_err();
    assert!(matches!(error, Error::Timeout { call: "init_in", size: 3, .. }), "{error}");
    assert_eq!(aborts(&fake), 3);
    fake.assert_clean("init_in");
}

/// The work of a borrowed communicator cannot be aborted, so the buffers are in use until it completes. The group's timeout
/// aborts the other communicators.
#[test]
fn borrowed_communicator_in_a_group_is_waited_for_beyond_the_groups_timeout() {
    for is_alone in [true, false] {
        let (fake, nccl, comm) = nonblocking();
        let owner = nccl.communicator(4, 2, &id(2)).config(&timed()).init().unwrap();
        fake.take_log();
        let in_one_group = |borrowed: &Communicator| {
            fake.set_code_once("ncclGroupEnd", 0, IN_PROGRESS);
            fake.set_async_states([IN_PROGRESS; 200], SUCCESS);
            fake.set(|fake| fake.delay = ("ncclCommGetAsyncError", Duration::from_millis(1)));
            nccl.group(|g| {
                g.timeout(Duration::from_millis(10));
                if !is_alone {
                    comm.send(send::<f32>(1), 0, g.stream(stream()))?;
                }
                borrowed.recv(recv::<f32>(1), 0, g.stream(stream()))
            })
        };
        // SAFETY: live, and used by nothing else as long as it is borrowed.
        let ended = unsafe { Communicator::borrow_raw(&nccl, owner.as_raw(), in_one_group) };
        assert!(is_alone && ended.is_ok() || matches!(ended, Err(Error::Timeout { .. })), "{ended:?}");
        assert_eq!((fake.async_states_left(), aborts(&fake)), (0, usize::from(!is_alone)));
        drop((comm, owner));
        fake.assert_clean("borrowed");
    }
}

/// On host memory, a group that fails may have started some of its operations.
#[test]
fn work_in_progress_of_a_failed_group_on_the_host_is_aborted_before_it_returns() {
    let fake = FakeNccl::new();
    fake.set(|fake| fake.has_host_memory = true);
    let nccl = fake.nccl();
    let comm = nccl.communicator(4, 2, &id(1)).config(&timed()).init().unwrap();
    fake.take_log();
    fake.set_code_once("ncclGroupEnd", 0, 3);
    fake.set_async_states([], IN_PROGRESS);
    let mut received = [0.0_f32];
    nccl.group(|g| comm.recv(&mut received, 0, g.stream(stream()))).unwrap_err();
    assert_eq!(aborts(&fake), 1);
    drop(comm);
    fake.assert_clean("failed group");
}

/// NCCL has one text for all communicators, perhaps from a call long ago.
#[test]
fn timeout_has_no_text_of_another_communicator() {
    for text in [ErrorText::PLAIN, ErrorText::Changing] {
        let (fake, _, comm) = nonblocking();
        fake.set(|fake| fake.error_text = text);
        fake.set_code_once("ncclAllReduce", 0, IN_PROGRESS);
        fake.set_async_states([], IN_PROGRESS);
        let Err(Error::Timeout { detail, .. }) = work(&comm) else { panic!("{text:?}") };
        assert_eq!(&*detail, "", "{text:?}");
    }
}

/// NCCL may write to the slot at any time, even after all callers have timed out.
#[test]
fn child_created_after_timeout_is_written_to_live_memory() {
    let (fake, _, comm) = nonblocking();
    fake.set_code_once("ncclCommSplit", 0, IN_PROGRESS);
    fake.set_async_states([], IN_PROGRESS);
    assert!(matches!(comm.split(Some(1), 0).init(), Err(Error::Timeout { .. })));
    drop(comm);
    // Reuses the slot's memory if it was freed.
    let boxes: Vec<Box<usize>> = (0..64).map(|_| Box::new(7)).collect();
    assert_eq!(fake.write_pending_children(), 1);
    assert!(boxes.iter().all(|number| **number == 7));
    fake.assert_clean("child after the timeout");
}

/// On host memory, the abort ends the call, which may have created the child before.
#[test]
fn child_created_during_its_parents_abort_is_destroyed() {
    type Make = fn(&Communicator) -> Result<()>;
    let makes: [(&str, Make); 3] = [
        ("split", |comm| comm.split(Some(1), 0).init().map(drop)),
        ("shrink", |comm| comm.shrink(&[0], ShrinkMode::Default).init().map(drop)),
        ("grow", |comm| comm.grow(5, None).init().map(drop)),
    ];
    for (method, make) in makes {
        let fake = FakeNccl::new();
        fake.set(|fake| fake.has_host_memory = true);
        let config = Config::new().timeout(Duration::from_secs(60));
        let parent = fake.nccl().communicator(4, 2, &id(1)).config(&config).init().unwrap();
        let handle = parent.abort_handle();
        for function in ["ncclCommSplit", "ncclCommShrink", "ncclCommGrow"] {
            fake.set_code_once(function, 0, IN_PROGRESS);
        }
        fake.set_async_states([], IN_PROGRESS);
        thread::scope(|scope| {
            let fake = &fake;
            scope.spawn(move || {
                fake.attach();
                while handle.health() != Health::Busy {
                    thread::yield_now();
                }
                handle.abort().unwrap();
            });
            let made = make(&parent);
            assert!(matches!(made, Err(Error::Aborted { call }) if call == method), "{method}: {made:?}");
        });
        drop(parent);
        fake.assert_clean(method);
    }
}

/// There is nothing to finalize.
#[test]
fn revoked_communicator_is_destroyed_without_finalization() {
    let (fake, _, comm) = nonblocking();
    comm.revoke().unwrap();
    comm.destroy().unwrap();
    assert!(!fake.calls().contains(&"ncclCommFinalize"));
    fake.assert_clean("revoked");
}

/// At most one thread is inside NCCL at any time, and exactly one destroys the communicator.
// Regression: baracuda uses and frees a communicator again after its abort.
#[test]
fn abort_handle_racing_with_work_aborts_once() {
    for round in 0..100 {
        let fake = FakeNccl::new();
        let comm = fake.nccl().communicator(4, 2, &id(1)).config(&timed()).init().unwrap();
        fake.set(|fake| fake.delay = ("ncclCommGetAsyncError", Duration::from_micros(20)));
        let handle = comm.abort_handle();
        thread::scope(|scope| {
            let fake = &fake;
            scope.spawn(move || {
                fake.attach();
                thread::sleep(Duration::from_micros(round * 10));
                handle.abort().unwrap();
            });
            while comm.async_error().is_ok() {}
            assert!(matches!(work(&comm), Err(Error::Aborted { .. })));
        });
        match round % 3 {
            0 => drop(comm),
            1 => comm.abort().unwrap(),
            _ => assert!(matches!(comm.destroy(), Err(Error::Aborted { .. }))),
        }
        assert_eq!(aborts(&fake), 1);
        fake.assert_clean("race");
    }
}

#[test]
fn abort_handle_in_open_group_aborts_after_group_end() {
    let fixture = Fixture::new();
    let handle = fixture.comm.abort_handle();
    fixture
        .nccl
        .group(|g| {
            fixture.comm.send(send::<f32>(1), 0, g.stream(stream()))?;
            handle.abort()?;
            assert_eq!(aborts(&fixture.fake), 0);
            fixture.comm.recv(recv::<f32>(1), 0, g.stream(stream()))
        })
        .unwrap();
    assert_eq!(aborts(&fixture.fake), 1);
    assert!(matches!(work(&fixture.comm), Err(Error::Aborted { .. })));
    fixture.close("abort in a group");
}
