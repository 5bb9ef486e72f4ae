unsafe extern "C" {
    /** Allocates `size` bytes on the current device, in the kind of memory that registration and windows require.

 NCCL rounds `size` up to the granularity of the device. It writes `*ptr` only on success. Returns
 `ncclUnhandledCudaError` without a driver.
 Since NCCL 2.19.3.*/
    pub fn ncclMemAlloc(ptr: *mut *mut ::core::ffi::c_void, size: usize) -> ncclResult_t;
    /** Frees memory from `ncclMemAlloc`.

 Deregister the memory from every communicator first.
 Since NCCL 2.19.3.*/
    pub fn ncclMemFree(ptr: *mut ::core::ffi::c_void) -> ncclResult_t;
    /** Stores the version code of the loaded library: 23203 for 2.32.3.

 Works without a GPU and without a driver. Returns `ncclInvalidArgument` for a null pointer. Compare the version
 with `NCCL_VERSION` to find out which functions and fields the library has.
 Since NCCL 2.13.4.*/
    pub fn ncclGetVersion(version: *mut ::core::ffi::c_int) -> ncclResult_t;
    /** Creates the id with which the ranks of a new communicator find each other.

 Call it in one process and send the 128 bytes to the others. Needs no GPU. Unless `NCCL_COMM_ID=ip:port` is set, each
 call starts a thread and opens a port for the ranks, so the process must live until all ranks have joined. If they
 never join, the thread and the port remain. If the first call fails (for example, without a usable network
 interface), later calls never return in versions up to 2.21.5, and fail with the same error in newer ones. Zero
 `*uniqueId` first: 2.16.5 to 2.22.3 write only a part of it.
 Since NCCL 2.13.4.*/
    pub fn ncclGetUniqueId(uniqueId: *mut ncclUniqueId) -> ncclResult_t;
    /** Joins a new communicator as `ncclCommInitRank` does, with options; `config` may be `NULL`.

 Set `*comm` to `NULL` before: 2.17.1 to 2.22.3 dereference it if the call fails. In versions before 2.17, `blocking`
 must be 0 or 1. With `blocking` 0, the call may return `ncclInProgress`, and writes the handle immediately. If no
 device is found, the thread may be left inside a group (observed in 2.23.4 to 2.32.3).
 Since NCCL 2.14.3.*/
    pub fn ncclCommInitRankConfig(
        comm: *mut ncclComm_t,
        nranks: ::core::ffi::c_int,
        commId: ncclUniqueId,
        rank: ::core::ffi::c_int,
        config: *mut ncclConfig_t,
    ) -> ncclResult_t;
    /** Joins a new communicator of `nranks` ranks as rank `rank` (from 0), on the current CUDA device.

 All ranks call it with the same `commId`, and each waits for all others: call it from one thread or process per rank,
 or between `ncclGroupStart` and `ncclGroupEnd`. Returns `ncclInvalidUsage` if ranks have different versions, or share
 a GPU without `NCCL_MULTI_RANK_GPU_ENABLE=1` (2.30.3 and newer), and `ncclUnhandledCudaError` without a driver.
 Since NCCL 2.13.4.*/
    pub fn ncclCommInitRank(
        comm: *mut ncclComm_t,
        nranks: ::core::ffi::c_int,
        commId: ncclUniqueId,
        rank: ::core::ffi::c_int,
    ) -> ncclResult_t;
    /** Creates all ranks of a communicator in this process, one per device.

 `comm` has space for `ndev` handles; entry i becomes rank i, on CUDA device `devlist[i]`, or on device i if `devlist`
 is `NULL`. A device may appear only once, unless ranks may share GPUs (see `ncclCommInitRank`). If one thread drives
 all ranks, put their operations into groups.
 Since NCCL 2.13.4.*/
    pub fn ncclCommInitAll(
        comm: *mut ncclComm_t,
        ndev: ::core::ffi::c_int,
        devlist: *const ::core::ffi::c_int,
    ) -> ncclResult_t;
    /** Completes the enqueued work and begins the teardown, together with the other ranks.

 On a nonblocking communicator, poll until `ncclSuccess`; `ncclCommDestroy` then does not wait. Returns
 `ncclInvalidArgument` if it is called a second time, or after `ncclCommRevoke`. Does nothing for `NULL`.
 Since NCCL 2.14.3.*/
    pub fn ncclCommFinalize(comm: ncclComm_t) -> ncclResult_t;
    /** Frees this rank's communicator; the handle is invalid afterwards.

 Finalizes the communicator first, unless `ncclCommFinalize` was called. So all ranks of a node should call it at
 about the same time; otherwise it may hang. Deregister buffers and windows before. Succeeds for `NULL`.
 Since NCCL 2.13.4.*/
    pub fn ncclCommDestroy(comm: ncclComm_t) -> ncclResult_t;
    /** Aborts the work of this communicator and frees it, without the other ranks.

 For use after an error or the failure of a peer; all surviving ranks should call it. No other thread may be
 inside an NCCL call on this handle, which is invalid afterwards. If resources are shared (`splitShare`), the
 parent and other children may fail. Succeeds for `NULL`.
 Since NCCL 2.13.4.*/
    pub fn ncclCommAbort(comm: ncclComm_t) -> ncclResult_t;
    /** Stops the work of this communicator, and keeps the communicator, so that it can be split or shrunk.

 `revokeFlags` must be 0. Poll `ncclCommGetAsyncError` until it no longer stores `ncclInProgress`; then
 destroy, split or shrink. Collectives on a revoked communicator return `ncclInvalidUsage`, and its children
 cannot share its resources. Returns `ncclInvalidArgument` if it is called a second time, or after
 `ncclCommFinalize`. Succeeds for `NULL`.
 Since NCCL 2.28.7.*/
    pub fn ncclCommRevoke(
        comm: ncclComm_t,
        revokeFlags: ::core::ffi::c_int,
    ) -> ncclResult_t;
    /** Splits a communicator: ranks with equal `color` form a new one, ordered by `key`, then by old rank.

 All ranks of `comm` call it. With `NCCL_SPLIT_NOCOLOR`, a rank joins no new communicator, and `*newcomm` is null. A
 null `config` means the options of `comm`. NCCL writes `*newcomm` when the split is complete, and `newcomm` must stay
 valid until then. In a group, or if `comm` is nonblocking, this is after the call has returned. A null `comm` crashes
 2.23.4 and 2.24.3.
 Since NCCL 2.18.1.*/
    pub fn ncclCommSplit(
        comm: ncclComm_t,
        color: ::core::ffi::c_int,
        key: ::core::ffi::c_int,
        newcomm: *mut ncclComm_t,
        config: *mut ncclConfig_t,
    ) -> ncclResult_t;
    /** Creates a communicator of the ranks that are not in `excludeRanksList`, in the same order.

 Only the remaining ranks call it, all with the same `excludeRanksCount` ranks in the list, which NCCL sorts in place.
 `shrinkFlags`: `NCCL_SHRINK_DEFAULT`, or `NCCL_SHRINK_ABORT` if operations may hang. A null `config` means the
 options of `comm`. NCCL writes `*newcomm` when the shrink is complete, as in `ncclCommSplit`. A null `comm` crashes.
 Since NCCL 2.27.3.*/
    pub fn ncclCommShrink(
        comm: ncclComm_t,
        excludeRanksList: *mut ::core::ffi::c_int,
        excludeRanksCount: ::core::ffi::c_int,
        newcomm: *mut ncclComm_t,
        config: *mut ncclConfig_t,
        shrinkFlags: ::core::ffi::c_int,
    ) -> ncclResult_t;
    /** Creates the id with which new ranks join `comm` through `ncclCommGrow`.

 One rank of `comm` calls it and sends the id to the new ranks. An id is for one `ncclCommGrow`; until that is
 complete, no second id can be created. Fails if `NCCL_COMM_ID` is set.
 Since NCCL 2.29.2.*/
    pub fn ncclCommGetUniqueId(
        comm: ncclComm_t,
        uniqueId: *mut ncclUniqueId,
    ) -> ncclResult_t;
    /** Creates a larger communicator, of `nRanks` ranks, from `comm` and new ranks.

 A rank of `comm` passes -1 as `rank`, and keeps its number. The rank that created the id passes it as `uniqueId`; the
 other ranks of `comm` pass `NULL`. A new rank passes `NULL` as `comm`, the id, and its number as `rank`, which must be
 at least the old number of ranks. `config` may be `NULL`. The id can be used only once.
 Since NCCL 2.29.2.*/
    pub fn ncclCommGrow(
        comm: ncclComm_t,
        nRanks: ::core::ffi::c_int,
        uniqueId: *const ncclUniqueId,
        rank: ::core::ffi::c_int,
        newcomm: *mut ncclComm_t,
        config: *mut ncclConfig_t,
    ) -> ncclResult_t;
    /** Joins a new communicator as `ncclCommInitRankConfig` does, with `nId` ids, which distributes the load of many
 ranks.

 `commIds` holds `nId` ids (1 to `nranks`), the same in the same order on all ranks; each comes from a separate
 `ncclGetUniqueId`, preferably in different processes. Note that `myrank` precedes the ids.
 Since NCCL 2.23.4.*/
    pub fn ncclCommInitRankScalable(
        newcomm: *mut ncclComm_t,
        nranks: ::core::ffi::c_int,
        myrank: ::core::ffi::c_int,
        nId: ::core::ffi::c_int,
        commIds: *mut ncclUniqueId,
        config: *mut ncclConfig_t,
    ) -> ncclResult_t;
    /** Describes a result code in English.

 Returns a constant string, never `NULL`: for an unknown code, "unknown result code". The texts depend on the version:
 compare codes, not texts.
 Since NCCL 2.13.4.*/
    pub fn ncclGetErrorString(result: ncclResult_t) -> *const ::core::ffi::c_char;
    /** Returns the text of the latest failure of any thread in this process.

 All threads and communicators share the buffer with the text; `comm` is ignored and may be `NULL`. The buffer is
 empty at first, overwritten by each failure, and never cleared. Copy the text immediately; another thread may have
 overwritten it already.
 Since NCCL 2.13.4.*/
    pub fn ncclGetLastError(comm: ncclComm_t) -> *const ::core::ffi::c_char;
    /** Stores the state of the communicator in `*asyncError`: healthy, in progress, or failed.

 Reports failures of enqueued operations, and the progress of a nonblocking call: `ncclInProgress` until it is
 complete. The return value is the result of the query itself. Only one thread may poll a communicator. After an
 error, abort the communicator.
 Since NCCL 2.13.4.*/
    pub fn ncclCommGetAsyncError(
        comm: ncclComm_t,
        asyncError: *mut ncclResult_t,
    ) -> ncclResult_t;
    /** Stores the number of ranks of the communicator.

 Returns `ncclInvalidArgument` while a nonblocking call is in progress.
 Since NCCL 2.13.4.*/
    pub fn ncclCommCount(
        comm: ncclComm_t,
        count: *mut ::core::ffi::c_int,
    ) -> ncclResult_t;
    /** Stores the ordinal of the CUDA device that this rank runs on.

 Returns `ncclInvalidArgument` while a nonblocking call is in progress.
 Since NCCL 2.13.4.*/
    pub fn ncclCommCuDevice(
        comm: ncclComm_t,
        device: *mut ::core::ffi::c_int,
    ) -> ncclResult_t;
    /** Stores the number of this rank, from 0.

 Returns `ncclInvalidArgument` while a nonblocking call is in progress.
 Since NCCL 2.13.4.*/
    pub fn ncclCommUserRank(
        comm: ncclComm_t,
        rank: *mut ::core::ffi::c_int,
    ) -> ncclResult_t;
    /** Registers a buffer of `size` bytes that operations will use, so that NCCL can skip its staging copies.

 Other ranks need not call it. `*handle` may be `NULL` after a success, if registration has no benefit. Memory from
 `ncclMemAlloc` is best. Deregister before freeing the memory or destroying the communicator.
 Since NCCL 2.19.3.*/
    pub fn ncclCommRegister(
        comm: ncclComm_t,
        buff: *mut ::core::ffi::c_void,
        size: usize,
        handle: *mut *mut ::core::ffi::c_void,
    ) -> ncclResult_t;
    /** Undoes `ncclCommRegister`; no operation may be using the buffer.

 Since NCCL 2.19.3.*/
    pub fn ncclCommDeregister(
        comm: ncclComm_t,
        handle: *mut ::core::ffi::c_void,
    ) -> ncclResult_t;
    /** Suspends the communicator and frees the resources that `flags` names; all ranks call it.

 `flags` is `NCCL_SUSPEND_MEM`. Until `ncclCommResume`, nothing may be enqueued. Returns `ncclInvalidUsage`
 for a communicator that shares resources with another (`splitShare`).
 Since NCCL 2.29.7.*/
    pub fn ncclCommSuspend(comm: ncclComm_t, flags: ::core::ffi::c_int) -> ncclResult_t;
    /** Resumes a communicator after `ncclCommSuspend`; all ranks call it.

 It allocates memory, so it can fail if there is too little.
 Since NCCL 2.29.7.*/
    pub fn ncclCommResume(comm: ncclComm_t) -> ncclResult_t;
    /** Stores a statistic of the communicator's GPU memory.

 The value is in bytes, except for `ncclStatGpuMemSuspended`, which is 0 or 1.
 Since NCCL 2.29.7.*/
    pub fn ncclCommMemStats(
        comm: ncclComm_t,
        stat: ncclCommMemStat_t,
        value: *mut u64,
    ) -> ncclResult_t;
    /** Registers `size` bytes at `buff` with all ranks, for symmetric collectives and one-sided operations.

 All ranks call it. The address must be a multiple of `NCCL_WIN_REQUIRED_ALIGNMENT`, and the memory must be from
 `ncclMemAlloc` or CUDA's virtual memory API. `winFlags` combines `NCCL_WIN_*` bits. NCCL writes `*win` when the
 registration is complete, and `win` must stay valid until then. In a group, or if `comm` is nonblocking, this is
 after the call has returned. Success with a null `*win` means that this system has no symmetric memory. Deregister
 before freeing the memory.
 Since NCCL 2.27.3.*/
    pub fn ncclCommWindowRegister(
        comm: ncclComm_t,
        buff: *mut ::core::ffi::c_void,
        size: usize,
        win: *mut ncclWindow_t,
        winFlags: ::core::ffi::c_int,
    ) -> ncclResult_t;
    /** Undoes `ncclCommWindowRegister`; no operation may be using the window.

 Since NCCL 2.27.3.*/
    pub fn ncclCommWindowDeregister(comm: ncclComm_t, win: ncclWindow_t) -> ncclResult_t;
    /** Stores the address that the window was registered with.

 Since NCCL 2.29.2.*/
    pub fn ncclWinGetUserPtr(
        comm: ncclComm_t,
        win: ncclWindow_t,
        outUserPtr: *mut *mut ::core::ffi::c_void,
    ) -> ncclResult_t;
    /** Creates an operator that multiplies each rank's values by that rank's `*scalar` and adds the products.

 `scalar` points to one element of `datatype` in the memory that `residence` names. The operator, stored in
 `*op`, works only with this communicator and this type. A null `comm` crashes 2.13.4.
 Since NCCL 2.13.4.*/
    pub fn ncclRedOpCreatePreMulSum(
        op: *mut ncclRedOp_t,
        scalar: *mut ::core::ffi::c_void,
        datatype: ncclDataType_t,
        residence: ncclScalarResidence_t,
        comm: ncclComm_t,
    ) -> ncclResult_t;
    /** Frees a custom operator of this communicator.

 Allowed once the calls with the operator have returned, even if their work still runs (a device scalar must stay
 valid until the work has run). Returns `ncclInvalidArgument` for a built-in operator. A null `comm` crashes versions
 up to 2.16.5.
 Since NCCL 2.13.4.*/
    pub fn ncclRedOpDestroy(op: ncclRedOp_t, comm: ncclComm_t) -> ncclResult_t;
    /** Combines the `count` elements of every rank's `sendbuff` with `op`; rank `root` receives the result.

 `sendbuff`: `count` elements. `recvbuff`: `count` elements on `root`; unused on other ranks, may be `NULL`.
 In place: equal pointers.
 Since NCCL 2.13.4.*/
    pub fn ncclReduce(
        sendbuff: *const ::core::ffi::c_void,
        recvbuff: *mut ::core::ffi::c_void,
        count: usize,
        datatype: ncclDataType_t,
        op: ncclRedOp_t,
        root: ::core::ffi::c_int,
        comm: ncclComm_t,
        stream: cudaStream_t,
    ) -> ncclResult_t;
    /** `ncclBroadcast` with one buffer, which `root` sends and the others receive; superseded by `ncclBroadcast`.

 `buff`: `count` elements on every rank.
 Since NCCL 2.13.4.*/
    pub fn ncclBcast(
        buff: *mut ::core::ffi::c_void,
        count: usize,
        datatype: ncclDataType_t,
        root: ::core::ffi::c_int,
        comm: ncclComm_t,
        stream: cudaStream_t,
    ) -> ncclResult_t;
    /** Copies the `count` elements in `sendbuff` of rank `root` to every rank.

 `sendbuff`: `count` elements on `root`; unused on other ranks, may be `NULL`. `recvbuff`: `count` elements on
 every rank. In place: equal pointers on `root`.
 Since NCCL 2.13.4.*/
    pub fn ncclBroadcast(
        sendbuff: *const ::core::ffi::c_void,
        recvbuff: *mut ::core::ffi::c_void,
        count: usize,
        datatype: ncclDataType_t,
        root: ::core::ffi::c_int,
        comm: ncclComm_t,
        stream: cudaStream_t,
    ) -> ncclResult_t;
    /** Combines the `count` elements of every rank's `sendbuff` with `op`; every rank receives the result.

 `sendbuff` and `recvbuff`: `count` elements each. In place: equal pointers.
 Since NCCL 2.13.4.*/
    pub fn ncclAllReduce(
        sendbuff: *const ::core::ffi::c_void,
        recvbuff: *mut ::core::ffi::c_void,
        count: usize,
        datatype: ncclDataType_t,
        op: ncclRedOp_t,
        comm: ncclComm_t,
        stream: cudaStream_t,
    ) -> ncclResult_t;
    /** Combines the ranks' `sendbuff` with `op` and scatters the result: rank r receives block r.

 `recvcount` is the size of one block. `sendbuff`: n blocks. `recvbuff`: one block. In place: `recvbuff` is
 block `rank` of `sendbuff`, that is `sendbuff + rank*recvcount`.
 Since NCCL 2.13.4.*/
    pub fn ncclReduceScatter(
        sendbuff: *const ::core::ffi::c_void,
        recvbuff: *mut ::core::ffi::c_void,
        recvcount: usize,
        datatype: ncclDataType_t,
        op: ncclRedOp_t,
        comm: ncclComm_t,
        stream: cudaStream_t,
    ) -> ncclResult_t;
    /** Gathers the blocks of all ranks on every rank, in rank order.

 `sendcount` is the size of one block. `sendbuff`: one block. `recvbuff`: n blocks. In place: `sendbuff` is
 block `rank` of `recvbuff`, that is `recvbuff + rank*sendcount`.
 Since NCCL 2.13.4.*/
    pub fn ncclAllGather(
        sendbuff: *const ::core::ffi::c_void,
        recvbuff: *mut ::core::ffi::c_void,
        sendcount: usize,
        datatype: ncclDataType_t,
        comm: ncclComm_t,
        stream: cudaStream_t,
    ) -> ncclResult_t;
    /** Sends a block from every rank to every rank: block j of rank i arrives as block i at rank j.

 `count` is the size of one block, not of the buffers: `sendbuff` and `recvbuff` hold n blocks each. There is
 no in-place form.
 Since NCCL 2.28.3.*/
    pub fn ncclAlltoAll(
        sendbuff: *const ::core::ffi::c_void,
        recvbuff: *mut ::core::ffi::c_void,
        count: usize,
        datatype: ncclDataType_t,
        comm: ncclComm_t,
        stream: cudaStream_t,
    ) -> ncclResult_t;
    /** Gathers the blocks of all ranks on rank `root`, in rank order.

 `count` is the size of one block. `sendbuff`: one block. `recvbuff`: n blocks on `root`, unused elsewhere. In
 place, on `root`: `sendbuff` is block `root` of `recvbuff`.
 Since NCCL 2.28.3.*/
    pub fn ncclGather(
        sendbuff: *const ::core::ffi::c_void,
        recvbuff: *mut ::core::ffi::c_void,
        count: usize,
        datatype: ncclDataType_t,
        root: ::core::ffi::c_int,
        comm: ncclComm_t,
        stream: cudaStream_t,
    ) -> ncclResult_t;
    /** Scatters the buffer of rank `root`: rank r receives block r.

 `count` is the size of one block. `sendbuff`: n blocks on `root`, unused elsewhere. `recvbuff`: one block. In
 place, on `root`: `recvbuff` is block `root` of `sendbuff`.
 Since NCCL 2.28.3.*/
    pub fn ncclScatter(
        sendbuff: *const ::core::ffi::c_void,
        recvbuff: *mut ::core::ffi::c_void,
        count: usize,
        datatype: ncclDataType_t,
        root: ::core::ffi::c_int,
        comm: ncclComm_t,
        stream: cudaStream_t,
    ) -> ncclResult_t;
    /** `ncclAllReduce` with options for this call.

 `sendbuff` and `recvbuff`: `count` elements each. A null `config` means no options; otherwise all ranks pass
 equal options. Malformed options cause `ncclInvalidArgument`.
 Since NCCL 2.31.2.*/
    pub fn ncclAllReduceConfig(
        sendbuff: *const ::core::ffi::c_void,
        recvbuff: *mut ::core::ffi::c_void,
        count: usize,
        datatype: ncclDataType_t,
        op: ncclRedOp_t,
        comm: ncclComm_t,
        stream: cudaStream_t,
        config: *const ncclCollConfig_t,
    ) -> ncclResult_t;
    /** `ncclBroadcast` with options for this call.

 `sendbuff`: `count` elements on `root`; `recvbuff`: `count` elements. `config` as in `ncclAllReduceConfig`.
 Since NCCL 2.31.2.*/
    pub fn ncclBroadcastConfig(
        sendbuff: *const ::core::ffi::c_void,
        recvbuff: *mut ::core::ffi::c_void,
        count: usize,
        datatype: ncclDataType_t,
        root: ::core::ffi::c_int,
        comm: ncclComm_t,
        stream: cudaStream_t,
        config: *const ncclCollConfig_t,
    ) -> ncclResult_t;
    /** `ncclReduce` with options for this call.

 `sendbuff`: `count` elements; `recvbuff`: `count` elements on `root`. `config` as in `ncclAllReduceConfig`.
 Since NCCL 2.31.2.*/
    pub fn ncclReduceConfig(
        sendbuff: *const ::core::ffi::c_void,
        recvbuff: *mut ::core::ffi::c_void,
        count: usize,
        datatype: ncclDataType_t,
        op: ncclRedOp_t,
        root: ::core::ffi::c_int,
        comm: ncclComm_t,
        stream: cudaStream_t,
        config: *const ncclCollConfig_t,
    ) -> ncclResult_t;
    /** `ncclAllGather` with options for this call.

 `sendbuff`: `sendcount` elements; `recvbuff`: n times that. `config` as in `ncclAllReduceConfig`.
 Since NCCL 2.31.2.*/
    pub fn ncclAllGatherConfig(
        sendbuff: *const ::core::ffi::c_void,
        recvbuff: *mut ::core::ffi::c_void,
        sendcount: usize,
        datatype: ncclDataType_t,
        comm: ncclComm_t,
        stream: cudaStream_t,
        config: *const ncclCollConfig_t,
    ) -> ncclResult_t;
    /** `ncclReduceScatter` with options for this call.

 `recvbuff`: `recvcount` elements; `sendbuff`: n times that. `config` as in `ncclAllReduceConfig`.
 Since NCCL 2.31.2.*/
    pub fn ncclReduceScatterConfig(
        sendbuff: *const ::core::ffi::c_void,
        recvbuff: *mut ::core::ffi::c_void,
        recvcount: usize,
        datatype: ncclDataType_t,
        op: ncclRedOp_t,
        comm: ncclComm_t,
        stream: cudaStream_t,
        config: *const ncclCollConfig_t,
    ) -> ncclResult_t;
    /** `ncclAlltoAll` with options for this call.

 `sendbuff` and `recvbuff`: n times `count` elements each. `config` as in `ncclAllReduceConfig`.
 Since NCCL 2.31.2.*/
    pub fn ncclAlltoAllConfig(
        sendbuff: *const ::core::ffi::c_void,
        recvbuff: *mut ::core::ffi::c_void,
        count: usize,
        datatype: ncclDataType_t,
        comm: ncclComm_t,
        stream: cudaStream_t,
        config: *const ncclCollConfig_t,
    ) -> ncclResult_t;
    /** `ncclGather` with options for this call.

 `sendbuff`: `count` elements; `recvbuff`: n times that, on `root`. `config` as in `ncclAllReduceConfig`.
 Since NCCL 2.31.2.*/
    pub fn ncclGatherConfig(
        sendbuff: *const ::core::ffi::c_void,
        recvbuff: *mut ::core::ffi::c_void,
        count: usize,
        datatype: ncclDataType_t,
        root: ::core::ffi::c_int,
        comm: ncclComm_t,
        stream: cudaStream_t,
        config: *const ncclCollConfig_t,
    ) -> ncclResult_t;
    /** `ncclScatter` with options for this call.

 `recvbuff`: `count` elements; `sendbuff`: n times that, on `root`. `config` as in `ncclAllReduceConfig`.
 Since NCCL 2.31.2.*/
    pub fn ncclScatterConfig(
        sendbuff: *const ::core::ffi::c_void,
        recvbuff: *mut ::core::ffi::c_void,
        count: usize,
        datatype: ncclDataType_t,
        root: ::core::ffi::c_int,
        comm: ncclComm_t,
        stream: cudaStream_t,
        config: *const ncclCollConfig_t,
    ) -> ncclResult_t;
    /** Sends `count` elements to rank `peer`, which must receive as many of the same type.

 The stream waits for the matching receive. If two ranks both send and receive, each must put its calls into one group
 to avoid a deadlock. Sends to a peer match the peer's receives in order.
 Since NCCL 2.13.4.*/
    pub fn ncclSend(
        sendbuff: *const ::core::ffi::c_void,
        count: usize,
        datatype: ncclDataType_t,
        peer: ::core::ffi::c_int,
        comm: ncclComm_t,
        stream: cudaStream_t,
    ) -> ncclResult_t;
    /** Receives `count` elements from rank `peer`, which must send as many of the same type.

 Grouping and order: see `ncclSend`.
 Since NCCL 2.13.4.*/
    pub fn ncclRecv(
        recvbuff: *mut ::core::ffi::c_void,
        count: usize,
        datatype: ncclDataType_t,
        peer: ::core::ffi::c_int,
        comm: ncclComm_t,
        stream: cudaStream_t,
    ) -> ncclResult_t;
    /** Writes `count` elements into the window of rank `peer`, then raises a signal there.

 `localbuff`: `count` elements, inside a window of this rank. `peerWin` is this rank's handle to the window, and
 `peerWinOffset` an offset in the window in bytes, not elements. `sigIdx` must be below `numRmaSig`, and `ctx` below
 `numRmaCtx`; these fields of `ncclConfig_t` are 1 by default. `flags` must be 0. The peer waits with
 `ncclWaitSignal`.
 Since NCCL 2.29.2.*/
    pub fn ncclPutSignal(
        localbuff: *const ::core::ffi::c_void,
        count: usize,
        datatype: ncclDataType_t,
        peer: ::core::ffi::c_int,
        peerWin: ncclWindow_t,
        peerWinOffset: usize,
        sigIdx: ::core::ffi::c_int,
        ctx: ::core::ffi::c_int,
        flags: ::core::ffi::c_uint,
        comm: ncclComm_t,
        stream: cudaStream_t,
    ) -> ncclResult_t;
    /** Raises a signal at rank `peer` without data; for the arguments, see `ncclPutSignal`.

 Returns `ncclInvalidUsage` before the first window is registered, unless `rmaEagerInit` of `ncclConfig_t` is 1.
 Since NCCL 2.29.2.*/
    pub fn ncclSignal(
        peer: ::core::ffi::c_int,
        sigIdx: ::core::ffi::c_int,
        ctx: ::core::ffi::c_int,
        flags: ::core::ffi::c_uint,
        comm: ncclComm_t,
        stream: cudaStream_t,
    ) -> ncclResult_t;
    /** Makes the stream wait for signals from other ranks, and for the data put before the signals.

 `signalDescs` holds `nDesc` entries; the stream waits for all of them. The host does not wait. Like
 `ncclSignal`, it requires a window or `rmaEagerInit`.
 Since NCCL 2.29.2.*/
    pub fn ncclWaitSignal(
        nDesc: ::core::ffi::c_int,
        signalDescs: *mut ncclWaitSignalDesc_t,
        comm: ncclComm_t,
        stream: cudaStream_t,
    ) -> ncclResult_t;
    /** Opens a group on this thread: calls are collected until the matching `ncclGroupEnd`.

 Required if one thread drives several ranks, or if sends and receives must progress together. A group also launches
 its operations as one. Groups nest. One group must not mix operations with the creation of communicators, blocking
 with nonblocking communicators, or captured with other streams.
 Since NCCL 2.13.4.*/
    pub fn ncclGroupStart() -> ncclResult_t;
    /** Closes a group; the outermost call enqueues the collected operations, or waits until the new communicators exist.

 The operations are enqueued, not complete: synchronize the streams. If a collective in the group failed, returns
 its error. Returns `ncclInvalidUsage` without a matching `ncclGroupStart`, and `ncclInProgress` if communicators are
 nonblocking. After any other failure, abort the communicators of the group.
 Since NCCL 2.13.4.*/
    pub fn ncclGroupEnd() -> ncclResult_t;
    /** Closes a group without running it, and predicts its duration.

 `simInfo` may be `NULL`. Otherwise it must start from `NCCL_SIM_INFO_INITIALIZER`: a wrong magic causes
 `ncclInvalidArgument`. An empty group leaves `estimatedTime` at -1.
 Since NCCL 2.22.3.*/
    pub fn ncclGroupSimulateEnd(simInfo: *mut ncclSimInfo_t) -> ncclResult_t;
    /** Sets the encryption (TLS) of the TCP connections that NCCL opens from now on in this process.

 Call it before `ncclGetUniqueId` and all other calls that connect, in all processes with the same key. It
 does not cover InfiniBand, NVLink or shared memory, and requires a library built with TLS. Succeeds for
 `NULL`. Returns `ncclInvalidArgument` if the key has less than 32 bytes or the magic is wrong.
 Since NCCL 2.32.3.*/
    pub fn ncclSetEncryption(config: *const ncclEncryptionConfig_t) -> ncclResult_t;
    /** Looks up the parameter called `key`, for example `NCCL_DEBUG_LEVELS`, for the typed getters.

 If the key is unknown, returns `ncclInvalidArgument` and leaves `*out` unchanged. 2.32.3 has 7 keys, and 10 with
 `NCCL_PARAM_DUMP_ALL=true` in the environment.
 Since NCCL 2.30.4.*/
    pub fn ncclParamBind(
        out: *mut ncclParamHandle_t,
        key: *const ::core::ffi::c_char,
    ) -> ncclResult_t;
    /** Stores the value of a parameter that is a signed 8-bit integer.

 Values are not converted. If the parameter has another type, such as a boolean or an enum, returns
 `ncclInvalidArgument`.
 Since NCCL 2.30.4.*/
    pub fn ncclParamGetI8(h: ncclParamHandle_t, out: *mut i8) -> ncclResult_t;
    /** Stores the value of a parameter that is a signed 16-bit integer; see `ncclParamGetI8`.

 Since NCCL 2.30.4.*/
    pub fn ncclParamGetI16(h: ncclParamHandle_t, out: *mut i16) -> ncclResult_t;
    /** Stores the value of a parameter that is a signed 32-bit integer; see `ncclParamGetI8`.

 Since NCCL 2.30.4.*/
    pub fn ncclParamGetI32(h: ncclParamHandle_t, out: *mut i32) -> ncclResult_t;
    /** Stores the value of a parameter that is a signed 64-bit integer; see `ncclParamGetI8`.

 Since NCCL 2.30.4.*/
    pub fn ncclParamGetI64(h: ncclParamHandle_t, out: *mut i64) -> ncclResult_t;
    /** Stores the value of a parameter that is an unsigned 8-bit integer; see `ncclParamGetI8`.

 Since NCCL 2.30.4.*/
    pub fn ncclParamGetU8(h: ncclParamHandle_t, out: *mut u8) -> ncclResult_t;
    /** Stores the value of a parameter that is an unsigned 16-bit integer; see `ncclParamGetI8`.

 Since NCCL 2.30.4.*/
    pub fn ncclParamGetU16(h: ncclParamHandle_t, out: *mut u16) -> ncclResult_t;
    /** Stores the value of a parameter that is an unsigned 32-bit integer; see `ncclParamGetI8`.

 Since NCCL 2.30.4.*/
    pub fn ncclParamGetU32(h: ncclParamHandle_t, out: *mut u32) -> ncclResult_t;
    /** Stores the value of a parameter that is an unsigned 64-bit integer; see `ncclParamGetI8`.

 Since NCCL 2.30.4.*/
    pub fn ncclParamGetU64(h: ncclParamHandle_t, out: *mut u64) -> ncclResult_t;
    /** Stores a pointer to the value of a parameter that is text; for other types, returns `ncclInvalidArgument`.

 NCCL owns the text, which is valid until this thread queries text or keys again, with this function,
 `ncclParamGetParameter` or `ncclParamGetAllParameterKeys`.
 Since NCCL 2.30.4.*/
    pub fn ncclParamGetStr(
        h: ncclParamHandle_t,
        out: *mut *const ::core::ffi::c_char,
    ) -> ncclResult_t;
    /** Copies the bytes of a parameter of any type to `out`, which has space for `maxLen` bytes, and stores their number in
 `*len`.

 If there is too little space, returns `ncclInvalidArgument`.
 Since NCCL 2.30.4.*/
    pub fn ncclParamGet(
        h: ncclParamHandle_t,
        out: *mut ::core::ffi::c_void,
        maxLen: ::core::ffi::c_int,
        len: *mut ::core::ffi::c_int,
    ) -> ncclResult_t;
    /** Stores the value of the parameter called `key`, of any type, as text, and the text's length in `*valueLen`.

 NCCL owns the text, which is valid as long as the text of `ncclParamGetStr`. If the key is unknown, returns
 `ncclInvalidArgument`.
 Since NCCL 2.30.4.*/
    pub fn ncclParamGetParameter(
        key: *const ::core::ffi::c_char,
        value: *mut *const ::core::ffi::c_char,
        valueLen: *mut ::core::ffi::c_int,
    ) -> ncclResult_t;
    /** Stores the address of an array of all keys, and their number in `*tableLen`.

 NCCL owns the array, which is valid as long as the text of `ncclParamGetStr`. Undocumented parameters are
 listed only with `NCCL_PARAM_DUMP_ALL=true`.
 Since NCCL 2.30.4.*/
    pub fn ncclParamGetAllParameterKeys(
        table: *mut *mut *const ::core::ffi::c_char,
        tableLen: *mut ::core::ffi::c_int,
    ) -> ncclResult_t;
    /** Prints the parameters that `ncclParamGetAllParameterKeys` lists, always to standard output.

 Since NCCL 2.30.4.*/
    pub fn ncclParamDumpAll();
}
