//! Streams, the order between their operations, and what of it the host knows.
//!
//! Everything here is decided under the driver's lock; nothing is executed.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::{Arc, OnceLock};

use crate::clock::{Clock, Component, Step};
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

/// The end of an operation.
#[derive(Debug)]
struct End {
    id: OperationId,
    /// All that comes before, from then on.
    clock: OnceLock<Clock>,
}

/// A moment in the history of streams.
#[derive(Debug, Clone, Default)]
pub(crate) struct Point {
    /// The ends of the last operations before it.
    ends: Vec<Arc<End>>,
    /// All that comes before it besides, which is complete.
    clock: Clock,
}

impl Point {
    /// Moves the point behind another one.
    pub(crate) fn join(&mut self, other: &Self) {
        self.ends.extend_from_slice(&other.ends);
        self.clock.join(&other.clock);
    }

    /// Returns whether everything before the point is complete.
    pub(crate) fn is_complete(&self) -> bool {
        self.ends.iter().all(|end| end.clock.get().is_some())
    }

    /// Everything before the point that is complete.
    pub(crate) fn clock(&self) -> Clock {
        let mut clock = self.clock.clone();
        self.ends.iter().filter_map(|end| end.clock.get()).for_each(|end| clock.join(end));
        clock
    }
}

/// The place of an operation among all others.
#[derive(Debug, Clone)]
pub(crate) struct Position {
    /// The operation.
    pub(crate) id: OperationId,
    /// Its stream.
    pub(crate) stream: StreamId,
    /// Its last step.
    pub(crate) step: Step,
    /// Its first step, which its peers can know before its end.
    pub(crate) first_step: Step,
    /// The operations that the host knew to be complete when it was enqueued.
    pub(crate) host: Arc<Clock>,
    /// The point behind it.
    pub(crate) point: Point,
}

/// An operation that begins.
#[derive(Debug)]
pub(crate) struct Begun<W> {
    /// The operation.
    pub(crate) id: OperationId,
    /// All that comes before it.
    pub(crate) clock: Clock,
    /// Its executor.
    pub(crate) executor: Executor,
    /// Its work.
    pub(crate) work: W,
}

#[derive(Debug)]
struct Stream {
    context: ContextId,
    ordering: Ordering,
    queue: VecDeque<OperationId>,
    /// Its last step.
    last: Step,
    /// The end of what was enqueued.
    end: Point,
    is_closed: bool,
}

#[derive(Debug)]
struct Pending<W> {
    stream: StreamId,
    executor: Executor,
    first_step: Step,
    step: Step,
    /// The point that it comes after.
    after: Point,
    /// All that comes before it, once it has begun.
    clock: Clock,
    end: Arc<End>,
    /// Its work, until it is executed.
    work: Option<W>,
    /// The number of operations that it waits for.
    waits_for: usize,
    /// The operations that wait for it.
    successors: Vec<OperationId>,
    /// True if its turn has come.
    may_start: bool,
}

/// The past of the streams of a context that are gone.
#[derive(Debug, Default)]
struct Gone {
    /// All that comes before their ends.
    clock: Clock,
    /// The part of blocking streams, which the default stream comes after.
    blocking: Clock,
}

/// The streams of all contexts, with operations whose work is a `W`.
#[derive(Debug)]
pub(crate) struct Scheduler<W> {
    streams: BTreeMap<StreamId, Stream>,
    gone: BTreeMap<ContextId, Gone>,
    /// The last steps of streams that are gone.
    gone_steps: Vec<Step>,
    /// The last steps from which a new stream can go on: the host knows that they are complete, or nothing asks for them.
    unused: Vec<Step>,
    /// The number of last steps from which on it is worth while to look for unused ones.
    look_at: usize,
    components: usize,
    pending: HashMap<OperationId, Pending<W>>,
    last: u64,
    /// The operations that the host knows to be complete.
    host: Arc<Clock>,
    /// All that operations with peers can know of each other: it came before those that have begun.
    peers: Clock,
    turns: Option<Turns>,
    /// The number of the library's operations that may start or have started, if operations take turns.
    executing: usize,
    startable: Vec<StreamId>,
}

impl<W> Scheduler<W> {
    /// Creates a scheduler; with a seed, the order of operations is drawn from it.
    pub(crate) fn new(seed: Option<u64>) -> Self {
        Self {
            streams: BTreeMap::new(),
            gone: BTreeMap::new(),
            gone_steps: Vec::new(),
            unused: Vec::new(),
            look_at: 0,
            components: 0,
            pending: HashMap::new(),
            last: 0,
            host: Arc::default(),
            peers: Clock::default(),
            turns: seed.map(Turns::new),
            executing: 0,
            startable: Vec::new(),
        }
    }

    /// Adds a stream. Of a component that `is_asked_for`, somebody may want to know later what comes after its steps.
    pub(crate) fn open(
        &mut self,
        stream: StreamId,
        context: ContextId,
        ordering: Ordering,
        is_asked_for: impl Fn(Component) -> bool,
    ) {
        let fresh = Stream {
            context,
            ordering,
            queue: VecDeque::new(),
            last: self.unused_step(is_asked_for),
            end: Point::default(),
            is_closed: false,
        };
        self.streams.insert(stream, fresh);
    }

