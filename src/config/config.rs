#![allow(unsafe_code)] // Zeroes the padding of a C struct.

use std::ffi::{CStr, CString, c_int};
use std::fmt::{Debug, Display};
use std::mem::offset_of;
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::time::Duration;

use crate::error::{Error, InvalidArgumentKind, Result};
use crate::observer::Given;
use crate::observer::Observer;
use crate::sys;
use crate::version::Version;

/// The largest number that fits into an option.
pub(crate) const MAX: u32 = c_int::MAX.cast_unsigned();

/// Defines a struct of options, each set or not: its fields, the methods that set them, and `write`, which copies the
/// options that are set into NCCL's struct if the library knows them and their values are in range.
///
/// The methods of the fields in `others`, and their conversion to C, are written by hand.
macro_rules! options {
    (
        $(#[$attribute:meta])*
        pub struct $options:ident => $c_struct:ident as $c_type:ident;
        $(
            $(#[doc = $doc:literal])+
            #[doc(alias = $alias:literal)]
            $option:ident: $value:ty => $field:ident $(, in $range:expr)?;
        )+
        others { $($other:ident: $other_type:ty,)+ }
        $(unknown_to_nccl { $unknown:ident: $unknown_type:ty })?
    ) => {
        $(#[$attribute])*
        #[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
        pub struct $options {
            $($option: Option<$value>,)+
            $($other: Option<$other_type>,)+
            $($unknown: $unknown_type,)?
        }

        impl $options {
            /// Creates options of which none is set, so that NCCL's defaults apply.
            #[must_use]
            pub fn new() -> Self {
                Self::default()
            }

            $(
                $(#[doc = $doc])+
                #[doc(alias = $alias)]
                #[must_use]
                pub fn $option(mut self, $option: $value) -> Self {
                    self.$option = Some($option);
                    self
                }
            )+

            /// Returns `true` if no option is set that NCCL knows, so that the call without options is equivalent.
            pub(crate) fn is_default(&self) -> bool {
                true $(&& self.$option.is_none())+ $(&& self.$other.is_none())+
            }

            /// Copies the options that are set to `raw`.
            fn write(&self, raw: &mut sys::$c_type, target: Target<'_>) -> Result<()> {
                $(
                    if let Some(value) = self.$option {
                        target.require(
                            concat!(stringify!($c_type), ".", stringify!($field)),
                            concat!(stringify!($c_struct), ".", stringify!($field)),
                        )?;
                        $(target.check_range(stringify!($option), value, $range)?;)?
                        raw.$field = value as _;
                    }
                )+
                Ok(())
            }
        }

        #[cfg(test)]
        impl $options {
            /// The name, the C field, the alias and the documentation of each option.
            pub(crate) const DOCUMENTED: &[(&str, &str, &str, &str)] =
                &[$((stringify!($option), stringify!($field), $alias, concat!($($doc, "\n",)+)),)+];
        }
    };
}
pub(crate) use options;

options! {
    /// Options of one communicator. Since NCCL 2.14.3.
    ///
    /// Options that are not set have NCCL's defaults, which are documented where they are known. An option that the
    /// loaded library does not know is [`Error::Unsupported`] (NCCL itself would silently ignore it), and an invalid
    /// value is [`Error::InvalidArgument`]; the call that receives the options returns these errors. NCCL's environment
    /// variables (such as `NCCL_MIN_CTAS`) take precedence over options.
    ///
    /// Pass the same options on all ranks of a communicator.
    ///
    /// ```
    /// use std::time::Duration;
    ///
    /// use libnccl::{Config, config::CtaPolicy};
    ///
    /// let careful = Config::new().timeout(Duration::from_secs(30)).name("gradients");
    /// let small = careful.clone().max_ctas(4).cta_policy(CtaPolicy::Efficiency);
    /// assert_ne!(small, careful);
    /// assert_eq!(Config::new(), Config::default());
    /// ```
    #[doc(alias = "ncclConfig_t")]
    #[doc(alias = "NCCL_CONFIG_INITIALIZER")]
    pub struct Config => ncclConfig as ncclConfig_t;

    /// The number of thread blocks in a cluster of NCCL's kernels, on Hopper and newer GPUs: 0 (no clusters) to 8.
    /// Default 4. Since NCCL 2.17.1.
    #[doc(alias = "cgaClusterSize")]
    cga_cluster_size: u32 => cgaClusterSize, in 0..=8;

    /// The minimum number of thread blocks that a kernel uses, from 1. Default 1. Since NCCL 2.17.1.
    #[doc(alias = "minCTAs")]
    min_ctas: u32 => minCTAs, in 1..=MAX;

    /// The maximum number of thread blocks that a kernel uses, from 1 and not below [`min_ctas`](Self::min_ctas).
    /// Default, and upper limit: the number of NCCL's channels. Since NCCL 2.17.1.
    #[doc(alias = "maxCTAs")]
    max_ctas: u32 => maxCTAs, in 1..=MAX;

    /// Lets communicators that are split from this one share its resources, which saves memory; but aborting one may
    /// break the others. Default `false`. Since NCCL 2.18.1.
    #[doc(alias = "splitShare")]
    split_share: bool => splitShare;

    /// The class of the network traffic: the service level on InfiniBand, the type of service on RoCE; from 0. Default:
    /// that of the network. Since NCCL 2.26.2.
    #[doc(alias = "trafficClass")]
    traffic_class: u32 => trafficClass, in 0..=MAX;

    /// Enables reductions in InfiniBand switches (SHARP). Default `false`. Since NCCL 2.27.3.
    #[doc(alias = "collnetEnable")]
    collnet_enable: bool => collnetEnable;

    /// The trade-off between speed and thread blocks that stay free for computation. Default [`CtaPolicy::Default`].
    /// Since NCCL 2.27.3.
    #[doc(alias = "CTAPolicy")]
    cta_policy: CtaPolicy => CTAPolicy;

    /// Lets communicators that are shrunk from this one share its resources. Default `false`. Since NCCL 2.27.3.
    #[doc(alias = "shrinkShare")]
    shrink_share: bool => shrinkShare;

    /// The number of thread blocks of kernels that use the NVLink switch (NVLS), from 1. Default: chosen by the
    /// topology. Since NCCL 2.27.3.
    #[doc(alias = "nvlsCTAs")]
    nvls_ctas: u32 => nvlsCTAs, in 1..=MAX;

    /// The number of network channels between two ranks, from 1; rounded up to a power of two. Default: chosen by the
    /// topology. Since NCCL 2.28.3.
    #[doc(alias = "nChannelsPerNetPeer")]
    n_channels_per_net_peer: u32 => nChannelsPerNetPeer, in 1..=MAX;

    /// Enables scheduling that is optimized for NVLink. Default `false`. Since NCCL 2.28.3.
    #[doc(alias = "nvlinkCentricSched")]
    nvlink_centric_sched: bool => nvlinkCentricSched;

    /// The use of CUDA graphs with the communicator; promising less use saves time. Default [`GraphUsageMode::Mixed`].
    /// Since NCCL 2.29.2.
    #[doc(alias = "graphUsageMode")]
    graph_usage_mode: GraphUsageMode => graphUsageMode;

    /// The number of contexts for one-sided operations; 0 disables them. Default 1. Since NCCL 2.29.2.
    #[doc(alias = "numRmaCtx")]
    num_rma_ctx: u32 => numRmaCtx, in 0..=MAX;

    /// The number of peers with which a rank exchanges point-to-point messages at the same time, from 1. Default: all.
    /// Since NCCL 2.30.3.
    #[doc(alias = "maxP2pPeers")]
    max_p2p_peers: u32 => maxP2pPeers, in 1..=MAX;

    /// Lets NCCL order the kernels that are captured into CUDA graphs. With `false` the program must order them, and
    /// [`graph_usage_mode`](Self::graph_usage_mode) must not be [`GraphUsageMode::Mixed`]: otherwise NCCL prints a
    /// warning and orders them. Default `true`. Since NCCL 2.30.7.
    #[doc(alias = "graphStreamOrdering")]
    graph_stream_ordering: bool => graphStreamOrdering;

    /// Makes the operations of several communicators run in the order in which the host has started them. Default
    /// `false`. Since NCCL 2.31.2.
    #[doc(alias = "launchOrderImplicit")]
    launch_order_implicit: bool => launchOrderImplicit;

    /// The number of signals of each context for one-sided operations. Default 1. Since NCCL 2.31.2.
    #[doc(alias = "numRmaSig")]
    num_rma_sig: u32 => numRmaSig, in 0..=MAX;

    /// Initializes signals when the communicator is created, instead of with its first window; required for signals
    /// without any window. Default `false`. Since NCCL 2.31.2.
    #[doc(alias = "rmaEagerInit")]
    rma_eager_init: bool => rmaEagerInit;

    /// The use of the compute fabric transport (CFT) by the host. Default [`HostCftMode::Disable`]. Since NCCL 2.31.2.
    #[doc(alias = "hostCftMode")]
    host_cft_mode: HostCftMode => hostCftMode;

    /// The uses of the NVLink switch (NVLS) that are disabled. Default [`NvlsHostMode::Enable`]. Since NCCL 2.32.3.
    #[doc(alias = "nvlsHostMode")]
    nvls_host_mode: NvlsHostMode => nvlsHostMode;

    others { timeout: Duration, name: Box<str>, net_name: Box<str>, }
    unknown_to_nccl { observers: Given }
}

impl Config {
    /// Makes the communicator nonblocking, and ends every wait in a method after this time with `Error::Timeout`, so
    /// that a missing rank causes an error instead of a hang.
    ///
    /// On GPUs, it bounds the waits of the host: for the creation of the communicator, for connections and for the
    /// launch of work. It does not bound the work itself: an operation returns when it is enqueued, and if a rank does
    /// not take part, its kernel waits on the stream without a limit, as does whoever waits for the stream. On host
    /// memory, where an operation returns when it is complete, it bounds the operation too. Longer than zero. Default:
    /// calls wait without a limit. Since NCCL 2.14.3.
    ///
    /// On host memory, the error returns the buffers, so no other rank may still access them. A process that is stopped in an
    /// access, by a signal, a debugger or a frozen cgroup, loses its access to memory of [`alloc`](crate::nccl::Nccl::alloc), and
    /// never has direct access to other memory of a communicator with a timeout. The call waits, and reports it on the standard
    /// error, if the memory is in a window too, is emulated device memory, or cannot be copied because memory is exhausted or
    /// Linux is older than 5.14.
    #[doc(alias = "blocking")]
    #[must_use]
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = Some(timeout);
        self
    }

    /// Sets a name for logs and profilers, without NUL characters. Default: none. Since NCCL 2.27.3.
    #[doc(alias = "commName")]
    #[must_use]
    pub fn name(mut self, name: &str) -> Self {
        self.name = Some(name.into());
        self
    }

    /// Sets the network to use, `IB`, `Socket` or the name of a plugin, without NUL characters. Default: the best one
    /// available. Since NCCL 2.17.1.
    #[doc(alias = "netName")]
    #[must_use]
    pub fn net_name(mut self, net_name: &str) -> Self {
        self.net_name = Some(net_name.into());
        self
    }

    /// Adds an observer of the communicator, and of those that are created from it, unless they have their own; for an
    /// example, see [`Observer`].
    #[must_use]
    pub fn observer(mut self, observer: Arc<dyn Observer>) -> Self {
        self.observers.0.push(observer);
        self
    }

    pub(crate) fn observers(&self) -> &Given {
        &self.observers
    }

    /// Returns the [timeout](Self::timeout), if there is one.
    #[doc(hidden)]
    #[must_use]
    pub fn timeout_duration(&self) -> Option<Duration> {
        self.timeout
    }

    /// Sets the timeout to that of the `parent` if there is none: NCCL replaces options that are not set by its
    /// defaults, so that the child of a nonblocking communicator would block.
    pub(crate) fn inherit_timeout(mut self, parent: Option<Duration>) -> Self {
        self.timeout = self.timeout.or(parent);
        self
    }

    /// Converts the options to C, for a library of release `found`.
    pub(crate) fn to_raw(&self, call: &'static str, found: Version, library: &str) -> Result<RawConfig> {
        let target = Target { call, found, library };
        let mut raw = sys::ncclConfig_t::initializer();
        self.write(&mut raw, target)?;
        if self.cta_policy == Some(CtaPolicy::Zero) {
            // It is newer than the field.
            target.require_release("NCCL_CTA_POLICY_ZERO", Version::new(2, 28, 3))?;
        }
        target.check_order(self.min_ctas, self.max_ctas)?;
        if self.min_ctas.is_some() && self.max_ctas.is_none() {
            // "Not set" is the smallest int, which is below every minimum, so NCCL (from 2.17.1 on) rejects a minimum
            // alone. It limits the maximum to its number of channels, which is the default.
            raw.maxCTAs = c_int::MAX;
        }

        if let Some(timeout) = self.timeout {
            target.require("ncclConfig_t.blocking", "ncclConfig.blocking")?;
            if timeout.is_zero() {
                return Err(target.argument("the timeout is zero; expected a longer one"));
            }
            raw.blocking = 0;
        } else if found < Version::new(2, 17, 0) {
            raw.blocking = 1; // These releases have no "not set".
        }

        let mut name = None;
        if let Some(text) = &self.name {
            target.require("ncclConfig_t.commName", "ncclConfig.commName")?;
            raw.commName = name.insert(target.c_string("name", text)?).as_ptr();
        }
        let mut net_name = None;
        if let Some(text) = &self.net_name {
            target.require("ncclConfig_t.netName", "ncclConfig.netName")?;
            raw.netName = net_name.insert(target.c_string("net_name", text)?).as_ptr();
        }
        Ok(RawConfig { raw, name, _net_name: net_name })
    }
}

/// Options in C, with the strings to which they point.
#[derive(Debug)]
pub(crate) struct RawConfig {
    raw: sys::ncclConfig_t,
    name: Option<Arc<CStr>>,
    /// The name of the network, which NCCL copies during the call.
    _net_name: Option<Arc<CStr>>,
}

impl RawConfig {
    /// Returns the address for a call, which reads the struct before it returns; valid until `self` is moved.
    pub(crate) fn as_mut_ptr(&mut self) -> *mut sys::ncclConfig_t {
        /// The end of the fields; the rest is padding, the only one in the struct.
        const END: usize = offset_of!(sys::ncclConfig_t, nvlsHostMode) + size_of::<c_int>();
        let raw = &raw mut self.raw;
        // Later releases have fields there and read them. A move need not copy padding, so it is zeroed just before the
        // call.
        // SAFETY: the bytes from `END` on belong to the struct, and to no field.
        unsafe { raw.cast::<u8>().add(END).write_bytes(0, size_of::<sys::ncclConfig_t>() - END) };
        raw
    }

    /// Returns the communicator's name, to which NCCL keeps a pointer: the communicator and all its children must keep
    /// it alive.
    pub(crate) fn name(&self) -> Option<Arc<CStr>> {
        self.name.clone()
    }
}

/// The call and the library that receive options.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Target<'a> {
    pub(crate) call: &'static str,
    pub(crate) found: Version,
    pub(crate) library: &'a str,
}

impl Target<'_> {
    /// Returns an error if the library is older than `item`, a field in the spelling of [`sys::since`].
    pub(crate) fn require(self, function: &'static str, item: &str) -> Result<()> {
        self.require_release(function, Version::since(item))
    }

    fn require_release(self, function: &'static str, since: Version) -> Result<()> {
        let Self { found, library, .. } = self;
        if found < since {
            return Err(Error::Unsupported { function, since, found, library: library.into() });
        }
        Ok(())
    }

    pub(crate) fn check_range<T>(self, option: &str, value: T, range: RangeInclusive<T>) -> Result<()>
    where
        T: PartialOrd + Display,
    {
        if range.contains(&value) {
            return Ok(());
        }
        let (min, max) = range.into_inner();
        Err(self.argument(format!("{option} is {value}; expected {min} to {max}")))
    }

    pub(crate) fn check_order(self, min_ctas: Option<u32>, max_ctas: Option<u32>) -> Result<()> {
        match (min_ctas, max_ctas) {
            (Some(min), Some(max)) if min > max => {
                Err(self.argument(format!("min_ctas is {min}, which is above max_ctas, {max}")))
            }
            _ => Ok(()),
        }
    }

    pub(crate) fn c_string(self, option: &str, text: &str) -> Result<Arc<CStr>> {
        let c_string = CString::new(text).map_err(|error| {
            let position = error.nul_position();
            self.argument(format!("{option} is {text:?}; expected no NUL, and byte {position} is one"))
        })?;
        Ok(c_string.into())
    }

    pub(crate) fn argument(self, problem: impl Into<Box<str>>) -> Error {
        Error::argument(self.call, InvalidArgumentKind::Value, problem)
    }
}

/// The trade-off between speed and thread blocks that stay free for computation; see [`Config::cta_policy`]. Since NCCL 2.27.3.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
#[repr(u32)]
pub enum CtaPolicy {
    /// The number of thread blocks that is fastest. Since NCCL 2.27.3.
    #[doc(alias = "NCCL_CTA_POLICY_DEFAULT")]
    Default = sys::NCCL_CTA_POLICY_DEFAULT,
    /// Few thread blocks. Since NCCL 2.27.3.
    #[doc(alias = "NCCL_CTA_POLICY_EFFICIENCY")]
    Efficiency = sys::NCCL_CTA_POLICY_EFFICIENCY,
    /// No thread blocks if copy engines or the switch can do the work. Since NCCL 2.28.3.
    #[doc(alias = "NCCL_CTA_POLICY_ZERO")]
    Zero = sys::NCCL_CTA_POLICY_ZERO,
}

/// The use of CUDA graphs with a communicator; see [`Config::graph_usage_mode`]. Since NCCL 2.29.2.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
#[repr(i32)]
pub enum GraphUsageMode {
    /// No use of graphs. Since NCCL 2.29.2.
    Never = 0,
    /// A single graph. Since NCCL 2.29.2.
    Single = 1,
    /// Several graphs, or operations with and without a graph. Since NCCL 2.29.2.
    Mixed = 2,
}

/// The use of the compute fabric transport (CFT) by the host; see [`Config::host_cft_mode`]. Since NCCL 2.31.2.
#[doc(alias = "ncclHostCftMode_t")]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
#[repr(i32)]
pub enum HostCftMode {
    /// Use it; an error if it cannot be set up with the first window. Since NCCL 2.31.2.
    #[doc(alias = "ncclHostCftEnable")]
    Enable = sys::ncclHostCftMode_t::ncclHostCftEnable.0,
    /// Do not use it. Since NCCL 2.31.2.
    #[doc(alias = "ncclHostCftDisable")]
    Disable = sys::ncclHostCftMode_t::ncclHostCftDisable.0,
    /// Use it if it can be set up. Since NCCL 2.31.2.
    #[doc(alias = "ncclHostCftFallback")]
    Fallback = sys::ncclHostCftMode_t::ncclHostCftFallback.0,
}

/// The uses of the NVLink switch (NVLS) that a communicator disables; see [`Config::nvls_host_mode`]. Since NCCL 2.32.3.
#[doc(alias = "ncclNvlsHostMode_t")]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
#[repr(i32)]
pub enum NvlsHostMode {
    /// No use is disabled. Since NCCL 2.32.3.
    #[doc(alias = "ncclNvlsHostModeEnable")]
    Enable = sys::ncclNvlsHostMode_t::ncclNvlsHostModeEnable.0,
    /// The NVLS algorithms and their registered buffers. Since NCCL 2.32.3.
    #[doc(alias = "ncclNvlsHostModeDisableTransport")]
    DisableTransport = sys::ncclNvlsHostMode_t::ncclNvlsHostModeDisableTransport.0,
    /// Multicast addresses in the symmetric kernels and copies. Since NCCL 2.32.3.
    #[doc(alias = "ncclNvlsHostModeDisableSymmetricMultimem")]
    DisableSymmetricMultimem = sys::ncclNvlsHostMode_t::ncclNvlsHostModeDisableSymmetricMultimem.0,
    /// The two uses above, but none that later releases add. Since NCCL 2.32.3.
    DisableTransportAndSymmetricMultimem = sys::ncclNvlsHostMode_t::ncclNvlsHostModeDisableTransport.0
        | sys::ncclNvlsHostMode_t::ncclNvlsHostModeDisableSymmetricMultimem.0,
    /// All uses, including those that later releases add. Since NCCL 2.32.3.
    #[doc(alias = "ncclNvlsHostModeDisable")]
    Disable = sys::ncclNvlsHostMode_t::ncclNvlsHostModeDisable.0,
}

#[cfg(test)]
pub(super) mod tests {
    use std::ffi::{CStr, c_char};
    use std::slice;
    use std::time::Duration;

    use super::{Config, CtaPolicy, GraphUsageMode, HostCftMode, NvlsHostMode, RawConfig};
    use crate::error::{Error, Result};
    use crate::sys;
    use crate::version::Version;

    type Raw = sys::ncclConfig_t;

    fn raw(config: &Config, found: Version) -> Result<RawConfig> {
        config.to_raw("init_rank_config", found, "/opt/libnccl.so.2")
    }

    fn newest(config: &Config) -> RawConfig {
        raw(config, Version::HEADER).unwrap()
    }

    fn problem(config: &Config) -> String {
        raw(config, Version::HEADER).unwrap_err().to_string()
    }

    /// Fails unless an option is unsupported before a release, whose patch level is not 0.
    pub(crate) fn assert_since<T>(since: &str, raw: impl Fn(Version) -> Result<T>) {
        let since: Version = since.parse().unwrap();
        let before = Version { patch: since.patch - 1, ..since };
        raw(since).unwrap_or_else(|error| panic!("{error}"));
        let Err(Error::Unsupported { function, since: named, found, .. }) = raw(before) else {
            panic!("an option of {since} is taken before")
        };
        assert_eq!((named, found), (since, before), "{function}");
    }

    /// Fails unless each option is named and documented as its field and its release demand.
    pub(crate) fn assert_documented(c_struct: &str, options: &[(&str, &str, &str, &str)]) {
        for (option, field, alias, doc) in options {
            assert_eq!(field, alias);
            assert_eq!(option.replace('_', ""), field.to_lowercase());
            let since = Version::since(&format!("{c_struct}.{field}"));
            assert!(doc.trim_end().ends_with(&format!(" Since NCCL {since}.")), "{option}: {doc}");
        }
    }

    fn text<'a>(pointer: *const c_char) -> &'a str {
        assert!(!pointer.is_null());
        // SAFETY: a string of a `RawConfig` that the caller still has.
        unsafe { CStr::from_ptr(pointer) }.to_str().unwrap()
    }

    /// The first release that has an option, the option, and the change that it makes to an empty C struct.
    type Row = (&'static str, Config, fn(&mut Raw));

    #[rustfmt::skip]
    fn table() -> Vec<Row> {
        let new = Config::new;
        vec![
            ("2.14.3", new().timeout(Duration::from_secs(1)), |raw| raw.blocking = 0),
            ("2.17.1", new().cga_cluster_size(8), |raw| raw.cgaClusterSize = 8),
            ("2.17.1", new().max_ctas(3), |raw| raw.maxCTAs = 3),
            ("2.17.1", new().min_ctas(3), |raw| (raw.minCTAs, raw.maxCTAs) = (3, i32::MAX)),
            ("2.17.1", new().min_ctas(3).max_ctas(3), |raw| (raw.minCTAs, raw.maxCTAs) = (3, 3)),
            ("2.18.1", new().split_share(true), |raw| raw.splitShare = 1),
            ("2.26.2", new().traffic_class(0), |raw| raw.trafficClass = 0),
            ("2.27.3", new().collnet_enable(false), |raw| raw.collnetEnable = 0),
            ("2.27.3", new().cta_policy(CtaPolicy::Default), |raw| raw.CTAPolicy = 0),
            ("2.27.3", new().cta_policy(CtaPolicy::Efficiency), |raw| raw.CTAPolicy = 1),
            ("2.28.3", new().cta_policy(CtaPolicy::Zero), |raw| raw.CTAPolicy = 2),
            ("2.27.3", new().shrink_share(true), |raw| raw.shrinkShare = 1),
            ("2.27.3", new().nvls_ctas(5), |raw| raw.nvlsCTAs = 5),
            ("2.28.3", new().n_channels_per_net_peer(6), |raw| raw.nChannelsPerNetPeer = 6),
            ("2.28.3", new().nvlink_centric_sched(true), |raw| raw.nvlinkCentricSched = 1),
            ("2.29.2", new().graph_usage_mode(GraphUsageMode::Never), |raw| raw.graphUsageMode = 0),
            ("2.29.2", new().graph_usage_mode(GraphUsageMode::Single), |raw| raw.graphUsageMode = 1),
            ("2.29.2", new().graph_usage_mode(GraphUsageMode::Mixed), |raw| raw.graphUsageMode = 2),
            ("2.29.2", new().num_rma_ctx(7), |raw| raw.numRmaCtx = 7),
            ("2.30.3", new().max_p2p_peers(9), |raw| raw.maxP2pPeers = 9),
            ("2.30.7", new().graph_stream_ordering(false), |raw| raw.graphStreamOrdering = 0),
            ("2.31.2", new().launch_order_implicit(true), |raw| raw.launchOrderImplicit = 1),
            ("2.31.2", new().num_rma_sig(11), |raw| raw.numRmaSig = 11),
            ("2.31.2", new().rma_eager_init(true), |raw| raw.rmaEagerInit = 1),
            ("2.31.2", new().host_cft_mode(HostCftMode::Enable), |raw| raw.hostCftMode = 1),
            ("2.31.2", new().host_cft_mode(HostCftMode::Disable), |raw| raw.hostCftMode = 2),
            ("2.31.2", new().host_cft_mode(HostCftMode::Fallback), |raw| raw.hostCftMode = 3),
            ("2.32.3", new().nvls_host_mode(NvlsHostMode::Enable), |raw| raw.nvlsHostMode = 0),
            ("2.32.3", new().nvls_host_mode(NvlsHostMode::DisableTransport), |raw| raw.nvlsHostMode = 1),
            ("2.32.3", new().nvls_host_mode(NvlsHostMode::DisableSymmetricMultimem),
                |raw| raw.nvlsHostMode = 2),
            ("2.32.3", new().nvls_host_mode(NvlsHostMode::DisableTransportAndSymmetricMultimem),
                |raw| raw.nvlsHostMode = 3),
            ("2.32.3", new().nvls_host_mode(NvlsHostMode::Disable), |raw| raw.nvlsHostMode = i32::MAX),
        ]
    }

    #[test]
    fn option_sets_exactly_its_field() {
        for (_, config, change) in table() {
            let mut expected = Raw::initializer();
            change(&mut expected);
            assert_eq!(newest(&config).raw, expected, "{config:?}");
            assert!(!config.is_default());
        }
    }

    #[test]
    fn empty_config_is_the_initializer() {
        assert!(Config::new().is_default());
        let raw = newest(&Config::new());
        assert_eq!(raw.raw, Raw::initializer());
        assert_eq!(raw.raw.minCTAs, sys::NCCL_CONFIG_UNDEF_INT);
        assert!(raw.name().is_none() && raw.raw.commName.is_null() && raw.raw.netName.is_null());
        assert!(Config::new().timeout_duration().is_none());
    }

    #[test]
    fn option_newer_than_the_library_is_unsupported() {
        let mut table: Vec<_> = table().into_iter().map(|(since, config, _)| (since, config)).collect();
        table.extend([("2.17.1", Config::new().net_name("IB")), ("2.27.3", Config::new().name("a"))]);
        for (since, config) in table {
            assert_since(since, |found| raw(&config, found));
        }
        assert_eq!(
            raw(&Config::new().min_ctas(4), Version::new(2, 16, 5)).unwrap_err().to_string(),
            "ncclConfig_t.minCTAs needs NCCL 2.17.1 or newer; the loaded library is 2.16.5 (/opt/libnccl.so.2)"
        );
    }

    #[test]
    fn documentation_of_an_option_names_its_field_and_release() {
        assert_eq!(Config::DOCUMENTED.len() + 3, 23, "timeout, name and net_name are not in the table");
        assert_documented("ncclConfig", Config::DOCUMENTED);
    }

    #[test]
    fn blocking_field_is_always_set_before_2_17() {
        let blocking = |config: Config, patch| raw(&config, patch).unwrap().raw.blocking;
        let timeout = Config::new().timeout(Duration::from_millis(1));
        assert_eq!(blocking(Config::new(), Version::new(2, 16, 5)), 1);
        assert_eq!(blocking(timeout.clone(), Version::new(2, 16, 5)), 0);
        assert_eq!(blocking(Config::new(), Version::new(2, 17, 1)), sys::NCCL_CONFIG_UNDEF_INT);
        assert_eq!(blocking(timeout, Version::new(2, 17, 1)), 0);
    }

    #[test]
    fn child_inherits_the_timeout_of_its_parent_unless_it_is_set() {
        let (own, parents) = (Duration::from_secs(1), Duration::from_secs(2));
        assert_eq!(Config::new().inherit_timeout(Some(parents)).timeout_duration(), Some(parents));
        assert_eq!(Config::new().timeout(own).inherit_timeout(Some(parents)).timeout_duration(), Some(own));
        assert!(Config::new().inherit_timeout(None).is_default());
    }

    #[test]
    fn name_outlives_the_raw_config() {
        let raw = newest(&Config::new().name("grad\u{e9}").net_name("Socket"));
        assert_eq!((text(raw.raw.commName), text(raw.raw.netName)), ("grad\u{e9}", "Socket"));
        let name = raw.name().unwrap();
        let pointer = raw.raw.commName;
        assert_eq!(name.as_ptr(), pointer);
        drop(raw);
        assert_eq!(text(pointer), "grad\u{e9}");
        drop(name);
        assert_eq!(
            problem(&Config::new().name("a\0b")),
            r#"init_rank_config: name is "a\0b"; expected no NUL, and byte 1 is one"#
        );
        assert!(problem(&Config::new().net_name("\0")).contains("net_name"));
    }

    #[test]
    fn padding_is_zeroed_before_the_call() {
        let mut raw = newest(&Config::new().nvls_host_mode(NvlsHostMode::Disable));
        let pointer = raw.as_mut_ptr();
        // SAFETY: fields without padding between them, then the padding, which has been written.
        let bytes = unsafe { slice::from_raw_parts(pointer.cast::<u8>(), size_of::<Raw>()) };
        assert_eq!(bytes[112..], [0xff, 0xff, 0xff, 0x7f, 0, 0, 0, 0]);
    }

    #[test]
    fn invalid_value_is_an_error() {
        let new = Config::new;
        for (config, text) in [
            (new().timeout(Duration::ZERO), "the timeout is zero; expected a longer one"),
            (new().cga_cluster_size(9), "cga_cluster_size is 9; expected 0 to 8"),
            (new().min_ctas(0), "min_ctas is 0; expected 1 to 2147483647"),
            (new().max_ctas(0), "max_ctas is 0; expected 1 to 2147483647"),
            (new().min_ctas(5).max_ctas(4), "min_ctas is 5, which is above max_ctas, 4"),
            (new().nvls_ctas(0), "nvls_ctas is 0; expected 1 to 2147483647"),
            (new().n_channels_per_net_peer(0), "n_channels_per_net_peer is 0; expected 1 to 2147483647"),
            (new().max_p2p_peers(0), "max_p2p_peers is 0; expected 1 to 2147483647"),
            // The value that means "not set" in C.
            (new().traffic_class(1 << 31), "traffic_class is 2147483648; expected 0 to 2147483647"),
            (new().num_rma_ctx(1 << 31), "num_rma_ctx is 2147483648; expected 0 to 2147483647"),
            (new().num_rma_sig(u32::MAX), "num_rma_sig is 4294967295; expected 0 to 2147483647"),
        ] {
            assert_eq!(problem(&config), format!("init_rank_config: {text}"));
        }
    }
}
