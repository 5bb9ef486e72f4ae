//! Every data type and every reduction to the bit, against a slow and simple reference, with ranks as threads or in one
//! thread's group. `transports.rs` does so with processes.

use std::ops::Range;
use std::process::Stdio;
use std::ptr;
use std::thread::available_parallelism;

use crate::common::processes;
use crate::common::reference::{
    BFLOAT16, E4M3, E5M2, FORMATS, FUNCTIONS, Function, HALF, Number, OPS, Op, Small, elements, last, load,
    reduce, reduced,
};
use crate::common::{Address, Comm, Mode, addresses, alone, init, on_threads, together};
use libnccl::sys::ncclResult_t;

/// The bytes behind each receive buffer, which must not change.
const GUARD: [u8; 64] = [0xa5; 64];

/// Makes the same call on every rank with its send and receive buffer, and returns the received bytes.
fn run(
    mode: Mode,
    comms: &[Comm],
    sends: &[Vec<u8>],
    length: usize,
    call: impl Fn(usize, *const u8, *mut u8, Comm) -> ncclResult_t + Sync,
) -> Vec<Vec<u8>> {
    let mut received = vec![[&vec![0x5a; length], &GUARD[..]].concat(); comms.len()];
    let receive: Vec<Address<u8>> = addresses(&mut received);
    together(mode, comms, |rank, comm| {
        let Address(receive) = receive[rank];
        call(rank, sends[rank].as_ptr(), receive, Comm(comm))
    });
    for received in &mut received {
        assert_eq!(received[length..], GUARD, "written behind the buffer");
        received.truncate(length);
    }
    received
}

/// Communicators of as many ranks as threads and in one thread's group.
struct Ranks {
    threads: Vec<Comm>,
    group: Vec<Comm>,
}

impl Ranks {
    fn new(ranks: usize) -> Self {
        Self { threads: init(Mode::Threads, ranks), group: init(Mode::Group, ranks) }
    }

    fn count(&self) -> usize {
        self.threads.len()
    }

    fn comms(&self, mode: Mode) -> &[Comm] {
        match mode {
            Mode::Threads => &self.threads,
            Mode::Group => &self.group,
        }
    }

    fn destroy(self) {
        self.threads.into_iter().chain(self.group).for_each(Comm::destroy);
    }
}

/// Compares a reduction in the given modes with the reference.
fn reduction<T: Number>(
    ranks: &Ranks,
    modes: &[Mode],
    function: Function,
    op: Op,
    count: usize,
    sends: &[Vec<u8>],
) {
    let (n, root) = (ranks.count(), count % ranks.count());
    let total = if function == Function::ReduceScatter { n * count } else { count };
    let expect = |indices: Range<usize>| -> Vec<T> {
        indices.map(|index| reduced(op, sends, index, last::<T>(function, n, count, root, index))).collect()
    };
    let threads = if total < 10_000 { 1 } else { available_parallelism().map_or(1, usize::from) };
    let share = total.div_ceil(threads);
    let expected =
        on_threads(threads, |thread| expect((thread * share).min(total)..((thread + 1) * share).min(total)));
    let expected = expected.concat();
    for mode in modes {
        let received = run(*mode, ranks.comms(*mode), sends, count * T::SIZE, |rank, send, receive, comm| {
            let to = if function == Function::Reduce && rank != root { ptr::null_mut() } else { receive };
            reduce::<T>(function, op, send.cast(), to.cast(), count, root as i32, rank, comm)
        });
        for (rank, received) in received.iter().enumerate() {
            let expected = match function {
                Function::AllReduce => &expected[..],
                Function::Reduce if rank != root => continue,
                Function::Reduce => &expected[..],
                Function::ReduceScatter => &expected[rank * count..][..count],
            };
            for (index, expected) in expected.iter().enumerate() {
                let got = load::<T>(received, index);
                let same = got.bits() == expected.bits() || (got.is_nan() && expected.is_nan());
                let of = if function == Function::ReduceScatter { rank * count + index } else { index };
                assert!(
                    same,
                    "{function:?} {op:?} of {:?}, {n} ranks ({mode:?}), count {count}, rank {rank} at {index}: \
                     got {got:?} ({:#x}), not {expected:?} ({:#x}), of {:x?}",
                    T::RAW,
                    got.bits(),
                    expected.bits(),
                    sends.iter().map(|send| load::<T>(send, of).bits()).collect::<Vec<_>>()
                );
            }
        }
    }
}

