//! Misuse that NCCL does not detect: buffers that overlap, and two threads in one communicator.

use std::ptr;
use std::thread;

use crate::common::{
    ARGUMENT, Arguments, COLLECTIVES, Comm, I32, OK, SUM, USAGE, all_reduce, alone, assert_last_error,
    assert_sum, has_root, in_group, init, last_error, on_threads, send, split,
};
use libnccl::sys::ncclResult_t;

const RANKS: usize = 2;
const ROOT: usize = 1;

/// For each collective the number of blocks in its send and receive buffers, and the offset of `ROOT`'s send buffer for an
/// in-place call, in blocks after the receive buffer.
const BLOCKS: [([usize; 2], isize); 8] = [
    ([1, 1], 0),
    ([1, 1], 0),
    ([1, 1], 0),
    ([1, 2], 1),
    ([2, 1], -1),
    ([2, 2], 0),
    ([1, 2], 1),
    ([2, 1], -1),
];

/// Calls a collective on a receive buffer in the middle of `memory`, and a send buffer `at` elements after it.
fn call_at(index: usize, memory: &mut [i32], at: isize, count: usize, comm: Comm) -> ncclResult_t {
    let recv = memory.as_mut_ptr().wrapping_add(memory.len() / 3);
    let arguments = Arguments { count, data: I32, op: SUM, root: ROOT as i32 };
    COLLECTIVES[index].1(arguments, recv.wrapping_offset(at).cast(), recv.cast(), comm.0)
}

#[test]
fn overlapping_buffers_not_in_place_are_invalid_argument() {
    let _alone = alone();
    let comms = init(RANKS);
    for count in [2, 2048, 1 << 18] {
        let mut memory = vec![1; 6 * count];
        for (index, (blocks, in_place)) in BLOCKS.into_iter().enumerate() {
            let [sent, received] = blocks.map(|blocks| (blocks * count) as isize);
            let (overlapping, allowed) = (1 - sent..received, in_place * count as isize);
            // Trying all offsets takes long for many elements.
            let places = [allowed - 1, allowed + 1, overlapping.start, overlapping.end - 1, -1, 0, 1];
            for at in places.into_iter().filter(|at| overlapping.contains(at) && *at != allowed) {
                let name = COLLECTIVES[index].0;
                let code = call_at(index, &mut memory, at, count, comms[ROOT]);
                assert_eq!(code, ARGUMENT, "{name} of {count} elements, {at} after");
                assert_last_error(&format!(
                    "{name}: the send buffer ({} bytes) and the receive buffer ({} bytes) overlap: ",
                    4 * sent,
                    4 * received
                ));
            }
        }
        assert!(memory.iter().all(|element| *element == 1), "nothing is written");
    }
    // The ranks are still in sync. What the texts say is in `mistakes.rs`, but for these.
    on_threads(RANKS, |rank| assert_sum({ comms[rank] }.0, RANKS));
    for (index, at, text) in [
        (
            7,
            0,
            "sendbuff is recvbuff; an in-place call needs recvbuff = sendbuff + 64 bytes (rank 1 x count elements)",
        ),
        (5, -3, "recvbuff is sendbuff + 12 bytes; it has no form in place"),
    ] {
        assert_eq!(call_at(index, &mut [0; 192], at, 16, comms[ROOT]), ARGUMENT);
        assert!(last_error().ends_with(text), "{}", last_error());
    }
    comms.into_iter().for_each(Comm::destroy);
}

