//! Tries all interleavings of what ranks do to the memory that they share, with [`loom`], in tiny worlds:
//! `RUSTFLAGS="--cfg loom" cargo test --release -p libnccl-cpu --lib interleavings`.
//!
//! It runs the real code. Loom has the segment's words, and gives every load each value that the memory model
//! allows, stale ones included. Of plain bytes, which are the segment's and those of the callers' [`Buffer`]s,
//! it knows who reads and writes them, [`GRAIN`] at a time: two accesses of which one writes and that nothing
//! orders are an error, whether they came close in time or not.
//!
//! What it does not cover: how long ranks wait, which [`executor`](crate::executor) decides, processes that die,
//! and memory that processes map or read of each other.
#![allow(unsafe_code)]

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::future::poll_fn;
use std::pin::pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};

use libnccl::sys::ncclDataType_t;
use loom::cell::UnsafeCell;

use crate::buffer::{Source, Target};
use crate::collective::{Call, Function, Part};
use crate::data_type::DataType;
use crate::exchange::{Purpose, exchange};
use crate::failure::Result;
use crate::memory;
use crate::one_sided::{self, Awaited, Put};
use crate::point_to_point::{Message, Way};
use crate::process::Process;
use crate::reach::{Reach, Seat};
use crate::reduction::Reduction;
use crate::world::{Alarm, World};

/// Bytes that are watched as one: what one rank writes while another reads lies no closer.
const GRAIN: usize = 16;

/// Bytes that travel in a line with what is called, that are said along, and that are staged or used directly.
const SHORT: usize = 5;
const LONG: usize = 40;
const STAGED: usize = 128;

thread_local! {
    /// The memory that is watched, by its start. All threads of a model run on one thread of the system.
    static WATCHED: RefCell<BTreeMap<usize, Watched>> = const { RefCell::new(BTreeMap::new()) };
}

struct Watched {
    length: usize,
    grains: Vec<UnsafeCell<()>>,
}

/// Watches `length` bytes at `start`, which the calling thread has written.
pub(crate) fn begin(start: *const u8, length: usize) {
    let grains = (0..length.div_ceil(GRAIN)).map(|_| UnsafeCell::new(())).collect();
    WATCHED.with_borrow_mut(|watched| watched.insert(start.addr(), Watched { length, grains }));
}

/// No longer does. Whoever used the memory must have done so before.
pub(crate) fn end(start: *const u8) {
    let watched = WATCHED.with_borrow_mut(|watched| watched.remove(&start.addr()));
    if !std::thread::panicking() {
        watched.iter().flat_map(|watched| &watched.grains).for_each(|grain| grain.with_mut(|_| ()));
    }
}

/// Says that the calling thread reads `length` bytes at `start`.
pub(crate) fn read(start: *const u8, length: usize) {
    each(start, length, |grain| grain.with(|_| ()));
}

/// Says that the calling thread writes them.
pub(crate) fn write(start: *const u8, length: usize) {
    each(start, length, |grain| grain.with_mut(|_| ()));
}

/// The grains of memory that is watched; other memory has none.
fn each(start: *const u8, length: usize, access: impl Fn(&UnsafeCell<()>)) {
    WATCHED.with_borrow(|watched| {
        let Some((first, memory)) = watched.range(..=start.addr()).next_back() else { return };
        let at = start.addr() - first;
        if at < memory.length && length > 0 {
            assert!(length <= memory.length - at, "{length} bytes at {at} of {}", memory.length);
            memory.grains[at / GRAIN..(at + length).div_ceil(GRAIN)].iter().for_each(access);
        }
    });
}

/// A rank's part in a model.
struct Rank {
    world: Arc<World>,
    rank: usize,
    reach: Reach,
}

/// Memory of a caller, which is the caller's whenever none of its calls is running.
struct Buffer {
    start: *mut u8,
    length: usize,
    /// Whether other processes could map it.
    is_shared: bool,
}

impl Buffer {
    fn new(length: usize) -> Self {
        let start = Box::into_raw(vec![0; length].into_boxed_slice()).cast();
        begin(start, length);
        Self { start, length, is_shared: false }
    }

    fn shared(length: usize) -> Self {
        let start = memory::allocate(length).unwrap().cast();
        begin(start, length);
        Self { start, length, is_shared: true }
    }

