//! Memory and events that processes share.

use std::ffi::c_uint;
use std::sync::Arc;

use cudarc::driver::sys::CUresult::*;
use cudarc::driver::sys::{CUdeviceptr, CUevent, CUipcEventHandle, CUipcMemHandle, CUresult};

use super::memory::check_free;
use super::{put, refuse};
use crate::allocation::{Allocation, Import, Kind};
use crate::driver::Driver;
use crate::error::{Result, ensure};
use crate::event::{Event, LastRecord, SharedEvent};
use crate::handle::{ContextId, EventId};
use crate::mapping::{Exported, ImportLock, Mapping};
use crate::state::State;

const INVALID: CUresult = CUDA_ERROR_INVALID_VALUE;

const MAGIC: u32 = 0x6c6e_6363;

/// Stores a handle of memory, with its device and length, or of an event, with zeros instead.
///
/// # Safety
/// `out` must be null or valid for 64 writes.
unsafe fn put_handle<T>(out: *mut T, device: u32, length: u64, place: Option<Exported>) -> Result<()> {
    let Some(Exported { process, file, inode, offset }) = place else {
        return refuse(
            "handles for other processes where files may not be as long as device memory (ulimit -f)",
        );
    };
    let mut bytes = [0_u8; 64];
    for (at, number) in [MAGIC, device, process, file].into_iter().enumerate() {
        bytes[4 * at..][..4].copy_from_slice(&number.to_ne_bytes());
    }
    for (at, number) in [length, inode, offset].into_iter().enumerate() {
        bytes[16 + 8 * at..][..8].copy_from_slice(&number.to_ne_bytes());
    }
    // SAFETY: the caller promises that it is valid.
    unsafe { put(out.cast(), bytes) }
}

/// Reads a handle: its device, length and place.
///
/// # Errors
/// Returns an error if the bytes are not a handle, or are a handle of the other kind.
fn read_handle(bytes: [std::ffi::c_char; 64], is_event: bool) -> Result<(u32, u64, Exported)> {
    let bytes = bytes.map(|byte| byte as u8);
    let half = |at: usize| bytes[at..].first_chunk().map_or(0, |four| u32::from_ne_bytes(*four));
    let word = |at: usize| bytes[at..].first_chunk().map_or(0, |eight| u64::from_ne_bytes(*eight));
    let length = word(16);
    ensure(half(0) == MAGIC && (length == 0) == is_event, INVALID)?;
    let place = Exported { process: half(8), file: half(12), inode: word(24), offset: word(32) };
    Ok((half(4), length, place))
}

/// Checks that a handle comes from another process, as CUDA requires.
fn check_other_process(place: &Exported) -> Result<()> {
    ensure(place.process != std::process::id(), CUDA_ERROR_INVALID_CONTEXT)
}

fn open_memory(
    state: &mut State,
    context: ContextId,
    device: usize,
    length: u64,
    place: Exported,
) -> Result<CUdeviceptr> {
    let mut imports = state.imports.iter_mut();
    if let Some(import) = imports.find(|import| import.context == context && import.place == place) {
        import.count += 1;
        return Ok(import.address);
    }
    let length = usize::try_from(length).map_err(|_| INVALID)?;
    let (mapping, file) = Mapping::import(&place, length)?;
    let address = mapping.address() as u64;
    let allocation = Allocation::new(Kind::Device, device, context, address, length);
    state.allocations.insert(Allocation { is_imported: true, mapping: Some(mapping), ..allocation });
    state.imports.push(Import { context, place, address, count: 1, _lock: ImportLock::new(file, &place) });
    Ok(address)
}

api! {
    fn cuIpcGetMemHandle(out: *mut CUipcMemHandle, address: CUdeviceptr) {
        let (driver, state) = Driver::entered()?;
        state.check_current()?;
        let allocation = state.allocations.containing(address);
        let is_own = |allocation: &&Arc<Allocation>| {
            let Allocation { kind, pool, backing, is_imported, .. } = &***allocation;
            *kind == Kind::Device && pool.is_none() && backing.is_none() && !is_imported
        };
        let allocation = allocation.filter(is_own).ok_or(INVALID)?;
        let device = driver.visible[allocation.device] as u32;
        put_handle(out, device, allocation.length as u64, allocation.export())
    }

    fn cuIpcOpenMemHandle_v2(out: *mut CUdeviceptr, handle: CUipcMemHandle, flags: c_uint) {
        const LAZY_ENABLE_PEER_ACCESS: c_uint = 1;
        let (driver, mut state) = Driver::entered()?;
        let context = state.current()?;
        let (device, length, place) = read_handle(handle.reserved, false)?;
        ensure(!out.is_null() && flags == LAZY_ENABLE_PEER_ACCESS, INVALID)?;
        check_other_process(&place)?;
        let device = driver.device_for_import(&mut state, device as usize)?;
        put(out, open_memory(&mut state, context, device, length, place)?)
    }

    fn cuIpcCloseMemHandle(address: CUdeviceptr) {
        let driver = Driver::get()?;
        let is_last = |import: &Import| import.address == address && import.count == 1;
        if driver.lock().imports.iter().any(is_last) {
            check_free(driver, c"cuIpcCloseMemHandle", address)?;
        }
        let mut state = driver.enter();
        let context = state.current()?;
        state.check_may_wait()?;
        let import = state.imports.iter_mut().find(|import| import.address == address).ok_or(INVALID)?;
        import.count -= 1;
        if import.count > 0 {
            return Ok(());
        }
        let of = import.context;
        state.imports.retain(|import| import.address != address);
        // As a free does.
        state = driver.synchronize_context(state, of);
        state.remove_allocation(address);
        state.check(context)
    }

    fn cuIpcGetEventHandle(out: *mut CUipcEventHandle, event: CUevent) {
        let state = Driver::get()?.enter();
        let event = state.event(EventId::of(event))?;
        let shared = event.shared.as_ref().ok_or(CUDA_ERROR_INVALID_HANDLE)?;
        put_handle(out, 0, 0, shared.0.export())
    }

    fn cuIpcOpenEventHandle(out: *mut CUevent, handle: CUipcEventHandle) {
        let mut state = Driver::get()?.enter();
        let context = state.current()?;
        let (_, _, place) = read_handle(handle.reserved, true)?;
        ensure(!out.is_null(), INVALID)?;
        check_other_process(&place)?;
        let shared = Some(Arc::new(SharedEvent::open(&place)?));
        let id = EventId(state.next_handle());
        state.events.insert(id, Event { context, has_timing: false, last: LastRecord::Never, shared });
        put(out, id.pointer())
    }
}
