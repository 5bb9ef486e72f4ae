//! Handles: numbers that programs see as pointers. They are never dereferenced.

use std::ptr;

macro_rules! handle {
    ($($name:ident)*) => {$(
        #[derive(Debug, Default, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[repr(transparent)]
        pub(crate) struct $name(pub(crate) u64);

        impl $name {
            pub(crate) fn of<T>(pointer: *mut T) -> Self {
                Self(pointer.addr() as u64)
            }

            pub(crate) fn pointer<T>(self) -> *mut T {
                ptr::without_provenance_mut(self.0 as usize)
            }
        }
    )*};
}

handle! { ContextId StreamId EventId PoolId GraphId NodeId ExecId UserObjectId }

/// The handle of memory that can be mapped. CUDA's handle is a number too.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct BackingId(pub(crate) u64);