    /// The step that a new stream goes on from.
    fn unused_step(&mut self, is_asked_for: impl Fn(Component) -> bool) -> Step {
        if self.unused.is_empty() && self.gone_steps.len() >= self.look_at {
            let is_used = |step: &mut Step| !self.host.includes(*step) && is_asked_for(step.component);
            self.unused.extend(self.gone_steps.extract_if(.., |step| !is_used(step)));
            // So often that the looking takes no longer than the streams.
            self.look_at = 2 * self.gone_steps.len();
        }
        self.unused.pop().unwrap_or_else(|| {
            self.components += 1;
            Step { component: Component(self.components - 1), number: 0 }
        })
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
        let Some(removed) = self.streams.remove(&stream) else { return };
        self.gone_steps.push(removed.last);
        let end = removed.end.clock();
        if self.host.includes_all(&end) {
            return;
        }
        let gone = self.gone.entry(removed.context).or_default();
        gone.clock.join(&end);
        if removed.ordering == Ordering::Blocking {
            gone.blocking.join(&end);
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
        let mut after = self.end_of(stream)?;
        after.join(wait);
        self.last += 1;
        let id = OperationId(self.last);
        let end = Arc::new(End { id, clock: OnceLock::new() });
        let point = Point { ends: vec![Arc::clone(&end)], clock: Clock::default() };
        let queue = self.streams.get_mut(&stream)?;
        queue.queue.push_back(id);
        queue.end = point.clone();
        queue.last.number += 1;
        let first_step = queue.last;
        queue.last.number += u64::from(executor == Executor::Peers);
        let step = queue.last;

        let mut waits_for = 0;
        for earlier in &after.ends {
            if let Some(earlier) = self.pending.get_mut(&earlier.id) {
                earlier.successors.push(id);
                waits_for += 1;
            }
        }
        let host = Arc::clone(&self.host);
        let pending = Pending {
            stream,
            executor,
            first_step,
            step,
            after,
            clock: (*host).clone(),
            end,
            work: Some(work),
            waits_for,
            successors: Vec::new(),
            may_start: false,
        };
        self.pending.insert(id, pending);
        if waits_for == 0 {
            self.make_ready(id);
        }
        Some(Position { id, stream, step, first_step, host, point })
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
            end.clock.join(&gone.blocking);
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
        let gone = self.gone.get(&context).map(|gone| gone.clock.clone());
        let mut end = Point { ends: Vec::new(), clock: gone.unwrap_or_default() };
        for stream in self.streams.values().filter(|stream| stream.context == context) {
            end.join(&stream.end);
        }
        end
    }

    /// The operations that the host knows to be complete.
    pub(crate) fn host(&self) -> &Clock {
        &self.host
    }

    /// Notes that the host knows everything that a clock includes to be complete.
    pub(crate) fn tell_host(&mut self, clock: &Clock) {
        if self.host.includes_all(clock) {
            return;
        }
        Arc::make_mut(&mut self.host).join(clock);
        // All later operations come after what the host knows anyway.
        self.gone.retain(|_, gone| !self.host.includes_all(&gone.clock));
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
    pub(crate) fn start(&mut self, stream: StreamId) -> Option<Begun<W>> {
        let id = *self.streams.get(&stream)?.queue.front()?;
        let pending = self.pending.get_mut(&id).filter(|pending| pending.may_start)?;
        let work = pending.work.take()?;
        pending.clock.join(&std::mem::take(&mut pending.after).clock());
        let (clock, executor) = (pending.clock.clone(), pending.executor);
        match executor {
            Executor::Library => {}
            // It can tell the program's threads that what is before it is complete.
            Executor::Host => self.tell_host(&clock),
            Executor::Peers => {
                self.peers.join(&clock);
                self.peers.advance(pending.first_step);
            }
        }
        Some(Begun { id, clock, executor, work })
    }

    /// Notes that an operation that was started is complete.
    pub(crate) fn complete(&mut self, id: OperationId) {
        let Some(Pending { stream, executor, step, mut clock, end, successors, .. }) =
            self.pending.remove(&id)
        else {
            return;
        };
        clock.advance(step);
        match executor {
            Executor::Library => self.executing = self.executing.saturating_sub(1),
            // It may have waited for what the program's threads knew, or its peers.
            Executor::Host => clock.join(&self.host),
            Executor::Peers => clock.join(&self.peers),
        }
        // Nothing else sets it.
        let _ = end.clock.set(clock);
        if let Some(queue) = self.streams.get_mut(&stream) {
            queue.queue.pop_front();
            if queue.is_closed && queue.queue.is_empty() {
                self.remove(stream);
            }
        }
        for successor in successors {
            let Some(waiting) = self.pending.get_mut(&successor) else { continue };
            waiting.waits_for -= 1;
            if waiting.waits_for == 0 {
                self.make_ready(successor);
            }
        }
    }

    /// Gives a ready operation a turn, if operations take turns; returns whether one had it.
    pub(crate) fn turn(&mut self) -> bool {
        let Some(turn) = self.turns.as_mut().and_then(Turns::turn) else { return false };
        let front = self.streams.get(&turn.stream).and_then(|stream| stream.queue.front());
        let front = front.filter(|_| turn.executes).and_then(|id| self.pending.get_mut(id));
        if let Some(pending) = front {
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
}
