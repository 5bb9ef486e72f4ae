/* See build/bindings.rs, `c_table`. */
void ncclMemAlloc(void);
void ncclMemFree(void);
void ncclGetVersion(void);
void ncclGetUniqueId(void);
void ncclCommInitRankConfig(void);
void ncclCommInitRank(void);
void ncclCommInitAll(void);
void ncclCommFinalize(void);
void ncclCommDestroy(void);
void ncclCommAbort(void);
void ncclCommRevoke(void);
void ncclCommSplit(void);
void ncclCommShrink(void);
void ncclCommGetUniqueId(void);
void ncclCommGrow(void);
void ncclCommInitRankScalable(void);
void ncclGetErrorString(void);
void ncclGetLastError(void);
void ncclCommGetAsyncError(void);
void ncclCommCount(void);
void ncclCommCuDevice(void);
void ncclCommUserRank(void);
void ncclCommRegister(void);
void ncclCommDeregister(void);
void ncclCommSuspend(void);
void ncclCommResume(void);
void ncclCommMemStats(void);
void ncclCommWindowRegister(void);
void ncclCommWindowDeregister(void);
void ncclWinGetUserPtr(void);
void ncclRedOpCreatePreMulSum(void);
void ncclRedOpDestroy(void);
void ncclReduce(void);
void ncclBcast(void);
void ncclBroadcast(void);
void ncclAllReduce(void);
void ncclReduceScatter(void);
void ncclAllGather(void);
void ncclAlltoAll(void);
void ncclGather(void);
void ncclScatter(void);
void ncclAllReduceConfig(void);
void ncclBroadcastConfig(void);
void ncclReduceConfig(void);
void ncclAllGatherConfig(void);
void ncclReduceScatterConfig(void);
void ncclAlltoAllConfig(void);
void ncclGatherConfig(void);
void ncclScatterConfig(void);
void ncclSend(void);
void ncclRecv(void);
void ncclPutSignal(void);
void ncclSignal(void);
void ncclWaitSignal(void);
void ncclGroupStart(void);
void ncclGroupEnd(void);
void ncclGroupSimulateEnd(void);
void ncclSetEncryption(void);
void ncclParamBind(void);
void ncclParamGetI8(void);
void ncclParamGetI16(void);
void ncclParamGetI32(void);
void ncclParamGetI64(void);
void ncclParamGetU8(void);
void ncclParamGetU16(void);
void ncclParamGetU32(void);
void ncclParamGetU64(void);
void ncclParamGetStr(void);
void ncclParamGet(void);
void ncclParamGetParameter(void);
void ncclParamGetAllParameterKeys(void);
void ncclParamDumpAll(void);
#pragma weak ncclMemAlloc
#pragma weak ncclMemFree
#pragma weak ncclCommInitRankConfig
#pragma weak ncclCommFinalize
#pragma weak ncclCommRevoke
#pragma weak ncclCommSplit
#pragma weak ncclCommShrink
#pragma weak ncclCommGetUniqueId
#pragma weak ncclCommGrow
#pragma weak ncclCommInitRankScalable
#pragma weak ncclCommRegister
#pragma weak ncclCommDeregister
#pragma weak ncclCommSuspend
#pragma weak ncclCommResume
#pragma weak ncclCommMemStats
#pragma weak ncclCommWindowRegister
#pragma weak ncclCommWindowDeregister
#pragma weak ncclWinGetUserPtr
#pragma weak ncclAlltoAll
#pragma weak ncclGather
#pragma weak ncclScatter
#pragma weak ncclAllReduceConfig
#pragma weak ncclBroadcastConfig
#pragma weak ncclReduceConfig
#pragma weak ncclAllGatherConfig
#pragma weak ncclReduceScatterConfig
#pragma weak ncclAlltoAllConfig
#pragma weak ncclGatherConfig
#pragma weak ncclScatterConfig
#pragma weak ncclPutSignal
#pragma weak ncclSignal
#pragma weak ncclWaitSignal
#pragma weak ncclGroupSimulateEnd
#pragma weak ncclSetEncryption
#pragma weak ncclParamBind
#pragma weak ncclParamGetI8
#pragma weak ncclParamGetI16
#pragma weak ncclParamGetI32
#pragma weak ncclParamGetI64
#pragma weak ncclParamGetU8
#pragma weak ncclParamGetU16
#pragma weak ncclParamGetU32
#pragma weak ncclParamGetU64
#pragma weak ncclParamGetStr
#pragma weak ncclParamGet
#pragma weak ncclParamGetParameter
#pragma weak ncclParamGetAllParameterKeys
#pragma weak ncclParamDumpAll
void (*const FUNCTIONS[])(void) = {
    ncclMemAlloc,
    ncclMemFree,
    ncclGetVersion,
    ncclGetUniqueId,
    ncclCommInitRankConfig,
    ncclCommInitRank,
    ncclCommInitAll,
    ncclCommFinalize,
    ncclCommDestroy,
    ncclCommAbort,
    ncclCommRevoke,
    ncclCommSplit,
    ncclCommShrink,
    ncclCommGetUniqueId,
    ncclCommGrow,
    ncclCommInitRankScalable,
    ncclGetErrorString,
    ncclGetLastError,
    ncclCommGetAsyncError,
    ncclCommCount,
    ncclCommCuDevice,
    ncclCommUserRank,
    ncclCommRegister,
    ncclCommDeregister,
    ncclCommSuspend,
    ncclCommResume,
    ncclCommMemStats,
    ncclCommWindowRegister,
    ncclCommWindowDeregister,
    ncclWinGetUserPtr,
    ncclRedOpCreatePreMulSum,
    ncclRedOpDestroy,
    ncclReduce,
    ncclBcast,
    ncclBroadcast,
    ncclAllReduce,
    ncclReduceScatter,
    ncclAllGather,
    ncclAlltoAll,
    ncclGather,
    ncclScatter,
    ncclAllReduceConfig,
    ncclBroadcastConfig,
    ncclReduceConfig,
    ncclAllGatherConfig,
    ncclReduceScatterConfig,
    ncclAlltoAllConfig,
    ncclGatherConfig,
    ncclScatterConfig,
    ncclSend,
    ncclRecv,
    ncclPutSignal,
    ncclSignal,
    ncclWaitSignal,
    ncclGroupStart,
    ncclGroupEnd,
    ncclGroupSimulateEnd,
    ncclSetEncryption,
    ncclParamBind,
    ncclParamGetI8,
    ncclParamGetI16,
    ncclParamGetI32,
    ncclParamGetI64,
    ncclParamGetU8,
    ncclParamGetU16,
    ncclParamGetU32,
    ncclParamGetU64,
    ncclParamGetStr,
    ncclParamGet,
    ncclParamGetParameter,
    ncclParamGetAllParameterKeys,
    ncclParamDumpAll,
};
