//! Communicators with a timeout: no call waits forever, and nothing uses a buffer after its call.

use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use libnccl::communicator::Health;
use libnccl::error::ResultCode;
use libnccl::window::{WaitSignal, WindowFlags};
use libnccl::{CallOptions, Communicator, Config, Error, Nccl, ReduceOp, Result};

use super::common::{
    SHORT, STREAM, assert_works, cases, of_one_thread, of_one_thread_with, sum_of_all, wait_until_busy,
    within,
};

/// A timeout that is never reached, even on a slow machine.
const LONG_TIMEOUT: Duration = Duration::from_secs(60);
/// A timeout that waiting calls reach, and the creation of a communicator does not.
const TIMEOUT: Duration = Duration::from_millis(400);

cases! {
    init_without_peer_times_out,
    calls_without_peer_time_out,
    call_timeout_overrides_the_communicators,
    timeout_of_an_operation_in_a_group_is_refused_before_it_is_queued,
    timeout_of_a_call_of_a_blocking_communicator_is_invalid_usage,
    synchronize_on_host_memory_returns_the_asynchronous_error_immediately,
    abort_handle_during_blocking_call_aborts_after_it,
    lost_rank_ends_waiting_calls,
    pending_communicator_dropped_in_progress_does_not_hang,
    buffers_of_group_after_timeout_are_not_written,
    blocking_and_nonblocking_in_one_group_is_an_error,
}

fn with_timeout(timeout: Duration) -> Config {
    Config::new().timeout(timeout).rma_eager_init(true)
}

type Call = fn(&Nccl, &Communicator) -> Result<()>;

/// Calls of rank 0 that wait for rank 1.
const WAITING: [(&str, Call); 9] = [
    ("all_reduce_in_place", |_, comm| comm.all_reduce_in_place(&mut [1_i32; 9], ReduceOp::Sum, STREAM)),
    ("broadcast_in_place", |_, comm| comm.broadcast_in_place(&mut [1_u8; 100_000], 1, STREAM)),
    ("recv", |_, comm| comm.recv(&mut [1_i32; 9], 1, STREAM)),
    ("group", |nccl, comm| {
        let (mut one, mut other) = ([1_i32; 9], [1_i32; 9]);
        nccl.group(|g| {
            comm.recv(&mut one, 1, g.stream(STREAM))?;
            comm.all_reduce_in_place(&mut other, ReduceOp::Sum, g.stream(STREAM))
        })
    }),
    ("barrier", |_, comm| comm.barrier(&mut [0_u8], STREAM)),
    ("split", |_, comm| comm.split(Some(0), 0).init().map(drop)),
    ("suspend", |_, comm| comm.suspend()),
    ("register_window", |nccl, comm| {
        // SAFETY: all ranks register as many elements.
        unsafe { comm.register_window(&mut nccl.alloc::<i32>(9)?, WindowFlags::DEFAULT) }.map(drop)
    }),
    ("wait_signal", |_, comm| {
        let signals = [WaitSignal { count: 1, peer: 1, signal: libnccl::window::Signal::default() }];
        comm.wait_signal(&signals, STREAM)
    }),
];

/// Does `work` as rank 0 while rank 1 does nothing, and returns rank 1's communicator.
fn alone(nccl: &Nccl, timeout: Duration, work: impl FnOnce(Communicator)) -> Communicator {
    // In a group, as a thread that starts late would be a timeout.
    let mut comms = of_one_thread_with(nccl, 2, &with_timeout(timeout));
    let other = comms.pop().expect("rank 1");
    work(comms.pop().expect("rank 0"));
    other
}

fn assert_lost(comm: &Communicator) {
    let error = comm.all_reduce_in_place(&mut [1_i32; 9], ReduceOp::Sum, STREAM).unwrap_err();
    assert_eq!(error.code(), Some(ResultCode::REMOTE_ERROR), "{error}");
}

fn assert_aborted<T>(what: &str, result: Result<T>) {
    match result {
        Err(Error::Aborted { .. }) => {}
        Err(other) => panic!("{what}: {other}"),
        Ok(_) => panic!("{what}: the communicator was not aborted"),
    }
}

fn init_without_peer_times_out(nccl: &Nccl) {
    let id = nccl.unique_id().unwrap();
    let made = within(SHORT, || nccl.communicator(2, 0, &id).config(&with_timeout(TIMEOUT)).init());
    let Err(Error::Timeout { call: "init", elapsed, .. }) = made else { panic!("{made:?}") };
    assert!(elapsed >= TIMEOUT, "{elapsed:?}");
    // No group is left open on the thread.
    assert_works(&of_one_thread(nccl, 1)[0]);
}

