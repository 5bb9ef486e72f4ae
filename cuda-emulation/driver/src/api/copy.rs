//! Copies, and memory filled with an element.

use std::ffi::{c_uchar, c_uint, c_ushort, c_void};
use std::{ptr, slice};

use cudarc::driver::sys::CUresult::*;
use cudarc::driver::sys::{CUDA_MEMCPY2D, CUcontext, CUdeviceptr, CUmemorytype, CUresult, CUstream};

use super::Space::{self, Device, Host, Unified};
use super::place;
use crate::access::Access;
use crate::allocation::Kind;
use crate::current::Current;
use crate::driver::Driver;
use crate::error::{Result, ensure};
use crate::handle::ContextId;
use crate::operation::{Place, Rows, Work};
use crate::scheduler::Point;
use crate::state::{Request, State};

/// Copies of up to this many bytes read pageable memory before the call returns.
const STAGED: usize = 64 << 10;

#[derive(Debug, Clone, Copy)]
struct End {
    address: CUdeviceptr,
    pitch: usize,
    space: Space,
}

impl End {
    fn find(&self, state: &State, rows: Rows) -> Result<Place> {
        let length = match rows.height.checked_sub(1) {
            Some(before) if rows.width > 0 => {
                ensure(before == 0 || self.pitch >= rows.width, CUDA_ERROR_INVALID_VALUE)?;
                let skipped = before.checked_mul(self.pitch);
                skipped.and_then(|skipped| skipped.checked_add(rows.width))
            }
            _ => Some(0),
        };
        place(state, self.address, length.ok_or(CUDA_ERROR_INVALID_VALUE)?, self.space)
    }
}

#[derive(Clone, Copy)]
struct Copy {
    function: &'static str,
    to: End,
    from: End,
    rows: Rows,
    /// `None` for synchronous copies.
    stream: Option<CUstream>,
}

impl Copy {
    fn bytes(
        function: &'static str,
        to: (CUdeviceptr, Space),
        from: (CUdeviceptr, Space),
        length: usize,
        stream: Option<CUstream>,
    ) -> Self {
        let end = |(address, space)| End { address, pitch: length, space };
        let rows = Rows { width: length, height: 1 };
        Self { function, to: end(to), from: end(from), rows, stream }
    }

    /// Enqueues the copy, and waits as CUDA's function does.
    ///
    /// # Safety
    /// Memory unknown to CUDA must be valid until this function returns. If the copy is captured, the memory must be valid during
    /// each launch.
    unsafe fn run(self) -> Result<()> {
        let Self { function, rows, .. } = self;
        let (driver, mut state) = Driver::entered()?;
        let (stream, context) = state.working_stream(self.stream.map_or(0, |stream| stream.addr()))?;
        let (to, from) = (self.to.find(&state, rows)?, self.from.find(&state, rows)?);
        if rows.width == 0 || rows.height == 0 {
            return Ok(());
        }

        let mut accesses = Vec::new();
        for (end, place, writes) in [(self.from, &from, false), (self.to, &to, true)] {
            if let Place::Known(part) = place {
                accesses.push(Access::of_rows(part, rows, end.pitch, writes));
            }
        }
        let is_device =
            |place: &Place| matches!(place, Place::Known(part) if part.allocation.kind == Kind::Device);
        let is_known_after = match self.stream {
            // Nothing waits for copies between devices, in either form.
            None => !(is_device(&from) && is_device(&to)),
            Some(_) => matches!(to, Place::Host(_)),
        } || driver.blocks_launches();
        // A graph accesses pageable memory at each launch.
        let is_captured = state.captures.of(stream).is_some();
        let is_staged = rows.height == 1 && rows.width <= STAGED && !is_captured;
        let (work, uses_source) = match (from, to) {
            (Place::Host(source), to @ Place::Known(_)) if is_staged => {
                // SAFETY: the caller promises that it can be read now.
                let bytes =
                    unsafe { slice::from_raw_parts(ptr::with_exposed_provenance(source), rows.width) };
                (Work::Put { to, bytes: bytes.into() }, false)
            }
            (from, to) => {
                let uses_source = matches!(from, Place::Host(_));
                let (to_pitch, from_pitch) = (self.to.pitch, self.from.pitch);
                (Work::Copy { to, to_pitch, from, from_pitch, rows }, uses_source)
            }
        };
        if is_known_after || uses_source {
            Current::check_is_no_function()?;
        }
        let request = Request::new(function, accesses, work);
        let point = driver.enqueue(&mut state, stream, &Point::default(), request)?;
        if is_known_after {
            state = driver.synchronize(state, &point);
        } else if uses_source {
            state = driver.wait(state, &point);
        }
        state.check(context)
    }
}

