//! Streams, the order between their operations, and what of it the host knows.
//!
//! Everything here is decided under the driver's lock; nothing is executed.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;

use crate::clock::Clock;
use crate::handle::{ContextId, StreamId};
use crate::turns::Turns;

/// The order of a stream with the default stream of its context.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ordering {
    /// The default stream, which waits for all blocking streams, as they do for it.
    Default,
    /// A stream that waits for the default stream.
    Blocking,
    /// A stream without order to the default stream.
    NonBlocking,
}

/// An operation's number, in the order of enqueueing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct OperationId(pub(crate) u64);

/// The executor of an operation, which says what can be known of its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Executor {
    /// This library: it ends soon after it began.
    Library,
    /// A function of the program, which may wait for the program's other threads.
    Host,
    /// A function that may wait for other streams' and processes' operations, and thus order itself with them.
    Peers,
}

/// A moment in the history of streams.
#[derive(Debug, Clone, Default)]
pub(crate) struct Point {
    /// The operations that end last before it.
    pub(crate) operations: Vec<OperationId>,
    /// All that comes before it.
    pub(crate) clock: Clock,
    /// The operations with peers among them.
    pub(crate) peers: Clock,
}

impl Point {
    /// Adds all that comes before another point.
    pub(crate) fn join(&mut self, other: &Self) {
        self.operations.extend_from_slice(&other.operations);
        self.clock.join(&other.clock);
        self.peers.join(&other.peers);
    }
}

/// The place of an operation among all others.
#[derive(Debug, Clone)]
pub(crate) struct Position {
    /// The operation.
    pub(crate) id: OperationId,
    /// Its stream.
    pub(crate) stream: StreamId,
    /// Its number on the stream, from 1.
    pub(crate) number: u64,
    /// The operations before it.
    pub(crate) before: Arc<Clock>,
    /// The operations with peers before it.
    pub(crate) peers: Arc<Clock>,
}

#[derive(Debug)]
struct Stream {
    context: ContextId,
    ordering: Ordering,
    queue: VecDeque<OperationId>,
    issued: u64,
    completed: u64,
    /// The end of what was enqueued.
    end: Point,
    is_closed: bool,
}

#[derive(Debug)]
struct Pending<W> {
    stream: StreamId,
    number: u64,
    before: Arc<Clock>,
    executor: Executor,
    /// Its work, until it is executed.
    work: Option<W>,
    /// The number of operations that it waits for.
    waits_for: usize,
    /// The operations that wait for it.
    successors: Vec<OperationId>,
    /// True if its turn has come.
    may_start: bool,
}

/// The streams of all contexts, with operations whose work is a `W`.
#[derive(Debug)]
pub(crate) struct Scheduler<W> {
    streams: BTreeMap<StreamId, Stream>,
    /// For each context, what blocking streams that are gone leave the default stream to wait for.
    gone: BTreeMap<ContextId, Point>,
    /// Streams that are gone; the host does not know whether their last operations are complete.
    unknown: BTreeMap<StreamId, u64>,
    pending: HashMap<OperationId, Pending<W>>,
    last: u64,
    /// The operations that the host knows to be complete.
    host: Clock,
    turns: Option<Turns>,
    /// The number of the library's operations that may start or have started, if operations take turns.
    executing: usize,
    startable: Vec<StreamId>,
    begun: Vec<OperationId>,
}

impl<W> Scheduler<W> {
    /// Creates a scheduler; with a seed, the order of operations is drawn from it.
    pub(crate) fn new(seed: Option<u64>) -> Self {
        Self {
            streams: BTreeMap::new(),
            gone: BTreeMap::new(),
            unknown: BTreeMap::new(),
            pending: HashMap::new(),
            last: 0,
            host: Clock::default(),
            turns: seed.map(Turns::new),
            executing: 0,
            startable: Vec::new(),
            begun: Vec::new(),
        }
    }

    /// Adds a stream.
    pub(crate) fn open(&mut self, stream: StreamId, context: ContextId, ordering: Ordering) {
        let fresh = Stream {
            context,
            ordering,
            queue: VecDeque::new(),
            issued: 0,
            completed: 0,
            end: Point::default(),
            is_closed: false,
        };
        self.streams.insert(stream, fresh);
    }

    /// Closes a stream, which goes when its operations are complete.
    pub(crate) fn close(&mut self, stream: StreamId) {
        let Some(closed) = self.streams.get_mut(&stream) else { return };
        closed.is_closed = true;
        if closed.queue.is_empty() {
            self.remove(stream);
        }
        // A worker that sleeps has to see that its stream is closed.
        self.startable.push(stream);
    }

