//! Streams, host functions, and events.

use std::ffi::{c_int, c_uint, c_void};
use std::ptr;
use std::sync::Arc;

use cudarc::driver::sys::CUresult::*;
use cudarc::driver::sys::{CUcontext, CUdevice, CUevent, CUgreenCtx, CUresult, CUstream};

use super::context::PRIORITIES;
use super::{put, put_if_wanted, query, result, synchronize};
use crate::callback::{Callback, Function};
use crate::current::Current;
use crate::driver::Driver;
use crate::error::{Result, ensure};
use crate::event::{Event, LastRecord, SharedEvent};
use crate::handle::{ContextId, EventId, StreamId};
use crate::operation::Work;
use crate::scheduler::{Executor, Ordering, Point};
use crate::state::{Action, Request, State, Stream};

unsafe fn create(out: *mut CUstream, flags: c_uint, priority: c_int) -> Result<()> {
    let mut state = Driver::get()?.enter();
    let context = state.current()?;
    let ordering = match flags {
        0 => Ordering::Blocking,
        1 => Ordering::NonBlocking,
        _ => return Err(CUDA_ERROR_INVALID_VALUE),
    };
    ensure(!out.is_null(), CUDA_ERROR_INVALID_VALUE)?;
    let [least, greatest] = PRIORITIES;
    let stream = state.open_stream(context, ordering, priority.clamp(greatest, least));
    // SAFETY: the callers say that it is valid for a write.
    unsafe { put(out, stream.pointer()) }
}

fn end_of(state: &mut State, stream: CUstream) -> Result<(ContextId, Point)> {
    let (stream, context) = state.working_stream(stream.addr())?;
    state.check_not_captured(stream)?;
    state.check_may_wait()?;
    Ok((context, state.scheduler.point_of_stream(stream).ok_or(CUDA_ERROR_INVALID_HANDLE)?))
}

/// # Safety
/// `out` must be null or valid for a write.
unsafe fn describe<T>(
    stream: CUstream,
    out: *mut T,
    find: impl FnOnce(&Stream, StreamId) -> T,
) -> Result<()> {
    let mut state = Driver::get()?.enter();
    let id = state.stream(stream.addr())?;
    let stream = state.streams.get(&id).ok_or(CUDA_ERROR_INVALID_HANDLE)?;
    // SAFETY: the callers say that it is valid.
    unsafe { put(out, find(stream, id)) }
}

fn call(function: &'static str, stream: CUstream, callback: Arc<Callback>) -> Result<()> {
    let (driver, mut state) = Driver::entered()?;
    let stream = state.stream(stream.addr())?;
    let work = Work::Call { callback, uses: Vec::new() };
    let request = Request { executor: Executor::Host, ..Request::of(function, work) };
    driver.enqueue(&mut state, stream, &Point::default(), request).map(|_| ())
}

fn record_event(event: CUevent, stream: CUstream, is_external: bool) -> Result<()> {
    let (driver, mut state) = Driver::entered()?;
    let stream = state.stream(stream.addr())?;
    let stream_context = state.context_of(stream)?;
    let id = EventId::of(event);
    ensure(state.event(id)?.context == stream_context, CUDA_ERROR_INVALID_HANDLE)?;
    if !state.is_captured(stream)? {
        return driver.record(&mut state, id, stream, &Point::default()).map(|_| ());
    }
    if is_external {
        return state.capture(stream, Action::Record(id));
    }
    let point = state.captures.point(stream)?;
    if let Some(event) = state.events.get_mut(&id) {
        event.last = LastRecord::Captured(point);
    }
    Ok(())
}

/// Returns the context of an event, and its recorded point, which is empty if the event was never recorded.
fn recorded_point(state: &mut State, event: CUevent) -> Result<(ContextId, Point)> {
    let id = EventId::of(event);
    let context = state.event(id)?.context;
    state.check(context)?;
    let record = state.record_to_wait_for(id)?;
    state.check_may_wait()?;
    Ok((context, record.map(|record| record.point).unwrap_or_default()))
}

/// Returns the last record of an interprocess event if another process made it.
fn record_of_another_process(event: CUevent) -> Option<(Arc<SharedEvent>, u64)> {
    let shared = Driver::get().ok()?.enter().event(EventId::of(event)).ok()?.shared.clone()?;
    let last = shared.last_of_another_process()?;
    Some((shared, last))
}

