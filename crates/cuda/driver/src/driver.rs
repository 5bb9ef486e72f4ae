//! The driver: its state, behind one lock, and the threads that execute operations.

use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap};
use std::process;
use std::sync::{Arc, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use cudarc::driver::sys::CUresult::*;
use cudarc::driver::sys::{CUdevice, CUresult};

use crate::allocation::{Allocation, Allocations, Kind, Part};
use crate::capture::Captures;
use crate::clock::Clock;
use crate::config::{Config, Races};
use crate::context::{Context, Current};
use crate::device::Device;
use crate::error::Result;
use crate::event::Event;
use crate::fault;
use crate::finding::{self, Finding};
use crate::graph::Graph;
use crate::handle::{
    BackingId, ContextId, EventId, ExecId, GraphId, Handles, NodeId, PoolId, StreamId, UserObjectId,
};
use crate::interprocess::Import;
use crate::mapping::Mapping;
use crate::message;
use crate::operation::Work;
use crate::pool::Pool;
use crate::race::{Access, Detector, Race};
use crate::scheduler::{Begun, Executor, OperationId, Ordering, Point, Scheduler};
use crate::stack::Stack;
use crate::sync::{Condvar, Mutex, MutexGuard, thread};
use crate::user_object::{Destructors, References, UserObject};
use crate::virtual_memory::Backing;
use crate::visible;

#[derive(Debug)]
pub(crate) struct Stream {
    pub(crate) context: ContextId,
    pub(crate) flags: u32,
    pub(crate) priority: i32,
    /// Wakes the worker thread, once it is started.
    worker: Option<Arc<Condvar>>,
}

#[derive(Debug)]
pub(crate) struct State {
    pub(crate) scheduler: Scheduler<Work>,
    pub(crate) devices: Vec<Device>,
    /// The active contexts.
    pub(crate) contexts: BTreeMap<ContextId, Context>,
    /// The streams that are open or still have work.
    pub(crate) streams: BTreeMap<StreamId, Stream>,
    pub(crate) events: HashMap<EventId, Event>,
    pub(crate) allocations: Allocations,
    pub(crate) backings: BTreeMap<BackingId, Backing>,
    pub(crate) imports: Vec<Import>,
    pub(crate) pools: BTreeMap<PoolId, Pool>,
    pub(crate) captures: Captures<Action>,
    /// The graphs and the user objects that they reference.
    pub(crate) graphs: BTreeMap<GraphId, (Arc<Graph<Action>>, References)>,
    pub(crate) execs: BTreeMap<ExecId, Exec>,
    /// The program's own references.
    pub(crate) user_objects: References,
    pub(crate) destructors: Option<Destructors>,
    races: Option<Detector>,
    handles: Handles,
    threads: u64,
    calls: u64,
    last_call: Instant,
}

#[derive(Debug)]
pub(crate) struct Driver {
    pub(crate) config: Config,
    /// The physical device behind each visible one, see [`visible`].
    visible: Vec<usize>,
    state: Mutex<State>,
    /// Notifies waiting host threads of completed operations.
    done: Condvar,
    process: u32,
}

#[derive(Debug, Clone)]
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
}

/// The action of a graph node. Events are recorded and awaited on the launch stream.
#[derive(Debug)]
pub(crate) enum Action {
    Execute(Request),
    Record(EventId),
    Wait(EventId),
}

#[derive(Debug)]
pub(crate) struct Exec {
    pub(crate) graph: Arc<Graph<Action>>,
    pub(crate) flags: u64,
    /// The streams of all lanes but the first, which is the launch stream.
    pub(crate) streams: Vec<StreamId>,
    /// The user objects that the graph referenced when it was instantiated.
    pub(crate) references: References,
    /// The end of the last launch.
    pub(crate) last: Point,
}

pub(crate) const NON_BLOCKING: u32 = 1;

static DRIVER: OnceLock<Driver> = OnceLock::new();

impl Driver {
    pub(crate) fn init() -> Result<()> {
        if DRIVER.get().is_none() {
            let config = Config::from_env()?;
            let visible = visible::devices(config.devices);
            if visible.is_empty() {
                return Err(CUDA_ERROR_NO_DEVICE);
            }
            if config.reports_faults && !config.ignored.has(Finding::DeviceMemoryTouched) {
                fault::report()?;
            }
            if DRIVER.set(Self::new(config, visible)).is_ok() && config.seed.is_some() {
                let ticker = thread::Builder::new().name("cuda ticker".to_owned());
                let spawned = ticker.spawn(|| Self::get().map(Self::tick_forever));
                spawned.map_err(|_| CUDA_ERROR_OPERATING_SYSTEM)?;
            }
        }
        Self::get().map(|_| ())
    }

