//! Watchdogs: their findings, and that no communicator is destroyed or aborted twice.
//!
//! `LIBNCCL_TEST_INTERLEAVINGS=10000 cargo test -p libnccl-observe watchdog` takes minutes; `.ci/sanitize` runs some under an address sanitizer.
#![allow(unsafe_code)] // A table of functions that count.

use std::collections::HashMap;
use std::sync::mpsc::channel;
use std::sync::{Arc, Barrier, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use libnccl::error::ResultCode;
use libnccl::sys::{Functions, ncclComm_t, ncclResult_t};
use libnccl::{Communicator, Config, Error, Nccl, ReduceOp, StreamRef};
use libnccl_observe::{Action, Cause, Finding, RecordExt, RecordState, Watchdog};
use libnccl_test_support::init_in_group;
use libnccl_test_support::random_inputs::Random;

const STREAM: StreamRef<'static> = StreamRef::DEFAULT;
const PATIENCE: Duration = Duration::from_secs(60);

fn functions() -> &'static Functions {
    static FUNCTIONS: OnceLock<Functions> = OnceLock::new();
    FUNCTIONS.get_or_init(|| *libnccl_cpu::nccl().as_raw())
}

/// The number of times that each handle was destroyed or aborted.
fn ends() -> MutexGuard<'static, HashMap<usize, usize>> {
    static ENDS: OnceLock<Mutex<HashMap<usize, usize>>> = OnceLock::new();
    ENDS.get_or_init(Mutex::default).lock().unwrap_or_else(PoisonError::into_inner)
}

unsafe extern "C" fn abort(comm: ncclComm_t) -> ncclResult_t {
    *ends().entry(comm.addr()).or_default() += 1;
    // SAFETY: the caller's promise.
    unsafe { functions().ncclCommAbort.unwrap()(comm) }
}

unsafe extern "C" fn destroy(comm: ncclComm_t) -> ncclResult_t {
    *ends().entry(comm.addr()).or_default() += 1;
    // SAFETY: the caller's promise.
    unsafe { functions().ncclCommDestroy.unwrap()(comm) }
}

/// Returns the CPU backend with functions that count calls of destroy and abort.
fn counting() -> Nccl {
    let table = Functions { ncclCommAbort: Some(abort), ncclCommDestroy: Some(destroy), ..*functions() };
    // SAFETY: the functions of a library in this process, which count and pass on.
    unsafe { Nccl::from_table("counting", table) }.unwrap()
}

fn pause(random: &mut Random) {
    for _ in 0..random.below(200) {
        std::hint::spin_loop();
    }
    if random.below(4) == 0 {
        thread::yield_now();
    }
}

/// `LIBNCCL_TEST_INTERLEAVINGS=10000` runs as many.
#[test]
fn communicator_is_ended_once_by_owner_abort_handle_watchdog_or_drop() {
    let rounds = std::env::var("LIBNCCL_TEST_INTERLEAVINGS").map_or(300, |text| text.parse().unwrap());
    let nccl = counting();
    for round in 0..rounds {
        let config = Config::new().timeout(PATIENCE);
        let comms = init_in_group(&nccl, 2, &config).unwrap();
        let raws: Vec<_> = comms.iter().map(|comm| comm.as_raw().addr()).collect();
        for raw in &raws {
            ends().remove(raw);
        }
        let watchdog = Watchdog::new(Duration::from_millis(4), |_| Action::AbortAll).unwrap();
        let start = Arc::new(Barrier::new(4));
        thread::scope(|scope| {
            let mut random = Random(round);
            let handles: Vec<_> = comms.iter().map(Communicator::abort_handle).collect();
            for comm in comms {
                if random.below(2) == 0 {
                    comm.record(8);
                }
                watchdog.watch(&comm).unwrap();
                let (mut random, start) = (Random(random.next()), Arc::clone(&start));
                scope.spawn(move || {
                    start.wait();
                    for _ in 0..random.below(4) {
                        pause(&mut random);
                        if comm.all_reduce_in_place(&mut [1], ReduceOp::Sum, STREAM).is_err() {
                            break;
                        }
                    }
                    pause(&mut random);
                    match random.below(3) {
                        0 => drop(comm.abort()),
                        1 => drop(comm),
                        _ => drop(comm.destroy()),
                    }
                });
            }
            let mut random_handle = Random(random.next());
            let started = Arc::clone(&start);
            scope.spawn(move || {
                started.wait();
                for handle in handles {
                    pause(&mut random_handle);
                    if random_handle.below(2) == 0 {
                        handle.abort().unwrap();
                    }
                }
            });
            start.wait();
            pause(&mut random);
            if random.below(2) == 0 {
                drop(watchdog.abort_all());
            }
            pause(&mut random);
            drop(watchdog);
        });
        for raw in raws {
            assert_eq!(ends().get(&raw), Some(&1), "round {round}");
        }
    }
}