api! {
    fn cuStreamCreate(out: *mut CUstream, flags: c_uint) = create(out, flags, 0);

    fn cuStreamCreateWithPriority(out: *mut CUstream, flags: c_uint, priority: c_int)
        = create(out, flags, priority);

    fn cuStreamDestroy_v2(stream: CUstream) {
        let (driver, mut state) = Driver::entered()?;
        let stream = StreamId::of(stream);
        ensure(state.is_own_stream(stream), CUDA_ERROR_INVALID_HANDLE)?;
        let context = state.context_of(stream)?;
        let captured = state.captures.discard(|origin| origin == stream);
        state.close_stream(stream);
        let result = state.check(context);
        driver.wake(&mut state);
        drop(state);
        // What was captured may call CUDA when it is released.
        drop(captured);
        result
    }

    fn cuStreamQuery(stream: CUstream) = query(|state| end_of(state, stream));
    fn cuStreamSynchronize(stream: CUstream) = synchronize(|state| end_of(state, stream));

    fn cuStreamWaitEvent(stream: CUstream, event: CUevent, flags: c_uint) {
        const EXTERNAL: c_uint = 1;
        let (driver, mut state) = Driver::entered()?;
        let stream = state.stream(stream.addr())?;
        let context = state.context_of(stream)?;
        let id = EventId::of(event);
        let (last, shared) = state.event(id).map(|event| (event.last.clone(), event.shared.clone()))?;
        ensure(flags <= EXTERNAL, CUDA_ERROR_INVALID_VALUE)?;
        let is_captured = state.is_captured(stream)?;
        if is_captured && flags == EXTERNAL {
            return state.capture(stream, Action::Wait(id));
        }
        if let Some(shared) = shared.filter(|_| !is_captured)
            && let Some(record) = shared.last_of_another_process()
        {
            let request = Request::of("cuStreamWaitEvent", Work::Await { shared, record });
            let request = Request { executor: Executor::Peers, ..request };
            return driver.enqueue(&mut state, stream, &Point::default(), request).map(|_| ());
        }
        match last {
            // A capture that was invalidated is an error.
            LastRecord::Never if is_captured => state.captures.point(stream).map(drop),
            // An event that was never recorded is nothing to wait for.
            LastRecord::Never => Ok(()),
            LastRecord::Captured(point) => state.captures.join(stream, context, &point),
            // The capture would have to wait for work outside it.
            LastRecord::Enqueued(_) if is_captured => {
                state.captures.of(stream).into_iter().for_each(|graph| state.captures.invalidate(graph));
                Err(CUDA_ERROR_STREAM_CAPTURE_ISOLATION)
            }
            LastRecord::Enqueued(record) => {
                let request = Request::of("cuStreamWaitEvent", Work::Nothing);
                driver.enqueue(&mut state, stream, &record.point, request).map(|_| ())
            }
        }
    }

    fn cuStreamGetFlags(stream: CUstream, out: *mut c_uint)
        = describe(stream, out, |stream, _| c_uint::from(stream.ordering == Ordering::NonBlocking));

    fn cuStreamGetPriority(stream: CUstream, out: *mut c_int)
        = describe(stream, out, |stream, _| stream.priority);

    fn cuStreamGetId(stream: CUstream, out: *mut u64) = describe(stream, out, |_, id| id.0);

    fn cuStreamGetCtx(stream: CUstream, out: *mut CUcontext)
        = describe(stream, out, |stream, _| stream.context.pointer());

    fn cuStreamGetCtx_v2(stream: CUstream, out: *mut CUcontext, green: *mut CUgreenCtx) {
        result(cuStreamGetCtx(stream, out))?;
        // There are no green contexts. The address of one is optional.
        put_if_wanted(green, ptr::null_mut());
        Ok(())
    }

    fn cuStreamGetDevice(stream: CUstream, out: *mut CUdevice) {
        let mut state = Driver::get()?.enter();
        let stream = state.stream(stream.addr())?;
        let context = state.context_of(stream)?;
        put(out, state.context(context)?.device as CUdevice)
    }

    fn cuLaunchHostFunc(stream: CUstream, function: Option<Function>, data: *mut c_void) {
        let function = function.ok_or(CUDA_ERROR_INVALID_VALUE)?;
        // SAFETY: CUDA's contract: it may be called with the data on a thread of the driver, for each launch if captured.
        call("cuLaunchHostFunc", stream, unsafe { Callback::new(move || function(data), None) })
    }

    fn cuLaunchHostFunc_v2(stream: CUstream, function: Option<Function>, data: *mut c_void, _mode: c_uint)
        = result(cuLaunchHostFunc(stream, function, data));

    fn cuStreamAddCallback(
        stream: CUstream, function: Option<unsafe extern "C" fn(CUstream, CUresult, *mut c_void)>,
        data: *mut c_void, flags: c_uint,
    ) {
        let function = function.filter(|_| flags == 0).ok_or(CUDA_ERROR_INVALID_VALUE)?;
        {
            let mut state = Driver::get()?.enter();
            let stream = state.stream(stream.addr())?;
            state.check_not_captured(stream)?;
        }
        // SAFETY: CUDA's contract: it may be called with these arguments on a thread of the driver.
        let callback = unsafe { Callback::new(move || function(stream, CUDA_SUCCESS, data), None) };
        call("cuStreamAddCallback", stream, callback)
    }

    fn cuEventCreate(out: *mut CUevent, flags: c_uint) {
        const DISABLE_TIMING: c_uint = 2;
        const INTERPROCESS: c_uint = 4;
        let mut state = Driver::get()?.enter();
        let context = state.current()?;
        let (has_timing, is_shared) = (flags & DISABLE_TIMING == 0, flags & INTERPROCESS != 0);
        let is_valid = flags < 2 * INTERPROCESS && !out.is_null() && !(is_shared && has_timing);
        ensure(is_valid, CUDA_ERROR_INVALID_VALUE)?;
        let shared = is_shared.then(|| SharedEvent::new().map(Arc::new)).transpose()?;
        let id = EventId(state.next_handle());
        state.events.insert(id, Event { context, has_timing, last: LastRecord::Never, shared });
        put(out, id.pointer())
    }

    fn cuEventDestroy_v2(event: CUevent) {
        let mut state = Driver::get()?.enter();
        // Waits for its record continue.
        let context = state.destroy_event(EventId::of(event))?;
        state.check(context)
    }

    fn cuEventRecord(event: CUevent, stream: CUstream) = record_event(event, stream, false);

    fn cuEventRecordWithFlags(event: CUevent, stream: CUstream, flags: c_uint) {
        const EXTERNAL: c_uint = 1;
        ensure(flags <= EXTERNAL, CUDA_ERROR_INVALID_VALUE)?;
        record_event(event, stream, flags == EXTERNAL)
    }

    fn cuEventQuery(event: CUevent) {
        if let Some((shared, record)) = record_of_another_process(event) {
            ensure(shared.is_over(record), CUDA_ERROR_NOT_READY)?;
        }
        query(|state| recorded_point(state, event))
    }

    fn cuEventSynchronize(event: CUevent) {
        if let Some((shared, record)) = record_of_another_process(event) {
            Current::check_is_no_function()?;
            shared.wait(record);
        }
        synchronize(|state| recorded_point(state, event))
    }

    fn cuEventElapsedTime(out: *mut f32, start: CUevent, end: CUevent) {
        ensure(!out.is_null(), CUDA_ERROR_INVALID_VALUE)?;
        let state = Driver::get()?.enter();
        let record = |event: CUevent| {
            let event = state.events.get(&EventId::of(event)).filter(|event| event.has_timing);
            match &event.ok_or(CUDA_ERROR_INVALID_HANDLE)?.last {
                LastRecord::Never => Err(CUDA_ERROR_INVALID_HANDLE),
                LastRecord::Captured(_) => Err(CUDA_ERROR_CAPTURED_EVENT),
                LastRecord::Enqueued(record) => Ok(record.clone()),
            }
        };
        // An event without a record is an error even if the other one is not complete.
        let [start, end] = [record(start)?, record(end)?].map(|record| {
            let time = record.time.get().filter(|_| record.point.is_complete());
            time.copied().ok_or(CUDA_ERROR_NOT_READY)
        });
        let (start, end) = (start?, end?);
        // One of the differences is 0.
        let seconds = end.duration_since(start).as_secs_f32() - start.duration_since(end).as_secs_f32();
        put(out, seconds * 1e3)
    }

    fn cuEventElapsedTime_v2(out: *mut f32, start: CUevent, end: CUevent)
        = result(cuEventElapsedTime(out, start, end));
}
