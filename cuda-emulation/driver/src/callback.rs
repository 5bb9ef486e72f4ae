//! Functions of the program: host functions of streams, and destructors of user objects. User objects live as long as graphs
//! refer to them.

#![allow(unsafe_code)]

use std::collections::BTreeMap;
use std::ffi::c_void;
use std::sync::{Arc, mpsc};
use std::thread;

use cudarc::driver::sys::CUresult::*;

use crate::current::Current;
use crate::error::Result;
use crate::handle::UserObjectId;

pub(crate) type Function = unsafe extern "C" fn(data: *mut c_void);

pub(crate) struct Callback {
    pub(crate) function: Box<dyn Fn()>,
    release: Option<Box<dyn FnOnce()>>,
}

// SAFETY: the caller of `Callback::new` permits any thread to call and drop the functions.
unsafe impl Send for Callback {}
// SAFETY: likewise.
unsafe impl Sync for Callback {}

impl Callback {
    /// Creates a callback. The last reference must not be dropped under the driver's lock, because `release` may call CUDA.
    ///
    /// # Safety
    /// `function` must be callable on any thread: once, or, if the operation is captured, once for each launch of the graph.
    /// After that, `release` must be callable on any thread, and both must be droppable on any thread.
    pub(crate) unsafe fn new(function: impl Fn() + 'static, release: Option<Box<dyn FnOnce()>>) -> Arc<Self> {
        Arc::new(Self { function: Box::new(function), release })
    }

    /// Drops the callback without `release`, because the operation was not accepted.
    pub(crate) fn refuse(self: Arc<Self>) {
        if let Some(mut refused) = Arc::into_inner(self) {
            refused.release = None;
        }
    }
}

impl Drop for Callback {
    fn drop(&mut self) {
        if let Some(release) = self.release.take() {
            release();
        }
    }
}

/// The channel to the thread that calls destructors. The thread that drops the last reference may hold a lock that the destructor
/// needs.
pub(crate) type Destructors = mpsc::Sender<Arc<Callback>>;

pub(crate) fn start_destructors() -> Result<Destructors> {
    let (sender, receiver) = mpsc::channel::<Arc<Callback>>();
    let builder = thread::Builder::new().name("cuda user objects".to_owned());
    let spawned = builder.spawn(move || {
        receiver.iter().for_each(|destructor| Current::execute_function(|| (destructor.function)()));
    });
    spawned.map_err(|_| CUDA_ERROR_OUT_OF_MEMORY)?;
    Ok(sender)
}

/// A user object. Its destructor is called after it is dropped, possibly under the driver's lock.
pub(crate) struct UserObject {
    pub(crate) destructor: Arc<Callback>,
    pub(crate) destructors: Destructors,
}

impl Drop for UserObject {
    fn drop(&mut self) {
        let _ = self.destructors.send(Arc::clone(&self.destructor));
    }
}

/// The references of the program or a graph, with their counts.
#[derive(Clone, Default)]
pub(crate) struct References(BTreeMap<UserObjectId, (Arc<UserObject>, u64)>);

impl References {
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn get(&self, id: UserObjectId) -> Option<&Arc<UserObject>> {
        self.0.get(&id).map(|(object, _)| object)
    }

    pub(crate) fn retain(&mut self, id: UserObjectId, object: Arc<UserObject>, count: u32) {
        self.0.entry(id).or_insert((object, 0)).1 += u64::from(count);
    }

    pub(crate) fn release(&mut self, id: UserObjectId, count: u32) -> Result<Arc<UserObject>> {
        let (object, references) = self.0.get_mut(&id).ok_or(CUDA_ERROR_INVALID_VALUE)?;
        *references = references.checked_sub(u64::from(count)).ok_or(CUDA_ERROR_INVALID_VALUE)?;
        let object = Arc::clone(object);
        if *references == 0 {
            self.0.remove(&id);
        }
        Ok(object)
    }
}
