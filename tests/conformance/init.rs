//! Creation, properties and teardown of communicators.

use std::ffi::c_int;
use std::ptr;
use std::thread;

use cudarc::driver::CudaContext;
use libnccl::sys::{NCCL_VERSION_CODE, ncclConfig_t, ncclEncryptionConfig_t, ncclUniqueId};

use crate::implementation::Implementation;
use crate::rank::{MOMENT, OK, PROGRESS, Rank, SOON, USAGE};
use crate::{Case, cases};

pub(crate) fn cases() -> Vec<Case> {
    cases! {
        1..=4 => init_rank, init_with_several_ids, init_in_a_group, init_with_options, every_teardown_returns;
        1..=1 => init_all_ranks_of_a_thread, init_without_peer_ends_with_its_abort, ids_differ;
        2..=2 => ranks_of_one_device_are_refused, abort_ends_work_of_an_absent_peer;
    }
}

fn init_rank(rank: &Rank) {
    let (id, mut comm, mut device) = (rank.share_id("id"), ptr::null_mut(), -1);
    check!(rank, ncclCommInitRank(&mut comm, rank.size as c_int, id, rank.number as c_int));
    assert_eq!(rank.place(comm), (rank.size, rank.number));
    check!(rank, ncclCommCuDevice(comm, &mut device));
    let expected = rank.implementation.device(rank.number);
    assert!(device == expected as c_int || !rank.implementation.has_device_memory(), "{device}");
    assert_eq!(rank.async_error(comm), OK);
    rank.assert_works(comm);
    check!(rank, ncclCommFinalize(comm));
    rank.finish(comm);
    rank.destroy(comm);
}

fn ids_differ(rank: &Rank) {
    let mut version = 0;
    check!(rank, ncclGetVersion(&mut version));
    assert!(version > 0 && (version <= NCCL_VERSION_CODE as c_int || !rank.implementation.is_cpu_backend()));
    let ids: Vec<_> = (0..20).map(|_| rank.new_id().internal).collect();
    assert!((0..20).all(|index| !ids[..index].contains(&ids[index])));
}

fn init_with_several_ids(rank: &Rank) {
    let number = rank.size.min(2);
    if rank.number < number {
        rank.publish_id(&format!("id {}", rank.number), &rank.new_id());
    }
    let mut ids: Vec<ncclUniqueId> =
        (0..number).map(|index| rank.receive_id(&format!("id {index}"))).collect();
    let (mut comm, (size, me)) = (ptr::null_mut(), (rank.size as c_int, rank.number as c_int));
    let (count, ids) = (number as c_int, ids.as_mut_ptr());
    check!(rank, ncclCommInitRankScalable(&mut comm, size, me, count, ids, ptr::null_mut()));
    rank.assert_works(comm);
    rank.destroy(comm);
}

/// The handle is written when the group has ended.
fn init_in_a_group(rank: &Rank) {
    for blocking in [1, 0] {
        let (id, mut comm) = (rank.share_id(&format!("id {blocking}")), ptr::null_mut());
        let mut config = ncclConfig_t { blocking, ..ncclConfig_t::initializer() };
        let (size, me) = (rank.size as c_int, rank.number as c_int);
        let code = rank.group(|| check!(rank, ncclCommInitRankConfig(&mut comm, size, id, me, &mut config)));
        assert!(code == OK || blocking == 0 && code == PROGRESS, "{code:?}: {}", rank.last_error());
        rank.finish(comm);
        rank.assert_works(comm);
        check!(rank, ncclCommFinalize(comm));
        rank.finish(comm);
        rank.destroy(comm);
    }
}

fn init_with_options(rank: &Rank) {
    let unset = ncclConfig_t::initializer();
    // The name is copied: the caller's string lives only until the call returns.
    let name = c"the name".to_owned();
    let mut configs = [
        ncclConfig_t { commName: name.as_ptr(), minCTAs: 1, maxCTAs: 4, ..unset },
        ncclConfig_t { blocking: 0, minCTAs: 2, ..unset },
        ncclConfig_t { trafficClass: 1, splitShare: 1, ..unset },
    ];
    check!(rank, ncclSetEncryption(&ncclEncryptionConfig_t::initializer()));
    let comms: Vec<_> = ["one", "two", "three"]
        .iter()
        .zip(&mut configs)
        .map(|(name, config)| rank.join_with(name, config))
        .collect();
    drop(name);
    for comm in comms {
        rank.assert_works(comm);
        rank.destroy(comm);
    }
}

