//! Events.

use std::ffi::c_uint;
use std::sync::Arc;

use cudarc::driver::sys::CUresult::*;
use cudarc::driver::sys::{CUevent, CUstream};

use super::{put, query, result, synchronize};
use crate::current::Current;
use crate::driver::Driver;
use crate::error::{Result, ensure};
use crate::event::{Event, LastRecord, SharedEvent};
use crate::handle::{ContextId, EventId};
use crate::scheduler::Point;
use crate::state::{Action, State};

fn record(event: CUevent, stream: CUstream, is_external: bool) -> Result<()> {
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

/// The context of an event, and the point that it recorded: empty if it was never recorded.
fn last_point(state: &mut State, event: CUevent) -> Result<(ContextId, Point)> {
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
        let destroyed = state.events.remove(&EventId::of(event));
        state.check(destroyed.ok_or(CUDA_ERROR_INVALID_HANDLE)?.context)
    }

    fn cuEventRecord(event: CUevent, stream: CUstream) {
        record(event, stream, false)
    }

    fn cuEventRecordWithFlags(event: CUevent, stream: CUstream, flags: c_uint) {
        const EXTERNAL: c_uint = 1;
        ensure(flags <= EXTERNAL, CUDA_ERROR_INVALID_VALUE)?;
        record(event, stream, flags == EXTERNAL)
    }

    fn cuEventQuery(event: CUevent) {
        if let Some((shared, record)) = record_of_another_process(event) {
            ensure(shared.is_over(record), CUDA_ERROR_NOT_READY)?;
        }
        query(|state| last_point(state, event))
    }

    fn cuEventSynchronize(event: CUevent) {
        if let Some((shared, record)) = record_of_another_process(event) {
            Current::check_is_no_function()?;
            shared.wait(record);
        }
        synchronize(|state| last_point(state, event))
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
        let seconds = match end.checked_duration_since(start) {
            Some(elapsed) => elapsed.as_secs_f32(),
            None => -start.duration_since(end).as_secs_f32(),
        };
        put(out, seconds * 1e3)
    }

    fn cuEventElapsedTime_v2(out: *mut f32, start: CUevent, end: CUevent) {
        result(cuEventElapsedTime(out, start, end))
    }
}