    fn remove(&mut self, stream: StreamId) {
        let Some(mut removed) = self.streams.remove(&stream) else { return };
        removed.end.operations.clear();
        if removed.ordering == Ordering::Blocking {
            self.gone.entry(removed.context).or_default().join(&removed.end);
        }
        if self.host.get(stream) < removed.issued {
            self.unknown.insert(stream, removed.issued);
        }
    }

    /// Forgets a context, whose streams are all closed.
    pub(crate) fn forget_context(&mut self, context: ContextId) {
        self.gone.remove(&context);
    }

    /// Returns whether a stream is open.
    pub(crate) fn is_open(&self, stream: StreamId) -> bool {
        self.streams.get(&stream).is_some_and(|stream| !stream.is_closed)
    }

    /// Returns whether a stream is gone: closed, and all its operations complete.
    pub(crate) fn is_gone(&self, stream: StreamId) -> bool {
        !self.streams.contains_key(&stream)
    }

    /// Enqueues an operation on an open stream, after what is before it there and after `wait`.
    pub(crate) fn enqueue(
        &mut self,
        stream: StreamId,
        wait: &Point,
        executor: Executor,
        work: W,
    ) -> Option<Position> {
        let mut before = self.end_of(stream)?;
        before.join(wait);
        before.clock.join(&self.host);
        self.drop_known(&mut before);
        let operations = std::mem::take(&mut before.operations);

        self.last += 1;
        let id = OperationId(self.last);
        let queue = self.streams.get_mut(&stream)?;
        queue.issued += 1;
        let number = queue.issued;
        let position = Position {
            id,
            stream,
            number,
            before: Arc::new(before.clock.clone()),
            peers: Arc::new(before.peers.clone()),
        };
        queue.queue.push_back(id);
        queue.end = before;
        queue.end.operations.push(id);
        queue.end.clock.advance(stream, number);
        if executor == Executor::Peers {
            queue.end.peers.advance(stream, number);
        }

        let mut waits_for = 0;
        for earlier in operations {
            if let Some(earlier) = self.pending.get_mut(&earlier) {
                earlier.successors.push(id);
                waits_for += 1;
            }
        }
        let pending = Pending {
            stream,
            number,
            before: Arc::clone(&position.before),
            executor,
            work: Some(work),
            waits_for,
            successors: Vec::new(),
            may_start: false,
        };
        self.pending.insert(id, pending);
        if waits_for == 0 {
            self.make_ready(id);
        }
        Some(position)
    }

    /// Leaves out what every later operation comes after anyway.
    fn drop_known(&self, point: &mut Point) {
        point.operations.retain(|operation| self.pending.contains_key(operation));
        point.operations.sort_unstable();
        point.operations.dedup();
        let exists = |stream| self.streams.contains_key(&stream) || self.unknown.contains_key(&stream);
        point.clock.retain(|stream, _| exists(stream));
        point.peers.retain(|stream, _| exists(stream));
    }

    /// The point that an operation comes after if it is enqueued on the stream now.
    fn end_of(&self, stream: StreamId) -> Option<Point> {
        let queue = self.streams.get(&stream).filter(|queue| !queue.is_closed)?;
        let mut end = queue.end.clone();
        let counterpart = match queue.ordering {
            Ordering::Default => Ordering::Blocking,
            Ordering::Blocking => Ordering::Default,
            Ordering::NonBlocking => return Some(end),
        };
        for other in self.streams.values() {
            if other.context == queue.context && other.ordering == counterpart {
                end.join(&other.end);
            }
        }
        if let (Ordering::Default, Some(gone)) = (queue.ordering, self.gone.get(&queue.context)) {
            end.join(gone);
        }
        Some(end)
    }

    /// The end of what was enqueued on a stream, and for the default stream of what it would wait for.
    pub(crate) fn point_of_stream(&self, stream: StreamId) -> Option<Point> {
        let queue = self.streams.get(&stream).filter(|queue| !queue.is_closed)?;
        match queue.ordering {
            Ordering::Default => self.end_of(stream),
            Ordering::Blocking | Ordering::NonBlocking => Some(queue.end.clone()),
        }
    }

    /// The end of what was enqueued in a context.
    pub(crate) fn point_of_context(&self, context: ContextId) -> Point {
        let mut end = self.gone.get(&context).cloned().unwrap_or_default();
        for stream in self.streams.values().filter(|stream| stream.context == context) {
            end.join(&stream.end);
        }
        end
    }

    /// Returns whether everything before a point is complete.
    pub(crate) fn is_complete(&self, point: &Point) -> bool {
        !point.operations.iter().any(|operation| self.pending.contains_key(operation))
    }

