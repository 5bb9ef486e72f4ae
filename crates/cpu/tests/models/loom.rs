//! Models of the ranks' accesses to shared memory, explored by [`loom`] in small shared states:
//! `RUSTFLAGS="--cfg loom" cargo test --release -p libnccl-cpu --lib loom_models`.
//!
//! They run the real code. The segment's words are loom's atomics: a load returns every value that the memory model allows,
//! including stale ones. For plain bytes, in the segment and in the callers' [`Buffer`]s, loom tracks reads and writes in
//! units of [`GRAIN`] bytes. Two unordered accesses, one of them a write, are an error even if they are far apart.
//!
//! Not covered: the length of waits, which [`backoff`](crate::sync::backoff) decides; processes that die; memory that
//! processes map from each other.
#![allow(unsafe_code)]

use std::future::poll_fn;
use std::pin::pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};

use libnccl::sys::ncclDataType_t;

use crate::coll::call::{ControlCall, Function};
use crate::coll::collective::Collective;
use crate::coll::operation::{Operation, control_allgather};
use crate::coll::plan::Call;
use crate::diag::error::Result;
use crate::functions::one_sided::{AwaitedSignal, Signal, WaitSignals};
use crate::functions::point_to_point::{Message, RecvMessage, SendMessage};
use crate::reduce::data_type::DataType;
use crate::reduce::reduction::Reduction;
use crate::shm::access::Exposed;
use crate::shm::buffer::{ReadBuf, WriteBuf};
use crate::shm::call_context::{CallContext, PeerAccess};
use crate::shm::liveness::AbortReason;
use crate::shm::mem_alloc;
use crate::shm::process::Process;
use crate::shm::shared_state::SharedState;
use crate::sync::primitive::{GRAIN, track, untrack};

/// Lengths in bytes: published in the record's cache line, published eagerly, and staged or accessed directly.
const INLINE: usize = 5;
const EAGER: usize = 40;
const STAGED: usize = 128;

struct Rank {
    state: Arc<SharedState>,
    rank: usize,
    peers: PeerAccess,
}

/// A caller's buffer, which the caller may access while none of its calls is in progress.
struct Buffer {
    start: *mut u8,
    length: usize,
    /// Set if other processes can map it.
    is_shared: bool,
}

impl Buffer {
    fn new(length: usize) -> Self {
        let start = Box::into_raw(vec![0; length].into_boxed_slice()).cast();
        track(start, length);
        Self { start, length, is_shared: false }
    }

    fn shared(length: usize) -> Self {
        let start = mem_alloc::allocate(length).unwrap().cast();
        track(start, length);
        Self { start, length, is_shared: true }
    }

    fn filled(rank: usize, round: usize, length: usize) -> Self {
        let buffer = Self::new(length);
        buffer.fill(|index| value(rank, round, index));
        buffer
    }

    /// Writes the buffer as a caller does between calls.
    fn fill(&self, value: impl Fn(usize) -> u8) {
        self.write_buf()
            .fill(|bytes| bytes.iter_mut().enumerate().for_each(|(index, byte)| *byte = value(index)));
    }

    fn assert_bytes(&self, value: impl Fn(usize) -> u8) {
        let expected: Vec<u8> = (0..self.length).map(value).collect();
        assert_eq!(self.read_buf().bytes(0, self.length, &mut vec![]), expected);
    }

    fn read_buf(&self) -> ReadBuf {
        self.write_buf().as_read()
    }

    fn write_buf(&self) -> WriteBuf {
        // SAFETY: the memory lives as long as `self`. All threads of a model run on one system thread, and loom checks
        // that accesses are ordered.
        unsafe { WriteBuf::new(self.start, self.length) }
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        untrack(self.start);
        // SAFETY: `new` made it from a box of this length, or `shared` allocated it, and it is no longer used.
        unsafe {
            if self.is_shared {
                mem_alloc::free(self.start.cast()).unwrap();
            } else {
                drop(Box::from_raw(std::ptr::slice_from_raw_parts_mut(self.start, self.length)));
            }
        }
    }
}

