//! The functions whose calls are intercepted, in addition to the functions that start operations.

use libnccl::sys::Functions;

use crate::{group, lifecycle};

macro_rules! hooks {
    ($($module:ident: $($name:ident),*;)*) => {
        /// The functions that intercept NCCL's functions and call them. Functions that start operations or are only forwarded
        /// have none.
        pub(crate) const HOOKS: Functions = Functions { $($($name: Some($module::$name),)*)* ..Functions::EMPTY };
    };
}

hooks! {
    lifecycle:
        ncclCommInitRank, ncclCommInitRankConfig, ncclCommInitRankScalable, ncclCommInitAll, ncclCommSplit,
        ncclCommShrink, ncclCommGrow, ncclCommDestroy, ncclCommAbort, ncclCommGetAsyncError, ncclGetLastError;
    group: ncclGroupStart, ncclGroupEnd, ncclGroupSimulateEnd;
}
