//! Streams, and functions of the program that they call.

use std::ffi::{c_int, c_uint, c_void};
use std::sync::Arc;

use cudarc::driver::sys::{CUcontext, CUdevice, CUevent, CUresult, CUstream};

use super::context::PRIORITIES;
use super::{put, query, result, synchronize};
use crate::driver::{Action, Driver, NON_BLOCKING, Request, State, Stream};
use crate::error::Result;
use crate::event::LastRecord;
use crate::handle::{ContextId, EventId, StreamId};
use crate::operation::{Callback, Work};
use crate::scheduler::{Executor, Ordering, Point};

unsafe fn create(out: *mut CUstream, flags: c_uint, priority: c_int) -> Result<()> {
    let driver = Driver::get()?;
    let mut state = driver.enter();
    let context = state.current()?;
    let ordering = match flags {
        0 => Ordering::Blocking,
        NON_BLOCKING => Ordering::NonBlocking,
        _ => return Err(CUresult::CUDA_ERROR_INVALID_VALUE),
    };
    if out.is_null() {
        return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
    }
    let [least, greatest] = PRIORITIES;
    let stream = state.open_stream(context, ordering, flags, priority.clamp(greatest, least));
    // SAFETY: the callers say that it is valid for a write.
    unsafe { put(out, stream.pointer()) }
}

/// The context of a stream, and the point behind all that is on it.
fn last_point(state: &mut State, stream: CUstream) -> Result<(ContextId, Point)> {
    let stream = state.stream(stream.addr())?;
    let context = state.context_of(stream)?;
    state.check(context)?;
    state.check_not_captured(stream)?;
    state.check_may_wait()?;
    let point = state.scheduler.point_of_stream(stream).ok_or(CUresult::CUDA_ERROR_INVALID_HANDLE)?;
    Ok((context, point))
}

/// Finds something out about a stream.
///
/// # Safety
///
/// `out` is null, which is an error, or valid for a write.
unsafe fn describe<T>(
    stream: CUstream,
    out: *mut T,
    find: impl FnOnce(&Stream, StreamId) -> T,
) -> Result<()> {
    let mut state = Driver::get()?.enter();
    let id = state.stream(stream.addr())?;
    let stream = state.streams.get(&id).ok_or(CUresult::CUDA_ERROR_INVALID_HANDLE)?;
    // SAFETY: the callers say that it is valid.
    unsafe { put(out, find(stream, id)) }
}

fn call(function: &'static str, stream: CUstream, callback: Arc<Callback>) -> Result<()> {
    let driver = Driver::get()?;
    let mut state = driver.enter();
    let stream = state.stream(stream.addr())?;
    let work = Work::Call { callback, uses: Vec::new() };
    let request = Request { executor: Executor::Host, ..Request::new(function, Vec::new(), work) };
    driver.enqueue(&mut state, stream, &Point::default(), request).map(|_| ())
}

/// The arguments of `cuStreamAddCallback` that its function is called with.
struct StreamCallback {
    function: unsafe extern "C" fn(CUstream, CUresult, *mut c_void),
    stream: CUstream,
    data: *mut c_void,
}

unsafe extern "C" fn call_stream_callback(data: *mut c_void) {
    // SAFETY: `cuStreamAddCallback` made it from a box, and it is called once.
    let callback = unsafe { Box::from_raw(data.cast::<StreamCallback>()) };
    // SAFETY: CUDA's contract: it may be called on a thread of the driver.
    unsafe { (callback.function)(callback.stream, CUresult::CUDA_SUCCESS, callback.data) };
}

