//! Communicators from creation to teardown.

use libnccl::communicator::ShrinkMode;
use libnccl::error::ResultCode;
use libnccl::{Communicator, Config, Error, Nccl, ReduceOp, UniqueId};

use super::common::{SHORT, STREAM, assert_works, cases, of_one_thread, on_threads, within};

cases! {
    borrowed_communicator_is_not_destroyed,
    shrink_after_lost_rank_works,
    #[cfg(feature = "device-api")]
    properties_match_the_communicator,
    failed_group_creates_no_ranks,
    last_error_is_of_the_failed_init_and_not_of_the_cleanup,
    invalid_split_shrink_and_grow_arguments_are_errors,
}

fn last_error_is_of_the_failed_init_and_not_of_the_cleanup(nccl: &Nccl) {
    let id = UniqueId::from_bytes([0; 128]);
    let inits: [&dyn Fn() -> libnccl::Result<()>; 2] =
        [&|| nccl.communicator(2, 0, &id).init().map(drop), &|| {
            nccl.group(|g| nccl.communicator(2, 0, &id).init_in(g).map(drop))
        }];
    for init in inits {
        let is_of_init = |_| {
            let error = init().unwrap_err();
            let Error::Nccl { detail, .. } = &error else { panic!("{error}") };
            detail.contains("id") && nccl.last_error() == *detail
        };
        // The process has one text, and another case may fail meanwhile.
        assert!((0..20).any(is_of_init), "{}", nccl.last_error());
    }
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

#[cfg(feature = "device-api")]
fn properties_match_the_communicator(nccl: &Nccl) {
    let Some(query) = nccl.as_raw_device().ncclCommQueryProperties else { return };
    for comm in of_one_thread(nccl, 3) {
        let found = comm.properties().unwrap();
        assert_eq!((found.rank, found.size, found.cuda_device), (comm.rank(), 3, comm.device()), "{found:?}");
        let kernels = (found.device_api, found.multimem);
        assert_eq!((kernels, found.host_rma), ((false, false), Some(true)), "{found:?}");
    }
    let initial = libnccl::sys::device::ncclCommProperties_t::initializer(nccl.version().code());
    let mut properties = initial;
    // SAFETY: the communicator is checked for null; the struct has its layout.
    let code = unsafe { query(std::ptr::null_mut(), &raw mut properties) };
    assert_eq!((ResultCode::from_raw(code), properties), (ResultCode::INVALID_ARGUMENT, initial));
}

/// With a blocking and with a nonblocking communicator.
fn shrink_after_lost_rank_works(nccl: &Nccl) {
    for config in [Config::new(), Config::new().timeout(SHORT)] {
        on_threads(nccl, 4, &config, |comm| {
            assert_works(&comm);
            if comm.rank() == 1 {
                return comm.abort().unwrap();
            }
            let sum = || comm.all_reduce_in_place(&mut [1_i32; 99], ReduceOp::Sum, STREAM);
            let error = sum().unwrap_err();
            assert_eq!(error.code(), Some(ResultCode::REMOTE_ERROR), "{error}");
            assert!(error.to_string().contains("rank 1"), "{error}");
            let shrunk = within(SHORT, || comm.shrink(&[1], ShrinkMode::Abort).init()).unwrap();
            assert_eq!((shrunk.size(), shrunk.rank()), (3, comm.rank().saturating_sub(1)));
            assert_works(&shrunk);
            shrunk.destroy().unwrap();
            assert_eq!(sum().unwrap_err().code(), Some(ResultCode::INVALID_USAGE));
            within(SHORT, || comm.destroy()).unwrap();
        });
    }
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
    for (exclude, problem) in [
        (&[][..], "no ranks to exclude"),
        (&[0], "rank 0 excludes itself; excluded ranks do not call shrink"),
        (&[1], "rank 1 is not below 1, the communicator's size"),
        (&[5, 5], "a rank is excluded twice in [5, 5]"),
    ] {
        let error = comm.shrink(exclude, ShrinkMode::Abort).init().unwrap_err();
        assert_eq!(error.to_string(), format!("shrink: {problem}"));
    }
    let id = nccl.unique_id().unwrap();
    let joining = |rank| nccl.communicator(2, rank, &id).grow();
    for (wrong, problem) in [
        (comm.grow(1, None).init().map(drop), "grow: size 1 is not above 1, the communicator's size"),
        (joining(2).init().map(drop), "init: rank 2 is not below the size 2"),
        (joining(1).ids(&[id; 2]).init().map(drop), "init: 2 unique ids; expected one to grow"),
        (
            nccl.group(|g| joining(1).init_in(g).map(drop)),
            "init_in: a rank cannot join a communicator that grows in a group; use `init`",
        ),
        (comm.split(Some(u32::MAX), 0).init().map(drop), "split: color 4294967295 is beyond 2147483647"),
    ] {
        assert_eq!(wrong.unwrap_err().to_string(), problem);
    }
    assert_works(&comm);
}