/// Checks the collectives that only move elements.
fn movement<T: Number>(ranks: &Ranks, mode: Mode, count: usize) {
    let (n, root, length, stream) = (ranks.count(), count % ranks.count(), count * T::SIZE, ptr::null_mut);
    let what = format!("of {:?}, {n} ranks ({mode:?}), count {count}", T::RAW);
    let comms = ranks.comms(mode);

    let sends = on_threads(n, |rank| elements::<T>(rank as u64, count));
    let received = run(mode, comms, &sends, length, |rank, send, receive, comm| {
        let send = if rank == root { send } else { ptr::null() };
        nccl!(ncclBroadcast(send.cast(), receive.cast(), count, T::RAW, root as i32, comm.0, stream()))
    });
    assert!(received.iter().all(|received| *received == sends[root]), "Broadcast {what}");

    let received = run(mode, comms, &sends, n * length, |_, send, receive, comm| {
        nccl!(ncclAllGather(send.cast(), receive.cast(), count, T::RAW, comm.0, stream()))
    });
    assert!(received.iter().all(|received| *received == sends.concat()), "AllGather {what}");

    let received = run(mode, comms, &sends, n * length, |rank, send, receive, comm| {
        let receive = if rank == root { receive } else { ptr::null_mut() };
        nccl!(ncclGather(send.cast(), receive.cast(), count, T::RAW, root as i32, comm.0, stream()))
    });
    assert!(received[root] == sends.concat(), "Gather {what}");

    let sends = on_threads(n, |rank| elements::<T>(rank as u64, n * count));
    let received = run(mode, comms, &sends, length, |rank, send, receive, comm| {
        let send = if rank == root { send } else { ptr::null() };
        nccl!(ncclScatter(send.cast(), receive.cast(), count, T::RAW, root as i32, comm.0, stream()))
    });
    assert!(received.concat() == sends[root], "Scatter {what}");

    let received = run(mode, comms, &sends, n * length, |_, send, receive, comm| {
        nccl!(ncclAlltoAll(send.cast(), receive.cast(), count, T::RAW, comm.0, stream()))
    });
    for (rank, received) in received.iter().enumerate() {
        let parts: Vec<_> = sends.iter().map(|send| &send[rank * length..][..length]).collect();
        assert!(*received == parts.concat(), "AlltoAll {what}");
    }
}

/// The share of all combinations to test.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Extent {
    /// Every type with every reduction in every function, but not each of these with every number of ranks, nor
    /// both as threads and as a group.
    Sampled,
    Full,
}

impl Extent {
    fn ranks(self) -> &'static [usize] {
        if self == Self::Full { &[1, 2, 3, 4, 5, 6, 7, 8] } else { &[1, 2, 3, 5, 8] }
    }
}

const SMALL_COUNTS: [usize; 4] = [0, 1, 7, 4095];
const LARGE_COUNT: usize = (1 << 20) + 3;
const MODES: [Mode; 2] = [Mode::Threads, Mode::Group];

fn reductions<T: Number>(ranks: &Ranks, extent: Extent) {
    let n = ranks.count();
    let large = if extent == Extent::Full { &[LARGE_COUNT][..] } else { &[] };
    for count in SMALL_COUNTS.iter().chain(large).copied() {
        if extent == Extent::Sampled && n * count > 5 * 4095 {
            continue;
        }
        let sends: Vec<_> =
            (0..n).map(|rank| elements::<T>(rank as u64, n * count.min(4095) + count)).collect();
        for (number, op) in OPS.into_iter().enumerate() {
            for function in FUNCTIONS {
                // So that a large reduce_scatter reduces as many elements in all.
                let block = if count == LARGE_COUNT && function == Function::ReduceScatter {
                    count / n
                } else {
                    count
                };
                let case = n + number + function as usize + T::RAW.0 as usize;
                let modes = match extent {
                    Extent::Sampled if count == 4095 && !case.is_multiple_of(4) => &[],
                    Extent::Sampled => &MODES[case / 4 % 2..][..1],
                    Extent::Full => &MODES[..],
                };
                if !modes.is_empty() {
                    reduction::<T>(ranks, modes, function, op, block, &sends);
                }
            }
        }
    }
}

fn all_reductions(extent: Extent) {
    for n in extent.ranks().iter().copied() {
        let ranks = Ranks::new(n);
        reductions::<i8>(&ranks, extent);
        reductions::<u8>(&ranks, extent);
        reductions::<i32>(&ranks, extent);
        reductions::<u32>(&ranks, extent);
        reductions::<i64>(&ranks, extent);
        reductions::<u64>(&ranks, extent);
        reductions::<Small<HALF>>(&ranks, extent);
        reductions::<f32>(&ranks, extent);
        reductions::<f64>(&ranks, extent);
        reductions::<Small<BFLOAT16>>(&ranks, extent);
        reductions::<Small<E4M3>>(&ranks, extent);
        reductions::<Small<E5M2>>(&ranks, extent);
        ranks.destroy();
    }
}

