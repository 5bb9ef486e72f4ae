//! The collectives with a count for each rank, and `send_recv`: results, alone and in groups, and errors.

use std::ops::Range;

use libnccl::error::InvalidArgumentKind;
use libnccl::{CallOptions, Config, Error, Nccl, ReduceOp, Result};

use super::common::{SHORT, STREAM, assert_works, cases, of_one_thread_with, on_threads};

cases! {
    send_recv_passes_messages_around_a_ring,
    vector_collectives_move_every_part,
    wrong_counts_error_names_them,
}

/// Counts of four ranks, with zeros at each place.
const COUNTS: [[usize; 4]; 4] = [[3, 0, 1, 5], [0, 2, 2, 0], [7, 1, 0, 0], [0, 0, 0, 0]];

/// Returns the element of `rank` at `index`. All elements differ.
fn element(rank: usize, index: usize) -> i64 {
    (rank * 1000 + index) as i64
}

fn elements(rank: usize, count: usize) -> Vec<i64> {
    (0..count).map(|index| element(rank, index)).collect()
}

/// Returns the number of the first element of part `rank`.
fn start(counts: &[usize], rank: usize) -> usize {
    counts[..rank].iter().sum()
}

fn send_recv_passes_messages_around_a_ring(nccl: &Nccl) {
    for size in 1..=3 {
        on_threads(nccl, size, |comm| {
            let (next, previous) = ((comm.rank() + 1) % size, (comm.rank() + size - 1) % size);
            let mut recv = vec![-1; 1000];
            comm.send_recv(&elements(comm.rank(), 1000), &mut recv, next, previous, STREAM).unwrap();
            assert_eq!(recv, elements(previous, 1000), "{size} ranks");
            // Lengths differ from rank to rank; two ranks exchange nothing in one direction.
            let mut recv = vec![-1; previous];
            comm.send_recv(&elements(comm.rank(), comm.rank()), &mut recv, next, previous, STREAM).unwrap();
            assert_eq!(recv, elements(previous, previous), "{size} ranks");
        });
    }
}

const ROOT: usize = 2;

/// Returns the counts that rank `rank` sends to rank `peer`, and the reverse.
fn pair_counts(counts: &[usize; 4], rank: usize) -> ([usize; 4], [usize; 4]) {
    let count = |from: usize, to: usize| counts[(from + to) % 4] * usize::from(from != 1);
    let peers = [0, 1, 2, 3];
    (peers.map(|peer| count(rank, peer)), peers.map(|peer| count(peer, rank)))
}

/// Returns the elements of all ranks, and one element that does not change.
fn of_all(counts: &[usize; 4]) -> Vec<i64> {
    (0..4).flat_map(|peer| elements(peer, counts[peer])).chain([-1]).collect()
}

/// Returns the sums of the elements of all ranks at these places.
fn sums(places: Range<usize>) -> Vec<i64> {
    places.map(|index| (0..4).map(|peer| element(peer, index)).sum()).collect()
}

