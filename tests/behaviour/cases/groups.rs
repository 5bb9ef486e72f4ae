//! Groups, and the effect of a failure on their members.
#![allow(unsafe_code)] // Starts groups as C code does.

use std::time::Duration;

use libnccl::buffer::MemorySpace;
use libnccl::error::ResultCode;
use libnccl::{Communicator, Config, Error, Nccl, ReduceOp};

use libnccl_test_support::fake_nccl::FakeNccl;

use super::common::{STREAM, cases, of_one_thread, of_one_thread_with, sum_of_all, wait_until_busy};

cases! {
    methods_while_group_is_open_are_invalid_usage,
    group_of_another_library_is_an_error,
    error_from_a_try_group_closure_cancels_the_group,
    abort_of_any_member_ends_a_group,
    drop_in_a_group_leaves_the_group_open,
    group_of_other_code_around_or_inside_is_invalid_usage,
}

fn assert_works(nccl: &Nccl, comms: &[Communicator]) {
    assert_eq!(sum_of_all(nccl, comms).unwrap(), vec![[comms.len() as i32; 50]; comms.len()]);
}

fn methods_while_group_is_open_are_invalid_usage(nccl: &Nccl) {
    let comms = of_one_thread(nccl, 1);
    let id = nccl.unique_id().unwrap();
    let mut buffer = [1_i32];
    nccl.group(|_| {
        for (call, refused) in [
            ("all_reduce_in_place", comms[0].all_reduce_in_place(&mut buffer, ReduceOp::Sum, STREAM)),
            ("init", nccl.communicator(1, 0, &id).init().map(drop)),
            ("destroy", of_another_thread(nccl).destroy()),
        ] {
            let error = refused.unwrap_err();
            assert!(matches!(error, Error::InvalidUsage { .. }), "{error:?}");
            assert!(
                error.to_string().starts_with(&format!("{call}: a group is open on this thread")),
                "{error}"
            );
        }
        Ok(())
    })
    .unwrap();
    assert_works(nccl, &comms);
}

fn of_another_thread(nccl: &Nccl) -> Communicator {
    std::thread::scope(|s| s.spawn(|| of_one_thread(nccl, 1).remove(0)).join().unwrap())
}

fn group_of_another_library_is_an_error(nccl: &Nccl) {
    let (comms, id) = (of_one_thread(nccl, 1), nccl.unique_id().unwrap());
    let (fake, mut buffer) = (FakeNccl::new(), [1_i32]);
    let other = fake.nccl();
    let operates =
        other.group(|g| comms[0].all_reduce_in_place(&mut buffer, ReduceOp::Sum, g.stream(STREAM)));
    let creates = other.group(|g| nccl.communicator(1, 0, &id).init_in(g).map(drop));
    for (call, refused) in [("all_reduce_in_place", operates), ("init_in", creates)] {
        let problem = format!("{call}: the communicator and the group belong to different libraries");
        assert_eq!(refused.unwrap_err().to_string(), problem);
    }
}

fn error_from_a_try_group_closure_cancels_the_group(nccl: &Nccl) {
    #[derive(Debug, PartialEq)]
    enum Own {
        Nccl(Error),
        Stop,
    }
    impl From<Error> for Own {
        fn from(error: Error) -> Self {
            Self::Nccl(error)
        }
    }

    let comms = of_one_thread(nccl, 2);
    let mut buffer = [1_u8];
    let doubled = nccl.try_group(|g| {
        comms[0].barrier(&mut [0_u8; 0], g.stream(STREAM)).unwrap_err();
        Ok::<_, Own>(())
    });
    assert!(matches!(doubled, Err(Own::Nccl(Error::InvalidArgument { call: "barrier", .. }))), "{doubled:?}");
    let stopped: std::result::Result<(), Own> = nccl.try_group(|g| {
        comms[0].all_reduce_in_place(&mut buffer, ReduceOp::Sum, g.stream(STREAM))?;
        Err(Own::Stop)
    });
    assert_eq!(stopped, Err(Own::Stop));
    assert_eq!(buffer, [1]);
    let refused = comms[0].all_reduce_in_place(&mut [1_i32], ReduceOp::Sum, STREAM).unwrap_err();
    assert_eq!(
        refused.to_string(),
        "all_reduce_in_place: the communicator was in a group that failed; it can only be aborted or destroyed"
    );
}