#[test]
fn communicator_whose_peer_has_exited_is_reported_once() {
    let mut comms = libnccl_cpu::nccl().init_all(&[0, 1]).unwrap();
    let (sender, findings) = channel();
    let watchdog = Watchdog::new(PATIENCE, move |finding| {
        sender.send(finding.clone()).unwrap();
        Action::Continue
    })
    .unwrap();
    comms.iter().for_each(|comm| watchdog.watch(comm).unwrap());
    comms.pop().unwrap().abort().unwrap();
    let finding = findings.recv_timeout(PATIENCE).unwrap();
    assert_eq!((finding.rank, finding.size), (0, 2));
    assert_eq!(finding.communicator, comms[0].membership().id);
    let Cause::Failed(Error::Nccl { code, .. }) = &finding.cause else { panic!("{}", finding.cause) };
    assert_eq!(*code, ResultCode::REMOTE_ERROR);
    assert!(findings.recv_timeout(Duration::from_millis(500)).is_err(), "only once");
    // The callback returned `Continue`.
    assert_eq!(comms[0].async_error().unwrap(), ResultCode::REMOTE_ERROR);
}

#[test]
fn watchdog_goes_on_after_a_panic_of_its_function_whose_payload_panics_too() {
    struct Payload;

    impl Drop for Payload {
        fn drop(&mut self) {
            if !thread::panicking() {
                panic!("the payload panics, as this test wants");
            }
        }
    }

    let mut findings = 0;
    let (_watchdog, comms) = watched(Duration::from_millis(20), move |_| {
        findings += 1;
        if findings == 1 {
            std::panic::panic_any(Payload);
        }
        Action::AbortAll
    });
    // The other rank does nothing.
    let called = comms[0].recv(&mut [0_u8], 1, STREAM);
    assert!(!matches!(called, Err(Error::Timeout { .. }) | Ok(())), "{called:?}");
}

/// Returns two ranks whose calls are recorded, with a watchdog.
fn watched(
    limit: Duration,
    on_finding: impl FnMut(&Finding) -> Action + Send + 'static,
) -> (Watchdog, Vec<Communicator>) {
    let config = Config::new().timeout(PATIENCE);
    let comms = init_in_group(&libnccl_cpu::nccl(), 2, &config).unwrap();
    let watchdog = Watchdog::new(limit, on_finding).unwrap();
    for comm in &comms {
        comm.record(8);
        watchdog.watch(comm).unwrap();
    }
    (watchdog, comms)
}

