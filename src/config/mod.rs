//! The options of communicators and of single collectives, and the encryption of NCCL's connections.
// `options.rs` has the macro that defines the options, their checks, and their C form.
#![allow(unsafe_code)] // The method that takes a CUDA event is unsafe.

mod encryption;
mod options;

use std::ffi::c_int;
use std::sync::Arc;
use std::time::Duration;

pub use encryption::Encryption;
use options::{Event, MAX, Target, options};
pub(crate) use options::{RawCollectiveConfig, RawConfig};

use crate::error::Result;
use crate::observer::{Given, Observer};
use crate::sys;
use crate::version::Version;

options! {
    /// Options of one communicator. Since NCCL 2.14.3.
    ///
    /// An option that is not set has NCCL's default. If the default is known, it is documented below. NCCL's environment
    /// variables (such as `NCCL_MIN_CTAS`) take precedence over options.
    ///
    /// If the library lacks an option, the call that receives the options returns
    /// [`Error::Unsupported`](crate::error::Error::Unsupported); NCCL itself would silently ignore the option. If a value is
    /// invalid, the call returns [`Error::InvalidArgument`](crate::error::Error::InvalidArgument).
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
    pub struct Config => ncclConfig_t;

    /// The number of thread blocks in a cluster of NCCL's kernels, on Hopper and newer GPUs: 0 (no clusters) to 8.
    /// Default 4. Since NCCL 2.17.1.
    #[doc(alias = "cgaClusterSize")]
    cga_cluster_size: u32 => cgaClusterSize, in 0..=8;

    /// The minimum number of thread blocks that a kernel uses; 1 or more. Default 1. Since NCCL 2.17.1.
    #[doc(alias = "minCTAs")]
    min_ctas: u32 => minCTAs, in 1..=MAX;

    /// The maximum number of thread blocks that a kernel uses. It must be at least 1 and at least [`min_ctas`](Self::min_ctas).
    /// Default: the number of NCCL's channels; NCCL lowers a higher value to this number. Since NCCL 2.17.1.
    #[doc(alias = "maxCTAs")]
    max_ctas: u32 => maxCTAs, in 1..=MAX;

    /// Lets communicators that are split from this one share its resources. This saves memory, but if one of the communicators
    /// is aborted, the others may fail. Default `false`. Since NCCL 2.18.1.
    #[doc(alias = "splitShare")]
    split_share: bool => splitShare;

    /// The class of the network traffic: the service level on InfiniBand, the type of service on RoCE. Default: depends on the
    /// network. Since NCCL 2.26.2.
    #[doc(alias = "trafficClass")]
    traffic_class: u32 => trafficClass, in 0..=MAX;

    /// Enables reductions in InfiniBand switches (SHARP). Default `false`. Since NCCL 2.27.3.
    #[doc(alias = "collnetEnable")]
    collnet_enable: bool => collnetEnable;

    /// The trade-off between communication speed and GPU resources for computation. Default [`CtaPolicy::Default`]. Since NCCL
    /// 2.27.3.
    #[doc(alias = "CTAPolicy")]
    cta_policy: CtaPolicy => CTAPolicy;

    /// Lets communicators that are shrunk from this one share its resources. Default `false`. Since NCCL 2.27.3.
    #[doc(alias = "shrinkShare")]
    shrink_share: bool => shrinkShare;

    /// The number of thread blocks of kernels that use NVLink SHARP (NVLS); 1 or more. Default: depends on the topology. Since
    /// NCCL 2.27.3.
    #[doc(alias = "nvlsCTAs")]
    nvls_ctas: u32 => nvlsCTAs, in 1..=MAX;

    /// The number of network channels between two ranks; 1 or more. NCCL rounds it up to a power of two. Default: depends on the
    /// topology. Since NCCL 2.28.3.
    #[doc(alias = "nChannelsPerNetPeer")]
    n_channels_per_net_peer: u32 => nChannelsPerNetPeer, in 1..=MAX;

    /// Enables scheduling that is optimized for NVLink. Default `false`. Since NCCL 2.28.3.
    #[doc(alias = "nvlinkCentricSched")]
    nvlink_centric_sched: bool => nvlinkCentricSched;

    /// The program's use of CUDA graphs with the communicator. A more restricted mode saves time. Default
    /// [`GraphUsageMode::Mixed`]. Since NCCL 2.29.2.
    #[doc(alias = "graphUsageMode")]
    graph_usage_mode: GraphUsageMode => graphUsageMode;

    /// The number of contexts for one-sided operations; 0 disables these operations. Default 1. Since NCCL 2.29.2.
    #[doc(alias = "numRmaCtx")]
    num_rma_ctx: u32 => numRmaCtx, in 0..=MAX;

    /// The maximum number of peers with which a rank sends and receives concurrently; 1 or more. Default: all peers. Since NCCL
    /// 2.30.3.
    #[doc(alias = "maxP2pPeers")]
    max_p2p_peers: u32 => maxP2pPeers, in 1..=MAX;

    /// Lets NCCL order the kernels that are captured into CUDA graphs. With `false`, the program must order them. NCCL ignores
    /// `false`, and prints a warning, if [`graph_usage_mode`](Self::graph_usage_mode) is [`GraphUsageMode::Mixed`], which is the
    /// default mode. Default `true`. Since NCCL 2.30.7.
    #[doc(alias = "graphStreamOrdering")]
    graph_stream_ordering: bool => graphStreamOrdering;

    /// Makes the operations of several communicators start on a device in the order of their calls on the host. Default `false`.
    /// Since NCCL 2.31.2.
    #[doc(alias = "launchOrderImplicit")]
    launch_order_implicit: bool => launchOrderImplicit;

    /// The number of signals in each context for one-sided operations; see [`num_rma_ctx`](Self::num_rma_ctx). Default 1. Since
    /// NCCL 2.31.2.
    #[doc(alias = "numRmaSig")]
    num_rma_sig: u32 => numRmaSig, in 0..=MAX;

    /// Initializes signals when the communicator is created, instead of when its first window is registered. Required if the
    /// program uses signals and registers no window. Default `false`. Since NCCL 2.31.2.
    #[doc(alias = "rmaEagerInit")]
    rma_eager_init: bool => rmaEagerInit;

    /// Controls whether NCCL creates endpoints of the compute fabric transport (CFT) when the first window is registered. The host can
    /// query these endpoints. Default [`HostCftMode::Disable`]. Since NCCL 2.31.2.
    #[doc(alias = "hostCftMode")]
    host_cft_mode: HostCftMode => hostCftMode;

    /// The uses of NVLink SHARP (NVLS) that are disabled. Default: none ([`NvlsHostMode::Enable`]). Since NCCL 2.32.3.
    #[doc(alias = "nvlsHostMode")]
    nvls_host_mode: NvlsHostMode => nvlsHostMode;

    others { timeout: Duration, name: Box<str>, net_name: Box<str>, }
    unknown_to_nccl { observers: Given }
}

