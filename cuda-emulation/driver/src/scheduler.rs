//! Streams, the order of their operations, and the work that the host has waited for.
//!
//! Everything here is decided under the driver's lock; nothing is executed.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::{Arc, OnceLock};

use crate::handle::{ContextId, StreamId};

#[cfg(test)]
thread_local! {
    /// The number of comparisons of clocks with steps on this thread.
    pub(crate) static COMPARISONS: std::cell::Cell<u64> = const { std::cell::Cell::new(0) };
}

/// A stream's index in clocks. It is reused once the host has waited for the end of a destroyed stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Component(pub(crate) usize);

/// An operation of a stream, or the part of it that peers may observe before it ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Step {
    pub(crate) component: Component,
    /// The number of the step, from 1.
    pub(crate) number: u64,
}

/// The number of preceding steps of each component.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Clock(Vec<u64>);

impl Clock {
    fn get(&self, component: Component) -> u64 {
        self.0.get(component.0).copied().unwrap_or(0)
    }

    #[cfg(test)]
    pub(crate) fn components(&self) -> usize {
        self.0.len()
    }

    pub(crate) fn includes(&self, step: Step) -> bool {
        #[cfg(test)]
        COMPARISONS.set(COMPARISONS.get() + 1);
        self.get(step.component) >= step.number
    }

    pub(crate) fn includes_all(&self, other: &Self) -> bool {
        other.0.iter().enumerate().all(|(index, &number)| self.get(Component(index)) >= number)
    }

    pub(crate) fn advance(&mut self, Step { component: Component(index), number }: Step) {
        if self.0.len() <= index {
            self.0.resize(index + 1, 0);
        }
        self.0[index] = self.0[index].max(number);
    }

    pub(crate) fn join(&mut self, other: &Self) {
        if self.0.len() < other.0.len() {
            self.0.resize(other.0.len(), 0);
        }
        for (own, &number) in self.0.iter_mut().zip(&other.0) {
            *own = (*own).max(number);
        }
    }
}

/// The order of a stream relative to the default stream of its context.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ordering {
    Default,
    Blocking,
    NonBlocking,
}

/// The id of an operation, ascending in the order of enqueueing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct OperationId(pub(crate) u64);

/// The executor of an operation, which determines what its end implies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Executor {
    /// This library: the operation ends soon after it has begun.
    Library,
    /// A host function, which may wait for other host threads.
    Host,
    /// A function that may wait for operations of other streams and processes.
    Peers,
}

struct End {
    id: OperationId,
    /// The work that precedes the end. Set when the operation completes.
    clock: OnceLock<Clock>,
}

#[derive(Clone, Default)]
pub(crate) struct Point {
    ends: Vec<Arc<End>>,
    /// Completed work that precedes the point, in addition to `ends`.
    clock: Clock,
}

impl Point {
    pub(crate) fn join(&mut self, other: &Self) {
        self.ends.extend_from_slice(&other.ends);
        self.clock.join(&other.clock);
    }

    pub(crate) fn is_complete(&self) -> bool {
        self.ends.iter().all(|end| end.clock.get().is_some())
    }

    pub(crate) fn clock(&self) -> Clock {
        let mut clock = self.clock.clone();
        self.ends.iter().filter_map(|end| end.clock.get()).for_each(|end| clock.join(end));
        clock
    }
}

#[derive(Clone)]
pub(crate) struct Position {
    pub(crate) id: OperationId,
    pub(crate) stream: StreamId,
    pub(crate) step: Step,
    /// The first step, which peers may observe before the end.
    pub(crate) first_step: Step,
    /// The operations that the host had waited for when it was enqueued.
    pub(crate) host: Arc<Clock>,
    pub(crate) point: Point,
}

pub(crate) struct Begun<W> {
    pub(crate) id: OperationId,
    pub(crate) clock: Clock,
    pub(crate) executor: Executor,
    pub(crate) work: W,
}