#[test]
fn adjacent_unused_or_in_place_buffers_do_not_overlap() {
    let _alone = alone();
    let comms = init(RANKS);
    for count in [1_usize, 2048, 1 << 18] {
        for (index, ([sent, received], in_place)) in BLOCKS.into_iter().enumerate() {
            let name = COLLECTIVES[index].0;
            let allowed = in_place * count as isize;
            for at in [-((sent * count) as isize), (received * count) as isize, allowed] {
                let codes = on_threads(RANKS, |rank| {
                    // A rank that is no root uses only one of its buffers, so they may overlap. In place, the other rank's block is
                    // the first one.
                    let at = match rank == ROOT {
                        false if has_root(name) => 1,
                        false if at == allowed => 0,
                        _ => at,
                    };
                    call_at(index, &mut vec![1; 6 * count], at, count, comms[rank])
                });
                assert_eq!(codes, [OK; RANKS], "{name} of {count}, {at} after: {}", last_error());
            }
            for comm in &comms {
                assert_eq!(call_at(index, &mut [0; 4], 1, 0, *comm), OK, "{name} of nothing");
            }
        }
    }
    comms.into_iter().for_each(Comm::destroy);
    // With one rank, the whole buffer is the rank's own block.
    let single = init(1)[0];
    let mut memory = [7; 3];
    let arguments = Arguments { count: 3, data: I32, op: SUM, root: 0 };
    let place = memory.as_mut_ptr().cast();
    assert_eq!((COLLECTIVES[5].1(arguments, place, place, single.0), memory), (OK, [7; 3]));
    single.destroy();
}

/// Repeats a call that is refused while another thread is in the communicator, and returns another result.
fn until_alone(mut call: impl FnMut() -> ncclResult_t) -> ncclResult_t {
    loop {
        match call() {
            USAGE => thread::yield_now(),
            code => return code,
        }
    }
}

#[test]
fn second_thread_in_communicator_error_names_the_first_threads_call() {
    let _alone = alone();
    let comms = init(RANKS);
    let mut place = [1; 3];
    thread::scope(|scope| {
        let (comm, mine) = (comms[0], &mut place);
        let first = scope.spawn(move || until_alone(|| all_reduce(mine, { comm }.0)));
        // Repeats a call that waits for no rank, until the other thread is inside.
        let inside = "another thread is in ncclAllReduce(count 3, ncclInt32, ncclSum) on this communicator";
        loop {
            match nccl!(ncclCommWindowDeregister(comm.0, ptr::null_mut())) {
                USAGE if last_error().contains(inside) => break,
                USAGE | OK => thread::yield_now(),
                code => panic!("{code:?} {}", last_error()),
            }
        }
        let mut other = [1; 3];
        assert_eq!(all_reduce(&mut other, { comm }.0), USAGE);
        assert_last_error(inside);
        assert_eq!((send(&other, 1, comm.0), split(comm.0, 0, 0)), (USAGE, Err(USAGE)));
        assert_eq!([nccl!(ncclCommFinalize(comm.0)), nccl!(ncclCommDestroy(comm.0))], [USAGE; 2]);
        assert_last_error(inside);
        assert_eq!(in_group(|| assert_eq!(all_reduce(&mut other, { comm }.0), OK)), USAGE);
        assert_last_error(inside);
        assert_eq!(other, [1; 3]);
        // Queries are allowed.
        let (mut count, mut state) = (0, OK);
        assert_eq!(nccl!(ncclCommCount(comm.0, &mut count)), OK);
        assert_eq!(nccl!(ncclCommUserRank(comm.0, &mut count)), OK);
        assert_eq!(nccl!(ncclCommGetAsyncError(comm.0, &mut state)), OK);
        assert_eq!((count, state), (0, OK));
        assert_eq!(all_reduce(&mut other, { comms[1] }.0), OK);
        assert_eq!((first.join().unwrap(), other), (OK, [2; 3]));
    });
    assert_eq!(place, [2; 3]);
    let sums = on_threads(RANKS, |rank| all_reduce(&mut [1; 3], { comms[rank] }.0));
    assert_eq!(sums, [OK; RANKS], "the communicator still works");
    comms.into_iter().for_each(Comm::destroy);
}

/// The program `two_threads`: its calls succeeded, and thousands of sums were wrong.
#[test]
fn sums_of_two_threads_per_communicator_are_errors_or_correct() {
    let _alone = alone();
    let comms = init(RANKS);
    on_threads(2 * RANKS, |thread| {
        let comm = comms[thread % RANKS];
        let sent: Vec<i32> = (0..1000).collect();
        // Each rank has as many calls that succeed.
        for _ in 0..1000 {
            let mut summed = sent.clone();
            assert_eq!(until_alone(|| all_reduce(&mut summed, { comm }.0)), OK, "{}", last_error());
            assert!(summed.iter().zip(&sent).all(|(sum, mine)| *sum == 2 * mine));
        }
    });
    comms.into_iter().for_each(Comm::destroy);
}
