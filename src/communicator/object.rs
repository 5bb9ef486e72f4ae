//! The objects of a communicator, such as windows, and their teardown. A teardown that is not possible yet is deferred.

use std::ffi::c_void;
use std::mem::{self, ManuallyDrop};
use std::ptr;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use super::inside::Inside;
use super::out_param::OutParam;
use super::shared::Shared;
use crate::backend::{Library, call};
use crate::buffer::Allocation;
use crate::error::{Error, Result};
use crate::sys;

/// An object of a communicator in NCCL, with the memory that it uses. A drop frees neither.
pub(crate) struct Object {
    handle: Handle,
    /// `None` if the object uses no memory, or if the program keeps the memory allocated.
    memory: ManuallyDrop<Option<Arc<Allocation>>>,
    /// Set if NCCL must not be called with the handle any more.
    is_refused: bool,
}

/// The handle of an [`Object`].
pub(crate) enum Handle {
    Registration(*mut c_void),
    Window(Arc<WindowHandle>),
    Operator(sys::ncclRedOp_t),
}

/// The handle of a window, which NCCL writes during the registration or at the end of its group.
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

    /// Records that the registration has succeeded, on the thread that registers the window.
    pub(crate) fn resolve(&self) {
        let _ = self.known.set(self.out.get());
    }

    /// Returns the handle. It is null if the window is not active; `None` means that NCCL may still write it.
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

    /// Destroys the object on behalf of the method `call`. If that is not possible yet, the communicator does it when it is
    /// no longer in use.
    ///
    /// # Errors
    /// The object still exists. An object of a communicator that was freed on host memory does not exist any more.
    fn end(self, shared: &Arc<Shared>, call: &'static str) -> Result<()> {
        if self.is_null() {
            self.free();
            return Ok(());
        }
        let entered = self.check(call).and_then(|()| enter(shared, call));
        let inside = match entered {
            Ok(inside) => inside,
            // NCCL has no such object any more, and its memory is idle.
            Err(Error::Aborted { .. }) if shared.is_freed() => {
                self.free();
                return Ok(());
            }
            Err(error) => {
                self.defer(shared);
                return Err(error);
            }
        };
        let ended = self.destroy(shared);
        drop(inside);
        match ended {
            Ok(()) => self.free(),
            Err(_) => self.keep(shared),
        }
        ended
    }

    /// Keeps the memory of an object until the communicator is freed, without another call of NCCL.
    pub(crate) fn keep(mut self, shared: &Shared) {
        self.is_refused = true;
        shared.deferred.push(shared, [self]);
    }

    /// Leaves the teardown to the next thread that leaves NCCL, which may be this one.
    fn defer(self, shared: &Arc<Shared>) {
        shared.deferred.push(shared, [self]);
        shared.state.set_deferred();
        // The owner may have left before the flag was set. Leaving runs what is deferred.
        drop(Inside::for_object(shared, "drop"));
    }

    /// Returns `true` if NCCL has no such object.
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

    /// Destroys the object in NCCL. The caller has entered NCCL with the communicator.
    fn destroy(&self, shared: &Shared) -> Result<()> {
        let (library, raw) = (&shared.library, shared.raw);
        if self.is_null() {
            return Ok(());
        }
        // SAFETY: an object of this live communicator, which is destroyed only here. No work uses its memory: the memory is
        // idle, or the caller of `register_raw` guarantees it. NCCL copies an operator into each call.
        let ended = unsafe {
            match &self.handle {
                Handle::Registration(handle) => call!(library, ncclCommDeregister(raw, *handle)),
                Handle::Window(handle) => {
                    let window = handle.get().unwrap_or(ptr::null_mut());
                    call!(library, ncclCommWindowDeregister(raw, window))
                }
                Handle::Operator(handle) => call!(library, ncclRedOpDestroy(*handle, raw)),
            }
        };
        ended.map(drop)
    }

    /// Frees the memory of an object that NCCL no longer has.
    fn free(self) {
        if let Handle::Window(handle) = &self.handle {
            self.memory.iter().for_each(|memory| memory.close_window());
            // SAFETY: the group and the window are over, so NCCL does not write the handle any more. The memory is not read
            // again, as the handle is known or the communicator is freed, and an object is freed once.
            unsafe { handle.out.free() };
        }
        drop(ManuallyDrop::into_inner(self.memory));
    }
}

/// Enters NCCL to destroy an object, if that is possible.
fn enter<'s>(shared: &'s Arc<Shared>, call: &'static str) -> Result<Inside<&'s Arc<Shared>>> {
    let inside = Inside::for_object(shared, call)?;
    if shared.is_finalized.load(Relaxed) {
        let problem = "the communicator is finalized; it can only be aborted or destroyed";
        return Err(Error::usage(call, problem));
    }
    Ok(inside)
}

/// An [`Object`] with its communicator. Its drop destroys the object on any thread, or leaves that to the communicator.
pub(crate) struct OwnedObject {
    shared: Arc<Shared>,
    /// `None` once it was destroyed.
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

    /// Destroys the object on behalf of the method `call`.
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

/// The objects of a communicator whose teardown was not possible when they were dropped.
///
/// A thread that leaves NCCL with the communicator destroys them. On host memory, the teardown of the communicator frees the
/// rest. Otherwise NCCL may use their memory, which is leaked.
#[derive(Default)]
pub(crate) struct Deferred(Mutex<Vec<Object>>);

impl Deferred {
    fn lock(&self) -> MutexGuard<'_, Vec<Object>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn push(&self, shared: &Shared, objects: impl IntoIterator<Item = Object>) {
        self.lock().extend(objects);
        // The teardown of the communicator may have looked before.
        if shared.is_freed() {
            self.free();
        }
    }

    /// Destroys the objects in NCCL, which the caller has entered with the communicator. Returns those that are gone, whose
    /// memory the caller frees after it has left NCCL.
    pub(super) fn destroy(&self, shared: &Shared) -> Vec<Object> {
        // A finalized communicator has no threads left to deregister with.
        if shared.is_finalized.load(Relaxed) {
            return Vec::new();
        }
        // Not locked during a call, so that a drop on another thread never waits for NCCL.
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

    /// Frees the objects of a communicator that was freed on host memory.
    pub(super) fn free(&self) {
        let objects = mem::take(&mut *self.lock());
        // Other ranks may access a window until the program promises that it is idle.
        let is_idle = |object: &Object| object.memory.iter().all(|memory| memory.check_idle("drop").is_ok());
        objects.into_iter().filter(is_idle).for_each(Object::free);
    }
}

/// Frees the memory of objects that [`Deferred::destroy`] has destroyed.
pub(super) fn free_all(objects: Vec<Object>) {
    objects.into_iter().for_each(Object::free);
}