fn address(pointer: *const c_void) -> CUdeviceptr {
    pointer.expose_provenance() as CUdeviceptr
}

fn check_peers(to: CUcontext, from: CUcontext) -> Result<()> {
    let mut state = Driver::get()?.enter();
    state.context(ContextId::of(to))?;
    state.context(ContextId::of(from)).map(|_| ())
}

/// Reads a 2D copy.
///
/// # Safety
/// `copy` must be null or valid for a read.
unsafe fn rows(function: &'static str, copy: *const CUDA_MEMCPY2D, stream: Option<CUstream>) -> Result<Copy> {
    ensure(!copy.is_null(), CUDA_ERROR_INVALID_VALUE)?;
    let end = |kind: c_uint, host: *const c_void, device: CUdeviceptr, x: usize, y: usize, pitch: usize| {
        let (base, space) = match kind {
            k if k == CUmemorytype::CU_MEMORYTYPE_HOST as c_uint => (address(host), Host),
            k if k == CUmemorytype::CU_MEMORYTYPE_DEVICE as c_uint => (device, Device),
            k if k == CUmemorytype::CU_MEMORYTYPE_UNIFIED as c_uint => (device, Unified),
            _ => return Err(CUDA_ERROR_NOT_SUPPORTED),
        };
        let offset = y.checked_mul(pitch).and_then(|rows| rows.checked_add(x));
        let address = offset.and_then(|offset| base.checked_add(offset as u64));
        Ok(End { address: address.ok_or(CUDA_ERROR_INVALID_VALUE)?, pitch, space })
    };
    /// Reads a field without a reference to the whole struct, which may contain an invalid enumeration value.
    macro_rules! field {
        ($name:ident) => {
            // SAFETY: the caller promises that it can be read.
            unsafe { (&raw const (*copy).$name).read() }
        };
    }
    let (kind, x, y) = (number!((*copy).dstMemoryType), field!(dstXInBytes), field!(dstY));
    let to = end(kind, field!(dstHost), field!(dstDevice), x, y, field!(dstPitch))?;
    let (kind, x, y) = (number!((*copy).srcMemoryType), field!(srcXInBytes), field!(srcY));
    let from = end(kind, field!(srcHost), field!(srcDevice), x, y, field!(srcPitch))?;
    let rows = Rows { width: field!(WidthInBytes), height: field!(Height) };
    Ok(Copy { function, to, from, rows, stream })
}

api! {
    // Host memory is valid by CUDA's contract, and if it is pinned, until the copy is complete.

    fn cuMemcpy(to: CUdeviceptr, from: CUdeviceptr, length: usize)
        = Copy::bytes("cuMemcpy", (to, Unified), (from, Unified), length, None).run();

    fn cuMemcpyAsync(to: CUdeviceptr, from: CUdeviceptr, length: usize, stream: CUstream)
        = Copy::bytes("cuMemcpyAsync", (to, Unified), (from, Unified), length, Some(stream)).run();

    fn cuMemcpyHtoD_v2(to: CUdeviceptr, from: *const c_void, length: usize)
        = Copy::bytes("cuMemcpyHtoD_v2", (to, Device), (address(from), Host), length, None).run();

    fn cuMemcpyHtoDAsync_v2(to: CUdeviceptr, from: *const c_void, length: usize, stream: CUstream)
        = Copy::bytes("cuMemcpyHtoDAsync_v2", (to, Device), (address(from), Host), length, Some(stream)).run();

    fn cuMemcpyDtoH_v2(to: *mut c_void, from: CUdeviceptr, length: usize)
        = Copy::bytes("cuMemcpyDtoH_v2", (address(to), Host), (from, Device), length, None).run();

    fn cuMemcpyDtoHAsync_v2(to: *mut c_void, from: CUdeviceptr, length: usize, stream: CUstream)
        = Copy::bytes("cuMemcpyDtoHAsync_v2", (address(to), Host), (from, Device), length, Some(stream)).run();

    fn cuMemcpyDtoD_v2(to: CUdeviceptr, from: CUdeviceptr, length: usize)
        = Copy::bytes("cuMemcpyDtoD_v2", (to, Device), (from, Device), length, None).run();

    fn cuMemcpyDtoDAsync_v2(to: CUdeviceptr, from: CUdeviceptr, length: usize, stream: CUstream)
        = Copy::bytes("cuMemcpyDtoDAsync_v2", (to, Device), (from, Device), length, Some(stream)).run();

    fn cuMemcpyPeerAsync(
        to: CUdeviceptr, to_context: CUcontext, from: CUdeviceptr, from_context: CUcontext, length: usize,
        stream: CUstream,
    ) {
        check_peers(to_context, from_context)?;
        // SAFETY: no memory unknown to CUDA is used.
        unsafe { Copy::bytes("cuMemcpyPeerAsync", (to, Device), (from, Device), length, Some(stream)).run() }
    }

    fn cuMemcpyPeer(
        to: CUdeviceptr, to_context: CUcontext, from: CUdeviceptr, from_context: CUcontext, length: usize,
    ) {
        // It is ordered with everything in both contexts.
        check_peers(to_context, from_context)?;
        let driver = Driver::get()?;
        Current::check_is_no_function()?;
        for peer in [to_context, from_context] {
            drop(driver.synchronize_context(driver.enter(), ContextId::of(peer)));
        }
        // SAFETY: no memory unknown to CUDA is used.
        unsafe { Copy::bytes("cuMemcpyPeer", (to, Device), (from, Device), length, None).run()? };
        let state = driver.enter();
        let context = state.current()?;
        drop(driver.synchronize_context(state, context));
        Ok(())
    }

    fn cuMemcpy2D_v2(copy: *const CUDA_MEMCPY2D) = rows("cuMemcpy2D_v2", copy, None)?.run();
    fn cuMemcpy2DUnaligned_v2(copy: *const CUDA_MEMCPY2D) = rows("cuMemcpy2DUnaligned_v2", copy, None)?.run();

    fn cuMemcpy2DAsync_v2(copy: *const CUDA_MEMCPY2D, stream: CUstream)
        = rows("cuMemcpy2DAsync_v2", copy, Some(stream))?.run();
}

