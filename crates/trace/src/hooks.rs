//! The functions whose calls are looked at, beside those that start operations.

use libnccl::sys::Functions;

use crate::{group, lifecycle};

macro_rules! hooks {
    ($($module:ident: $($name:ident),*;)*) => {
        /// The functions that are called in the place of NCCL's, which they call; none where there is nothing to look at.
        pub(crate) const HOOKS: Functions = Functions { $($($name: Some($module::$name),)*)* ..Functions::EMPTY };
    };
}

hooks! {
    lifecycle:
        ncclCommInitRank, ncclCommInitRankConfig, ncclCommInitRankScalable, ncclCommInitAll, ncclCommSplit,
        ncclCommShrink, ncclCommGrow, ncclCommDestroy, ncclCommAbort, ncclCommGetAsyncError, ncclGetLastError;
    group: ncclGroupStart, ncclGroupEnd, ncclGroupSimulateEnd;
}