fn vector_collectives_move_every_part(nccl: &Nccl) {
    on_threads(nccl, 4, |comm| {
        for counts in &COUNTS {
            let (rank, all) = (comm.rank(), of_all(counts));
            let (total, own) = (all.len() - 1, start(counts, rank)..start(counts, rank) + counts[rank]);
            let (mine, whole) = (elements(rank, counts[rank]), elements(rank, total));
            // The counts and the buffer of the root are ignored on the other ranks.
            let is_root = rank == ROOT;
            let (of_root, send) = if is_root { (&counts[..], &whole[..]) } else { (&[][..], &[][..]) };

            let mut recv = vec![-1; total + 1];
            comm.all_gather_v(&mine, &mut recv, counts, STREAM).unwrap();
            assert_eq!(recv, all, "all_gather_v, {counts:?}, rank {rank}");
            let mut recv = vec![-1; if is_root { total } else { 0 }];
            comm.gather_v(&mine, &mut recv, of_root, ROOT, STREAM).unwrap();
            assert_eq!(recv, all[..recv.len()], "gather_v, {counts:?}");
            let mut recv = vec![-1; counts[rank]];
            comm.scatter_v(send, &mut recv, of_root, ROOT, STREAM).unwrap();
            assert_eq!(recv, elements(ROOT, total)[own.clone()], "scatter_v, {counts:?}, rank {rank}");
            comm.reduce_scatter_v(&whole, &mut recv, counts, ReduceOp::Sum, STREAM).unwrap();
            assert_eq!(recv, sums(own), "reduce_scatter_v, {counts:?}, rank {rank}");

            let (send_counts, recv_counts) = pair_counts(counts, rank);
            let sent = elements(rank, send_counts.iter().sum());
            let mut recv = vec![-1; recv_counts.iter().sum::<usize>() + 1];
            comm.all_to_all_v(&sent, &mut recv, &send_counts, &recv_counts, STREAM).unwrap();
            let part = |peer: usize| {
                let (sent, _) = pair_counts(counts, peer);
                (0..sent[rank]).map(move |index| element(peer, start(&sent, rank) + index))
            };
            let expected: Vec<i64> = (0..4).flat_map(part).chain([-1]).collect();
            assert_eq!(recv, expected, "all_to_all_v, {counts:?}, rank {rank}");
        }
    });
}

