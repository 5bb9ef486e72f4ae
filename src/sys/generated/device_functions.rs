/// Calls `$callback!` with the signature of every function of `nccl_device_host.h`.
#[doc(hidden)]
#[macro_export]
macro_rules! for_each_device_function {
    ($callback:ident) => {
        $callback! {
            fn ncclCommQueryProperties(comm: ncclComm_t, props: *mut ncclCommProperties_t) -> ncclResult_t;
            fn ncclDevCommCreate(comm: ncclComm_t, reqs: *const ncclDevCommRequirements_t, outDevComm: *mut ncclDevComm_t) -> ncclResult_t;
            fn ncclDevCommDestroy(comm: ncclComm_t, devComm: *const ncclDevComm_t) -> ncclResult_t;
            fn ncclGetLsaMultimemDevicePointer(window: ncclWindow_t, offset: usize, outPtr: *mut *mut ::core::ffi::c_void) -> ncclResult_t;
            fn ncclGetMultimemDevicePointer(window: ncclWindow_t, offset: usize, multimem: ncclMultimemHandle_t, outPtr: *mut *mut ::core::ffi::c_void) -> ncclResult_t;
            fn ncclGetLsaDevicePointer(window: ncclWindow_t, offset: usize, lsaRank: ::core::ffi::c_int, outPtr: *mut *mut ::core::ffi::c_void) -> ncclResult_t;
            fn ncclGetPeerDevicePointer(window: ncclWindow_t, offset: usize, peer: ::core::ffi::c_int, outPtr: *mut *mut ::core::ffi::c_void) -> ncclResult_t;
            fn ncclGetMultimemDeviceLeInfo(window: ncclWindow_t, offset: usize, leId: *mut ncclCftLeId, leOffset: *mut usize) -> ncclResult_t;
            fn ncclGetCftDeviceLeInfo(window: ncclWindow_t, offset: usize, peerCft: ::core::ffi::c_int, cftTeam: ncclTeam_t, leId: *mut ncclCftLeId, leOffset: *mut usize) -> ncclResult_t;
            fn ncclGetPeerDeviceLeInfo(window: ncclWindow_t, offset: usize, peerWorld: ::core::ffi::c_int, leId: *mut ncclCftLeId, leOffset: *mut usize) -> ncclResult_t;
            fn ncclTeamWorld(comm: ncclComm_t) -> ncclTeam_t;
            fn ncclTeamLsa(comm: ncclComm_t) -> ncclTeam_t;
            fn ncclTeamCft(comm: ncclComm_t, mode: ncclCftTeamMode_t) -> ncclTeam_t;
            fn ncclTeamCftMultimem(comm: ncclComm_t) -> ncclTeam_t;
            fn ncclTeamRankToWorld(comm: ncclComm_t, team: ncclTeam_t, rank: ::core::ffi::c_int) -> ::core::ffi::c_int;
            fn ncclTeamRankToLsa(comm: ncclComm_t, team: ncclTeam_t, rank: ::core::ffi::c_int) -> ::core::ffi::c_int;
            fn ncclTeamRail(comm: ncclComm_t) -> ncclTeam_t;
            fn ncclLsaBarrierCreateRequirement(team: ncclTeam_t, nBarriers: ::core::ffi::c_int, outHandle: *mut ncclLsaBarrierHandle_t, outReq: *mut ncclDevResourceRequirements_t) -> ncclResult_t;
            fn ncclGinBarrierCreateRequirement(comm: ncclComm_t, team: ncclTeam_t, nBarriers: ::core::ffi::c_int, outHandle: *mut ncclGinBarrierHandle_t, outReq: *mut ncclDevResourceRequirements_t) -> ncclResult_t;
            fn ncclLLA2ACalcSlots(maxElts: ::core::ffi::c_int, maxEltSize: ::core::ffi::c_int) -> ::core::ffi::c_int;
            fn ncclLLA2ACreateRequirement(nBlocks: ::core::ffi::c_int, nSlots: ::core::ffi::c_int, outHandle: *mut ncclLLA2AHandle_t, outReq: *mut ncclDevResourceRequirements_t) -> ncclResult_t;
        }
    };
}
/// Calls `$callback!` with the name of a table, and of its functions by version: NCCL 2.13.4, and newer.
#[allow(unused_macros)]
macro_rules! device_functions_by_release {
    ($callback:ident, $table:ident) => {
        $callback! {
            $table;
            oldest: ;
            newer: ncclCommQueryProperties ncclDevCommCreate ncclDevCommDestroy ncclGetLsaMultimemDevicePointer ncclGetMultimemDevicePointer ncclGetLsaDevicePointer ncclGetPeerDevicePointer ncclGetMultimemDeviceLeInfo ncclGetCftDeviceLeInfo ncclGetPeerDeviceLeInfo ncclTeamWorld ncclTeamLsa ncclTeamCft ncclTeamCftMultimem ncclTeamRankToWorld ncclTeamRankToLsa ncclTeamRail ncclLsaBarrierCreateRequirement ncclGinBarrierCreateRequirement ncclLLA2ACalcSlots ncclLLA2ACreateRequirement;
        }
    };
}
