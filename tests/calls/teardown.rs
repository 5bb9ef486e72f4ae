//! Teardown: every way to destroy or abort a communicator, after any history, in any order.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::thread;
use std::time::{Duration, Instant};

use libnccl::communicator::{AbortHandle, ShrinkMode};
use libnccl::error::ResultCode;
use libnccl::{Communicator, Config, Error, Result};
use libnccl_test_support::fake_nccl::{FakeNccl, SUCCESS};

use crate::faults::CODES;
use crate::fixture::{Fixture, id, recv, stream, work};

/// A way to tear down a communicator, whether it succeeds or not.
type Ending = (&'static str, fn(Communicator));

const ENDINGS: &[Ending] = &[
    ("drop", drop),
    ("destroy", |comm| drop(comm.destroy())),
    ("abort", |comm| drop(comm.abort())),
    ("finalize", |comm| drop(comm.finalize())),
    ("finalize and destroy", |comm| {
        let _ = comm.finalize().and_then(libnccl::communicator::Finalized::destroy);
    }),
    ("finalize and abort", |comm| {
        let handle = comm.abort_handle();
        let _ = comm.finalize().and_then(|_finalized| handle.abort());
    }),
    ("abort by a handle", |comm| drop(comm.abort_handle().abort())),
    ("panic", |comm| {
        let unwound = catch_unwind(AssertUnwindSafe(move || {
            let _comm = comm;
            panic!("on purpose")
        }));
        assert!(unwound.is_err());
    }),
];

/// Something that may have happened to a communicator before its teardown.
type History = (&'static str, fn(&Fixture, &Communicator));

const HISTORIES: &[History] = &[
    ("nothing", |_, _| {}),
    ("work", |_, comm| work(comm).unwrap()),
    ("a failed call", |fixture, comm| {
        fixture.fake.set_code_once("ncclAllReduce", 0, 6);
        work(comm).unwrap_err();
    }),
    ("a failed group", |fixture, comm| {
        let fail = fixture.nccl.group(|g| {
            comm.recv(recv::<f32>(1), 0, g.stream(stream()))?;
            Err::<(), _>(Error::Aborted { call: "the closure" })
        });
        fail.unwrap_err();
    }),
    ("an operator", |_, comm| {
        let halves = comm.pre_mul_sum(0.5_f32).unwrap();
        comm.all_reduce_in_place(recv(1), &halves, stream()).unwrap();
    }),
    ("an operator in a failed group", |fixture, comm| {
        let halves = comm.pre_mul_sum(0.5_f32).unwrap();
        let fail = fixture.nccl.group(|g| {
            comm.all_reduce_in_place(recv(1), &halves, g.stream(stream()))?;
            Err::<(), _>(Error::Aborted { call: "the closure" })
        });
        fail.unwrap_err();
    }),
    ("an operator that outlives an abort", |_, comm| {
        let halves = comm.pre_mul_sum(0.5_f32).unwrap();
        comm.abort_handle().abort().unwrap();
        assert!(matches!(comm.all_reduce_in_place(recv(1), &halves, stream()), Err(Error::Aborted { .. })));
    }),
    ("an abort by a handle", |_, comm| comm.abort_handle().abort().unwrap()),
    // NCCL writes their handles nevertheless, and the parent points to their abort flags.
    ("children that could not be made", |fixture, comm| {
        fixture.fake.set_code_once("ncclCommSplit", 0, 3);
        comm.split(Some(1), 0).init().unwrap_err();
        fixture.fake.set_code_once("ncclCommShrink", 0, 6);
        comm.shrink(&[0], ShrinkMode::Default).init().unwrap_err();
    }),
];

// Regression: baracuda uses and frees a communicator again after its abort.
// Regression: nccl4py closes resources on a hanging communicator before it aborts.
// Regression: monarch, cubecl, candle and mistral.rs leak communicators.
#[test]
fn every_teardown_after_any_history_destroys_handles_once() {
    for (history_name, history) in HISTORIES {
        for (end_name, end) in ENDINGS {
            let fixture = Fixture::new();
            let comm = fixture.spare();
            history(&fixture, &comm);
            end(comm);
            fixture.close(&format!("{end_name} after {history_name}"));
        }
    }
}

// Regression: cudarc panics in drop if the abort fails.
#[test]
fn every_teardown_with_any_result_code_destroys_handles_once() {
    for (name, end) in ENDINGS {
        for function in ["ncclCommDestroy", "ncclCommAbort", "ncclCommFinalize"] {
            for code in CODES {
                let fixture = Fixture::new();
                fixture.fake.set_code(function, code);
                end(fixture.spare());
                fixture.close(&format!("{name}, {function} returns {code}"));
            }
        }
    }
}

/// Tears down a parent, its child and its grandchild in every order and in every way.
#[test]
fn parent_and_children_are_destroyed_once_in_any_order() {
    let orders = [[0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]];
    for order in orders {
        for (name, end) in ENDINGS {
            let fake = FakeNccl::new();
            let nccl = fake.nccl();
            let config = Config::new().name("parent");
            let parent = nccl.communicator(4, 2, &id(1)).config(&config).init().unwrap();
            let child = parent.split(Some(0), 0).init().unwrap().unwrap();
            let grandchild =
                child.split(Some(0), 0).config(&Config::new().name("other")).init().unwrap().unwrap();
            drop(child.pre_mul_sum(3_i32).unwrap());
            let mut family = [Some(parent), Some(child), Some(grandchild)];
            for index in order {
                end(family[index].take().unwrap());
            }
            fake.assert_clean(&format!("{name} in the order {order:?}"));
        }
    }
}

/// A communicator that reports an impossible size or rank is destroyed with its siblings.
#[test]
fn invalid_size_or_rank_from_nccl_destroys_communicator() {
    for (size, rank) in [(0, 0), (-1, 0), (4, -1), (4, 4)] {
        let fake = FakeNccl::new();
        let nccl = fake.nccl();
        fake.set(|fake| fake.size_and_rank = (size, rank));
        for result in [nccl.communicator(4, 2, &id(1)).init().map(drop), nccl.init_all(&[0, 1]).map(drop)] {
            assert!(result.is_err(), "rank {rank} of {size}");
        }
        fake.assert_clean(&format!("rank {rank} of {size}"));
    }
}

#[test]
fn into_raw_then_from_raw_keeps_handle_and_name() {
    let fake = FakeNccl::new();
    let nccl = fake.nccl();
    let named = Config::new().name("which NCCL keeps a pointer to");
    let raw = nccl.communicator(4, 2, &id(1)).config(&named).init().unwrap().into_raw();
    fake.take_log();
    // Reuses the name's memory if it was freed.
    let _others: Vec<Box<[u8]>> = (0..64).map(|_| vec![b'x'; 46].into()).collect();
    // SAFETY: taken from `into_raw` just before.
    let comm = unsafe { Communicator::from_raw(&nccl, raw) }.unwrap();
    assert_eq!(comm.as_raw(), raw);
    comm.abort_handle().abort().unwrap();
    assert!(comm.as_raw().is_null());
    assert!(comm.into_raw().is_null());
    fake.assert_clean("raw");
}

/// NCCL's `ncclCommDestroy` would return before it frees anything.
#[test]
fn destroy_after_async_error_aborts_and_reports_it() {
    for finalizes in [false, true] {
        let fixture = Fixture::new();
        let comm = fixture.spare();
        let finalized = if finalizes { Ok(comm.finalize().unwrap()) } else { Err(comm) };
        fixture.fake.take_log();
        fixture.fake.set_async_states([], 6);
        let error = finalized
            .map_or_else(Communicator::destroy, libnccl::communicator::Finalized::destroy)
            .unwrap_err();
        assert_eq!(error.code(), Some(ResultCode::REMOTE_ERROR), "{error}");
        assert_eq!(fixture.fake.take_log(), ["ncclCommGetAsyncError(comm1, &)", "ncclCommAbort(comm1)"]);
        fixture.fake.set_async_states([], SUCCESS);
        fixture.close("asynchronous error");
    }
}

/// NCCL only queues an abort inside a group, and drops it if the group is cancelled.
#[test]
fn teardown_in_open_group_is_not_part_of_it() {
    const INSIDE: &[Ending] = &[
        ("drop", drop),
        ("abort", |comm| comm.abort().unwrap()),
        ("abort by a handle", |comm| comm.abort_handle().abort().unwrap()),
        ("destroy, which is refused", |comm| drop(comm.destroy().unwrap_err())),
    ];
    for (name, end) in INSIDE {
        for fails in [true, false] {
            let fixture = Fixture::new();
            let comm = fixture.spare();
            let result = fixture.nccl.group(|g| {
                fixture.comm.recv(recv::<f32>(1), 0, g.stream(stream()))?;
                end(comm);
                let log = fixture.fake.take_log();
                assert!(log.contains(&"ncclCommAbort(comm1)".to_string()), "{log:?}");
                if fails { Err(Error::Aborted { call: "the closure" }) } else { Ok(()) }
            });
            assert_eq!(result.is_err(), fails, "{name}");
            fixture.close(name);
        }
    }
}

/// The documented limit of a teardown, and some time for a slow machine.
const LIMIT: Duration = Duration::from_secs(5);
const SLOW: Duration = Duration::from_secs(20);

/// NCCL destroys no communicator while a CUDA graph contains its work.
#[test]
fn teardown_while_graph_exists_returns_within_limit() {
    fn assert_late(result: &Result<()>, call: &str) {
        let Err(Error::Timeout { call: found, elapsed, .. }) = result else { panic!("{result:?}") };
        assert_eq!(*found, call);
        assert!(*elapsed >= LIMIT, "{call}: {elapsed:?}");
    }
    type End = fn(&Fixture, Communicator);
    let ends: [(&str, End); 5] = [
        ("drop", |_, comm| drop(comm)),
        ("abort", |_, comm| assert_late(&comm.abort(), "abort")),
        ("abort by a handle", |_, comm| assert_late(&comm.abort_handle().abort(), "abort")),
        ("abort_all", |_, comm| assert_late(&AbortHandle::abort_all([comm.abort_handle()]), "abort_all")),
        ("destroy with a timeout", |fixture, spare| {
            fixture.fake.destroy_graphs();
            drop(spare);
            let timed = Config::new().timeout(Duration::from_secs(1));
            let comm = fixture.nccl.communicator(4, 2, &id(1)).config(&timed).init().unwrap();
            fixture.fake.capture(comm.as_raw());
            assert_late(&comm.destroy(), "destroy");
        }),
    ];
    thread::scope(|scope| {
        for (name, end) in ends {
            scope.spawn(move || {
                let fixture = Fixture::new();
                let comm = fixture.spare();
                fixture.fake.capture(comm.as_raw());
                let start = Instant::now();
                end(&fixture, comm);
                assert!((LIMIT..SLOW).contains(&start.elapsed()), "{name}: {:?}", start.elapsed());
                // It is destroyed in the background, after the graph.
                fixture.fake.destroy_graphs();
                while fixture.fake.live_communicators() > 1 {
                    assert!(start.elapsed() < SLOW + SLOW, "{name}");
                    thread::sleep(Duration::from_millis(1));
                }
                fixture.close(name);
            });
        }
    });
}

/// The work of each may keep the device busy, so that the other cannot be destroyed before both are aborted.
#[test]
fn abort_all_ends_communicators_in_one_group() {
    let fixture = Fixture::new();
    let comms = fixture.nccl.init_all(&[0, 1]).unwrap();
    fixture.fake.take_log();
    AbortHandle::abort_all(comms.iter().map(Communicator::abort_handle)).unwrap();
    let log = ["ncclGroupStart()", "ncclCommAbort(comm2)", "ncclCommAbort(comm3)", "ncclGroupEnd()"];
    assert_eq!(fixture.fake.take_log(), log);
    // Of several, one of which is destroyed already, the others are aborted.
    let handles: Vec<_> =
        comms.iter().take(1).chain([&fixture.comm]).map(Communicator::abort_handle).collect();
    AbortHandle::abort_all(handles).unwrap();
    AbortHandle::abort_all([]).unwrap();
    assert_eq!(fixture.fake.take_log(), ["ncclCommAbort(comm0)"]);
    fixture.close("abort_all");
}

#[test]
fn abort_all_whose_iterator_panics_aborts_nothing() {
    let fixture = Fixture::new();
    let handles = [Some(fixture.comm.abort_handle()), None];
    let panics = || AbortHandle::abort_all(handles.into_iter().map(|handle| handle.expect("a handle")));
    catch_unwind(AssertUnwindSafe(panics)).unwrap_err();
    work(&fixture.comm).unwrap();
    fixture.close("abort_all");
}
