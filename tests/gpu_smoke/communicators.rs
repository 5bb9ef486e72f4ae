//! Communicators: creation with options and from others, suspension, and revocation.

use std::thread;
use std::time::Duration;

use libnccl::communicator::{MemoryStatistic, ShrinkMode};
use libnccl::config::Encryption;
use libnccl::error::ResultCode;
use libnccl::{Communicator, Config, Error, ReduceOp};

use crate::common::{COUNT, MOMENT, SHORT, assert_works, connected, scenarios, sum, within};
use crate::device::Device;
use crate::rank::Rank;

scenarios! {
    OneRank:
        nonblocking_communicator_works,
        min_ctas_without_max_ctas_works,
        init_without_peer_times_out,
        communicator_created_in_a_group_works,
        communicator_without_encryption_works,
        split_orders_ranks_by_color_and_key,
        revoked_nonblocking_communicator_is_destroyed,
        properties_match_the_communicator,
        suspended_communicator_works_after_resume,
        parameters_are_listed_and_readable;
    TwoRanks:
        nonblocking_communicator_works,
        min_ctas_without_max_ctas_works,
        init_without_peer_times_out,
        abort_handle_ends_call_that_waits_for_peer,
        init_with_several_ids_creates_one_communicator,
        communicator_created_in_a_group_works,
        communicator_without_encryption_works,
        split_orders_ranks_by_color_and_key,
        shrink_to_one_rank_works,
        shrink_ends_work_of_absent_peer,
        revoke_ends_work_of_absent_peer,
        revoked_nonblocking_communicator_is_destroyed,
        properties_match_the_communicator,
        suspended_communicator_works_after_resume;
}

fn nonblocking() -> Config {
    Config::new().timeout(2 * SHORT)
}

fn nonblocking_communicator_works(rank: &Rank) {
    let device = Device::new();
    let config = nonblocking().min_ctas(1).max_ctas(4).name("smoke");
    let comm = rank.supported(rank.try_join_with("communicator", &config));
    for _ in 0..3 {
        assert_works(&device, &comm);
    }
    assert_works_in_a_group(rank, &device, &comm);
    within(SHORT, || comm.destroy()).unwrap();
}

fn assert_works_in_a_group(rank: &Rank, device: &Device, comm: &Communicator) {
    let (own, size) = (rank.number, rank.size());
    let (next, previous) = ((own + 1) % size, (own + size - 1) % size);
    let mut shared = device.upload(&[own as i32 + 1; COUNT]);
    let (sent, mut received) = (device.upload(&[own as u64; COUNT]), device.upload(&[9_u64; COUNT]));
    rank.nccl
        .group(|g| {
            let stream = device.stream();
            comm.all_reduce_in_place(shared.slice_mut::<i32>(COUNT), ReduceOp::Max, g.stream(stream))?;
            comm.send(sent.slice::<u64>(COUNT), next, g.stream(stream))?;
            comm.recv(received.slice_mut::<u64>(COUNT), previous, g.stream(stream))
        })
        .unwrap();
    assert_eq!(shared.read::<i32>(COUNT), [size as i32; COUNT]);
    assert_eq!(received.read::<u64>(COUNT), [previous as u64; COUNT]);
}

/// NCCL compares the minimum with a maximum that is not set.
fn min_ctas_without_max_ctas_works(rank: &Rank) {
    let device = Device::new();
    let comm = rank.supported(rank.try_join_with("communicator", &Config::new().min_ctas(2)));
    assert_works(&device, &comm);
    comm.destroy().unwrap();
}

/// Rank 0 asks for a second rank, which does not exist or does not join.
fn init_without_peer_times_out(rank: &Rank) {
    let device = Device::new();
    if rank.number == 0 {
        let id = rank.nccl.unique_id().unwrap();
        let config = Config::new().timeout(2 * MOMENT);
        let made = within(5 * MOMENT, || rank.nccl.communicator(2, 0, &id).config(&config).init());
        let error = made.unwrap_err();
        let Error::Timeout { elapsed, .. } = error else { panic!("{error:?}") };
        assert!(elapsed >= 2 * MOMENT, "{elapsed:?}");
    }
    // No group is left open on the thread, and a new communicator works.
    assert_works(&device, &rank.nccl.init_all(&[0]).unwrap()[0]);
    rank.barrier("end");
}

