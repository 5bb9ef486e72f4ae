//! Futures: when they call NCCL, and how they end.

use std::future::Future;
use std::pin::Pin;
use std::task::Poll;
use std::thread;
use std::time::{Duration, Instant};

use libnccl::{Communicator, Config, Error, Nccl, Result, ResultCode, ShrinkMode};
use libnccl_test_support::executor::{block_on, poll};
use libnccl_test_support::fake_nccl::{FakeNccl, IN_PROGRESS, SUCCESS};

use crate::fixture::{id, work};

const TIMEOUT: Duration = Duration::from_millis(30);

type Started<'a> = Pin<Box<dyn Future<Output = Result<()>> + Send + 'a>>;

/// A method, its C function, and a call of it.
type Method = (&'static str, &'static str, fn(&Nccl, &Config) -> Started<'static>);

fn timed() -> Config {
    Config::new().timeout(Duration::from_secs(60))
}

fn comm(nccl: &Nccl, config: &Config) -> Communicator {
    nccl.init_rank_with(4, 2, &id(1), config).unwrap()
}

/// A split that owns its communicator, so that the future has no lifetime.
async fn split(mut comm: Communicator) -> Result<()> {
    comm.split_async(Some(1), 0, &Config::new()).await.map(drop)
}

const METHODS: [Method; 4] = [
    ("init_rank_async", "ncclCommInitRankConfig", |nccl, config| {
        let future = nccl.init_rank_async(4, 2, &id(1), config);
        Box::pin(async { future.await.map(drop) })
    }),
    ("split_async", "ncclCommSplit", |nccl, config| Box::pin(split(comm(nccl, config)))),
    ("finalize_async", "ncclCommFinalize", |nccl, config| {
        let future = comm(nccl, config).finalize_async();
        Box::pin(async { future.await?.destroy() })
    }),
    ("destroy_async", "ncclCommFinalize", |nccl, config| Box::pin(comm(nccl, config).destroy_async())),
];

/// Runs `test` with each method, in progress and polled once.
fn in_progress(config: &Config, test: impl Fn(&str, &FakeNccl, Started<'static>)) {
    for (method, function, start) in METHODS {
        let fake = FakeNccl::new();
        fake.answer_once(function, 0, IN_PROGRESS);
        let mut future = start(&fake.nccl(), config);
        fake.set_async_states([], IN_PROGRESS);
        assert!(poll(&mut future).is_pending(), "{method}");
        fake.take_log();
        test(method, &fake, future);
        fake.write_pending_children();
        fake.assert_clean(method);
    }
}

fn aborts(fake: &FakeNccl) -> usize {
    fake.take_log().iter().filter(|call| call.starts_with("ncclCommAbort")).count()
}

#[test]
fn future_is_ready_when_the_state_is_success() {
    in_progress(&timed(), |method, fake, future| {
        fake.set_async_states([IN_PROGRESS; 5], SUCCESS);
        block_on(future).unwrap_or_else(|error| panic!("{method}: {error}"));
        assert_eq!(fake.async_states_left(), 0, "{method}");
    });
}

/// On a runtime with several threads, each poll may happen on another one.
#[test]
fn future_is_polled_on_another_thread() {
    in_progress(&timed(), |method, fake, future| {
        fake.set_async_states([IN_PROGRESS], SUCCESS);
        let polled = thread::scope(|scope| {
            let run = || {
                fake.attach();
                block_on(future)
            };
            scope.spawn(run).join().unwrap()
        });
        polled.unwrap_or_else(|error| panic!("{method}: {error}"));
    });
}

#[test]
fn endless_future_times_out_and_aborts_once() {
    in_progress(&Config::new().timeout(TIMEOUT), |method, fake, future| {
        let error = block_on(future).unwrap_err();
        let Error::Timeout { call, elapsed, .. } = error else { panic!("{method}: {error}") };
        assert_eq!(call, method);
        assert!((TIMEOUT..TIMEOUT * 100).contains(&elapsed), "{method}: {elapsed:?}");
        assert_eq!(aborts(fake), 1, "{method}");
    });
}

#[test]
fn failed_future_names_the_method() {
    in_progress(&timed(), |method, fake, future| {
        fake.set_async_states([IN_PROGRESS], 6);
        let error = block_on(future).unwrap_err();
        let Error::Nccl { call, code, .. } = &error else { panic!("{method}: {error}") };
        assert_eq!((*call, *code), (method, ResultCode::REMOTE_ERROR), "{error}");
    });
}

#[test]
fn dropped_future_aborts_once() {
    in_progress(&timed(), |method, fake, future| {
        drop(future);
        assert_eq!(aborts(fake), 1, "{method}");
    });
}

#[test]
fn future_dropped_before_its_first_poll_aborts_once() {
    let fake = FakeNccl::new();
    let nccl = fake.nccl();
    drop(nccl.init_rank_async(4, 2, &id(1), &timed()));
    assert_eq!(aborts(&fake), 1, "init");
    drop(comm(&nccl, &timed()).finalize_async());
    assert_eq!(aborts(&fake), 1, "finalize");
    drop(comm(&nccl, &timed()).destroy_async());
    assert_eq!(aborts(&fake), 1, "destroy");
    fake.answer_once("ncclCommSplit", 0, IN_PROGRESS);
    let mut parent = comm(&nccl, &timed());
    fake.set_async_states([], IN_PROGRESS);
    drop(parent.split_async(Some(1), 0, &Config::new()));
    assert_eq!(aborts(&fake), 1, "split");
    assert!(matches!(work(&parent), Err(Error::Aborted { .. })));
    drop(parent);
    fake.write_pending_children();
    fake.assert_clean("unpolled");
}

/// The split is complete, although nobody has looked: the parent can be used.
#[test]
fn completed_split_dropped_before_its_first_poll_ends_the_child_alone() {
    let fake = FakeNccl::new();
    let mut parent = comm(&fake.nccl(), &timed());
    drop(parent.split_async(Some(1), 0, &Config::new()));
    assert_eq!(aborts(&fake), 1);
    work(&parent).unwrap();
    parent.destroy().unwrap();
    fake.assert_clean("complete");
}

/// NCCL has written the child of the split; it is the child that is not complete.
#[test]
fn split_dropped_while_its_child_is_in_progress_ends_the_child_alone() {
    let fake = FakeNccl::new();
    let mut comm = comm(&fake.nccl(), &timed());
    fake.set_async_states([SUCCESS], IN_PROGRESS);
    let config = Config::new();
    let mut split = Box::pin(comm.split_async(Some(1), 0, &config));
    assert!(poll(&mut split).is_pending());
    drop(split);
    assert_eq!(aborts(&fake), 1);
    fake.set_async_states([], SUCCESS);
    work(&comm).unwrap();
    comm.destroy().unwrap();
    fake.assert_clean("child");
}

/// NCCL may write to the slot at any time.
#[test]
fn child_created_after_the_drop_is_written_to_live_memory() {
    let fake = FakeNccl::new();
    let mut comm = comm(&fake.nccl(), &timed());
    fake.answer_once("ncclCommSplit", 0, IN_PROGRESS);
    fake.set_async_states([], IN_PROGRESS);
    drop(comm.split_async(Some(1), 0, &Config::new()));
    drop(comm);
    // Reuses the slot's memory if it was freed.
    let boxes: Vec<Box<usize>> = (0..64).map(|_| Box::new(7)).collect();
    assert_eq!(fake.write_pending_children(), 1);
    assert!(boxes.iter().all(|number| **number == 7));
    fake.assert_clean("too late");
}

#[test]
fn communicator_of_a_forgotten_split_is_not_used_and_ends() {
    let fake = FakeNccl::new();
    let mut comm = comm(&fake.nccl(), &timed());
    fake.answer_once("ncclCommSplit", 0, IN_PROGRESS);
    fake.set_async_states([], IN_PROGRESS);
    std::mem::forget(comm.split_async(Some(1), 0, &Config::new()));
    assert!(matches!(work(&comm), Err(Error::InvalidUsage { .. })));
    drop(comm);
    assert_eq!(aborts(&fake), 1);
    fake.write_pending_children();
    fake.assert_clean("forgotten");
}

#[test]
fn abort_handle_ends_a_future() {
    let fake = FakeNccl::new();
    let nccl = fake.nccl();
    let starts: [fn(Communicator) -> Started<'static>; 3] = [
        |comm| Box::pin(split(comm)),
        |comm| Box::pin(async { comm.finalize_async().await.map(drop) }),
        |comm| Box::pin(comm.destroy_async()),
    ];
    for start in starts {
        fake.set_async_states([], SUCCESS);
        let comm = comm(&nccl, &timed());
        let handle = comm.abort_handle();
        fake.answer_once("ncclCommSplit", 0, IN_PROGRESS);
        fake.answer_once("ncclCommFinalize", 0, IN_PROGRESS);
        fake.set_async_states([], IN_PROGRESS);
        let mut future = start(comm);
        assert!(poll(&mut future).is_pending());
        handle.abort().unwrap();
        assert_eq!(aborts(&fake), 0, "the future is in NCCL");
        assert!(matches!(block_on(future), Err(Error::Aborted { .. })));
        assert_eq!(aborts(&fake), 1);
        fake.write_pending_children();
        fake.repair();
    }
    fake.assert_clean("aborted");
}

/// On host memory, the abort ends the call, which may have made the child before.
#[test]
fn child_made_during_the_abort_of_its_parent_is_ended_too() {
    type Make = fn(Communicator) -> Started<'static>;
    let makes: [(&str, Make); 4] = [
        ("split_async", |comm| Box::pin(split(comm))),
        ("split", |comm| Box::pin(async move { comm.split(Some(1), 0).map(drop) })),
        ("shrink", |comm| {
            Box::pin(async move { comm.shrink(&[0], ShrinkMode::Default, &Config::new()).map(drop) })
        }),
        ("grow", |comm| Box::pin(async move { comm.grow(5, None, &Config::new()).map(drop) })),
    ];
    for (method, make) in makes {
        let fake = FakeNccl::new();
        fake.set_host_memory(true);
        let nccl = fake.nccl();
        let parent = comm(&nccl, &timed());
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
            let made = block_on(make(parent));
            assert!(matches!(made, Err(Error::Aborted { call }) if call == method), "{method}: {made:?}");
        });
        fake.assert_clean(method);
    }
}

