unsafe extern "C" {
    /** Allocates `size` bytes on the current device, in the kind of memory that registration and windows require.

 NCCL rounds up to the granularity of the device. `*ptr` is written on success only; without a driver the
 answer is `ncclUnhandledCudaError`.
 Since NCCL 2.19.3.*/
    pub fn ncclMemAlloc(ptr: *mut *mut ::core::ffi::c_void, size: usize) -> ncclResult_t;
    /** Frees memory of `ncclMemAlloc`.

 Deregister the memory from every communicator first.
 Since NCCL 2.19.3.*/
    pub fn ncclMemFree(ptr: *mut ::core::ffi::c_void) -> ncclResult_t;
    /** Stores the version code of the loaded library: 23203 for 2.32.3.

 Works without a GPU and without a driver. A null pointer is `ncclInvalidArgument`. Compare the answer with
 `NCCL_VERSION` to learn which functions and fields the library has.
 Since NCCL 2.13.4.*/
    pub fn ncclGetVersion(version: *mut ::core::ffi::c_int) -> ncclResult_t;
    /** Makes the token by which the ranks of a new communicator find each other.

 Call it in one process and send the 128 bytes to the others by other means. That process must live until all
 ranks have joined, since each call starts a thread and opens a port that serve them, and both stay if the
 ranks never come. Needs no GPU. With `NCCL_COMM_ID=ip:port` set, no server is started. A first call that
 fails (say, no usable network interface) spoils later ones: up to 2.21.5 they hang, from then on they fail
 the same way. Zero `*uniqueId` first: 2.16.5 to 2.22.3 write only part of it.
 Since NCCL 2.13.4.*/
    pub fn ncclGetUniqueId(uniqueId: *mut ncclUniqueId) -> ncclResult_t;
    /** Does the same as `ncclCommInitRank`, with options; `config` may be `NULL`.

 Set `*comm` to `NULL` beforehand: 2.17.1 to 2.22.3 follow it when the call fails. Before 2.17 `blocking` must
 be 0 or 1. With `blocking` 0 the call may answer `ncclInProgress`, and the handle is there at once. If no
 device can be found, the thread may be left inside a group (seen in 2.23.4 to 2.32.3).
 Since NCCL 2.14.3.*/
    pub fn ncclCommInitRankConfig(
        comm: *mut ncclComm_t,
        nranks: ::core::ffi::c_int,
        commId: ncclUniqueId,
        rank: ::core::ffi::c_int,
        config: *mut ncclConfig_t,
    ) -> ncclResult_t;
    /** Joins a new communicator of `nranks` ranks as number `rank` (from 0), on the current CUDA device.

 Every rank calls it with one and the same `commId`, and each waits for all the others: call it from as many
 threads or processes, or between `ncclGroupStart` and `ncclGroupEnd`. Two ranks on one GPU are
 `ncclInvalidUsage`, unless `NCCL_MULTI_RANK_GPU_ENABLE=1` (2.30.3 and later); so are ranks of different
 releases. Without a driver: `ncclUnhandledCudaError`.
 Since NCCL 2.13.4.*/
    pub fn ncclCommInitRank(
        comm: *mut ncclComm_t,
        nranks: ::core::ffi::c_int,
        commId: ncclUniqueId,
        rank: ::core::ffi::c_int,
    ) -> ncclResult_t;
    /** Makes all ranks of a communicator at once, inside this process, one per device.

 `comm` has room for `ndev` handles; entry i becomes rank i, on CUDA device `devlist[i]`, or on device i if
 `devlist` is `NULL`. A device may appear only once (but see `ncclCommInitRank`). Put the operations of the
 ranks into groups if one thread drives them all.
 Since NCCL 2.13.4.*/
    pub fn ncclCommInitAll(
        comm: *mut ncclComm_t,
        ndev: ::core::ffi::c_int,
        devlist: *const ::core::ffi::c_int,
    ) -> ncclResult_t;
    /** Lets everything enqueued so far finish and begins to tear down, together with the other ranks.

 On a non-blocking communicator, poll until `ncclSuccess`; then `ncclCommDestroy` does not wait any more. Once
 only: a second call is `ncclInvalidArgument`, and so is one after `ncclCommRevoke`. `NULL` does nothing.
 Since NCCL 2.14.3.*/
    pub fn ncclCommFinalize(comm: ncclComm_t) -> ncclResult_t;
    /** Frees this rank's communicator; the handle is dead afterwards.

 Finalizes first if nobody has, so all ranks of a node should call it, at about the same time, or it hangs.
 Deregister buffers and windows before. `NULL` does nothing and succeeds.
 Since NCCL 2.13.4.*/
    pub fn ncclCommDestroy(comm: ncclComm_t) -> ncclResult_t;
    /** Aborts the work of this communicator and frees it, without the other ranks.

 The way out after an error or a lost peer; all surviving ranks should take it. No other thread may be inside
 a NCCL call on this handle, which is dead afterwards. With shared resources (`splitShare`) relatives may
 break. `NULL` does nothing and succeeds.
 Since NCCL 2.13.4.*/
    pub fn ncclCommAbort(comm: ncclComm_t) -> ncclResult_t;
    /** Stops what this communicator is doing, but keeps it, so that survivors can be gathered from it.

 `revokeFlags` must be 0. Poll `ncclCommGetAsyncError` until it leaves `ncclInProgress`; then destroy, split
 or shrink. Collectives on it are `ncclInvalidUsage` from here on; revoking twice or after finalize is
 `ncclInvalidArgument`. Children cannot share its resources. `NULL` does nothing and succeeds.
 Since NCCL 2.28.7.*/
    pub fn ncclCommRevoke(
        comm: ncclComm_t,
        revokeFlags: ::core::ffi::c_int,
    ) -> ncclResult_t;
    /** Splits a communicator: ranks of equal `color` make a new one, ordered by `key`, then by old rank.

 All ranks of `comm` call it. With `NCCL_SPLIT_NOCOLOR` a rank takes part in the call only, and gets a null
 `*newcomm`. A null `config` means the options of `comm`. The address `newcomm` is kept and written when the
 work ends (in a group or non-blocking: later), so it must stay valid until then. A null `comm` crashes
 2.23.4 and 2.24.3.
 Since NCCL 2.18.1.*/
    pub fn ncclCommSplit(
        comm: ncclComm_t,
        color: ::core::ffi::c_int,
        key: ::core::ffi::c_int,
        newcomm: *mut ncclComm_t,
        config: *mut ncclConfig_t,
    ) -> ncclResult_t;
    /** Makes a communicator of the ranks that are not in the list; these close ranks, keeping their order.

 Only the remaining ranks call it, all with the same `excludeRanksCount` ranks in the list, which NCCL sorts in
 place. `shrinkFlags`: `NCCL_SHRINK_DEFAULT`, or `NCCL_SHRINK_ABORT` if operations may be stuck. A null
 `config` means the options of `comm`. `newcomm` is written when the work ends, as in `ncclCommSplit`. A null
 `comm` crashes.
 Since NCCL 2.27.3.*/
    pub fn ncclCommShrink(
        comm: ncclComm_t,
        excludeRanksList: *mut ::core::ffi::c_int,
        excludeRanksCount: ::core::ffi::c_int,
        newcomm: *mut ncclComm_t,
        config: *mut ncclConfig_t,
        shrinkFlags: ::core::ffi::c_int,
    ) -> ncclResult_t;
    /** Makes the token with which new ranks join `comm` through `ncclCommGrow`.

 One rank of `comm` calls it and sends the token to the new ranks. A token serves one growth; until that is
 over, no second one can be made. Refused if `NCCL_COMM_ID` is set.
 Since NCCL 2.29.2.*/
    pub fn ncclCommGetUniqueId(
        comm: ncclComm_t,
        uniqueId: *mut ncclUniqueId,
    ) -> ncclResult_t;
    /** Makes a larger communicator, of `nRanks` ranks, from `comm` and new ranks.

 Three kinds of callers. A member of `comm`: `uniqueId` `NULL`, `rank` -1, keeps its number. The member that
 made the token: the same, with the token. A new rank: `comm` `NULL`, the token, and its number in `rank`,
 from the old size up. `config` may be `NULL`. Success uses the token up.
 Since NCCL 2.29.2.*/
    pub fn ncclCommGrow(
        comm: ncclComm_t,
        nRanks: ::core::ffi::c_int,
        uniqueId: *const ncclUniqueId,
        rank: ::core::ffi::c_int,
        newcomm: *mut ncclComm_t,
        config: *mut ncclConfig_t,
    ) -> ncclResult_t;
    /** Does the same as `ncclCommInitRankConfig`, with `nId` tokens instead of one, to spread the load of many ranks.

 `commIds` holds `nId` tokens, from 1 to `nranks`, equal and in equal order on all ranks; each comes from its
 own `ncclGetUniqueId`, best in different processes. Mind that `myrank` stands before the tokens.
 Since NCCL 2.23.4.*/
    pub fn ncclCommInitRankScalable(
        newcomm: *mut ncclComm_t,
        nranks: ::core::ffi::c_int,
        myrank: ::core::ffi::c_int,
        nId: ::core::ffi::c_int,
        commIds: *mut ncclUniqueId,
        config: *mut ncclConfig_t,
    ) -> ncclResult_t;
    /** Names a result code in English.

 A constant, never `NULL`; codes that the library does not know give "unknown result code". The texts vary
 with the release: compare codes, not texts.
 Since NCCL 2.13.4.*/
    pub fn ncclGetErrorString(result: ncclResult_t) -> *const ::core::ffi::c_char;
    /** Returns the text of the latest failure in this process, of any thread.

 Points to one buffer for all threads and communicators (`comm` is ignored and may be `NULL`), empty at first,
 overwritten by each failure, never cleared. Copy it at once, and expect that another thread got there first.
 Since NCCL 2.13.4.*/
    pub fn ncclGetLastError(comm: ncclComm_t) -> *const ::core::ffi::c_char;
    /** Stores the state of the communicator in `*asyncError`: fine, still working, or broken.

 This is how failures of enqueued operations come to light, and how a non-blocking call is waited for:
 `ncclInProgress` until it is over. The return value is about the question, not the answer. Only one thread
 may poll a communicator. After an error, abort it.
 Since NCCL 2.13.4.*/
    pub fn ncclCommGetAsyncError(
        comm: ncclComm_t,
        asyncError: *mut ncclResult_t,
    ) -> ncclResult_t;
    /** Stores how many ranks the communicator has.

 `ncclInvalidArgument` while a non-blocking call is in progress.
 Since NCCL 2.13.4.*/
    pub fn ncclCommCount(
        comm: ncclComm_t,
        count: *mut ::core::ffi::c_int,
    ) -> ncclResult_t;
    /** Stores the ordinal of the CUDA device that this rank runs on.

 `ncclInvalidArgument` while a non-blocking call is in progress.
 Since NCCL 2.13.4.*/
    pub fn ncclCommCuDevice(
        comm: ncclComm_t,
        device: *mut ::core::ffi::c_int,
    ) -> ncclResult_t;
    /** Stores the number of this rank, from 0.

 `ncclInvalidArgument` while a non-blocking call is in progress.
 Since NCCL 2.13.4.*/
    pub fn ncclCommUserRank(
        comm: ncclComm_t,
        rank: *mut ::core::ffi::c_int,
    ) -> ncclResult_t;
    /** Registers a buffer of `size` bytes that operations will use, so that NCCL can skip its staging copies.

 Local to this rank. `*handle` may stay `NULL` in spite of success, if registering would gain nothing. Memory
 from `ncclMemAlloc` fits best. Deregister before freeing the memory or destroying the communicator.
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

 `flags` is `NCCL_SUSPEND_MEM`. Until `ncclCommResume` nothing may be enqueued. A communicator that shares
 resources with another (`splitShare`) cannot: `ncclInvalidUsage`.
 Since NCCL 2.29.7.*/
    pub fn ncclCommSuspend(comm: ncclComm_t, flags: ::core::ffi::c_int) -> ncclResult_t;
    /** Resumes a communicator after `ncclCommSuspend`; all ranks call it.

 It allocates again, so it can fail for want of memory.
 Since NCCL 2.29.7.*/
    pub fn ncclCommResume(comm: ncclComm_t) -> ncclResult_t;
    /** Stores one figure about the GPU memory of the communicator.

 In bytes, except for `ncclStatGpuMemSuspended`, which is 0 or 1.
 Since NCCL 2.29.7.*/
    pub fn ncclCommMemStats(
        comm: ncclComm_t,
        stat: ncclCommMemStat_t,
        value: *mut u64,
    ) -> ncclResult_t;
    /** Registers `size` bytes at `buff` with all ranks, for symmetric collectives and one-sided operations.

 All ranks call it. The address must be a multiple of `NCCL_WIN_REQUIRED_ALIGNMENT` and the memory come from
 `ncclMemAlloc` or CUDA's virtual memory API. `winFlags` joins `NCCL_WIN_*` bits. `win` is written when the
 work ends (in a group or non-blocking: later), so it must stay valid until then; success with a null `*win`
 means that this system has no symmetric memory. Deregister before freeing the memory.
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
    /** Makes an operator that multiplies each rank's values by that rank's `*scalar` and adds the products.

 `scalar` points to one element of `datatype`; `residence` tells where. The operator, stored in `*op`, works
 with this communicator and this type only. A null `comm` crashes 2.13.4.
 Since NCCL 2.13.4.*/
    pub fn ncclRedOpCreatePreMulSum(
        op: *mut ncclRedOp_t,
        scalar: *mut ::core::ffi::c_void,
        datatype: ncclDataType_t,
        residence: ncclScalarResidence_t,
        comm: ncclComm_t,
    ) -> ncclResult_t;
    /** Frees a custom operator of this communicator.

 Allowed once the calls that were given it have returned, even if their work still runs (a device scalar must
 live on until then). A built-in operator is `ncclInvalidArgument`; a null `comm` crashes up to 2.16.5.
 Since NCCL 2.13.4.*/
    pub fn ncclRedOpDestroy(op: ncclRedOp_t, comm: ncclComm_t) -> ncclResult_t;
    /** Combines the `count` elements of every rank's `sendbuff` by `op`; rank `root` gets the result.

 `sendbuff`: `count` elements. `recvbuff`: `count` elements on `root`, unused elsewhere and free to be `NULL`.
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
    /** `ncclBroadcast` with one buffer, which `root` sends from and the others receive into; superseded by it.

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
    /** Gives every rank a copy of the `count` elements in `sendbuff` of rank `root`.

 `sendbuff`: `count` elements on `root`, unused elsewhere and free to be `NULL`. `recvbuff`: `count` elements
 on every rank. In place: equal pointers on `root`.
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
    /** Combines the `count` elements of every rank's `sendbuff` by `op`; every rank gets the whole result.

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
    /** Combines the ranks' `sendbuff` by `op` and scatters the result: rank r gets block r of it.

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
    /** Gives every rank the blocks of all ranks, one after another in order of rank.

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
    /** Gathers the blocks of all ranks on rank `root`, one after another in order of rank.

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
    /** Scatters the buffer of rank `root`: rank r gets block r.

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

 `sendbuff` and `recvbuff`: `count` elements each. A null `config` makes it the plain call; otherwise all
 ranks pass equal options, and a malformed one is `ncclInvalidArgument`.
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

 The stream waits until the other side has met it. Exchanges in which two ranks both send and receive
 therefore belong into one group, or they deadlock. Sends to one peer match its receives in order.
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

 `localbuff`: `count` elements, inside a window of this rank. `peerWinOffset` counts bytes, not elements, into
 `peerWin`, this communicator's window. `sigIdx` is below `numRmaSig` and `ctx` below `numRmaCtx` of the
 configuration, both 1 by default: so 0. `flags` must be 0. The peer learns of it by `ncclWaitSignal`.
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
    /** Raises a signal at rank `peer` and moves no data; the arguments are those of `ncclPutSignal`.

 `ncclInvalidUsage` before the first window is registered, unless the configuration says `rmaEagerInit`.
 Since NCCL 2.29.2.*/
    pub fn ncclSignal(
        peer: ::core::ffi::c_int,
        sigIdx: ::core::ffi::c_int,
        ctx: ::core::ffi::c_int,
        flags: ::core::ffi::c_uint,
        comm: ncclComm_t,
        stream: cudaStream_t,
    ) -> ncclResult_t;
    /** Makes the stream wait for signals from other ranks, and with them for the data put ahead of them.

 `signalDescs` holds `nDesc` entries, all of which must come true. The host does not wait. Like `ncclSignal`
 it wants a window or `rmaEagerInit`.
 Since NCCL 2.29.2.*/
    pub fn ncclWaitSignal(
        nDesc: ::core::ffi::c_int,
        signalDescs: *mut ncclWaitSignalDesc_t,
        comm: ncclComm_t,
        stream: cudaStream_t,
    ) -> ncclResult_t;
    /** Opens a group on this thread: calls are collected until the matching `ncclGroupEnd`.

 Needed when one thread drives several ranks, when sends and receives must progress together, and useful to
 launch several operations as one. Groups nest. Do not mix calls that create communicators with operations in
 one group, nor blocking communicators with non-blocking ones, nor captured streams with others.
 Since NCCL 2.13.4.*/
    pub fn ncclGroupStart() -> ncclResult_t;
    /** Closes a group; the outermost one enqueues all that was collected, or waits for the communicators to exist.

 Enqueued is not executed: synchronize the streams for that. Returns the failure of a collective that the
 group contained; `ncclInvalidUsage` without a matching start; `ncclInProgress` if communicators are
 non-blocking. After any other failure here, abort the communicators of the group.
 Since NCCL 2.13.4.*/
    pub fn ncclGroupEnd() -> ncclResult_t;
    /** Closes a group without running it, and predicts what it would have cost.

 `simInfo` starts from `NCCL_SIM_INFO_INITIALIZER` (a wrong magic is `ncclInvalidArgument`) and may be `NULL`.
 An empty group leaves `estimatedTime` at -1.
 Since NCCL 2.22.3.*/
    pub fn ncclGroupSimulateEnd(simInfo: *mut ncclSimInfo_t) -> ncclResult_t;
    /** Asks for TLS on the TCP connections that NCCL opens from now on, in the whole process.

 Call it ahead of `ncclGetUniqueId` and of everything else that connects, in all processes with one secret. It
 does not cover InfiniBand, NVLink or shared memory, and takes a library built with TLS. `NULL` succeeds; a
 secret under 32 bytes or a wrong magic is `ncclInvalidArgument`.
 Since NCCL 2.32.3.*/
    pub fn ncclSetEncryption(config: *const ncclEncryptionConfig_t) -> ncclResult_t;
    /** Looks up the parameter called `key`, for example `NCCL_DEBUG_LEVELS`, for the typed getters.

 An unknown key is `ncclInvalidArgument` and leaves `*out` alone. Libraries know few keys: 7 in 2.32.3, with
 `NCCL_PARAM_DUMP_ALL=true` in the environment 10.
 Since NCCL 2.30.4.*/
    pub fn ncclParamBind(
        out: *mut ncclParamHandle_t,
        key: *const ::core::ffi::c_char,
    ) -> ncclResult_t;
    /** Stores the value of a parameter that is a signed 8-bit integer.

 No conversions: a parameter of another type, booleans and enums included, is `ncclInvalidArgument`.
 Since NCCL 2.30.4.*/
    pub fn ncclParamGetI8(h: ncclParamHandle_t, out: *mut i8) -> ncclResult_t;
    /** Stores the value of a parameter that is a signed 16-bit integer; `ncclParamGetI8` tells more.

 Since NCCL 2.30.4.*/
    pub fn ncclParamGetI16(h: ncclParamHandle_t, out: *mut i16) -> ncclResult_t;
    /** Stores the value of a parameter that is a signed 32-bit integer; `ncclParamGetI8` tells more.

 Since NCCL 2.30.4.*/
    pub fn ncclParamGetI32(h: ncclParamHandle_t, out: *mut i32) -> ncclResult_t;
    /** Stores the value of a parameter that is a signed 64-bit integer; `ncclParamGetI8` tells more.

 Since NCCL 2.30.4.*/
    pub fn ncclParamGetI64(h: ncclParamHandle_t, out: *mut i64) -> ncclResult_t;
    /** Stores the value of a parameter that is an unsigned 8-bit integer; `ncclParamGetI8` tells more.

 Since NCCL 2.30.4.*/
    pub fn ncclParamGetU8(h: ncclParamHandle_t, out: *mut u8) -> ncclResult_t;
    /** Stores the value of a parameter that is an unsigned 16-bit integer; `ncclParamGetI8` tells more.

 Since NCCL 2.30.4.*/
    pub fn ncclParamGetU16(h: ncclParamHandle_t, out: *mut u16) -> ncclResult_t;
    /** Stores the value of a parameter that is an unsigned 32-bit integer; `ncclParamGetI8` tells more.

 Since NCCL 2.30.4.*/
    pub fn ncclParamGetU32(h: ncclParamHandle_t, out: *mut u32) -> ncclResult_t;
    /** Stores the value of a parameter that is an unsigned 64-bit integer; `ncclParamGetI8` tells more.

 Since NCCL 2.30.4.*/
    pub fn ncclParamGetU64(h: ncclParamHandle_t, out: *mut u64) -> ncclResult_t;
    /** Stores a pointer to the value of a parameter that is text; other types are `ncclInvalidArgument`.

 The text is NCCL's. It lasts until this thread asks for text or keys again, here or in
 `ncclParamGetParameter` and `ncclParamGetAllParameterKeys`.
 Since NCCL 2.30.4.*/
    pub fn ncclParamGetStr(
        h: ncclParamHandle_t,
        out: *mut *const ::core::ffi::c_char,
    ) -> ncclResult_t;
    /** Copies the bytes of a parameter of any type to `out`, which has room for `maxLen`, and their number to `*len`.

 Too little room is `ncclInvalidArgument`.
 Since NCCL 2.30.4.*/
    pub fn ncclParamGet(
        h: ncclParamHandle_t,
        out: *mut ::core::ffi::c_void,
        maxLen: ::core::ffi::c_int,
        len: *mut ::core::ffi::c_int,
    ) -> ncclResult_t;
    /** Stores the value of the parameter called `key` as text, whatever its type, and the length in `*valueLen`.

 The text is NCCL's and lasts as long as that of `ncclParamGetStr`. An unknown key is `ncclInvalidArgument`.
 Since NCCL 2.30.4.*/
    pub fn ncclParamGetParameter(
        key: *const ::core::ffi::c_char,
        value: *mut *const ::core::ffi::c_char,
        valueLen: *mut ::core::ffi::c_int,
    ) -> ncclResult_t;
    /** Stores the address of an array of all keys, and their number in `*tableLen`.

 The array is NCCL's and lasts as long as the text of `ncclParamGetStr`. Undocumented parameters are listed
 with `NCCL_PARAM_DUMP_ALL=true` only.
 Since NCCL 2.30.4.*/
    pub fn ncclParamGetAllParameterKeys(
        table: *mut *mut *const ::core::ffi::c_char,
        tableLen: *mut ::core::ffi::c_int,
    ) -> ncclResult_t;
    /** Prints the parameters that `ncclParamGetAllParameterKeys` lists, always to standard output.

 Since NCCL 2.30.4.*/
    pub fn ncclParamDumpAll();
}