api! {
    fn cuStreamCreate(out: *mut CUstream, flags: c_uint) {
        create(out, flags, 0)
    }

    fn cuStreamCreateWithPriority(out: *mut CUstream, flags: c_uint, priority: c_int) {
        create(out, flags, priority)
    }

    fn cuStreamDestroy_v2(stream: CUstream) {
        let driver = Driver::get()?;
        let mut state = driver.enter();
        let stream = StreamId::of(stream);
        if !state.is_own_stream(stream) {
            return Err(CUresult::CUDA_ERROR_INVALID_HANDLE);
        }
        let context = state.context_of(stream)?;
        let captured = state.captures.discard(|origin| origin == stream);
        state.close_stream(stream);
        let result = state.check(context);
        driver.wake(&mut state);
        drop(state);
        // The release of what was captured may call CUDA.
        drop(captured);
        result
    }

    fn cuStreamQuery(stream: CUstream) {
        query(|state| last_point(state, stream))
    }

    fn cuStreamSynchronize(stream: CUstream) {
        synchronize(|state| last_point(state, stream))
    }

    fn cuStreamWaitEvent(stream: CUstream, event: CUevent, flags: c_uint) {
        const EXTERNAL: c_uint = 1;
        let driver = Driver::get()?;
        let mut state = driver.enter();
        let stream = state.stream(stream.addr())?;
        let context = state.context_of(stream)?;
        let id = EventId::of(event);
        let (last, shared) = state.event(id).map(|event| (event.last.clone(), event.shared.clone()))?;
        if flags > EXTERNAL {
            return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
        }
        let is_captured = state.is_captured(stream)?;
        if is_captured && flags == EXTERNAL {
            return state.capture(stream, Action::Wait(id));
        }
        if let Some(shared) = shared.filter(|_| !is_captured)
            && let Some(record) = shared.last_of_another_process()
        {
            let work = Work::Await { shared, record };
            let request =
                Request { executor: Executor::Peers, ..Request::new("cuStreamWaitEvent", Vec::new(), work) };
            return driver.enqueue(&mut state, stream, &Point::default(), request).map(|_| ());
        }
        match last {
            LastRecord::Never
                if is_captured
                    && !state.captures.of(stream).is_some_and(|graph| state.captures.is_valid(graph)) =>
            {
                Err(CUresult::CUDA_ERROR_STREAM_CAPTURE_INVALIDATED)
            }
            // An event that was never recorded is nothing to wait for.
            LastRecord::Never => Ok(()),
            LastRecord::Captured(point) => state.captures.join(stream, context, &point),
            LastRecord::Enqueued(_) if is_captured => state.fail_capture_of(stream),
            LastRecord::Enqueued(record) => {
                let request = Request::new("cuStreamWaitEvent", Vec::new(), Work::Nothing);
                driver.enqueue(&mut state, stream, &record.point, request).map(|_| ())
            }
        }
    }

    fn cuStreamGetFlags(stream: CUstream, out: *mut c_uint) {
        describe(stream, out, |stream, _| stream.flags)
    }

    fn cuStreamGetPriority(stream: CUstream, out: *mut c_int) {
        describe(stream, out, |stream, _| stream.priority)
    }

    fn cuStreamGetId(stream: CUstream, out: *mut u64) {
        describe(stream, out, |_, id| id.0)
    }

    fn cuStreamGetCtx(stream: CUstream, out: *mut CUcontext) {
        describe(stream, out, |stream, _| stream.context.pointer())
    }

    fn cuStreamGetDevice(stream: CUstream, out: *mut CUdevice) {
        let mut state = Driver::get()?.enter();
        let stream = state.stream(stream.addr())?;
        let context = state.context_of(stream)?;
        put(out, state.context(context)?.device as CUdevice)
    }

    fn cuLaunchHostFunc(
        stream: CUstream,
        function: Option<unsafe extern "C" fn(*mut c_void)>,
        data: *mut c_void,
    ) {
        let function = function.ok_or(CUresult::CUDA_ERROR_INVALID_VALUE)?;
        // SAFETY: CUDA's contract: it may be called with the data on a thread of the driver, for each launch if captured.
        let callback = unsafe { Callback::new(function, data, None) };
        call("cuLaunchHostFunc", stream, callback)
    }

    fn cuLaunchHostFunc_v2(
        stream: CUstream,
        function: Option<unsafe extern "C" fn(*mut c_void)>,
        data: *mut c_void,
        _mode: c_uint,
    ) {
        result(cuLaunchHostFunc(stream, function, data))
    }

    fn cuStreamAddCallback(
        stream: CUstream,
        function: Option<unsafe extern "C" fn(CUstream, CUresult, *mut c_void)>,
        data: *mut c_void,
        flags: c_uint,
    ) {
        let function = function.filter(|_| flags == 0).ok_or(CUresult::CUDA_ERROR_INVALID_VALUE)?;
        {
            let mut state = Driver::get()?.enter();
            let stream = state.stream(stream.addr())?;
            state.check_not_captured(stream)?;
        }
        let boxed = Box::into_raw(Box::new(StreamCallback { function, stream, data }));
        // SAFETY: the box is for this function alone.
        let callback = unsafe { Callback::new(call_stream_callback, boxed.cast(), None) };
        let called = call("cuStreamAddCallback", stream, callback);
        if called.is_err() {
            // SAFETY: the function was not accepted, so that nobody else has the box.
            drop(unsafe { Box::from_raw(boxed) });
        }
        called
    }
}