/// A communicator under construction has no abort handle; its parent has one.
fn abort_handle_ends_call_that_waits_for_peer(rank: &Rank) {
    const TIMEOUT: Duration = Duration::from_secs(30);
    let device = Device::new();
    let comm = rank.supported(rank.try_join_with("communicator", &Config::new().timeout(TIMEOUT)));
    assert_works(&device, &comm);
    if rank.number == 1 {
        rank.receive("end");
        return within(SHORT, || comm.abort()).unwrap();
    }
    let handle = comm.abort_handle();
    let watchdog = thread::spawn(move || {
        thread::sleep(MOMENT);
        handle.abort().unwrap();
    });
    let error = within(5 * MOMENT, || comm.split(Some(0), 0).init()).unwrap_err();
    assert!(matches!(error, Error::Aborted { .. }), "{error:?}");
    watchdog.join().unwrap();
    let error = comm.async_error().unwrap_err();
    assert!(matches!(error, Error::Aborted { .. }), "{error:?}");
    within(SHORT, || drop(comm));
    rank.publish("end", "");
}

fn init_with_several_ids_creates_one_communicator(rank: &Rank) {
    let device = Device::new();
    let name = |number| format!("id {number}");
    rank.publish(&name(rank.number), &rank.nccl.unique_id().unwrap().to_string());
    let ids = [0, 1].map(|number| rank.receive(&name(number)).parse().expect("an id"));
    let comm = rank.nccl.communicator(rank.size(), rank.number, &ids[0]).ids(&ids).init().unwrap();
    assert_works(&device, &comm);
    comm.destroy().unwrap();
}

fn communicator_created_in_a_group_works(rank: &Rank) {
    let device = Device::new();
    for (number, config) in [Config::new(), nonblocking()].iter().enumerate() {
        let id = rank.share_id(&format!("id {number}")).unwrap();
        let pending = rank
            .nccl
            .group(|g| rank.nccl.communicator(rank.size(), rank.number, &id).config(config).init_in(g))
            .unwrap();
        let comm = pending.finish().unwrap();
        assert_eq!((comm.size(), comm.rank()), (rank.size(), rank.number));
        assert_works(&device, &comm);
        comm.destroy().unwrap();
    }
}

fn communicator_without_encryption_works(rank: &Rank) {
    let device = Device::new();
    rank.supported(rank.nccl.set_encryption(Encryption::None));
    let comm = rank.join("communicator");
    assert_works(&device, &comm);
    comm.destroy().unwrap();
}

fn split_orders_ranks_by_color_and_key(rank: &Rank) {
    let device = Device::new();
    for (number, config) in [Config::new(), nonblocking()].iter().enumerate() {
        let comm = rank.try_join_with(&format!("communicator {number}"), config).unwrap();
        let check_and_destroy = |child: Communicator| {
            assert_works(&device, &child);
            child.destroy().unwrap();
        };
        // One color, with keys in reverse.
        let child = comm.split(Some(3), -(rank.number as i32)).init().unwrap().expect("a child");
        assert_eq!((child.size(), child.rank()), (rank.size(), rank.size() - 1 - rank.number));
        check_and_destroy(child);
        // As many colors as ranks.
        let child = comm.split(Some(rank.number as u32), 0).init().unwrap().expect("a child");
        assert_eq!((child.size(), child.rank()), (1, 0));
        check_and_destroy(child);
        // Rank 0 has no color.
        let color = (rank.number != 0).then_some(0);
        let child = comm.split(color, 0).init().unwrap();
        assert_eq!(child.as_ref().map(Communicator::size), color.map(|_| 1));
        child.into_iter().for_each(check_and_destroy);
        assert_works(&device, &comm);
        comm.destroy().unwrap();
    }
}