fn abort_of_any_member_ends_a_group(nccl: &Nccl) {
    for aborted in [0, 1] {
        let config = Config::new().timeout(Duration::from_secs(600));
        let pair = [0, 1].map(|_| of_one_thread_with(nccl, 2, &config));
        let handle = pair[aborted][0].abort_handle();
        let mut buffers = [[1_i32]; 2];
        let ended = std::thread::scope(|scope| {
            scope.spawn(|| {
                wait_until_busy(&handle);
                handle.abort().unwrap();
            });
            // No other rank joins.
            let ranks = pair.iter().map(|ranks| &ranks[0]).zip(&mut buffers);
            nccl.group(|g| {
                ranks.into_iter().try_for_each(|(comm, buffer)| {
                    comm.all_reduce_in_place(buffer, ReduceOp::Sum, g.stream(STREAM))
                })
            })
        });
        assert!(matches!(ended, Err(Error::Aborted { .. })), "{ended:?}");
    }
}

/// Destroying a rank that made fewer calls than another one is an error, after which NCCL's groups may have to be closed.
fn drop_in_a_group_leaves_the_group_open(nccl: &Nccl) {
    let (mut others, comms) = (of_one_thread(nccl, 2), of_one_thread(nccl, 2));
    others[0].broadcast_in_place(&mut [1_u8], 0, STREAM).unwrap();
    let (dropped, mut ones) = (others.pop(), [[1_i32]; 2]);
    let [first, second] = &mut ones;
    nccl.group(|g| {
        comms[0].all_reduce_in_place(first, ReduceOp::Sum, g.stream(STREAM))?;
        drop(dropped);
        comms[1].all_reduce_in_place(second, ReduceOp::Sum, g.stream(STREAM))
    })
    .unwrap();
    assert_eq!(ones, [[2]; 2]);
}

/// Starts or ends a group as C code around this crate does.
fn start_group(nccl: &Nccl) {
    // SAFETY: has no arguments; the caller ends the group, and calls only methods that are to refuse it.
    let code = unsafe { nccl.as_raw().ncclGroupStart.unwrap()() };
    assert_eq!(ResultCode::from_raw(code), ResultCode::SUCCESS);
}

fn end_group(nccl: &Nccl) -> ResultCode {
    // SAFETY: has no arguments.
    ResultCode::from_raw(unsafe { nccl.as_raw().ncclGroupEnd.unwrap()() })
}

/// The CPU backend finds them in a debug build.
fn group_of_other_code_around_or_inside_is_invalid_usage(nccl: &Nccl) {
    if !cfg!(debug_assertions) || nccl.memory_space() != MemorySpace::Host {
        return;
    }
    let comms = of_one_thread(nccl, 1);
    let id = nccl.unique_id().unwrap();
    let (send, mut recv) = ([2_i32; 3], [1_i32; 3]);
    for depth in 1..=3 {
        start_group(nccl);
        for (call, refused) in [
            ("all_reduce", comms[0].all_reduce(&send, &mut recv, ReduceOp::Sum, STREAM)),
            ("send", comms[0].send(&send, 0, STREAM)),
            ("pre_mul_sum", comms[0].pre_mul_sum(1_i32).map(drop)),
            ("split", comms[0].split(Some(0), 0).init().map(drop)),
            ("init", nccl.communicator(1, 0, &id).init().map(drop)),
            ("init_all", nccl.init_all(&[0]).map(drop)),
            ("group", nccl.group(|g| comms[0].all_reduce(&send, &mut recv, ReduceOp::Sum, g.stream(STREAM)))),
            ("destroy", of_another_thread(nccl).destroy()),
        ] {
            assert!(matches!(refused, Err(Error::InvalidUsage { .. })), "{call}: {refused:?}");
            let problem = format!(
                "{call}: other code has called ncclGroupStart on this thread {depth} times without ncclGroupEnd"
            );
            let error = refused.unwrap_err().to_string();
            assert!(error.starts_with(&problem), "{error}");
        }
        // Other threads have no open group.
        std::thread::scope(|scope| scope.spawn(|| nccl.init_all(&[0]).map(drop)).join().unwrap()).unwrap();
    }
    assert_eq!([(); 3].map(|()| end_group(nccl)), [ResultCode::SUCCESS; 3]);
    comms[0].all_reduce(&send, &mut recv, ReduceOp::Sum, STREAM).unwrap();
    assert_eq!(recv, send);
    assert_works(nccl, &comms);

    // Inside a group, both fail, and run nothing.
    recv = [1; 3];
    let ended = nccl.group(|g| {
        comms[0].all_reduce(&send, &mut recv, ReduceOp::Sum, g.stream(STREAM))?;
        start_group(nccl);
        Ok(())
    });
    let error = ended.unwrap_err().to_string();
    assert!(
        error.starts_with("group: other code has called ncclGroupStart on this thread 1 times"),
        "{error}"
    );
    assert_ne!(end_group(nccl), ResultCode::SUCCESS);
    assert_eq!(recv, [1; 3]);
    drop(comms);
    assert_works(nccl, &of_one_thread(nccl, 1));
}
