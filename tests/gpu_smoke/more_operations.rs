//! Operations that the comparison with the CPU backend leaves out: custom scalars, options, the barrier,
//! simulation, 16-bit types.

use std::fmt::Debug;
use std::thread;
use std::time::Instant;

use libnccl::config::CollectiveConfig;
use libnccl::{CallOptions, Communicator, Element, Error, ReduceOp};

use crate::common::{COUNT, MOMENT, SHORT, assert_works, connected, scenarios, sum};
use crate::device::Device;
use crate::rank::Rank;

scenarios! {
    OneRank:
        pre_mul_sum,
        barrier_makes_the_stream_wait_for_peers,
        barrier_in_a_group_over_all_devices_ends,
        simulate_of_one_rank_is_refused,
        collective_with_options_is_right,
        #[cfg(feature = "half")]
        sixteen_bit_types_are_reduced;
    TwoRanks:
        pre_mul_sum,
        barrier_makes_the_stream_wait_for_peers,
        simulate,
        simulate_of_messages_is_refused_and_leaves_nothing,
        collective_with_options_is_right,
        #[cfg(feature = "half")]
        sixteen_bit_types_are_reduced;
}

/// An element type that holds small numbers exactly.
trait Small: Element + Default + PartialEq + Debug + From<u8> {}
impl<T: Element + Default + PartialEq + Debug + From<u8>> Small for T {}

fn pre_mul_sum(rank: &Rank) {
    let device = Device::new();
    let comm = rank.join("communicator");
    check_pre_mul_sum::<i32>(rank, &device, &comm);
    check_pre_mul_sum::<f32>(rank, &device, &comm);
    comm.destroy().unwrap();
}

/// Uses a different scalar on every rank.
fn check_pre_mul_sum<T: Small>(rank: &Rank, device: &Device, comm: &Communicator) {
    let stream = device.stream();
    let own = rank.number as u8;
    let scalar = T::from(own + 2);
    let (in_memory, sent) = (device.upload(&[scalar]), device.upload(&[T::from(own + 3); COUNT]));
    let expected = vec![T::from((0..rank.size() as u8).map(|rank| (rank + 2) * (rank + 3)).sum()); COUNT];
    let of_host = comm.pre_mul_sum(scalar).unwrap();
    let of_device = comm.pre_mul_sum_device(in_memory.slice::<T>(1)).unwrap();
    for op in [&of_host, &of_device] {
        let mut received = device.upload(&[T::default(); COUNT]);
        comm.all_reduce(sent.slice::<T>(COUNT), received.slice_mut::<T>(COUNT), op, stream).unwrap();
        assert_eq!(received.read::<T>(COUNT), expected);
    }
    let mut received = device.upload(&[T::default(); COUNT]);
    let mut replaced = device.upload(&[T::from(own + 3); COUNT]);
    rank.nccl
        .group(|g| {
            comm.all_reduce(
                sent.slice::<T>(COUNT),
                received.slice_mut::<T>(COUNT),
                &of_host,
                g.stream(stream),
            )?;
            comm.all_reduce_in_place(replaced.slice_mut::<T>(COUNT), &of_device, g.stream(stream))
        })
        .unwrap();
    assert_eq!(received.read::<T>(COUNT), expected);
    assert_eq!(replaced.read::<T>(COUNT), expected);
}

/// Rank 0's stream goes on only after rank 1, if there is one, has reached the barrier.
fn barrier_makes_the_stream_wait_for_peers(rank: &Rank) {
    let device = Device::new();
    let comm = rank.join("communicator");
    let mut buffer = device.upload(&[0_u8]);
    let mut barrier = || {
        rank.supported(comm.barrier(buffer.slice_mut::<u8>(1), device.stream()));
        assert!(device.idle_within(SHORT), "the barrier does not end");
    };
    barrier();
    rank.barrier("start");
    if rank.number == 1 {
        thread::sleep(MOMENT);
    }
    let start = Instant::now();
    barrier();
    let waited = start.elapsed();
    assert!(rank.number == 1 || rank.size() == 1 || waited >= MOMENT * 9 / 10, "{waited:?}");
    comm.destroy().unwrap();
}

/// Each buffer is on the device of its communicator.
fn barrier_in_a_group_over_all_devices_ends(rank: &Rank) {
    let devices = Device::all();
    let numbers: Vec<i32> = (0..).take(devices.len()).collect();
    let comms = rank.nccl.init_all(&numbers).unwrap();
    let mut buffers: Vec<_> = devices.iter().map(|device| device.upload(&[0_u8])).collect();
    rank.nccl
        .group(|g| {
            let mut ranks = comms.iter().zip(&devices).zip(&mut buffers);
            ranks.try_for_each(|((comm, device), buffer)| {
                comm.barrier(buffer.slice_mut::<u8>(1), g.stream(device.stream()))
            })
        })
        .unwrap();
    assert!(devices.iter().all(|device| device.idle_within(SHORT)), "the barrier does not end");
    comms.into_iter().try_for_each(Communicator::destroy).unwrap();
}

/// NCCL would copy at once.
fn simulate_of_one_rank_is_refused(rank: &Rank) {
    let device = Device::new();
    let comm = rank.nccl.init_all(&[0]).unwrap().remove(0);
    let (sent, mut received) = (device.upload(&[5_i32; COUNT]), device.upload(&[7_i32; COUNT]));
    let (send, recv) = (sent.slice::<i32>(COUNT), received.slice_mut::<i32>(COUNT));
    let refused =
        rank.nccl.simulate(|g| comm.all_reduce(send, recv, ReduceOp::Sum, g.stream(device.stream())));
    assert!(matches!(refused, Err(Error::InvalidUsage { .. } | Error::Unsupported { .. })), "{refused:?}");
    assert_eq!(received.read::<i32>(COUNT), [7; COUNT]);
    assert_works(&device, &comm);
}

