//! Behaviour that only a GPU has: streams, work that never ends, errors.

use std::thread;

use libnccl::buffer::MemorySpace;
use libnccl::communicator::AbortHandle;
use libnccl::error::ResultCode;
use libnccl::{Communicator, Error, ReduceOp, Result, StreamRef};

use crate::common::{COUNT, MOMENT, SHORT, assert_works, connected, scenarios, sum, within};
use crate::device::Device;
use crate::rank::Rank;

scenarios! {
    OneRank:
        init_all_on_one_device_works,
        host_slice_is_an_error,
        stream_per_thread_is_an_error,
        synchronize_in_the_context_of_another_gpu_is_an_error,
        destroy_drop_and_abort_in_any_order_return;
    TwoRanks:
        all_reduce_on_any_stream_is_right,
        operations_run_in_stream_order,
        group_of_different_operations_is_right,
        communicator_moved_to_another_thread_works,
        failed_group_starts_nothing,
        abort_ends_work_of_absent_peer,
        drop_ends_work_of_absent_peer,
        abort_handle_ends_work_of_absent_peer,
        destroy_in_either_order_returns,
        drop_after_work_returns,
        graph_and_communicator_end_in_any_order,
        several_communicators_abort_together;
    TwoRanksByDefault:
        two_ranks_on_one_gpu_by_default_are_an_error;
}

fn init_all_on_one_device_works(rank: &Rank) {
    let device = Device::new();
    let comms = rank.nccl.init_all(&[0]).unwrap();
    let [comm] = comms.as_slice() else { panic!("{comms:?}") };
    assert_eq!((comm.size(), comm.rank(), comm.device()), (1, 0, 0));
    assert_eq!(comm.memory_space(), MemorySpace::Device);
    assert_works(&device, comm);
}

fn host_slice_is_an_error(rank: &Rank) {
    let device = Device::new();
    let comm = rank.nccl.init_all(&[0]).unwrap().remove(0);
    let mut host = [1_i32; COUNT];
    let error = comm.all_reduce_in_place(&mut host, ReduceOp::Sum, device.stream()).unwrap_err();
    assert!(matches!(error, Error::InvalidArgument { .. }), "{error:?}");
    assert!(error.to_string().contains("host memory"), "{error}");
    assert_works(&device, &comm);
}

fn stream_per_thread_is_an_error(rank: &Rank) {
    let (device, per_thread) = (Device::new(), Device::with_stream_per_thread());
    let comm = rank.nccl.init_all(&[0]).unwrap().remove(0);
    let mut buffer = device.upload(&[1_i32; COUNT]);
    let error = sum(&per_thread, &comm, &mut buffer).unwrap_err();
    assert!(matches!(error, Error::InvalidArgument { .. }), "{error:?}");
    assert!(error.to_string().contains("handle is 2"), "{error}");
    assert_works(&device, &comm);
}

/// The default streams of all GPUs have the same handle.
fn synchronize_in_the_context_of_another_gpu_is_an_error(rank: &Rank) {
    let [first, second, ..] = &*Device::all() else { rank.skip("only one GPU is visible") };
    let comm = rank.nccl.init_all(&[0]).unwrap().remove(0);
    second.make_current();
    let error = comm.synchronize(&StreamRef::DEFAULT, SHORT).unwrap_err();
    assert!(matches!(error, Error::InvalidUsage { .. }), "{error:?}");
    first.make_current();
    comm.synchronize(&StreamRef::DEFAULT, SHORT).unwrap();
}

fn destroy_drop_and_abort_in_any_order_return(rank: &Rank) {
    let device = Device::new();
    for order in [[0, 1, 2], [2, 1, 0], [1, 0, 2]] {
        let mut comms = [(); 3].map(|()| Some(rank.nccl.init_all(&[0]).unwrap().remove(0)));
        comms.iter().flatten().for_each(|comm| assert_works(&device, comm));
        for (ending, index) in order.into_iter().enumerate() {
            let comm: Communicator = comms[index].take().unwrap();
            within(SHORT, || match ending {
                0 => comm.destroy().unwrap(),
                1 => drop(comm),
                _ => comm.abort().unwrap(),
            });
        }
    }
}

fn all_reduce_on_any_stream_is_right(rank: &Rank) {
    let comm = rank.join("communicator");
    for device in [Device::with_default_stream(), Device::new(), Device::new()] {
        assert_works(&device, &comm);
    }
    comm.destroy().unwrap();
}

