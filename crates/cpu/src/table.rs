//! The function table: what is implemented, and for the rest, what says that it is not.

use libnccl::sys::Functions;

use crate::{abi, unavailable};

/// Every function of NCCL's API.
pub const TABLE: Functions = Functions {
    ncclMemAlloc: Some(abi::ncclMemAlloc),
    ncclMemFree: Some(abi::ncclMemFree),
    ncclGetVersion: Some(abi::ncclGetVersion),
    ncclGetUniqueId: Some(abi::ncclGetUniqueId),
    ncclCommInitRankConfig: Some(abi::ncclCommInitRankConfig),
    ncclCommInitRank: Some(abi::ncclCommInitRank),
    ncclCommInitAll: Some(abi::ncclCommInitAll),
    ncclCommFinalize: Some(abi::ncclCommFinalize),
    ncclCommDestroy: Some(abi::ncclCommDestroy),
    ncclCommAbort: Some(abi::ncclCommAbort),
    ncclGetErrorString: Some(abi::ncclGetErrorString),
    ncclGetLastError: Some(abi::ncclGetLastError),
    ncclCommGetAsyncError: Some(abi::ncclCommGetAsyncError),
    ncclCommCount: Some(abi::ncclCommCount),
    ncclCommCuDevice: Some(abi::ncclCommCuDevice),
    ncclCommUserRank: Some(abi::ncclCommUserRank),
    ncclRedOpCreatePreMulSum: Some(abi::ncclRedOpCreatePreMulSum),
    ncclRedOpDestroy: Some(abi::ncclRedOpDestroy),
    ncclReduce: Some(abi::ncclReduce),
    ncclBcast: Some(abi::ncclBcast),
    ncclBroadcast: Some(abi::ncclBroadcast),
    ncclAllReduce: Some(abi::ncclAllReduce),
    ncclReduceScatter: Some(abi::ncclReduceScatter),
    ncclAllGather: Some(abi::ncclAllGather),
    ncclAlltoAll: Some(abi::ncclAlltoAll),
    ncclGather: Some(abi::ncclGather),
    ncclScatter: Some(abi::ncclScatter),
    ncclSend: Some(abi::ncclSend),
    ncclRecv: Some(abi::ncclRecv),
    ncclGroupStart: Some(abi::ncclGroupStart),
    ncclGroupEnd: Some(abi::ncclGroupEnd),
    ncclParamGetParameter: Some(abi::ncclParamGetParameter),
    ncclParamGetAllParameterKeys: Some(abi::ncclParamGetAllParameterKeys),
    ncclParamDumpAll: Some(abi::ncclParamDumpAll),
    ..unavailable::TABLE
};
