//! The order of operations, without threads: operations are started and completed by hand.

use crate::handle::{ContextId, StreamId};
use crate::scheduler::{Executor, Ordering, Point, Position, Scheduler};

const CONTEXT: ContextId = ContextId(1);
const OTHER_CONTEXT: ContextId = ContextId(2);
const DEFAULT: StreamId = StreamId(10);
const BLOCKING: StreamId = StreamId(11);
const ANOTHER: StreamId = StreamId(12);
const FREE: StreamId = StreamId(13);
const FOREIGN: StreamId = StreamId(14);

fn scheduler(seed: Option<u64>) -> Scheduler<&'static str> {
    let mut scheduler = Scheduler::new(seed);
    scheduler.open(DEFAULT, CONTEXT, Ordering::Default);
    scheduler.open(BLOCKING, CONTEXT, Ordering::Blocking);
    scheduler.open(ANOTHER, CONTEXT, Ordering::Blocking);
    scheduler.open(FREE, CONTEXT, Ordering::NonBlocking);
    scheduler.open(FOREIGN, OTHER_CONTEXT, Ordering::Blocking);
    scheduler
}

fn enqueue(scheduler: &mut Scheduler<&'static str>, stream: StreamId, name: &'static str) -> Position {
    let position = scheduler.enqueue(stream, &Point::default(), Executor::Library, name);
    position.expect("the stream is open")
}

/// Executes the next operation of a stream.
fn execute(scheduler: &mut Scheduler<&'static str>, stream: StreamId) -> Option<&'static str> {
    let (id, name) = scheduler.start(stream)?;
    scheduler.complete(id);
    Some(name)
}

fn comes_after(later: &Position, earlier: &Position) -> bool {
    later.before.get(earlier.stream) >= earlier.number
}

#[test]
fn operations_of_a_stream_start_one_after_another() {
    let mut scheduler = scheduler(None);
    enqueue(&mut scheduler, FREE, "one");
    enqueue(&mut scheduler, FREE, "two");
    let (one, name) = scheduler.start(FREE).expect("the first is ready");
    assert_eq!((name, scheduler.start(FREE)), ("one", None));
    scheduler.complete(one);
    assert_eq!(execute(&mut scheduler, FREE), Some("two"));
}

#[test]
fn default_stream_waits_for_blocking_streams_of_its_context_alone() {
    let mut scheduler = scheduler(None);
    let blocking = enqueue(&mut scheduler, BLOCKING, "blocking");
    let free = enqueue(&mut scheduler, FREE, "free");
    let foreign = enqueue(&mut scheduler, FOREIGN, "foreign");
    let default = enqueue(&mut scheduler, DEFAULT, "default");
    let after = enqueue(&mut scheduler, ANOTHER, "after");
    assert_eq!(execute(&mut scheduler, DEFAULT), None);
    assert_eq!(execute(&mut scheduler, ANOTHER), None);
    assert_eq!(execute(&mut scheduler, BLOCKING), Some("blocking"));
    assert_eq!(execute(&mut scheduler, ANOTHER), None);
    assert_eq!(execute(&mut scheduler, DEFAULT), Some("default"));
    assert_eq!(execute(&mut scheduler, ANOTHER), Some("after"));
    assert!(
        comes_after(&default, &blocking) && comes_after(&after, &blocking) && comes_after(&after, &default)
    );
    assert!(!comes_after(&default, &free) && !comes_after(&default, &foreign));
}

#[test]
fn default_stream_comes_after_a_blocking_stream_that_is_gone() {
    let mut scheduler = scheduler(None);
    let gone = enqueue(&mut scheduler, BLOCKING, "gone");
    scheduler.close(BLOCKING);
    assert!(!scheduler.is_gone(BLOCKING));
    assert_eq!(execute(&mut scheduler, BLOCKING), Some("gone"));
    assert!(scheduler.is_gone(BLOCKING));
    let default = enqueue(&mut scheduler, DEFAULT, "default");
    assert!(comes_after(&default, &gone));
    assert!(!scheduler.is_known_to_host(BLOCKING, 1));
    let point = scheduler.point_of_context(CONTEXT);
    scheduler.tell_host(&point.clock);
    assert!(scheduler.is_known_to_host(BLOCKING, 1));
}

#[test]
fn closed_stream_takes_no_operations() {
    let mut scheduler = scheduler(None);
    scheduler.close(FREE);
    assert!(scheduler.is_gone(FREE));
    assert!(scheduler.enqueue(FREE, &Point::default(), Executor::Library, "late").is_none());
}

#[test]
fn wait_for_a_point_orders_two_streams() {
    let mut scheduler = scheduler(None);
    let before = enqueue(&mut scheduler, FREE, "before");
    let point = scheduler.point_of_stream(FREE).expect("the stream is open");
    let not_before = enqueue(&mut scheduler, FREE, "not before");
    let after = scheduler.enqueue(FOREIGN, &point, Executor::Library, "after").expect("the stream is open");
    assert_eq!(execute(&mut scheduler, FOREIGN), None);
    assert!(!scheduler.is_complete(&point));
    assert_eq!(execute(&mut scheduler, FREE), Some("before"));
    assert!(scheduler.is_complete(&point));
    assert_eq!(execute(&mut scheduler, FOREIGN), Some("after"));
    assert!(comes_after(&after, &before) && !comes_after(&after, &not_before));
}

#[test]
fn operation_comes_after_what_the_host_knows() {
    let mut scheduler = scheduler(None);
    let known = enqueue(&mut scheduler, FREE, "known");
    let point = scheduler.point_of_stream(FREE).expect("the stream is open");
    assert_eq!(execute(&mut scheduler, FREE), Some("known"));
    let unaware = enqueue(&mut scheduler, FOREIGN, "unaware");
    scheduler.tell_host(&point.clock);
    let aware = enqueue(&mut scheduler, FOREIGN, "aware");
    assert!(!comes_after(&unaware, &known) && comes_after(&aware, &known));
}

#[test]
fn same_seed_gives_the_same_order_and_others_give_others() {
    let order = |seed| {
        let mut scheduler = scheduler(Some(seed));
        for name in ["one", "two", "three", "four"] {
            enqueue(&mut scheduler, FREE, name);
            enqueue(&mut scheduler, FOREIGN, name);
        }
        let mut order = Vec::new();
        while scheduler.turn() {
            for stream in [FREE, FOREIGN] {
                order.extend(execute(&mut scheduler, stream).map(|name| (stream, name)));
            }
        }
        assert_eq!(order.len(), 8);
        order
    };
    assert_eq!(order(5), order(5));
    let orders = (0..20).map(order).collect::<std::collections::BTreeSet<_>>();
    assert!(orders.len() > 10, "{} orders of 20 seeds", orders.len());
}