    pub(crate) fn get() -> Result<&'static Self> {
        let driver = DRIVER.get().ok_or(CUDA_ERROR_NOT_INITIALIZED)?;
        // A forked child has none of the threads, and perhaps a lock that nobody will ever release.
        if driver.process != process::id() {
            return Err(CUDA_ERROR_NOT_INITIALIZED);
        }
        Ok(driver)
    }

    pub(crate) fn new(config: Config, visible: Vec<usize>) -> Self {
        let mut handles = Handles::new();
        let mut pools = BTreeMap::new();
        let devices = (0..visible.len())
            .map(|device| {
                let pool = PoolId(handles.next());
                pools.insert(pool, Pool::new(device, true));
                Device {
                    primary: ContextId(handles.next()),
                    primary_flags: 0,
                    retained: 0,
                    default_pool: pool,
                    pool,
                }
            })
            .collect();
        let state = State {
            scheduler: Scheduler::new(config.seed),
            devices,
            contexts: BTreeMap::new(),
            streams: BTreeMap::new(),
            events: HashMap::new(),
            allocations: Allocations::new(config.device_memory),
            backings: BTreeMap::new(),
            imports: Vec::new(),
            pools,
            captures: Captures::new(),
            graphs: BTreeMap::new(),
            execs: BTreeMap::new(),
            user_objects: References::default(),
            destructors: None,
            races: (config.races != Races::Off).then(Detector::default),
            handles,
            threads: 0,
            calls: 0,
            last_call: Instant::now(),
        };
        Self { config, visible, state: Mutex::new(state), done: Condvar::new(), process: process::id() }
    }

    pub(crate) fn device(&self, device: CUdevice) -> Result<usize> {
        let device = usize::try_from(device).ok().filter(|&device| device < self.devices());
        device.ok_or(CUDA_ERROR_INVALID_DEVICE)
    }

    pub(crate) fn devices(&self) -> usize {
        self.visible.len()
    }

    pub(crate) fn physical(&self, device: usize) -> Result<usize> {
        self.visible.get(device).copied().ok_or(CUDA_ERROR_INVALID_DEVICE)
    }

    pub(crate) fn visible(&self, physical: usize) -> Option<usize> {
        self.visible.iter().position(|&device| device == physical)
    }

    /// Returns the device for another process's memory on a physical device. As in CUDA 10.1 and newer,
    /// memory of an invisible device can be opened; it is attributed to the current device.
    pub(crate) fn device_for_import(&self, state: &mut State, physical: usize) -> Result<usize> {
        if physical >= self.config.devices {
            return Err(CUDA_ERROR_INVALID_DEVICE);
        }
        match self.visible(physical) {
            Some(device) => Ok(device),
            None => Ok(state.context(Current::require()?)?.device),
        }
    }

    /// Takes the lock outside a CUDA call.
    pub(crate) fn lock(&self) -> MutexGuard<'_, State> {
        // Nothing panics with the lock held.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes the lock for a CUDA call. With a seed, some turns pass first.
    pub(crate) fn enter(&self) -> MutexGuard<'_, State> {
        let mut state = self.lock();
        state.calls += 1;
        if self.config.seed.is_some() {
            state.last_call = Instant::now();
            for _ in 0..state.scheduler.turns_during_call() {
                state = self.turn(state);
            }
        }
        state
    }

    /// Gives an operation a turn. If it is one of the library's, it is complete afterwards.
    fn turn<'a>(&'a self, mut state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
        state.scheduler.turn();
        self.wake_workers(&mut state);
        while state.scheduler.is_executing() {
            state = self.done.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        state
    }

    /// Gives turns while the program makes no calls.
    fn tick_forever(&self) {
        const PAUSE: Duration = Duration::from_millis(1);
        loop {
            std::thread::sleep(PAUSE);
            let state = self.lock();
            if state.scheduler.has_ready() && state.last_call.elapsed() > PAUSE {
                drop(self.turn(state));
            }
        }
    }

    fn wake_workers(&self, state: &mut State) {
        for stream in state.scheduler.take_startable() {
            if let Some(worker) = state.streams.get(&stream).and_then(|stream| stream.worker.as_ref()) {
                worker.notify_one();
            }
        }
    }

    /// Enqueues an operation on a stream, after its previous work and after `wait`. Returns the point after
    /// it.
    ///
    /// On a captured stream the operation becomes a graph node, and the returned point is empty.
    pub(crate) fn enqueue(
        &'static self,
        state: &mut State,
        stream: StreamId,
        wait: &Point,
        request: Request,
    ) -> Result<Point> {
        state.check(state.context_of(stream)?)?;
        if state.is_captured(stream)? {
            state.capture(stream, Action::Execute(request))?;
            return Ok(Point::default());
        }
        state.check_permissions(stream, &request)?;
        self.start_worker(state, stream)?;
        let Request { label, accesses, executor, work } = request;
        let position = state.scheduler.enqueue(stream, wait, executor, work);
        let position = position.ok_or(CUDA_ERROR_INVALID_HANDLE)?;
        let point = position.point.clone();
        let call = state.calls;
        if let Some(races) = &mut state.races {
            races.enqueue(position, call, label, stack(self.config), accesses);
        }
        self.wake_workers(state);
        Ok(point)
    }

    pub(crate) fn start_worker(&'static self, state: &mut State, stream: StreamId) -> Result<()> {
        let Some(entry) = state.streams.get_mut(&stream).filter(|entry| entry.worker.is_none()) else {
            return Ok(());
        };
        let signal = Arc::new(Condvar::new());
        let worker = thread::Builder::new().name(format!("cuda stream {:#x}", stream.0));
        let wake = Arc::clone(&signal);
        worker.spawn(move || self.work(stream, &wake)).map_err(|_| CUDA_ERROR_OUT_OF_MEMORY)?;
        entry.worker = Some(signal);
        Ok(())
    }

    /// Executes the operations of a stream until the stream is gone.
    fn work(&self, stream: StreamId, wake: &Condvar) {
        let mut state = self.lock();
        loop {
            if let Some(Begun { id, clock, executor, work }) = state.scheduler.start(stream) {
                state.begin(self.config, id, &clock);
                let context = state.context_of(stream);
                drop(state);
                match executor {
                    Executor::Host => Current::execute_function(|| work.execute()),
                    Executor::Library => work.execute(),
                    Executor::Peers => {
                        // For `libnccl_cuda_fail`.
                        let _ = context.map(Current::push);
                        work.execute();
                        let _ = Current::pop();
                    }
                }
                state = self.lock();
                state.scheduler.complete(id);
                self.wake_workers(&mut state);
                self.done.notify_all();
            } else if state.scheduler.is_gone(stream) {
                state.streams.remove(&stream);
                return;
            } else {
                state = wake.wait(state).unwrap_or_else(PoisonError::into_inner);
            }
        }
    }

    pub(crate) fn wait<'a>(
        &'a self,
        mut state: MutexGuard<'a, State>,
        point: &Point,
    ) -> MutexGuard<'a, State> {
        while !point.is_complete() {
            state = if state.scheduler.has_ready() {
                state.last_call = Instant::now();
                self.turn(state)
            } else {
                self.done.wait(state).unwrap_or_else(PoisonError::into_inner)
            };
        }
        state
    }

    /// Waits for a point. The host is then ordered after it.
    pub(crate) fn synchronize<'a>(
        &'a self,
        state: MutexGuard<'a, State>,
        point: &Point,
    ) -> MutexGuard<'a, State> {
        let mut state = self.wait(state, point);
        state.scheduler.tell_host(&point.clock());
        state
    }

    /// Whether the calling thread waits for its launches, see [`Config::blocks_launches`]. A host function
    /// must not wait.
    pub(crate) fn blocks_launches(&self) -> bool {
        self.config.blocks_launches && Current::check_is_no_function().is_ok()
    }

    pub(crate) fn synchronize_all<'a>(&'a self, mut state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
        let contexts = state.contexts.keys().copied().collect::<Vec<_>>();
        for context in contexts {
            let point = state.scheduler.point_of_context(context);
            state = self.synchronize(state, &point);
        }
        state
    }

    pub(crate) fn close_thread(&self, thread: u64) {
        let mut state = self.lock();
        let streams =
            state.contexts.values_mut().filter_map(|context| context.thread_streams.remove(&thread));
        for stream in streams.collect::<Vec<_>>() {
            state.close_stream(stream);
        }
        self.wake_workers(&mut state);
    }

    /// Waits for the work of a context, and frees its resources if it then `is_unused`.
    pub(crate) fn destroy_context<'a>(
        &'a self,
        state: MutexGuard<'a, State>,
        context: ContextId,
        is_unused: impl FnOnce(&State) -> bool,
    ) -> MutexGuard<'a, State> {
        let point = state.scheduler.point_of_context(context);
        let mut state = self.synchronize(state, &point);
        if !is_unused(&state) {
            return state;
        }
        state.contexts.remove(&context);
        let streams = state.streams.iter().filter(|(_, stream)| stream.context == context);
        let streams = streams.map(|(&id, _)| id).collect::<Vec<_>>();
        let captured = state.captures.discard(|stream| streams.contains(&stream));
        for stream in streams {
            state.close_stream(stream);
        }
        state.scheduler.forget_context(context);
        state.events.retain(|_, event| event.context != context);
        state.imports.retain(|import| import.context != context);
        for allocation in state.allocations.remove_context(context) {
            state.forget_allocation(&allocation);
        }
        self.wake_workers(&mut state);
        // The release of what was captured may call CUDA.
        drop(state);
        drop(captured);
        self.lock()
    }

    /// Reports leaks and the number of repeated races when the process exits.
    pub(crate) fn end(&self) {
        // A thread that reports has the lock, for ever if nobody reads what it writes.
        const TRIES: u32 = 100;
        let state = (0..TRIES).find_map(|_| {
            let state = self.state.try_lock().ok();
            if state.is_none() {
                std::thread::sleep(Duration::from_millis(1));
            }
            state
        });
        let Some(state) = state else { return };
        for (place, number) in state.races.iter().flat_map(Detector::repeated) {
            let were = if number == 1 { "operation was in a race" } else { "operations were in races" };
            self.say(
                place.finding,
                number,
                &format!("{number} more {were} {place}, as reported above"),
                true,
            );
        }
        for (finding, text) in state.leaks() {
            self.say(finding, 1, &format!("{text} before the process exits"), self.config.lists_leaks);
        }
    }

    /// Reports a finding unless it is ignored. Without `is_reported`, it is only appended to the findings
    /// file.
    pub(crate) fn say(&self, finding: Finding, count: u64, text: &str, is_reported: bool) {
        if self.config.ignored.has(finding) {
            return;
        }
        finding::append(finding, count, None, text, &[]);
        if is_reported {
            message::write(&format!("libnccl: {text} [{}]\n", finding.name()));
        }
    }

    pub(crate) fn wake(&self, state: &mut State) {
        self.wake_workers(state);
    }
}