fn all_movement(extent: Extent) {
    for n in extent.ranks().iter().copied() {
        let ranks = Ranks::new(n);
        // So that a large call moves as many elements to a rank in all.
        let large = if extent == Extent::Full { &[LARGE_COUNT / n][..] } else { &[] };
        for count in SMALL_COUNTS.iter().chain(large).copied() {
            for mode in MODES {
                if extent == Extent::Full || (n + count).is_multiple_of(2) == (mode == Mode::Group) {
                    movement::<u8>(&ranks, mode, count);
                    movement::<Small<HALF>>(&ranks, mode, count);
                    movement::<u32>(&ranks, mode, count);
                    movement::<f64>(&ranks, mode, count);
                }
            }
        }
        ranks.destroy();
    }
}

#[test]
fn reductions_match_reference() {
    let _alone = alone();
    all_reductions(Extent::Sampled);
}

#[test]
fn data_movement_matches_reference() {
    let _alone = alone();
    all_movement(Extent::Sampled);
}

#[test]
fn large_all_reduce_matches_reference() {
    let _alone = alone();
    let ranks = Ranks::new(3);
    let sends = on_threads(3, |rank| elements::<f32>(rank as u64, LARGE_COUNT));
    reduction::<f32>(&ranks, &[Mode::Threads], Function::AllReduce, Op::Sum, LARGE_COUNT, &sends);
    ranks.destroy();
}

/// Repeats the tests with `NCCL_P2P_DISABLE=1`, in another process, as the environment is read once per process.
#[test]
fn staged_collectives_match_reference() {
    let _alone = alone();
    let names = ["reductions_match", "data_movement_matches", "large_all_reduce_matches"]
        .map(|name| format!("exactness::{name}_reference"));
    let child = processes::test(&names.each_ref().map(String::as_str))
        .env("NCCL_P2P_DISABLE", "1")
        .env("NCCL_DEBUG", "INFO")
        .env("NCCL_DEBUG_SUBSYS", "SHM")
        .env_remove("NCCL_DEBUG_FILE")
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let text = processes::finish(child);
    assert!(text.contains("3 passed"), "{text}");
    let transports = || text.lines().filter(|line| line.contains(" bytes on rank "));
    assert!(transports().count() > 0, "{text}");
    let staged = ": staged, because NCCL_P2P_DISABLE is 1 at rank 0";
    assert_eq!(transports().find(|line| !line.ends_with(staged)), None);
}

// All combinations, for a release build.

#[test]
#[ignore = "takes minutes: .ci/long"]
fn all_combinations_match_reference() {
    let _alone = alone();
    all_reductions(Extent::Full);
    all_movement(Extent::Full);
}

/// The reference itself, against values from the definitions of the formats.
#[test]
fn reference_rounds_as_formats_specify() {
    for (format, bits, value) in [
        (HALF, 0x3c00, 1.0),
        (HALF, 0x7bff, 65504.0),
        (HALF, 0x0001, 2f64.powi(-24)),
        (BFLOAT16, 0x3f80, 1.0),
        (BFLOAT16, 0x0001, 2f64.powi(-133)),
        (E4M3, 0x38, 1.0),
        (E4M3, 0x7e, 448.0),
        (E4M3, 0x01, 2f64.powi(-9)),
        (E5M2, 0x3c, 1.0),
        (E5M2, 0x7b, 57344.0),
        (E5M2, 0x01, 2f64.powi(-16)),
    ] {
        assert_eq!((FORMATS[format].value(bits), FORMATS[format].nearest(value)), (value, bits));
    }
    for format in &FORMATS {
        // Ties round to even; anything else to the nearer number.
        for bits in 0..format.largest {
            let (value, next) = (format.value(bits), format.value(bits + 1));
            let middle = f64::midpoint(value, next);
            assert_eq!(format.nearest(value), bits);
            assert_eq!(format.nearest(middle), bits + bits % 2);
            assert_eq!(format.nearest(middle.next_down()), bits);
            assert_eq!(format.nearest(middle.next_up()), bits + 1);
        }
    }
    assert_eq!(FORMATS[HALF].nearest(65520.0), 0x7c00);
    assert_eq!(FORMATS[E4M3].nearest(f64::INFINITY), 0x7e);
    assert_eq!(FORMATS[E5M2].nearest(-1e9), 0xfb);
}