impl Config {
    /// Makes the communicator nonblocking, and limits each wait of its methods to `timeout`. If a wait takes longer, the method
    /// aborts the communicator and returns `Error::Timeout`: a rank that never joins causes an error instead of a hang.
    ///
    /// On GPUs, the timeout limits the waits of the host: for the creation of the communicator, for connections and for the
    /// launch of work. It does not limit the work itself. An operation returns when it is enqueued; if another rank never calls
    /// it, the kernels wait on the stream without a limit. On host memory, where an operation returns when it is complete, the
    /// timeout limits the operation too. The timeout must not be zero. Default: calls wait without a limit. Since NCCL 2.14.3.
    ///
    /// On host memory, the program may reuse the buffers after the error, because no other rank can still access them. If a
    /// process is stopped (by a signal, a debugger or a frozen cgroup) while it accesses memory from
    /// [`alloc`](crate::nccl::Nccl::alloc), it loses its access to this memory. If the process cannot lose its access, the method
    /// waits for the process, and reports the wait on standard error. There are three such cases:
    /// - The memory is also in a window.
    /// - The memory is emulated device memory.
    /// - The memory cannot be copied, because memory is exhausted or Linux is older than 5.14.
    #[doc(alias = "blocking")]
    #[must_use]
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = Some(timeout);
        self
    }

    /// Sets a name for logs and profilers. The name must not contain NUL characters. Default: none. Since NCCL 2.27.3.
    #[doc(alias = "commName")]
    #[must_use]
    pub fn name(mut self, name: &str) -> Self {
        self.name = Some(name.into());
        self
    }

    /// Sets the network to use: `IB`, `Socket` or the name of a plugin. The name must not contain NUL characters. Default: the
    /// best network available. Since NCCL 2.17.1.
    #[doc(alias = "netName")]
    #[must_use]
    pub fn net_name(mut self, net_name: &str) -> Self {
        self.net_name = Some(net_name.into());
        self
    }

    /// Adds an observer of the communicator. Children of the communicator inherit it, unless their own options have observers.
    /// For an example, see [`Observer`].
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

    /// Inherits the timeout of the `parent` if none is set. Otherwise NCCL would use its default, and the child of a nonblocking
    /// communicator would block.
    pub(crate) fn inherit_timeout(mut self, parent: Option<Duration>) -> Self {
        self.timeout = self.timeout.or(parent);
        self
    }

    /// Converts the options to C, for a library of version `found`.
    pub(crate) fn to_raw(&self, call: &'static str, found: Version, library: &str) -> Result<RawConfig> {
        let target = Target { call, found, library };
        let mut raw = sys::ncclConfig_t::initializer();
        self.write(&mut raw, target)?;
        if self.cta_policy == Some(CtaPolicy::Zero) {
            // Newer than the field.
            target.require_version("NCCL_CTA_POLICY_ZERO", Version::new(2, 28, 3))?;
        }
        target.check_order(self.min_ctas, self.max_ctas)?;
        if self.min_ctas.is_some() && self.max_ctas.is_none() {
            // "Not set" is the smallest int, which is below every minimum, so NCCL (from 2.17.1 on) rejects a minimum
            // alone. It limits the maximum to its number of channels, which is the default.
            raw.maxCTAs = c_int::MAX;
        }

        if let Some(timeout) = self.timeout {
            target.require("ncclConfig_t.blocking")?;
            if timeout.is_zero() {
                return Err(target.argument("the timeout is zero; expected a longer one"));
            }
            raw.blocking = 0;
        }

        let name = target.c_string("ncclConfig_t.commName", "name", &self.name, &mut raw.commName)?;
        let net_name =
            target.c_string("ncclConfig_t.netName", "net_name", &self.net_name, &mut raw.netName)?;
        Ok(RawConfig { raw, name, _net_name: net_name })
    }
}

