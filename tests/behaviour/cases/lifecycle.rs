//! Communicators from their making to their end.

use libnccl::{Communicator, Error, MemorySpace, Nccl, ReduceOp, ResultCode, StreamRef};

use super::{cases, of_one_thread, on_threads};

const STREAM: StreamRef<'static> = StreamRef::DEFAULT;

cases! {
    ranks_on_threads_know_themselves,
    ranks_of_one_thread_know_themselves,
    a_communicator_moves_to_another_thread,
    raw_handles_go_out_and_come_back,
    peers_of_an_aborted_rank_get_an_error,
    peers_of_a_dropped_rank_get_an_error,
    ranks_that_do_different_things_are_told,
    all_ends_in_every_order,
    many_communicators,
}

fn ranks_on_threads_know_themselves(nccl: &Nccl) {
    let ranks = on_threads(nccl, 4, |comm| {
        assert_eq!((comm.size(), comm.memory_space()), (4, MemorySpace::Host));
        assert_eq!(comm.async_error().unwrap(), ResultCode::SUCCESS);
        assert!(format!("{comm:?}").contains("size: 4"));
        comm.rank()
    });
    assert_eq!(ranks, [0, 1, 2, 3]);
}

fn ranks_of_one_thread_know_themselves(nccl: &Nccl) {
    let comms = nccl.init_all(&[5, 0, 2]).unwrap();
    let facts: Vec<_> = comms.iter().map(|comm| (comm.rank(), comm.size(), comm.device())).collect();
    assert_eq!(facts, [(0, 3, 5), (1, 3, 0), (2, 3, 2)]);
}

fn a_communicator_moves_to_another_thread(nccl: &Nccl) {
    let comms = of_one_thread(nccl, 2);
    let sum = |comm: Communicator| {
        let mut value = [comm.rank() as u64 + 1];
        comm.all_reduce_in_place(&mut value, ReduceOp::Sum, STREAM).unwrap();
        value[0]
    };
    let sums: Vec<u64> = std::thread::scope(|scope| {
        let threads: Vec<_> = comms.into_iter().map(|comm| scope.spawn(move || sum(comm))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    assert_eq!(sums, [3, 3]);
}

fn raw_handles_go_out_and_come_back(nccl: &Nccl) {
    let comm = of_one_thread(nccl, 1).remove(0);
    let raw = comm.as_raw();
    assert_eq!(comm.into_raw(), raw);
    // SAFETY: the handle of this library that was given out above.
    let comm = unsafe { Communicator::from_raw(nccl, raw) }.unwrap();
    comm.all_reduce_in_place(&mut [1.5_f64], ReduceOp::Sum, STREAM).unwrap();
    comm.destroy().unwrap();
    // SAFETY: null is refused.
    let null = unsafe { Communicator::from_raw(nccl, std::ptr::null_mut()) };
    assert_eq!(null.unwrap_err().to_string(), "from_raw: the handle is null");
}

fn assert_remote_error(result: libnccl::Result<()>) {
    let error = result.unwrap_err();
    assert_eq!(error.code(), Some(ResultCode::REMOTE_ERROR), "{error}");
    assert!(error.to_string().contains("rank 1"), "{error}");
}

fn peers_of_an_aborted_rank_get_an_error(nccl: &Nccl) {
    on_threads(nccl, 3, |comm| {
        if comm.rank() == 1 {
            comm.abort().unwrap();
        } else {
            assert_remote_error(comm.all_reduce_in_place(&mut [1_i32; 9], ReduceOp::Sum, STREAM));
        }
    });
}

fn peers_of_a_dropped_rank_get_an_error(nccl: &Nccl) {
    on_threads(nccl, 2, |comm| match comm.rank() {
        0 => assert_remote_error(comm.recv(&mut [1_i32; 9], 1, STREAM)),
        _ => drop(comm),
    });
}

fn ranks_that_do_different_things_are_told(nccl: &Nccl) {
    let errors = on_threads(nccl, 3, |comm| {
        let mut buffer = vec![1_i32; if comm.rank() == 2 { 6 } else { 5 }];
        let error = comm.all_reduce_in_place(&mut buffer, ReduceOp::Sum, STREAM).unwrap_err();
        assert!(matches!(error, Error::Nccl { call: "ncclAllReduce", .. }), "{error}");
        error.to_string()
    });
    for error in errors {
        assert!(error.contains("rank 2") && error.contains("rank 0"), "{error}");
    }
}

fn all_ends_in_every_order(nccl: &Nccl) {
    for order in [[0, 1, 2], [2, 1, 0], [1, 0, 2]] {
        let mut comms: Vec<Option<Communicator>> = of_one_thread(nccl, 3).into_iter().map(Some).collect();
        for (ending, rank) in order.into_iter().enumerate() {
            let comm = comms[rank].take().unwrap();
            match ending {
                0 => comm.destroy().unwrap(),
                1 => drop(comm),
                _ => comm.abort().unwrap(),
            }
        }
    }
}

fn many_communicators(nccl: &Nccl) {
    for _ in 0..50 {
        on_threads(nccl, 2, |comm| {
            let mut one = [1_u8];
            comm.all_reduce_in_place(&mut one, ReduceOp::Sum, STREAM).unwrap();
            assert_eq!(one, [2]);
        });
    }
}
