//! Every data type and every reduction to the bit, against a slow and simple reference, with ranks as threads or in one
//! thread's group. `between_processes.rs` does so with processes.

use std::process::Stdio;
use std::sync::Mutex;

use crate::common::call::{Operation, Plan, TYPES};
use crate::common::processes;
use crate::common::reference::{
    BFLOAT16, E4M3, E5M2, FORMATS, Function, HALF, Number, Op, Small, last, load, reduce, reduced,
};
use crate::common::{Comm, Mode, busy, init, together};

const SMALL_COUNTS: [usize; 4] = [0, 1, 7, 4095];
const LARGE_COUNT: usize = (1 << 20) + 3;

/// Makes a call on every rank, and checks what each receives.
fn check(mode: Mode, comms: &[Comm], plan: Plan) {
    let prepared = |rank| Mutex::new(plan.prepare(rank, (false, false), &mut vec![]));
    let calls: Vec<_> = (0..comms.len()).map(prepared).collect();
    together(mode, comms, |rank, comm| calls[rank].lock().unwrap().call(Comm(comm)));
    for call in calls {
        let checked = call.into_inner().unwrap().check(&mut vec![]);
        checked.unwrap_or_else(|problem| panic!("{mode:?}: {problem}"));
    }
}

/// Checks every type in every operation, but, if sampled, not each of these with every number of ranks, nor both as threads
/// and as a group.
fn collectives(sizes: &[usize], is_sampled: bool) {
    for ranks in sizes.iter().copied() {
        let both = [Mode::Threads, Mode::Group].map(|mode| (mode, init(mode, ranks)));
        for (number, operation) in Operation::all().into_iter().enumerate() {
            let blocks = if operation.sends_blocks() || operation.receives_blocks() { ranks } else { 1 };
            for (index, data) in TYPES.into_iter().enumerate() {
                for count in SMALL_COUNTS.into_iter().chain([LARGE_COUNT / blocks]) {
                    let case = ranks + number + index + count % 5;
                    let skips = count > LARGE_COUNT / ranks - 1 || count == 4095 && !case.is_multiple_of(4);
                    for (way, (mode, comms)) in both.iter().enumerate() {
                        if !is_sampled || !skips && case / 4 % 2 == way {
                            let plan = Plan { operation, data, count, ranks, case: case as u64 };
                            check(*mode, comms, plan);
                        }
                    }
                }
            }
        }
        both.into_iter().flat_map(|(_, comms)| comms).for_each(Comm::destroy);
    }
}

#[test]
fn collectives_match_reference() {
    let _busy = busy();
    collectives(&[1, 2, 3], true);
    let (comms, operation) = (init(Mode::Threads, 3), Operation::all()[0]);
    check(Mode::Threads, &comms, Plan { operation, data: TYPES[7], count: LARGE_COUNT, ranks: 3, case: 0 });
    comms.into_iter().for_each(Comm::destroy);
}

/// Repeats the tests with `NCCL_P2P_DISABLE=1`, in another process, as the environment is read once per process.
#[test]
fn staged_collectives_match_reference() {
    let _busy = busy();
    let child = processes::test(&["exactness::collectives_match_reference"])
        .env("NCCL_P2P_DISABLE", "1")
        .env("NCCL_DEBUG", "INFO")
        .env("NCCL_DEBUG_SUBSYS", "SHM")
        .env_remove("NCCL_DEBUG_FILE")
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let text = processes::finish(child);
    assert!(text.contains("1 passed"), "{text}");
    let transports = || text.lines().filter(|line| line.contains(" bytes on rank "));
    assert!(transports().count() > 0, "{text}");
    let staged = ": staged, because NCCL_P2P_DISABLE is 1 at rank 0";
    assert_eq!(transports().find(|line| !line.ends_with(staged)), None);
}

/// Reduces each pair of elements by each operation, and compares the results with the reference.
fn check_pairs<T: Number>(ops: &[Op], pairs: &[(u64, u64)]) {
    let comms = init(Mode::Group, 2);
    let bytes = |bits: u64| bits.to_le_bytes().into_iter().take(T::SIZE);
    let sends: [Vec<u8>; 2] = [
        pairs.iter().flat_map(|(one, _)| bytes(*one)).collect(),
        pairs.iter().flat_map(|(_, other)| bytes(*other)).collect(),
    ];
    for op in ops.iter().copied() {
        let mut received = [vec![0_u8; sends[0].len()], vec![0; sends[0].len()]];
        let to = crate::common::addresses(&mut received);
        together(Mode::Group, &comms, |rank, comm| {
            let from = sends[rank].as_ptr().cast();
            let to = { to[rank] }.0.cast();
            reduce::<T>(Function::AllReduce, op, from, to, pairs.len(), 0, rank, Comm(comm))
        });
        for (index, (one, other)) in pairs.iter().enumerate() {
            let last = last::<T>(Function::AllReduce, 2, pairs.len(), 0, index);
            let (result, expected) = (load::<T>(&received[0], index), reduced::<T>(op, &sends, index, last));
            let is_right = result.bits() == expected.bits() || result.is_nan() && expected.is_nan();
            assert!(is_right, "{op:?} of {one:#x} and {other:#x}: {result:x?}, not {expected:x?}");
        }
    }
    comms.into_iter().for_each(Comm::destroy);
}

#[test]
fn every_pair_of_small_floats_is_reduced_as_defined() {
    let _busy = busy();
    let all: Vec<(u64, u64)> = (0..1 << 16).map(|pair| (pair >> 8, pair & 0xff)).collect();
    check_pairs::<Small<E4M3>>(&[Op::Sum, Op::Prod, Op::Max, Op::Min], &all);
    check_pairs::<Small<E5M2>>(&[Op::Sum, Op::Prod, Op::Max, Op::Min], &all);
    // Each number, and half a unit in its last place, a little less, and a little more.
    let with_half_units = |mantissa: u64| {
        let exponents = (1 << (15 - mantissa)) - 1;
        let half_unit =
            move |bits: u64| (bits >> mantissa & exponents).saturating_sub(mantissa + 1) << mantissa;
        let near = move |bits: u64| {
            let half_unit = half_unit(bits);
            [half_unit.saturating_sub(1), half_unit, half_unit + 1]
                .map(|other| (bits, other | bits & 1 << 15))
        };
        (0..1 << 16).flat_map(near).collect::<Vec<_>>()
    };
    check_pairs::<Small<HALF>>(&[Op::Sum], &with_half_units(10));
    check_pairs::<Small<BFLOAT16>>(&[Op::Sum], &with_half_units(7));
    // Subnormal products, and all mantissas around half the smallest number.
    let small =
        (1..0x480).flat_map(|left| (0x3c00..0x4080).step_by(61).map(move |right| (left, right | 0x8000)));
    let mantissas = (0..1 << 14).flat_map(|pair| {
        [0x1d80, 0x1e00, 0x1e80, 0x1f00].map(|exponent| (0x1e00 | pair >> 7, exponent | pair & 0x7f))
    });
    check_pairs::<Small<BFLOAT16>>(&[Op::Prod], &small.chain(mantissas).collect::<Vec<_>>());
}

/// For a release build.
#[test]
#[ignore = "takes minutes: .ci/long"]
fn all_combinations_match_reference() {
    let _busy = busy();
    collectives(&[1, 2, 3, 4, 5, 6, 7, 8], false);
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
