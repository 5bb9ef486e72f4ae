pub struct NcclLibrary {
    __library: ::libloading::Library,
    pub ncclMemAlloc: Result<
        unsafe extern "C" fn(
            ptr: *mut *mut ::core::ffi::c_void,
            size: usize,
        ) -> ncclResult_t,
        ::libloading::Error,
    >,
    pub ncclMemFree: Result<
        unsafe extern "C" fn(ptr: *mut ::core::ffi::c_void) -> ncclResult_t,
        ::libloading::Error,
    >,
    pub ncclGetVersion: Result<
        unsafe extern "C" fn(version: *mut ::core::ffi::c_int) -> ncclResult_t,
        ::libloading::Error,
    >,
    pub ncclGetUniqueId: Result<
        unsafe extern "C" fn(uniqueId: *mut ncclUniqueId) -> ncclResult_t,
        ::libloading::Error,
    >,
    pub ncclCommInitRankConfig: Result<
        unsafe extern "C" fn(
            comm: *mut ncclComm_t,
            nranks: ::core::ffi::c_int,
            commId: ncclUniqueId,
            rank: ::core::ffi::c_int,
            config: *mut ncclConfig_t,
        ) -> ncclResult_t,
        ::libloading::Error,
    >,
    pub ncclCommInitRank: Result<
        unsafe extern "C" fn(
            comm: *mut ncclComm_t,
            nranks: ::core::ffi::c_int,
            commId: ncclUniqueId,
            rank: ::core::ffi::c_int,
        ) -> ncclResult_t,
        ::libloading::Error,
    >,
    pub ncclCommInitAll: Result<
        unsafe extern "C" fn(
            comm: *mut ncclComm_t,
            ndev: ::core::ffi::c_int,
            devlist: *const ::core::ffi::c_int,
        ) -> ncclResult_t,
        ::libloading::Error,
    >,
    pub ncclCommFinalize: Result<
        unsafe extern "C" fn(comm: ncclComm_t) -> ncclResult_t,
        ::libloading::Error,
    >,
    pub ncclCommDestroy: Result<
        unsafe extern "C" fn(comm: ncclComm_t) -> ncclResult_t,
        ::libloading::Error,
    >,
    pub ncclCommAbort: Result<
        unsafe extern "C" fn(comm: ncclComm_t) -> ncclResult_t,
        ::libloading::Error,
    >,
    pub ncclCommRevoke: Result<
        unsafe extern "C" fn(
            comm: ncclComm_t,
            revokeFlags: ::core::ffi::c_int,
        ) -> ncclResult_t,
        ::libloading::Error,
    >,
    pub ncclCommSplit: Result<
        unsafe extern "C" fn(
            comm: ncclComm_t,
            color: ::core::ffi::c_int,
            key: ::core::ffi::c_int,
            newcomm: *mut ncclComm_t,
            config: *mut ncclConfig_t,
        ) -> ncclResult_t,
        ::libloading::Error,
    >,
    pub ncclCommShrink: Result<
        unsafe extern "C" fn(
            comm: ncclComm_t,
            excludeRanksList: *mut ::core::ffi::c_int,
            excludeRanksCount: ::core::ffi::c_int,
            newcomm: *mut ncclComm_t,
            config: *mut ncclConfig_t,
            shrinkFlags: ::core::ffi::c_int,
        ) -> ncclResult_t,
        ::libloading::Error,
    >,
    pub ncclCommGetUniqueId: Result<
        unsafe extern "C" fn(
            comm: ncclComm_t,
            uniqueId: *mut ncclUniqueId,
        ) -> ncclResult_t,
        ::libloading::Error,
    >,
    pub ncclCommGrow: Result<
        unsafe extern "C" fn(
            comm: ncclComm_t,
            nRanks: ::core::ffi::c_int,
            uniqueId: *const ncclUniqueId,
            rank: ::core::ffi::c_int,
            newcomm: *mut ncclComm_t,
            config: *mut ncclConfig_t,
        ) -> ncclResult_t,
        ::libloading::Error,
    >,
    pub ncclCommInitRankScalable: Result<
        unsafe extern "C" fn(
            newcomm: *mut ncclComm_t,
            nranks: ::core::ffi::c_int,
            myrank: ::core::ffi::c_int,
            nId: ::core::ffi::c_int,
            commIds: *mut ncclUniqueId,
            config: *mut ncclConfig_t,
        ) -> ncclResult_t,
        ::libloading::Error,
    >,
    pub ncclGetErrorString: Result<
        unsafe extern "C" fn(result: ncclResult_t) -> *const ::core::ffi::c_char,
        ::libloading::Error,
    >,
    pub ncclGetLastError: Result<
        unsafe extern "C" fn(comm: ncclComm_t) -> *const ::core::ffi::c_char,
        ::libloading::Error,
    >,
    pub ncclCommGetAsyncError: Result<
        unsafe extern "C" fn(
            comm: ncclComm_t,
            asyncError: *mut ncclResult_t,
        ) -> ncclResult_t,
        ::libloading::Error,
    >,
    pub ncclCommCount: Result<
        unsafe extern "C" fn(
            comm: ncclComm_t,
            count: *mut ::core::ffi::c_int,
        ) -> ncclResult_t,
        ::libloading::Error,
    >,
    pub ncclCommCuDevice: Result<
        unsafe extern "C" fn(
            comm: ncclComm_t,
            device: *mut ::core::ffi::c_int,
        ) -> ncclResult_t,
        ::libloading::Error,
    >,
    pub ncclCommUserRank: Result<
        unsafe extern "C" fn(
            comm: ncclComm_t,
            rank: *mut ::core::ffi::c_int,
        ) -> ncclResult_t,
        ::libloading::Error,
    >,
    pub ncclCommRegister: Result<
        unsafe extern "C" fn(
            comm: ncclComm_t,
            buff: *mut ::core::ffi::c_void,
            size: usize,
            handle: *mut *mut ::core::ffi::c_void,
        ) -> ncclResult_t,
        ::libloading::Error,
    >,
    pub ncclCommDeregister: Result<
        unsafe extern "C" fn(
            comm: ncclComm_t,
            handle: *mut ::core::ffi::c_void,
        ) -> ncclResult_t,
        ::libloading::Error,
    >,
    pub ncclCommSuspend: Result<
        unsafe extern "C" fn(
            comm: ncclComm_t,
            flags: ::core::ffi::c_int,
        ) -> ncclResult_t,
        ::libloading::Error,
    >,
    pub ncclCommResume: Result<
        unsafe extern "C" fn(comm: ncclComm_t) -> ncclResult_t,
        ::libloading::Error,
    >,
    pub ncclCommMemStats: Result<
        unsafe extern "C" fn(
            comm: ncclComm_t,
            stat: ncclCommMemStat_t,
            value: *mut u64,
        ) -> ncclResult_t,
        ::libloading::Error,
    >,
    pub ncclCommWindowRegister: Result<
        unsafe extern "C" fn(
            comm: ncclComm_t,
            buff: *mut ::core::ffi::c_void,
            size: usize,
            win: *mut ncclWindow_t,
            winFlags: ::core::ffi::c_int,
        ) -> ncclResult_t,
        ::libloading::Error,
    >,
    pub ncclCommWindowDeregister: Result<
        unsafe extern "C" fn(comm: ncclComm_t, win: ncclWindow_t) -> ncclResult_t,
        ::libloading::Error,
    >,
    pub ncclWinGetUserPtr: Result<
        unsafe extern "C" fn(
            comm: ncclComm_t,
            win: ncclWindow_t,
            outUserPtr: *mut *mut ::core::ffi::c_void,
        ) -> ncclResult_t,
        ::libloading::Error,
    >,
    pub ncclRedOpCreatePreMulSum: Result<
        unsafe extern "C" fn(
            op: *mut ncclRedOp_t,
            scalar: *mut ::core::ffi::c_void,
            datatype: ncclDataType_t,
            residence: ncclScalarResidence_t,
            comm: ncclComm_t,
        ) -> ncclResult_t,
        ::libloading::Error,
    >,
    pub ncclRedOpDestroy: Result<
        unsafe extern "C" fn(op: ncclRedOp_t, comm: ncclComm_t) -> ncclResult_t,
        ::libloading::Error,
    >,
    pub ncclReduce: Result<
        unsafe extern "C" fn(
            sendbuff: *const ::core::ffi::c_void,
            recvbuff: *mut ::core::ffi::c_void,
            count: usize,
            datatype: ncclDataType_t,
            op: ncclRedOp_t,
            root: ::core::ffi::c_int,
            comm: ncclComm_t,
            stream: cudaStream_t,
        ) -> ncclResult_t,
        ::libloading::Error,
    >,
    pub ncclBcast: Result<
        unsafe extern "C" fn(
            buff: *mut ::core::ffi::c_void,
            count: usize,
            datatype: ncclDataType_t,
            root: ::core::ffi::c_int,
            comm: ncclComm_t,
            stream: cudaStream_t,
        ) -> ncclResult_t,
        ::libloading::Error,
    >,
    pub ncclBroadcast: Result<
        unsafe extern "C" fn(
            sendbuff: *const ::core::ffi::c_void,
            recvbuff: *mut ::core::ffi::c_void,
            count: usize,
            datatype: ncclDataType_t,
            root: ::core::ffi::c_int,
            comm: ncclComm_t,
            stream: cudaStream_t,
        ) -> ncclResult_t,
        ::libloading::Error,
    >,
    pub ncclAllReduce: Result<
        unsafe extern "C" fn(
            sendbuff: *const ::core::ffi::c_void,
            recvbuff: *mut ::core::ffi::c_void,
            count: usize,
            datatype: ncclDataType_t,
            op: ncclRedOp_t,
            comm: ncclComm_t,
            stream: cudaStream_t,
        ) -> ncclResult_t,
        ::libloading::Error,
    >,
    pub ncclReduceScatter: Result<
        unsafe extern "C" fn(
            sendbuff: *const ::core::ffi::c_void,
            recvbuff: *mut ::core::ffi::c_void,
            recvcount: usize,
            datatype: ncclDataType_t,
            op: ncclRedOp_t,
            comm: ncclComm_t,
            stream: cudaStream_t,
        ) -> ncclResult_t,
        ::libloading::Error,
    >,
    pub ncclAllGather: Result<
        unsafe extern "C" fn(
            sendbuff: *const ::core::ffi::c_void,
            recvbuff: *mut ::core::ffi::c_void,
            sendcount: usize,
            datatype: ncclDataType_t,
            comm: ncclComm_t,
            stream: cudaStream_t,
        ) -> ncclResult_t,
        ::libloading::Error,
    >,
    pub ncclAlltoAll: Result<
        unsafe extern "C" fn(
            sendbuff: *const ::core::ffi::c_void,
            recvbuff: *mut ::core::ffi::c_void,
            count: usize,
            datatype: ncclDataType_t,
            comm: ncclComm_t,
            stream: cudaStream_t,
        ) -> ncclResult_t,
        ::libloading::Error,
    >,
    pub ncclGather: Result<
        unsafe extern "C" fn(
            sendbuff: *const ::core::ffi::c_void,
            recvbuff: *mut ::core::ffi::c_void,
            count: usize,
            datatype: ncclDataType_t,
            root: ::core::ffi::c_int,
            comm: ncclComm_t,
            stream: cudaStream_t,
        ) -> ncclResult_t,
        ::libloading::Error,
    >,
    pub ncclScatter: Result<
        unsafe extern "C" fn(
            sendbuff: *const ::core::ffi::c_void,
            recvbuff: *mut ::core::ffi::c_void,
            count: usize,
            datatype: ncclDataType_t,
            root: ::core::ffi::c_int,
            comm: ncclComm_t,
            stream: cudaStream_t,
        ) -> ncclResult_t,
        ::libloading::Error,
    >,
    pub ncclAllReduceConfig: Result<
        unsafe extern "C" fn(
            sendbuff: *const ::core::ffi::c_void,
            recvbuff: *mut ::core::ffi::c_void,
            count: usize,
            datatype: ncclDataType_t,
            op: ncclRedOp_t,
            comm: ncclComm_t,
            stream: cudaStream_t,
            config: *const ncclCollConfig_t,
        ) -> ncclResult_t,
        ::libloading::Error,
    >,
    pub ncclBroadcastConfig: Result<
        unsafe extern "C" fn(
            sendbuff: *const ::core::ffi::c_void,
            recvbuff: *mut ::core::ffi::c_void,
            count: usize,
            datatype: ncclDataType_t,
            root: ::core::ffi::c_int,
            comm: ncclComm_t,
            stream: cudaStream_t,
            config: *const ncclCollConfig_t,
        ) -> ncclResult_t,
        ::libloading::Error,
    >,
    pub ncclReduceConfig: Result<
        unsafe extern "C" fn(
            sendbuff: *const ::core::ffi::c_void,
            recvbuff: *mut ::core::ffi::c_void,
            count: usize,
            datatype: ncclDataType_t,
            op: ncclRedOp_t,
            root: ::core::ffi::c_int,
            comm: ncclComm_t,
            stream: cudaStream_t,
            config: *const ncclCollConfig_t,
        ) -> ncclResult_t,
        ::libloading::Error,
    >,
    pub ncclAllGatherConfig: Result<
        unsafe extern "C" fn(
            sendbuff: *const ::core::ffi::c_void,
            recvbuff: *mut ::core::ffi::c_void,
            sendcount: usize,
            datatype: ncclDataType_t,
            comm: ncclComm_t,
            stream: cudaStream_t,
            config: *const ncclCollConfig_t,
        ) -> ncclResult_t,
        ::libloading::Error,
    >,
    pub ncclReduceScatterConfig: Result<
        unsafe extern "C" fn(
            sendbuff: *const ::core::ffi::c_void,
            recvbuff: *mut ::core::ffi::c_void,
            recvcount: usize,
            datatype: ncclDataType_t,
            op: ncclRedOp_t,
            comm: ncclComm_t,
            stream: cudaStream_t,
            config: *const ncclCollConfig_t,
        ) -> ncclResult_t,
        ::libloading::Error,
    >,
    pub ncclAlltoAllConfig: Result<
        unsafe extern "C" fn(
            sendbuff: *const ::core::ffi::c_void,
            recvbuff: *mut ::core::ffi::c_void,
            count: usize,
            datatype: ncclDataType_t,
            comm: ncclComm_t,
            stream: cudaStream_t,
            config: *const ncclCollConfig_t,
        ) -> ncclResult_t,
        ::libloading::Error,
    >,
    pub ncclGatherConfig: Result<
        unsafe extern "C" fn(
            sendbuff: *const ::core::ffi::c_void,
            recvbuff: *mut ::core::ffi::c_void,
            count: usize,
            datatype: ncclDataType_t,
            root: ::core::ffi::c_int,
            comm: ncclComm_t,
            stream: cudaStream_t,
            config: *const ncclCollConfig_t,
        ) -> ncclResult_t,
        ::libloading::Error,
    >,
    pub ncclScatterConfig: Result<
        unsafe extern "C" fn(
            sendbuff: *const ::core::ffi::c_void,
            recvbuff: *mut ::core::ffi::c_void,
            count: usize,
            datatype: ncclDataType_t,
            root: ::core::ffi::c_int,
            comm: ncclComm_t,
            stream: cudaStream_t,
            config: *const ncclCollConfig_t,
        ) -> ncclResult_t,
        ::libloading::Error,
    >,
    pub ncclSend: Result<
        unsafe extern "C" fn(
            sendbuff: *const ::core::ffi::c_void,
            count: usize,
            datatype: ncclDataType_t,
            peer: ::core::ffi::c_int,
            comm: ncclComm_t,
            stream: cudaStream_t,
        ) -> ncclResult_t,
        ::libloading::Error,
    >,
    pub ncclRecv: Result<
        unsafe extern "C" fn(
            recvbuff: *mut ::core::ffi::c_void,
            count: usize,
            datatype: ncclDataType_t,
            peer: ::core::ffi::c_int,
            comm: ncclComm_t,
            stream: cudaStream_t,
        ) -> ncclResult_t,
        ::libloading::Error,
    >,
    pub ncclPutSignal: Result<
        unsafe extern "C" fn(
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
        ) -> ncclResult_t,
        ::libloading::Error,
    >,
    pub ncclSignal: Result<
        unsafe extern "C" fn(
            peer: ::core::ffi::c_int,
            sigIdx: ::core::ffi::c_int,
            ctx: ::core::ffi::c_int,
            flags: ::core::ffi::c_uint,
            comm: ncclComm_t,
            stream: cudaStream_t,
        ) -> ncclResult_t,
        ::libloading::Error,
    >,
    pub ncclWaitSignal: Result<
        unsafe extern "C" fn(
            nDesc: ::core::ffi::c_int,
            signalDescs: *mut ncclWaitSignalDesc_t,
            comm: ncclComm_t,
            stream: cudaStream_t,
        ) -> ncclResult_t,
        ::libloading::Error,
    >,
    pub ncclGroupStart: Result<
        unsafe extern "C" fn() -> ncclResult_t,
        ::libloading::Error,
    >,
    pub ncclGroupEnd: Result<
        unsafe extern "C" fn() -> ncclResult_t,
        ::libloading::Error,
    >,
    pub ncclGroupSimulateEnd: Result<
        unsafe extern "C" fn(simInfo: *mut ncclSimInfo_t) -> ncclResult_t,
        ::libloading::Error,
    >,
    pub ncclSetEncryption: Result<
        unsafe extern "C" fn(config: *const ncclEncryptionConfig_t) -> ncclResult_t,
        ::libloading::Error,
    >,
    pub ncclParamBind: Result<
        unsafe extern "C" fn(
            out: *mut ncclParamHandle_t,
            key: *const ::core::ffi::c_char,
        ) -> ncclResult_t,
        ::libloading::Error,
    >,
    pub ncclParamGetI8: Result<
        unsafe extern "C" fn(h: ncclParamHandle_t, out: *mut i8) -> ncclResult_t,
        ::libloading::Error,
    >,
    pub ncclParamGetI16: Result<
        unsafe extern "C" fn(h: ncclParamHandle_t, out: *mut i16) -> ncclResult_t,
        ::libloading::Error,
    >,
    pub ncclParamGetI32: Result<
        unsafe extern "C" fn(h: ncclParamHandle_t, out: *mut i32) -> ncclResult_t,
        ::libloading::Error,
    >,
    pub ncclParamGetI64: Result<
        unsafe extern "C" fn(h: ncclParamHandle_t, out: *mut i64) -> ncclResult_t,
        ::libloading::Error,
    >,
    pub ncclParamGetU8: Result<
        unsafe extern "C" fn(h: ncclParamHandle_t, out: *mut u8) -> ncclResult_t,
        ::libloading::Error,
    >,
    pub ncclParamGetU16: Result<
        unsafe extern "C" fn(h: ncclParamHandle_t, out: *mut u16) -> ncclResult_t,
        ::libloading::Error,
    >,
    pub ncclParamGetU32: Result<
        unsafe extern "C" fn(h: ncclParamHandle_t, out: *mut u32) -> ncclResult_t,
        ::libloading::Error,
    >,
    pub ncclParamGetU64: Result<
        unsafe extern "C" fn(h: ncclParamHandle_t, out: *mut u64) -> ncclResult_t,
        ::libloading::Error,
    >,
    pub ncclParamGetStr: Result<
        unsafe extern "C" fn(
            h: ncclParamHandle_t,
            out: *mut *const ::core::ffi::c_char,
        ) -> ncclResult_t,
        ::libloading::Error,
    >,
    pub ncclParamGet: Result<
        unsafe extern "C" fn(
            h: ncclParamHandle_t,
            out: *mut ::core::ffi::c_void,
            maxLen: ::core::ffi::c_int,
            len: *mut ::core::ffi::c_int,
        ) -> ncclResult_t,
        ::libloading::Error,
    >,
    pub ncclParamGetParameter: Result<
        unsafe extern "C" fn(
            key: *const ::core::ffi::c_char,
            value: *mut *const ::core::ffi::c_char,
            valueLen: *mut ::core::ffi::c_int,
        ) -> ncclResult_t,
        ::libloading::Error,
    >,
    pub ncclParamGetAllParameterKeys: Result<
        unsafe extern "C" fn(
            table: *mut *mut *const ::core::ffi::c_char,
            tableLen: *mut ::core::ffi::c_int,
        ) -> ncclResult_t,
        ::libloading::Error,
    >,
    pub ncclParamDumpAll: Result<unsafe extern "C" fn(), ::libloading::Error>,
    pub ncclCommQueryProperties: Result<
        unsafe extern "C" fn(
            comm: ncclComm_t,
            props: *mut ncclCommProperties_t,
        ) -> ncclResult_t,
        ::libloading::Error,
    >,
    pub ncclDevCommCreate: Result<
        unsafe extern "C" fn(
            comm: ncclComm_t,
            reqs: *const ncclDevCommRequirements_t,
            outDevComm: *mut ncclDevComm_t,
        ) -> ncclResult_t,
        ::libloading::Error,
    >,
    pub ncclDevCommDestroy: Result<
        unsafe extern "C" fn(
            comm: ncclComm_t,
            devComm: *const ncclDevComm_t,
        ) -> ncclResult_t,
        ::libloading::Error,
    >,
    pub ncclGetLsaMultimemDevicePointer: Result<
        unsafe extern "C" fn(
            window: ncclWindow_t,
            offset: usize,
            outPtr: *mut *mut ::core::ffi::c_void,
        ) -> ncclResult_t,
        ::libloading::Error,
    >,
    pub ncclGetMultimemDevicePointer: Result<
        unsafe extern "C" fn(
            window: ncclWindow_t,
            offset: usize,
            multimem: ncclMultimemHandle_t,
            outPtr: *mut *mut ::core::ffi::c_void,
        ) -> ncclResult_t,
        ::libloading::Error,
    >,
    pub ncclGetLsaDevicePointer: Result<
        unsafe extern "C" fn(
            window: ncclWindow_t,
            offset: usize,
            lsaRank: ::core::ffi::c_int,
            outPtr: *mut *mut ::core::ffi::c_void,
        ) -> ncclResult_t,
        ::libloading::Error,
    >,
    pub ncclGetPeerDevicePointer: Result<
        unsafe extern "C" fn(
            window: ncclWindow_t,
            offset: usize,
            peer: ::core::ffi::c_int,
            outPtr: *mut *mut ::core::ffi::c_void,
        ) -> ncclResult_t,
        ::libloading::Error,
    >,
    pub ncclGetMultimemDeviceLeInfo: Result<
        unsafe extern "C" fn(
            window: ncclWindow_t,
            offset: usize,
            leId: *mut ncclCftLeId,
            leOffset: *mut usize,
        ) -> ncclResult_t,
        ::libloading::Error,
    >,
    pub ncclGetCftDeviceLeInfo: Result<
        unsafe extern "C" fn(
            window: ncclWindow_t,
            offset: usize,
            peerCft: ::core::ffi::c_int,
            cftTeam: ncclTeam_t,
            leId: *mut ncclCftLeId,
            leOffset: *mut usize,
        ) -> ncclResult_t,
        ::libloading::Error,
    >,
    pub ncclGetPeerDeviceLeInfo: Result<
        unsafe extern "C" fn(
            window: ncclWindow_t,
            offset: usize,
            peerWorld: ::core::ffi::c_int,
            leId: *mut ncclCftLeId,
            leOffset: *mut usize,
        ) -> ncclResult_t,
        ::libloading::Error,
    >,
    pub ncclTeamWorld: Result<
        unsafe extern "C" fn(comm: ncclComm_t) -> ncclTeam_t,
        ::libloading::Error,
    >,
    pub ncclTeamLsa: Result<
        unsafe extern "C" fn(comm: ncclComm_t) -> ncclTeam_t,
        ::libloading::Error,
    >,
    pub ncclTeamCft: Result<
        unsafe extern "C" fn(comm: ncclComm_t, mode: ncclCftTeamMode_t) -> ncclTeam_t,
        ::libloading::Error,
    >,
    pub ncclTeamCftMultimem: Result<
        unsafe extern "C" fn(comm: ncclComm_t) -> ncclTeam_t,
        ::libloading::Error,
    >,
    pub ncclTeamRankToWorld: Result<
        unsafe extern "C" fn(
            comm: ncclComm_t,
            team: ncclTeam_t,
            rank: ::core::ffi::c_int,
        ) -> ::core::ffi::c_int,
        ::libloading::Error,
    >,
    pub ncclTeamRankToLsa: Result<
        unsafe extern "C" fn(
            comm: ncclComm_t,
            team: ncclTeam_t,
            rank: ::core::ffi::c_int,
        ) -> ::core::ffi::c_int,
        ::libloading::Error,
    >,
    pub ncclTeamRail: Result<
        unsafe extern "C" fn(comm: ncclComm_t) -> ncclTeam_t,
        ::libloading::Error,
    >,
    pub ncclLsaBarrierCreateRequirement: Result<
        unsafe extern "C" fn(
            team: ncclTeam_t,
            nBarriers: ::core::ffi::c_int,
            outHandle: *mut ncclLsaBarrierHandle_t,
            outReq: *mut ncclDevResourceRequirements_t,
        ) -> ncclResult_t,
        ::libloading::Error,
    >,
    pub ncclGinBarrierCreateRequirement: Result<
        unsafe extern "C" fn(
            comm: ncclComm_t,
            team: ncclTeam_t,
            nBarriers: ::core::ffi::c_int,
            outHandle: *mut ncclGinBarrierHandle_t,
            outReq: *mut ncclDevResourceRequirements_t,
        ) -> ncclResult_t,
        ::libloading::Error,
    >,
    pub ncclLLA2ACalcSlots: Result<
        unsafe extern "C" fn(
            maxElts: ::core::ffi::c_int,
            maxEltSize: ::core::ffi::c_int,
        ) -> ::core::ffi::c_int,
        ::libloading::Error,
    >,
    pub ncclLLA2ACreateRequirement: Result<
        unsafe extern "C" fn(
            nBlocks: ::core::ffi::c_int,
            nSlots: ::core::ffi::c_int,
            outHandle: *mut ncclLLA2AHandle_t,
            outReq: *mut ncclDevResourceRequirements_t,
        ) -> ncclResult_t,
        ::libloading::Error,
    >,
}
impl NcclLibrary {
    pub unsafe fn new<P>(path: P) -> Result<Self, ::libloading::Error>
    where
        P: AsRef<::std::ffi::OsStr>,
    {
        let path = path.as_ref();
        let library = unsafe { ::libloading::Library::new(path) }?;
        unsafe { Self::from_library(library) }
    }
    pub unsafe fn from_library<L>(library: L) -> Result<Self, ::libloading::Error>
    where
        L: Into<::libloading::Library>,
    {
        let __library = library.into();
        let ncclMemAlloc = unsafe { __library.get(b"ncclMemAlloc\0") }.map(|sym| *sym);
        let ncclMemFree = unsafe { __library.get(b"ncclMemFree\0") }.map(|sym| *sym);
        let ncclGetVersion = unsafe { __library.get(b"ncclGetVersion\0") }
            .map(|sym| *sym);
        let ncclGetUniqueId = unsafe { __library.get(b"ncclGetUniqueId\0") }
            .map(|sym| *sym);
        let ncclCommInitRankConfig = unsafe {
            __library.get(b"ncclCommInitRankConfig\0")
        }
            .map(|sym| *sym);
        let ncclCommInitRank = unsafe { __library.get(b"ncclCommInitRank\0") }
            .map(|sym| *sym);
        let ncclCommInitAll = unsafe { __library.get(b"ncclCommInitAll\0") }
            .map(|sym| *sym);
        let ncclCommFinalize = unsafe { __library.get(b"ncclCommFinalize\0") }
            .map(|sym| *sym);
        let ncclCommDestroy = unsafe { __library.get(b"ncclCommDestroy\0") }
            .map(|sym| *sym);
        let ncclCommAbort = unsafe { __library.get(b"ncclCommAbort\0") }.map(|sym| *sym);
        let ncclCommRevoke = unsafe { __library.get(b"ncclCommRevoke\0") }
            .map(|sym| *sym);
        let ncclCommSplit = unsafe { __library.get(b"ncclCommSplit\0") }.map(|sym| *sym);
        let ncclCommShrink = unsafe { __library.get(b"ncclCommShrink\0") }
            .map(|sym| *sym);
        let ncclCommGetUniqueId = unsafe { __library.get(b"ncclCommGetUniqueId\0") }
            .map(|sym| *sym);
        let ncclCommGrow = unsafe { __library.get(b"ncclCommGrow\0") }.map(|sym| *sym);
        let ncclCommInitRankScalable = unsafe {
            __library.get(b"ncclCommInitRankScalable\0")
        }
            .map(|sym| *sym);
        let ncclGetErrorString = unsafe { __library.get(b"ncclGetErrorString\0") }
            .map(|sym| *sym);
        let ncclGetLastError = unsafe { __library.get(b"ncclGetLastError\0") }
            .map(|sym| *sym);
        let ncclCommGetAsyncError = unsafe { __library.get(b"ncclCommGetAsyncError\0") }
            .map(|sym| *sym);
        let ncclCommCount = unsafe { __library.get(b"ncclCommCount\0") }.map(|sym| *sym);
        let ncclCommCuDevice = unsafe { __library.get(b"ncclCommCuDevice\0") }
            .map(|sym| *sym);
        let ncclCommUserRank = unsafe { __library.get(b"ncclCommUserRank\0") }
            .map(|sym| *sym);
        let ncclCommRegister = unsafe { __library.get(b"ncclCommRegister\0") }
            .map(|sym| *sym);
        let ncclCommDeregister = unsafe { __library.get(b"ncclCommDeregister\0") }
            .map(|sym| *sym);
        let ncclCommSuspend = unsafe { __library.get(b"ncclCommSuspend\0") }
            .map(|sym| *sym);
        let ncclCommResume = unsafe { __library.get(b"ncclCommResume\0") }
            .map(|sym| *sym);
        let ncclCommMemStats = unsafe { __library.get(b"ncclCommMemStats\0") }
            .map(|sym| *sym);
        let ncclCommWindowRegister = unsafe {
            __library.get(b"ncclCommWindowRegister\0")
        }
            .map(|sym| *sym);
        let ncclCommWindowDeregister = unsafe {
            __library.get(b"ncclCommWindowDeregister\0")
        }
            .map(|sym| *sym);
        let ncclWinGetUserPtr = unsafe { __library.get(b"ncclWinGetUserPtr\0") }
            .map(|sym| *sym);
        let ncclRedOpCreatePreMulSum = unsafe {
            __library.get(b"ncclRedOpCreatePreMulSum\0")
        }
            .map(|sym| *sym);
        let ncclRedOpDestroy = unsafe { __library.get(b"ncclRedOpDestroy\0") }
            .map(|sym| *sym);
        let ncclReduce = unsafe { __library.get(b"ncclReduce\0") }.map(|sym| *sym);
        let ncclBcast = unsafe { __library.get(b"ncclBcast\0") }.map(|sym| *sym);
        let ncclBroadcast = unsafe { __library.get(b"ncclBroadcast\0") }.map(|sym| *sym);
        let ncclAllReduce = unsafe { __library.get(b"ncclAllReduce\0") }.map(|sym| *sym);
        let ncclReduceScatter = unsafe { __library.get(b"ncclReduceScatter\0") }
            .map(|sym| *sym);
        let ncclAllGather = unsafe { __library.get(b"ncclAllGather\0") }.map(|sym| *sym);
        let ncclAlltoAll = unsafe { __library.get(b"ncclAlltoAll\0") }.map(|sym| *sym);
        let ncclGather = unsafe { __library.get(b"ncclGather\0") }.map(|sym| *sym);
        let ncclScatter = unsafe { __library.get(b"ncclScatter\0") }.map(|sym| *sym);
        let ncclAllReduceConfig = unsafe { __library.get(b"ncclAllReduceConfig\0") }
            .map(|sym| *sym);
        let ncclBroadcastConfig = unsafe { __library.get(b"ncclBroadcastConfig\0") }
            .map(|sym| *sym);
        let ncclReduceConfig = unsafe { __library.get(b"ncclReduceConfig\0") }
            .map(|sym| *sym);
        let ncclAllGatherConfig = unsafe { __library.get(b"ncclAllGatherConfig\0") }
            .map(|sym| *sym);
        let ncclReduceScatterConfig = unsafe {
            __library.get(b"ncclReduceScatterConfig\0")
        }
            .map(|sym| *sym);
        let ncclAlltoAllConfig = unsafe { __library.get(b"ncclAlltoAllConfig\0") }
            .map(|sym| *sym);
        let ncclGatherConfig = unsafe { __library.get(b"ncclGatherConfig\0") }
            .map(|sym| *sym);
        let ncclScatterConfig = unsafe { __library.get(b"ncclScatterConfig\0") }
            .map(|sym| *sym);
        let ncclSend = unsafe { __library.get(b"ncclSend\0") }.map(|sym| *sym);
        let ncclRecv = unsafe { __library.get(b"ncclRecv\0") }.map(|sym| *sym);
        let ncclPutSignal = unsafe { __library.get(b"ncclPutSignal\0") }.map(|sym| *sym);
        let ncclSignal = unsafe { __library.get(b"ncclSignal\0") }.map(|sym| *sym);
        let ncclWaitSignal = unsafe { __library.get(b"ncclWaitSignal\0") }
            .map(|sym| *sym);
        let ncclGroupStart = unsafe { __library.get(b"ncclGroupStart\0") }
            .map(|sym| *sym);
        let ncclGroupEnd = unsafe { __library.get(b"ncclGroupEnd\0") }.map(|sym| *sym);
        let ncclGroupSimulateEnd = unsafe { __library.get(b"ncclGroupSimulateEnd\0") }
            .map(|sym| *sym);
        let ncclSetEncryption = unsafe { __library.get(b"ncclSetEncryption\0") }
            .map(|sym| *sym);
        let ncclParamBind = unsafe { __library.get(b"ncclParamBind\0") }.map(|sym| *sym);
        let ncclParamGetI8 = unsafe { __library.get(b"ncclParamGetI8\0") }
            .map(|sym| *sym);
        let ncclParamGetI16 = unsafe { __library.get(b"ncclParamGetI16\0") }
            .map(|sym| *sym);
        let ncclParamGetI32 = unsafe { __library.get(b"ncclParamGetI32\0") }
            .map(|sym| *sym);
        let ncclParamGetI64 = unsafe { __library.get(b"ncclParamGetI64\0") }
            .map(|sym| *sym);
        let ncclParamGetU8 = unsafe { __library.get(b"ncclParamGetU8\0") }
            .map(|sym| *sym);
        let ncclParamGetU16 = unsafe { __library.get(b"ncclParamGetU16\0") }
            .map(|sym| *sym);
        let ncclParamGetU32 = unsafe { __library.get(b"ncclParamGetU32\0") }
            .map(|sym| *sym);
        let ncclParamGetU64 = unsafe { __library.get(b"ncclParamGetU64\0") }
            .map(|sym| *sym);
        let ncclParamGetStr = unsafe { __library.get(b"ncclParamGetStr\0") }
            .map(|sym| *sym);
        let ncclParamGet = unsafe { __library.get(b"ncclParamGet\0") }.map(|sym| *sym);
        let ncclParamGetParameter = unsafe { __library.get(b"ncclParamGetParameter\0") }
            .map(|sym| *sym);
        let ncclParamGetAllParameterKeys = unsafe {
            __library.get(b"ncclParamGetAllParameterKeys\0")
        }
            .map(|sym| *sym);
        let ncclParamDumpAll = unsafe { __library.get(b"ncclParamDumpAll\0") }
            .map(|sym| *sym);
        let ncclCommQueryProperties = unsafe {
            __library.get(b"ncclCommQueryProperties\0")
        }
            .map(|sym| *sym);
        let ncclDevCommCreate = unsafe { __library.get(b"ncclDevCommCreate\0") }
            .map(|sym| *sym);
        let ncclDevCommDestroy = unsafe { __library.get(b"ncclDevCommDestroy\0") }
            .map(|sym| *sym);
        let ncclGetLsaMultimemDevicePointer = unsafe {
            __library.get(b"ncclGetLsaMultimemDevicePointer\0")
        }
            .map(|sym| *sym);
        let ncclGetMultimemDevicePointer = unsafe {
            __library.get(b"ncclGetMultimemDevicePointer\0")
        }
            .map(|sym| *sym);
        let ncclGetLsaDevicePointer = unsafe {
            __library.get(b"ncclGetLsaDevicePointer\0")
        }
            .map(|sym| *sym);
        let ncclGetPeerDevicePointer = unsafe {
            __library.get(b"ncclGetPeerDevicePointer\0")
        }
            .map(|sym| *sym);
        let ncclGetMultimemDeviceLeInfo = unsafe {
            __library.get(b"ncclGetMultimemDeviceLeInfo\0")
        }
            .map(|sym| *sym);
        let ncclGetCftDeviceLeInfo = unsafe {
            __library.get(b"ncclGetCftDeviceLeInfo\0")
        }
            .map(|sym| *sym);
        let ncclGetPeerDeviceLeInfo = unsafe {
            __library.get(b"ncclGetPeerDeviceLeInfo\0")
        }
            .map(|sym| *sym);
        let ncclTeamWorld = unsafe { __library.get(b"ncclTeamWorld\0") }.map(|sym| *sym);
        let ncclTeamLsa = unsafe { __library.get(b"ncclTeamLsa\0") }.map(|sym| *sym);
        let ncclTeamCft = unsafe { __library.get(b"ncclTeamCft\0") }.map(|sym| *sym);
        let ncclTeamCftMultimem = unsafe { __library.get(b"ncclTeamCftMultimem\0") }
            .map(|sym| *sym);
        let ncclTeamRankToWorld = unsafe { __library.get(b"ncclTeamRankToWorld\0") }
            .map(|sym| *sym);
        let ncclTeamRankToLsa = unsafe { __library.get(b"ncclTeamRankToLsa\0") }
            .map(|sym| *sym);
        let ncclTeamRail = unsafe { __library.get(b"ncclTeamRail\0") }.map(|sym| *sym);
        let ncclLsaBarrierCreateRequirement = unsafe {
            __library.get(b"ncclLsaBarrierCreateRequirement\0")
        }
            .map(|sym| *sym);
        let ncclGinBarrierCreateRequirement = unsafe {
            __library.get(b"ncclGinBarrierCreateRequirement\0")
        }
            .map(|sym| *sym);
        let ncclLLA2ACalcSlots = unsafe { __library.get(b"ncclLLA2ACalcSlots\0") }
            .map(|sym| *sym);
        let ncclLLA2ACreateRequirement = unsafe {
            __library.get(b"ncclLLA2ACreateRequirement\0")
        }
            .map(|sym| *sym);
        Ok(NcclLibrary {
            __library,
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
            ncclCommQueryProperties,
            ncclDevCommCreate,
            ncclDevCommDestroy,
            ncclGetLsaMultimemDevicePointer,
            ncclGetMultimemDevicePointer,
            ncclGetLsaDevicePointer,
            ncclGetPeerDevicePointer,
            ncclGetMultimemDeviceLeInfo,
            ncclGetCftDeviceLeInfo,
            ncclGetPeerDeviceLeInfo,
            ncclTeamWorld,
            ncclTeamLsa,
            ncclTeamCft,
            ncclTeamCftMultimem,
            ncclTeamRankToWorld,
            ncclTeamRankToLsa,
            ncclTeamRail,
            ncclLsaBarrierCreateRequirement,
            ncclGinBarrierCreateRequirement,
            ncclLLA2ACalcSlots,
            ncclLLA2ACreateRequirement,
        })
    }
    pub unsafe fn ncclMemAlloc(
        &self,
        ptr: *mut *mut ::core::ffi::c_void,
        size: usize,
    ) -> ncclResult_t {
        unsafe {
            (self
                .ncclMemAlloc
                .as_ref()
                .expect("Expected function, got error."))(ptr, size)
        }
    }
    pub unsafe fn ncclMemFree(&self, ptr: *mut ::core::ffi::c_void) -> ncclResult_t {
        unsafe {
            (self.ncclMemFree.as_ref().expect("Expected function, got error."))(ptr)
        }
    }
    pub unsafe fn ncclGetVersion(
        &self,
        version: *mut ::core::ffi::c_int,
    ) -> ncclResult_t {
        unsafe {
            (self
                .ncclGetVersion
                .as_ref()
                .expect("Expected function, got error."))(version)
        }
    }
    pub unsafe fn ncclGetUniqueId(&self, uniqueId: *mut ncclUniqueId) -> ncclResult_t {
        unsafe {
            (self
                .ncclGetUniqueId
                .as_ref()
                .expect("Expected function, got error."))(uniqueId)
        }
    }
    pub unsafe fn ncclCommInitRankConfig(
        &self,
        comm: *mut ncclComm_t,
        nranks: ::core::ffi::c_int,
        commId: ncclUniqueId,
        rank: ::core::ffi::c_int,
        config: *mut ncclConfig_t,
    ) -> ncclResult_t {
        unsafe {
            (self
                .ncclCommInitRankConfig
                .as_ref()
                .expect(
                    "Expected function, got error.",
                ))(comm, nranks, commId, rank, config)
        }
    }
    pub unsafe fn ncclCommInitRank(
        &self,
        comm: *mut ncclComm_t,
        nranks: ::core::ffi::c_int,
        commId: ncclUniqueId,
        rank: ::core::ffi::c_int,
    ) -> ncclResult_t {
        unsafe {
            (self
                .ncclCommInitRank
                .as_ref()
                .expect("Expected function, got error."))(comm, nranks, commId, rank)
        }
    }
    pub unsafe fn ncclCommInitAll(
        &self,
        comm: *mut ncclComm_t,
        ndev: ::core::ffi::c_int,
        devlist: *const ::core::ffi::c_int,
    ) -> ncclResult_t {
        unsafe {
            (self
                .ncclCommInitAll
                .as_ref()
                .expect("Expected function, got error."))(comm, ndev, devlist)
        }
    }
    pub unsafe fn ncclCommFinalize(&self, comm: ncclComm_t) -> ncclResult_t {
        unsafe {
            (self
                .ncclCommFinalize
                .as_ref()
                .expect("Expected function, got error."))(comm)
        }
    }
    pub unsafe fn ncclCommDestroy(&self, comm: ncclComm_t) -> ncclResult_t {
        unsafe {
            (self.ncclCommDestroy.as_ref().expect("Expected function, got error."))(comm)
        }
    }
    pub unsafe fn ncclCommAbort(&self, comm: ncclComm_t) -> ncclResult_t {
        unsafe {
            (self.ncclCommAbort.as_ref().expect("Expected function, got error."))(comm)
        }
    }
    pub unsafe fn ncclCommRevoke(
        &self,
        comm: ncclComm_t,
        revokeFlags: ::core::ffi::c_int,
    ) -> ncclResult_t {
        unsafe {
            (self
                .ncclCommRevoke
                .as_ref()
                .expect("Expected function, got error."))(comm, revokeFlags)
        }
    }
    pub unsafe fn ncclCommSplit(
        &self,
        comm: ncclComm_t,
        color: ::core::ffi::c_int,
        key: ::core::ffi::c_int,
        newcomm: *mut ncclComm_t,
        config: *mut ncclConfig_t,
    ) -> ncclResult_t {
        unsafe {
            (self
                .ncclCommSplit
                .as_ref()
                .expect(
                    "Expected function, got error.",
                ))(comm, color, key, newcomm, config)
        }
    }
    pub unsafe fn ncclCommShrink(
        &self,
        comm: ncclComm_t,
        excludeRanksList: *mut ::core::ffi::c_int,
        excludeRanksCount: ::core::ffi::c_int,
        newcomm: *mut ncclComm_t,
        config: *mut ncclConfig_t,
        shrinkFlags: ::core::ffi::c_int,
    ) -> ncclResult_t {
        unsafe {
            (self
                .ncclCommShrink
                .as_ref()
                .expect(
                    "Expected function, got error.",
                ))(
                comm,
                excludeRanksList,
                excludeRanksCount,
                newcomm,
                config,
                shrinkFlags,
            )
        }
    }
    pub unsafe fn ncclCommGetUniqueId(
        &self,
        comm: ncclComm_t,
        uniqueId: *mut ncclUniqueId,
    ) -> ncclResult_t {
        unsafe {
            (self
                .ncclCommGetUniqueId
                .as_ref()
                .expect("Expected function, got error."))(comm, uniqueId)
        }
    }
    pub unsafe fn ncclCommGrow(
        &self,
        comm: ncclComm_t,
        nRanks: ::core::ffi::c_int,
        uniqueId: *const ncclUniqueId,
        rank: ::core::ffi::c_int,
        newcomm: *mut ncclComm_t,
        config: *mut ncclConfig_t,
    ) -> ncclResult_t {
        unsafe {
            (self
                .ncclCommGrow
                .as_ref()
                .expect(
                    "Expected function, got error.",
                ))(comm, nRanks, uniqueId, rank, newcomm, config)
        }
    }
    pub unsafe fn ncclCommInitRankScalable(
        &self,
        newcomm: *mut ncclComm_t,
        nranks: ::core::ffi::c_int,
        myrank: ::core::ffi::c_int,
        nId: ::core::ffi::c_int,
        commIds: *mut ncclUniqueId,
        config: *mut ncclConfig_t,
    ) -> ncclResult_t {
        unsafe {
            (self
                .ncclCommInitRankScalable
                .as_ref()
                .expect(
                    "Expected function, got error.",
                ))(newcomm, nranks, myrank, nId, commIds, config)
        }
    }
    pub unsafe fn ncclGetErrorString(
        &self,
        result: ncclResult_t,
    ) -> *const ::core::ffi::c_char {
        unsafe {
            (self
                .ncclGetErrorString
                .as_ref()
                .expect("Expected function, got error."))(result)
        }
    }
    pub unsafe fn ncclGetLastError(
        &self,
        comm: ncclComm_t,
    ) -> *const ::core::ffi::c_char {
        unsafe {
            (self
                .ncclGetLastError
                .as_ref()
                .expect("Expected function, got error."))(comm)
        }
    }
    pub unsafe fn ncclCommGetAsyncError(
        &self,
        comm: ncclComm_t,
        asyncError: *mut ncclResult_t,
    ) -> ncclResult_t {
        unsafe {
            (self
                .ncclCommGetAsyncError
                .as_ref()
                .expect("Expected function, got error."))(comm, asyncError)
        }
    }
    pub unsafe fn ncclCommCount(
        &self,
        comm: ncclComm_t,
        count: *mut ::core::ffi::c_int,
    ) -> ncclResult_t {
        unsafe {
            (self
                .ncclCommCount
                .as_ref()
                .expect("Expected function, got error."))(comm, count)
        }
    }
    pub unsafe fn ncclCommCuDevice(
        &self,
        comm: ncclComm_t,
        device: *mut ::core::ffi::c_int,
    ) -> ncclResult_t {
        unsafe {
            (self
                .ncclCommCuDevice
                .as_ref()
                .expect("Expected function, got error."))(comm, device)
        }
    }
    pub unsafe fn ncclCommUserRank(
        &self,
        comm: ncclComm_t,
        rank: *mut ::core::ffi::c_int,
    ) -> ncclResult_t {
        unsafe {
            (self
                .ncclCommUserRank
                .as_ref()
                .expect("Expected function, got error."))(comm, rank)
        }
    }
    pub unsafe fn ncclCommRegister(
        &self,
        comm: ncclComm_t,
        buff: *mut ::core::ffi::c_void,
        size: usize,
        handle: *mut *mut ::core::ffi::c_void,
    ) -> ncclResult_t {
        unsafe {
            (self
                .ncclCommRegister
                .as_ref()
                .expect("Expected function, got error."))(comm, buff, size, handle)
        }
    }
    pub unsafe fn ncclCommDeregister(
        &self,
        comm: ncclComm_t,
        handle: *mut ::core::ffi::c_void,
    ) -> ncclResult_t {
        unsafe {
            (self
                .ncclCommDeregister
                .as_ref()
                .expect("Expected function, got error."))(comm, handle)
        }
    }
    pub unsafe fn ncclCommSuspend(
        &self,
        comm: ncclComm_t,
        flags: ::core::ffi::c_int,
    ) -> ncclResult_t {
        unsafe {
            (self
                .ncclCommSuspend
                .as_ref()
                .expect("Expected function, got error."))(comm, flags)
        }
    }
    pub unsafe fn ncclCommResume(&self, comm: ncclComm_t) -> ncclResult_t {
        unsafe {
            (self.ncclCommResume.as_ref().expect("Expected function, got error."))(comm)
        }
    }
    pub unsafe fn ncclCommMemStats(
        &self,
        comm: ncclComm_t,
        stat: ncclCommMemStat_t,
        value: *mut u64,
    ) -> ncclResult_t {
        unsafe {
            (self
                .ncclCommMemStats
                .as_ref()
                .expect("Expected function, got error."))(comm, stat, value)
        }
    }
    pub unsafe fn ncclCommWindowRegister(
        &self,
        comm: ncclComm_t,
        buff: *mut ::core::ffi::c_void,
        size: usize,
        win: *mut ncclWindow_t,
        winFlags: ::core::ffi::c_int,
    ) -> ncclResult_t {
        unsafe {
            (self
                .ncclCommWindowRegister
                .as_ref()
                .expect(
                    "Expected function, got error.",
                ))(comm, buff, size, win, winFlags)
        }
    }
    pub unsafe fn ncclCommWindowDeregister(
        &self,
        comm: ncclComm_t,
        win: ncclWindow_t,
    ) -> ncclResult_t {
        unsafe {
            (self
                .ncclCommWindowDeregister
                .as_ref()
                .expect("Expected function, got error."))(comm, win)
        }
    }
    pub unsafe fn ncclWinGetUserPtr(
        &self,
        comm: ncclComm_t,
        win: ncclWindow_t,
        outUserPtr: *mut *mut ::core::ffi::c_void,
    ) -> ncclResult_t {
        unsafe {
            (self
                .ncclWinGetUserPtr
                .as_ref()
                .expect("Expected function, got error."))(comm, win, outUserPtr)
        }
    }
    pub unsafe fn ncclRedOpCreatePreMulSum(
        &self,
        op: *mut ncclRedOp_t,
        scalar: *mut ::core::ffi::c_void,
        datatype: ncclDataType_t,
        residence: ncclScalarResidence_t,
        comm: ncclComm_t,
    ) -> ncclResult_t {
        unsafe {
            (self
                .ncclRedOpCreatePreMulSum
                .as_ref()
                .expect(
                    "Expected function, got error.",
                ))(op, scalar, datatype, residence, comm)
        }
    }
    pub unsafe fn ncclRedOpDestroy(
        &self,
        op: ncclRedOp_t,
        comm: ncclComm_t,
    ) -> ncclResult_t {
        unsafe {
            (self
                .ncclRedOpDestroy
                .as_ref()
                .expect("Expected function, got error."))(op, comm)
        }
    }
    pub unsafe fn ncclReduce(
        &self,
        sendbuff: *const ::core::ffi::c_void,
        recvbuff: *mut ::core::ffi::c_void,
        count: usize,
        datatype: ncclDataType_t,
        op: ncclRedOp_t,
        root: ::core::ffi::c_int,
        comm: ncclComm_t,
        stream: cudaStream_t,
    ) -> ncclResult_t {
        unsafe {
            (self
                .ncclReduce
                .as_ref()
                .expect(
                    "Expected function, got error.",
                ))(sendbuff, recvbuff, count, datatype, op, root, comm, stream)
        }
    }
    pub unsafe fn ncclBcast(
        &self,
        buff: *mut ::core::ffi::c_void,
        count: usize,
        datatype: ncclDataType_t,
        root: ::core::ffi::c_int,
        comm: ncclComm_t,
        stream: cudaStream_t,
    ) -> ncclResult_t {
        unsafe {
            (self
                .ncclBcast
                .as_ref()
                .expect(
                    "Expected function, got error.",
                ))(buff, count, datatype, root, comm, stream)
        }
    }
    pub unsafe fn ncclBroadcast(
        &self,
        sendbuff: *const ::core::ffi::c_void,
        recvbuff: *mut ::core::ffi::c_void,
        count: usize,
        datatype: ncclDataType_t,
        root: ::core::ffi::c_int,
        comm: ncclComm_t,
        stream: cudaStream_t,
    ) -> ncclResult_t {
        unsafe {
            (self
                .ncclBroadcast
                .as_ref()
                .expect(
                    "Expected function, got error.",
                ))(sendbuff, recvbuff, count, datatype, root, comm, stream)
        }
    }
    pub unsafe fn ncclAllReduce(
        &self,
        sendbuff: *const ::core::ffi::c_void,
        recvbuff: *mut ::core::ffi::c_void,
        count: usize,
        datatype: ncclDataType_t,
        op: ncclRedOp_t,
        comm: ncclComm_t,
        stream: cudaStream_t,
    ) -> ncclResult_t {
        unsafe {
            (self
                .ncclAllReduce
                .as_ref()
                .expect(
                    "Expected function, got error.",
                ))(sendbuff, recvbuff, count, datatype, op, comm, stream)
        }
    }
    pub unsafe fn ncclReduceScatter(
        &self,
        sendbuff: *const ::core::ffi::c_void,
        recvbuff: *mut ::core::ffi::c_void,
        recvcount: usize,
        datatype: ncclDataType_t,
        op: ncclRedOp_t,
        comm: ncclComm_t,
        stream: cudaStream_t,
    ) -> ncclResult_t {
        unsafe {
            (self
                .ncclReduceScatter
                .as_ref()
                .expect(
                    "Expected function, got error.",
                ))(sendbuff, recvbuff, recvcount, datatype, op, comm, stream)
        }
    }
    pub unsafe fn ncclAllGather(
        &self,
        sendbuff: *const ::core::ffi::c_void,
        recvbuff: *mut ::core::ffi::c_void,
        sendcount: usize,
        datatype: ncclDataType_t,
        comm: ncclComm_t,
        stream: cudaStream_t,
    ) -> ncclResult_t {
        unsafe {
            (self
                .ncclAllGather
                .as_ref()
                .expect(
                    "Expected function, got error.",
                ))(sendbuff, recvbuff, sendcount, datatype, comm, stream)
        }
    }
    pub unsafe fn ncclAlltoAll(
        &self,
        sendbuff: *const ::core::ffi::c_void,
        recvbuff: *mut ::core::ffi::c_void,
        count: usize,
        datatype: ncclDataType_t,
        comm: ncclComm_t,
        stream: cudaStream_t,
    ) -> ncclResult_t {
        unsafe {
            (self
                .ncclAlltoAll
                .as_ref()
                .expect(
                    "Expected function, got error.",
                ))(sendbuff, recvbuff, count, datatype, comm, stream)
        }
    }
    pub unsafe fn ncclGather(
        &self,
        sendbuff: *const ::core::ffi::c_void,
        recvbuff: *mut ::core::ffi::c_void,
        count: usize,
        datatype: ncclDataType_t,
        root: ::core::ffi::c_int,
        comm: ncclComm_t,
        stream: cudaStream_t,
    ) -> ncclResult_t {
        unsafe {
            (self
                .ncclGather
                .as_ref()
                .expect(
                    "Expected function, got error.",
                ))(sendbuff, recvbuff, count, datatype, root, comm, stream)
        }
    }
    pub unsafe fn ncclScatter(
        &self,
        sendbuff: *const ::core::ffi::c_void,
        recvbuff: *mut ::core::ffi::c_void,
        count: usize,
        datatype: ncclDataType_t,
        root: ::core::ffi::c_int,
        comm: ncclComm_t,
        stream: cudaStream_t,
    ) -> ncclResult_t {
        unsafe {
            (self
                .ncclScatter
                .as_ref()
                .expect(
                    "Expected function, got error.",
                ))(sendbuff, recvbuff, count, datatype, root, comm, stream)
        }
    }
    pub unsafe fn ncclAllReduceConfig(
        &self,
        sendbuff: *const ::core::ffi::c_void,
        recvbuff: *mut ::core::ffi::c_void,
        count: usize,
        datatype: ncclDataType_t,
        op: ncclRedOp_t,
        comm: ncclComm_t,
        stream: cudaStream_t,
        config: *const ncclCollConfig_t,
    ) -> ncclResult_t {
        unsafe {
            (self
                .ncclAllReduceConfig
                .as_ref()
                .expect(
                    "Expected function, got error.",
                ))(sendbuff, recvbuff, count, datatype, op, comm, stream, config)
        }
    }
    pub unsafe fn ncclBroadcastConfig(
        &self,
        sendbuff: *const ::core::ffi::c_void,
        recvbuff: *mut ::core::ffi::c_void,
        count: usize,
        datatype: ncclDataType_t,
        root: ::core::ffi::c_int,
        comm: ncclComm_t,
        stream: cudaStream_t,
        config: *const ncclCollConfig_t,
    ) -> ncclResult_t {
        unsafe {
            (self
                .ncclBroadcastConfig
                .as_ref()
                .expect(
                    "Expected function, got error.",
                ))(sendbuff, recvbuff, count, datatype, root, comm, stream, config)
        }
    }
    pub unsafe fn ncclReduceConfig(
        &self,
        sendbuff: *const ::core::ffi::c_void,
        recvbuff: *mut ::core::ffi::c_void,
        count: usize,
        datatype: ncclDataType_t,
        op: ncclRedOp_t,
        root: ::core::ffi::c_int,
        comm: ncclComm_t,
        stream: cudaStream_t,
        config: *const ncclCollConfig_t,
    ) -> ncclResult_t {
        unsafe {
            (self
                .ncclReduceConfig
                .as_ref()
                .expect(
                    "Expected function, got error.",
                ))(sendbuff, recvbuff, count, datatype, op, root, comm, stream, config)
        }
    }
    pub unsafe fn ncclAllGatherConfig(
        &self,
        sendbuff: *const ::core::ffi::c_void,
        recvbuff: *mut ::core::ffi::c_void,
        sendcount: usize,
        datatype: ncclDataType_t,
        comm: ncclComm_t,
        stream: cudaStream_t,
        config: *const ncclCollConfig_t,
    ) -> ncclResult_t {
        unsafe {
            (self
                .ncclAllGatherConfig
                .as_ref()
                .expect(
                    "Expected function, got error.",
                ))(sendbuff, recvbuff, sendcount, datatype, comm, stream, config)
        }
    }
    pub unsafe fn ncclReduceScatterConfig(
        &self,
        sendbuff: *const ::core::ffi::c_void,
        recvbuff: *mut ::core::ffi::c_void,
        recvcount: usize,
        datatype: ncclDataType_t,
        op: ncclRedOp_t,
        comm: ncclComm_t,
        stream: cudaStream_t,
        config: *const ncclCollConfig_t,
    ) -> ncclResult_t {
        unsafe {
            (self
                .ncclReduceScatterConfig
                .as_ref()
                .expect(
                    "Expected function, got error.",
                ))(sendbuff, recvbuff, recvcount, datatype, op, comm, stream, config)
        }
    }
    pub unsafe fn ncclAlltoAllConfig(
        &self,
        sendbuff: *const ::core::ffi::c_void,
        recvbuff: *mut ::core::ffi::c_void,
        count: usize,
        datatype: ncclDataType_t,
        comm: ncclComm_t,
        stream: cudaStream_t,
        config: *const ncclCollConfig_t,
    ) -> ncclResult_t {
        unsafe {
            (self
                .ncclAlltoAllConfig
                .as_ref()
                .expect(
                    "Expected function, got error.",
                ))(sendbuff, recvbuff, count, datatype, comm, stream, config)
        }
    }
    pub unsafe fn ncclGatherConfig(
        &self,
        sendbuff: *const ::core::ffi::c_void,
        recvbuff: *mut ::core::ffi::c_void,
        count: usize,
        datatype: ncclDataType_t,
        root: ::core::ffi::c_int,
        comm: ncclComm_t,
        stream: cudaStream_t,
        config: *const ncclCollConfig_t,
    ) -> ncclResult_t {
        unsafe {
            (self
                .ncclGatherConfig
                .as_ref()
                .expect(
                    "Expected function, got error.",
                ))(sendbuff, recvbuff, count, datatype, root, comm, stream, config)
        }
    }
    pub unsafe fn ncclScatterConfig(
        &self,
        sendbuff: *const ::core::ffi::c_void,
        recvbuff: *mut ::core::ffi::c_void,
        count: usize,
        datatype: ncclDataType_t,
        root: ::core::ffi::c_int,
        comm: ncclComm_t,
        stream: cudaStream_t,
        config: *const ncclCollConfig_t,
    ) -> ncclResult_t {
        unsafe {
            (self
                .ncclScatterConfig
                .as_ref()
                .expect(
                    "Expected function, got error.",
                ))(sendbuff, recvbuff, count, datatype, root, comm, stream, config)
        }
    }
    pub unsafe fn ncclSend(
        &self,
        sendbuff: *const ::core::ffi::c_void,
        count: usize,
        datatype: ncclDataType_t,
        peer: ::core::ffi::c_int,
        comm: ncclComm_t,
        stream: cudaStream_t,
    ) -> ncclResult_t {
        unsafe {
            (self
                .ncclSend
                .as_ref()
                .expect(
                    "Expected function, got error.",
                ))(sendbuff, count, datatype, peer, comm, stream)
        }
    }
    pub unsafe fn ncclRecv(
        &self,
        recvbuff: *mut ::core::ffi::c_void,
        count: usize,
        datatype: ncclDataType_t,
        peer: ::core::ffi::c_int,
        comm: ncclComm_t,
        stream: cudaStream_t,
    ) -> ncclResult_t {
        unsafe {
            (self
                .ncclRecv
                .as_ref()
                .expect(
                    "Expected function, got error.",
                ))(recvbuff, count, datatype, peer, comm, stream)
        }
    }
    pub unsafe fn ncclPutSignal(
        &self,
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
    ) -> ncclResult_t {
        unsafe {
            (self
                .ncclPutSignal
                .as_ref()
                .expect(
                    "Expected function, got error.",
                ))(
                localbuff,
                count,
                datatype,
                peer,
                peerWin,
                peerWinOffset,
                sigIdx,
                ctx,
                flags,
                comm,
                stream,
            )
        }
    }
    pub unsafe fn ncclSignal(
        &self,
        peer: ::core::ffi::c_int,
        sigIdx: ::core::ffi::c_int,
        ctx: ::core::ffi::c_int,
        flags: ::core::ffi::c_uint,
        comm: ncclComm_t,
        stream: cudaStream_t,
    ) -> ncclResult_t {
        unsafe {
            (self
                .ncclSignal
                .as_ref()
                .expect(
                    "Expected function, got error.",
                ))(peer, sigIdx, ctx, flags, comm, stream)
        }
    }
    pub unsafe fn ncclWaitSignal(
        &self,
        nDesc: ::core::ffi::c_int,
        signalDescs: *mut ncclWaitSignalDesc_t,
        comm: ncclComm_t,
        stream: cudaStream_t,
    ) -> ncclResult_t {
        unsafe {
            (self
                .ncclWaitSignal
                .as_ref()
                .expect(
                    "Expected function, got error.",
                ))(nDesc, signalDescs, comm, stream)
        }
    }
    pub unsafe fn ncclGroupStart(&self) -> ncclResult_t {
        unsafe {
            (self.ncclGroupStart.as_ref().expect("Expected function, got error."))()
        }
    }
    pub unsafe fn ncclGroupEnd(&self) -> ncclResult_t {
        unsafe { (self.ncclGroupEnd.as_ref().expect("Expected function, got error."))() }
    }
    pub unsafe fn ncclGroupSimulateEnd(
        &self,
        simInfo: *mut ncclSimInfo_t,
    ) -> ncclResult_t {
        unsafe {
            (self
                .ncclGroupSimulateEnd
                .as_ref()
                .expect("Expected function, got error."))(simInfo)
        }
    }
    pub unsafe fn ncclSetEncryption(
        &self,
        config: *const ncclEncryptionConfig_t,
    ) -> ncclResult_t {
        unsafe {
            (self
                .ncclSetEncryption
                .as_ref()
                .expect("Expected function, got error."))(config)
        }
    }
    pub unsafe fn ncclParamBind(
        &self,
        out: *mut ncclParamHandle_t,
        key: *const ::core::ffi::c_char,
    ) -> ncclResult_t {
        unsafe {
            (self
                .ncclParamBind
                .as_ref()
                .expect("Expected function, got error."))(out, key)
        }
    }
    pub unsafe fn ncclParamGetI8(
        &self,
        h: ncclParamHandle_t,
        out: *mut i8,
    ) -> ncclResult_t {
        unsafe {
            (self
                .ncclParamGetI8
                .as_ref()
                .expect("Expected function, got error."))(h, out)
        }
    }
    pub unsafe fn ncclParamGetI16(
        &self,
        h: ncclParamHandle_t,
        out: *mut i16,
    ) -> ncclResult_t {
        unsafe {
            (self
                .ncclParamGetI16
                .as_ref()
                .expect("Expected function, got error."))(h, out)
        }
    }
    pub unsafe fn ncclParamGetI32(
        &self,
        h: ncclParamHandle_t,
        out: *mut i32,
    ) -> ncclResult_t {
        unsafe {
            (self
                .ncclParamGetI32
                .as_ref()
                .expect("Expected function, got error."))(h, out)
        }
    }
    pub unsafe fn ncclParamGetI64(
        &self,
        h: ncclParamHandle_t,
        out: *mut i64,
    ) -> ncclResult_t {
        unsafe {
            (self
                .ncclParamGetI64
                .as_ref()
                .expect("Expected function, got error."))(h, out)
        }
    }
    pub unsafe fn ncclParamGetU8(
        &self,
        h: ncclParamHandle_t,
        out: *mut u8,
    ) -> ncclResult_t {
        unsafe {
            (self
                .ncclParamGetU8
                .as_ref()
                .expect("Expected function, got error."))(h, out)
        }
    }
    pub unsafe fn ncclParamGetU16(
        &self,
        h: ncclParamHandle_t,
        out: *mut u16,
    ) -> ncclResult_t {
        unsafe {
            (self
                .ncclParamGetU16
                .as_ref()
                .expect("Expected function, got error."))(h, out)
        }
    }
    pub unsafe fn ncclParamGetU32(
        &self,
        h: ncclParamHandle_t,
        out: *mut u32,
    ) -> ncclResult_t {
        unsafe {
            (self
                .ncclParamGetU32
                .as_ref()
                .expect("Expected function, got error."))(h, out)
        }
    }
    pub unsafe fn ncclParamGetU64(
        &self,
        h: ncclParamHandle_t,
        out: *mut u64,
    ) -> ncclResult_t {
        unsafe {
            (self
                .ncclParamGetU64
                .as_ref()
                .expect("Expected function, got error."))(h, out)
        }
    }
    pub unsafe fn ncclParamGetStr(
        &self,
        h: ncclParamHandle_t,
        out: *mut *const ::core::ffi::c_char,
    ) -> ncclResult_t {
        unsafe {
            (self
                .ncclParamGetStr
                .as_ref()
                .expect("Expected function, got error."))(h, out)
        }
    }
    pub unsafe fn ncclParamGet(
        &self,
        h: ncclParamHandle_t,
        out: *mut ::core::ffi::c_void,
        maxLen: ::core::ffi::c_int,
        len: *mut ::core::ffi::c_int,
    ) -> ncclResult_t {
        unsafe {
            (self
                .ncclParamGet
                .as_ref()
                .expect("Expected function, got error."))(h, out, maxLen, len)
        }
    }
    pub unsafe fn ncclParamGetParameter(
        &self,
        key: *const ::core::ffi::c_char,
        value: *mut *const ::core::ffi::c_char,
        valueLen: *mut ::core::ffi::c_int,
    ) -> ncclResult_t {
        unsafe {
            (self
                .ncclParamGetParameter
                .as_ref()
                .expect("Expected function, got error."))(key, value, valueLen)
        }
    }
    pub unsafe fn ncclParamGetAllParameterKeys(
        &self,
        table: *mut *mut *const ::core::ffi::c_char,
        tableLen: *mut ::core::ffi::c_int,
    ) -> ncclResult_t {
        unsafe {
            (self
                .ncclParamGetAllParameterKeys
                .as_ref()
                .expect("Expected function, got error."))(table, tableLen)
        }
    }
    pub unsafe fn ncclParamDumpAll(&self) {
        unsafe {
            (self.ncclParamDumpAll.as_ref().expect("Expected function, got error."))()
        }
    }
    pub unsafe fn ncclCommQueryProperties(
        &self,
        comm: ncclComm_t,
        props: *mut ncclCommProperties_t,
    ) -> ncclResult_t {
        unsafe {
            (self
                .ncclCommQueryProperties
                .as_ref()
                .expect("Expected function, got error."))(comm, props)
        }
    }
    pub unsafe fn ncclDevCommCreate(
        &self,
        comm: ncclComm_t,
        reqs: *const ncclDevCommRequirements_t,
        outDevComm: *mut ncclDevComm_t,
    ) -> ncclResult_t {
        unsafe {
            (self
                .ncclDevCommCreate
                .as_ref()
                .expect("Expected function, got error."))(comm, reqs, outDevComm)
        }
    }
    pub unsafe fn ncclDevCommDestroy(
        &self,
        comm: ncclComm_t,
        devComm: *const ncclDevComm_t,
    ) -> ncclResult_t {
        unsafe {
            (self
                .ncclDevCommDestroy
                .as_ref()
                .expect("Expected function, got error."))(comm, devComm)
        }
    }
    pub unsafe fn ncclGetLsaMultimemDevicePointer(
        &self,
        window: ncclWindow_t,
        offset: usize,
        outPtr: *mut *mut ::core::ffi::c_void,
    ) -> ncclResult_t {
        unsafe {
            (self
                .ncclGetLsaMultimemDevicePointer
                .as_ref()
                .expect("Expected function, got error."))(window, offset, outPtr)
        }
    }
    pub unsafe fn ncclGetMultimemDevicePointer(
        &self,
        window: ncclWindow_t,
        offset: usize,
        multimem: ncclMultimemHandle_t,
        outPtr: *mut *mut ::core::ffi::c_void,
    ) -> ncclResult_t {
        unsafe {
            (self
                .ncclGetMultimemDevicePointer
                .as_ref()
                .expect(
                    "Expected function, got error.",
                ))(window, offset, multimem, outPtr)
        }
    }
    pub unsafe fn ncclGetLsaDevicePointer(
        &self,
        window: ncclWindow_t,
        offset: usize,
        lsaRank: ::core::ffi::c_int,
        outPtr: *mut *mut ::core::ffi::c_void,
    ) -> ncclResult_t {
        unsafe {
            (self
                .ncclGetLsaDevicePointer
                .as_ref()
                .expect(
                    "Expected function, got error.",
                ))(window, offset, lsaRank, outPtr)
        }
    }
    pub unsafe fn ncclGetPeerDevicePointer(
        &self,
        window: ncclWindow_t,
        offset: usize,
        peer: ::core::ffi::c_int,
        outPtr: *mut *mut ::core::ffi::c_void,
    ) -> ncclResult_t {
        unsafe {
            (self
                .ncclGetPeerDevicePointer
                .as_ref()
                .expect("Expected function, got error."))(window, offset, peer, outPtr)
        }
    }
    pub unsafe fn ncclGetMultimemDeviceLeInfo(
        &self,
        window: ncclWindow_t,
        offset: usize,
        leId: *mut ncclCftLeId,
        leOffset: *mut usize,
    ) -> ncclResult_t {
        unsafe {
            (self
                .ncclGetMultimemDeviceLeInfo
                .as_ref()
                .expect("Expected function, got error."))(window, offset, leId, leOffset)
        }
    }
    pub unsafe fn ncclGetCftDeviceLeInfo(
        &self,
        window: ncclWindow_t,
        offset: usize,
        peerCft: ::core::ffi::c_int,
        cftTeam: ncclTeam_t,
        leId: *mut ncclCftLeId,
        leOffset: *mut usize,
    ) -> ncclResult_t {
        unsafe {
            (self
                .ncclGetCftDeviceLeInfo
                .as_ref()
                .expect(
                    "Expected function, got error.",
                ))(window, offset, peerCft, cftTeam, leId, leOffset)
        }
    }
    pub unsafe fn ncclGetPeerDeviceLeInfo(
        &self,
        window: ncclWindow_t,
        offset: usize,
        peerWorld: ::core::ffi::c_int,
        leId: *mut ncclCftLeId,
        leOffset: *mut usize,
    ) -> ncclResult_t {
        unsafe {
            (self
                .ncclGetPeerDeviceLeInfo
                .as_ref()
                .expect(
                    "Expected function, got error.",
                ))(window, offset, peerWorld, leId, leOffset)
        }
    }
    pub unsafe fn ncclTeamWorld(&self, comm: ncclComm_t) -> ncclTeam_t {
        unsafe {
            (self.ncclTeamWorld.as_ref().expect("Expected function, got error."))(comm)
        }
    }
    pub unsafe fn ncclTeamLsa(&self, comm: ncclComm_t) -> ncclTeam_t {
        unsafe {
            (self.ncclTeamLsa.as_ref().expect("Expected function, got error."))(comm)
        }
    }
    pub unsafe fn ncclTeamCft(
        &self,
        comm: ncclComm_t,
        mode: ncclCftTeamMode_t,
    ) -> ncclTeam_t {
        unsafe {
            (self
                .ncclTeamCft
                .as_ref()
                .expect("Expected function, got error."))(comm, mode)
        }
    }
    pub unsafe fn ncclTeamCftMultimem(&self, comm: ncclComm_t) -> ncclTeam_t {
        unsafe {
            (self
                .ncclTeamCftMultimem
                .as_ref()
                .expect("Expected function, got error."))(comm)
        }
    }
    pub unsafe fn ncclTeamRankToWorld(
        &self,
        comm: ncclComm_t,
        team: ncclTeam_t,
        rank: ::core::ffi::c_int,
    ) -> ::core::ffi::c_int {
        unsafe {
            (self
                .ncclTeamRankToWorld
                .as_ref()
                .expect("Expected function, got error."))(comm, team, rank)
        }
    }
    pub unsafe fn ncclTeamRankToLsa(
        &self,
        comm: ncclComm_t,
        team: ncclTeam_t,
        rank: ::core::ffi::c_int,
    ) -> ::core::ffi::c_int {
        unsafe {
            (self
                .ncclTeamRankToLsa
                .as_ref()
                .expect("Expected function, got error."))(comm, team, rank)
        }
    }
    pub unsafe fn ncclTeamRail(&self, comm: ncclComm_t) -> ncclTeam_t {
        unsafe {
            (self.ncclTeamRail.as_ref().expect("Expected function, got error."))(comm)
        }
    }
    pub unsafe fn ncclLsaBarrierCreateRequirement(
        &self,
        team: ncclTeam_t,
        nBarriers: ::core::ffi::c_int,
        outHandle: *mut ncclLsaBarrierHandle_t,
        outReq: *mut ncclDevResourceRequirements_t,
    ) -> ncclResult_t {
        unsafe {
            (self
                .ncclLsaBarrierCreateRequirement
                .as_ref()
                .expect(
                    "Expected function, got error.",
                ))(team, nBarriers, outHandle, outReq)
        }
    }
    pub unsafe fn ncclGinBarrierCreateRequirement(
        &self,
        comm: ncclComm_t,
        team: ncclTeam_t,
        nBarriers: ::core::ffi::c_int,
        outHandle: *mut ncclGinBarrierHandle_t,
        outReq: *mut ncclDevResourceRequirements_t,
    ) -> ncclResult_t {
        unsafe {
            (self
                .ncclGinBarrierCreateRequirement
                .as_ref()
                .expect(
                    "Expected function, got error.",
                ))(comm, team, nBarriers, outHandle, outReq)
        }
    }
    pub unsafe fn ncclLLA2ACalcSlots(
        &self,
        maxElts: ::core::ffi::c_int,
        maxEltSize: ::core::ffi::c_int,
    ) -> ::core::ffi::c_int {
        unsafe {
            (self
                .ncclLLA2ACalcSlots
                .as_ref()
                .expect("Expected function, got error."))(maxElts, maxEltSize)
        }
    }
    pub unsafe fn ncclLLA2ACreateRequirement(
        &self,
        nBlocks: ::core::ffi::c_int,
        nSlots: ::core::ffi::c_int,
        outHandle: *mut ncclLLA2AHandle_t,
        outReq: *mut ncclDevResourceRequirements_t,
    ) -> ncclResult_t {
        unsafe {
            (self
                .ncclLLA2ACreateRequirement
                .as_ref()
                .expect(
                    "Expected function, got error.",
                ))(nBlocks, nSlots, outHandle, outReq)
        }
    }
}
