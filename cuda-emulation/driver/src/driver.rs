//! The driver: its lock, the threads that execute operations, and launches of graphs.

use std::process;
use std::sync::{Arc, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use cudarc::driver::sys::CUdevice;
use cudarc::driver::sys::CUresult::*;

use crate::config::{self, Config};
use crate::current::{self, Current};
use crate::error::{Result, ensure};
use crate::event::{LastRecord, Record};
use crate::fault;
use crate::handle::{ContextId, EventId, ExecId, StreamId};
use crate::operation::Work;
use crate::race::Detector;
use crate::report::say;
use crate::scheduler::{Begun, Executor, Point};
use crate::state::{Action, Condvar, Mutex, MutexGuard, Request, State, thread};
use cuda_common::finding::Finding;

pub(crate) struct Driver {
    pub(crate) config: Config,
    /// The physical device behind each visible one, see [`config::visible_devices`].
    pub(crate) visible: Vec<usize>,
    state: Mutex<State>,
    done: Condvar,
    process: u32,
}

pub(crate) type Locked<'a> = MutexGuard<'a, State>;

static DRIVER: OnceLock<Driver> = OnceLock::new();

impl Driver {
    pub(crate) fn init() -> Result<()> {
        if DRIVER.get().is_none() {
            let config = Config::from_env()?;
            let visible = config::visible_devices(config.devices);
            ensure(!visible.is_empty(), CUDA_ERROR_NO_DEVICE)?;
            if config.reports_faults && !config.ignored.has(Finding::DeviceMemoryTouched) {
                fault::report()?;
            }
            current::at_thread_end(|thread| {
                if let Ok(driver) = Self::get() {
                    driver.close_thread(thread);
                }
            });
            if DRIVER.set(Self::new(config, visible)).is_ok() && config.seed.is_some() {
                let ticker = thread::Builder::new().name("cuda ticker".to_owned());
                let spawned = ticker.spawn(|| Self::get().map(Self::tick_forever));
                spawned.map_err(|_| CUDA_ERROR_OPERATING_SYSTEM)?;
            }
        }
        Self::get().map(|_| ())
    }

    pub(crate) fn get() -> Result<&'static Self> {
        // A forked child has none of the threads, and the lock may be held forever.
        DRIVER.get().filter(|driver| driver.process == process::id()).ok_or(CUDA_ERROR_NOT_INITIALIZED)
    }

    pub(crate) fn new(config: Config, visible: Vec<usize>) -> Self {
        let state = Mutex::new(State::new(config, visible.len()));
        Self { config, visible, state, done: Condvar::new(), process: process::id() }
    }

    pub(crate) fn device(&self, device: CUdevice) -> Result<usize> {
        let device = usize::try_from(device).ok().filter(|&device| device < self.visible.len());
        device.ok_or(CUDA_ERROR_INVALID_DEVICE)
    }

    pub(crate) fn visible(&self, physical: usize) -> Option<usize> {
        self.visible.iter().position(|&device| device == physical)
    }

    /// Returns the device for another process's memory on a physical device. As in CUDA 10.1 and newer, memory of an invisible
    /// device can be opened; it is attributed to the current device.
    pub(crate) fn device_for_import(&self, state: &mut State, physical: usize) -> Result<usize> {
        ensure(physical < self.config.devices, CUDA_ERROR_INVALID_DEVICE)?;
        match self.visible(physical) {
            Some(device) => Ok(device),
            None => Ok(state.context(Current::require()?)?.device),
        }
    }

    /// Takes the lock outside a CUDA call.
    pub(crate) fn lock(&self) -> Locked<'_> {
        // Nothing panics with the lock held.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes the lock for a CUDA call. With a seed, some turns pass first.
    pub(crate) fn enter(&self) -> Locked<'_> {
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

    /// Returns the driver, and takes its lock for a CUDA call.
    pub(crate) fn entered() -> Result<(&'static Self, Locked<'static>)> {
        Self::get().map(|driver| (driver, driver.enter()))
    }

    /// Gives an operation a turn. Waits until no operation of this library is executing.
    fn turn<'a>(&'a self, mut state: Locked<'a>) -> Locked<'a> {
        state.scheduler.turn();
        self.wake(&mut state);
        while state.scheduler.is_executing() {
            state = self.done.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        state
    }

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

    /// Wakes the workers that have something to do, including those of closed streams.
    pub(crate) fn wake(&self, state: &mut State) {
        for stream in state.scheduler.take_startable() {
            if let Some(worker) = state.streams.get(&stream).and_then(|stream| stream.worker.as_ref()) {
                worker.notify_one();
            }
        }
    }

    /// Enqueues an operation on a stream, after its previous work and after `wait`. Returns the point after it.
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
        let (call, stack) = (state.calls, state.stack());
        if let Some(races) = &mut state.races {
            races.enqueue(position, call, label, stack, accesses);
        }
        self.wake(state);
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

    /// Executes the operations of a stream until the stream is destroyed.
    fn work(&self, stream: StreamId, wake: &Condvar) {
        let mut state = self.lock();
        loop {
            if let Some(Begun { id, clock, executor, work }) = state.scheduler.start(stream) {
                state.begin(id, &clock);
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
                self.wake(&mut state);
                self.done.notify_all();
            } else if state.scheduler.is_gone(stream) {
                state.streams.remove(&stream);
                return;
            } else {
                state = wake.wait(state).unwrap_or_else(PoisonError::into_inner);
            }
        }
    }

    /// Enqueues the operations of a graph: after the stream's previous work and the graph's last launch, before the stream's later
    /// work. Returns the point after them.
    pub(crate) fn launch(&'static self, state: &mut State, id: ExecId, stream: StreamId) -> Result<Point> {
        let exec = state.execs.get(&id).ok_or(CUDA_ERROR_INVALID_VALUE)?;
        if let Some(freed) = exec.memory().find(|one| !state.allocations.has(one)) {
            let text = format!("cuGraphLaunch of a graph that uses {}, which was freed", freed.description());
            say(self.config, Finding::FreeUnderReference, 1, &text, true);
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        let (graph, streams, last) = (Arc::clone(&exec.graph), exec.streams.clone(), exec.last.clone());
        let references = exec.references.clone();
        // What can fail comes first, so that a launch is enqueued as a whole or not at all.
        for &lane in &streams {
            let context = state.streams.get(&lane).ok_or(CUDA_ERROR_CONTEXT_IS_DESTROYED)?.context;
            state.check(context)?;
            self.start_worker(state, lane)?;
        }
        let begin = self.enqueue(state, stream, &last, Request::of("cuGraphLaunch", Work::Nothing))?;
        let mut points: Vec<Point> = Vec::with_capacity(graph.nodes.len());
        for node in &graph.nodes {
            let on = node.lane.checked_sub(1).map_or(stream, |other| streams[other]);
            let mut wait = if node.after.is_empty() { begin.clone() } else { Point::default() };
            graph.waits_for(node).for_each(|earlier| wait.join(&points[earlier]));
            points.push(match &node.action {
                Action::Execute(request) => self.enqueue(state, on, &wait, request.clone())?,
                Action::Record(event) => self.record(state, *event, on, &wait)?,
                Action::Wait(event) => {
                    let event = state.events.get(event).map(|event| &event.last);
                    if let Some(LastRecord::Enqueued(record)) = event {
                        wait.join(&record.point);
                    }
                    self.enqueue(state, on, &wait, Request::of("event wait", Work::Nothing))?
                }
            });
        }
        let mut end = begin;
        graph.last_of_lanes().for_each(|node| end.join(&points[node]));
        if !streams.is_empty() || !references.is_empty() {
            let request = Request::of("cuGraphLaunch", Work::Release(references));
            end = self.enqueue(state, stream, &end, request)?;
        }
        if let Some(exec) = state.execs.get_mut(&id) {
            exec.last = end.clone();
        }
        Ok(end)
    }

    pub(crate) fn record(
        &'static self,
        state: &mut State,
        event: EventId,
        stream: StreamId,
        wait: &Point,
    ) -> Result<Point> {
        let time = Arc::new(OnceLock::new());
        let request = Request::of("cuEventRecord", Work::Record(Arc::clone(&time)));
        let mut point = self.enqueue(state, stream, wait, request)?;
        if let Some(shared) = state.events.get(&event).and_then(|event| event.shared.clone()) {
            let record = shared.record();
            let work = Work::Complete { shared, record };
            point = self.enqueue(state, stream, wait, Request::of("cuEventRecord", work))?;
        }
        if let Some(event) = state.events.get_mut(&event) {
            event.last = LastRecord::Enqueued(Record { point: point.clone(), time });
        }
        Ok(point)
    }

    pub(crate) fn wait<'a>(&'a self, mut state: Locked<'a>, point: &Point) -> Locked<'a> {
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
    pub(crate) fn synchronize<'a>(&'a self, state: Locked<'a>, point: &Point) -> Locked<'a> {
        let mut state = self.wait(state, point);
        state.scheduler.advance_host(&point.clock());
        state
    }

    pub(crate) fn synchronize_context<'a>(&'a self, state: Locked<'a>, context: ContextId) -> Locked<'a> {
        let point = state.scheduler.point_of_context(context);
        self.synchronize(state, &point)
    }

    pub(crate) fn synchronize_all<'a>(&'a self, state: Locked<'a>) -> Locked<'a> {
        let contexts = state.contexts.keys().copied().collect::<Vec<_>>();
        contexts.into_iter().fold(state, |state, context| self.synchronize_context(state, context))
    }

    /// Returns whether the calling thread waits for its launches, see [`Config::blocks_launches`]. A host function must not wait.
    pub(crate) fn blocks_launches(&self) -> bool {
        self.config.blocks_launches && Current::check_is_no_function().is_ok()
    }

    fn close_thread(&self, thread: u64) {
        let mut state = self.lock();
        let contexts = state.contexts.values_mut();
        let streams = contexts.filter_map(|context| context.thread_streams.remove(&thread));
        for stream in streams.collect::<Vec<_>>() {
            state.close_stream(stream);
        }
        self.wake(&mut state);
    }

    /// Waits for the work of a context, and then frees its resources if `is_unused` returns `true`.
    pub(crate) fn destroy_context<'a>(
        &'a self,
        state: Locked<'a>,
        context: ContextId,
        is_unused: impl FnOnce(&State) -> bool,
    ) -> Locked<'a> {
        let mut state = self.synchronize_context(state, context);
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
        for address in state.allocations.of_context(context) {
            state.remove_allocation(address);
        }
        self.wake(&mut state);
        drop(state);
        // What was captured may call CUDA when it is released.
        drop(captured);
        self.lock()
    }

    /// Reports leaks and the number of repeated races when the process exits.
    pub(crate) fn end(&self) {
        // A thread that writes a report holds the lock, possibly forever if nobody reads stderr.
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
            let text = format!("{number} more {were} {place}, as reported above");
            say(self.config, place.finding, number, &text, true);
        }
        for (finding, text) in state.leaks() {
            let text = format!("{text} before the process exits");
            say(self.config, finding, 1, &text, self.config.lists_leaks);
        }
    }
}