fn every_teardown_returns(rank: &Rank) {
    for (turn, blocking) in [1, 0, 1, 0].into_iter().enumerate() {
        for last in [0, rank.size - 1] {
            let mut config = ncclConfig_t { blocking, ..ncclConfig_t::initializer() };
            let name = format!("communicator {turn} {last}");
            let comm = rank.join_with(&name, &mut config);
            rank.assert_works(comm);
            rank.barrier(&name);
            if rank.number == last {
                thread::sleep(MOMENT / 4);
            }
            let code = rank.soon(|| match turn {
                0 | 1 => call!(rank, ncclCommDestroy(comm)),
                _ => call!(rank, ncclCommAbort(comm)),
            });
            assert_eq!(code, OK);
        }
    }
}

/// Sums over ranks of one thread, in a group.
fn init_all_ranks_of_a_thread(rank: &Rank) {
    let devices: Vec<c_int> =
        if rank.implementation == Implementation::Gpu { vec![0] } else { vec![2, 0, 1] };
    let (count, mut comms) = (devices.len(), vec![ptr::null_mut(); devices.len()]);
    check!(rank, ncclCommInitAll(comms.as_mut_ptr(), count as c_int, devices.as_ptr()));
    for (index, comm) in comms.iter().enumerate() {
        let mut device = -1;
        check!(rank, ncclCommCuDevice(*comm, &mut device));
        assert_eq!((rank.place(*comm), device), ((count, index), devices[index]));
    }
    if !rank.implementation.has_device_memory() {
        let buffers: Vec<_> = comms.iter().map(|_| rank.upload(&[1_i32; 50])).collect();
        let code = rank
            .group(|| comms.iter().zip(&buffers).for_each(|(comm, buffer)| rank.start_sum(*comm, buffer)));
        assert_eq!(code, OK);
        assert!(buffers.iter().all(|buffer| buffer.read::<i32>() == [3; 50]));
        // The first two devices, where no list names others.
        let mut others = [ptr::null_mut(); 2];
        check!(rank, ncclCommInitAll(others.as_mut_ptr(), 2, ptr::null()));
        assert_eq!(rank.place(others[1]), (2, 1));
        others.into_iter().for_each(|comm| rank.destroy(comm));
    }
    if rank.implementation.is_cpu_backend() {
        let mut others = [ptr::null_mut(); 2];
        assert_eq!(call!(rank, ncclCommInitAll(others.as_mut_ptr(), 2, [3, 3].as_ptr())), USAGE);
    }
    comms.into_iter().for_each(|comm| rank.destroy(comm));
}

fn init_without_peer_ends_with_its_abort(rank: &Rank) {
    let (mut comm, id) = (ptr::null_mut(), rank.new_id());
    let mut config = ncclConfig_t { blocking: 0, ..ncclConfig_t::initializer() };
    check!(rank, ncclCommInitRankConfig(&mut comm, 2, id, 0, &mut config));
    assert!(!comm.is_null(), "no communicator to query");
    thread::sleep(MOMENT / 4);
    assert_eq!(rank.async_error(comm), PROGRESS);
    assert_eq!(rank.soon(|| call!(rank, ncclCommAbort(comm))), OK);
    let comm = rank.join("afterwards");
    rank.assert_works(comm);
    rank.destroy(comm);
}

fn ranks_of_one_device_are_refused(rank: &Rank) {
    if rank.implementation != Implementation::Emulation {
        rank.skip("there are no devices, or all ranks share one");
    }
    CudaContext::new(0).and_then(|device| device.bind_to_thread()).expect("a device");
    let (id, mut comm) = (rank.share_id("id"), ptr::null_mut());
    assert_eq!(call!(rank, ncclCommInitRank(&mut comm, 2, id, rank.number as c_int)), USAGE);
    rank.assert_last_error("NCCL_MULTI_RANK_GPU_ENABLE=1 allows");
}

/// Rank 1 never makes the calls of rank 0, which wait on its stream, or in the background. The abort of each communicator could wait
/// for the work of the other.
fn abort_ends_work_of_an_absent_peer(rank: &Rank) {
    let comms = ["first", "second"].map(|name| rank.join_nonblocking(name));
    comms.iter().for_each(|comm| rank.assert_works(*comm));
    if rank.number == 1 {
        rank.receive("the end");
    } else {
        let buffers = comms.map(|_| rank.upload(&[5_i32; 1000]));
        let code = rank
            .group(|| comms.iter().zip(&buffers).for_each(|(comm, buffer)| rank.start_sum(*comm, buffer)));
        assert!(code == OK || code == PROGRESS, "{code:?}");
        assert!(!rank.is_done_within(comms[1], MOMENT), "a sum of two ranks ended with one");
    }
    thread::scope(|scope| {
        for comm in comms.map(<*mut _>::expose_provenance) {
            scope.spawn(move || {
                rank.make_current();
                let comm = ptr::with_exposed_provenance_mut(comm);
                assert_eq!(rank.soon(|| call!(rank, ncclCommAbort(comm))), OK);
            });
        }
    });
    assert!(rank.is_idle_within(SOON), "the stream does not continue");
    if rank.number == 0 {
        rank.publish("the end", "");
    }
}