options! {
    /// Options of one collective. Since NCCL 2.31.2.
    ///
    /// All ranks must pass equal options; NCCL does not check this. An option that is not set has the default given below. If no
    /// default is given, it has the communicator's value. NCCL's environment variables take precedence over options.
    ///
    /// An option that the library lacks is an error, and so is an invalid value; see [`Config`]. NCCL itself silently ignores
    /// both.
    ///
    /// ```
    /// use libnccl::config::CollectiveConfig;
    ///
    /// let quiet = CollectiveConfig::new().max_ctas(2).user_profiler_tag(7);
    /// assert_ne!(quiet, CollectiveConfig::default());
    /// ```
    #[doc(alias = "ncclCollConfig_t")]
    #[doc(alias = "NCCL_COLLCONFIG_INITIALIZER")]
    pub struct CollectiveConfig => ncclCollConfig_t;

    /// The minimum number of thread blocks for the operation; 1 or more. Since NCCL 2.31.2.
    #[doc(alias = "minCTAs")]
    min_ctas: u32 => minCTAs, in 1..=MAX;

    /// The maximum number of thread blocks for the operation. It must be at least 1 and at least [`min_ctas`](Self::min_ctas).
    /// The communicator's maximum also applies. Since NCCL 2.31.2.
    #[doc(alias = "maxCTAs")]
    max_ctas: u32 => maxCTAs, in 1..=MAX;

    /// The maximum number of thread blocks if the operation uses NVLink SHARP (NVLS); 1 or more. Since NCCL 2.31.2.
    #[doc(alias = "nvlsCTAs")]
    nvls_ctas: u32 => nvlsCTAs, in 1..=MAX;

    /// The number of thread blocks in a cluster, on Hopper and newer GPUs: 0 (no clusters) to 8. It must be equal for
    /// all operations of a group. Since NCCL 2.31.2.
    #[doc(alias = "cgaClusterSize")]
    cga_cluster_size: u32 => cgaClusterSize, in 0..=8;

    /// Makes the operation fail if no algorithm of [`alg_selection`](Self::alg_selection) supports it. With `false`, NCCL chooses
    /// from all algorithms in that case. Default `true`. Since NCCL 2.31.2.
    #[doc(alias = "forceAlgSelection")]
    force_alg_selection: bool => forceAlgSelection;

    /// The trade-off between communication speed and GPU resources for computation. Since NCCL 2.31.2.
    #[doc(alias = "CTAPolicy")]
    cta_policy: CtaPolicy => CTAPolicy;

    /// A number that is passed to profiler plugins; 0 means none. The most significant bit is reserved for NCCL and must be 0.
    /// Default 0. Since NCCL 2.31.2.
    #[doc(alias = "userProfilerTag")]
    user_profiler_tag: u64 => userProfilerTag, in 0..=u64::MAX >> 1;

    others { alg_selection: Box<str>, launch_completion_event: Event, }
}

