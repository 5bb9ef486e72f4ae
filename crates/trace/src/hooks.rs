//! The functions whose calls are recorded, or looked at.

use libnccl::sys::Functions;

use crate::{group, lifecycle, operations};

macro_rules! hooks {
    ($($module:ident: $($name:ident),*;)*) => {
        /// The functions that are called in the place of NCCL's, which they call; none where there is nothing to record.
        pub(crate) const HOOKS: Functions = Functions { $($($name: Some($module::$name),)*)* ..operations::HOOKS };
    };
}

hooks! {
    lifecycle:
        ncclCommInitRank, ncclCommInitRankConfig, ncclCommInitRankScalable, ncclCommInitAll, ncclCommSplit,
        ncclCommShrink, ncclCommGrow, ncclCommDestroy, ncclCommAbort, ncclCommGetAsyncError, ncclGetLastError;
    group: ncclGroupStart, ncclGroupEnd, ncclGroupSimulateEnd;
}