/// Starts all operations before it waits for any.
fn operations_run_in_stream_order(rank: &Rank) {
    const TIMES: u32 = 20;
    let device = Device::new();
    let comm = rank.join("communicator");
    let mut buffer = device.upload(&[1_i32; COUNT]);
    for _ in 0..TIMES {
        sum(&device, &comm, &mut buffer).unwrap();
    }
    assert_eq!(buffer.read::<i32>(COUNT), [2_i32.pow(TIMES); COUNT]);
    comm.destroy().unwrap();
}

fn group_of_different_operations_is_right(rank: &Rank) {
    let device = Device::new();
    let comm = rank.join("communicator");
    let (own, peer) = (rank.number, 1 - rank.number);
    let (mut summed, mut copied) = (device.upload(&[5_i32; COUNT]), device.upload(&[own as i32; COUNT]));
    let (sent, mut received) = (device.upload(&[own as u64; COUNT]), device.upload(&[9_u64; COUNT]));
    rank.nccl
        .group(|g| {
            let stream = device.stream();
            comm.all_reduce_in_place(summed.slice_mut::<i32>(COUNT), ReduceOp::Prod, g.stream(stream))?;
            comm.broadcast_in_place(copied.slice_mut::<i32>(COUNT), 1, g.stream(stream))?;
            comm.send(sent.slice::<u64>(COUNT), peer, g.stream(stream))?;
            comm.recv(received.slice_mut::<u64>(COUNT), peer, g.stream(stream))
        })
        .unwrap();
    assert_eq!(summed.read::<i32>(COUNT), [25; COUNT]);
    assert_eq!(copied.read::<i32>(COUNT), [1; COUNT]);
    assert_eq!(received.read::<u64>(COUNT), [peer as u64; COUNT]);
    comm.destroy().unwrap();
}

fn communicator_moved_to_another_thread_works(rank: &Rank) {
    let comm = rank.join("communicator");
    let work = move || {
        assert_works(&Device::new(), &comm);
        comm.destroy().unwrap();
    };
    thread::spawn(work).join().unwrap();
}

/// Rank 1 never starts its operation: if rank 0's were started, it would wait on the GPU for ever.
fn failed_group_starts_nothing(rank: &Rank) {
    let (device, comm) = connected(rank);
    if rank.number == 1 {
        rank.receive("end");
        return comm.abort().unwrap();
    }
    let (mut buffer, mut other) = (device.upload(&[5_i32; COUNT]), device.upload(&[7_i32; COUNT]));
    let group = rank.nccl.group(|g| -> Result<()> {
        comm.all_reduce_in_place(buffer.slice_mut::<i32>(COUNT), ReduceOp::Sum, g.stream(device.stream()))?;
        comm.broadcast_in_place(other.slice_mut::<i32>(COUNT), 9, g.stream(device.stream()))
    });
    let error = group.unwrap_err();
    assert_eq!(error.to_string(), "broadcast_in_place: root 9 is not below 2, the communicator's size");
    thread::sleep(MOMENT / 2);
    assert!(device.idle_within(MOMENT / 2), "the group was started");
    assert_eq!(buffer.read::<i32>(COUNT), [5; COUNT]);
    let refused = sum(&device, &comm, &mut buffer).unwrap_err();
    assert!(matches!(refused, Error::InvalidUsage { .. }), "{refused:?}");
    within(SHORT, || comm.abort()).unwrap();
    // No group is left open on this thread.
    assert_works(&device, &rank.nccl.init_all(&[0]).unwrap()[0]);
    rank.publish("end", "");
}

fn abort_ends_work_of_absent_peer(rank: &Rank) {
    check_end_of_work_of_absent_peer(rank, |comm| comm.abort().unwrap());
}

fn drop_ends_work_of_absent_peer(rank: &Rank) {
    check_end_of_work_of_absent_peer(rank, drop);
}

/// Aborts from another thread.
fn abort_handle_ends_work_of_absent_peer(rank: &Rank) {
    check_end_of_work_of_absent_peer(rank, |comm| {
        let handle = comm.abort_handle();
        thread::spawn(move || handle.abort().unwrap()).join().unwrap();
        drop(comm);
    });
}