/// Returns the value of `rank` at `index` in a round.
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

    async fn call(&self, function: Function, count: usize, send: &Buffer, recv: &Buffer) -> Result {
        let reduction = (function == Function::ALL_REDUCE).then_some(Reduction::Sum);
        let call = Call::new(function, count, bytes(), reduction, 0, self.state.ranks());
        let collective = Collective { call, scalar: None, send: send.read_buf(), recv: recv.write_buf() };
        collective.run(self.context()).await
    }

    fn all_reduce(&self, round: usize, length: usize) {
        let (send, receive) = (Buffer::filled(self.rank, round, length), Buffer::new(length));
        self.run(self.call(Function::ALL_REDUCE, length, &send, &receive)).unwrap();
        // No rank may access the buffers any more.
        send.fill(|_| 0);
        receive.assert_bytes(|index| {
            (0..self.state.ranks()).fold(0, |sum, rank| sum + value(rank, round, index))
        });
        receive.fill(|_| 0);
    }

    fn all_gather(&self, round: usize, length: usize) {
        let receive = Buffer::new(length * self.state.ranks());
        let send = Buffer::filled(self.rank, round, length);
        self.run(self.call(Function::named("all_gather"), length, &send, &receive)).unwrap();
        send.fill(|_| 0);
        receive.assert_bytes(|index| value(index / length, round, index % length));
        receive.fill(|_| 0);
    }

    fn broadcast(&self, round: usize, length: usize) {
        let (send, receive) = (Buffer::filled(self.rank, round, length), Buffer::new(length));
        self.run(self.call(Function::named("broadcast"), length, &send, &receive)).unwrap();
        send.fill(|_| 0);
        receive.assert_bytes(|index| value(0, round, index));
    }

    fn control_allgather(&self, round: usize) {
        let data = |rank| [value(rank, round, 0); EAGER];
        let own = data(self.rank);
        let all = self.run(control_allgather(&self.state, self.rank, ControlCall::Split, &own)).unwrap();
        assert!(all.iter().enumerate().all(|(rank, bytes)| *bytes == data(rank)));
    }

    fn context(&self) -> CallContext<'_> {
        CallContext { state: &self.state, rank: self.rank, peers: &self.peers }
    }

    async fn send(&self, peer: usize, buffer: &Buffer) -> Result {
        let message = Message { count: buffer.length, data_type: bytes() };
        SendMessage { message, peer, from: buffer.read_buf() }.run(self.context()).await
    }

    async fn recv(&self, peer: usize, buffer: &Buffer) -> Result {
        let message = Message { count: buffer.length, data_type: bytes() };
        RecvMessage { message, peer, to: buffer.write_buf() }.run(self.context()).await
    }

    fn signal(&self, peer: usize, index: usize) -> Result {
        self.run(Signal { peer, index }.run(self.context()))
    }

    fn wait_signal(&self, peer: usize, index: usize) -> Result {
        let wait = WaitSignals(vec![AwaitedSignal { signal: Signal { peer, index }, count: 1 }]);
        self.run(wait.run(self.context()))
    }

    /// Makes one send after another, or receives them.
    fn messages(&self, peer: usize, sender: usize, lengths: &[usize]) {
        for (round, length) in lengths.iter().enumerate() {
            if self.rank == sender {
                let buffer = Buffer::filled(self.rank, round, *length);
                self.run(self.send(peer, &buffer)).unwrap();
                buffer.fill(|_| 0);
            } else {
                let buffer = Buffer::new(*length);
                self.run(self.recv(peer, &buffer)).unwrap();
                buffer.assert_bytes(|index| value(sender, round, index));
            }
        }
    }
}

