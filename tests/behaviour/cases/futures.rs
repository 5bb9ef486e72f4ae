//! Futures: several ranks on one thread, which none of them blocks.

use std::time::Duration;

use libnccl::{Communicator, Config, Error, Nccl, ResultCode};
use libnccl_test_support::executor::{block_on, join_all, poll};

use super::common::{SHORT, assert_works, cases, of_one_thread, sum_of_all, within};

/// A timeout that waiting calls reach, and the creation of a communicator does not.
const TIMEOUT: Duration = Duration::from_millis(400);

cases! {
    ranks_of_one_thread_join_split_finalize_and_destroy,
    future_without_peer_times_out,
    rank_dropped_while_it_joins_leaves_the_others_an_error,
    split_dropped_in_progress_ends_the_communicator,
    finalize_dropped_in_progress_returns,
    destroy_dropped_in_progress_returns,
}

/// Creates the ranks of a job on this thread.
fn join(nccl: &Nccl, size: usize, config: &Config) -> Vec<Communicator> {
    let id = nccl.unique_id().unwrap();
    let ranks = (0..size).map(|rank| nccl.init_rank_async(size, rank, &id, config));
    within(SHORT, || block_on(join_all(ranks))).into_iter().collect::<Result<_, _>>().unwrap()
}

fn ranks_of_one_thread_join_split_finalize_and_destroy(nccl: &Nccl) {
    let mut comms = join(nccl, 4, &Config::new());
    assert_eq!(
        comms.iter().map(|comm| (comm.rank(), comm.size())).collect::<Vec<_>>(),
        [(0, 4), (1, 4), (2, 4), (3, 4)]
    );
    let config = Config::new();
    let splits = comms.iter_mut().map(|comm| {
        let color = (comm.rank() < 3).then_some(comm.rank() as u32 % 2);
        comm.split_async(color, 0, &config)
    });
    let parts = within(SHORT, || block_on(join_all(splits)));
    let parts: Vec<Communicator> = parts.into_iter().filter_map(Result::unwrap).collect();
    assert_eq!(
        parts.iter().map(|comm| (comm.rank(), comm.size())).collect::<Vec<_>>(),
        [(0, 2), (0, 1), (1, 2)]
    );
    for ranks in [&comms, &parts] {
        let sums = sum_of_all(nccl, ranks).unwrap();
        assert!(sums.iter().zip(ranks).all(|(sum, comm)| *sum == [comm.size() as i32; 50]));
    }
    let ends = parts.into_iter().map(Communicator::finalize_async);
    for finalized in within(SHORT, || block_on(join_all(ends))) {
        finalized.unwrap().destroy().unwrap();
    }
    let ends = comms.into_iter().map(Communicator::destroy_async);
    for destroyed in within(SHORT, || block_on(join_all(ends))) {
        destroyed.unwrap();
    }
}

fn future_without_peer_times_out(nccl: &Nccl) {
    let (id, config) = (nccl.unique_id().unwrap(), Config::new().timeout(TIMEOUT));
    let made = within(SHORT, || block_on(nccl.init_rank_async(2, 0, &id, &config)));
    let Err(Error::Timeout { call: "init_rank_async", elapsed, .. }) = made else { panic!("{made:?}") };
    assert!(elapsed >= TIMEOUT, "{elapsed:?}");
    let mut comms = join(nccl, 2, &config);
    let split = within(SHORT, || block_on(comms[0].split_async(Some(0), 0, &config)));
    assert!(matches!(split, Err(Error::Timeout { call: "split_async", .. })), "{split:?}");
}

fn rank_dropped_while_it_joins_leaves_the_others_an_error(nccl: &Nccl) {
    let (id, config) = (nccl.unique_id().unwrap(), Config::new().timeout(TIMEOUT));
    let mut dropped = Box::pin(nccl.init_rank_async(2, 0, &id, &config));
    assert!(poll(&mut dropped).is_pending());
    within(SHORT, || drop(dropped));
    let other = within(SHORT, || block_on(nccl.init_rank_async(2, 1, &id, &config)));
    assert!(matches!(other, Err(Error::Timeout { .. } | Error::Nccl { .. })), "{other:?}");
    assert_works(&of_one_thread(nccl, 1)[0]);
}

fn split_dropped_in_progress_ends_the_communicator(nccl: &Nccl) {
    let mut comms = join(nccl, 2, &Config::new());
    let config = Config::new();
    let mut split = Box::pin(comms[0].split_async(Some(0), 0, &config));
    assert!(poll(&mut split).is_pending());
    within(SHORT, || drop(split));
    assert!(matches!(comms[0].async_error(), Err(Error::Aborted { .. })));
    let other = within(SHORT, || block_on(comms[1].split_async(Some(0), 0, &config))).unwrap_err();
    assert_eq!(other.code(), Some(ResultCode::REMOTE_ERROR), "{other}");
}

fn finalize_dropped_in_progress_returns(nccl: &Nccl) {
    let mut comms = join(nccl, 2, &Config::new());
    let mut finalized = Box::pin(comms.remove(0).finalize_async());
    let _ = poll(&mut finalized);
    within(SHORT, || drop(finalized));
    within(SHORT, || drop(comms));
    assert_works(&of_one_thread(nccl, 1)[0]);
}

fn destroy_dropped_in_progress_returns(nccl: &Nccl) {
    let mut comms = join(nccl, 2, &Config::new());
    let mut destroyed = Box::pin(comms.remove(0).destroy_async());
    let _ = poll(&mut destroyed);
    within(SHORT, || drop(destroyed));
    within(SHORT, || drop(comms));
    assert_works(&of_one_thread(nccl, 1)[0]);
}
