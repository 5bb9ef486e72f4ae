//! `ncclCommSplit`.

use std::ptr;

use super::calls::{assert_members, shrink, split, sum};
use crate::common::watchdog::Watchdog;
use crate::common::{
    ARGUMENT, Comm, Mode, OK, REMOTE, alone, assert_last_error, init, last_error, on_threads,
};

#[test]
fn split_with_invalid_arguments_fails() {
    let (_alone, _watchdog) = (alone(), Watchdog::new());
    let comms = init(Mode::Group, 1);
    let mut child = ptr::null_mut();
    let Comm(comm) = comms[0];
    assert_eq!(nccl!(ncclCommSplit(comm, 0, 0, ptr::null_mut(), ptr::null_mut())), ARGUMENT);
    assert_eq!(nccl!(ncclCommSplit(ptr::null_mut(), 0, 0, &mut child, ptr::null_mut())), ARGUMENT);
    comms.into_iter().for_each(Comm::destroy);
}

/// Colors may be any number: programs pass hashes, half of which are negative. Only `NCCL_SPLIT_NOCOLOR`, -1, makes no child.
#[test]
fn split_with_negative_colors_makes_a_child_for_each() {
    let (_alone, _watchdog) = (alone(), Watchdog::new());
    let comms = init(Mode::Threads, 4);
    let colors = [i32::MIN, -2, i32::MIN, -1];
    let children = on_threads(4, |rank| split({ comms[rank] }.0, colors[rank], 0).unwrap());
    assert!(children[3].0.is_null(), "NCCL_SPLIT_NOCOLOR");
    on_threads(3, |rank| assert_members(children[rank], rank as i32, if rank == 1 { &[1] } else { &[0, 2] }));
    children.into_iter().take(3).for_each(Comm::destroy);
    comms.into_iter().for_each(Comm::destroy);
}

#[test]
fn splits_in_one_group_create_all_children() {
    let (_alone, _watchdog) = (alone(), Watchdog::new());
    let comms = init(Mode::Group, 3);
    let mut children = [[ptr::null_mut(); 3]; 2];
    assert_eq!(nccl!(ncclGroupStart()), OK);
    for (turn, children) in children.iter_mut().enumerate() {
        for (rank, child) in children.iter_mut().enumerate() {
            let color = i32::from(turn == 1 && rank == 2);
            let comm = { comms[rank] }.0;
            assert_eq!(nccl!(ncclCommSplit(comm, color, 0, child, ptr::null_mut())), OK);
        }
    }
    assert_eq!(nccl!(ncclGroupEnd()), OK, "{}", last_error());
    let children = children.map(|children| children.map(Comm));
    on_threads(3, |rank| {
        assert_members(children[0][rank], rank as i32, &[0, 1, 2]);
        assert_members(children[1][rank], rank as i32, if rank == 2 { &[2] } else { &[0, 1] });
    });
    children.into_iter().flatten().for_each(Comm::destroy);
    comms.into_iter().for_each(Comm::destroy);
}

/// A rank leaves a communicator when another communicator of the same group could not be created.
#[test]
fn rank_of_a_failed_group_departs_from_the_child_that_it_joined() {
    let (_alone, _watchdog) = (alone(), Watchdog::new());
    let comms = init(Mode::Threads, 2);
    on_threads(2, |rank| {
        let Comm(comm) = { &comms }[rank];
        if rank == 1 {
            let child = split(comm, 0, 0).unwrap();
            assert_eq!(nccl!(ncclCommAbort(comm)), OK);
            assert_eq!(sum(child.0, 1), Err(REMOTE));
            assert_last_error("rank 0 has left");
            return child.destroy();
        }
        let mut children = [ptr::dangling_mut(); 2];
        assert_eq!(nccl!(ncclGroupStart()), OK);
        for child in &mut children {
            assert_eq!(nccl!(ncclCommSplit(comm, 0, 0, child, ptr::null_mut())), OK);
        }
        assert_eq!((nccl!(ncclGroupEnd()), children), (REMOTE, [ptr::null_mut(); 2]));
    });
    comms[0].destroy();
}

#[test]
fn shrink_with_rank_of_failed_group_returns_remote_error() {
    let (_alone, _watchdog) = (alone(), Watchdog::new());
    let (bad, good) = (init(Mode::Threads, 2), init(Mode::Threads, 3));
    assert_eq!(nccl!(ncclCommAbort(bad[1].0)), OK);
    let (mut children, mut list) = ([ptr::dangling_mut(); 2], [2]);
    let [one, two] = &mut children;
    assert_eq!(nccl!(ncclGroupStart()), OK);
    assert_eq!(nccl!(ncclCommSplit(bad[0].0, 0, 0, one, ptr::null_mut())), OK);
    assert_eq!(nccl!(ncclCommShrink(good[0].0, list.as_mut_ptr(), 1, two, ptr::null_mut(), 0)), OK);
    assert_eq!(nccl!(ncclGroupEnd()), REMOTE);
    assert_eq!(children, [ptr::null_mut(); 2]);
    assert_eq!(shrink(good[1].0, &[2], 0), Err(REMOTE));
    assert_last_error("rank 0 has left: its communicator is gone");
    assert_eq!(sum(good[0].0, 1), Err(REMOTE));
    bad[0].destroy();
    good.into_iter().for_each(Comm::destroy);
}
