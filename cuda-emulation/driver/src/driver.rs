//! The driver: its state, behind one lock, and the threads that execute operations.

use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap};
use std::process;
use std::sync::{Arc, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use cuda_common::finding::{self, Finding};
use cuda_common::stack::Stack;
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
use crate::sync::{Condvar, Mutex, MutexGuard, thread};
use crate::user_object::{Destructors, References, UserObject};
use crate::virtual_memory::Backing;
use crate::visible;

/// A stream, beyond what its order needs.
#[derive(Debug)]
pub(crate) struct Stream {
    /// Its context.
    pub(crate) context: ContextId,
    /// Its flags.
    pub(crate) flags: u32,
    /// Its priority.
    pub(crate) priority: i32,
    /// Wakes its worker, once there is one.
    worker: Option<Arc<Condvar>>,
}

/// The state that the lock protects.
#[derive(Debug)]
pub(crate) struct State {
    /// The order of operations.
    pub(crate) scheduler: Scheduler<Work>,
    /// The devices.
    pub(crate) devices: Vec<Device>,
    /// The contexts that are active.
    pub(crate) contexts: BTreeMap<ContextId, Context>,
    /// The streams that are open or still have work.
    pub(crate) streams: BTreeMap<StreamId, Stream>,
    /// The events.
    pub(crate) events: HashMap<EventId, Event>,
    /// The memory.
    pub(crate) allocations: Allocations,
    /// The memory that can be mapped.
    pub(crate) backings: BTreeMap<BackingId, Backing>,
    /// The memory of other processes that was opened.
    pub(crate) imports: Vec<Import>,
    /// The pools.
    pub(crate) pools: BTreeMap<PoolId, Pool>,
    /// The captures that have not ended.
    pub(crate) captures: Captures<Action>,
    /// The graphs, with the user objects that they keep.
    pub(crate) graphs: BTreeMap<GraphId, (Arc<Graph<Action>>, References)>,
    /// The graphs that can be launched.
    pub(crate) execs: BTreeMap<ExecId, Exec>,
    /// The program's own references to user objects.
    pub(crate) user_objects: References,
    /// The thread of destructors, once there is one.
    pub(crate) destructors: Option<Destructors>,
    races: Option<Detector>,
    handles: Handles,
    threads: u64,
    calls: u64,
    last_call: Instant,
}

/// The driver of a process.
#[derive(Debug)]
pub(crate) struct Driver {
    /// Its settings.
    pub(crate) config: Config,
    /// The physical device behind each device of the program, see [`visible`].
    visible: Vec<usize>,
    state: Mutex<State>,
    /// Tells waiting host threads that operations are complete.
    done: Condvar,
    process: u32,
}

/// An operation to enqueue.
#[derive(Debug, Clone)]
pub(crate) struct Request {
    /// Words for messages: the function that was called.
    pub(crate) label: Cow<'static, str>,
    /// The memory that it uses.
    pub(crate) accesses: Vec<Access>,
    /// Its executor.
    pub(crate) executor: Executor,
    /// Its work.
    pub(crate) work: Work,
}

impl Request {
    /// An operation of the library.
    pub(crate) fn new(label: &'static str, accesses: Vec<Access>, work: Work) -> Self {
        Self { label: Cow::Borrowed(label), accesses, executor: Executor::Library, work }
    }
}

/// The action of a node of a graph.
#[derive(Debug)]
pub(crate) enum Action {
    /// Executes an operation.
    Execute(Request),
    /// Records an event, as if it were on the stream of the launch.
    Record(EventId),
    /// Waits for an event, as if it were on the stream of the launch.
    Wait(EventId),
}

/// A graph that can be launched.
#[derive(Debug)]
pub(crate) struct Exec {
    /// The graph.
    pub(crate) graph: Arc<Graph<Action>>,
    /// The flags that it was made with.
    pub(crate) flags: u64,
    /// The streams of its lanes but the first, which is that of the launch.
    pub(crate) streams: Vec<StreamId>,
    /// The user objects that the graph kept when this was made.
    pub(crate) references: References,
    /// The end of the last launch.
    pub(crate) last: Point,
}

/// The flag of streams without order to the default stream.
pub(crate) const NON_BLOCKING: u32 = 1;

static DRIVER: OnceLock<Driver> = OnceLock::new();

impl Driver {
    /// Initialises the process's driver, if it is not yet.
    pub(crate) fn init() -> Result<()> {
        if DRIVER.get().is_none() {
            let config = Config::from_env()?;
            let visible = visible::devices(config.devices);
            if visible.is_empty() {
                return Err(CUresult::CUDA_ERROR_NO_DEVICE);
            }
            if config.reports_faults && !config.ignored.has(Finding::DeviceMemoryTouched) {
                fault::report()?;
            }
            if DRIVER.set(Self::new(config, visible)).is_ok() && config.seed.is_some() {
                let ticker = thread::Builder::new().name("cuda ticker".to_owned());
                let spawned = ticker.spawn(|| Self::get().map(Self::tick_forever));
                spawned.map_err(|_| CUresult::CUDA_ERROR_OPERATING_SYSTEM)?;
            }
        }
        Self::get().map(|_| ())
    }

    /// The process's driver.
    pub(crate) fn get() -> Result<&'static Self> {
        let driver = DRIVER.get().ok_or(CUresult::CUDA_ERROR_NOT_INITIALIZED)?;
        // A forked child has none of the threads, and perhaps a lock that nobody will ever release.
        if driver.process != process::id() {
            return Err(CUresult::CUDA_ERROR_NOT_INITIALIZED);
        }
        Ok(driver)
    }

    /// Creates a driver without contexts.
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

    /// Returns the index of a device that a program passes.
    pub(crate) fn device(&self, device: CUdevice) -> Result<usize> {
        let device = usize::try_from(device).ok().filter(|&device| device < self.devices());
        device.ok_or(CUresult::CUDA_ERROR_INVALID_DEVICE)
    }

    /// Returns the number of devices that the program sees.
    pub(crate) fn devices(&self) -> usize {
        self.visible.len()
    }

    /// Returns the physical device behind one that the program sees.
    pub(crate) fn physical(&self, device: usize) -> Result<usize> {
        self.visible.get(device).copied().ok_or(CUresult::CUDA_ERROR_INVALID_DEVICE)
    }

    /// Returns the device as which the program sees a physical one, or `None` if it does not.
    pub(crate) fn visible(&self, physical: usize) -> Option<usize> {
        self.visible.iter().position(|&device| device == physical)
    }

    /// Returns the device for memory that another process has on a physical device. Memory of a device that this program does not
    /// see can be opened, as in CUDA 10.1 and newer, and belongs to the current device here.
    pub(crate) fn device_for_import(&self, state: &mut State, physical: usize) -> Result<usize> {
        if physical >= self.config.devices {
            return Err(CUresult::CUDA_ERROR_INVALID_DEVICE);
        }
        match self.visible(physical) {
            Some(device) => Ok(device),
            None => Ok(state.context(Current::require()?)?.device),
        }
    }

    /// Takes the lock for what is no call of CUDA.
    pub(crate) fn lock(&self) -> MutexGuard<'_, State> {
        // Nothing panics with the lock held.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Begins a call: takes the lock and lets the turns pass that the call takes.
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

    /// Gives an operation a turn; if it is one of the library, it is complete afterwards.
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

    /// Enqueues an operation on a stream, after what is there and after `wait`; returns the point after it.
    ///
    /// If the stream is captured, the operation becomes a node of the graph, and there is no such point: what waits for
    /// the one that is returned does not wait.
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
        let position = position.ok_or(CUresult::CUDA_ERROR_INVALID_HANDLE)?;
        let point = position.point.clone();
        let call = state.calls;
        if let Some(races) = &mut state.races {
            races.enqueue(position, call, label, stack(self.config), accesses);
        }
        self.wake_workers(state);
        Ok(point)
    }

    /// Starts the worker of a stream, if it has none.
    pub(crate) fn start_worker(&'static self, state: &mut State, stream: StreamId) -> Result<()> {
        let Some(entry) = state.streams.get_mut(&stream).filter(|entry| entry.worker.is_none()) else {
            return Ok(());
        };
        let signal = Arc::new(Condvar::new());
        let worker = thread::Builder::new().name(format!("cuda stream {:#x}", stream.0));
        let wake = Arc::clone(&signal);
        worker.spawn(move || self.work(stream, &wake)).map_err(|_| CUresult::CUDA_ERROR_OUT_OF_MEMORY)?;
        entry.worker = Some(signal);
        Ok(())
    }

    /// Executes the operations of a stream until it is gone.
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
                        // For `Interface::fail`.
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

    /// Waits until everything before a point is complete.
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

    /// Waits until everything before a point is complete, and notes that the host knows.
    pub(crate) fn synchronize<'a>(
        &'a self,
        state: MutexGuard<'a, State>,
        point: &Point,
    ) -> MutexGuard<'a, State> {
        let mut state = self.wait(state, point);
        state.scheduler.tell_host(&point.clock());
        state
    }

    /// Returns whether the calling thread waits for what it enqueues, as `CUDA_LAUNCH_BLOCKING=1` asks for. A function on a stream must
    /// not wait.
    pub(crate) fn blocks_launches(&self) -> bool {
        self.config.blocks_launches && Current::check_is_no_function().is_ok()
    }

    /// Waits for the work of all contexts.
    pub(crate) fn synchronize_all<'a>(&'a self, mut state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
        let contexts = state.contexts.keys().copied().collect::<Vec<_>>();
        for context in contexts {
            let point = state.scheduler.point_of_context(context);
            state = self.synchronize(state, &point);
        }
        state
    }

    /// Closes the default streams of a thread that ends.
    pub(crate) fn close_thread(&self, thread: u64) {
        let mut state = self.lock();
        let streams =
            state.contexts.values_mut().filter_map(|context| context.thread_streams.remove(&thread));
        for stream in streams.collect::<Vec<_>>() {
            state.close_stream(stream);
        }
        self.wake_workers(&mut state);
    }

    /// Waits for the work of a context, and frees what it has, if it then `is_unused`. The calling thread has to be one that
    /// may wait.
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

    /// Says at the end of the process how many operations were in races like those that were reported, and what is left.
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

    /// Reports findings that are alike, or appends them to the file alone, unless they are ignored.
    pub(crate) fn say(&self, finding: Finding, count: u64, text: &str, is_reported: bool) {
        if self.config.ignored.has(finding) {
            return;
        }
        finding::append(finding, count, None, text, &[]);
        if is_reported {
            message::write(&format!("libnccl: {text} [{}]\n", finding.name()));
        }
    }

    /// Wakes the workers after a change of streams.
    pub(crate) fn wake(&self, state: &mut State) {
        self.wake_workers(state);
    }
}

