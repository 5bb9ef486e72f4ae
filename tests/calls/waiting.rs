//! Nonblocking communicators: waits, timeouts, and aborts from other threads.

use std::thread;
use std::time::Duration;

use libnccl::buffer::MemorySpace;
use libnccl::communicator::ShrinkMode;
use libnccl::config::CollectiveConfig;
use libnccl::{CallOptions, Communicator, Config, Error, ReduceOp, Result};
use libnccl_test_support::fake_nccl::{ErrorText, FakeNccl, IN_PROGRESS, SUCCESS};
use libnccl_test_support::init_in_group;

use crate::fixture::{Fixture, id, recv, send, stream, work};

const TIMEOUT: Duration = Duration::from_millis(30);

fn timed() -> Config {
    Config::new().timeout(TIMEOUT)
}

/// Creates a fake library and a nonblocking communicator.
fn nonblocking() -> (FakeNccl, libnccl::Nccl, Communicator) {
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
fn ranks_of_a_group_are_waited_for() {
    let fake = FakeNccl::new();
    fake.set_host_memory(true);
    let nccl = fake.nccl();
    assert_eq!(nccl.memory_space(), MemorySpace::Host);
    fake.answer_once("ncclGroupEnd", 0, IN_PROGRESS);
    fake.set_async_states([IN_PROGRESS], SUCCESS);
    let comms = init_in_group(&nccl, 2, &timed()).unwrap();
    let names = |fake: &FakeNccl| -> Vec<_> {
        let log = fake.take_log();
        let names = log.iter().map(|call| call.split('(').next().unwrap_or_default().to_string());
        // The memory space is asked for again and again: the program may load CUDA.
        names.filter(|name| name != "ncclParamGetParameter").collect()
    };
    let start = ["ncclGetUniqueId", "ncclGroupStart", "ncclCommInitRankConfig", "ncclCommInitRankConfig"];
    let log = names(&fake);
    assert_eq!(log[..5], [&start[..], &["ncclGroupEnd"]].concat(), "{log:?}");
    assert_eq!(log.iter().filter(|name| *name == "ncclCommGetAsyncError").count(), 3);
    drop(comms);
    fake.take_log();

    fake.answer_once("ncclGroupEnd", 0, IN_PROGRESS);
    fake.set_async_states([], IN_PROGRESS);
    let error = init_in_group(&nccl, 3, &timed()).unwrap_err();
    assert!(matches!(error, Error::Timeout { call: "init_in", .. }), "{error}");
    assert_eq!(aborts(&fake), 3);
    fake.assert_clean("init_in");
}

/// Nothing ends its work here, so the buffers are in use until it is complete.
#[test]
fn borrowed_communicator_in_a_group_is_waited_for_beyond_the_groups_timeout() {
    let (fake, nccl, owner) = nonblocking();
    let send_in_group = |comm: &Communicator| {
        fake.answer_once("ncclGroupEnd", 0, IN_PROGRESS);
        fake.set_async_states([IN_PROGRESS; 100], SUCCESS);
        fake.set_async_error_delay(Duration::from_millis(1));
        nccl.group(|g| {
            g.timeout(Duration::from_millis(10));
            comm.send(send::<f32>(1), 0, g.stream(stream()))
        })
    };
    // SAFETY: live, and used by nothing else as long as it is borrowed.
    unsafe { Communicator::borrow_raw(&nccl, owner.as_raw(), send_in_group) }.unwrap();
    assert_eq!(fake.async_states_left(), 0);
    drop(owner);
    fake.assert_clean("borrowed");
}

/// The timeout ends the group for the communicators that can be aborted. The buffers of the borrowed one are still in use.
#[test]
fn borrowed_communicator_is_waited_for_when_another_one_of_its_group_times_out() {
    let (fake, nccl, comm) = nonblocking();
    let owner = nccl.communicator(4, 2, &id(2)).config(&timed()).init().unwrap();
    fake.take_log();
    let in_one_group = |borrowed: &Communicator| {
        fake.answer_once("ncclGroupEnd", 0, IN_PROGRESS);
        fake.set_async_states([IN_PROGRESS; 200], SUCCESS);
        fake.set_async_error_delay(Duration::from_millis(1));
        nccl.group(|g| {
            g.timeout(Duration::from_millis(10));
            comm.send(send::<f32>(1), 0, g.stream(stream()))?;
            borrowed.recv(recv::<f32>(1), 0, g.stream(stream()))
        })
    };
    // SAFETY: live, and used by nothing else as long as it is borrowed.
    let ended = unsafe { Communicator::borrow_raw(&nccl, owner.as_raw(), in_one_group) };
    assert!(matches!(ended, Err(Error::Timeout { .. })), "{ended:?}");
    assert_eq!((fake.async_states_left(), aborts(&fake)), (0, 1));
    drop(owner);
    fake.assert_clean("borrowed beside another");
}

/// On host memory, a group that fails may have started some of its operations.
#[test]
fn work_in_progress_of_a_failed_group_on_the_host_is_aborted_before_it_returns() {
    let fake = FakeNccl::new();
    fake.set_host_memory(true);
    let nccl = fake.nccl();
    let comm = nccl.communicator(4, 2, &id(1)).config(&timed()).init().unwrap();
    fake.take_log();
    fake.answer_once("ncclGroupEnd", 0, 3);
    fake.set_async_states([], IN_PROGRESS);
    let mut received = [0.0_f32];
    nccl.group(|g| comm.recv(&mut received, 0, g.stream(stream()))).unwrap_err();
    assert_eq!(aborts(&fake), 1);
    drop(comm);
    fake.assert_clean("failed group");
}

#[test]
fn communicator_after_timeout_is_aborted() {
    let (fake, nccl, comm) = nonblocking();
    let halves = comm.pre_mul_sum(0.5_f32).unwrap();
    fake.answer_once("ncclAllReduce", 0, IN_PROGRESS);
    fake.set_async_states([], IN_PROGRESS);
    assert!(matches!(comm.all_reduce_in_place(recv(1), &halves, stream()), Err(Error::Timeout { .. })));
    fake.take_log();
    for result in [
        work(&comm),
        comm.async_error().map(drop),
        comm.split(None, 0).init().map(drop),
        nccl.group(|g| comm.send(send::<f32>(1), 0, g.stream(stream()))),
    ] {
        assert!(matches!(result, Err(Error::Aborted { .. })), "{result:?}");
    }
    assert!(comm.as_raw().is_null());
    drop(halves);
    comm.abort_handle().abort().unwrap();
    comm.destroy().ok();
    assert_eq!(aborts(&fake), 0);
    fake.assert_clean("after a timeout");
}

/// NCCL has one text for all communicators, perhaps from a call long ago.
#[test]
fn timeout_has_no_text_that_may_be_of_another_communicator() {
    for text in [ErrorText::Plain, ErrorText::Changing] {
        let (fake, _, comm) = nonblocking();
        fake.set_error_text(text);
        fake.answer_once("ncclAllReduce", 0, IN_PROGRESS);
        fake.set_async_states([], IN_PROGRESS);
        let Err(Error::Timeout { detail, .. }) = work(&comm) else { panic!("{text:?}") };
        assert_eq!(&*detail, "", "{text:?}");
    }
}

#[test]
fn child_created_after_the_call_is_returned() {
    type Make = fn(&Communicator) -> Result<Option<Communicator>>;
    let makes: [Make; 2] = [
        |comm| comm.split(Some(1), 0).init(),
        |comm| comm.shrink(&[0], ShrinkMode::Default).init().map(Some),
    ];
    for (make, answer) in makes.iter().flat_map(|make| [(make, IN_PROGRESS), (make, SUCCESS)]) {
        let (fake, _, comm) = nonblocking();
        for function in ["ncclCommSplit", "ncclCommShrink"] {
            fake.answer_once(function, 0, answer);
        }
        fake.set_async_states([IN_PROGRESS, IN_PROGRESS], SUCCESS);
        let child = make(&comm).unwrap().unwrap();
        // The child has its parent's timeout.
        fake.answer_once("ncclAllReduce", 0, IN_PROGRESS);
        fake.set_async_states([], IN_PROGRESS);
        assert!(matches!(work(&child), Err(Error::Timeout { .. })));
        fake.set_async_states([], SUCCESS);
        drop((child, comm));
        fake.assert_clean("late");
    }
}

/// NCCL may write to the slot at any time, even after all callers have given up.
#[test]
fn child_created_after_timeout_is_written_to_live_memory() {
    let (fake, _, comm) = nonblocking();
    fake.answer_once("ncclCommSplit", 0, IN_PROGRESS);
    fake.set_async_states([], IN_PROGRESS);
    assert!(matches!(comm.split(Some(1), 0).init(), Err(Error::Timeout { .. })));
    drop(comm);
    // Reuses the slot's memory if it was freed.
    let boxes: Vec<Box<usize>> = (0..64).map(|_| Box::new(7)).collect();
    assert_eq!(fake.write_pending_children(), 1);
    assert!(boxes.iter().all(|number| **number == 7));
    fake.assert_clean("too late");
}

/// On host memory, the abort ends the call, which may have made the child before.
#[test]
fn child_made_during_the_abort_of_its_parent_is_ended_too() {
    type Make = fn(&Communicator) -> Result<()>;
    let makes: [(&str, Make); 3] = [
        ("split", |comm| comm.split(Some(1), 0).init().map(drop)),
        ("shrink", |comm| comm.shrink(&[0], ShrinkMode::Default).init().map(drop)),
        ("grow", |comm| comm.grow(5, None).init().map(drop)),
    ];
    for (method, make) in makes {
        let fake = FakeNccl::new();
        fake.set_host_memory(true);
        let config = Config::new().timeout(Duration::from_secs(60));
        let parent = fake.nccl().communicator(4, 2, &id(1)).config(&config).init().unwrap();
        let handle = parent.abort_handle();
        for function in ["ncclCommSplit", "ncclCommShrink", "ncclCommGrow"] {
            fake.answer_once(function, 0, IN_PROGRESS);
        }
        fake.set_async_states([], IN_PROGRESS);
        thread::scope(|scope| {
            let fake = &fake;
            scope.spawn(move || {
                fake.attach();
                thread::sleep(TIMEOUT);
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

/// NCCL's own thread reads the options.
#[test]
fn collective_options_outlive_the_wait() {
    let (fake, _, comm) = nonblocking();
    fake.answer_once("ncclAllReduceConfig", 0, IN_PROGRESS);
    fake.set_async_states([IN_PROGRESS], SUCCESS);
    let options = CollectiveConfig::new().min_ctas(3).alg_selection("ring");
    comm.all_reduce_in_place(recv::<f32>(1), ReduceOp::Sum, CallOptions::on(stream()).config(&options))
        .unwrap();
    drop(comm);
    fake.assert_clean("options");
}

// Regression: nccl4py closes resources on a hanging communicator before it aborts.
#[test]
fn abort_handle_ends_a_wait() {
    for _ in 0..20 {
        let fake = FakeNccl::new();
        let nccl = fake.nccl();
        let config = Config::new().timeout(Duration::from_secs(20));
        let comm = nccl.communicator(4, 2, &id(1)).config(&config).init().unwrap();
        fake.answer_once("ncclAllReduce", 0, IN_PROGRESS);
        fake.set_async_states([], IN_PROGRESS);
        // Makes the abort come while the owner is inside NCCL.
        fake.set_async_error_delay(Duration::from_micros(300));
        let handles = [comm.abort_handle(), comm.abort_handle()];
        thread::scope(|scope| {
            for handle in handles {
                let fake = &fake;
                scope.spawn(move || {
                    fake.attach();
                    thread::sleep(Duration::from_millis(2));
                    handle.abort().unwrap();
                });
            }
            assert!(matches!(work(&comm), Err(Error::Aborted { .. })));
        });
        assert!(matches!(work(&comm), Err(Error::Aborted { .. })));
        drop(comm);
        assert_eq!(aborts(&fake), 1);
        fake.assert_clean("aborted");
    }
}

/// At any time, at most one thread is inside NCCL, and exactly one ends the communicator.
// Regression: baracuda uses and frees a communicator again after its abort.
#[test]
fn abort_handle_racing_with_work_aborts_once() {
    for round in 0..100 {
        let fake = FakeNccl::new();
        let comm = fake.nccl().communicator(4, 2, &id(1)).config(&timed()).init().unwrap();
        fake.set_async_error_delay(Duration::from_micros(20));
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
            thread::scope(|scope| {
                let abort = || {
                    fixture.fake.attach();
                    handle.abort()
                };
                scope.spawn(abort).join().unwrap()
            })?;
            assert_eq!(aborts(&fixture.fake), 0);
            fixture.comm.recv(recv::<f32>(1), 0, g.stream(stream()))
        })
        .unwrap();
    assert_eq!(aborts(&fixture.fake), 1);
    assert!(matches!(work(&fixture.comm), Err(Error::Aborted { .. })));
    fixture.close("abort in a group");
}

/// NCCL returns success, and a thread of its own does the rest.
#[test]
fn management_call_of_nonblocking_communicator_waits_after_success() {
    let calls: [fn(&Communicator) -> Result<()>; 4] = [
        Communicator::suspend,
        Communicator::resume,
        |comm| comm.split(Some(1), 0).init().map(|child| assert!(child.is_some())),
        |comm| comm.grow(5, None).init().map(drop),
    ];
    for call in calls {
        let (fake, _, comm) = nonblocking();
        fake.set_async_states([IN_PROGRESS, IN_PROGRESS], SUCCESS);
        call(&comm).unwrap();
        assert_eq!(fake.async_states_left(), 0);
        drop(comm);
        fake.assert_clean("after a success");
    }
}

#[test]
fn window_of_nonblocking_communicator_is_written_before_it_is_returned() {
    let (fake, nccl, comm) = nonblocking();
    let mut buffer = nccl.alloc::<f32>(1024).unwrap();
    fake.set_async_states([IN_PROGRESS, IN_PROGRESS], SUCCESS);
    // SAFETY: the fake has no other ranks.
    let window = unsafe { comm.register_window(&mut buffer, libnccl::window::WindowFlags::DEFAULT) }.unwrap();
    assert!(window.is_active());
    drop(window);
    drop(comm);
    fake.assert_clean("window");
}

/// The call writes the handle at once, and NCCL's own thread again when the communicator is complete.
#[test]
fn grown_communicator_is_written_twice_to_live_memory() {
    let (fake, nccl, comm) = nonblocking();
    fake.set_async_states([SUCCESS, IN_PROGRESS, IN_PROGRESS], SUCCESS);
    drop(comm.grow(5, None).init().unwrap());
    fake.set_async_states([IN_PROGRESS, IN_PROGRESS], SUCCESS);
    drop(nccl.communicator(5, 4, &id(1)).grow().config(&timed()).init().unwrap());
    drop(comm);
    fake.assert_clean("grown");
}

/// With `NCCL_COMM_BLOCKING=0`.
#[test]
fn init_that_returns_success_in_progress_is_waited_for() {
    let fake = FakeNccl::new();
    let nccl = fake.nccl();
    fake.set_async_states([IN_PROGRESS, IN_PROGRESS], SUCCESS);
    drop(nccl.communicator(4, 2, &id(1)).init().unwrap());
    assert_eq!(fake.async_states_left(), 0);
    fake.assert_clean("init");
}
