//! Copies.

use std::ffi::{c_uint, c_void};

use cudarc::driver::sys::{CUDA_MEMCPY2D, CUcontext, CUdeviceptr, CUmemorytype, CUresult, CUstream};

use super::Space::{self, Device, Host, Unified};
use super::place;
use crate::allocation::Kind;
use crate::context::Current;
use crate::driver::{Driver, Request, State};
use crate::error::Result;
use crate::handle::ContextId;
use crate::operation::{Place, Rows, Work, take_bytes};
use crate::race::Access;
use crate::scheduler::Point;

/// The most bytes that a copy takes from pageable memory before it returns, without waiting for its turn.
const STAGED: usize = 64 << 10;

/// One end of a copy.
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
                if before > 0 && self.pitch < rows.width {
                    return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
                }
                let skipped = before.checked_mul(self.pitch);
                skipped.and_then(|skipped| skipped.checked_add(rows.width))
            }
            _ => Some(0),
        };
        place(state, self.address, length.ok_or(CUresult::CUDA_ERROR_INVALID_VALUE)?, self.space)
    }
}

/// A copy that a program asks for.
#[derive(Debug, Clone, Copy)]
struct Copy {
    function: &'static str,
    to: End,
    from: End,
    rows: Rows,
    /// The stream, for copies that return before they are done.
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

