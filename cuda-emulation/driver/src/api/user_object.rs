//! User objects, and the references that graphs have to them.

use std::ffi::{c_uint, c_void};
use std::sync::Arc;

use cudarc::driver::sys::CUresult::*;
use cudarc::driver::sys::{CUgraph, CUuserObject};

use super::put;
use crate::callback::{Callback, Function, UserObject, start_destructors};
use crate::driver::Driver;
use crate::error::{Result, ensure};
use crate::handle::{GraphId, UserObjectId};

const NO_DESTRUCTOR_SYNC: c_uint = 1;
const MOVE: c_uint = 1;

fn check_count(count: c_uint) -> Result<()> {
    ensure(count != 0 && i32::try_from(count).is_ok(), CUDA_ERROR_INVALID_VALUE)
}

api! {
    fn cuUserObjectCreate(
        out: *mut CUuserObject,
        data: *mut c_void,
        destroy: Option<Function>,
        count: c_uint,
        flags: c_uint,
    ) {
        let driver = Driver::get()?;
        check_count(count)?;
        let destroy = destroy.filter(|_| !out.is_null() && flags == NO_DESTRUCTOR_SYNC);
        let destroy = destroy.ok_or(CUDA_ERROR_INVALID_VALUE)?;
        let mut state = driver.enter();
        let destructors = match &state.destructors {
            Some(destructors) => destructors.clone(),
            None => state.destructors.insert(start_destructors()?).clone(),
        };
        // SAFETY: CUDA's contract: the function may be called with the data, once, on a thread of the driver.
        let destructor = unsafe { Callback::new(destroy, data, None) };
        let id = UserObjectId(state.next_handle());
        state.user_objects.retain(id, Arc::new(UserObject { destructor, destructors }), count);
        put(out, id.pointer())
    }

    fn cuUserObjectRetain(object: CUuserObject, count: c_uint) {
        let mut state = Driver::get()?.enter();
        check_count(count)?;
        let id = UserObjectId::of(object);
        let object = state.user_object(id)?;
        state.user_objects.retain(id, object, count);
        Ok(())
    }

    fn cuUserObjectRelease(object: CUuserObject, count: c_uint) {
        let mut state = Driver::get()?.enter();
        check_count(count)?;
        state.user_objects.release(UserObjectId::of(object), count).map(drop)
    }

    fn cuGraphRetainUserObject(graph: CUgraph, object: CUuserObject, count: c_uint, flags: c_uint) {
        let mut state = Driver::get()?.enter();
        check_count(count)?;
        let (graph, id) = (GraphId::of(graph), UserObjectId::of(object));
        // First, so that no reference of the program is lost.
        state.references(graph)?;
        let object = match flags {
            0 => state.user_object(id)?,
            MOVE => state.user_objects.release(id, count)?,
            _ => return Err(CUDA_ERROR_INVALID_VALUE),
        };
        state.references(graph)?.retain(id, object, count);
        Ok(())
    }

    fn cuGraphReleaseUserObject(graph: CUgraph, object: CUuserObject, count: c_uint) {
        let mut state = Driver::get()?.enter();
        check_count(count)?;
        state.references(GraphId::of(graph))?.release(UserObjectId::of(object), count).map(drop)
    }
}
