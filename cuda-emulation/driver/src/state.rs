//! The state that the driver's lock protects: devices, contexts, streams and all that they have.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::ffi::CString;
use std::sync::Arc;
use std::time::Instant;

use cudarc::driver::sys::CUresult;
use cudarc::driver::sys::CUresult::*;

use crate::access::Access;
use crate::allocation::{Allocation, Allocations, Backing, Import, Kind, Permission, Pool, READ_WRITE};
use crate::callback::{Destructors, References, UserObject};
use crate::capture::{Captures, Graph};
use crate::config::{Config, Races};
use crate::current::Current;
use crate::error::{Result, ensure, print};
use crate::event::{Event, LastRecord, Record, SharedEvent};
use crate::handle::{BackingId, ContextId, EventId, ExecId, GraphId, NodeId, PoolId, StreamId, UserObjectId};
use crate::mapping::Mapping;
use crate::operation::Work;
use crate::race::Detector;
use crate::scheduler::{Clock, Executor, OperationId, Ordering, Point, Scheduler};
use cuda_common::stack::Stack;

// Locks and threads, which loom replaces in `--cfg loom` tests.
#[cfg(all(test, loom))]
pub(crate) use loom::{
    sync::{Condvar, Mutex, MutexGuard},
    thread,
};
#[cfg(not(all(test, loom)))]
pub(crate) use std::{
    sync::{Condvar, Mutex, MutexGuard},
    thread,
};

pub(crate) struct Device {
    /// The handle of the primary context, active or not.
    pub(crate) primary: ContextId,
    pub(crate) primary_flags: u32,
    /// The number of times that the primary context is retained.
    pub(crate) retained: usize,
    pub(crate) default_pool: PoolId,
    pub(crate) pool: PoolId,
}

#[derive(Default)]
pub(crate) struct Context {
    pub(crate) device: usize,
    pub(crate) flags: u32,
    pub(crate) default_stream: StreamId,
    pub(crate) thread_streams: BTreeMap<u64, StreamId>,
    /// The contexts with peer access from this one.
    pub(crate) peers: BTreeSet<ContextId>,
    pub(crate) error: Option<CUresult>,
    /// Errors until `Interface::recover`, by the number passed to `Interface::fail`.
    pub(crate) failures: BTreeMap<u64, Failure>,
}

pub(crate) struct Failure {
    pub(crate) error: CUresult,
    /// The operation, and why it failed.
    pub(crate) reason: CString,
}

pub(crate) struct Stream {
    pub(crate) context: ContextId,
    pub(crate) ordering: Ordering,
    pub(crate) priority: i32,
    /// Wakes the worker thread, once it is started.
    pub(crate) worker: Option<Arc<Condvar>>,
}

#[derive(Clone)]
pub(crate) struct Request {
    /// The called function, for messages.
    pub(crate) label: Cow<'static, str>,
    pub(crate) accesses: Vec<Access>,
    pub(crate) executor: Executor,
    pub(crate) work: Work,
}

impl Request {
    pub(crate) fn new(label: &'static str, accesses: Vec<Access>, work: Work) -> Self {
        Self { label: Cow::Borrowed(label), accesses, executor: Executor::Library, work }
    }

    /// Returns an operation without accesses.
    pub(crate) fn of(label: &'static str, work: Work) -> Self {
        Self::new(label, Vec::new(), work)
    }
}

/// The action of a graph node. Events are recorded and awaited on the launch stream.
pub(crate) enum Action {
    Execute(Request),
    Record(EventId),
    Wait(EventId),
}

pub(crate) struct Exec {
    pub(crate) graph: Arc<Graph<Action>>,
    pub(crate) flags: u64,
    /// The streams of all lanes but the first, which is the launch stream.
    pub(crate) streams: Vec<StreamId>,
    /// The user objects that the graph referenced when it was instantiated.
    pub(crate) references: References,
    pub(crate) last: Point,
}

impl Exec {
    pub(crate) fn memory(&self) -> impl Iterator<Item = &Arc<Allocation>> {
        let requests = self.graph.nodes.iter().filter_map(|node| match &node.action {
            Action::Execute(request) => Some(request),
            Action::Record(_) | Action::Wait(_) => None,
        });
        requests.flat_map(|request| &request.accesses).flat_map(Access::allocations)
    }
}