/// Fills rows of elements, synchronously if there is no stream.
fn fill(
    function: &'static str,
    to: CUdeviceptr,
    pitch: usize,
    element: &[u8],
    [columns, height]: [usize; 2],
    stream: Option<CUstream>,
) -> Result<()> {
    const INVALID: CUresult = CUDA_ERROR_INVALID_VALUE;
    let size = element.len();
    let width = columns.checked_mul(size).ok_or(INVALID)?;
    let pitch = if height == 1 { width } else { pitch };
    ensure(to.is_multiple_of(size as u64) && pitch >= width, INVALID)?;
    let is_sync = stream.is_none();
    let (driver, mut state) = Driver::entered()?;
    let (stream, context) = state.working_stream(stream.map_or(0, |stream| stream.addr()))?;
    if width == 0 || height == 0 {
        return Ok(());
    }
    let skipped = pitch.checked_mul(height - 1).ok_or(INVALID)?;
    let length = skipped.checked_add(width).ok_or(INVALID)?;
    let Place::Known(part) = place(&state, to, length, Space::Device)? else { return Err(INVALID) };

    let rows = Rows { width, height };
    let accesses = vec![Access::of_rows(&part, rows, pitch, true)];
    let waits = (is_sync && part.allocation.kind != Kind::Device) || driver.blocks_launches();
    if waits {
        Current::check_is_no_function()?;
    }
    let mut bytes = [0; 4];
    bytes[..size].copy_from_slice(element);
    let work = Work::Fill { to: Place::Known(part), pitch, rows, element: bytes, size };
    let request = Request::new(function, accesses, work);
    let point = driver.enqueue(&mut state, stream, &Point::default(), request)?;
    if waits {
        state = driver.synchronize(state, &point);
    }
    state.check(context)
}

macro_rules! fills {
    ($($element:ty: $sync:ident $async:ident $sync_rows:ident $async_rows:ident;)*) => {
        api! {$(
            fn $sync(to: CUdeviceptr, element: $element, count: usize)
                = fill(stringify!($sync), to, 0, &element.to_ne_bytes(), [count, 1], None);

            fn $async(to: CUdeviceptr, element: $element, count: usize, stream: CUstream)
                = fill(stringify!($async), to, 0, &element.to_ne_bytes(), [count, 1], Some(stream));

            fn $sync_rows(to: CUdeviceptr, pitch: usize, element: $element, width: usize, height: usize)
                = fill(stringify!($sync_rows), to, pitch, &element.to_ne_bytes(), [width, height], None);

            fn $async_rows(
                to: CUdeviceptr, pitch: usize, element: $element, width: usize, height: usize,
                stream: CUstream,
            ) {
                let element = element.to_ne_bytes();
                fill(stringify!($async_rows), to, pitch, &element, [width, height], Some(stream))
            }
        )*}
    };
}

fills! {
    c_uchar: cuMemsetD8_v2 cuMemsetD8Async cuMemsetD2D8_v2 cuMemsetD2D8Async;
    c_ushort: cuMemsetD16_v2 cuMemsetD16Async cuMemsetD2D16_v2 cuMemsetD2D16Async;
    c_uint: cuMemsetD32_v2 cuMemsetD32Async cuMemsetD2D32_v2 cuMemsetD2D32Async;
}
