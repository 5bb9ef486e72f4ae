//! Nonblocking communicators: waits, their limits, and aborts from elsewhere.

use std::thread;
use std::time::{Duration, Instant};

use libnccl::{CollectiveConfig, Communicator, Config, Error, ReduceOp, Result, ShrinkMode};

use crate::recorder::{IN_PROGRESS, Recorder, SUCCESS};
use crate::world::{World, id, recv, send, stream, work};

const TIMEOUT: Duration = Duration::from_millis(30);

fn timed() -> Config {
    Config::new().timeout(TIMEOUT)
}

/// A nonblocking communicator, alone in its recording.
fn nonblocking() -> (Recorder, libnccl::Nccl, Communicator) {
    let recorder = Recorder::new();
    let nccl = recorder.nccl();
    let comm = nccl.init_rank_with(4, 2, &id(1), &timed()).unwrap();
    recorder.take_log();
    (recorder, nccl, comm)
}

fn aborts(recorder: &Recorder) -> usize {
    recorder.take_log().iter().filter(|call| call.starts_with("ncclCommAbort")).count()
}

/// Something that never finishes, and the function that says so.
type Endless = (&'static str, fn(&libnccl::Nccl, Communicator) -> Result<()>);

const ENDLESS: &[Endless] = &[
    ("ncclAllReduce", |_, comm| work(&comm)),
    ("ncclGroupEnd", |nccl, comm| {
        nccl.group(|g| g.all_reduce_in_place(&comm, recv::<f32>(1), ReduceOp::Sum, stream()))
    }),
    ("ncclCommSplit", |_, comm| comm.split(Some(1), 0).map(drop)),
    ("ncclCommShrink", |_, comm| comm.shrink(&[0], ShrinkMode::Default, &Config::new()).map(drop)),
    ("ncclCommGrow", |_, comm| comm.grow(5, None, &Config::new()).map(drop)),
    ("ncclCommFinalize", |_, comm| comm.finalize().map(drop)),
    ("ncclCommFinalize", |_, comm| comm.destroy()),
    ("ncclRedOpCreatePreMulSum", |_, comm| comm.pre_mul_sum(1.0_f32).map(drop)),
    ("ncclCommRevoke", |_, comm| comm.revoke()),
];

#[test]
fn a_wait_without_end_is_a_timeout_and_one_abort() {
    for (function, act) in ENDLESS {
        let (recorder, nccl, comm) = nonblocking();
        recorder.answer_once(function, 0, IN_PROGRESS);
        recorder.asynchronous([], IN_PROGRESS);
        let start = Instant::now();
        let error = act(&nccl, comm).unwrap_err();
        let took = start.elapsed();
        let Error::Timeout { elapsed, .. } = error else { panic!("{function}: {error}") };
        assert!(elapsed >= TIMEOUT && took < TIMEOUT * 100, "{function}: {elapsed:?} of {took:?}");
        // A child that has a handle already is ended too.
        let expected = if *function == "ncclCommGrow" { 2 } else { 1 };
        assert_eq!(aborts(&recorder), expected, "{function}");
        recorder.forget_operators();
        recorder.write_late();
        recorder.assert_clean(function);
    }
}

#[test]
fn making_one_without_end_is_a_timeout_and_one_abort() {
    type Make = (&'static str, fn(&libnccl::Nccl) -> Result<()>);
    let makes: [Make; 4] = [
        ("ncclCommInitRankConfig", |nccl| nccl.init_rank_with(4, 2, &id(1), &timed()).map(drop)),
        ("ncclCommInitRankScalable", |nccl| {
            nccl.init_rank_scalable(4, 2, &[id(1), id(2)], &timed()).map(drop)
        }),
        ("ncclCommGrow", |nccl| nccl.grow_rank(4, 2, &id(1), &timed()).map(drop)),
        ("ncclGroupEnd", |nccl| nccl.group(|g| g.init_rank(4, 2, &id(1), &timed()))?.finish().map(drop)),
    ];
    for (function, make) in makes {
        let recorder = Recorder::new();
        let nccl = recorder.nccl();
        recorder.answer_once(function, 0, IN_PROGRESS);
        recorder.asynchronous([], IN_PROGRESS);
        let start = Instant::now();
        let error = make(&nccl).unwrap_err();
        assert!(matches!(error, Error::Timeout { elapsed, .. } if elapsed >= TIMEOUT), "{error}");
        assert!(start.elapsed() < TIMEOUT * 100);
        assert_eq!(aborts(&recorder), 1, "{function}");
        recorder.assert_clean(function);
    }
}

#[test]
fn after_a_timeout_there_is_nothing_left_to_use() {
    let (recorder, nccl, comm) = nonblocking();
    let halves = comm.pre_mul_sum(0.5_f32).unwrap();
    recorder.answer_once("ncclAllReduce", 0, IN_PROGRESS);
    recorder.asynchronous([], IN_PROGRESS);
    assert!(matches!(halves.all_reduce_in_place(recv(1), stream()), Err(Error::Timeout { .. })));
    recorder.take_log();
    for result in [
        work(&comm),
        comm.async_error().map(drop),
        comm.split(None, 0).map(drop),
        nccl.group(|g| g.send(&comm, send::<f32>(1), 0, stream())),
    ] {
        assert!(matches!(result, Err(Error::Aborted { .. })), "{result:?}");
    }
    assert!(comm.as_raw().is_null());
    drop(halves);
    comm.abort_handle().abort().unwrap();
    comm.destroy().ok();
    assert_eq!(aborts(&recorder), 0);
    recorder.assert_clean("after a timeout");
}

#[test]
fn a_child_may_come_late() {
    type Make = fn(&Communicator) -> Result<Option<Communicator>>;
    let makes: [Make; 2] = [
        |comm| comm.split(Some(1), 0),
        |comm| comm.shrink(&[0], ShrinkMode::Default, &Config::new()).map(Some),
    ];
    for (make, answer) in makes.iter().flat_map(|make| [(make, IN_PROGRESS), (make, SUCCESS)]) {
        let (recorder, _, comm) = nonblocking();
        for function in ["ncclCommSplit", "ncclCommShrink"] {
            recorder.answer_once(function, 0, answer);
        }
        recorder.asynchronous([IN_PROGRESS, IN_PROGRESS], SUCCESS);
        let child = make(&comm).unwrap().unwrap();
        // It has its parent's timeout.
        recorder.answer_once("ncclAllReduce", 0, IN_PROGRESS);
        recorder.asynchronous([], IN_PROGRESS);
        assert!(matches!(work(&child), Err(Error::Timeout { .. })));
        recorder.asynchronous([], SUCCESS);
        drop((child, comm));
        recorder.assert_clean("late");
    }
}

/// NCCL may write to the slot whenever it likes, even after everyone has given up.
#[test]
fn a_child_may_come_too_late() {
    let (recorder, _, comm) = nonblocking();
    recorder.answer_once("ncclCommSplit", 0, IN_PROGRESS);
    recorder.asynchronous([], IN_PROGRESS);
    assert!(matches!(comm.split(Some(1), 0), Err(Error::Timeout { .. })));
    drop(comm);
    // What would be overwritten if the slot were not NCCL's any more.
    let boxes: Vec<Box<usize>> = (0..64).map(|_| Box::new(7)).collect();
    assert_eq!(recorder.write_late(), 1);
    assert!(boxes.iter().all(|number| **number == 7));
    recorder.assert_clean("too late");
}

/// NCCL's own thread reads them.
#[test]
fn options_outlive_the_wait() {
    let (recorder, _, comm) = nonblocking();
    recorder.answer_once("ncclAllReduceConfig", 0, IN_PROGRESS);
    recorder.asynchronous([IN_PROGRESS], SUCCESS);
    let options = CollectiveConfig::new().min_ctas(3).alg_selection("ring");
    comm.operations().with(&options).all_reduce_in_place(recv::<f32>(1), ReduceOp::Sum, stream()).unwrap();
    drop(comm);
    recorder.assert_clean("options");
}

#[test]
fn an_abort_handle_ends_a_wait() {
    for _ in 0..20 {
        let recorder = Recorder::new();
        let nccl = recorder.nccl();
        let config = Config::new().timeout(Duration::from_secs(20));
        let comm = nccl.init_rank_with(4, 2, &id(1), &config).unwrap();
        recorder.answer_once("ncclAllReduce", 0, IN_PROGRESS);
        recorder.asynchronous([], IN_PROGRESS);
        // So that the abort comes while the owner is inside NCCL.
        recorder.be_slow(Duration::from_micros(300));
        let handles = [comm.abort_handle(), comm.abort_handle()];
        thread::scope(|scope| {
            for handle in handles {
                let recorder = &recorder;
                scope.spawn(move || {
                    recorder.attach();
                    thread::sleep(Duration::from_millis(2));
                    handle.abort().unwrap();
                });
            }
            assert!(matches!(work(&comm), Err(Error::Aborted { .. })));
        });
        assert!(matches!(work(&comm), Err(Error::Aborted { .. })));
        drop(comm);
        assert_eq!(aborts(&recorder), 1);
        recorder.assert_clean("aborted");
    }
}

/// Whenever the abort comes, one thread at a time is inside, and one of them ends it.
#[test]
fn an_abort_handle_races_with_work() {
    for round in 0..100 {
        let recorder = Recorder::new();
        let comm = recorder.nccl().init_rank_with(4, 2, &id(1), &timed()).unwrap();
        recorder.be_slow(Duration::from_micros(20));
        let handle = comm.abort_handle();
        thread::scope(|scope| {
            let recorder = &recorder;
            scope.spawn(move || {
                recorder.attach();
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
        assert_eq!(aborts(&recorder), 1);
        recorder.assert_clean("race");
    }
}

#[test]
fn an_abort_handle_waits_for_the_group() {
    let world = World::new();
    let handle = world.comm.abort_handle();
    world
        .nccl
        .group(|g| {
            g.send(&world.comm, send::<f32>(1), 0, stream())?;
            thread::scope(|scope| {
                let abort = || {
                    world.recorder.attach();
                    handle.abort()
                };
                scope.spawn(abort).join().unwrap()
            })?;
            assert_eq!(aborts(&world.recorder), 0);
            g.recv(&world.comm, recv::<f32>(1), 0, stream())
        })
        .unwrap();
    assert_eq!(aborts(&world.recorder), 1);
    assert!(matches!(work(&world.comm), Err(Error::Aborted { .. })));
    world.close("abort in a group");
}