pub(crate) struct State {
    pub(crate) config: Config,
    pub(crate) scheduler: Scheduler<Work>,
    pub(crate) devices: Vec<Device>,
    pub(crate) contexts: BTreeMap<ContextId, Context>,
    /// The streams that are open or still have work.
    pub(crate) streams: BTreeMap<StreamId, Stream>,
    pub(crate) events: HashMap<EventId, Event>,
    /// The last destroyed interprocess events, which other processes may be about to open.
    destroyed_events: VecDeque<Arc<SharedEvent>>,
    pub(crate) allocations: Allocations,
    pub(crate) backings: BTreeMap<BackingId, Backing>,
    pub(crate) imports: Vec<Import>,
    pub(crate) pools: BTreeMap<PoolId, Pool>,
    pub(crate) captures: Captures<Action>,
    /// The graphs and the user objects that they reference.
    pub(crate) graphs: BTreeMap<GraphId, (Arc<Graph<Action>>, References)>,
    pub(crate) execs: BTreeMap<ExecId, Exec>,
    pub(crate) user_objects: References,
    pub(crate) destructors: Option<Destructors>,
    pub(crate) races: Option<Detector>,
    last_handle: u64,
    pub(crate) calls: u64,
    pub(crate) last_call: Instant,
}

impl State {
    pub(crate) fn new(config: Config, devices: usize) -> Self {
        let mut state = Self {
            config,
            scheduler: Scheduler::new(config.seed),
            devices: Vec::new(),
            contexts: BTreeMap::new(),
            streams: BTreeMap::new(),
            events: HashMap::new(),
            destroyed_events: VecDeque::new(),
            allocations: Allocations::new(config.device_memory),
            backings: BTreeMap::new(),
            imports: Vec::new(),
            pools: BTreeMap::new(),
            captures: Captures::new(),
            graphs: BTreeMap::new(),
            execs: BTreeMap::new(),
            user_objects: References::default(),
            destructors: None,
            races: (config.races != Races::Off).then(Detector::default),
            last_handle: 0x1000,
            calls: 0,
            last_call: Instant::now(),
        };
        for device in 0..devices {
            let (pool, primary) = (PoolId(state.next_handle()), ContextId(state.next_handle()));
            state.pools.insert(pool, Pool { device, is_default: true, ..Pool::default() });
            state.devices.push(Device { primary, primary_flags: 0, retained: 0, default_pool: pool, pool });
        }
        state
    }

    /// Returns a new handle. Handles of all kinds are distinct, and none is small.
    pub(crate) fn next_handle(&mut self) -> u64 {
        self.last_handle += 0x10;
        self.last_handle
    }

    pub(crate) fn context(&mut self, context: ContextId) -> Result<&mut Context> {
        self.contexts.get_mut(&context).ok_or(CUDA_ERROR_INVALID_CONTEXT)
    }

    pub(crate) fn context_of(&self, stream: StreamId) -> Result<ContextId> {
        Ok(self.streams.get(&stream).ok_or(CUDA_ERROR_INVALID_HANDLE)?.context)
    }

    pub(crate) fn event(&self, event: EventId) -> Result<&Event> {
        self.events.get(&event).ok_or(CUDA_ERROR_INVALID_HANDLE)
    }

    /// Destroys an event and returns its context. Its handles for other processes stay valid until 1024 more interprocess events
    /// are destroyed. CUDA does not define their use, but torchft sends a handle and destroys the event before its peer has
    /// opened the handle.
    pub(crate) fn destroy_event(&mut self, event: EventId) -> Result<ContextId> {
        const KEPT: usize = 1024;
        let Event { context, shared, .. } = self.events.remove(&event).ok_or(CUDA_ERROR_INVALID_HANDLE)?;
        self.destroyed_events.extend(shared);
        if self.destroyed_events.len() > KEPT {
            self.destroyed_events.pop_front();
        }
        Ok(context)
    }