impl State {
    /// Returns a new handle.
    pub(crate) fn next_handle(&mut self) -> u64 {
        self.handles.next()
    }

    /// Finds a context that is active.
    pub(crate) fn context(&mut self, context: ContextId) -> Result<&mut Context> {
        self.contexts.get_mut(&context).ok_or(CUresult::CUDA_ERROR_INVALID_CONTEXT)
    }

    /// The context of a stream.
    pub(crate) fn context_of(&self, stream: StreamId) -> Result<ContextId> {
        Ok(self.streams.get(&stream).ok_or(CUresult::CUDA_ERROR_INVALID_HANDLE)?.context)
    }

    /// Finds an event.
    pub(crate) fn event(&self, event: EventId) -> Result<&Event> {
        self.events.get(&event).ok_or(CUresult::CUDA_ERROR_INVALID_HANDLE)
    }

    /// Returns the error of a context, if it has one.
    pub(crate) fn check(&self, context: ContextId) -> Result<()> {
        let context = self.contexts.get(&context).ok_or(CUresult::CUDA_ERROR_CONTEXT_IS_DESTROYED)?;
        context
            .error
            .or_else(|| context.failures.values().next().map(|failure| failure.error))
            .map_or(Ok(()), Err)
    }

    /// The current context, which must be active and without an error.
    pub(crate) fn current(&self) -> Result<ContextId> {
        let context = Current::require()?;
        self.check(context)?;
        Ok(context)
    }

