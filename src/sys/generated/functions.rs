/// Calls `$callback!` with the signature of every function of `nccl.h`.
#[doc(hidden)]
#[macro_export]
macro_rules! for_each_function {
    ($callback:ident) => {
        $callback! {
            fn ncclMemAlloc(ptr: *mut *mut ::core::ffi::c_void, size: usize) -> ncclResult_t;
            fn ncclMemFree(ptr: *mut ::core::ffi::c_void) -> ncclResult_t;
            fn ncclGetVersion(version: *mut ::core::ffi::c_int) -> ncclResult_t;
            fn ncclGetUniqueId(uniqueId: *mut ncclUniqueId) -> ncclResult_t;
            fn ncclCommInitRankConfig(comm: *mut ncclComm_t, nranks: ::core::ffi::c_int, commId: ncclUniqueId, rank: ::core::ffi::c_int, config: *mut ncclConfig_t) -> ncclResult_t;
            fn ncclCommInitRank(comm: *mut ncclComm_t, nranks: ::core::ffi::c_int, commId: ncclUniqueId, rank: ::core::ffi::c_int) -> ncclResult_t;
            fn ncclCommInitAll(comm: *mut ncclComm_t, ndev: ::core::ffi::c_int, devlist: *const ::core::ffi::c_int) -> ncclResult_t;
            fn ncclCommFinalize(comm: ncclComm_t) -> ncclResult_t;
            fn ncclCommDestroy(comm: ncclComm_t) -> ncclResult_t;
            fn ncclCommAbort(comm: ncclComm_t) -> ncclResult_t;
            fn ncclCommRevoke(comm: ncclComm_t, revokeFlags: ::core::ffi::c_int) -> ncclResult_t;
            fn ncclCommSplit(comm: ncclComm_t, color: ::core::ffi::c_int, key: ::core::ffi::c_int, newcomm: *mut ncclComm_t, config: *mut ncclConfig_t) -> ncclResult_t;
            fn ncclCommShrink(comm: ncclComm_t, excludeRanksList: *mut ::core::ffi::c_int, excludeRanksCount: ::core::ffi::c_int, newcomm: *mut ncclComm_t, config: *mut ncclConfig_t, shrinkFlags: ::core::ffi::c_int) -> ncclResult_t;
            fn ncclCommGetUniqueId(comm: ncclComm_t, uniqueId: *mut ncclUniqueId) -> ncclResult_t;
            fn ncclCommGrow(comm: ncclComm_t, nRanks: ::core::ffi::c_int, uniqueId: *const ncclUniqueId, rank: ::core::ffi::c_int, newcomm: *mut ncclComm_t, config: *mut ncclConfig_t) -> ncclResult_t;
            fn ncclCommInitRankScalable(newcomm: *mut ncclComm_t, nranks: ::core::ffi::c_int, myrank: ::core::ffi::c_int, nId: ::core::ffi::c_int, commIds: *mut ncclUniqueId, config: *mut ncclConfig_t) -> ncclResult_t;
            fn ncclGetErrorString(result: ncclResult_t) -> *const ::core::ffi::c_char;
            fn ncclGetLastError(comm: ncclComm_t) -> *const ::core::ffi::c_char;
            fn ncclCommGetAsyncError(comm: ncclComm_t, asyncError: *mut ncclResult_t) -> ncclResult_t;
            fn ncclCommCount(comm: ncclComm_t, count: *mut ::core::ffi::c_int) -> ncclResult_t;
            fn ncclCommCuDevice(comm: ncclComm_t, device: *mut ::core::ffi::c_int) -> ncclResult_t;
            fn ncclCommUserRank(comm: ncclComm_t, rank: *mut ::core::ffi::c_int) -> ncclResult_t;
            fn ncclCommRegister(comm: ncclComm_t, buff: *mut ::core::ffi::c_void, size: usize, handle: *mut *mut ::core::ffi::c_void) -> ncclResult_t;
            fn ncclCommDeregister(comm: ncclComm_t, handle: *mut ::core::ffi::c_void) -> ncclResult_t;
            fn ncclCommSuspend(comm: ncclComm_t, flags: ::core::ffi::c_int) -> ncclResult_t;
            fn ncclCommResume(comm: ncclComm_t) -> ncclResult_t;
            fn ncclCommMemStats(comm: ncclComm_t, stat: ncclCommMemStat_t, value: *mut u64) -> ncclResult_t;
            fn ncclCommWindowRegister(comm: ncclComm_t, buff: *mut ::core::ffi::c_void, size: usize, win: *mut ncclWindow_t, winFlags: ::core::ffi::c_int) -> ncclResult_t;
            fn ncclCommWindowDeregister(comm: ncclComm_t, win: ncclWindow_t) -> ncclResult_t;
            fn ncclWinGetUserPtr(comm: ncclComm_t, win: ncclWindow_t, outUserPtr: *mut *mut ::core::ffi::c_void) -> ncclResult_t;
            fn ncclRedOpCreatePreMulSum(op: *mut ncclRedOp_t, scalar: *mut ::core::ffi::c_void, datatype: ncclDataType_t, residence: ncclScalarResidence_t, comm: ncclComm_t) -> ncclResult_t;
            fn ncclRedOpDestroy(op: ncclRedOp_t, comm: ncclComm_t) -> ncclResult_t;
            fn ncclReduce(sendbuff: *const ::core::ffi::c_void, recvbuff: *mut ::core::ffi::c_void, count: usize, datatype: ncclDataType_t, op: ncclRedOp_t, root: ::core::ffi::c_int, comm: ncclComm_t, stream: cudaStream_t) -> ncclResult_t;
            fn ncclBcast(buff: *mut ::core::ffi::c_void, count: usize, datatype: ncclDataType_t, root: ::core::ffi::c_int, comm: ncclComm_t, stream: cudaStream_t) -> ncclResult_t;
            fn ncclBroadcast(sendbuff: *const ::core::ffi::c_void, recvbuff: *mut ::core::ffi::c_void, count: usize, datatype: ncclDataType_t, root: ::core::ffi::c_int, comm: ncclComm_t, stream: cudaStream_t) -> ncclResult_t;
            fn ncclAllReduce(sendbuff: *const ::core::ffi::c_void, recvbuff: *mut ::core::ffi::c_void, count: usize, datatype: ncclDataType_t, op: ncclRedOp_t, comm: ncclComm_t, stream: cudaStream_t) -> ncclResult_t;
            fn ncclReduceScatter(sendbuff: *const ::core::ffi::c_void, recvbuff: *mut ::core::ffi::c_void, recvcount: usize, datatype: ncclDataType_t, op: ncclRedOp_t, comm: ncclComm_t, stream: cudaStream_t) -> ncclResult_t;
            fn ncclAllGather(sendbuff: *const ::core::ffi::c_void, recvbuff: *mut ::core::ffi::c_void, sendcount: usize, datatype: ncclDataType_t, comm: ncclComm_t, stream: cudaStream_t) -> ncclResult_t;
            fn ncclAlltoAll(sendbuff: *const ::core::ffi::c_void, recvbuff: *mut ::core::ffi::c_void, count: usize, datatype: ncclDataType_t, comm: ncclComm_t, stream: cudaStream_t) -> ncclResult_t;
            fn ncclGather(sendbuff: *const ::core::ffi::c_void, recvbuff: *mut ::core::ffi::c_void, count: usize, datatype: ncclDataType_t, root: ::core::ffi::c_int, comm: ncclComm_t, stream: cudaStream_t) -> ncclResult_t;
            fn ncclScatter(sendbuff: *const ::core::ffi::c_void, recvbuff: *mut ::core::ffi::c_void, count: usize, datatype: ncclDataType_t, root: ::core::ffi::c_int, comm: ncclComm_t, stream: cudaStream_t) -> ncclResult_t;
            fn ncclAllReduceConfig(sendbuff: *const ::core::ffi::c_void, recvbuff: *mut ::core::ffi::c_void, count: usize, datatype: ncclDataType_t, op: ncclRedOp_t, comm: ncclComm_t, stream: cudaStream_t, config: *const ncclCollConfig_t) -> ncclResult_t;
            fn ncclBroadcastConfig(sendbuff: *const ::core::ffi::c_void, recvbuff: *mut ::core::ffi::c_void, count: usize, datatype: ncclDataType_t, root: ::core::ffi::c_int, comm: ncclComm_t, stream: cudaStream_t, config: *const ncclCollConfig_t) -> ncclResult_t;
            fn ncclReduceConfig(sendbuff: *const ::core::ffi::c_void, recvbuff: *mut ::core::ffi::c_void, count: usize, datatype: ncclDataType_t, op: ncclRedOp_t, root: ::core::ffi::c_int, comm: ncclComm_t, stream: cudaStream_t, config: *const ncclCollConfig_t) -> ncclResult_t;
            fn ncclAllGatherConfig(sendbuff: *const ::core::ffi::c_void, recvbuff: *mut ::core::ffi::c_void, sendcount: usize, datatype: ncclDataType_t, comm: ncclComm_t, stream: cudaStream_t, config: *const ncclCollConfig_t) -> ncclResult_t;
            fn ncclReduceScatterConfig(sendbuff: *const ::core::ffi::c_void, recvbuff: *mut ::core::ffi::c_void, recvcount: usize, datatype: ncclDataType_t, op: ncclRedOp_t, comm: ncclComm_t, stream: cudaStream_t, config: *const ncclCollConfig_t) -> ncclResult_t;
            fn ncclAlltoAllConfig(sendbuff: *const ::core::ffi::c_void, recvbuff: *mut ::core::ffi::c_void, count: usize, datatype: ncclDataType_t, comm: ncclComm_t, stream: cudaStream_t, config: *const ncclCollConfig_t) -> ncclResult_t;
            fn ncclGatherConfig(sendbuff: *const ::core::ffi::c_void, recvbuff: *mut ::core::ffi::c_void, count: usize, datatype: ncclDataType_t, root: ::core::ffi::c_int, comm: ncclComm_t, stream: cudaStream_t, config: *const ncclCollConfig_t) -> ncclResult_t;
            fn ncclScatterConfig(sendbuff: *const ::core::ffi::c_void, recvbuff: *mut ::core::ffi::c_void, count: usize, datatype: ncclDataType_t, root: ::core::ffi::c_int, comm: ncclComm_t, stream: cudaStream_t, config: *const ncclCollConfig_t) -> ncclResult_t;
            fn ncclSend(sendbuff: *const ::core::ffi::c_void, count: usize, datatype: ncclDataType_t, peer: ::core::ffi::c_int, comm: ncclComm_t, stream: cudaStream_t) -> ncclResult_t;
            fn ncclRecv(recvbuff: *mut ::core::ffi::c_void, count: usize, datatype: ncclDataType_t, peer: ::core::ffi::c_int, comm: ncclComm_t, stream: cudaStream_t) -> ncclResult_t;
            fn ncclPutSignal(localbuff: *const ::core::ffi::c_void, count: usize, datatype: ncclDataType_t, peer: ::core::ffi::c_int, peerWin: ncclWindow_t, peerWinOffset: usize, sigIdx: ::core::ffi::c_int, ctx: ::core::ffi::c_int, flags: ::core::ffi::c_uint, comm: ncclComm_t, stream: cudaStream_t) -> ncclResult_t;
            fn ncclSignal(peer: ::core::ffi::c_int, sigIdx: ::core::ffi::c_int, ctx: ::core::ffi::c_int, flags: ::core::ffi::c_uint, comm: ncclComm_t, stream: cudaStream_t) -> ncclResult_t;
            fn ncclWaitSignal(nDesc: ::core::ffi::c_int, signalDescs: *mut ncclWaitSignalDesc_t, comm: ncclComm_t, stream: cudaStream_t) -> ncclResult_t;
            fn ncclGroupStart() -> ncclResult_t;
            fn ncclGroupEnd() -> ncclResult_t;
            fn ncclGroupSimulateEnd(simInfo: *mut ncclSimInfo_t) -> ncclResult_t;
            fn ncclSetEncryption(config: *const ncclEncryptionConfig_t) -> ncclResult_t;
            fn ncclParamBind(out: *mut ncclParamHandle_t, key: *const ::core::ffi::c_char) -> ncclResult_t;
            fn ncclParamGetI8(h: ncclParamHandle_t, out: *mut i8) -> ncclResult_t;
            fn ncclParamGetI16(h: ncclParamHandle_t, out: *mut i16) -> ncclResult_t;
            fn ncclParamGetI32(h: ncclParamHandle_t, out: *mut i32) -> ncclResult_t;
            fn ncclParamGetI64(h: ncclParamHandle_t, out: *mut i64) -> ncclResult_t;
            fn ncclParamGetU8(h: ncclParamHandle_t, out: *mut u8) -> ncclResult_t;
            fn ncclParamGetU16(h: ncclParamHandle_t, out: *mut u16) -> ncclResult_t;
            fn ncclParamGetU32(h: ncclParamHandle_t, out: *mut u32) -> ncclResult_t;
            fn ncclParamGetU64(h: ncclParamHandle_t, out: *mut u64) -> ncclResult_t;
            fn ncclParamGetStr(h: ncclParamHandle_t, out: *mut *const ::core::ffi::c_char) -> ncclResult_t;
            fn ncclParamGet(h: ncclParamHandle_t, out: *mut ::core::ffi::c_void, maxLen: ::core::ffi::c_int, len: *mut ::core::ffi::c_int) -> ncclResult_t;
            fn ncclParamGetParameter(key: *const ::core::ffi::c_char, value: *mut *const ::core::ffi::c_char, valueLen: *mut ::core::ffi::c_int) -> ncclResult_t;
            fn ncclParamGetAllParameterKeys(table: *mut *mut *const ::core::ffi::c_char, tableLen: *mut ::core::ffi::c_int) -> ncclResult_t;
            fn ncclParamDumpAll();
        }
    };
}
/// Calls `$callback!` with the name of a table, and of its functions by version: NCCL 2.13.4, and newer.
#[allow(unused_macros)]
macro_rules! functions_by_release {
    ($callback:ident, $table:ident) => {
        $callback! {
            $table;
            oldest: ncclGetVersion ncclGetUniqueId ncclCommInitRank ncclCommInitAll ncclCommDestroy ncclCommAbort ncclGetErrorString ncclGetLastError ncclCommGetAsyncError ncclCommCount ncclCommCuDevice ncclCommUserRank ncclRedOpCreatePreMulSum ncclRedOpDestroy ncclReduce ncclBcast ncclBroadcast ncclAllReduce ncclReduceScatter ncclAllGather ncclSend ncclRecv ncclGroupStart ncclGroupEnd;
            newer: ncclMemAlloc ncclMemFree ncclCommInitRankConfig ncclCommFinalize ncclCommRevoke ncclCommSplit ncclCommShrink ncclCommGetUniqueId ncclCommGrow ncclCommInitRankScalable ncclCommRegister ncclCommDeregister ncclCommSuspend ncclCommResume ncclCommMemStats ncclCommWindowRegister ncclCommWindowDeregister ncclWinGetUserPtr ncclAlltoAll ncclGather ncclScatter ncclAllReduceConfig ncclBroadcastConfig ncclReduceConfig ncclAllGatherConfig ncclReduceScatterConfig ncclAlltoAllConfig ncclGatherConfig ncclScatterConfig ncclPutSignal ncclSignal ncclWaitSignal ncclGroupSimulateEnd ncclSetEncryption ncclParamBind ncclParamGetI8 ncclParamGetI16 ncclParamGetI32 ncclParamGetI64 ncclParamGetU8 ncclParamGetU16 ncclParamGetU32 ncclParamGetU64 ncclParamGetStr ncclParamGet ncclParamGetParameter ncclParamGetAllParameterKeys ncclParamDumpAll;
        }
    };
}