    fn of(rank: usize, round: usize, length: usize) -> Self {
        let buffer = Self::new(length);
        buffer.fill(|index| value(rank, round, index));
        buffer
    }

    /// Uses it as the caller does between calls.
    fn fill(&self, value: impl Fn(usize) -> u8) {
        self.target()
            .fill(|bytes| bytes.iter_mut().enumerate().for_each(|(index, byte)| *byte = value(index)));
    }

    fn expect(&self, value: impl Fn(usize) -> u8) {
        let expected: Vec<u8> = (0..self.length).map(value).collect();
        assert_eq!(self.source().bytes(0, self.length), expected);
    }

    fn source(&self) -> Source {
        self.target().source()
    }

    fn target(&self) -> Target {
        // SAFETY: the memory lives as long as `self`; who uses it when is what the models find out, on one
        // thread of the system.
        unsafe { Target::new(self.start, self.length) }
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        end(self.start);
        // SAFETY: it was made of a box, or allocated, of this length, and nobody uses it any more.
        unsafe {
            if self.is_shared {
                memory::free(self.start.cast()).unwrap();
            } else {
                drop(Box::from_raw(std::ptr::slice_from_raw_parts_mut(self.start, self.length)));
            }
        }
    }
}

/// What `rank` has at `index` in a round.
fn value(rank: usize, round: usize, index: usize) -> u8 {
    (1 + 100 * rank + 30 * round + index) as u8
}

fn bytes() -> DataType {
    DataType::new(ncclDataType_t::ncclUint8).unwrap()
}

impl Rank {
    fn run<T>(&self, operation: impl Future<Output = T>) -> T {
        let mut operation = pin!(operation);
        let mut context = Context::from_waker(Waker::noop());
        loop {
            match operation.as_mut().poll(&mut context) {
                Poll::Ready(outcome) => return outcome,
                Poll::Pending => loom::thread::yield_now(),
            }
        }
    }

    async fn call(&self, function: Function, count: usize, send: &Buffer, receive: &Buffer) -> Result {
        let reduction = (function == Function::AllReduce).then_some(Reduction::Sum);
        let call = Call::new(function, count, bytes(), reduction, 0, self.world.ranks());
        call.run(&Part { seat: self.seat(), send: send.source(), receive: receive.target() }).await
    }

    /// Sums up `length` bytes of each rank.
    fn sum(&self, round: usize, length: usize) {
        let (send, receive) = (Buffer::of(self.rank, round, length), Buffer::new(length));
        self.run(self.call(Function::AllReduce, length, &send, &receive)).unwrap();
        // Nobody may use them any more.
        send.fill(|_| 0);
        receive.expect(|index| (0..self.world.ranks()).fold(0, |sum, rank| sum + value(rank, round, index)));
        receive.fill(|_| 0);
    }

    fn gather(&self, round: usize, length: usize) {
        let receive = Buffer::new(length * self.world.ranks());
        let send = Buffer::of(self.rank, round, length);
        self.run(self.call(Function::AllGather, length, &send, &receive)).unwrap();
        send.fill(|_| 0);
        receive.expect(|index| value(index / length, round, index % length));
        receive.fill(|_| 0);
    }

    /// What rank 0 has.
    fn broadcast(&self, round: usize, length: usize) {
        let (send, receive) = (Buffer::of(self.rank, round, length), Buffer::new(length));
        self.run(self.call(Function::Broadcast, length, &send, &receive)).unwrap();
        send.fill(|_| 0);
        receive.expect(|index| value(0, round, index));
    }

    fn tell(&self, round: usize) {
        let text = |rank| [value(rank, round, 0); LONG];
        let heard = self.run(exchange(&self.world, self.rank, Purpose::Split, &text(self.rank))).unwrap();
        assert!(heard.iter().enumerate().all(|(rank, heard)| *heard == text(rank)));
    }

