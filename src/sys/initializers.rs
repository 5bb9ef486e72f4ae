//! What the header spells as initializer macros, which bindgen cannot translate.
//!
//! `Default` of each struct is all zeros, which is *not* what NCCL takes for "not set".

use super::*;

const MAGIC: u32 = NCCL_API_MAGIC;
const VERSION: u32 = NCCL_VERSION_CODE;
const UNDEF: i32 = NCCL_CONFIG_UNDEF_INT;

impl ncclConfig_t {
    /// `NCCL_CONFIG_INITIALIZER`: nothing set. Size and version are those of the vendored header; libraries
    /// of any release from 2.17 take it as it is, those before want `blocking` to be 0 or 1.
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
            // The pointers. (`Config` zeroes the padding where NCCL gets the struct: a move need not copy it.)
            ..Self::default()
        }
    }
}

impl ncclCollConfig_t {
    /// `NCCL_COLLCONFIG_INITIALIZER`.
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
    /// `NCCL_SIM_INFO_INITIALIZER`.
    #[must_use]
    pub fn initializer() -> Self {
        Self { size: size_of::<Self>(), magic: 0x7468_5283, version: VERSION, estimatedTime: -1.0 }
    }
}

impl ncclEncryptionConfig_t {
    /// `NCCL_ENCRYPTION_CONFIG_INITIALIZER`.
    #[must_use]
    pub fn initializer() -> Self {
        Self { size: size_of::<Self>(), magic: MAGIC, version: VERSION, ..Self::default() }
    }
}
