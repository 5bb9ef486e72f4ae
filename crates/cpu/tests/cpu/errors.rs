//! Invalid arguments, cancelled groups and mismatched calls: NCCL's codes, and helpful texts.

use std::ffi::c_void;
use std::ptr;

use crate::common::{
    ARGUMENT, Comm, F32, Mode, OK, REMOTE, SUM, USAGE, all_reduce, alone, assert_last_error, init, init_rank,
    on_threads, unique_id,
};
use libnccl::sys::{ncclComm_t, ncclConfig_t, ncclDataType_t, ncclRedOp_t, ncclUniqueId};
use libnccl_cpu::TABLE;

#[test]
fn function_table_is_complete() {
    let _alone = alone();
    assert!(TABLE.present().all(|(_, present)| present));
}

#[test]
fn thread_gets_its_own_last_error_or_the_latest() {
    let _alone = alone();
    let fail = |count| assert_eq!(nccl!(ncclCommInitAll(&mut ptr::null_mut(), count, ptr::null())), ARGUMENT);
    on_threads(1, |_| {
        fail(-1);
        on_threads(1, |_| {
            assert_last_error("invalid number of ranks -1");
            fail(-2);
            assert_last_error("invalid number of ranks -2");
        });
        assert_last_error("invalid number of ranks -1");
    });
}

#[test]
fn null_comm_is_invalid_argument() {
    let _alone = alone();
    let (null, mut number, mut code) = (ptr::null_mut(), 0, OK);
    assert_eq!(nccl!(ncclCommCount(null, &mut number)), ARGUMENT);
    assert_eq!(nccl!(ncclCommUserRank(null, &mut number)), ARGUMENT);
    assert_eq!(nccl!(ncclCommCuDevice(null, &mut number)), ARGUMENT);
    assert_eq!(nccl!(ncclCommGetAsyncError(null, &mut code)), ARGUMENT);
    assert_eq!(all_reduce(&mut [0.0], null), ARGUMENT);
    let (buffer, stream) = ([0f32; 2].as_mut_ptr().cast(), ptr::null_mut());
    assert_eq!(nccl!(ncclReduce(buffer, buffer, 1, F32, SUM, 0, null, stream)), ARGUMENT);
    assert_eq!(nccl!(ncclBroadcast(buffer, buffer, 1, F32, 0, null, stream)), ARGUMENT);
    assert_eq!(nccl!(ncclBcast(buffer, 1, F32, 0, null, stream)), ARGUMENT);
    assert_eq!(nccl!(ncclAllGather(buffer, buffer, 1, F32, null, stream)), ARGUMENT);
    assert_eq!(nccl!(ncclReduceScatter(buffer, buffer, 1, F32, SUM, null, stream)), ARGUMENT);
    assert_eq!(nccl!(ncclSend(buffer, 1, F32, 0, null, stream)), ARGUMENT);
    assert_eq!(nccl!(ncclRecv(buffer, 1, F32, 0, null, stream)), ARGUMENT);
    assert_eq!(nccl!(ncclRedOpDestroy(ncclRedOp_t(5), null)), ARGUMENT);
    assert_eq!(nccl!(ncclCommFinalize(null)), OK);
    assert_eq!(nccl!(ncclCommDestroy(null)), OK);
    assert_eq!(nccl!(ncclCommAbort(null)), OK);
}

#[test]
fn foreign_or_destroyed_comm_is_invalid_argument() {
    let _alone = alone();
    let comms = init(Mode::Group, 2);
    comms.iter().for_each(|comm| comm.destroy());
    let mut object = [0u64; 64];
    for comm in [comms[0].0, object.as_mut_ptr().cast(), 8 as ncclComm_t, usize::MAX as ncclComm_t] {
        let mut number = 0;
        assert_eq!(nccl!(ncclCommCount(comm, &mut number)), ARGUMENT);
        assert_eq!(nccl!(ncclCommDestroy(comm)), ARGUMENT);
        assert_eq!(nccl!(ncclCommAbort(comm)), ARGUMENT);
        assert_eq!(all_reduce(&mut [0.0], comm), ARGUMENT);
    }
}

