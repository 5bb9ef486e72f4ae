//! Split, shrink, grow, revoke and suspend, on healthy communicators and after failures.

use std::sync::{Barrier, mpsc};
use std::thread;

use libnccl::communicator::ShrinkMode;
use libnccl::error::ResultCode;
use libnccl::{Communicator, Config, Error, Nccl, ReduceOp, Result};

use super::common::{
    SHORT, STREAM, assert_works, cases, of_one_thread, of_one_thread_with, on_threads_each, on_threads_with,
    wait_until_busy, within,
};

cases! {
    shrink_after_lost_rank_works,
    grow_adds_new_ranks,
    grow_id_is_used_once,
    revoke_ends_work_of_absent_peer,
    split_and_shrink_after_failed_group_and_revoke_work,
}

/// Returns options for a blocking and for a nonblocking communicator.
fn configs() -> [Config; 2] {
    [Config::new(), Config::new().timeout(SHORT)]
}

/// Creates communicators, and does some work on all ranks.
fn working(nccl: &Nccl, size: usize, config: &Config) -> Vec<Communicator> {
    on_threads_with(nccl, size, config, |comm| {
        assert_works(&comm);
        comm
    })
}

fn sum(comm: &Communicator) -> Result<()> {
    comm.all_reduce_in_place(&mut [1_i32; 99], ReduceOp::Sum, STREAM)
}

fn assert_code<T>(result: Result<T>, code: ResultCode) -> String {
    let error = result.err().expect("an error");
    assert_eq!(error.code(), Some(code), "{error}");
    error.to_string()
}

fn use_up(child: Communicator, size: usize, rank: usize) {
    assert_eq!((child.size(), child.rank()), (size, rank));
    assert_works(&child);
    child.destroy().unwrap();
}

fn shrink_after_lost_rank_works(nccl: &Nccl) {
    for config in configs() {
        on_threads_each(working(nccl, 4, &config), |comm| {
            if comm.rank() == 1 {
                return comm.abort().unwrap();
            }
            let lost = assert_code(sum(&comm), ResultCode::REMOTE_ERROR);
            assert!(lost.contains("rank 1"), "{lost}");
            let shrunk = within(SHORT, || comm.shrink(&[1], ShrinkMode::Abort).init()).unwrap();
            use_up(shrunk, 3, comm.rank().saturating_sub(1));
            assert_code(sum(&comm), ResultCode::INVALID_USAGE);
            within(SHORT, || comm.destroy()).unwrap();
        });
    }
}

fn grow_adds_new_ranks(nccl: &Nccl) {
    for config in configs() {
        let (id_sender, id_receiver) = mpsc::channel();
        let old = |comm: Communicator| {
            let id = (comm.rank() == 0).then(|| comm.unique_id().unwrap());
            id.iter().for_each(|id| id_sender.send(*id).unwrap());
            let grown = comm.grow(4, id.as_ref()).init().unwrap();
            // The old communicator still works.
            assert_works(&comm);
            comm.destroy().unwrap();
            grown
        };
        let old = &old;
        let finish = |grown: Communicator, rank: usize| use_up(grown, 4, rank);
        thread::scope(|scope| {
            let config = &config;
            scope.spawn(move || {
                let id = id_receiver.recv().unwrap();
                thread::scope(|scope| {
                    for rank in 2..4 {
                        scope.spawn(move || {
                            let grown = nccl.communicator(4, rank, &id).grow().config(config).init();
                            finish(grown.unwrap(), rank);
                        });
                    }
                });
            });
            let comms = of_one_thread_with(nccl, 2, config);
            for (rank, comm) in comms.into_iter().enumerate() {
                let id_sender = id_sender.clone();
                scope.spawn(move || {
                    let _keep = id_sender;
                    finish(old(comm), rank);
                });
            }
        });
    }
}

fn grow_id_is_used_once(nccl: &Nccl) {
    let comm = of_one_thread(nccl, 1).remove(0);
    let id = comm.unique_id().unwrap();
    assert_code(comm.unique_id(), ResultCode::INVALID_USAGE);
    let other = nccl.unique_id().unwrap();
    assert_code(comm.grow(2, Some(&other)).init(), ResultCode::INVALID_ARGUMENT);
    thread::scope(|scope| {
        scope.spawn(|| use_up(nccl.communicator(2, 1, &id).grow().init().unwrap(), 2, 1));
        use_up(comm.grow(2, Some(&id)).init().unwrap(), 2, 0);
    });
    assert_code(comm.grow(2, Some(&id)).init(), ResultCode::INVALID_ARGUMENT);
    let error = nccl.communicator(2, 2, &id).grow().init().unwrap_err();
    assert_eq!(error.to_string(), "init: rank 2 is not below the size 2");
    let error = nccl.communicator(2, 1, &id).ids(&[id, other]).grow().init().unwrap_err();
    assert_eq!(error.to_string(), "init: 2 unique ids; expected one to grow");
    let error = nccl.group(|g| nccl.communicator(2, 1, &id).grow().init_in(g).map(drop)).unwrap_err();
    assert_eq!(
        error.to_string(),
        "init_in: a rank cannot join a communicator that grows in a group; use `init`"
    );
}

/// Ranks 0 and 1 wait for rank 2, which revokes instead.
fn revoke_ends_work_of_absent_peer(nccl: &Nccl) {
    for config in configs() {
        let comms = working(nccl, 3, &config);
        let handles: Vec<_> = comms[..2].iter().map(Communicator::abort_handle).collect();
        on_threads_each(comms, |comm| {
            if comm.rank() == 2 {
                handles.iter().for_each(wait_until_busy);
            } else {
                let ended = within(SHORT, || sum(&comm)).unwrap_err();
                assert!(matches!(ended, Error::Nccl { .. }), "{ended:?}");
            }
            within(SHORT, || comm.revoke()).unwrap();
            assert_code(sum(&comm), ResultCode::INVALID_USAGE);
            within(SHORT, || comm.destroy()).unwrap();
        });
    }
}

fn split_and_shrink_after_failed_group_and_revoke_work(nccl: &Nccl) {
    for config in configs() {
        // A revocation would fail the other rank's group earlier.
        let both_failed = Barrier::new(2);
        on_threads_each(working(nccl, 2, &config), |comm| {
            let mut buffer = [1_i32];
            let failed = nccl.group(|g| -> Result<()> {
                comm.all_reduce_in_place(&mut buffer, ReduceOp::Sum, g.stream(STREAM))?;
                Err(libnccl::error::LoadError::NoBackend.into())
            });
            assert!(matches!(failed, Err(Error::Load(_))), "{failed:?}");
            let refused = comm.split(Some(0), 0).init().unwrap_err();
            assert!(matches!(refused, Error::InvalidUsage { call: "split", .. }), "{refused}");
            both_failed.wait();
            within(SHORT, || comm.revoke()).unwrap();
            let rank = comm.rank();
            let child = within(SHORT, || comm.split(Some(0), 0).init()).unwrap().expect("a child");
            use_up(child, 2, rank);
            if rank == 0 {
                use_up(comm.shrink(&[1], ShrinkMode::Default).init().unwrap(), 1, 0);
            }
        });
    }
}
