//! The functions whose calls are recorded, or looked at.

use libnccl::sys::Functions;

use crate::{group, lifecycle, operations};

macro_rules! hooks {
    ($($module:ident: $($name:ident),*;)*) => {
        /// The functions that are called in the place of NCCL's, which they call; none where there is nothing to record.
        pub(crate) const HOOKS: Functions = Functions { $($($name: Some($module::$name),)*)* ..Functions::EMPTY };
    };
}

hooks! {
    lifecycle:
        ncclCommInitRank, ncclCommInitRankConfig, ncclCommInitRankScalable, ncclCommInitAll, ncclCommSplit,
        ncclCommShrink, ncclCommGrow, ncclCommDestroy, ncclCommAbort, ncclCommGetAsyncError, ncclGetLastError;
    group: ncclGroupStart, ncclGroupEnd, ncclGroupSimulateEnd;
    operations:
        ncclAllReduce, ncclAllReduceConfig, ncclBroadcast, ncclBroadcastConfig, ncclBcast, ncclReduce,
        ncclReduceConfig, ncclAllGather, ncclAllGatherConfig, ncclReduceScatter, ncclReduceScatterConfig,
        ncclAlltoAll, ncclAlltoAllConfig, ncclGather, ncclGatherConfig, ncclScatter, ncclScatterConfig, ncclSend,
        ncclRecv, ncclPutSignal, ncclSignal, ncclWaitSignal, ncclCommWindowRegister;
}