#[test]
fn init_with_invalid_arguments_fails() {
    let _alone = alone();
    let (id, mut comm) = (unique_id(), ptr::null_mut());
    for (ranks, rank) in [(0, 0), (-1, 0), (2, 2), (2, -1), (i32::MAX, 0)] {
        assert_eq!(nccl!(ncclCommInitRank(&mut comm, ranks, id, rank)), ARGUMENT);
    }
    assert_eq!(nccl!(ncclCommInitRank(ptr::null_mut(), 1, id, 0)), ARGUMENT);
    assert_eq!(init_rank(ncclUniqueId::default(), 1, 0), Err(ARGUMENT), "128 zero bytes are not an id");

    let mut config = ncclConfig_t::initializer();
    config.blocking = 2;
    assert_eq!(nccl!(ncclCommInitRankConfig(&mut comm, 1, id, 0, &mut config)), ARGUMENT);
    config = ncclConfig_t::initializer();
    config.magic = 0;
    assert_eq!(nccl!(ncclCommInitRankConfig(&mut comm, 1, id, 0, &mut config)), ARGUMENT);
    assert!(comm.is_null());
    config = ncclConfig_t::initializer();
    assert_eq!(nccl!(ncclCommInitRankConfig(&mut comm, 1, id, 0, &mut config)), OK);
    Comm(comm).destroy();
    assert_eq!(nccl!(ncclCommInitRankConfig(&mut comm, 1, unique_id(), 0, ptr::null_mut())), OK);
    Comm(comm).destroy();

    let mut comms = [ptr::null_mut(); 2];
    let place = comms.as_mut_ptr();
    assert_eq!(nccl!(ncclCommInitAll(ptr::null_mut(), 2, ptr::null())), ARGUMENT);
    assert_eq!(nccl!(ncclCommInitAll(place, 0, ptr::null())), ARGUMENT);
    assert_eq!(nccl!(ncclCommInitAll(place, -1, ptr::null())), ARGUMENT);
    assert_eq!(nccl!(ncclCommInitAll(place, 2, [0, -1].as_ptr())), ARGUMENT);
    assert_eq!(nccl!(ncclCommInitAll(place, 2, [3, 3].as_ptr())), USAGE);
    assert_eq!(nccl!(ncclCommInitAll(place, 2, [7, 3].as_ptr())), OK);
    let (mut device, mut rank, mut count) = (0, 0, 0);
    assert_eq!(nccl!(ncclCommCuDevice(comms[1], &mut device)), OK);
    assert_eq!(nccl!(ncclCommUserRank(comms[1], &mut rank)), OK);
    assert_eq!(nccl!(ncclCommCount(comms[1], &mut count)), OK);
    assert_eq!((device, rank, count), (3, 1, 2));
    comms.into_iter().map(Comm).for_each(Comm::destroy);
}

#[test]
fn invalid_operation_arguments_leave_comm_usable() {
    let _alone = alone();
    let comms = init(Mode::Group, 1);
    let (Comm(comm), stream) = (comms[0], ptr::null_mut());
    let mut buffer = [1f32, 2.0];
    let place = buffer.as_mut_ptr().cast();
    let reduce = |place: *mut c_void, count, data_type, op, root| {
        nccl!(ncclReduce(place, place, count, ncclDataType_t(data_type), ncclRedOp_t(op), root, comm, stream))
    };
    assert_eq!(reduce(place, 2, 7, 0, 1), ARGUMENT);
    assert_eq!(reduce(place, 2, 7, 0, -1), ARGUMENT);
    assert_eq!(reduce(place, 2, 12, 0, 0), ARGUMENT);
    assert_eq!(reduce(place, 2, u32::MAX, 0, 0), ARGUMENT);
    assert_eq!(reduce(place, 2, 7, ncclRedOp_t::ncclNumOps.0, 0), ARGUMENT);
    assert_eq!(reduce(place, 2, 7, u32::MAX, 0), ARGUMENT);
    for count in [usize::MAX, 1 << 62] {
        assert_eq!(reduce(place, count, 7, 0, 0), ARGUMENT);
        let text = "of ncclFloat32 for each of 1 ranks is more than any buffer holds";
        assert_last_error(&format!("count {count} {text}"));
        assert_eq!(nccl!(ncclSend(place, count, F32, 0, comm, stream)), ARGUMENT);
        assert_last_error(&format!("count {count} of ncclFloat32 is more than any buffer holds"));
    }
    assert_eq!(reduce(ptr::null_mut(), 2, 7, 0, 0), ARGUMENT);
    assert_eq!(reduce(ptr::null_mut(), 0, 7, 0, 0), OK, "no elements need no buffer");
    for peer in [-1, 1] {
        assert_eq!(nccl!(ncclSend(place, 1, F32, peer, comm, stream)), ARGUMENT);
        assert_eq!(nccl!(ncclRecv(place, 1, F32, peer, comm, stream)), ARGUMENT);
    }
    assert_eq!(reduce(place, 2, 7, 0, 0), OK);
    assert_eq!(buffer, [1.0, 2.0]);
    comms[0].destroy();
}

