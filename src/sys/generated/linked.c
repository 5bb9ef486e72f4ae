/* See build/bindings.rs, `c_table`. */
__attribute__((weak, visibility("hidden"))) void ncclMemAlloc(void);
__attribute__((weak, visibility("hidden"))) void ncclMemFree(void);
void ncclGetVersion(void);
void ncclGetUniqueId(void);
__attribute__((weak, visibility("hidden"))) void ncclCommInitRankConfig(void);
void ncclCommInitRank(void);
void ncclCommInitAll(void);
__attribute__((weak, visibility("hidden"))) void ncclCommFinalize(void);
void ncclCommDestroy(void);
void ncclCommAbort(void);
__attribute__((weak, visibility("hidden"))) void ncclCommRevoke(void);
__attribute__((weak, visibility("hidden"))) void ncclCommSplit(void);
__attribute__((weak, visibility("hidden"))) void ncclCommShrink(void);
__attribute__((weak, visibility("hidden"))) void ncclCommGetUniqueId(void);
__attribute__((weak, visibility("hidden"))) void ncclCommGrow(void);
__attribute__((weak, visibility("hidden"))) void ncclCommInitRankScalable(void);
void ncclGetErrorString(void);
void ncclGetLastError(void);
void ncclCommGetAsyncError(void);
void ncclCommCount(void);
void ncclCommCuDevice(void);
void ncclCommUserRank(void);
__attribute__((weak, visibility("hidden"))) void ncclCommRegister(void);
__attribute__((weak, visibility("hidden"))) void ncclCommDeregister(void);
__attribute__((weak, visibility("hidden"))) void ncclCommSuspend(void);
__attribute__((weak, visibility("hidden"))) void ncclCommResume(void);
__attribute__((weak, visibility("hidden"))) void ncclCommMemStats(void);
__attribute__((weak, visibility("hidden"))) void ncclCommWindowRegister(void);
__attribute__((weak, visibility("hidden"))) void ncclCommWindowDeregister(void);
__attribute__((weak, visibility("hidden"))) void ncclWinGetUserPtr(void);
void ncclRedOpCreatePreMulSum(void);
void ncclRedOpDestroy(void);
void ncclReduce(void);
void ncclBcast(void);
void ncclBroadcast(void);
void ncclAllReduce(void);
void ncclReduceScatter(void);
void ncclAllGather(void);
__attribute__((weak, visibility("hidden"))) void ncclAlltoAll(void);
__attribute__((weak, visibility("hidden"))) void ncclGather(void);
__attribute__((weak, visibility("hidden"))) void ncclScatter(void);
__attribute__((weak, visibility("hidden"))) void ncclAllReduceConfig(void);
__attribute__((weak, visibility("hidden"))) void ncclBroadcastConfig(void);
__attribute__((weak, visibility("hidden"))) void ncclReduceConfig(void);
__attribute__((weak, visibility("hidden"))) void ncclAllGatherConfig(void);
__attribute__((weak, visibility("hidden"))) void ncclReduceScatterConfig(void);
__attribute__((weak, visibility("hidden"))) void ncclAlltoAllConfig(void);
__attribute__((weak, visibility("hidden"))) void ncclGatherConfig(void);
__attribute__((weak, visibility("hidden"))) void ncclScatterConfig(void);
void ncclSend(void);
void ncclRecv(void);
__attribute__((weak, visibility("hidden"))) void ncclPutSignal(void);
__attribute__((weak, visibility("hidden"))) void ncclSignal(void);
__attribute__((weak, visibility("hidden"))) void ncclWaitSignal(void);
void ncclGroupStart(void);
void ncclGroupEnd(void);
__attribute__((weak, visibility("hidden"))) void ncclGroupSimulateEnd(void);
__attribute__((weak, visibility("hidden"))) void ncclSetEncryption(void);
__attribute__((weak, visibility("hidden"))) void ncclParamBind(void);
__attribute__((weak, visibility("hidden"))) void ncclParamGetI8(void);
__attribute__((weak, visibility("hidden"))) void ncclParamGetI16(void);
__attribute__((weak, visibility("hidden"))) void ncclParamGetI32(void);
__attribute__((weak, visibility("hidden"))) void ncclParamGetI64(void);
__attribute__((weak, visibility("hidden"))) void ncclParamGetU8(void);
__attribute__((weak, visibility("hidden"))) void ncclParamGetU16(void);
__attribute__((weak, visibility("hidden"))) void ncclParamGetU32(void);
__attribute__((weak, visibility("hidden"))) void ncclParamGetU64(void);
__attribute__((weak, visibility("hidden"))) void ncclParamGetStr(void);
__attribute__((weak, visibility("hidden"))) void ncclParamGet(void);
__attribute__((weak, visibility("hidden"))) void ncclParamGetParameter(void);
__attribute__((weak, visibility("hidden"))) void ncclParamGetAllParameterKeys(void);
__attribute__((weak, visibility("hidden"))) void ncclParamDumpAll(void);
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
