//! The configuration of a communicator, reduced to the fields used here, and readers of `ncclConfig_t` and `ncclCollConfig_t` of any
//! version.
#![allow(unsafe_code)]

use std::ffi::{CStr, c_char, c_int};
use std::mem::offset_of;
use std::ops::RangeInclusive;
use std::ptr;

use libnccl::internal::environment::variable;
use libnccl::sys::{NCCL_API_MAGIC, NCCL_CONFIG_UNDEF_INT, ncclCollConfig_t, ncclConfig_t};

use crate::diag::debug::{self, Subsystem};
use crate::diag::error::{Error, Result};
use crate::shm::layout::MAX_RANKS;

/// The fields of `ncclConfig_t` that have an effect, after validation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Config {
    /// Set if calls never return `ncclInProgress`.
    pub(crate) blocking: bool,
    /// Number of contexts of one-sided operations. `signals` is the number of signals per context.
    pub(crate) contexts: c_int,
    pub(crate) signals: c_int,
    /// Set if signals can be used before a window is registered.
    pub(crate) eager_signals: bool,
    /// The communicator's name in the log.
    pub(crate) name: Option<String>,
    /// The name of the network that NCCL would use. Only logged.
    pub(crate) network: Option<String>,
    /// The fields that are set, except `blocking` and the names. All ranks must set the same values.
    pub(crate) options: Vec<(&'static str, c_int)>,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            blocking: true,
            contexts: 1,
            signals: 1,
            eager_signals: false,
            name: None,
            network: None,
            options: vec![],
        }
    }
}

/// The first version whose config has the communicator name. Earlier versions had another field at this offset.
const NAMES_SINCE: u32 = 22700;
/// The first version whose config has the network name.
const NETWORKS_SINCE: u32 = 21700;