fn calls_without_peer_time_out(nccl: &Nccl) {
    for (what, call) in WAITING {
        let other = alone(nccl, TIMEOUT, |comm| {
            let error = within(SHORT, || call(nccl, &comm)).unwrap_err();
            let text = error.to_string();
            let Error::Timeout { elapsed, size: 2, rank: 0, sequence, detail, .. } = error else {
                panic!("{what}: {text}")
            };
            assert!(elapsed >= TIMEOUT, "{what}: {elapsed:?}");
            // With an observed operation, as with the feature `log`.
            let number = sequence.map_or_else(String::new, |number| format!(", operation {number}"));
            assert!(text.starts_with(&format!("{what}{number} on rank 0 of 2: not done after")), "{text}");
            assert!(detail.contains("for rank 1 (process "), "{what}: {detail}");
            assert!(text.contains(" ms; the communicator is aborted: "), "{text}");
            assert_aborted(what, comm.async_error());
            assert_aborted(what, call(nccl, &comm));
            assert!(comm.as_raw().is_null(), "{what}");
        });
        assert_lost(&other);
        within(SHORT, || drop(other));
    }
}

fn timeout_of_an_operation_in_a_group_is_refused_before_it_is_queued(nccl: &Nccl) {
    let comms = of_one_thread(nccl, 2);
    let (mut first, mut second) = ([1_i32], [2_i32]);
    let grouped = nccl.group(|g| {
        let limited = g.stream(CallOptions::on(STREAM).timeout(TIMEOUT));
        // If it is not refused, the group is cancelled: it would wait for the other rank.
        Err::<(), _>(comms[0].all_reduce_in_place(&mut first, ReduceOp::Sum, limited).unwrap_err())
    });
    let expected = "all_reduce_in_place: an operation of a group has no timeout; set one for the whole group with Group::timeout";
    assert_eq!(grouped.unwrap_err().to_string(), expected);
    nccl.group(|g| {
        comms[0].all_reduce_in_place(&mut first, ReduceOp::Sum, g.stream(STREAM))?;
        comms[1].all_reduce_in_place(&mut second, ReduceOp::Sum, g.stream(STREAM))
    })
    .unwrap();
    assert_eq!((first, second), ([3], [3]));
}

fn call_timeout_overrides_the_communicators(nccl: &Nccl) {
    type Call = fn(&Nccl, &Communicator) -> Result<()>;
    let calls: [(&str, Call); 3] = [
        ("barrier", |_, comm| comm.barrier(&mut [0_u8], CallOptions::on(STREAM).timeout(TIMEOUT))),
        ("all_reduce_in_place", |_, comm| {
            let sum = comm.pre_mul_sum(1_i32)?;
            comm.all_reduce_in_place(&mut [1_i32], &sum, CallOptions::on(STREAM).timeout(TIMEOUT))
        }),
        ("group", |nccl, comm| {
            let mut buffer = [0_u8];
            nccl.group(|g| {
                g.timeout(TIMEOUT);
                comm.barrier(&mut buffer, g.stream(STREAM))
            })
        }),
    ];
    for (what, call) in calls {
        drop(alone(nccl, LONG_TIMEOUT, |comm| {
            let called = within(SHORT, || call(nccl, &comm));
            let Err(Error::Timeout { call: named, elapsed, .. }) = called else {
                panic!("{what}: {called:?}")
            };
            assert!(named == what && elapsed >= TIMEOUT, "{named}: {elapsed:?}");
            assert_aborted(what, comm.async_error());
        }));
    }
}

fn timeout_of_a_call_of_a_blocking_communicator_is_invalid_usage(nccl: &Nccl) {
    let comm = of_one_thread(nccl, 1).remove(0);
    let called = comm.barrier(&mut [0_u8], CallOptions::on(STREAM).timeout(TIMEOUT));
    assert!(matches!(called, Err(Error::InvalidUsage { call: "barrier", .. })), "{called:?}");
    assert_works(&comm);
}

fn synchronize_on_host_memory_returns_the_asynchronous_error_immediately(nccl: &Nccl) {
    let mut comms = of_one_thread(nccl, 2);
    comms[0].synchronize(&STREAM, Duration::ZERO).unwrap();
    assert!(comms[0].wait_for(&STREAM, Duration::ZERO).unwrap());
    let nested = nccl.group(|_| comms[0].synchronize(&STREAM, TIMEOUT));
    assert!(matches!(nested, Err(Error::InvalidUsage { call: "synchronize", .. })), "{nested:?}");
    comms.pop().unwrap().abort().unwrap();
    let lost = comms[0].synchronize(&STREAM, LONG_TIMEOUT);
    assert!(matches!(lost, Err(Error::Nccl { call: "synchronize", .. })), "{lost:?}");
    let lost = comms[0].wait_for(&STREAM, LONG_TIMEOUT);
    assert!(matches!(lost, Err(Error::Nccl { call: "wait_for", .. })), "{lost:?}");
    let handle = comms[0].abort_handle();
    assert!(matches!(handle.health(), Health::Failed(_)), "{:?}", handle.health());
    handle.abort().unwrap();
    assert!(matches!(handle.health(), Health::Ended), "{:?}", handle.health());
    assert_aborted("synchronize", comms[0].synchronize(&STREAM, LONG_TIMEOUT));
}