    pub(crate) fn check(&self, context: ContextId) -> Result<()> {
        let context = self.contexts.get(&context).ok_or(CUDA_ERROR_CONTEXT_IS_DESTROYED)?;
        let failure = context.failures.values().next().map(|failure| failure.error);
        context.error.or(failure).map_or(Ok(()), Err)
    }

    /// Returns the current context, which must be active and without an error.
    pub(crate) fn current(&self) -> Result<ContextId> {
        let context = Current::require()?;
        self.check(context)?;
        Ok(context)
    }

    /// Returns the error of the current context, if there is a context.
    pub(crate) fn check_current(&self) -> Result<()> {
        Current::get().map_or(Ok(()), |context| self.check(context))
    }

    /// Gives a context a sticky error, unless it has one.
    pub(crate) fn fail(&mut self, context: ContextId, error: CUresult) {
        if let Some(context) = self.contexts.get_mut(&context) {
            context.error.get_or_insert(error);
        }
    }

    pub(crate) fn open_context(&mut self, id: ContextId, device: usize, flags: u32) {
        let default_stream = self.open_stream(id, Ordering::Default, 0);
        self.contexts.insert(id, Context { device, flags, default_stream, ..Context::default() });
    }

    pub(crate) fn open_stream(&mut self, context: ContextId, ordering: Ordering, priority: i32) -> StreamId {
        let id = StreamId(self.next_handle());
        let races = self.races.as_ref();
        let is_compared = |component| races.is_some_and(|races| races.kept.has(component));
        self.scheduler.open(id, context, ordering, is_compared);
        self.streams.insert(id, Stream { context, ordering, priority, worker: None });
        id
    }

    pub(crate) fn close_stream(&mut self, stream: StreamId) {
        self.scheduler.close(stream);
        if self.streams.get(&stream).is_some_and(|stream| stream.worker.is_none()) {
            self.streams.remove(&stream);
        }
    }

    /// Resolves a handle: a created stream, or a default stream of the current context.
    pub(crate) fn stream(&mut self, handle: usize) -> Result<StreamId> {
        const DEFAULT: usize = 0;
        const LEGACY: usize = 1;
        const PER_THREAD: usize = 2;
        match handle {
            DEFAULT | LEGACY => {
                let context = self.current()?;
                Ok(self.context(context)?.default_stream)
            }
            PER_THREAD => {
                let id = self.current()?;
                let thread = Current::thread();
                if let Some(&stream) = self.context(id)?.thread_streams.get(&thread) {
                    return Ok(stream);
                }
                let stream = self.open_stream(id, Ordering::Blocking, 0);
                self.context(id)?.thread_streams.insert(thread, stream);
                Ok(stream)
            }
            _ => {
                let stream = StreamId(handle as u64);
                self.scheduler.is_open(stream).then_some(stream).ok_or(CUDA_ERROR_INVALID_HANDLE)
            }
        }
    }

    /// Resolves the handle of a stream whose context has no error.
    pub(crate) fn working_stream(&mut self, handle: usize) -> Result<(StreamId, ContextId)> {
        let stream = self.stream(handle)?;
        let context = self.context_of(stream)?;
        self.check(context)?;
        Ok((stream, context))
    }

    /// Instantiates a graph, with a new stream for each captured one but the first.
    pub(crate) fn instantiate(&mut self, graph: GraphId, flags: u64) -> Result<ExecId> {
        let (graph, references) = self.graphs.get(&graph).cloned().ok_or(CUDA_ERROR_INVALID_VALUE)?;
        graph.lanes.iter().try_for_each(|&context| self.check(context))?;
        let others = graph.lanes.iter().skip(1);
        let streams = others.map(|&context| self.open_stream(context, Ordering::NonBlocking, 0)).collect();
        let id = ExecId(self.next_handle());
        self.execs.insert(id, Exec { graph, flags, streams, references, last: Point::default() });
        Ok(id)
    }

    /// Returns whether the program created the stream and may destroy it.
    pub(crate) fn is_own_stream(&self, stream: StreamId) -> bool {
        self.streams.contains_key(&stream)
            && self.scheduler.is_open(stream)
            && !self.contexts.values().any(|context| {
                context.default_stream == stream || context.thread_streams.values().any(|&own| own == stream)
            })
    }

