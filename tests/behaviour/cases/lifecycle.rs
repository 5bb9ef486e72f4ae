//! Communicators from creation to teardown.

use libnccl::buffer::MemorySpace;
use libnccl::communicator::ShrinkMode;
use libnccl::error::ResultCode;
use libnccl::{Communicator, Config, Error, Nccl, ReduceOp, UniqueId};

use super::common::{STREAM, assert_works, cases, of_one_thread, on_threads};

cases! {
    ranks_on_threads_report_rank_and_size,
    init_all_ranks_report_rank_size_and_device,
    borrowed_communicator_is_not_destroyed,
    aborted_or_dropped_rank_is_a_remote_error_at_peers,
    finalized_communicator_is_destroyed_or_aborted,
    abort_handle_ends_idle_communicator,
    failed_group_creates_no_ranks,
    last_error_is_of_the_failed_init_and_not_of_the_cleanup,
    invalid_split_shrink_and_grow_arguments_are_errors,
    init_with_several_ids_creates_one_communicator,
}

fn last_error_is_of_the_failed_init_and_not_of_the_cleanup(nccl: &Nccl) {
    let id = UniqueId::from_bytes([0; 128]);
    for failed in [
        nccl.communicator(2, 0, &id).init().map(drop),
        nccl.group(|g| nccl.communicator(2, 0, &id).init_in(g).map(drop)),
    ] {
        let error = failed.unwrap_err();
        let Error::Nccl { detail, .. } = &error else { panic!("{error}") };
        assert!(detail.contains("id"), "{error}");
        assert_eq!(nccl.last_error(), *detail);
    }
}

fn ranks_on_threads_report_rank_and_size(nccl: &Nccl) {
    let ranks = on_threads(nccl, 4, |comm| {
        assert_eq!((comm.size(), comm.memory_space()), (4, MemorySpace::Host));
        assert_eq!(comm.async_error().unwrap(), ResultCode::SUCCESS);
        assert!(format!("{comm:?}").contains("size: 4"));
        comm.rank()
    });
    assert_eq!(ranks, [0, 1, 2, 3]);
}

fn init_all_ranks_report_rank_size_and_device(nccl: &Nccl) {
    let comms = nccl.init_all(&[5, 0, 2]).unwrap();
    let facts: Vec<_> = comms.iter().map(|comm| (comm.rank(), comm.size(), comm.device())).collect();
    assert_eq!(facts, [(0, 3, 5), (1, 3, 0), (2, 3, 2)]);
}

/// Neither by a drop nor by an abort handle, which only ends the borrow.
fn borrowed_communicator_is_not_destroyed(nccl: &Nccl) {
    let owner = of_one_thread(nccl, 1).remove(0);
    for is_aborted in [false, true] {
        let with = |borrowed: &Communicator| {
            assert_eq!((borrowed.rank(), borrowed.size(), borrowed.as_raw()), (0, 1, owner.as_raw()));
            let mut buffer = [1, 2];
            borrowed.all_reduce_in_place(&mut buffer, ReduceOp::Sum, STREAM)?;
            nccl.group(|g| borrowed.all_reduce_in_place(&mut buffer, ReduceOp::Sum, g.stream(STREAM)))?;
            if is_aborted {
                borrowed.abort_handle().abort()?;
                let error = borrowed.all_reduce_in_place(&mut buffer, ReduceOp::Sum, STREAM).unwrap_err();
                assert!(matches!(error, Error::Aborted { .. }), "{error}");
            }
            Ok(())
        };
        // SAFETY: live, and used by nothing else as long as it is borrowed.
        unsafe { Communicator::borrow_raw(nccl, owner.as_raw(), with) }.unwrap();
    }
    assert_eq!(owner.async_error().unwrap(), ResultCode::SUCCESS);
    owner.all_reduce_in_place(&mut [3], ReduceOp::Sum, STREAM).unwrap();
    owner.destroy().unwrap();
    // SAFETY: null is refused.
    let null = unsafe { Communicator::borrow_raw(nccl, std::ptr::null_mut(), |_| Ok(())) };
    assert_eq!(null.unwrap_err().to_string(), "borrow_raw: the handle is null");
}

fn assert_remote_error(result: libnccl::Result<()>) {
    let error = result.unwrap_err();
    assert_eq!(error.code(), Some(ResultCode::REMOTE_ERROR), "{error}");
    assert!(error.to_string().contains("rank 1"), "{error}");
}