#[test]
fn pre_mul_sum_misuse_is_invalid_argument() {
    let _alone = alone();
    let comms = init(Mode::Group, 2);
    let (mut op, mut scalar) = (SUM, 2f32);
    let create = |op: *mut ncclRedOp_t, scalar: *mut f32, residence| {
        let residence = libnccl::sys::ncclScalarResidence_t(residence);
        nccl!(ncclRedOpCreatePreMulSum(op, scalar.cast(), F32, residence, comms[0].0))
    };
    assert_eq!(create(ptr::null_mut(), &mut scalar, 0), ARGUMENT);
    assert_eq!(create(&mut op, ptr::null_mut(), 0), ARGUMENT);
    assert_eq!(create(&mut op, &mut scalar, 2), ARGUMENT);
    assert_eq!(create(&mut op, &mut scalar, 1), OK);
    let mut memory = [0u64];
    let place = memory.as_mut_ptr().cast();
    let all_reduce_with =
        |data_type, comm: Comm| nccl!(ncclAllReduce(place, place, 1, data_type, op, comm.0, ptr::null_mut()));
    assert_eq!(all_reduce_with(ncclDataType_t::ncclFloat64, comms[0]), ARGUMENT, "of another data type");
    assert_eq!(all_reduce_with(F32, comms[1]), ARGUMENT, "of another communicator");
    assert_eq!(nccl!(ncclRedOpDestroy(op, comms[0].0)), OK);
    assert_eq!(all_reduce_with(F32, comms[0]), ARGUMENT);
    assert_eq!(nccl!(ncclRedOpDestroy(op, comms[0].0)), ARGUMENT);
    assert_eq!(nccl!(ncclRedOpDestroy(SUM, comms[0].0)), ARGUMENT);
    comms.into_iter().for_each(Comm::destroy);
}

/// The root may be ahead of the others, and destroy its communicator before they begin.
#[test]
fn small_broadcast_root_returns_before_others_begin() {
    let _alone = alone();
    for calls in [1, 7] {
        let (has_left, left) = std::sync::mpsc::channel();
        let left = std::sync::Mutex::new(left);
        let comms: Vec<Comm> = init(Mode::Threads, 2);
        on_threads(2, |rank| {
            if rank == 1 {
                left.lock().unwrap().recv().unwrap();
            }
            for call in 0..calls {
                let mut buffer = [(call * (1 - rank)) as f32; 4];
                let place = buffer.as_mut_ptr().cast();
                assert_eq!(nccl!(ncclBroadcast(place, place, 4, F32, 0, comms[rank].0, ptr::null_mut())), OK);
                assert_eq!(buffer, [call as f32; 4]);
            }
            assert_eq!(nccl!(ncclCommDestroy(comms[rank].0)), OK);
            if rank == 0 {
                has_left.send(()).unwrap();
            }
        });
    }
}

/// The rank that is aborted may have published its buffers, and then not do its part of the sum.
#[test]
fn sum_that_succeeds_is_complete_although_a_rank_is_aborted() {
    let _alone = alone();
    for round in 0..100 {
        let comms: Vec<Comm> = init(Mode::Threads, 3);
        let aborted = &comms[0];
        std::thread::scope(|scope| {
            for Comm(comm) in &comms {
                let comm = comm.expose_provenance();
                scope.spawn(move || {
                    let comm: ncclComm_t = ptr::with_exposed_provenance_mut(comm);
                    let mut buffer = vec![1f32; 70_000];
                    while all_reduce(&mut buffer, comm) == OK {
                        let wrong = buffer.iter().position(|sum| *sum != 3.0);
                        assert_eq!(wrong, None, "round {round}");
                        buffer.fill(1.0);
                    }
                });
            }
            std::thread::sleep(std::time::Duration::from_micros(round * 20));
            assert_eq!(nccl!(ncclCommAbort(aborted.0)), OK);
        });
        for Comm(comm) in comms.into_iter().skip(1) {
            nccl!(ncclCommAbort(comm));
        }
    }
}

#[test]
fn init_with_duplicate_rank_is_invalid_usage() {
    let _alone = alone();
    let id = unique_id();
    let codes = on_threads(3, |rank| init_rank(id, 3, rank.min(1)).map(|_| ()));
    assert_eq!(codes, [Err(USAGE); 3]);
}

#[test]
fn operation_on_finalized_comm_fails() {
    let _alone = alone();
    let comms = init(Mode::Group, 2);
    assert_eq!(nccl!(ncclCommFinalize(comms[0].0)), OK);
    assert_eq!(nccl!(ncclCommFinalize(comms[0].0)), ARGUMENT);
    assert_eq!(all_reduce(&mut [1.0], comms[0].0), USAGE);
    assert_eq!(all_reduce(&mut [1.0], comms[1].0), REMOTE);
    comms.into_iter().for_each(Comm::destroy);
}