#[test]
fn call_that_lasts_is_reported_with_its_operation_and_aborted() {
    const LIMIT: Duration = Duration::from_millis(200);
    let (sender, findings) = channel();
    let (watchdog, mut comms) = watched(LIMIT, move |finding| {
        sender.send(finding.clone()).unwrap();
        Action::AbortAll
    });
    let idle = comms.pop().unwrap();
    let waiting = comms.pop().unwrap();
    let start = Instant::now();
    // The other rank does nothing.
    let called = waiting.all_reduce_in_place(&mut [1, 2, 3], ReduceOp::Sum, STREAM);
    // The rank's own abort, or the other rank's abort if that is seen first.
    let is_ended = match &called {
        Err(Error::Aborted { call }) => *call == "all_reduce_in_place",
        Err(error) => error.code() == Some(ResultCode::REMOTE_ERROR),
        Ok(()) => false,
    };
    assert!(is_ended, "{called:?}");
    assert!(start.elapsed() >= LIMIT && start.elapsed() < PATIENCE);
    let finding = findings.recv_timeout(PATIENCE).unwrap();
    assert!(
        finding.rank == 0 && matches!(finding.cause, Cause::Stalled(time) if time >= LIMIT),
        "{}",
        finding.cause
    );
    let records = finding.recorder.unwrap().records();
    assert_eq!((records[0].operation, records[0].sent, records.len()), ("all_reduce_in_place", 3, 1));
    drop(watchdog);
    assert!(matches!(idle.async_error(), Err(Error::Aborted { .. })), "aborted together");
}

