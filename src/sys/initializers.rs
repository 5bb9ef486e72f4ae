//! The initializer macros of the header, which bindgen cannot translate.
//!
//! The `Default` of each struct is all zeros, which NCCL does *not* treat as "not set".

use super::bindings::types::*;

const MAGIC: u32 = NCCL_API_MAGIC;
const VERSION: u32 = NCCL_VERSION_CODE;
const UNDEF: i32 = NCCL_CONFIG_UNDEF_INT;

impl ncclConfig_t {
    /// Returns `NCCL_CONFIG_INITIALIZER`: no option set. Size and version are those of the vendored header. Releases
    /// from 2.17 on accept it unchanged; earlier ones require `blocking` to be 0 or 1.
    #[must_use]
    pub fn initializer() -> Self {
        Self {
            size: size_of::<Self>(),
            magic: MAGIC,
            version: VERSION,
            blocking: UNDEF,
            cgaClusterSize: UNDEF,
            minCTAs: UNDEF,
            maxCTAs: UNDEF,
            splitShare: UNDEF,
            trafficClass: UNDEF,
            collnetEnable: UNDEF,
            CTAPolicy: UNDEF,
            shrinkShare: UNDEF,
            nvlsCTAs: UNDEF,
            nChannelsPerNetPeer: UNDEF,
            nvlinkCentricSched: UNDEF,
            graphUsageMode: UNDEF,
            numRmaCtx: UNDEF,
            maxP2pPeers: UNDEF,
            graphStreamOrdering: UNDEF,
            launchOrderImplicit: UNDEF,
            numRmaSig: UNDEF,
            rmaEagerInit: UNDEF,
            hostCftMode: UNDEF,
            nvlsHostMode: UNDEF,
            // The pointers. (`Config` zeroes the padding just before the call: a move need not copy it.)
            ..Self::default()
        }
    }
}

impl ncclCollConfig_t {
    /// Returns `NCCL_COLLCONFIG_INITIALIZER`.
    #[must_use]
    pub fn initializer() -> Self {
        Self {
            size: size_of::<Self>(),
            magic: MAGIC,
            version: VERSION,
            minCTAs: UNDEF,
            maxCTAs: UNDEF,
            nvlsCTAs: UNDEF,
            cgaClusterSize: UNDEF,
            forceAlgSelection: 1,
            CTAPolicy: UNDEF,
            ..Self::default()
        }
    }
}

impl ncclSimInfo_t {
    /// Returns `NCCL_SIM_INFO_INITIALIZER`.
    #[must_use]
    pub fn initializer() -> Self {
        Self { size: size_of::<Self>(), magic: 0x7468_5283, version: VERSION, estimatedTime: -1.0 }
    }
}

impl ncclEncryptionConfig_t {
    /// Returns `NCCL_ENCRYPTION_CONFIG_INITIALIZER`.
    #[must_use]
    pub fn initializer() -> Self {
        Self { size: size_of::<Self>(), magic: MAGIC, version: VERSION, ..Self::default() }
    }
}