    pub(crate) fn allocate(
        &mut self,
        context: ContextId,
        kind: Kind,
        pool: Option<PoolId>,
        flags: u32,
        length: usize,
        mapping: Mapping,
    ) -> Result<Arc<Allocation>> {
        let device = match pool.and_then(|pool| self.pools.get_mut(&pool)) {
            Some(pool) => {
                pool.used += length as u64;
                pool.high = pool.high.max(pool.used);
                pool.device
            }
            None => self.context(context)?.device,
        };
        let allocation = Allocation::new(kind, device, context, mapping.address() as u64, length);
        Ok(self.allocations.insert(Allocation { pool, flags, mapping: Some(mapping), ..allocation }))
    }

    pub(crate) fn remove_allocation(&mut self, address: u64) -> Option<Arc<Allocation>> {
        let removed = self.allocations.remove(address)?;
        if let Some(pool) = removed.pool.and_then(|pool| self.pools.get_mut(&pool)) {
            pool.used = pool.used.saturating_sub(removed.length as u64);
        }
        self.forget_races(removed.id);
        Some(removed)
    }

    pub(crate) fn forget_races(&mut self, allocation: u64) {
        if let Some(races) = &mut self.races {
            races.forget(allocation);
        }
    }

    /// Captures the stack of a call, if stacks are reported.
    pub(crate) fn stack(&self) -> Option<Arc<Stack>> {
        (self.config.notes_stacks && self.races.is_some()).then(|| Arc::new(Stack::capture()))
    }

    /// Looks for races between a host call that frees an allocation and operations for which the host has not waited.
    pub(crate) fn check_host(&mut self, function: &'static str, allocation: &Arc<Allocation>) {
        let stack = self.stack();
        if let Some(races) = &mut self.races {
            let access = Access::whole(allocation);
            let found = races.check_host(self.scheduler.host(), function, self.calls, stack, &access);
            self.report(found);
        }
    }

    /// Looks for races between an operation that begins and operations that do not precede it.
    pub(crate) fn begin(&mut self, operation: OperationId, clock: &Clock) {
        if let Some(races) = &mut self.races {
            let found = races.begin(operation, clock, self.scheduler.host());
            self.report(found);
        }
    }

    pub(crate) fn permission(&self, allocation: &Allocation, device: usize) -> Permission {
        let all = self.allocations.permissions.get(&allocation.address);
        all.and_then(|all| all.get(&device)).copied().unwrap_or(0)
    }

    /// Checks that an operation is permitted to access mapped memory.
    ///
    /// # Errors
    /// Returns an error if the access is not permitted. The context then gets a sticky error.
    pub(crate) fn check_permissions(&mut self, stream: StreamId, request: &Request) -> Result<()> {
        let context = self.context_of(stream)?;
        let device = self.context(context)?.device;
        // Either device may do a copy between devices.
        let is_peers = request.label.starts_with("cuMemcpyPeer");
        let accesses = request.accesses.iter();
        let mut all = accesses.flat_map(|access| access.allocations().map(|one| (one, access.writes)));
        let forbidden = all.find(|(one, writes)| {
            let may = |device| match self.permission(one, device) {
                READ_WRITE => true,
                permission => permission > 0 && !writes,
            };
            one.backing.is_some() && !may(device) && !(is_peers && may(one.device))
        });
        let Some((one, writes)) = forbidden else { return Ok(()) };
        print(&format!(
            "libnccl: fault: {} {} {}, to which cuMemSetAccess has given device {device} no such access\n",
            request.label,
            if writes { "writes" } else { "reads" },
            one.description()
        ));
        self.fail(context, CUDA_ERROR_ILLEGAL_ADDRESS);
        Err(CUDA_ERROR_ILLEGAL_ADDRESS)
    }
}

/// Calls while streams are captured. Calls that may wait are errors then, because captured work is not executed. Such a call
/// invalidates the capture, which `cuStreamEndCapture` reports.
impl State {
    pub(crate) fn capture(&mut self, stream: StreamId, action: Action) -> Result<()> {
        let node = NodeId(self.next_handle());
        self.captures.add(stream, node, action)
    }

