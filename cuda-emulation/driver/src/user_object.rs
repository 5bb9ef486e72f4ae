//! User objects: data of the program that lives as long as graphs use it.

use std::collections::BTreeMap;
use std::sync::{Arc, mpsc};

use cudarc::driver::sys::CUresult;

use crate::context::Current;
use crate::error::Result;
use crate::handle::UserObjectId;
use crate::operation::Callback;
use crate::sync::thread;

/// The thread that calls destructors: whoever gives up the last reference may hold what a destructor waits for.
#[derive(Debug, Clone)]
pub(crate) struct Destructors(mpsc::Sender<Arc<Callback>>);

impl Destructors {
    /// Starts the thread.
    pub(crate) fn start() -> Result<Self> {
        let (sender, receiver) = mpsc::channel::<Arc<Callback>>();
        let builder = thread::Builder::new().name("cuda user objects".to_owned());
        let spawned = builder.spawn(move || {
            receiver.iter().for_each(|destructor| Current::execute_function(|| destructor.call()));
        });
        spawned.map_err(|_| CUresult::CUDA_ERROR_OUT_OF_MEMORY)?;
        Ok(Self(sender))
    }
}

/// A user object, whose destructor is called after this is dropped, which may be under the driver's lock.
#[derive(Debug)]
pub(crate) struct UserObject {
    destructor: Arc<Callback>,
    destructors: Destructors,
}

impl UserObject {
    /// Creates one.
    pub(crate) fn new(destructor: Arc<Callback>, destructors: Destructors) -> Self {
        Self { destructor, destructors }
    }
}

impl Drop for UserObject {
    fn drop(&mut self) {
        // The thread ends when the process does.
        let _ = self.destructors.0.send(Arc::clone(&self.destructor));
    }
}

/// The references of an owner, which is the program or a graph: each object with their number.
#[derive(Debug, Clone, Default)]
pub(crate) struct References(BTreeMap<UserObjectId, (Arc<UserObject>, u64)>);

impl References {
    /// Returns whether there are none.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Finds an object of which there are references.
    pub(crate) fn get(&self, id: UserObjectId) -> Option<&Arc<UserObject>> {
        self.0.get(&id).map(|(object, _)| object)
    }

    /// Adds references.
    pub(crate) fn retain(&mut self, id: UserObjectId, object: Arc<UserObject>, count: u32) {
        self.0.entry(id).or_insert((object, 0)).1 += u64::from(count);
    }

    /// Gives up references, all of which must be there.
    pub(crate) fn release(&mut self, id: UserObjectId, count: u32) -> Result<Arc<UserObject>> {
        let (object, references) = self.0.get_mut(&id).ok_or(CUresult::CUDA_ERROR_INVALID_VALUE)?;
        *references = references.checked_sub(u64::from(count)).ok_or(CUresult::CUDA_ERROR_INVALID_VALUE)?;
        let object = Arc::clone(object);
        if *references == 0 {
            self.0.remove(&id);
        }
        Ok(object)
    }
}
