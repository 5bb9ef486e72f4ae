/* See build/bindings.rs, `c_table`. */
__attribute__((weak, visibility("hidden"))) void ncclCommQueryProperties(void);
__attribute__((weak, visibility("hidden"))) void ncclDevCommCreate(void);
__attribute__((weak, visibility("hidden"))) void ncclDevCommDestroy(void);
__attribute__((weak, visibility("hidden"))) void ncclGetLsaMultimemDevicePointer(void);
__attribute__((weak, visibility("hidden"))) void ncclGetMultimemDevicePointer(void);
__attribute__((weak, visibility("hidden"))) void ncclGetLsaDevicePointer(void);
__attribute__((weak, visibility("hidden"))) void ncclGetPeerDevicePointer(void);
__attribute__((weak, visibility("hidden"))) void ncclGetMultimemDeviceLeInfo(void);
__attribute__((weak, visibility("hidden"))) void ncclGetCftDeviceLeInfo(void);
__attribute__((weak, visibility("hidden"))) void ncclGetPeerDeviceLeInfo(void);
__attribute__((weak, visibility("hidden"))) void ncclTeamWorld(void);
__attribute__((weak, visibility("hidden"))) void ncclTeamLsa(void);
__attribute__((weak, visibility("hidden"))) void ncclTeamCft(void);
__attribute__((weak, visibility("hidden"))) void ncclTeamCftMultimem(void);
__attribute__((weak, visibility("hidden"))) void ncclTeamRankToWorld(void);
__attribute__((weak, visibility("hidden"))) void ncclTeamRankToLsa(void);
__attribute__((weak, visibility("hidden"))) void ncclTeamRail(void);
__attribute__((weak, visibility("hidden"))) void ncclLsaBarrierCreateRequirement(void);
__attribute__((weak, visibility("hidden"))) void ncclGinBarrierCreateRequirement(void);
__attribute__((weak, visibility("hidden"))) void ncclLLA2ACalcSlots(void);
__attribute__((weak, visibility("hidden"))) void ncclLLA2ACreateRequirement(void);
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