fn wrong_counts_error_names_them(nccl: &Nccl) {
    #[track_caller]
    fn check(wrong: Result<()>, text: &str) {
        let error = wrong.unwrap_err();
        let is_length = matches!(error, Error::InvalidArgument { kind: InvalidArgumentKind::Length, .. });
        assert!(is_length, "{error}");
        assert_eq!(error.to_string(), text);
    }
    let ranks = |result: Result<()>| match result.unwrap_err() {
        error @ Error::InvalidArgument { kind: InvalidArgumentKind::Rank, .. } => error.to_string(),
        other => panic!("{other}"),
    };
    // A call that is not refused waits for the other ranks.
    let comms = of_one_thread_with(nccl, 3, &Config::new().timeout(SHORT));
    let comm = &comms[1];
    let (send, mut recv) = ([0_i32; 4], [0_i32; 9]);
    let wrong = comm.all_gather_v(&send, &mut recv, &[4, 4], STREAM);
    check(wrong, "all_gather_v: 2 counts; expected 3, one for each rank");
    let wrong = comm.gather_v(&send, &mut recv, &[1, 4, 1, 0], 1, STREAM);
    check(wrong, "gather_v: 4 counts; expected 3, one for each rank");
    let wrong = comm.all_gather_v(&send, &mut recv, &[0, 3, 2], STREAM);
    check(wrong, "all_gather_v: the send buffer holds 4 elements; expected 3, the count of rank 1");
    let wrong = comm.all_gather_v(&send, &mut recv, &[4, 4, 4], STREAM);
    check(wrong, "all_gather_v: the receive buffer holds 9 elements, and needs 12");
    let wrong = comm.all_gather_v(&send, &mut recv, &[usize::MAX, 4, 1], STREAM);
    check(wrong, "all_gather_v: the sum of the counts is more than usize::MAX");
    let wrong = comm.reduce_scatter_v(&send, &mut recv[..2], &[1, 2, 2], ReduceOp::Sum, STREAM);
    check(wrong, "reduce_scatter_v: the send buffer holds 4 elements, and needs 5");
    let wrong = comm.reduce_scatter_v(&send, &mut recv, &[1, 2, 1], ReduceOp::Sum, STREAM);
    check(wrong, "reduce_scatter_v: the receive buffer holds 9 elements; expected 2, the count of rank 1");
    let wrong = comm.all_to_all_v(&send, &mut recv, &[1, 2, 2], &[1, 2, 1], STREAM);
    check(wrong, "all_to_all_v: the send buffer holds 4 elements, and needs 5");
    let wrong = comm.all_to_all_v(&send, &mut recv, &[1, 2, 1], &[4, 2, 4], STREAM);
    check(wrong, "all_to_all_v: the receive buffer holds 9 elements, and needs 10");
    let wrong = comm.all_to_all_v(&send, &mut recv, &[1, 2, 1], &[1, 3, 1], STREAM);
    check(wrong, "all_to_all_v: this rank sends 2 elements to itself; its receive counts have 3");
    let wrong = comm.all_to_all_v(&send, &mut recv, &[4], &[1, 3, 1], STREAM);
    check(wrong, "all_to_all_v: 1 send counts; expected 3, one for each rank");
    let wrong = comm.gather_v(&send, &mut recv, &[4, 4, 4], 1, STREAM);
    check(wrong, "gather_v: the root's receive buffer holds 9 elements, and needs 12");
    let wrong = comm.gather_v(&send, &mut recv, &[1, 5, 1], 1, STREAM);
    check(wrong, "gather_v: the send buffer holds 4 elements; expected 5, the count of rank 1");
    let wrong = comm.scatter_v(&send, &mut recv[..2], &[1, 2, 2], 1, STREAM);
    check(wrong, "scatter_v: the root's send buffer holds 4 elements, and needs 5");
    let wrong = comm.scatter_v(&send, &mut recv, &[1, 3, 0], 1, STREAM);
    check(wrong, "scatter_v: the receive buffer holds 9 elements; expected 3, the count of rank 1");
    let wrong = comm.all_gather_v_in_place(&mut recv, &[4, 4], STREAM);
    check(wrong, "all_gather_v_in_place: 2 counts; expected 3, one for each rank");
    let wrong = comm.all_gather_v_in_place(&mut recv, &[3, 3, 4], STREAM);
    check(wrong, "all_gather_v_in_place: the in-place buffer holds 9 elements, and needs 10");
    let wrong = comm.reduce_scatter_v_in_place(&mut recv, &[9, usize::MAX, 4], ReduceOp::Sum, STREAM);
    check(wrong, "reduce_scatter_v_in_place: the sum of the counts is more than usize::MAX");
    let wrong = comm.gather_v_in_place(&mut recv, &[4, 4, 4], 1, STREAM);
    check(wrong, "gather_v_in_place: the root's buffer holds 9 elements, and needs 12");
    let wrong = comm.scatter_v_in_place(&mut recv, &[], 1, STREAM);
    check(wrong, "scatter_v_in_place: 0 counts; expected 3, one for each rank");
    let beyond = comm.scatter_v_in_place(&mut recv, &[], 3, STREAM);
    assert_eq!(ranks(beyond), "scatter_v_in_place: root 3 is not below 3, the communicator's size");
    let beyond = comm.gather_v(&send, &mut recv, &[], 3, STREAM);
    assert_eq!(ranks(beyond), "gather_v: root 3 is not below 3, the communicator's size");
    let beyond = comm.send_recv(&send, &mut recv, 4, 0, STREAM);
    assert_eq!(ranks(beyond), "send_recv: send peer 4 is not below 3, the communicator's size");
    let beyond = comm.send_recv(&send, &mut recv, 0, 5, STREAM);
    assert_eq!(ranks(beyond), "send_recv: recv peer 5 is not below 3, the communicator's size");
    let uneven = comm.send_recv(&send, &mut recv, 1, 1, STREAM);
    check(uneven, "send_recv: this rank sends 4 elements to itself; it receives 9");
    let options = libnccl::config::CollectiveConfig::new().max_ctas(1);
    let refused =
        comm.send_recv(&send, &mut recv, 0, 0, CallOptions::on(STREAM).config(&options)).unwrap_err();
    assert!(matches!(refused, Error::InvalidUsage { call: "send_recv", .. }), "{refused}");
    drop(comms);
    // Nothing was started.
    on_threads(nccl, 3, |comm| {
        comm.all_gather_v(&[0_u8; 2], &mut [0_u8; 3], &[1, 1, 1], STREAM).unwrap_err();
        assert_works(&comm);
    });
}