    /// Does it.
    ///
    /// # Safety
    ///
    /// Memory that CUDA does not know is valid for the copy: until this returns, or for each launch if it is captured.
    unsafe fn run(self) -> Result<()> {
        let driver = Driver::get()?;
        let mut state = driver.enter();
        let stream = state.stream(self.stream.map_or(0, |stream| stream.addr()))?;
        let context = state.context_of(stream)?;
        state.check(context)?;
        let (to, from) = (self.to.find(&state, self.rows)?, self.from.find(&state, self.rows)?);
        if self.rows.width == 0 || self.rows.height == 0 {
            return Ok(());
        }

        let mut accesses = Vec::new();
        for (end, place, writes) in [(self.from, &from, false), (self.to, &to, true)] {
            if let Place::Known(part) = place {
                accesses.push(Access::of_rows(part, self.rows, end.pitch, writes));
            }
        }
        let is_device =
            |place: &Place| matches!(place, Place::Known(part) if part.allocation.kind == Kind::Device);
        let is_pageable = |place: &Place| matches!(place, Place::Host(_));
        let length = self.rows.width;
        // A graph reads and writes pageable memory at each launch.
        let is_captured = state.captures.of(stream).is_some();
        let is_staged = self.rows.height == 1 && length <= STAGED && !is_captured;
        let work = match (&from, &to) {
            (Place::Host(source), Place::Known(_)) if is_staged => {
                // SAFETY: the caller promises that it can be read now.
                Work::Put { to: to.clone(), bytes: unsafe { take_bytes(*source, length) } }
            }
            _ => Work::Copy {
                to: to.clone(),
                to_pitch: self.to.pitch,
                from: from.clone(),
                from_pitch: self.from.pitch,
                rows: self.rows,
            },
        };
        let uses_source = matches!((&work, &from), (Work::Copy { .. }, Place::Host(_)));
        let is_known_after = match self.stream {
            // Between devices, nothing waits, in either form.
            None => !(is_device(&from) && is_device(&to)),
            Some(_) => is_pageable(&to),
        } || driver.blocks_launches();
        if is_known_after || uses_source {
            Current::check_is_no_function()?;
        }
        let point = driver.enqueue(
            &mut state,
            stream,
            &Point::default(),
            Request::new(self.function, accesses, work),
        )?;
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

/// Checks the contexts of a copy between devices.
fn check_peers(to: CUcontext, from: CUcontext) -> Result<()> {
    let driver = Driver::get()?;
    let mut state = driver.enter();
    for peer in [to, from] {
        state.context(ContextId::of(peer))?;
    }
    Ok(())
}

/// Reads the description of a copy of rows.
///
/// # Safety
///
/// `copy` is null, which is an error, or valid for a read.
unsafe fn rows(function: &'static str, copy: *const CUDA_MEMCPY2D, stream: Option<CUstream>) -> Result<Copy> {
    // The types of memory are read as numbers: a program may have stored others than CUDA has.
    // SAFETY: the caller promises that it can be read.
    let read_type = |offset: usize| unsafe { copy.byte_add(offset).cast::<c_uint>().read() };
    if copy.is_null() {
        return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
    }
    let end = |kind: c_uint, host: *const c_void, device: CUdeviceptr, x: usize, y: usize, pitch: usize| {
        let (base, space) = match kind {
            k if k == CUmemorytype::CU_MEMORYTYPE_HOST as c_uint => (address(host), Host),
            k if k == CUmemorytype::CU_MEMORYTYPE_DEVICE as c_uint => (device, Device),
            k if k == CUmemorytype::CU_MEMORYTYPE_UNIFIED as c_uint => (device, Unified),
            _ => return Err(CUresult::CUDA_ERROR_NOT_SUPPORTED),
        };
        let offset = y.checked_mul(pitch).and_then(|rows| rows.checked_add(x));
        let address = offset.and_then(|offset| base.checked_add(offset as u64));
        Ok(End { address: address.ok_or(CUresult::CUDA_ERROR_INVALID_VALUE)?, pitch, space })
    };
    let to_type = read_type(std::mem::offset_of!(CUDA_MEMCPY2D, dstMemoryType));
    let from_type = read_type(std::mem::offset_of!(CUDA_MEMCPY2D, srcMemoryType));
    /// Reads a field, without a reference to the whole, in which a type may be invalid.
    macro_rules! field {
        ($name:ident) => {
            // SAFETY: the caller promises that it can be read.
            unsafe { (&raw const (*copy).$name).read() }
        };
    }
    let to = end(
        to_type,
        field!(dstHost),
        field!(dstDevice),
        field!(dstXInBytes),
        field!(dstY),
        field!(dstPitch),
    )?;
    let from = end(
        from_type,
        field!(srcHost),
        field!(srcDevice),
        field!(srcXInBytes),
        field!(srcY),
        field!(srcPitch),
    )?;
    let rows = Rows { width: field!(WidthInBytes), height: field!(Height) };
    Ok(Copy { function, to, from, rows, stream })
}

api! {
    // Host memory is valid by CUDA's contract, and if it is pinned, until the copy is complete.

    fn cuMemcpy(to: CUdeviceptr, from: CUdeviceptr, length: usize) {
        Copy::bytes("cuMemcpy", (to, Unified), (from, Unified), length, None).run()
    }

    fn cuMemcpyAsync(to: CUdeviceptr, from: CUdeviceptr, length: usize, stream: CUstream) {
        Copy::bytes("cuMemcpyAsync", (to, Unified), (from, Unified), length, Some(stream)).run()
    }

    fn cuMemcpyHtoD_v2(to: CUdeviceptr, from: *const c_void, length: usize) {
        Copy::bytes("cuMemcpyHtoD_v2", (to, Device), (address(from), Host), length, None).run()
    }

    fn cuMemcpyHtoDAsync_v2(to: CUdeviceptr, from: *const c_void, length: usize, stream: CUstream) {
        Copy::bytes("cuMemcpyHtoDAsync_v2", (to, Device), (address(from), Host), length, Some(stream)).run()
    }

    fn cuMemcpyDtoH_v2(to: *mut c_void, from: CUdeviceptr, length: usize) {
        Copy::bytes("cuMemcpyDtoH_v2", (address(to), Host), (from, Device), length, None).run()
    }

    fn cuMemcpyDtoHAsync_v2(to: *mut c_void, from: CUdeviceptr, length: usize, stream: CUstream) {
        Copy::bytes("cuMemcpyDtoHAsync_v2", (address(to), Host), (from, Device), length, Some(stream)).run()
    }

    fn cuMemcpyDtoD_v2(to: CUdeviceptr, from: CUdeviceptr, length: usize) {
        Copy::bytes("cuMemcpyDtoD_v2", (to, Device), (from, Device), length, None).run()
    }

    fn cuMemcpyDtoDAsync_v2(to: CUdeviceptr, from: CUdeviceptr, length: usize, stream: CUstream) {
        Copy::bytes("cuMemcpyDtoDAsync_v2", (to, Device), (from, Device), length, Some(stream)).run()
    }

    fn cuMemcpyPeerAsync(
        to: CUdeviceptr,
        to_context: CUcontext,
        from: CUdeviceptr,
        from_context: CUcontext,
        length: usize,
        stream: CUstream,
    ) {
        check_peers(to_context, from_context)?;
        // SAFETY: no memory that CUDA does not know is used.
        unsafe { Copy::bytes("cuMemcpyPeerAsync", (to, Device), (from, Device), length, Some(stream)).run() }
    }

    fn cuMemcpyPeer(
        to: CUdeviceptr,
        to_context: CUcontext,
        from: CUdeviceptr,
        from_context: CUcontext,
        length: usize,
    ) {
        // It is ordered with everything in both contexts.
        check_peers(to_context, from_context)?;
        let driver = Driver::get()?;
        Current::check_is_no_function()?;
        for peer in [to_context, from_context] {
            let state = driver.enter();
            let point = state.scheduler.point_of_context(ContextId::of(peer));
            drop(driver.synchronize(state, &point));
        }
        // SAFETY: no memory that CUDA does not know is used.
        unsafe { Copy::bytes("cuMemcpyPeer", (to, Device), (from, Device), length, None).run()? };
        let state = driver.enter();
        let point = state.scheduler.point_of_context(state.current()?);
        drop(driver.synchronize(state, &point));
        Ok(())
    }

    fn cuMemcpy2D_v2(copy: *const CUDA_MEMCPY2D) {
        rows("cuMemcpy2D_v2", copy, None)?.run()
    }

    fn cuMemcpy2DUnaligned_v2(copy: *const CUDA_MEMCPY2D) {
        rows("cuMemcpy2DUnaligned_v2", copy, None)?.run()
    }

    fn cuMemcpy2DAsync_v2(copy: *const CUDA_MEMCPY2D, stream: CUstream) {
        rows("cuMemcpy2DAsync_v2", copy, Some(stream))?.run()
    }
}