    /// Notes that the host knows everything before a point to be complete.
    pub(crate) fn tell_host(&mut self, clock: &Clock) {
        self.host.join(clock);
        let host = &self.host;
        self.unknown.retain(|&stream, &mut issued| host.get(stream) < issued);
        let (streams, unknown) = (&self.streams, &self.unknown);
        let exists = |stream| streams.contains_key(&stream) || unknown.contains_key(&stream);
        self.host.retain(|stream, _| exists(stream));
        let host = &self.host;
        for point in self.gone.values_mut() {
            // All later operations come after what the host knows anyway.
            point.clock.retain(|stream, number| exists(stream) && host.get(stream) < number);
            point.peers.retain(|stream, number| exists(stream) && host.get(stream) < number);
        }
        self.gone.retain(|_, point| !point.clock.is_empty());
    }

    /// Returns whether the host knows that an operation is complete.
    pub(crate) fn is_known_to_host(&self, stream: StreamId, number: u64) -> bool {
        let is_forgotten = !self.streams.contains_key(&stream) && !self.unknown.contains_key(&stream);
        is_forgotten || self.host.get(stream) >= number
    }

    /// Returns whether the host may know that an operation is complete because a peer told it.
    pub(crate) fn may_be_known(&self, stream: StreamId, number: u64) -> bool {
        self.has_completed(stream, number)
            && self.streams.get(&stream).is_none_or(|queue| queue.end.peers.get(stream) >= number)
    }

    /// Returns whether an operation is complete, known or not.
    pub(crate) fn has_completed(&self, stream: StreamId, number: u64) -> bool {
        self.streams.get(&stream).is_none_or(|stream| stream.completed >= number)
    }

    fn make_ready(&mut self, id: OperationId) {
        let Some(pending) = self.pending.get_mut(&id) else { return };
        match &mut self.turns {
            Some(turns) => turns.add(pending.stream),
            None => {
                pending.may_start = true;
                self.startable.push(pending.stream);
            }
        }
    }

    /// Starts the next operation of a stream, if it may start.
    pub(crate) fn start(&mut self, stream: StreamId) -> Option<(OperationId, W)> {
        let id = *self.streams.get(&stream)?.queue.front()?;
        let pending = self.pending.get_mut(&id).filter(|pending| pending.may_start)?;
        let work = pending.work.take()?;
        if self.turns.is_none() {
            self.begun.push(id);
        }
        Some((id, work))
    }

    /// Notes that an operation that was started is complete.
    pub(crate) fn complete(&mut self, id: OperationId) {
        let Some(pending) = self.pending.remove(&id) else { return };
        if pending.executor == Executor::Library {
            self.executing = self.executing.saturating_sub(1);
        }
        if let Some(stream) = self.streams.get_mut(&pending.stream) {
            stream.queue.pop_front();
            stream.completed = pending.number;
            if stream.is_closed && stream.queue.is_empty() {
                self.remove(pending.stream);
            }
        }
        for successor in pending.successors {
            let Some(waiting) = self.pending.get_mut(&successor) else { continue };
            waiting.waits_for -= 1;
            if waiting.waits_for == 0 {
                self.make_ready(successor);
            }
        }
    }

    /// Everything before a function of the program that is not complete yet.
    pub(crate) fn before_host_function(&self, id: OperationId) -> Option<Arc<Clock>> {
        let pending = self.pending.get(&id).filter(|pending| pending.executor == Executor::Host);
        pending.map(|pending| Arc::clone(&pending.before))
    }

    /// Gives a ready operation a turn, if operations take turns; returns whether one had it.
    pub(crate) fn turn(&mut self) -> bool {
        let Some(turn) = self.turns.as_mut().and_then(Turns::turn) else { return false };
        let Some(&id) = self.streams.get(&turn.stream).and_then(|stream| stream.queue.front()) else {
            return true;
        };
        if turn.begins {
            self.begun.push(id);
        }
        if let (true, Some(pending)) = (turn.executes, self.pending.get_mut(&id)) {
            pending.may_start = true;
            self.executing += usize::from(pending.executor == Executor::Library);
            self.startable.push(turn.stream);
        }
        true
    }

    /// Draws how many turns pass during a call.
    pub(crate) fn turns_during_call(&mut self) -> u32 {
        self.turns.as_mut().map_or(0, Turns::during_call)
    }

    /// Returns whether an operation waits for its turn.
    pub(crate) fn has_ready(&self) -> bool {
        self.turns.as_ref().is_some_and(Turns::has_ready)
    }

    /// Returns whether an operation of the library had its last turn and is not complete yet.
    pub(crate) fn is_executing(&self) -> bool {
        self.executing > 0
    }

    /// Takes the streams whose workers have something to do.
    pub(crate) fn take_startable(&mut self) -> Vec<StreamId> {
        std::mem::take(&mut self.startable)
    }

    /// Takes the operations that have begun.
    pub(crate) fn take_begun(&mut self) -> Vec<OperationId> {
        std::mem::take(&mut self.begun)
    }
}