    /// Returns the error of the current context, if there is one that has an error.
    pub(crate) fn check_current(&self) -> Result<()> {
        Current::require().map_or(Ok(()), |context| self.check(context))
    }

    /// Makes an error stay with a context.
    pub(crate) fn fail(&mut self, context: ContextId, error: CUresult) {
        if let Some(context) = self.contexts.get_mut(&context) {
            context.error.get_or_insert(error);
        }
    }

    /// Makes a context active under a handle.
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

    /// Opens a stream.
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

    /// Closes a stream, whose operations are still executed.
    pub(crate) fn close_stream(&mut self, stream: StreamId) {
        self.scheduler.close(stream);
        if self.streams.get(&stream).is_some_and(|stream| stream.worker.is_none()) {
            self.streams.remove(&stream);
        }
    }

    /// Finds the stream that a handle of a program is: its own, or a default stream of the current context.
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
                    return Err(CUresult::CUDA_ERROR_INVALID_HANDLE);
                }
                Ok(stream)
            }
        }
    }

    /// Returns the number of the calling thread.
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

    /// Adds a node to the graph of a stream that is captured.
    pub(crate) fn capture(&mut self, stream: StreamId, action: Action) -> Result<()> {
        let node = NodeId(self.next_handle());
        self.captures.add(stream, node, action)
    }

    /// Finds a user object that the program or a graph refers to.
    pub(crate) fn user_object(&self, id: UserObjectId) -> Result<Arc<UserObject>> {
        let of_graphs = self.graphs.values().map(|(_, references)| references);
        let of_execs = self.execs.values().map(|exec| &exec.references);
        let mut all = [&self.user_objects].into_iter().chain(of_graphs).chain(of_execs);
        let object = all.find_map(|references| references.get(id)).or_else(|| self.captures.user_object(id));
        object.cloned().ok_or(CUresult::CUDA_ERROR_INVALID_VALUE)
    }

    /// The references of a graph, also while it is captured.
    pub(crate) fn references(&mut self, graph: GraphId) -> Result<&mut References> {
        let references = self.graphs.get_mut(&graph).map(|(_, references)| references);
        references.or_else(|| self.captures.references(graph)).ok_or(CUresult::CUDA_ERROR_INVALID_VALUE)
    }

    /// Returns whether a stream is captured.
    ///
    /// # Errors
    /// It is the default stream, and one is captured with which it is ordered; that capture fails.
    pub(crate) fn is_captured(&mut self, stream: StreamId) -> Result<bool> {
        if self.captures.of(stream).is_some() {
            return Ok(true);
        }
        let implied = self.captured_with(stream);
        if implied.is_empty() {
            return Ok(false);
        }
        implied.into_iter().for_each(|graph| self.captures.invalidate(graph));
        Err(CUresult::CUDA_ERROR_STREAM_CAPTURE_IMPLICIT)
    }

    /// The captures of streams with which a stream is ordered, as it is a default stream.
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

    /// Returns whether a stream is one that programs create and destroy.
    pub(crate) fn is_own_stream(&self, stream: StreamId) -> bool {
        self.streams.contains_key(&stream)
            && self.scheduler.is_open(stream)
            && !self.contexts.values().any(|context| {
                context.default_stream == stream || context.thread_streams.values().any(|&own| own == stream)
            })
    }

    /// Adds memory to a context.
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

    /// Notes that an allocation is freed.
    pub(crate) fn forget_allocation(&mut self, allocation: &Allocation) {
        if let Some(pool) = allocation.pool.and_then(|pool| self.pools.get_mut(&pool)) {
            pool.remove(allocation.length);
        }
        self.forget_races(allocation.id);
    }

    /// Notes that no more operations with an allocation are enqueued.
    pub(crate) fn forget_races(&mut self, allocation: u64) {
        if let Some(races) = &mut self.races {
            races.forget(allocation);
        }
    }

    /// Looks for races of the host itself with operations that it does not know to be complete.
    pub(crate) fn check_host(&mut self, config: Config, function: &'static str, part: &Part, length: usize) {
        let access = Access::new(part, length, true);
        let call = self.calls;
        if let Some(detector) = &mut self.races {
            let found = detector.check_host(self.scheduler.host(), function, call, stack(config), &access);
            self.report(config, found);
        }
    }

    /// Looks for races of an operation that begins, after those in a clock.
    fn begin(&mut self, config: Config, operation: OperationId, clock: &Clock) {
        if let Some(detector) = &mut self.races {
            let found = detector.begin(operation, clock, self.scheduler.host());
            self.report(config, found);
        }
    }

    /// Reports races: of those of the same functions, the first one.
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
                        self.fail(context, CUresult::CUDA_ERROR_ASSERT);
                    }
                }
            }
        }
    }
}

/// Notes the stack of the call, if it is to be reported.
fn stack(config: Config) -> Option<Arc<Stack>> {
    config.notes_stacks.then(|| Arc::new(Stack::capture()))
}