struct Stream {
    context: ContextId,
    ordering: Ordering,
    queue: VecDeque<OperationId>,
    last: Step,
    end: Point,
    is_closed: bool,
}

struct Pending<W> {
    stream: StreamId,
    executor: Executor,
    first_step: Step,
    step: Step,
    after: Point,
    /// The work that precedes the operation, once it has begun.
    clock: Clock,
    end: Arc<End>,
    /// The work, or `None` once it has been executed.
    work: Option<W>,
    waits_for: usize,
    successors: Vec<OperationId>,
    /// Set once the operation had its last turn.
    may_start: bool,
}

/// The operations that only wait for their turns, and the generator of their order.
struct Turns {
    generator: fastrand::Rng,
    /// The streams of these operations, each with the number of turns before the last turn.
    ready: Vec<(StreamId, u32)>,
}

impl Turns {
    fn new(seed: u64) -> Self {
        Self { generator: fastrand::Rng::with_seed(seed), ready: Vec::new() }
    }

    fn add(&mut self, stream: StreamId) {
        // Some operations take very long, so that others overtake them by far.
        let is_long = self.generator.u32(..8) == 0;
        let turns = if is_long { self.generator.u32(8..64) } else { self.generator.u32(..4) };
        self.ready.push((stream, turns));
    }

    /// Gives a ready operation a turn. Returns its stream if it was the last turn.
    fn turn(&mut self) -> Option<StreamId> {
        let drawn = self.generator.usize(..self.ready.len());
        let (_, turns) = &mut self.ready[drawn];
        match turns.checked_sub(1) {
            Some(rest) => *turns = rest,
            None => return Some(self.ready.remove(drawn).0),
        }
        None
    }
}

/// The work of a context's destroyed streams.
#[derive(Debug, Default)]
struct Gone {
    clock: Clock,
    /// The part of blocking streams, which precedes the default stream.
    blocking: Clock,
}

pub(crate) struct Scheduler<W> {
    streams: BTreeMap<StreamId, Stream>,
    gone: BTreeMap<ContextId, Gone>,
    gone_steps: Vec<Step>,
    /// Last steps from which new streams continue: the host has waited for them, or they are no longer compared.
    unused: Vec<Step>,
    /// The number of `gone_steps` at which to look for unused steps.
    look_at: usize,
    components: usize,
    pending: HashMap<OperationId, Pending<W>>,
    last: u64,
    /// The operations that the host has waited for.
    host: Arc<Clock>,
    /// The work that precedes the operations with peers that have begun.
    peers: Clock,
    turns: Option<Turns>,
    /// The number of the library's operations that had their last turn and are not complete.
    executing: usize,
    startable: Vec<StreamId>,
}

impl<W> Scheduler<W> {
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

    /// Adds a stream. `is_compared` returns whether steps of a component may still be compared.
    pub(crate) fn open(
        &mut self,
        stream: StreamId,
        context: ContextId,
        ordering: Ordering,
        is_compared: impl Fn(Component) -> bool,
    ) {
        let fresh = Stream {
            context,
            ordering,
            queue: VecDeque::new(),
            last: self.unused_step(is_compared),
            end: Point::default(),
            is_closed: false,
        };
        self.streams.insert(stream, fresh);
    }

    fn unused_step(&mut self, is_compared: impl Fn(Component) -> bool) -> Step {
        if self.unused.is_empty() && self.gone_steps.len() >= self.look_at {
            let is_used = |step: &mut Step| !self.host.includes(*step) && is_compared(step.component);
            self.unused.extend(self.gone_steps.extract_if(.., |step| !is_used(step)));
            // So often that the looking takes no longer than the streams.
            self.look_at = 2 * self.gone_steps.len();
        }
        self.unused.pop().unwrap_or_else(|| {
            self.components += 1;
            Step { component: Component(self.components - 1), number: 0 }
        })
    }

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