/// Runs `body` as every rank in all interleavings with at most `preemptions` preemptions. Ranks with equal numbers in
/// `processes` share a process.
fn explore(processes: &[u64], preemptions: usize, body: impl Fn(Rank) + Send + Sync + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(preemptions);
    builder.max_branches = 100_000;
    let processes: Vec<_> = processes.iter().map(|pid| Process { pid: *pid, identity: 0 }).collect();
    let number = Arc::new(Mutex::new(0));
    let (counted, body) = (Arc::clone(&number), Arc::new(body));
    builder.check(move || {
        *counted.lock().unwrap() += 1;
        let state = Arc::new(SharedState::create(&processes).unwrap().0);
        let spawn = |rank| {
            let rank = Rank { state: Arc::clone(&state), rank, peers: PeerAccess::default() };
            let body = Arc::clone(&body);
            loom::thread::Builder::new().stack_size(0x8000).spawn(move || body(rank)).unwrap()
        };
        let threads: Vec<_> = (0..processes.len()).map(spawn).collect();
        threads.into_iter().for_each(|thread| thread.join().unwrap());
    });
    println!("{} interleavings", number.lock().unwrap());
}

/// Two ranks in one process, and in two.
const ONE_PROCESS: [u64; 2] = [1, 1];
const TWO_PROCESSES: [u64; 2] = [1, 2];

#[test]
fn data_belongs_to_its_step() {
    explore(&ONE_PROCESS, 3, |rank| (0..3).for_each(|round| rank.all_reduce(round, INLINE)));
    explore(&ONE_PROCESS, 3, |rank| (0..3).for_each(|round| rank.all_reduce(round, EAGER)));
}

#[test]
fn two_all_reduces_in_all_interleavings() {
    explore(&ONE_PROCESS, 255, |rank| (0..2).for_each(|round| rank.all_reduce(round, EAGER)));
}

#[test]
fn control_call_between_collectives() {
    explore(&ONE_PROCESS, 3, |rank| {
        rank.all_reduce(0, EAGER);
        rank.control_allgather(1);
        rank.all_reduce(2, INLINE);
    });
}

#[test]
fn three_ranks_see_each_others_records() {
    explore(&[1; 3], 0, |rank| (0..2).for_each(|round| rank.all_reduce(round, EAGER)));
}

#[test]
fn root_that_runs_ahead_waits_for_a_free_slot() {
    explore(&ONE_PROCESS, 3, |rank| (0..4).for_each(|round| rank.broadcast(round, EAGER)));
}

#[test]
fn all_reduce_after_a_broadcast_that_does_not_wait() {
    explore(&ONE_PROCESS, 3, |rank| {
        rank.broadcast(0, INLINE);
        rank.all_reduce(1, EAGER);
        rank.broadcast(2, EAGER);
    });
}

#[test]
fn stage_is_read_before_it_is_reused() {
    explore(&TWO_PROCESSES, 2, |rank| rank.all_reduce(0, 3 * STAGED));
}

#[test]
fn completed_call_ends_access_to_stages_and_buffers() {
    for processes in [TWO_PROCESSES, ONE_PROCESS] {
        explore(&processes, 2, |rank| {
            rank.all_reduce(0, STAGED);
            rank.all_gather(1, STAGED);
        });
    }
}