#[test]
fn records_of_all_operations_have_their_arguments_and_sites() {
    let nccl = libnccl_cpu::nccl();
    let comms = nccl.init_all(&[0, 1]).unwrap();
    let recorders: Vec<_> = comms.iter().map(|comm| comm.record(16)).collect();
    let line = thread::scope(|scope| {
        let ranks: Vec<_> = comms
            .into_iter()
            .map(|comm| {
                scope.spawn(|| {
                    let comm = comm;
                    let (peer, mut pair, mut all) = (1 - comm.rank(), [0_u8; 2], [0.0_f32; 6]);
                    let line = line!() + 1;
                    comm.all_gather(&[1.0_f32; 3], &mut all, STREAM).unwrap();
                    // Refused: it is too short, and there is no such rank.
                    assert!(comm.all_gather(&[1.0_f32; 3], &mut all[..5], STREAM).is_err());
                    assert!(comm.send(&[1_u8], 2, STREAM).is_err());
                    nccl.group(|g| {
                        comm.send(&[1_u8], peer, g.stream(STREAM))?;
                        comm.recv(&mut pair[..1], peer, g.stream(STREAM))
                    })
                    .unwrap();
                    comm.broadcast_in_place(&mut pair, 1, STREAM).unwrap();
                    line
                })
            })
            .collect();
        ranks.into_iter().map(|rank| rank.join().unwrap()).max().unwrap()
    });
    for (rank, recorder) in recorders.iter().enumerate() {
        let records = recorder.records();
        let of = |index: usize| {
            let record = &records[index];
            (
                record.operation,
                [record.collective, record.message],
                [record.sent, record.received],
                record.peer,
            )
        };
        assert_eq!(records.len(), 4, "{records:?}");
        assert_eq!(of(0), ("all_gather", [Some(1), None], [3, 6], None));
        assert_eq!(of(1), ("send", [None, Some(1)], [1, 0], Some(1 - rank)));
        assert_eq!(of(2), ("recv", [None, Some(2)], [0, 1], Some(1 - rank)));
        assert_eq!(of(3), ("broadcast_in_place", [Some(2), None], [2, 2], Some(1)));
        assert_eq!(
            records.iter().map(|record| record.group).collect::<Vec<_>>(),
            [None, Some(2), Some(2), None]
        );
        assert!(records.iter().all(|record| record.state == RecordState::Completed));
        assert!(records.windows(2).all(|pair| pair[0].queued <= pair[1].queued));
        let site = records[0].site.unwrap();
        assert_eq!((site.file(), site.line()), (file!(), line));
        let json = recorder.to_json("request");
        assert!(json.contains(r#""operation":"all_gather","data_type":"float","sent":3"#), "{json}");
    }
}

/// An operation that was called before is not recorded, and the record of one that fails afterwards is removed.
#[test]
fn records_that_begin_in_a_group_have_its_later_operations() {
    let nccl = libnccl_cpu::nccl();
    let comm = nccl.init_all(&[0]).unwrap().remove(0);
    let (mut first, mut second) = ([1], [1]);
    let mut recorder = None;
    let ended = nccl.group(|g| {
        comm.all_reduce_in_place(&mut first, ReduceOp::Sum, g.stream(STREAM))?;
        recorder = Some(comm.record(16));
        let _ = comm.send(&[2], 99, g.stream(STREAM));
        let _ = comm.broadcast_in_place(&mut second, 99, g.stream(STREAM));
        Ok(())
    });
    ended.unwrap_err();
    let recorder = recorder.unwrap();
    assert_eq!((recorder.count(), recorder.records().len()), (0, 0));

    let comm = nccl.init_all(&[0]).unwrap().remove(0);
    let mut recorder = None;
    nccl.group(|g| {
        comm.all_reduce_in_place(&mut first, ReduceOp::Sum, g.stream(STREAM))?;
        recorder = Some(comm.record(16));
        comm.all_reduce_in_place(&mut second, ReduceOp::Sum, g.stream(STREAM))
    })
    .unwrap();
    let records = recorder.unwrap().records();
    assert_eq!((records.len(), records[0].group), (1, Some(1)), "{records:?}");
}

/// Ranks that call different things leave records for an analyzer: `LIBNCCL_TEST_DUMPS` names a directory for them.
#[test]
fn mistake_is_in_the_records_of_the_ranks() {
    let config = Config::new().timeout(Duration::from_millis(300));
    type Call = fn(&Communicator) -> libnccl::Result<()>;
    let agreed: Call = |comm| comm.all_reduce_in_place(&mut [1_i32; 4], ReduceOp::Sum, STREAM);
    let mistakes: [(&str, Call); 4] = [
        ("operation", |comm| comm.broadcast_in_place(&mut [1_i32; 4], 0, STREAM)),
        ("count", |comm| comm.all_reduce_in_place(&mut [1_i32; 5], ReduceOp::Sum, STREAM)),
        ("type", |comm| comm.all_reduce_in_place(&mut [1_u32; 4], ReduceOp::Sum, STREAM)),
        ("missing", |_| Ok(())),
    ];
    for (mistake, call) in mistakes {
        let comms = init_in_group(&libnccl_cpu::nccl(), 3, &config).unwrap();
        let recorders: Vec<_> = comms.iter().map(|comm| comm.record(16)).collect();
        thread::scope(|scope| {
            for comm in comms {
                scope.spawn(move || {
                    agreed(&comm).unwrap();
                    let is_wrong = comm.rank() == 2;
                    let _ = if is_wrong { call(&comm) } else { agreed(&comm) };
                    // The others see the mistake before this rank exits.
                    thread::sleep(Duration::from_millis(400));
                });
            }
        });
        let last = |rank: usize| recorders[rank].records().pop().unwrap();
        let [right, wrong] = [last(1), last(2)];
        let same = (right.operation, right.sent, right.data_type, right.collective)
            == (wrong.operation, wrong.sent, wrong.data_type, wrong.collective);
        assert!(!same, "{mistake}: {right:?}, {wrong:?}");
        assert_eq!((last(0).operation, last(0).collective), ("all_reduce_in_place", Some(2)));
        if let Ok(directory) = std::env::var("LIBNCCL_TEST_DUMPS") {
            let directory = std::path::Path::new(&directory).join(mistake);
            std::fs::create_dir_all(&directory).unwrap();
            for (rank, recorder) in recorders.iter().enumerate() {
                std::fs::write(directory.join(format!("rank{rank}")), recorder.to_pytorch()).unwrap();
            }
        }
    }
}