/// A blocking call cannot be interrupted: the abort takes effect after it.
fn abort_handle_during_blocking_call_aborts_after_it(nccl: &Nccl) {
    let mut comms = of_one_thread(nccl, 2);
    let (other, comm) = (comms.pop().expect("rank 1"), comms.pop().expect("rank 0"));
    let (handle, (sender, aborted)) = (comm.abort_handle(), mpsc::channel());
    thread::scope(|scope| {
        scope.spawn(move || {
            wait_until_busy(&handle);
            handle.abort().unwrap();
            sender.send(()).unwrap();
        });
        scope.spawn(move || {
            let aborted = aborted.recv_timeout(SHORT);
            assert_works(&other);
            aborted.expect("the abort does not wait for the call");
            assert_lost(&other);
        });
        assert_works(&comm);
        assert_aborted("afterwards", comm.async_error());
        assert_aborted("afterwards", comm.destroy());
    });
}

fn lost_rank_ends_waiting_calls(nccl: &Nccl) {
    for (what, call) in WAITING {
        let mut comms = of_one_thread_with(nccl, 2, &with_timeout(LONG_TIMEOUT));
        let (other, comm) = (comms.pop().expect("rank 1"), comms.pop().expect("rank 0"));
        let handle = comm.abort_handle();
        thread::scope(|scope| {
            scope.spawn(move || {
                wait_until_busy(&handle);
                other.abort().unwrap();
            });
            let error = within(SHORT, || call(nccl, &comm)).unwrap_err();
            assert_eq!(error.code(), Some(ResultCode::REMOTE_ERROR), "{what}: {error}");
            assert!(error.to_string().contains("rank 1"), "{what}: {error}");
            within(SHORT, || drop(comm));
        });
    }
}

fn pending_communicator_dropped_in_progress_does_not_hang(nccl: &Nccl) {
    let id = nccl.unique_id().unwrap();
    let pending =
        nccl.group(|g| nccl.communicator(2, 0, &id).config(&with_timeout(LONG_TIMEOUT)).init_in(g)).unwrap();
    within(SHORT, || drop(pending));
    assert_works(&of_one_thread(nccl, 1)[0]);
}

/// This includes the buffers of a member whose own timeout is longer.
fn buffers_of_group_after_timeout_are_not_written(nccl: &Nccl) {
    const COUNT: usize = 300_000;
    let ranks = |timeout| of_one_thread_with(nccl, 2, &with_timeout(timeout));
    let (short, mut long) = (ranks(TIMEOUT), ranks(LONG_TIMEOUT));
    let (mut buffer, mut one) = (vec![7_i32; COUNT], [1_i32]);
    let ended = within(SHORT, || {
        nccl.group(|g| {
            long[0].recv(&mut buffer, 1, g.stream(STREAM))?;
            short[0].all_reduce_in_place(&mut one, ReduceOp::Sum, g.stream(STREAM))
        })
    });
    assert!(matches!(ended, Err(Error::Timeout { call: "group", .. })), "{ended:?}");
    let other = long.pop().unwrap();
    // The send may succeed if it is buffered.
    let _ = other.send(&vec![9_i32; COUNT], 0, STREAM);
    assert_lost(&other);
    assert!(buffer.iter().all(|element| *element == 7));
}

fn blocking_and_nonblocking_in_one_group_is_an_error(nccl: &Nccl) {
    let mut comms = of_one_thread(nccl, 1);
    comms.extend(of_one_thread_with(nccl, 1, &with_timeout(LONG_TIMEOUT)));
    let error = sum_of_all(nccl, &comms).unwrap_err();
    assert_eq!(error.code(), Some(ResultCode::INVALID_ARGUMENT), "{error}");
    for comm in comms {
        let refused = comm.all_reduce_in_place(&mut [1_i32], ReduceOp::Sum, STREAM).unwrap_err();
        assert!(matches!(refused, Error::InvalidUsage { .. }), "{refused}");
        within(SHORT, || comm.destroy()).unwrap();
    }
}
