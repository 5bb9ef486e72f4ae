//! An operator that NCCL has made, until its owner destroys it.

use std::mem;

use crate::communicator::{Handle, Object, Owner};
use crate::{DataType, sys};

/// An operator of a communicator, for one type of elements; its drop destroys it. NCCL copies it into each call, so calls may
/// still be running.
pub(super) struct CustomOperator<O: Owner> {
    pub(super) owner: O,
    pub(super) raw: sys::ncclRedOp_t,
    pub(super) data_type: DataType,
}

impl<O: Owner> CustomOperator<O> {
    pub(super) fn into_owner<P: Owner>(self, owner: P) -> CustomOperator<P> {
        let (raw, data_type) = (self.raw, self.data_type);
        // It is the other's.
        mem::forget(self);
        CustomOperator { owner, raw, data_type }
    }
}

impl<O: Owner> Drop for CustomOperator<O> {
    fn drop(&mut self) {
        let _ = Object::new(Handle::Operator(self.raw), None).end(&self.owner, "ncclRedOpDestroy");
    }
}