    fn way(&self, peer: usize) -> Way<'_> {
        Way { seat: self.seat(), peer }
    }

    fn seat(&self) -> Seat<'_> {
        Seat { reach: &self.reach, world: &self.world, rank: self.rank }
    }

    async fn send(&self, peer: usize, buffer: &Buffer) -> Result {
        Message { count: buffer.length, data_type: bytes() }.send(self.way(peer), buffer.source()).await
    }

    async fn receive(&self, peer: usize, buffer: &Buffer) -> Result {
        Message { count: buffer.length, data_type: bytes() }.receive(self.way(peer), buffer.target()).await
    }

    /// Sends one message after another, or receives them.
    fn messages(&self, peer: usize, sender: usize, lengths: &[usize]) {
        for (round, length) in lengths.iter().enumerate() {
            if self.rank == sender {
                let buffer = Buffer::of(self.rank, round, *length);
                self.run(self.send(peer, &buffer)).unwrap();
                buffer.fill(|_| 0);
            } else {
                let buffer = Buffer::new(*length);
                self.run(self.receive(peer, &buffer)).unwrap();
                buffer.expect(|index| value(sender, round, index));
            }
        }
    }
}

/// Runs `body` as every rank in all interleavings, or in those in which at most `preemptions` ranks are stopped
/// where they do not wait. Two ranks with the same number are in the same process.
fn explore(processes: &[u64], preemptions: usize, body: impl Fn(Rank) + Send + Sync + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(preemptions);
    builder.max_branches = 100_000;
    let processes: Vec<_> = processes.iter().map(|pid| Process { pid: *pid, started: 0 }).collect();
    let number = Arc::new(Mutex::new(0));
    let (counted, body) = (Arc::clone(&number), Arc::new(body));
    builder.check(move || {
        *counted.lock().unwrap() += 1;
        let world = Arc::new(World::create(&processes).unwrap().0);
        let spawn = |rank| {
            let part = Rank { world: Arc::clone(&world), rank, reach: Reach::default() };
            let body = Arc::clone(&body);
            loom::thread::Builder::new().stack_size(0x8000).spawn(move || body(part)).unwrap()
        };
        let threads: Vec<_> = (0..processes.len()).map(spawn).collect();
        threads.into_iter().for_each(|thread| thread.join().unwrap());
    });
    println!("{} interleavings", number.lock().unwrap());
}

/// One process, and two.
const NEAR: [u64; 2] = [1, 1];
const FAR: [u64; 2] = [1, 2];

#[test]
fn what_travels_in_words_is_of_its_step() {
    explore(&NEAR, 3, |rank| (0..3).for_each(|round| rank.sum(round, SHORT)));
}

#[test]
fn what_travels_in_bytes_is_of_its_step() {
    explore(&NEAR, 3, |rank| (0..3).for_each(|round| rank.sum(round, LONG)));
}

#[test]
fn two_calls_in_all_interleavings() {
    explore(&NEAR, 255, |rank| (0..2).for_each(|round| rank.sum(round, LONG)));
}

#[test]
fn calls_of_all_kinds_take_turns() {
    explore(&NEAR, 3, |rank| {
        rank.sum(0, LONG);
        rank.tell(1);
        rank.sum(2, SHORT);
    });
}

#[test]
fn three_ranks_hear_each_other() {
    explore(&[1; 3], 0, |rank| {
        let Rank { world, rank: own, .. } = &rank;
        for round in 0..2 {
            let step = rank.run(world.next_step(*own)).unwrap();
            let text = |rank| [value(rank, round, 0); LONG];
            world.say(*own, step, [7, round as u64], &text(*own), None);
            rank.run(world.all(*own, step)).unwrap();
            for other in 0..3 {
                assert_eq!(world.payload(other, step, LONG).bytes(0, LONG), text(other));
            }
        }
    });
}

#[test]
fn a_rank_that_runs_ahead_waits_for_the_others() {
    explore(&NEAR, 3, |rank| (0..4).for_each(|round| rank.broadcast(round, LONG)));
}

#[test]
fn a_call_of_all_follows_one_that_waits_for_nobody() {
    explore(&NEAR, 3, |rank| {
        rank.broadcast(0, SHORT);
        rank.sum(1, LONG);
        rank.broadcast(2, LONG);
    });
}

#[test]
fn stages_are_read_before_they_are_reused() {
    explore(&FAR, 2, |rank| rank.sum(0, 3 * STAGED));
}

#[test]
fn stages_of_different_calls_take_turns() {
    explore(&FAR, 2, |rank| {
        rank.sum(0, STAGED);
        rank.gather(1, STAGED);
    });
}

