//! Handles of memory and events for other processes.

use std::ffi::c_uint;
use std::sync::Arc;

use cudarc::driver::sys::{CUdeviceptr, CUevent, CUipcEventHandle, CUipcMemHandle, CUresult};

use super::{put, unsupported};
use crate::allocation::{Allocation, Kind};
use crate::driver::{Driver, State};
use crate::error::Result;
use crate::event::{Event, LastRecord};
use crate::handle::{ContextId, EventId};
use crate::interprocess::{Import, IpcHandle, Shared, SharedEvent};
use crate::mapping::{Exported, ImportLock, Mapping};

const INVALID: CUresult = CUresult::CUDA_ERROR_INVALID_VALUE;

/// Stores a handle.
///
/// # Safety
///
/// `out` is null, which is an error, or valid for 64 writes.
unsafe fn put_handle<T>(out: *mut T, shared: Shared, place: Option<Exported>) -> Result<()> {
    let Some(place) = place else {
        unsupported::say(
            "handles for other processes where files may not be as long as device memory (ulimit -f)",
        );
        return Err(CUresult::CUDA_ERROR_NOT_SUPPORTED);
    };
    // SAFETY: the caller promises that it is valid.
    unsafe { put(out.cast(), IpcHandle { shared, place }.to_bytes()) }
}

/// Checks that what a handle stands for is another process's, as CUDA requires.
fn check_other_process(place: &Exported) -> Result<()> {
    let is_other = place.process != std::process::id();
    is_other.then_some(()).ok_or(CUresult::CUDA_ERROR_INVALID_CONTEXT)
}

/// Opens memory of another process, or finds it if the context has opened it before.
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
    let (id, address) = (state.allocations.next_id(), mapping.address() as u64);
    state.allocations.insert(Allocation {
        id,
        kind: Kind::Device,
        device,
        context,
        backing: None,
        is_imported: true,
        pool: None,
        flags: 0,
        address,
        length,
        mapping: Some(mapping),
    });
    state.imports.push(Import { context, place, address, count: 1, _lock: ImportLock::new(file, &place) });
    Ok(address)
}

api! {
    fn cuIpcGetMemHandle(out: *mut CUipcMemHandle, address: CUdeviceptr) {
        let driver = Driver::get()?;
        let state = driver.enter();
        state.check_current()?;
        let allocation = state.allocations.containing(address);
        let is_own = |allocation: &&Arc<Allocation>| {
            let Allocation { kind, pool, backing, is_imported, .. } = &***allocation;
            *kind == Kind::Device && pool.is_none() && backing.is_none() && !is_imported
        };
        let allocation = allocation.filter(is_own).ok_or(INVALID)?;
        let (device, length) = (driver.physical(allocation.device)? as u32, allocation.length as u64);
        put_handle(out, Shared::Memory { device, length }, allocation.export())
    }

    fn cuIpcOpenMemHandle_v2(out: *mut CUdeviceptr, handle: CUipcMemHandle, flags: c_uint) {
        const LAZY_ENABLE_PEER_ACCESS: c_uint = 1;
        let driver = Driver::get()?;
        let mut state = driver.enter();
        let context = state.current()?;
        let IpcHandle { shared, place } =
            IpcHandle::of_bytes(&handle.reserved.map(|byte| byte as u8), false)?;
        let Shared::Memory { device, length } = shared else { return Err(INVALID) };
        if out.is_null() || flags != LAZY_ENABLE_PEER_ACCESS {
            return Err(INVALID);
        }
        check_other_process(&place)?;
        let device = driver.device_for_import(&mut state, device as usize)?;
        let address = open_memory(&mut state, context, device, length, place)?;
        put(out, address)
    }

    fn cuIpcCloseMemHandle(address: CUdeviceptr) {
        let driver = Driver::get()?;
        let is_last = |import: &Import| import.address == address && import.count == 1;
        if driver.lock().imports.iter().any(is_last) {
            driver.check_free(c"cuIpcCloseMemHandle", address)?;
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
        let point = state.scheduler.point_of_context(of);
        state = driver.synchronize(state, &point);
        if let Some(closed) = state.allocations.remove(address) {
            state.forget_allocation(&closed);
        }
        state.check(context)
    }

    fn cuIpcGetEventHandle(out: *mut CUipcEventHandle, event: CUevent) {
        let state = Driver::get()?.enter();
        let event = state.event(EventId::of(event))?;
        let shared = event.shared.as_ref().ok_or(CUresult::CUDA_ERROR_INVALID_HANDLE)?;
        put_handle(out, Shared::Event, shared.export())
    }

    fn cuIpcOpenEventHandle(out: *mut CUevent, handle: CUipcEventHandle) {
        let mut state = Driver::get()?.enter();
        let context = state.current()?;
        let IpcHandle { place, .. } = IpcHandle::of_bytes(&handle.reserved.map(|byte| byte as u8), true)?;
        if out.is_null() {
            return Err(INVALID);
        }
        check_other_process(&place)?;
        let shared = Some(Arc::new(SharedEvent::open(&place)?));
        let id = EventId(state.next_handle());
        state.events.insert(id, Event { context, has_timing: false, last: LastRecord::Never, shared });
        put(out, id.pointer())
    }
}
