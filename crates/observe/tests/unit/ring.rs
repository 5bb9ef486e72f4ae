use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::thread;

use super::{CallWord, Ring};
use libnccl::buffer::MemorySpace;
use libnccl::observer::{Membership, Operation, OperationStart};
use libnccl::{DataType, Version};

const SEND: &Operation = Operation::of("send");
const SUM: &Operation = Operation::of("all_reduce");

fn start<'a>(
    membership: &'a Membership,
    operation: &Operation,
    number: u64,
    stream: usize,
) -> OperationStart<'a> {
    let call = CallWord::new(operation, None, [None; 2]);
    OperationStart::new(membership, call, [number, 0], [0; 2], stream, None)
}

fn membership() -> Membership {
    Membership::new(0, 1, MemorySpace::Host, Version::new(2, 28, 3))
}

/// Records operations with increasing numbers.
fn push(ring: &Ring, first: u64, operations: &[&'static Operation]) {
    for (number, operation) in (first..).zip(operations) {
        ring.push(&start(&membership(), operation, number, 0));
    }
}

fn numbers(ring: &Ring) -> Vec<(u64, Option<u64>)> {
    ring.read().iter().map(|read| (read.number, read.own_number)).collect()
}

#[test]
fn last_operations_are_kept_with_their_numbers() {
    let ring = Ring::new(3);
    assert_eq!(ring.capacity(), 4);
    assert!(ring.read().is_empty());
    push(&ring, 1, &[SUM, SEND]);
    assert_eq!(numbers(&ring), [(1, Some(1)), (2, Some(1))]);
    push(&ring, 3, &[SUM, SUM, SUM, SUM, SEND]);
    assert_eq!(numbers(&ring), [(4, Some(3)), (5, Some(4)), (6, Some(5)), (7, Some(2))]);
    assert_eq!(ring.last(), 7);
    // Inside until their end.
    ring.end([1, 5], false);
    assert_eq!(ring.read().iter().map(|read| read.is_inside).collect::<Vec<_>>(), [false, false, true, true]);
    assert!(ring.is_inside());
    ring.end([6, 7], false);
    assert!(!ring.is_inside());
}

#[test]
fn operations_of_a_stream_that_is_done_are_complete() {
    let (ring, membership) = (Ring::new(8), membership());
    let push = |number, stream| {
        ring.push(&start(&membership, SUM, number, stream));
    };
    [(1, 1), (2, 2), (3, 1)].into_iter().for_each(|(number, stream)| push(number, stream));
    ring.complete(1);
    push(4, 1);
    let read = ring.read();
    assert_eq!(
        read.iter().map(|read| read.completed.is_some()).collect::<Vec<_>>(),
        [true, false, true, false]
    );
    assert!(read.iter().all(|read| read.completed.is_none_or(|completed| completed >= read.queued)));
}

#[test]
fn failure_of_a_group_is_that_of_its_operations() {
    let ring = Ring::new(8);
    push(&ring, 1, &[SUM, SUM, SEND]);
    ring.end([1, 1], false);
    ring.end([2, 3], true);
    let failed = |ring: &Ring| ring.read().iter().map(|read| read.has_failed).collect::<Vec<_>>();
    assert_eq!(failed(&ring), [false, true, true]);
    assert!(ring.read().iter().all(|read| read.completed.is_none()));
    // The ring has lost the first of them.
    let ring = Ring::new(2);
    push(&ring, 1, &[SUM, SUM, SEND]);
    ring.end([1, 3], true);
    assert_eq!(failed(&ring), [true, true]);
}

/// A recorder accepts calls with any arguments.
#[test]
fn numbers_of_several_communicators_or_of_none_do_not_panic() {
    let ring = Ring::new(2);
    for first in [0, 1, u64::MAX, 5, 1, 2] {
        ring.push(&start(&membership(), SEND, first, 0));
        ring.end([first, 0], true);
        ring.end([0, u64::MAX], true);
        assert!(ring.read().len() <= 2);
        ring.complete(0);
    }
}

#[test]
fn reader_sees_nothing_or_the_first_operation_of_a_recording_that_begins_late() {
    for _ in 0..3000 {
        let ring = Ring::new(2);
        thread::scope(|scope| {
            scope.spawn(|| push(&ring, 8, &[SUM]));
            while numbers(&ring).is_empty() {
                thread::yield_now();
            }
        });
        assert_eq!(numbers(&ring), [(8, Some(1))]);
    }
}

/// Fails if a reader ever sees a mix of two operations, or a wrong number.
#[test]
fn concurrent_readers_see_whole_operations_with_their_numbers() {
    const OPERATIONS: usize = 300_000;
    let (ring, is_over) = (Ring::new(8), AtomicBool::new(false));
    thread::scope(|scope| {
        let readers = [(); 2].map(|()| {
            scope.spawn(|| {
                let mut seen = 0;
                while !is_over.load(Relaxed) || seen == 0 {
                    for read in ring.read() {
                        let length = read.number as usize;
                        assert_eq!(read.elements, [length as u64, 3 * length as u64]);
                        assert_eq!(read.stream, 7 * length);
                        assert_eq!(read.call.is_point_to_point(), length % 2 == 1);
                        // Every second operation, beginning with the first, is point-to-point.
                        let own = if length % 2 == 1 { length.div_ceil(2) } else { length / 2 };
                        assert!(read.own_number.is_none_or(|number| number == own as u64), "{read:?}");
                        seen += 1;
                    }
                }
                seen
            })
        });
        let membership = membership();
        for number in 1..=OPERATIONS {
            let operation = if number % 2 == 1 { SEND } else { SUM };
            let call = CallWord::new(operation, Some(DataType::Float32), [None; 2]);
            let (elements, stream) = ([number, 3 * number], 7 * number);
            ring.push(&OperationStart::new(&membership, call, [number as u64, 0], elements, stream, None));
        }
        is_over.store(true, Relaxed);
        assert!(readers.map(|reader| reader.join().unwrap()).iter().all(|seen| *seen > 0));
    });
}