fn check_end_of_work_of_absent_peer(rank: &Rank, end: impl FnOnce(Communicator)) {
    let (device, comm) = connected(rank);
    if rank.number == 1 {
        rank.receive("end");
        return within(SHORT, || end(comm));
    }
    let mut buffer = device.upload(&[5_i32; COUNT]);
    sum(&device, &comm, &mut buffer).unwrap();
    assert!(!device.idle_within(MOMENT), "an all_reduce of two ranks ended with one");
    assert_eq!(comm.async_error().unwrap(), ResultCode::SUCCESS);
    within(SHORT, || end(comm));
    assert!(device.idle_within(SHORT), "the work has not ended");
    rank.publish("end", "");
}

fn destroy_in_either_order_returns(rank: &Rank) {
    let device = Device::new();
    for last in [0, 1] {
        let comm = rank.join(&format!("communicator {last}"));
        assert_works(&device, &comm);
        if rank.number == last {
            thread::sleep(MOMENT);
        }
        within(SHORT, || comm.destroy()).unwrap();
    }
}

fn drop_after_work_returns(rank: &Rank) {
    let device = Device::new();
    for last in [0, 1] {
        let comm = rank.join(&format!("communicator {last}"));
        assert_works(&device, &comm);
        rank.barrier(&format!("end of communicator {last}"));
        if rank.number == last {
            thread::sleep(MOMENT);
        }
        within(SHORT, || drop(comm));
    }
}

/// NCCL ends no communicator while there is a CUDA graph with its work; the facade does not wait for that. (With one
/// rank, NCCL's graphs have no such work.)
fn graph_and_communicator_end_in_any_order(rank: &Rank) {
    let device = Device::new();
    let ends: [fn(Communicator); 3] = [
        drop,
        |comm| {
            let aborted = comm.abort();
            assert!(matches!(aborted, Ok(()) | Err(Error::Timeout { .. })), "{aborted:?}");
        },
        |comm| drop(comm.abort_handle().abort()),
    ];
    for (number, end) in ends.into_iter().enumerate() {
        for graph_is_first in [true, false] {
            let name = format!("communicator {number}, graph first: {graph_is_first}");
            let comm = rank.join(&name);
            assert_works(&device, &comm);
            let mut buffer = device.upload(&[3_i32; COUNT]);
            let graph = device.capture(|| sum(&device, &comm, &mut buffer).unwrap());
            for launches in 1..=2 {
                graph.launch().unwrap();
                assert_eq!(buffer.read::<i32>(COUNT), [3 * 2_i32.pow(launches); COUNT]);
            }
            rank.barrier(&name);
            if graph_is_first {
                drop(graph);
                within(SHORT / 2, || end(comm));
            } else {
                within(SHORT, || end(comm));
                drop(graph);
            }
        }
    }
    let (comm, mut buffer) = (rank.join("destroyed"), device.upload(&[3_i32; COUNT]));
    drop(device.capture(|| sum(&device, &comm, &mut buffer).unwrap()));
    within(SHORT, || comm.destroy()).unwrap();
}

fn abort_all(comms: &[Communicator]) -> Result<()> {
    AbortHandle::abort_all(comms.iter().map(Communicator::abort_handle))
}

/// The abort of each could wait for the work of the other.
fn several_communicators_abort_together(rank: &Rank) {
    let devices = [Device::new(), Device::new()];
    let comms = ["first", "second"].map(|name| rank.join(name));
    for (device, comm) in devices.iter().zip(&comms) {
        assert_works(device, comm);
    }
    if rank.number == 1 {
        rank.receive("end");
        return within(SHORT, || abort_all(&comms)).unwrap();
    }
    let mut buffers = [0, 1].map(|index: usize| devices[index].upload(&[5_i32; COUNT]));
    for ((device, comm), buffer) in devices.iter().zip(&comms).zip(&mut buffers) {
        sum(device, comm, buffer).unwrap();
    }
    assert!(!devices[1].idle_within(MOMENT), "an all_reduce of two ranks ended with one");
    within(SHORT / 2, || abort_all(&comms)).unwrap();
    assert!(devices.iter().all(|device| device.idle_within(SHORT)), "the work has not ended");
    rank.publish("end", "");
}

/// Expects an error on both ranks, and no hang.
fn two_ranks_on_one_gpu_by_default_are_an_error(rank: &Rank) {
    let _device = Device::new();
    let error = within(3 * SHORT, || rank.try_join("communicator")).unwrap_err();
    assert!(matches!(&error, Error::Nccl { detail, .. } if detail.contains("GPU")), "{error:?}");
}