/// NCCL frees a communicator when there is no graph with its work any more, on a thread of its own.
#[test]
fn destroy_in_progress_while_a_graph_exists_is_pending() {
    for is_dropped in [false, true] {
        let fake = FakeNccl::new();
        let comm = comm(&fake.nccl(), &timed());
        fake.capture(comm.as_raw());
        let mut destroyed = Box::pin(comm.destroy_async());
        for _ in 0..3 {
            assert!(poll(&mut destroyed).is_pending());
            thread::sleep(Duration::from_millis(1));
        }
        assert_eq!(fake.live_communicators(), 1);
        if is_dropped {
            drop(destroyed);
            fake.destroy_graphs();
            let start = Instant::now();
            while fake.live_communicators() > 0 {
                assert!(start.elapsed() < Duration::from_secs(60), "it ends in the background");
                thread::sleep(Duration::from_millis(1));
            }
        } else {
            fake.destroy_graphs();
            block_on(destroyed).unwrap();
        }
        assert_eq!(aborts(&fake), 0);
        fake.assert_clean("graph");
    }
}

/// After a revocation there is nothing to finalize.
#[test]
fn revoked_communicator_is_destroyed_without_finalization() {
    let fake = FakeNccl::new();
    let comm = comm(&fake.nccl(), &timed());
    comm.revoke().unwrap();
    fake.take_log();
    block_on(comm.destroy_async()).unwrap();
    assert!(!fake.calls().contains(&"ncclCommFinalize"));
    fake.assert_clean("revoked");
}