#[test]
fn buffers_are_the_callers_again_after_the_call() {
    explore(&NEAR, 2, |rank| {
        rank.sum(0, STAGED);
        rank.gather(1, STAGED);
    });
}

#[test]
fn buffers_are_the_callers_again_after_a_call_that_failed() {
    explore(&NEAR, 2, |rank| {
        let (send, receive) = (Buffer::of(rank.rank, 0, STAGED), Buffer::new(2 * STAGED));
        let mut call = pin!(rank.call(Function::AllGather, STAGED, &send, &receive));
        if rank.rank == 1 {
            // Another thread aborts in the middle of it.
            let outcome = call.as_mut().poll(&mut Context::from_waker(Waker::noop()));
            rank.world.alarm(1, Alarm::Aborted);
            if outcome.is_pending() {
                let _ = rank.run(call);
            }
        } else {
            let _ = rank.run(call);
        }
        send.fill(|_| 0);
        receive.fill(|_| 0);
    });
}

#[test]
fn who_retreats_is_not_touched() {
    explore(&[1; 3], 2, |rank| {
        let Rank { world, rank: own, .. } = &rank;
        // As good as a caller's memory.
        let (source, target) = world.staged(0, 0, 0, GRAIN);
        match own {
            0 => {
                let waited = rank.run(world.wait(2, || false));
                assert_eq!(waited.unwrap_err().text, "rank 2 aborted the communicator");
                rank.run(world.retreat(0));
                target.write(0, &[0; GRAIN]);
            }
            1 => {
                if let Ok(_touch) = world.touch(1) {
                    source.read(0, &mut [0; GRAIN]);
                }
            }
            _ => world.alarm(2, Alarm::Aborted),
        }
    });
}

#[test]
fn short_messages_come_once_and_in_order() {
    explore(&NEAR, 2, |rank| rank.messages(1 - rank.rank, 0, &[24, 40, 5]));
}

#[test]
fn messages_longer_than_the_ring_come_in_parts() {
    explore(&FAR, 1, |rank| rank.messages(1 - rank.rank, 0, &[66]));
}

#[test]
fn offered_messages_are_copied_from_where_they_are() {
    explore(&NEAR, 3, |rank| rank.messages(1 - rank.rank, 0, &[5, 80, 70]));
}

#[test]
fn messages_go_both_ways_at_once() {
    explore(&NEAR, 2, |rank| {
        let peer = 1 - rank.rank;
        let (sent, received) = (Buffer::of(rank.rank, 0, 80), Buffer::new(80));
        let (mut send, mut receive) = (pin!(rank.send(peer, &sent)), pin!(rank.receive(peer, &received)));
        let (mut to_send, mut to_receive) = (true, true);
        rank.run(poll_fn(|context| {
            to_send = to_send && send.as_mut().poll(context).map(Result::unwrap).is_pending();
            to_receive = to_receive && receive.as_mut().poll(context).map(Result::unwrap).is_pending();
            if to_send || to_receive { Poll::Pending } else { Poll::Ready(()) }
        }));
        received.expect(|index| value(peer, 0, index));
    });
}

#[test]
fn declined_messages_come_through_the_ring() {
    let here = std::process::id().into();
    // No process has the number 0, so the receiver cannot map its memory.
    explore(&[0, here], 1, |rank| {
        let buffer = Buffer::shared(66);
        if rank.rank == 0 {
            buffer.fill(|index| value(0, 0, index));
            rank.run(rank.send(1, &buffer)).unwrap();
        } else {
            rank.run(rank.receive(0, &buffer)).unwrap();
            buffer.expect(|index| value(0, 0, index));
        }
    });
}

/// A message of one length for which the receiver has another, and then one that fits.
fn refuse(processes: &[u64], preemptions: usize, sent: usize, wanted: usize, is_told: bool) {
    explore(processes, preemptions, move |rank| {
        if rank.rank == 0 {
            let buffer = Buffer::of(0, 0, sent);
            let outcome = rank.run(rank.send(1, &buffer));
            buffer.fill(|_| 0);
            if is_told {
                let text = format!("rank 1, which called ncclRecv(count {wanted}, ncclUint8)");
                assert!(outcome.unwrap_err().text.contains(&text));
            } else {
                outcome.unwrap();
            }
        } else {
            let text = format!("rank 0 called ncclSend(count {sent}, ncclUint8)");
            let outcome = rank.run(rank.receive(0, &Buffer::new(wanted)));
            assert!(outcome.unwrap_err().text.contains(&text));
        }
        rank.messages(1 - rank.rank, 0, &[24]);
    });
}

