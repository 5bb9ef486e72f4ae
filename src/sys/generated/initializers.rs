impl ncclConfig_t {
    /// Returns `NCCL_CONFIG_INITIALIZER`.
    #[must_use]
    pub fn initializer() -> Self {
        Self {
            size: ::core::mem::size_of::<Self>(),
            magic: NCCL_API_MAGIC as ::core::ffi::c_uint,
            version: NCCL_VERSION_CODE as ::core::ffi::c_uint,
            blocking: NCCL_CONFIG_UNDEF_INT as ::core::ffi::c_int,
            cgaClusterSize: NCCL_CONFIG_UNDEF_INT as ::core::ffi::c_int,
            minCTAs: NCCL_CONFIG_UNDEF_INT as ::core::ffi::c_int,
            maxCTAs: NCCL_CONFIG_UNDEF_INT as ::core::ffi::c_int,
            netName: ::core::ptr::null_mut(),
            splitShare: NCCL_CONFIG_UNDEF_INT as ::core::ffi::c_int,
            trafficClass: NCCL_CONFIG_UNDEF_INT as ::core::ffi::c_int,
            commName: ::core::ptr::null_mut(),
            collnetEnable: NCCL_CONFIG_UNDEF_INT as ::core::ffi::c_int,
            CTAPolicy: NCCL_CONFIG_UNDEF_INT as ::core::ffi::c_int,
            shrinkShare: NCCL_CONFIG_UNDEF_INT as ::core::ffi::c_int,
            nvlsCTAs: NCCL_CONFIG_UNDEF_INT as ::core::ffi::c_int,
            nChannelsPerNetPeer: NCCL_CONFIG_UNDEF_INT as ::core::ffi::c_int,
            nvlinkCentricSched: NCCL_CONFIG_UNDEF_INT as ::core::ffi::c_int,
            graphUsageMode: NCCL_CONFIG_UNDEF_INT as ::core::ffi::c_int,
            numRmaCtx: NCCL_CONFIG_UNDEF_INT as ::core::ffi::c_int,
            maxP2pPeers: NCCL_CONFIG_UNDEF_INT as ::core::ffi::c_int,
            graphStreamOrdering: NCCL_CONFIG_UNDEF_INT as ::core::ffi::c_int,
            launchOrderImplicit: NCCL_CONFIG_UNDEF_INT as ::core::ffi::c_int,
            numRmaSig: NCCL_CONFIG_UNDEF_INT as ::core::ffi::c_int,
            rmaEagerInit: NCCL_CONFIG_UNDEF_INT as ::core::ffi::c_int,
            hostCftMode: NCCL_CONFIG_UNDEF_INT as ::core::ffi::c_int,
            nvlsHostMode: NCCL_CONFIG_UNDEF_INT as ::core::ffi::c_int,
        }
    }
}
impl ncclCollConfig_t {
    /// Returns `NCCL_COLLCONFIG_INITIALIZER`.
    #[must_use]
    pub fn initializer() -> Self {
        Self {
            size: ::core::mem::size_of::<Self>(),
            magic: NCCL_API_MAGIC as ::core::ffi::c_uint,
            version: NCCL_VERSION_CODE as ::core::ffi::c_uint,
            ext: ::core::ptr::null_mut(),
            minCTAs: NCCL_CONFIG_UNDEF_INT as ::core::ffi::c_int,
            maxCTAs: NCCL_CONFIG_UNDEF_INT as ::core::ffi::c_int,
            nvlsCTAs: NCCL_CONFIG_UNDEF_INT as ::core::ffi::c_int,
            cgaClusterSize: NCCL_CONFIG_UNDEF_INT as ::core::ffi::c_int,
            algSelection: ::core::ptr::null_mut(),
            forceAlgSelection: 1,
            CTAPolicy: NCCL_CONFIG_UNDEF_INT as ::core::ffi::c_int,
            userProfilerTag: 0,
            launchCompletionEvent: ::core::ptr::null_mut(),
        }
    }
}
impl ncclSimInfo_t {
    /// Returns `NCCL_SIM_INFO_INITIALIZER`.
    #[must_use]
    pub fn initializer() -> Self {
        Self {
            size: ::core::mem::size_of::<Self>(),
            magic: 0x74685283,
            version: NCCL_VERSION_CODE as ::core::ffi::c_uint,
            estimatedTime: NCCL_UNDEF_FLOAT as f32,
        }
    }
}
impl ncclEncryptionConfig_t {
    /// Returns `NCCL_ENCRYPTION_CONFIG_INITIALIZER`.
    #[must_use]
    pub fn initializer() -> Self {
        Self {
            size: ::core::mem::size_of::<Self>(),
            magic: NCCL_API_MAGIC as ::core::ffi::c_uint,
            version: NCCL_VERSION_CODE as ::core::ffi::c_uint,
            mode: ncclEncryptionMode_t::NCCL_ENCRYPTION_MODE_NONE.0 as ::core::ffi::c_int,
            psk: ::core::ptr::null_mut(),
        }
    }
}