/// It would block the executor's thread.
#[test]
fn future_of_a_blocking_communicator_is_invalid_usage() {
    let fake = FakeNccl::new();
    let mut comms = fake.nccl().init_all(&[0, 1, 2]).unwrap();
    let refused = block_on(comms[0].split_async(None, 0, &Config::new())).map(drop);
    assert!(matches!(refused, Err(Error::InvalidUsage { call: "split_async", .. })), "{refused:?}");
    work(&comms[0]).unwrap();
    let refused = block_on(comms.remove(0).finalize_async()).map(drop);
    assert!(matches!(refused, Err(Error::InvalidUsage { call: "finalize_async", .. })), "{refused:?}");
    let refused = block_on(comms.remove(0).destroy_async());
    assert!(matches!(refused, Err(Error::InvalidUsage { call: "destroy_async", .. })), "{refused:?}");
    drop(comms);
    fake.assert_clean("blocking");
}

#[test]
fn call_that_fails_is_reported_by_the_future() {
    for (method, function, start) in METHODS {
        let fake = FakeNccl::new();
        let config = if method == "init_rank_async" { Config::new() } else { timed() };
        fake.answer_once(function, 0, 3);
        let mut future = start(&fake.nccl(), &config);
        let Poll::Ready(Err(Error::Nccl { call, .. })) = poll(&mut future) else { panic!("{method}") };
        assert_eq!(call, function);
        drop(future);
        fake.write_pending_children();
        fake.assert_clean(method);
    }
}

#[test]
fn arguments_are_checked_before_the_call() {
    let fake = FakeNccl::new();
    let nccl = fake.nccl();
    let error = block_on(nccl.init_rank_async(2, 2, &id(1), &Config::new())).unwrap_err();
    assert_eq!(error.to_string(), "init_rank_async: rank 2 is not below the size 2");
    let mut comm = comm(&nccl, &timed());
    let error = block_on(comm.split_async(Some(u32::MAX), 0, &Config::new())).unwrap_err();
    assert_eq!(error.to_string(), "split_async: color 4294967295 is beyond 2147483647");
    let inside = nccl.group(|_| block_on(nccl.init_rank_async(2, 0, &id(1), &Config::new()))).unwrap_err();
    assert!(matches!(inside, Error::InvalidUsage { call: "init_rank_async", .. }), "{inside}");
}