#[test]
fn refused_short_messages_are_gone() {
    refuse(&NEAR, 3, 24, 23, false);
}

#[test]
fn refused_offers_are_told() {
    refuse(&NEAR, 3, 80, 79, true);
}

#[test]
fn refused_messages_longer_than_the_ring_are_told() {
    refuse(&FAR, 1, 90, 89, true);
}

#[test]
fn signals_come_with_what_was_written_before() {
    let target = Mutex::new(None);
    explore(&NEAR, 3, move |rank| {
        let window = Buffer::new(2 * GRAIN);
        let part = |index: usize| window.target().slice(index * GRAIN..(index + 1) * GRAIN);
        let awaited = |peer, raises| [Awaited { peer, signal: 1, raises }];
        if rank.rank == 1 {
            *target.lock().unwrap() = Some([part(0), part(1)]);
            rank.tell(0);
            rank.run(one_sided::wait(&rank.world, 1, &awaited(0, 1))).unwrap();
            let mut bytes = [0; GRAIN];
            part(0).source().read(0, &mut bytes);
            assert!(bytes.iter().enumerate().all(|(index, byte)| *byte == value(0, 0, index)));
            rank.run(one_sided::wait(&rank.world, 1, &awaited(0, 1))).unwrap();
            part(1).source().read(0, &mut bytes);
            assert!(bytes.iter().enumerate().all(|(index, byte)| *byte == value(0, 1, index)));
            one_sided::raise(&rank.world, 1, 0, 1).unwrap();
        } else {
            rank.tell(0);
            let parts = target.lock().unwrap().take().unwrap();
            for (round, to) in parts.into_iter().enumerate() {
                Put { from: Buffer::of(0, round, GRAIN).source(), to }.run();
                one_sided::raise(&rank.world, 0, 1, 1).unwrap();
            }
            rank.run(one_sided::wait(&rank.world, 0, &awaited(1, 1))).unwrap();
        }
    });
}

#[test]
fn what_a_rank_did_before_it_left_counts() {
    explore(&NEAR, 3, |rank| {
        rank.sum(0, LONG);
        if rank.rank == 1 {
            rank.run(rank.send(0, &Buffer::of(1, 1, 24))).unwrap();
            one_sided::raise(&rank.world, 1, 0, 0).unwrap();
            rank.world.leave(1);
            return;
        }
        let buffer = Buffer::new(24);
        rank.run(rank.receive(1, &buffer)).unwrap();
        buffer.expect(|index| value(1, 1, index));
        let awaited = [Awaited { peer: 1, signal: 0, raises: 1 }];
        rank.run(one_sided::wait(&rank.world, 0, &awaited)).unwrap();
        let failure = rank.run(one_sided::wait(&rank.world, 0, &awaited)).unwrap_err();
        assert!(failure.text.starts_with("rank 1 has left"));
        let failure = rank.run(rank.receive(1, &buffer)).unwrap_err();
        assert!(failure.text.starts_with("rank 1 has left"));
        let (send, receive) = (Buffer::new(SHORT), Buffer::new(SHORT));
        let failure = rank.run(rank.call(Function::AllReduce, SHORT, &send, &receive)).unwrap_err();
        assert!(failure.text.starts_with("rank 1 has left"));
    });
}

#[test]
fn an_alarm_ends_waiting_but_not_what_is_there_before_it() {
    explore(&NEAR, 3, |rank| {
        let Rank { world, rank: own, .. } = &rank;
        let step = rank.run(world.next_step(*own)).unwrap();
        world.say(*own, step, [7, 7], &[], None);
        if *own == 1 {
            world.alarm(1, Alarm::Aborted);
            return;
        }
        rank.run(world.all(0, step)).unwrap();
        assert_eq!(world.common(1, step), [7, 7]);
        let failure = rank.run(world.all(0, step + 1)).unwrap_err();
        assert_eq!(failure.text, "rank 1 aborted the communicator");
    });
}