impl CollectiveConfig {
    /// Sets the names of the algorithms that NCCL may choose, separated by commas: `ring,tree`. The text must not contain NUL
    /// characters. An empty text means all algorithms, which is also the default. Since NCCL 2.31.2.
    #[doc(alias = "algSelection")]
    #[must_use]
    pub fn alg_selection(mut self, alg_selection: &str) -> Self {
        self.alg_selection = Some(alg_selection.into());
        self
    }

    /// Sets an event that NCCL records once the operation's kernel has been launched; null for none. Libraries built with CUDA
    /// older than 12.3 record it before the launch.
    ///
    /// Pass an event on all ranks or on none; each rank must pass its own event. Pass at most one event per communicator in a
    /// group. Default: none. Since NCCL 2.32.3.
    ///
    /// ```
    /// use libnccl::{sys, config::CollectiveConfig};
    ///
    /// # let event: sys::cudaEvent_t = std::ptr::null_mut();
    /// // SAFETY: cudaEventCreateWithFlags returned `event`; it is destroyed after synchronizing with the stream.
    /// let config = unsafe { CollectiveConfig::new().launch_completion_event(event) };
    /// ```
    ///
    /// # Safety
    /// `event` must be null, or an event that was created with `cudaEventDisableTiming` and without `cudaEventInterprocess`.
    /// These options and their copies must be used only with communicators of the event's device. The event must exist until all
    /// operations with these options have run and nothing waits for the event any more. A captured graph may wait for it as long
    /// as the graph exists.
    #[doc(alias = "launchCompletionEvent")]
    #[must_use]
    pub unsafe fn launch_completion_event(mut self, event: sys::cudaEvent_t) -> Self {
        self.launch_completion_event = (!event.is_null()).then_some(Event(event));
        self
    }

    pub(crate) fn to_raw(
        &self,
        call: &'static str,
        found: Version,
        library: &str,
    ) -> Result<RawCollectiveConfig> {
        let target = Target { call, found, library };
        // Size and version are always from this header: 2.31.2 copies `size` bytes into its own, shorter struct.
        let mut raw = sys::ncclCollConfig_t::initializer();
        self.write(&mut raw, target)?;
        target.check_order(self.min_ctas, self.max_ctas)?;
        if let Some(Event(event)) = self.launch_completion_event {
            target.require("ncclCollConfig_t.launchCompletionEvent")?;
            raw.launchCompletionEvent = event;
        }
        let (text, raw_text) = (&self.alg_selection, &mut raw.algSelection);
        let alg_selection =
            target.c_string("ncclCollConfig_t.algSelection", "alg_selection", text, raw_text)?;
        #[allow(clippy::arc_with_non_send_sync)] // Its owner is `Send`.
        let raw = Arc::new(raw);
        Ok(RawCollectiveConfig { raw, _alg_selection: alg_selection })
    }
}