impl State {
    pub(crate) fn next_handle(&mut self) -> u64 {
        self.handles.next()
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

    pub(crate) fn check(&self, context: ContextId) -> Result<()> {
        let context = self.contexts.get(&context).ok_or(CUDA_ERROR_CONTEXT_IS_DESTROYED)?;
        context
            .error
            .or_else(|| context.failures.values().next().map(|failure| failure.error))
            .map_or(Ok(()), Err)
    }

    pub(crate) fn current(&self) -> Result<ContextId> {
        let context = Current::require()?;
        self.check(context)?;
        Ok(context)
    }

    /// Returns the error of the current context, if there is a context.
    pub(crate) fn check_current(&self) -> Result<()> {
        Current::require().map_or(Ok(()), |context| self.check(context))
    }

    pub(crate) fn fail(&mut self, context: ContextId, error: CUresult) {
        if let Some(context) = self.contexts.get_mut(&context) {
            context.error.get_or_insert(error);
        }
    }

    pub(crate) fn open_context(&mut self, id: ContextId, device: usize, flags: u32) {
        let default_stream = self.open_stream(id, Ordering::Default, 0, 0);
        let context = Context {
            device,
            flags,
            default_stream,
            thread_streams: BTreeMap::new(),
            peers: Default::default(),
            error: None,
            failures: BTreeMap::new(),
        };
        self.contexts.insert(id, context);
    }

    pub(crate) fn open_stream(
        &mut self,
        context: ContextId,
        ordering: Ordering,
        flags: u32,
        priority: i32,
    ) -> StreamId {
        let id = StreamId(self.next_handle());
        let races = self.races.as_ref();
        self.scheduler
            .open(id, context, ordering, |component| races.is_some_and(|races| races.has(component)));
        self.streams.insert(id, Stream { context, flags, priority, worker: None });
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
                let thread = self.thread();
                if let Some(&stream) = self.context(id)?.thread_streams.get(&thread) {
                    return Ok(stream);
                }
                let stream = self.open_stream(id, Ordering::Blocking, 0, 0);
                self.context(id)?.thread_streams.insert(thread, stream);
                Ok(stream)
            }
            _ => {
                let stream = StreamId(handle as u64);
                if !self.scheduler.is_open(stream) {
                    return Err(CUDA_ERROR_INVALID_HANDLE);
                }
                Ok(stream)
            }
        }
    }

    pub(crate) fn thread(&mut self) -> u64 {
        let threads = &mut self.threads;
        let number = || {
            *threads += 1;
            *threads
        };
        let close = |number| {
            if let Ok(driver) = Driver::get() {
                driver.close_thread(number);
            }
        };
        Current::thread(number, close)
    }

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

    /// Returns whether a stream is captured.
    ///
    /// # Errors
    ///
    /// A default stream is implicitly ordered with a captured stream. The capture is invalidated.
    pub(crate) fn is_captured(&mut self, stream: StreamId) -> Result<bool> {
        if self.captures.of(stream).is_some() {
            return Ok(true);
        }
        let implied = self.captured_with(stream);
        if implied.is_empty() {
            return Ok(false);
        }
        implied.into_iter().for_each(|graph| self.captures.invalidate(graph));
        Err(CUDA_ERROR_STREAM_CAPTURE_IMPLICIT)
    }

    /// The captures that a default stream is implicitly ordered with.
    pub(crate) fn captured_with(&self, stream: StreamId) -> Vec<GraphId> {
        let Ok(context) = self.context_of(stream) else { return Vec::new() };
        if self.contexts.get(&context).is_none_or(|context| context.default_stream != stream) {
            return Vec::new();
        }
        let is_ordered = |stream: StreamId| {
            let stream = self.streams.get(&stream);
            stream.is_some_and(|stream| stream.context == context && stream.flags & NON_BLOCKING == 0)
        };
        let captured = self.captures.streams().filter(|&(stream, _)| is_ordered(stream));
        captured.map(|(_, graph)| graph).collect()
    }

    /// Whether the program created the stream and may destroy it.
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
                pool.add(length);
                pool.device
            }
            None => self.context(context)?.device,
        };
        let id = self.allocations.next_id();
        let address = mapping.address() as u64;
        Ok(self.allocations.insert(Allocation {
            id,
            kind,
            device,
            context,
            backing: None,
            is_imported: false,
            pool,
            flags,
            address,
            length,
            mapping: Some(mapping),
        }))
    }

    pub(crate) fn forget_allocation(&mut self, allocation: &Allocation) {
        if let Some(pool) = allocation.pool.and_then(|pool| self.pools.get_mut(&pool)) {
            pool.remove(allocation.length);
        }
        self.forget_races(allocation.id);
    }

    pub(crate) fn forget_races(&mut self, allocation: u64) {
        if let Some(races) = &mut self.races {
            races.forget(allocation);
        }
    }

    /// Looks for races of a host call, which frees memory, with operations that the host has not waited for.
    pub(crate) fn check_host(&mut self, config: Config, function: &'static str, part: &Part, length: usize) {
        let access = Access::new(part, length, true);
        let call = self.calls;
        if let Some(detector) = &mut self.races {
            let found = detector.check_host(self.scheduler.host(), function, call, stack(config), &access);
            self.report(config, found);
        }
    }

    fn begin(&mut self, config: Config, operation: OperationId, clock: &Clock) {
        if let Some(detector) = &mut self.races {
            let found = detector.begin(operation, clock, self.scheduler.host());
            self.report(config, found);
        }
    }

    /// Reports races; of those between the same functions only the first.
    fn report(&mut self, config: Config, found: Vec<Race>) {
        for race in found.into_iter().filter(|race| !config.ignored.has(race.finding())) {
            if race.is_new {
                let (text, stacks) = (race.to_string(), race.stacks());
                finding::append(race.finding(), 1, None, &text, &stacks);
                let (head, sides) = text.split_once('\n').unwrap_or((&text, ""));
                let mut report = format!("libnccl: {head} [{}]\n", race.finding().name());
                for (side, frames) in sides.lines().zip(&stacks) {
                    report = frames
                        .iter()
                        .fold(report + side + "\n", |report, frame| report + "        " + frame + "\n");
                }
                message::write(&report);
            }
            if config.races == Races::Error {
                for stream in race.streams() {
                    if let Ok(context) = self.context_of(stream) {
                        self.fail(context, CUDA_ERROR_ASSERT);
                    }
                }
            }
        }
    }
}

fn stack(config: Config) -> Option<Arc<Stack>> {
    config.notes_stacks.then(|| Arc::new(Stack::capture()))
}
