//! Memory filled with an element.

use std::ffi::{c_uchar, c_uint, c_ushort};

use cudarc::driver::sys::CUresult::*;
use cudarc::driver::sys::{CUdeviceptr, CUresult, CUstream};

use super::{Space, place};
use crate::access::Access;
use crate::allocation::Kind;
use crate::current::Current;
use crate::driver::Driver;
use crate::error::{Result, ensure};
use crate::operation::{Place, Rows, Work};
use crate::scheduler::Point;
use crate::state::Request;

/// Fills rows of elements, synchronously without a stream.
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
            fn $sync(to: CUdeviceptr, element: $element, count: usize) {
                fill(stringify!($sync), to, 0, &element.to_ne_bytes(), [count, 1], None)
            }

            fn $async(to: CUdeviceptr, element: $element, count: usize, stream: CUstream) {
                fill(stringify!($async), to, 0, &element.to_ne_bytes(), [count, 1], Some(stream))
            }

            fn $sync_rows(to: CUdeviceptr, pitch: usize, element: $element, width: usize, height: usize) {
                fill(stringify!($sync_rows), to, pitch, &element.to_ne_bytes(), [width, height], None)
            }

            fn $async_rows(
                to: CUdeviceptr,
                pitch: usize,
                element: $element,
                width: usize,
                height: usize,
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