fn shrink_to_one_rank_works(rank: &Rank) {
    let (device, comm) = connected(rank);
    if rank.number == 0 {
        let shrunk = rank.supported(comm.shrink(&[1], ShrinkMode::Default).init());
        assert_eq!((shrunk.size(), shrunk.rank()), (1, 0));
        assert_works(&device, &shrunk);
        shrunk.destroy().unwrap();
    }
    rank.barrier("shrunk");
    comm.destroy().unwrap();
}

fn shrink_ends_work_of_absent_peer(rank: &Rank) {
    let (device, comm) = connected(rank);
    if rank.number == 0 {
        let mut buffer = device.upload(&[5_i32; COUNT]);
        sum(&device, &comm, &mut buffer).unwrap();
        assert!(!device.idle_within(MOMENT), "an all_reduce of two ranks ended with one");
        let shrunk = within(SHORT, || comm.shrink(&[1], ShrinkMode::Abort).init());
        let shrunk = rank.supported(shrunk);
        assert!(device.idle_within(SHORT), "the work has not ended");
        assert_works(&device, &shrunk);
        shrunk.destroy().unwrap();
    }
    rank.barrier("shrunk");
    within(SHORT, || comm.abort()).unwrap();
}

fn revoke_ends_work_of_absent_peer(rank: &Rank) {
    let (device, comm) = connected(rank);
    let mut buffer = device.upload(&[5_i32; COUNT]);
    if rank.number == 0 {
        sum(&device, &comm, &mut buffer).unwrap();
        assert!(!device.idle_within(MOMENT), "an all_reduce of two ranks ended with one");
    }
    // On the CPU backend, the peer's revocation ends the work as well.
    rank.barrier("the work waits");
    rank.supported(within(SHORT, || comm.revoke()));
    assert!(device.idle_within(SHORT), "the work has not ended");
    let refused = sum(&device, &comm, &mut buffer).unwrap_err();
    assert_eq!(refused.code(), Some(ResultCode::INVALID_USAGE), "{refused:?}");
    rank.barrier("revoked");
    let child = within(SHORT, || comm.split(Some(0), 0).init()).unwrap().expect("a child");
    assert_works(&device, &child);
    child.destroy().unwrap();
    within(SHORT, || comm.destroy()).unwrap();
}

/// NCCL does not finalize a revoked communicator.
fn revoked_nonblocking_communicator_is_destroyed(rank: &Rank) {
    let device = Device::new();
    let comm = rank.supported(rank.try_join_with("communicator", &nonblocking()));
    assert_works(&device, &comm);
    rank.supported(within(SHORT, || comm.revoke()));
    within(SHORT, || comm.destroy()).unwrap();
}

fn properties_match_the_communicator(rank: &Rank) {
    let _device = Device::new();
    let comm = rank.join("communicator");
    let properties = rank.supported(comm.properties());
    let found = (properties.rank, properties.size, properties.cuda_device);
    assert_eq!(found, (rank.number, rank.size(), 0), "{properties:?}");
    assert!(properties.nvml_device >= 0, "{properties:?}");
    comm.destroy().unwrap();
}

fn suspended_communicator_works_after_resume(rank: &Rank) {
    let (device, comm) = connected(rank);
    let memory = |statistic| rank.supported(comm.memory(statistic));
    assert!(memory(MemoryStatistic::Total) > 0);
    rank.barrier("all work is done");
    // The statistic says whether there is any, not how much.
    for (suspended, change) in [(1, Communicator::suspend as fn(&_) -> _), (0, Communicator::resume)] {
        rank.supported(change(&comm));
        assert_eq!(memory(MemoryStatistic::Suspended), suspended);
        rank.barrier(&format!("suspended: {suspended}"));
    }
    assert_works(&device, &comm);
    comm.destroy().unwrap();
}

fn parameters_are_listed_and_readable(rank: &Rank) {
    let parameters = rank.supported(rank.nccl.parameters());
    let keys = parameters.keys().unwrap();
    assert!(keys.iter().any(|key| key == "NCCL_DEBUG"), "{keys:?}");
    assert!(parameters.get::<String>("NCCL_DEBUG").unwrap().is_some());
    assert_eq!(parameters.get::<String>("NCCL_NO_SUCH_PARAMETER").unwrap(), None);
}
