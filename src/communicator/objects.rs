//! The objects of a communicator, such as windows, and their teardown, which is deferred if it is not possible yet.
#![allow(unsafe_code)] // Destroys objects.

use std::ffi::c_void;
use std::mem::{self, ManuallyDrop};
use std::ptr;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use super::shared::{CallGuard, Shared};
use crate::backend::{Library, call};
use crate::buffer::{Allocation, MemorySpace};
use crate::error::{Error, Result};
use crate::sys;

/// An NCCL object of a communicator, and the memory that the object uses. Dropping this frees neither.
pub(crate) struct Object {
    handle: Handle,
    /// `None` if the object uses no memory, or if the program keeps the memory allocated.
    memory: ManuallyDrop<Option<Arc<Allocation>>>,
    /// Set if a teardown failed: NCCL must not be called with the handle again.
    is_refused: bool,
}

pub(crate) enum Handle {
    Registration(*mut c_void),
    Window(Arc<WindowHandle>),
    Operator(sys::ncclRedOp_t),
}

/// The handle of a window. NCCL writes it during the registration or, in a group, at the end of the group.
pub(crate) struct WindowHandle {
    out: OutParam<sys::ncclWindow_vidmem>,
    /// Set once the registration has succeeded. Until then, NCCL may write `out`.
    known: OnceLock<sys::ncclWindow_t>,
}

// SAFETY: a handle is a name for NCCL. `out` is read only by the thread that registers the window, and freed only together
// with the object.
unsafe impl Send for WindowHandle {}
// SAFETY: as above.
unsafe impl Sync for WindowHandle {}

impl WindowHandle {
    pub(crate) fn new(library: &Library) -> Arc<Self> {
        Arc::new(Self { out: OutParam::new(library), known: OnceLock::new() })
    }

    pub(crate) fn as_mut_ptr(&self) -> *mut sys::ncclWindow_t {
        self.out.as_mut_ptr()
    }

    /// Records that the registration has succeeded. Must be called only on the thread that registers the window.
    pub(crate) fn resolve(&self) {
        let _ = self.known.set(self.out.get());
    }

    /// Returns the handle, which is null if the window is not active; `None` while NCCL may still write the handle.
    pub(crate) fn get(&self) -> Option<sys::ncclWindow_t> {
        self.known.get().copied()
    }
}

// SAFETY: a handle is a name for NCCL. It is used by one thread, which has entered NCCL with the communicator.
unsafe impl Send for Object {}

impl Object {
    pub(crate) fn new(handle: Handle, memory: Option<Arc<Allocation>>) -> Self {
        Self { handle, memory: ManuallyDrop::new(memory), is_refused: false }
    }

    /// Destroys the object on behalf of the method named `call`, or defers this until the communicator is no longer in use.
    ///
    /// # Errors
    /// Returns an error if the object cannot be destroyed now. The object then still exists. (On host memory, an object is freed
    /// with its communicator: this is not an error.)
    fn end(self, shared: &Arc<Shared>, call: &'static str) -> Result<()> {
        if self.is_null() {
            self.free();
            return Ok(());
        }
        let entered = self.check(call).and_then(|()| {
            let guard = CallGuard::for_object(shared, call)?;
            let problem = "the communicator is finalized; it can only be aborted or destroyed";
            if shared.is_finalized.load(Relaxed) { Err(Error::usage(call, problem)) } else { Ok(guard) }
        });
        let guard = match entered {
            Ok(guard) => guard,
            // NCCL has freed the object, and its memory is idle.
            Err(Error::Aborted { .. }) if shared.is_freed() => {
                self.free();
                return Ok(());
            }
            Err(error) => {
                // Deferred to the next thread that leaves NCCL, which may be this one.
                shared.deferred.push(shared, [self]);
                shared.state.set_deferred();
                // The owner's call may have returned before the flag was set. The drop of the guard runs deferred teardowns.
                drop(CallGuard::for_object(shared, "drop"));
                return Err(error);
            }
        };
        let destroyed = self.destroy(shared);
        drop(guard);
        match destroyed {
            Ok(()) => self.free(),
            Err(_) => self.keep(shared),
        }
        destroyed
    }

    /// Keeps the object's memory until the communicator is freed, and makes no more NCCL calls with the object.
    pub(crate) fn keep(mut self, shared: &Shared) {
        self.is_refused = true;
        shared.deferred.push(shared, [self]);
    }

    /// Returns whether the handle is null: NCCL has no such object.
    fn is_null(&self) -> bool {
        match &self.handle {
            Handle::Registration(handle) => handle.is_null(),
            Handle::Window(handle) => handle.get().is_some_and(|handle| handle.is_null()),
            Handle::Operator(_) => false,
        }
    }

    /// Returns an error if the object cannot be destroyed yet.
    fn check(&self, call: &'static str) -> Result<()> {
        match &self.handle {
            Handle::Window(handle) if handle.get().is_none() => {
                Err(Error::usage(call, "the group that registers the window has failed or has not ended"))
            }
            _ => self.memory.as_ref().map_or(Ok(()), |memory| memory.check_idle(call)),
        }
    }

    /// Destroys the object in NCCL. The caller must have a [`CallGuard`] of the communicator.
    fn destroy(&self, shared: &Shared) -> Result<()> {
        let (library, raw) = (&shared.library, shared.raw);
        if self.is_null() {
            return Ok(());
        }
        // SAFETY: an object of this live communicator, which is destroyed only here. No work uses its memory: the memory is
        // idle, or the caller of `register_raw` guarantees it. NCCL copies an operator into each call.
        let destroyed = unsafe {
            match &self.handle {
                Handle::Registration(handle) => call!(library, ncclCommDeregister(raw, *handle)),
                Handle::Window(handle) => {
                    let window = handle.get().unwrap_or(ptr::null_mut());
                    call!(library, ncclCommWindowDeregister(raw, window))
                }
                Handle::Operator(handle) => call!(library, ncclRedOpDestroy(*handle, raw)),
            }
        };
        destroyed.map(drop)
    }

