//! The order of operations, without threads: the tests start and complete operations.

use crate::handle::{ContextId, StreamId};
use crate::scheduler::{Begun, Clock, Executor, Ordering, Point, Position, Scheduler};

const CONTEXT: ContextId = ContextId(1);
const OTHER_CONTEXT: ContextId = ContextId(2);
const DEFAULT: StreamId = StreamId(10);
const BLOCKING: StreamId = StreamId(11);
const ANOTHER: StreamId = StreamId(12);
const FREE: StreamId = StreamId(13);
const FOREIGN: StreamId = StreamId(14);

fn scheduler(seed: Option<u64>) -> Scheduler<&'static str> {
    let mut scheduler = Scheduler::new(seed);
    scheduler.open(DEFAULT, CONTEXT, Ordering::Default, |_| true);
    scheduler.open(BLOCKING, CONTEXT, Ordering::Blocking, |_| true);
    scheduler.open(ANOTHER, CONTEXT, Ordering::Blocking, |_| true);
    scheduler.open(FREE, CONTEXT, Ordering::NonBlocking, |_| true);
    scheduler.open(FOREIGN, OTHER_CONTEXT, Ordering::Blocking, |_| true);
    scheduler
}

fn enqueue(scheduler: &mut Scheduler<&'static str>, stream: StreamId, name: &'static str) -> Position {
    let position = scheduler.enqueue(stream, &Point::default(), Executor::Library, name);
    position.expect("the stream is open")
}

