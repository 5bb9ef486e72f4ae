/* See build/bindings.rs, `c_table`. */
void ncclCommQueryProperties(void);
void ncclDevCommCreate(void);
void ncclDevCommDestroy(void);
void ncclGetLsaMultimemDevicePointer(void);
void ncclGetMultimemDevicePointer(void);
void ncclGetLsaDevicePointer(void);
void ncclGetPeerDevicePointer(void);
void ncclGetMultimemDeviceLeInfo(void);
void ncclGetCftDeviceLeInfo(void);
void ncclGetPeerDeviceLeInfo(void);
void ncclTeamWorld(void);
void ncclTeamLsa(void);
void ncclTeamCft(void);
void ncclTeamCftMultimem(void);
void ncclTeamRankToWorld(void);
void ncclTeamRankToLsa(void);
void ncclTeamRail(void);
void ncclLsaBarrierCreateRequirement(void);
void ncclGinBarrierCreateRequirement(void);
void ncclLLA2ACalcSlots(void);
void ncclLLA2ACreateRequirement(void);
#pragma weak ncclCommQueryProperties
#pragma weak ncclDevCommCreate
#pragma weak ncclDevCommDestroy
#pragma weak ncclGetLsaMultimemDevicePointer
#pragma weak ncclGetMultimemDevicePointer
#pragma weak ncclGetLsaDevicePointer
#pragma weak ncclGetPeerDevicePointer
#pragma weak ncclGetMultimemDeviceLeInfo
#pragma weak ncclGetCftDeviceLeInfo
#pragma weak ncclGetPeerDeviceLeInfo
#pragma weak ncclTeamWorld
#pragma weak ncclTeamLsa
#pragma weak ncclTeamCft
#pragma weak ncclTeamCftMultimem
#pragma weak ncclTeamRankToWorld
#pragma weak ncclTeamRankToLsa
#pragma weak ncclTeamRail
#pragma weak ncclLsaBarrierCreateRequirement
#pragma weak ncclGinBarrierCreateRequirement
#pragma weak ncclLLA2ACalcSlots
#pragma weak ncclLLA2ACreateRequirement
void (*const DEVICE_FUNCTIONS[])(void) = {
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
};