/// A field: its name, the version since which it is used, its value, and the valid values.
type Field = (&'static str, u32, c_int, RangeInclusive<c_int>);

fn fields(config: &ncclConfig_t) -> [Field; 21] {
    const SWITCH: RangeInclusive<c_int> = 0..=1;
    const POSITIVE: RangeInclusive<c_int> = 1..=c_int::MAX;
    const COUNT: RangeInclusive<c_int> = 0..=c_int::MAX;
    const ANY: RangeInclusive<c_int> = c_int::MIN..=c_int::MAX;
    [
        ("blocking", 21400, config.blocking, SWITCH),
        ("cgaClusterSize", 21700, config.cgaClusterSize, COUNT),
        ("minCTAs", 21700, config.minCTAs, POSITIVE),
        ("maxCTAs", 21700, config.maxCTAs, POSITIVE),
        ("splitShare", 0, config.splitShare, SWITCH),
        ("trafficClass", 22500, config.trafficClass, ANY),
        ("collnetEnable", 22700, config.collnetEnable, SWITCH),
        ("CTAPolicy", 22700, config.CTAPolicy, 0..=3),
        ("shrinkShare", 22700, config.shrinkShare, SWITCH),
        ("nvlsCTAs", 22700, config.nvlsCTAs, POSITIVE),
        ("nChannelsPerNetPeer", 22800, config.nChannelsPerNetPeer, 1..=64),
        ("nvlinkCentricSched", 22800, config.nvlinkCentricSched, SWITCH),
        ("graphUsageMode", 22900, config.graphUsageMode, 0..=2),
        ("numRmaCtx", 22900, config.numRmaCtx, COUNT),
        ("maxP2pPeers", 23000, config.maxP2pPeers, POSITIVE),
        ("graphStreamOrdering", 23005, config.graphStreamOrdering, SWITCH),
        ("launchOrderImplicit", 23100, config.launchOrderImplicit, SWITCH),
        ("numRmaSig", 23100, config.numRmaSig, COUNT),
        ("rmaEagerInit", 23100, config.rmaEagerInit, SWITCH),
        ("hostCftMode", 23100, config.hostCftMode, 1..=3),
        ("nvlsHostMode", 23100, config.nvlsHostMode, COUNT),
    ]
}

impl Config {
    /// Checks a complete `config`, in which fields missing from the caller's struct are unset. Fields newer than its version are ignored,
    /// as in NCCL.
    fn new(config: &ncclConfig_t, name: Option<String>, network: Option<String>) -> Result<Self> {
        let mut options = vec![];
        for (name, since, value, allowed) in fields(config) {
            if config.version < since || value == NCCL_CONFIG_UNDEF_INT {
                continue;
            }
            if !allowed.contains(&value) {
                return Err(invalid(name, value, &expectation(&allowed)));
            }
            options.push((name, value));
        }
        let set = |wanted| options.iter().find(|(name, _)| *name == wanted).map(|(_, value)| *value);
        if let Some(mode) = set("nvlsHostMode").filter(|mode| *mode > 3 && *mode != c_int::MAX) {
            return Err(invalid("nvlsHostMode", mode, "a value of ncclNvlsHostMode_t"));
        }
        if let (Some(least), Some(most)) = (set("minCTAs"), set("maxCTAs"))
            && least > most
        {
            return Err(invalid("minCTAs", least, &format!("at most maxCTAs, which is {most}")));
        }
        let blocking = set("blocking") != Some(0);
        let (contexts, signals) = (set("numRmaCtx").unwrap_or(1), set("numRmaSig").unwrap_or(1));
        let eager_signals = set("rmaEagerInit") == Some(1);
        options.retain(|(name, _)| *name != "blocking");
        Ok(Self { blocking, contexts, signals, eager_signals, name, network, options })
    }

    /// Logs the network that NCCL would use, from `NCCL_NET` or else the config. Tools use this line to distinguish runs.
    pub(crate) fn log_network(&self) {
        debug::info(Subsystem::Network, || {
            let own = variable("NCCL_NET").map(|name| name.to_string_lossy().into_owned());
            format!(
                "Using network {}",
                own.as_ref().or(self.network.as_ref()).map_or("Socket", String::as_str)
            )
        });
    }
}

fn expectation(allowed: &RangeInclusive<c_int>) -> String {
    match (*allowed.start(), *allowed.end()) {
        (0, 1) => "0 or 1".into(),
        (least, c_int::MAX) => format!("at least {least}"),
        (least, most) => format!("in {least}..={most}"),
    }
}

fn invalid(name: &str, value: c_int, expected: &str) -> Error {
    Error::argument(format!("invalid config value {value} of {name}: it has to be {expected}"))
}

/// Reads a config, if there is one.
///
/// # Safety
/// `config` must be NULL or point to as many bytes as its first field, `size`, specifies, and at least to that field.
pub(crate) unsafe fn read_config(config: *const ncclConfig_t) -> Result<Option<Config>> {
    if config.is_null() {
        return Ok(None);
    }
    const LEAST: usize = offset_of!(ncclConfig_t, version);
    // SAFETY: the caller's contract. The struct may be an older and shorter version, so no reference to it is created.
    let size = unsafe { (*config).size };
    // SAFETY: as above, and `size` covers it.
    if size < LEAST || unsafe { (*config).magic } != NCCL_API_MAGIC {
        return Err(Error::argument("the config was not initialized with NCCL_CONFIG_INITIALIZER"));
    }
    // SAFETY: the struct has this many bytes.
    let complete = unsafe { complete(config, size, ncclConfig_t::initializer()) };
    let name = |since, name: *const c_char| {
        // SAFETY: the C declaration's contract: a name is a terminated string.
        let read = || unsafe { CStr::from_ptr(name) }.to_string_lossy().into_owned();
        (complete.version >= since && !name.is_null()).then(read)
    };
    let (name, network) = (name(NAMES_SINCE, complete.commName), name(NETWORKS_SINCE, complete.netName));
    Config::new(&complete, name, network).map(Some)
}

/// Converts a caller's struct of any version. Fields that it lacks are copied from `unset`; additional fields are ignored.
///
/// # Safety
/// `given` must point to `size` bytes. `T` must be a C struct of numbers and pointers.
pub(crate) unsafe fn complete<T>(given: *const T, size: usize, mut unset: T) -> T {
    let bytes = size.min(size_of::<T>());
    // SAFETY: both structs have this many bytes, which are numbers, pointers, or padding.
    unsafe { ptr::copy_nonoverlapping(given.cast::<u8>(), (&raw mut unset).cast::<u8>(), bytes) };
    unset
}

pub(crate) fn check_magic(magic: u32, what: &str, initializer: &str) -> Result {
    if magic == NCCL_API_MAGIC {
        return Ok(());
    }
    Err(Error::argument(format!(
        "the magic of the {what} is {magic:#x} and has to be {NCCL_API_MAGIC:#x}: start from {initializer}"
    )))
}

pub(crate) fn check_rank_count(number: c_int) -> Result<usize> {
    usize::try_from(number).ok().filter(|ranks| (1..=MAX_RANKS).contains(ranks)).ok_or_else(|| {
        Error::argument(format!("invalid number of ranks {number}: it has to be in 1..={MAX_RANKS}"))
    })
}

/// Checks the config of a collective, if there is one. As in NCCL, invalid numbers of thread blocks (CTAs) are not errors.
///
/// # Safety
/// `config` must be NULL or point to as many bytes as its first field, `size`, specifies, and at least to that field.
pub(crate) unsafe fn check_config(config: *const ncclCollConfig_t) -> Result {
    const LEAST: usize = offset_of!(ncclCollConfig_t, version);
    if config.is_null() {
        return Ok(());
    }
    // SAFETY: the caller's contract. The struct may be an older and shorter version, so no reference to it is created.
    let size = unsafe { (*config).size };
    if size < LEAST {
        return Err(Error::argument(format!(
            "the collective's config has {size} bytes and has to have {LEAST} or more: start from \
             NCCL_COLLCONFIG_INITIALIZER"
        )));
    }
    // SAFETY: the struct has this many bytes.
    let complete = unsafe { complete(config, size, ncclCollConfig_t::initializer()) };
    let ncclCollConfig_t { magic, forceAlgSelection: force, CTAPolicy: policy, .. } = complete;
    check_magic(magic, "collective's config", "NCCL_COLLCONFIG_INITIALIZER")?;
    if policy != NCCL_CONFIG_UNDEF_INT && !(0..=3).contains(&policy) {
        return Err(Error::argument(format!(
            "invalid CTAPolicy {policy} in the collective's config: it has to be at least 0 and at most 3"
        )));
    }
    if ![0, 1].contains(&force) {
        return Err(Error::argument(format!(
            "invalid forceAlgSelection {force} in the collective's config: it has to be 0 or 1"
        )));
    }
    Ok(())
}