    pub(crate) fn forget_context(&mut self, context: ContextId) {
        self.gone.remove(&context);
    }

    pub(crate) fn is_open(&self, stream: StreamId) -> bool {
        self.streams.get(&stream).is_some_and(|stream| !stream.is_closed)
    }

    pub(crate) fn is_gone(&self, stream: StreamId) -> bool {
        !self.streams.contains_key(&stream)
    }

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

    /// Returns the end of a stream's work. For the default stream, this includes the work for which it would wait.
    pub(crate) fn point_of_stream(&self, stream: StreamId) -> Option<Point> {
        let queue = self.streams.get(&stream).filter(|queue| !queue.is_closed)?;
        match queue.ordering {
            Ordering::Default => self.end_of(stream),
            Ordering::Blocking | Ordering::NonBlocking => Some(queue.end.clone()),
        }
    }

    pub(crate) fn point_of_context(&self, context: ContextId) -> Point {
        let gone = self.gone.get(&context).map(|gone| gone.clock.clone());
        let mut end = Point { ends: Vec::new(), clock: gone.unwrap_or_default() };
        for stream in self.streams.values().filter(|stream| stream.context == context) {
            end.join(&stream.end);
        }
        end
    }

    pub(crate) fn host(&self) -> &Clock {
        &self.host
    }

    /// Orders the host, and all operations enqueued from now on, after a clock.
    pub(crate) fn advance_host(&mut self, clock: &Clock) {
        if self.host.includes_all(clock) {
            return;
        }
        Arc::make_mut(&mut self.host).join(clock);
        // All later operations are ordered after the host anyway.
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

    pub(crate) fn start(&mut self, stream: StreamId) -> Option<Begun<W>> {
        let id = *self.streams.get(&stream)?.queue.front()?;
        let pending = self.pending.get_mut(&id).filter(|pending| pending.may_start)?;
        let work = pending.work.take()?;
        pending.clock.join(&std::mem::take(&mut pending.after).clock());
        let (clock, executor) = (pending.clock.clone(), pending.executor);
        match executor {
            Executor::Library => {}
            // It can notify host threads that what precedes it is complete.
            Executor::Host => self.advance_host(&clock),
            Executor::Peers => {
                self.peers.join(&clock);
                self.peers.advance(pending.first_step);
            }
        }
        Some(Begun { id, clock, executor, work })
    }

    pub(crate) fn complete(&mut self, id: OperationId) {
        let Some(Pending { stream, executor, step, mut clock, end, successors, .. }) =
            self.pending.remove(&id)
        else {
            return;
        };
        clock.advance(step);
        match executor {
            Executor::Library => self.executing = self.executing.saturating_sub(1),
            // It may have waited for host threads or peers.
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

    /// Gives a ready operation a turn. Returns whether there was one.
    pub(crate) fn turn(&mut self) -> bool {
        let Some(turns) = self.turns.as_mut().filter(|turns| !turns.ready.is_empty()) else { return false };
        let front = turns.turn().and_then(|stream| self.streams.get(&stream)?.queue.front());
        if let Some(pending) = front.and_then(|id| self.pending.get_mut(id)) {
            pending.may_start = true;
            self.executing += usize::from(pending.executor == Executor::Library);
            self.startable.push(pending.stream);
        }
        true
    }

    /// Draws the number of turns that pass during a call.
    pub(crate) fn turns_during_call(&mut self) -> u32 {
        self.turns.as_mut().map_or(0, |turns| turns.generator.u32(..4))
    }

    pub(crate) fn has_ready(&self) -> bool {
        self.turns.as_ref().is_some_and(|turns| !turns.ready.is_empty())
    }

    pub(crate) fn is_executing(&self) -> bool {
        self.executing > 0
    }

    pub(crate) fn take_startable(&mut self) -> Vec<StreamId> {
        std::mem::take(&mut self.startable)
    }
}