    /// Frees the memory of an object that NCCL no longer has.
    pub(super) fn free(self) {
        if let Handle::Window(handle) = &self.handle {
            self.memory.iter().for_each(|memory| memory.close_window());
            // SAFETY: the group has ended and the window is deregistered, so NCCL does not write the handle any more. The memory
            // is not read again, as the handle is known or the communicator is freed, and an object is freed once.
            unsafe { handle.out.free() };
        }
        drop(ManuallyDrop::into_inner(self.memory));
    }
}

/// An [`Object`] and its communicator. Dropping this, on any thread, destroys the object or defers its teardown.
pub(crate) struct OwnedObject {
    shared: Arc<Shared>,
    /// `None` once its teardown has begun.
    object: Option<Object>,
}

// SAFETY: a shared reference only reads the handle.
unsafe impl Sync for OwnedObject {}

impl OwnedObject {
    pub(crate) fn new(shared: &Arc<Shared>, object: Object) -> Self {
        Self { shared: Arc::clone(shared), object: Some(object) }
    }

    pub(crate) fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    pub(crate) fn handle(&self) -> Option<&Handle> {
        self.object.as_ref().map(|object| &object.handle)
    }

    pub(crate) fn end(mut self, call: &'static str) -> Result<()> {
        self.object.take().map_or(Ok(()), |object| object.end(&self.shared, call))
    }
}

impl Drop for OwnedObject {
    fn drop(&mut self) {
        if let Some(object) = self.object.take() {
            let _ = object.end(&self.shared, "drop");
        }
    }
}

/// Objects of a communicator that were dropped before they could be destroyed.
///
/// The next thread that drops a [`CallGuard`] of the communicator destroys them if possible. On host memory, the teardown of the
/// communicator frees those that remain. On a GPU, NCCL may still use their memory, so it is leaked.
#[derive(Default)]
pub(crate) struct Deferred(Mutex<Vec<Object>>);

impl Deferred {
    fn lock(&self) -> MutexGuard<'_, Vec<Object>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn push(&self, shared: &Shared, objects: impl IntoIterator<Item = Object>) {
        self.lock().extend(objects);
        // The teardown of the communicator may have freed the others before.
        if shared.is_freed() {
            self.free();
        }
    }

    /// Destroys the objects in NCCL. The caller must have a [`CallGuard`] of the communicator, and must free the returned objects
    /// after leaving NCCL.
    pub(super) fn destroy(&self, shared: &Shared) -> Vec<Object> {
        // NCCL has stopped the threads that deregister.
        if shared.is_finalized.load(Relaxed) {
            return Vec::new();
        }
        // Not locked during the calls, so that a drop on another thread never waits for NCCL.
        let objects = mem::take(&mut *self.lock());
        let (mut destroyed, mut kept) = (Vec::new(), Vec::new());
        for mut object in objects {
            let is_possible = !object.is_refused && object.check("drop").is_ok();
            if is_possible && object.destroy(shared).is_ok() {
                destroyed.push(object);
            } else {
                object.is_refused |= is_possible;
                kept.push(object);
            }
        }
        self.push(shared, kept);
        destroyed
    }

    /// Frees the idle objects of a freed communicator; for host memory only.
    pub(super) fn free(&self) {
        let objects = mem::take(&mut *self.lock());
        // Other ranks may access a window until the program declares it idle.
        let is_idle = |object: &Object| object.memory.iter().all(|memory| memory.check_idle("drop").is_ok());
        objects.into_iter().filter(is_idle).for_each(Object::free);
    }
}

/// An out-parameter for a handle. It is on the heap because NCCL keeps its address, and may write to it after the call has
/// returned or failed. It is leaked unless it is freed explicitly.
#[derive(Debug)]
pub(crate) struct OutParam<T> {
    out: *mut *mut T,
    /// The library's memory space at the start of the call. The program may change it later by loading CUDA.
    pub(super) memory_space: MemorySpace,
}

impl<T> OutParam<T> {
    pub(crate) fn new(library: &Library) -> Self {
        Self { out: Box::into_raw(Box::new(ptr::null_mut())), memory_space: library.memory_space() }
    }

    pub(crate) fn as_mut_ptr(&self) -> *mut *mut T {
        self.out
    }

    /// Returns the handle, or null until NCCL writes it.
    pub(crate) fn get(&self) -> *mut T {
        // SAFETY: allocated in `new`, and freed only by `free`, whose caller does not use it any more. NCCL writes it
        // only during calls on the communicator, which are made one at a time.
        unsafe { self.out.read_volatile() }
    }

    /// Frees the memory once the creation of a communicator has succeeded or, on host memory, failed: the CPU backend writes the
    /// handle only during the call.
    ///
    /// # Safety
    /// `created` must be the result of the creation, including the wait for it, and `self` must not be used afterwards.
    pub(crate) unsafe fn free_after<R>(&self, created: &Result<R>) {
        if created.is_ok() || self.memory_space == MemorySpace::Host {
            // SAFETY: as above.
            unsafe { self.free() };
        }
    }

    /// # Safety
    /// NCCL must not write the handle anymore, and `self` must not be used afterwards.
    pub(crate) unsafe fn free(&self) {
        // SAFETY: allocated in `new`; the caller guarantees that nothing uses it any more.
        drop(unsafe { Box::from_raw(self.out) });
    }
}