fn aborted_or_dropped_rank_is_a_remote_error_at_peers(nccl: &Nccl) {
    for is_aborted in [true, false] {
        on_threads(nccl, 2, |comm| match comm.rank() {
            0 => assert_remote_error(comm.recv(&mut [1_i32; 9], 1, STREAM)),
            _ if is_aborted => comm.abort().unwrap(),
            _ => drop(comm),
        });
    }
}

fn finalized_communicator_is_destroyed_or_aborted(nccl: &Nccl) {
    on_threads(nccl, 2, |comm| match comm.rank() {
        0 => comm.finalize().unwrap().destroy().unwrap(),
        _ => {
            let handle = comm.abort_handle();
            let _finalized = comm.finalize().unwrap();
            handle.abort().unwrap();
        }
    });
    of_one_thread(nccl, 3).into_iter().try_for_each(Communicator::destroy).unwrap();
    drop(of_one_thread(nccl, 1).remove(0).finalize().unwrap());
}

fn abort_handle_ends_idle_communicator(nccl: &Nccl) {
    on_threads(nccl, 2, |comm| {
        if comm.rank() == 1 {
            let handle = comm.abort_handle();
            std::thread::scope(|scope| scope.spawn(|| handle.abort().unwrap()).join().unwrap());
            handle.abort().unwrap();
            let refused = comm.all_reduce_in_place(&mut [1_i32], ReduceOp::Sum, STREAM).unwrap_err();
            assert!(matches!(refused, Error::Aborted { call: "all_reduce_in_place" }), "{refused}");
            assert!(comm.as_raw().is_null());
            assert!(matches!(comm.destroy(), Err(Error::Aborted { .. })));
        } else {
            assert_remote_error(comm.all_reduce_in_place(&mut [1_i32; 9], ReduceOp::Sum, STREAM));
        }
    });
}

fn failed_group_creates_no_ranks(nccl: &Nccl) {
    let id = nccl.unique_id().unwrap();
    let mut kept = None;
    let error = nccl
        .group(|g| {
            kept = Some(nccl.communicator(2, 0, &id).init_in(g)?);
            nccl.communicator(2, 2, &id).init_in(g).map(drop)
        })
        .unwrap_err();
    assert_eq!(error.to_string(), "init_in: rank 2 is not below the size 2");
    let error = kept.unwrap().finish().unwrap_err();
    assert_eq!(error.to_string(), "finish: the group that was to create the communicator failed");
    let early = nccl.group(|g| nccl.communicator(1, 0, &id).init_in(g)?.finish().map(drop)).unwrap_err();
    assert_eq!(early.to_string(), "finish: the group that creates the communicator has not ended");
}

fn invalid_split_shrink_and_grow_arguments_are_errors(nccl: &Nccl) {
    let comm = of_one_thread(nccl, 1).remove(0);
    let config = Config::default();
    for (exclude, problem) in [
        (&[][..], "no ranks to exclude"),
        (&[0], "rank 0 excludes itself; excluded ranks do not call shrink"),
        (&[1], "rank 1 is not below 1, the communicator's size"),
        (&[5, 5], "a rank is excluded twice in [5, 5]"),
    ] {
        let error = comm.shrink(exclude, ShrinkMode::Abort).config(&config).init().unwrap_err();
        assert_eq!(error.to_string(), format!("shrink: {problem}"));
    }
    let error = comm.grow(1, None).config(&config).init().unwrap_err();
    assert_eq!(error.to_string(), "grow: size 1 is not above 1, the communicator's size");
    let error = comm.split(Some(u32::MAX), 0).init().unwrap_err();
    assert_eq!(error.to_string(), "split: color 4294967295 is beyond 2147483647");
    assert_works(&comm);
}

fn init_with_several_ids_creates_one_communicator(nccl: &Nccl) {
    let ids = [(); 3].map(|()| nccl.unique_id().unwrap());
    std::thread::scope(|scope| {
        for rank in 0..3 {
            let ids = &ids;
            scope.spawn(move || {
                let comm = nccl.communicator(3, rank, &ids[0]).ids(ids).init().unwrap();
                assert_eq!((comm.size(), comm.rank()), (3, rank));
                assert_works(&comm);
                comm.destroy().unwrap();
            });
        }
    });
}