/// NCCL would keep the messages for the next group.
fn simulate_of_messages_is_refused_and_leaves_nothing(rank: &Rank) {
    let (device, comm) = connected(rank);
    let (mut stale, mut buffer) = (device.upload(&[7_i32; COUNT]), device.upload(&[5_i32; COUNT]));
    let peer = 1 - rank.number;
    let refused = rank.nccl.simulate(|g| {
        if rank.number == 0 {
            comm.send(stale.slice::<i32>(COUNT), peer, g.stream(device.stream()))
        } else {
            comm.recv(stale.slice_mut::<i32>(COUNT), peer, g.stream(device.stream()))
        }
    });
    assert!(matches!(refused, Err(Error::InvalidUsage { .. } | Error::Unsupported { .. })), "{refused:?}");
    // The messages of this group are the only ones.
    if rank.number == 0 {
        comm.send(buffer.slice::<i32>(COUNT), peer, device.stream()).unwrap();
    } else {
        buffer.write(&[0_i32; COUNT]);
        comm.recv(buffer.slice_mut::<i32>(COUNT), peer, device.stream()).unwrap();
    }
    assert_eq!(buffer.read::<i32>(COUNT), [5; COUNT]);
    assert_eq!(stale.read::<i32>(COUNT), [7; COUNT]);
    assert_works(&device, &comm);
    comm.destroy().unwrap();
}

fn simulate(rank: &Rank) {
    let (device, comm) = connected(rank);
    let mut buffer = device.upload(&[5_i32; COUNT]);
    let estimate = rank.nccl.simulate(|g| {
        comm.all_reduce_in_place(buffer.slice_mut::<i32>(COUNT), ReduceOp::Sum, g.stream(device.stream()))
    });
    let estimate = rank.supported(estimate);
    assert!(estimate.is_none_or(f32::is_finite), "{estimate:?}");
    assert!(device.idle_within(MOMENT), "the simulation started something");
    rank.barrier("simulated");
    assert_eq!(buffer.read::<i32>(COUNT), [5; COUNT]);
    // Nothing was left in the queue, either.
    sum(&device, &comm, &mut buffer).unwrap();
    assert_eq!(buffer.read::<i32>(COUNT), [10; COUNT]);
    comm.destroy().unwrap();
}

fn collective_with_options_is_right(rank: &Rank) {
    let device = Device::new();
    let comm = rank.join("communicator");
    let configs = [CollectiveConfig::new().max_ctas(1), CollectiveConfig::new().user_profiler_tag(7)];
    let upload = || device.upload(&[rank.number as i32 + 3; COUNT]);
    let expected = [(0..rank.size() as i32).map(|rank| rank + 3).sum::<i32>(); COUNT];
    for config in &configs {
        let mut buffer = upload();
        let slice = buffer.slice_mut::<i32>(COUNT);
        let started =
            comm.all_reduce_in_place(slice, ReduceOp::Sum, CallOptions::on(device.stream()).config(config));
        rank.supported(started);
        assert_eq!(buffer.read::<i32>(COUNT), expected, "{config:?}");
    }
    let mut buffers = configs.each_ref().map(|_| upload());
    rank.nccl
        .group(|g| {
            configs.iter().zip(&mut buffers).try_for_each(|(config, buffer)| {
                let slice = buffer.slice_mut::<i32>(COUNT);
                comm.all_reduce_in_place(
                    slice,
                    ReduceOp::Sum,
                    g.stream(CallOptions::on(device.stream()).config(config)),
                )
            })
        })
        .unwrap();
    for (buffer, config) in buffers.iter().zip(&configs) {
        assert_eq!(buffer.read::<i32>(COUNT), expected, "{config:?}, in a group");
    }
    assert_works(&device, &comm);
    comm.destroy().unwrap();
}

#[cfg(feature = "half")]
fn sixteen_bit_types_are_reduced(rank: &Rank) {
    let device = Device::new();
    let comm = rank.join("communicator");
    check_reductions::<half::f16>(rank, &device, &comm);
    check_reductions::<half::bf16>(rank, &device, &comm);
    check_pre_mul_sum::<half::f16>(rank, &device, &comm);
    check_pre_mul_sum::<half::bf16>(rank, &device, &comm);
    comm.destroy().unwrap();
}

/// Uses numbers whose results have no fraction.
#[cfg(feature = "half")]
fn check_reductions<T: Small>(rank: &Rank, device: &Device, comm: &Communicator) {
    let numbers: Vec<u8> = [3, 5].into_iter().take(rank.size()).collect();
    let (sum, count) = (numbers.iter().sum::<u8>(), numbers.len() as u8);
    let extreme = |extreme: Option<&u8>| *extreme.expect("one rank at least");
    for (op, expected) in [
        (ReduceOp::Sum, sum),
        (ReduceOp::Prod, numbers.iter().product()),
        (ReduceOp::Max, extreme(numbers.iter().max())),
        (ReduceOp::Min, extreme(numbers.iter().min())),
        (ReduceOp::Avg, sum / count),
    ] {
        let sent = device.upload(&[T::from(numbers[rank.number]); COUNT]);
        let mut received = device.upload(&[T::default(); COUNT]);
        comm.all_reduce(sent.slice::<T>(COUNT), received.slice_mut::<T>(COUNT), op, device.stream()).unwrap();
        assert_eq!(received.read::<T>(COUNT), vec![T::from(expected); COUNT], "{op}");
    }
}