/// The trade-off between communication speed and GPU resources for computation; see [`Config::cta_policy`]. Since NCCL 2.27.3.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
#[repr(u32)]
pub enum CtaPolicy {
    /// The number of thread blocks that makes communication fastest. Since NCCL 2.27.3.
    #[doc(alias = "NCCL_CTA_POLICY_DEFAULT")]
    Default = sys::NCCL_CTA_POLICY_DEFAULT,
    /// Few thread blocks, which leaves more of the GPU to computation. Since NCCL 2.27.3.
    #[doc(alias = "NCCL_CTA_POLICY_EFFICIENCY")]
    Efficiency = sys::NCCL_CTA_POLICY_EFFICIENCY,
    /// Zero thread blocks if copy engines or the NVLink switch can do the work. Since NCCL 2.28.3.
    #[doc(alias = "NCCL_CTA_POLICY_ZERO")]
    Zero = sys::NCCL_CTA_POLICY_ZERO,
}

/// The use of CUDA graphs with a communicator; see [`Config::graph_usage_mode`]. Since NCCL 2.29.2.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
#[repr(i32)]
pub enum GraphUsageMode {
    /// The program uses no CUDA graph. Since NCCL 2.29.2.
    Never = 0,
    /// The program uses a single CUDA graph, and no operations outside it. Since NCCL 2.29.2.
    Single = 1,
    /// No restriction: the program may use several CUDA graphs, and operations outside graphs. Since NCCL 2.29.2.
    Mixed = 2,
}

/// The creation of endpoints of the compute fabric transport (CFT); see [`Config::host_cft_mode`]. Since NCCL 2.31.2.
#[doc(alias = "ncclHostCftMode_t")]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
#[repr(i32)]
pub enum HostCftMode {
    /// Creates CFT endpoints. If this fails, registering the first window fails too. Since NCCL 2.31.2.
    #[doc(alias = "ncclHostCftEnable")]
    Enable = sys::ncclHostCftMode_t::ncclHostCftEnable.0,
    /// Creates no CFT endpoints. Since NCCL 2.31.2.
    #[doc(alias = "ncclHostCftDisable")]
    Disable = sys::ncclHostCftMode_t::ncclHostCftDisable.0,
    /// Creates CFT endpoints if possible; a failure is not an error. Since NCCL 2.31.2.
    #[doc(alias = "ncclHostCftFallback")]
    Fallback = sys::ncclHostCftMode_t::ncclHostCftFallback.0,
}

/// The uses of NVLink SHARP (NVLS) that a communicator disables; see [`Config::nvls_host_mode`]. Since NCCL 2.32.3.
#[doc(alias = "ncclNvlsHostMode_t")]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
#[repr(i32)]
pub enum NvlsHostMode {
    /// Disables nothing. Since NCCL 2.32.3.
    #[doc(alias = "ncclNvlsHostModeEnable")]
    Enable = sys::ncclNvlsHostMode_t::ncclNvlsHostModeEnable.0,
    /// Disables the NVLS algorithms, including their optimization for registered buffers. Since NCCL 2.32.3.
    #[doc(alias = "ncclNvlsHostModeDisableTransport")]
    DisableTransport = sys::ncclNvlsHostMode_t::ncclNvlsHostModeDisableTransport.0,
    /// Disables multicast addresses in symmetric kernels and in copies by copy engines. Since NCCL 2.32.3.
    #[doc(alias = "ncclNvlsHostModeDisableSymmetricMultimem")]
    DisableSymmetricMultimem = sys::ncclNvlsHostMode_t::ncclNvlsHostModeDisableSymmetricMultimem.0,
    /// Combines `DisableTransport` and `DisableSymmetricMultimem`; uses that later versions add stay enabled. Since NCCL 2.32.3.
    DisableTransportAndSymmetricMultimem = sys::ncclNvlsHostMode_t::ncclNvlsHostModeDisableTransport.0
        | sys::ncclNvlsHostMode_t::ncclNvlsHostModeDisableSymmetricMultimem.0,
    /// Disables all uses, including uses that later versions add. Since NCCL 2.32.3.
    #[doc(alias = "ncclNvlsHostModeDisable")]
    Disable = sys::ncclNvlsHostMode_t::ncclNvlsHostModeDisable.0,
}
