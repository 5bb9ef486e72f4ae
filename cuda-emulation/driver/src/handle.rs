//! Handles: numbers that programs see as pointers, and that nothing ever follows.

use std::ptr;

/// Makes a type for the handles of one kind.
macro_rules! handle {
    ($(#[$doc:meta] $name:ident)*) => {$(
        #[$doc]
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[repr(transparent)]
        pub(crate) struct $name(pub(crate) u64);

        impl $name {
            /// The handle that a program passes.
            pub(crate) fn of<T>(pointer: *mut T) -> Self {
                Self(pointer.addr() as u64)
            }

            /// The handle as programs see it.
            pub(crate) fn pointer<T>(self) -> *mut T {
                ptr::without_provenance_mut(self.0 as usize)
            }
        }
    )*};
}

handle! {
    /// A context.
    ContextId
    /// A stream.
    StreamId
    /// An event.
    EventId
    /// A memory pool.
    PoolId
    /// A graph, from the begin of its capture on.
    GraphId
    /// A node of a graph.
    NodeId
    /// A graph that can be launched.
    ExecId
    /// A user object.
    UserObjectId
}

/// Memory that can be mapped. Its handle is a number in CUDA too.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct BackingId(pub(crate) u64);

/// The source of handles: no two are alike, of whatever kind, and none is small.
#[derive(Debug)]
pub(crate) struct Handles(u64);

impl Handles {
    /// Creates a source.
    pub(crate) fn new() -> Self {
        Self(0x1000)
    }

    /// Returns a new handle.
    pub(crate) fn next(&mut self) -> u64 {
        self.0 += 0x10;
        self.0
    }
}