#[test]
fn failed_call_ends_access_to_buffers() {
    explore(&ONE_PROCESS, 2, |rank| {
        let (send, receive) = (Buffer::filled(rank.rank, 0, STAGED), Buffer::new(2 * STAGED));
        let mut call = pin!(rank.call(Function::named("all_gather"), STAGED, &send, &receive));
        if rank.rank == 1 {
            // Another thread aborts in the middle of the call.
            let outcome = call.as_mut().poll(&mut Context::from_waker(Waker::noop()));
            rank.state.set_abort(1, AbortReason::Aborted);
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

/// No memory of other processes is a part of these models.
const NOTHING: Exposed<'_> = Exposed { buffers: &[], windows: 0 };

#[test]
fn quiesced_memory_is_not_accessed() {
    explore(&[1; 3], 2, |rank| {
        let Rank { state, rank: own, .. } = &rank;
        // Represents a caller's memory.
        let target = state.staged(0, 0, 0, GRAIN);
        let source = target.as_read();
        match own {
            0 => {
                let waited = rank.run(state.wait(2, || false));
                assert_eq!(waited.unwrap_err().text, "rank 2 aborted the communicator");
                rank.run(state.quiesce(0, NOTHING));
                target.write(0, &[0; GRAIN]);
            }
            1 => {
                if let Ok(_access) = state.begin_access(1) {
                    source.read(0, &mut [0; GRAIN]);
                }
            }
            _ => state.set_abort(2, AbortReason::Aborted),
        }
    });
}

#[test]
fn memory_of_a_closed_window_is_not_accessed() {
    let opened = Mutex::new(None);
    explore(&ONE_PROCESS, 3, move |rank| {
        let Rank { state, rank: own, .. } = &rank;
        // Represents a caller's memory.
        let target = state.staged(0, 0, 0, GRAIN);
        if *own == 0 {
            let window = state.open_window(0).unwrap();
            *opened.lock().unwrap() = Some(window);
            rank.control_allgather(0);
            rank.run(state.close_window(0, window, NOTHING));
            target.write(0, &[0; GRAIN]);
        } else {
            rank.control_allgather(0);
            let window = opened.lock().unwrap().take().unwrap();
            for _ in 0..2 {
                let _access = state.begin_access(1).unwrap();
                if state.is_window_open(0, window) {
                    target.write(0, &[1; GRAIN]);
                }
            }
        }
    });
}

/// Short ones, one that is longer than the ring, and some that are copied from the sender's buffer.
#[test]
fn messages_arrive_once_and_in_order() {
    explore(&ONE_PROCESS, 2, |rank| rank.messages(1 - rank.rank, 0, &[24, 40, 5]));
    explore(&TWO_PROCESSES, 1, |rank| rank.messages(1 - rank.rank, 0, &[66]));
    explore(&ONE_PROCESS, 3, |rank| rank.messages(1 - rank.rank, 0, &[5, 80, 70]));
}

#[test]
fn messages_in_both_directions_do_not_block_each_other() {
    explore(&ONE_PROCESS, 2, |rank| {
        let peer = 1 - rank.rank;
        let (sent, received) = (Buffer::filled(rank.rank, 0, 80), Buffer::new(80));
        let (mut send, mut receive) = (pin!(rank.send(peer, &sent)), pin!(rank.recv(peer, &received)));
        let (mut to_send, mut to_receive) = (true, true);
        rank.run(poll_fn(|context| {
            to_send = to_send && send.as_mut().poll(context).map(Result::unwrap).is_pending();
            to_receive = to_receive && receive.as_mut().poll(context).map(Result::unwrap).is_pending();
            if to_send || to_receive { Poll::Pending } else { Poll::Ready(()) }
        }));
        received.assert_bytes(|index| value(peer, 0, index));
    });
}

#[test]
fn message_after_nack_arrives_through_the_ring() {
    // No process has the number 0, so the receiver cannot map its memory.
    explore(&[0, std::process::id().into()], 1, |rank| {
        let buffer = Buffer::shared(66);
        if rank.rank == 0 {
            buffer.fill(|index| value(0, 0, index));
            rank.run(rank.send(1, &buffer)).unwrap();
        } else {
            rank.run(rank.recv(0, &buffer)).unwrap();
            buffer.assert_bytes(|index| value(0, 0, index));
        }
    });
}

/// A short send is dropped; a sender that waits gets the error.
#[test]
fn mismatched_message_is_reported_and_the_next_arrives() {
    for (processes, preemptions, sent, waits) in
        [(ONE_PROCESS, 3, 24, false), (ONE_PROCESS, 3, 80, true), (TWO_PROCESSES, 1, 90, true)]
    {
        explore(&processes, preemptions, move |rank| {
            let (code, text) = if rank.rank == 0 {
                let buffer = Buffer::filled(0, 0, sent);
                let code = rank.run(rank.send(1, &buffer));
                buffer.fill(|_| 0);
                (code, format!("rank 1, which called ncclRecv(count {}, ncclUint8)", sent - 1))
            } else {
                let code = rank.run(rank.recv(0, &Buffer::new(sent - 1)));
                (code, format!("rank 0 called ncclSend(count {sent}, ncclUint8)"))
            };
            assert_eq!(code.is_err(), waits || rank.rank == 1);
            assert!(code.err().is_none_or(|error| error.text.contains(&text)));
            rank.messages(1 - rank.rank, 0, &[24]);
        });
    }
}

#[test]
fn signal_publishes_earlier_writes() {
    let target = Mutex::new(None);
    explore(&ONE_PROCESS, 3, move |rank| {
        let window = Buffer::new(2 * GRAIN);
        let part = |index: usize| window.write_buf().slice(index * GRAIN..(index + 1) * GRAIN);
        if rank.rank == 1 {
            *target.lock().unwrap() = Some([part(0), part(1)]);
            rank.control_allgather(0);
            for round in 0..2 {
                rank.wait_signal(0, 1).unwrap();
                let mut bytes = [0; GRAIN];
                part(round).as_read().read(0, &mut bytes);
                assert!(bytes.iter().enumerate().all(|(index, byte)| *byte == value(0, round, index)));
            }
            rank.signal(0, 1).unwrap();
        } else {
            rank.control_allgather(0);
            let parts = target.lock().unwrap().take().unwrap();
            for (round, to) in parts.into_iter().enumerate() {
                to.copy(Buffer::filled(0, round, GRAIN).read_buf(), false);
                rank.signal(1, 1).unwrap();
            }
            rank.wait_signal(1, 1).unwrap();
        }
    });
}

#[test]
fn work_before_departure_is_seen() {
    explore(&ONE_PROCESS, 3, |rank| {
        rank.all_reduce(0, EAGER);
        if rank.rank == 1 {
            rank.run(rank.send(0, &Buffer::filled(1, 1, 24))).unwrap();
            rank.signal(0, 0).unwrap();
            rank.state.depart(1);
            return;
        }
        let buffer = Buffer::new(24);
        rank.run(rank.recv(1, &buffer)).unwrap();
        buffer.assert_bytes(|index| value(1, 1, index));
        rank.wait_signal(1, 0).unwrap();
        let error = rank.wait_signal(1, 0).unwrap_err();
        assert!(error.text.starts_with("rank 1 has finalized or destroyed"));
        let error = rank.run(rank.recv(1, &buffer)).unwrap_err();
        assert!(error.text.starts_with("rank 1 has finalized or destroyed"));
        let (send, receive) = (Buffer::new(INLINE), Buffer::new(INLINE));
        let error = rank.run(rank.call(Function::ALL_REDUCE, INLINE, &send, &receive)).unwrap_err();
        assert!(error.text.starts_with("rank 1 has finalized or destroyed"));
    });
}

#[test]
fn abort_ends_waits_but_not_records_published_before() {
    explore(&ONE_PROCESS, 3, |rank| {
        let Rank { state, rank: own, .. } = &rank;
        let step = rank.run(state.next_step(*own)).unwrap();
        state.publish(*own, step, [7, 7], &[], None);
        if *own == 1 {
            state.set_abort(1, AbortReason::Aborted);
            return;
        }
        rank.run(state.wait_all(0, step)).unwrap();
        assert_eq!(state.call_args(1, step), [7, 7]);
        let error = rank.run(state.wait_all(0, step + 1)).unwrap_err();
        assert_eq!(error.text, "rank 1 aborted the communicator");
    });
}