/// Executes the next operation of a stream.
fn execute(scheduler: &mut Scheduler<&'static str>, stream: StreamId) -> Option<&'static str> {
    let Begun { id, work, .. } = scheduler.start(stream)?;
    scheduler.complete(id);
    Some(work)
}

/// Executes the next operation of a stream, and returns what came before it.
fn execute_after(scheduler: &mut Scheduler<&'static str>, stream: StreamId) -> Clock {
    let Begun { id, clock, .. } = scheduler.start(stream).expect("it may start");
    scheduler.complete(id);
    clock
}

/// Returns which operations a clock includes.
fn included<const N: usize>(clock: &Clock, operations: [&Position; N]) -> [bool; N] {
    operations.map(|operation| clock.includes(operation.step))
}

#[test]
fn operations_of_a_stream_start_one_after_another() {
    let mut scheduler = scheduler(None);
    enqueue(&mut scheduler, FREE, "one");
    enqueue(&mut scheduler, FREE, "two");
    let one = scheduler.start(FREE).expect("the first is ready");
    assert_eq!(one.work, "one");
    assert!(scheduler.start(FREE).is_none());
    scheduler.complete(one.id);
    assert_eq!(execute(&mut scheduler, FREE), Some("two"));
}

#[test]
fn default_stream_waits_for_blocking_streams_of_its_context_alone() {
    let mut scheduler = scheduler(None);
    let blocking = enqueue(&mut scheduler, BLOCKING, "blocking");
    let free = enqueue(&mut scheduler, FREE, "free");
    let foreign = enqueue(&mut scheduler, FOREIGN, "foreign");
    let default = enqueue(&mut scheduler, DEFAULT, "default");
    enqueue(&mut scheduler, ANOTHER, "after");
    assert_eq!(execute(&mut scheduler, DEFAULT), None);
    assert_eq!(execute(&mut scheduler, ANOTHER), None);
    assert_eq!(execute(&mut scheduler, BLOCKING), Some("blocking"));
    assert_eq!(execute(&mut scheduler, FREE), Some("free"));
    assert_eq!(execute(&mut scheduler, FOREIGN), Some("foreign"));
    assert_eq!(execute(&mut scheduler, ANOTHER), None);
    let before_default = execute_after(&mut scheduler, DEFAULT);
    let before_after = execute_after(&mut scheduler, ANOTHER);
    assert_eq!(included(&before_default, [&blocking, &free, &foreign]), [true, false, false]);
    assert_eq!(included(&before_after, [&blocking, &default]), [true, true]);
}

#[test]
fn default_stream_comes_after_a_blocking_stream_that_is_gone() {
    let mut scheduler = scheduler(None);
    let [blocking, free] = [BLOCKING, FREE].map(|stream| enqueue(&mut scheduler, stream, "gone"));
    for stream in [BLOCKING, FREE] {
        scheduler.close(stream);
        assert!(!scheduler.is_gone(stream));
        assert_eq!(execute(&mut scheduler, stream), Some("gone"));
        assert!(scheduler.is_gone(stream));
    }
    enqueue(&mut scheduler, DEFAULT, "default");
    let before_default = execute_after(&mut scheduler, DEFAULT);
    assert_eq!(included(&before_default, [&blocking, &free]), [true, false]);
    assert_eq!(included(scheduler.host(), [&blocking, &free]), [false, false]);
    let point = scheduler.point_of_context(CONTEXT);
    scheduler.advance_host(&point.clock());
    assert_eq!(included(scheduler.host(), [&blocking, &free]), [true, true]);
}

#[test]
fn component_of_a_stream_that_is_gone_is_used_again_once_the_host_knows_its_end() {
    let mut scheduler = scheduler(None);
    for number in 100..1000 {
        let stream = StreamId(number);
        scheduler.open(stream, CONTEXT, Ordering::NonBlocking, |_| true);
        let unknown = enqueue(&mut scheduler, stream, "only");
        scheduler.close(stream);
        scheduler.open(StreamId(number + 1000), CONTEXT, Ordering::NonBlocking, |_| true);
        let other = enqueue(&mut scheduler, StreamId(number + 1000), "only");
        assert_ne!(unknown.step.component, other.step.component);
        scheduler.close(StreamId(number + 1000));
        assert_eq!(execute(&mut scheduler, stream), Some("only"));
        assert!(!execute_after(&mut scheduler, StreamId(number + 1000)).includes(unknown.step));
        let point = scheduler.point_of_context(CONTEXT);
        scheduler.advance_host(&point.clock());
        let components = [unknown, other].map(|position| position.step.component.0);
        assert!(components.into_iter().all(|component| component < 7), "{components:?} of 7 streams");
    }
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
    scheduler.enqueue(FOREIGN, &point, Executor::Library, "after").expect("the stream is open");
    assert_eq!(execute(&mut scheduler, FOREIGN), None);
    assert!(!point.is_complete());
    assert_eq!(execute(&mut scheduler, FREE), Some("before"));
    assert!(point.is_complete());
    assert_eq!(execute(&mut scheduler, FREE), Some("not before"));
    let after = execute_after(&mut scheduler, FOREIGN);
    assert_eq!(included(&after, [&before, &not_before]), [true, false]);
}

#[test]
fn operation_comes_after_what_the_host_knew_when_it_was_enqueued() {
    let mut scheduler = scheduler(None);
    let known = enqueue(&mut scheduler, FREE, "known");
    let point = scheduler.point_of_stream(FREE).expect("the stream is open");
    assert_eq!(execute(&mut scheduler, FREE), Some("known"));
    enqueue(&mut scheduler, FOREIGN, "unaware");
    scheduler.advance_host(&point.clock());
    enqueue(&mut scheduler, FOREIGN, "aware");
    assert!(!execute_after(&mut scheduler, FOREIGN).includes(known.step));
    assert!(execute_after(&mut scheduler, FOREIGN).includes(known.step));
}

#[test]
fn function_of_the_host_tells_what_came_before_it_and_learns_what_the_host_knows() {
    let mut scheduler = scheduler(None);
    let before = enqueue(&mut scheduler, FREE, "before");
    scheduler.enqueue(FREE, &Point::default(), Executor::Host, "function").expect("the stream is open");
    enqueue(&mut scheduler, FREE, "after");
    assert_eq!(execute(&mut scheduler, FREE), Some("before"));
    let function = scheduler.start(FREE).expect("it may start");
    assert!(scheduler.host().includes(before.step));
    let other = enqueue(&mut scheduler, FOREIGN, "other");
    assert_eq!(execute(&mut scheduler, FOREIGN), Some("other"));
    scheduler.advance_host(&other.point.clock());
    scheduler.complete(function.id);
    assert!(execute_after(&mut scheduler, FREE).includes(other.step));
}

#[test]
fn operation_with_peers_ends_after_what_came_before_those_that_began() {
    let mut scheduler = scheduler(None);
    let before = enqueue(&mut scheduler, FREE, "before");
    let mut peers = |stream| scheduler.enqueue(stream, &Point::default(), Executor::Peers, "message");
    let [sent, _received] = [FREE, FOREIGN].map(|stream| peers(stream).expect("the stream is open"));
    enqueue(&mut scheduler, FOREIGN, "after");
    assert_eq!(execute(&mut scheduler, FREE), Some("before"));
    let receiving = scheduler.start(FOREIGN).expect("it may start");
    assert!(!receiving.clock.includes(before.step));
    let sending = scheduler.start(FREE).expect("it may start");
    scheduler.complete(receiving.id);
    scheduler.complete(sending.id);
    let after = execute_after(&mut scheduler, FOREIGN);
    assert!(after.includes(before.step));
    assert!(after.includes(sent.first_step));
    assert!(!after.includes(sent.step), "the sender may have written what it received after that");
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
