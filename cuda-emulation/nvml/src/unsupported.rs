//! Functions that there is no truth for.

use crate::driver;
use crate::status::Status;

macro_rules! unsupported {
    ($($name:ident)*) => {$(
        // The arguments, which differ, are left where the caller put them.
        #[unsafe(no_mangle)]
        extern "C" fn $name() -> Status {
            driver::initialised().err().unwrap_or(Status::NOT_SUPPORTED)
        }
    )*};
}

unsupported! {
    nvmlDeviceClearCpuAffinity nvmlDeviceGetArchitecture nvmlDeviceGetAttributes_v2 nvmlDeviceGetBAR1MemoryInfo
    nvmlDeviceGetBoardId nvmlDeviceGetBoardPartNumber nvmlDeviceGetBrand nvmlDeviceGetC2cModeInfoV
    nvmlDeviceGetClockInfo nvmlDeviceGetComputeInstanceId nvmlDeviceGetComputeMode
    nvmlDeviceGetCpuAffinity nvmlDeviceGetCpuAffinityWithinScope
    nvmlDeviceGetCurrPcieLinkGeneration nvmlDeviceGetCurrPcieLinkWidth nvmlDeviceGetDecoderUtilization
    nvmlDeviceGetDeviceHandleFromMigDeviceHandle nvmlDeviceGetDisplayActive nvmlDeviceGetDisplayMode
    nvmlDeviceGetEccMode nvmlDeviceGetEncoderUtilization nvmlDeviceGetEnforcedPowerLimit nvmlDeviceGetFanSpeed
    nvmlDeviceGetFieldValues nvmlDeviceGetGpuInstanceId
    nvmlDeviceGetGraphicsRunningProcesses nvmlDeviceGetGraphicsRunningProcesses_v2
    nvmlDeviceGetGraphicsRunningProcesses_v3 nvmlDeviceGetMaxClockInfo nvmlDeviceGetMaxMigDeviceCount
    nvmlDeviceGetMaxPcieLinkGeneration nvmlDeviceGetMaxPcieLinkWidth nvmlDeviceGetMemoryAffinity
    nvmlDeviceGetMigDeviceHandleByIndex nvmlDeviceGetMigMode nvmlDeviceGetNumGpuCores nvmlDeviceGetNumaNodeId
    nvmlDeviceGetNvLinkCapability nvmlDeviceGetNvLinkRemoteDeviceType nvmlDeviceGetNvLinkRemotePciInfo
    nvmlDeviceGetNvLinkRemotePciInfo_v2 nvmlDeviceGetNvLinkState nvmlDeviceGetNvLinkVersion
    nvmlDeviceGetPcieThroughput nvmlDeviceGetPerformanceState nvmlDeviceGetPersistenceMode
    nvmlDeviceGetPlatformInfo nvmlDeviceGetPowerManagementLimit nvmlDeviceGetPowerUsage
    nvmlDeviceGetProcessUtilization nvmlDeviceGetSerial nvmlDeviceGetTemperature nvmlDeviceGetTemperatureV
    nvmlDeviceGetTopologyNearestGpus nvmlDeviceGetTotalEccErrors nvmlDeviceGetTotalEnergyConsumption
    nvmlDeviceGetUtilizationRates nvmlDeviceGetVbiosVersion nvmlDeviceGetVirtualizationMode
    nvmlDeviceSetCpuAffinity nvmlSystemGetConfComputeState nvmlSystemGetTopologyGpuSet
}