    pub(crate) fn user_object(&self, id: UserObjectId) -> Result<Arc<UserObject>> {
        let of_graphs = self.graphs.values().map(|(_, references)| references);
        let of_execs = self.execs.values().map(|exec| &exec.references);
        let mut all = [&self.user_objects].into_iter().chain(of_graphs).chain(of_execs);
        let object = all.find_map(|references| references.get(id)).or_else(|| self.captures.user_object(id));
        object.cloned().ok_or(CUDA_ERROR_INVALID_VALUE)
    }

    pub(crate) fn references(&mut self, graph: GraphId) -> Result<&mut References> {
        let references = self.graphs.get_mut(&graph).map(|(_, references)| references);
        references.or_else(|| self.captures.references(graph)).ok_or(CUDA_ERROR_INVALID_VALUE)
    }

    /// Returns whether a stream is captured. If it is a default stream that is implicitly ordered with a captured stream,
    /// invalidates that capture and returns an error.
    pub(crate) fn is_captured(&mut self, stream: StreamId) -> Result<bool> {
        if self.captures.of(stream).is_some() {
            return Ok(true);
        }
        self.fail_captures(self.captured_with(stream), CUDA_ERROR_STREAM_CAPTURE_IMPLICIT)?;
        Ok(false)
    }

    /// Returns the captures with which a default stream is implicitly ordered.
    pub(crate) fn captured_with(&self, stream: StreamId) -> Vec<GraphId> {
        let Ok(context) = self.context_of(stream) else { return Vec::new() };
        if self.contexts.get(&context).is_none_or(|context| context.default_stream != stream) {
            return Vec::new();
        }
        let is_ordered = |stream: StreamId| {
            let stream = self.streams.get(&stream);
            stream.is_some_and(|stream| stream.context == context && stream.ordering != Ordering::NonBlocking)
        };
        let captured = self.captures.streams().filter(|&(stream, _)| is_ordered(stream));
        captured.map(|(_, graph)| graph).collect()
    }

    fn fail_captures(&mut self, graphs: Vec<GraphId>, error: CUresult) -> Result<()> {
        graphs.iter().for_each(|&graph| self.captures.invalidate(graph));
        ensure(graphs.is_empty(), error)
    }

    /// Checks that a stream is not captured, for calls that cannot be nodes.
    pub(crate) fn check_not_captured(&mut self, stream: StreamId) -> Result<()> {
        if self.is_captured(stream)? {
            let graph = self.captures.point(stream)?.graph;
            self.fail_captures(vec![graph], CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED)?;
        }
        Ok(())
    }

    /// Checks that no stream of a context is captured, for calls that wait for all of them.
    pub(crate) fn check_context_not_captured(&mut self, context: ContextId) -> Result<()> {
        let is_own = |stream| self.context_of(stream) == Ok(context);
        let captured = self.captures.streams().filter(|&(stream, _)| is_own(stream));
        let captured = captured.map(|(_, graph)| graph).collect();
        self.fail_captures(captured, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED)
    }

    /// Checks that the calling thread may wait for streams: no capture prohibits it, and the thread does not execute a host
    /// function.
    pub(crate) fn check_may_wait(&mut self) -> Result<()> {
        Current::check_is_no_function()?;
        if self.captures.is_empty() {
            return Ok(());
        }
        let prohibiting = self.captures.prohibiting(Current::thread(), Current::capture_mode());
        self.fail_captures(prohibiting, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED)
    }

    /// Returns the last record of an event.
    ///
    /// # Errors
    /// Returns an error if the record is captured. This also invalidates the capture.
    pub(crate) fn record_to_wait_for(&mut self, event: EventId) -> Result<Option<Record>> {
        match self.event(event)?.last.clone() {
            LastRecord::Never => Ok(None),
            LastRecord::Enqueued(record) => Ok(Some(record)),
            LastRecord::Captured(point) => {
                self.captures.invalidate(point.graph);
                Err(CUDA_ERROR_CAPTURED_EVENT)
            }
        }
    }
}
