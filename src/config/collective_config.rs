#![allow(unsafe_code)] // The method that takes a CUDA event is unsafe.

use std::ffi::CStr;
use std::sync::Arc;

use super::config::{MAX, Target, options};
use crate::config::CtaPolicy;
use crate::error::Result;
use crate::sys;
use crate::version::Version;

options! {
    /// Options of one collective. Since NCCL 2.31.2.
    ///
    /// All ranks must pass equal options: NCCL does not compare them. Options that are not set have the value of the
    /// communicator. An option that the loaded library does not know is
    /// [`Error::Unsupported`](crate::error::Error::Unsupported), and an invalid value is
    /// [`Error::InvalidArgument`](crate::error::Error::InvalidArgument); NCCL itself silently ignores both. NCCL's environment
    /// variables take precedence over options.
    ///
    /// ```
    /// use libnccl::config::CollectiveConfig;
    ///
    /// let quiet = CollectiveConfig::new().max_ctas(2).user_profiler_tag(7);
    /// assert_ne!(quiet, CollectiveConfig::default());
    /// ```
    #[doc(alias = "ncclCollConfig_t")]
    #[doc(alias = "NCCL_COLLCONFIG_INITIALIZER")]
    pub struct CollectiveConfig => ncclCollConfig as ncclCollConfig_t;

    /// The minimum number of thread blocks for the operation, from 1. Since NCCL 2.31.2.
    #[doc(alias = "minCTAs")]
    min_ctas: u32 => minCTAs, in 1..=MAX;

    /// The maximum number of thread blocks for the operation, from 1 and not below [`min_ctas`](Self::min_ctas); the
    /// communicator's limit holds as well. Since NCCL 2.31.2.
    #[doc(alias = "maxCTAs")]
    max_ctas: u32 => maxCTAs, in 1..=MAX;

    /// The maximum number of thread blocks if the NVLink switch does the work (NVLS), from 1. Since NCCL 2.31.2.
    #[doc(alias = "nvlsCTAs")]
    nvls_ctas: u32 => nvlsCTAs, in 1..=MAX;

    /// The number of thread blocks in a cluster, on Hopper and newer GPUs: 0 (no clusters) to 8. It must be equal for
    /// all operations of a group. Since NCCL 2.31.2.
    #[doc(alias = "cgaClusterSize")]
    cga_cluster_size: u32 => cgaClusterSize, in 0..=8;

    /// Makes it an error if no algorithm of [`alg_selection`](Self::alg_selection) supports the operation; with
    /// `false`, NCCL then chooses from all algorithms.
    /// Default `true`. Since NCCL 2.31.2.
    #[doc(alias = "forceAlgSelection")]
    force_alg_selection: bool => forceAlgSelection;

    /// The trade-off between speed and thread blocks that stay free for computation. Since NCCL 2.31.2.
    #[doc(alias = "CTAPolicy")]
    cta_policy: CtaPolicy => CTAPolicy;

    /// A number that is passed to profiler plugins; 0 means none, and the most significant bit is reserved for NCCL.
    /// Default 0. Since NCCL 2.31.2.
    #[doc(alias = "userProfilerTag")]
    user_profiler_tag: u64 => userProfilerTag, in 0..=u64::MAX >> 1;

    others { alg_selection: Box<str>, launch_completion_event: Event, }
}

impl CollectiveConfig {
    /// Sets the names of the algorithms to choose from, without NUL characters; an empty text means all. Default: all.
    /// Since NCCL 2.31.2.
    #[doc(alias = "algSelection")]
    #[must_use]
    pub fn alg_selection(mut self, alg_selection: &str) -> Self {
        self.alg_selection = Some(alg_selection.into());
        self
    }

    /// Sets an event that NCCL records once the kernel has been launched; null for none. Libraries built with CUDA
    /// older than 12.3 record it before the launch.
    ///
    /// Either every rank passes an event of its own, or no rank does. A group has at most one per communicator.
    /// Default: none. Since NCCL 2.32.3.
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
    /// `event` is null, or an event of the device of every communicator that these options (or copies of them) are
    /// used with, created with `cudaEventDisableTiming` and without `cudaEventInterprocess`. It is not destroyed
    /// before all of these operations have run and nothing waits for it any more; a captured graph may wait for it
    /// until the graph is destroyed.
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
        // Size and version are always those of this header: with an older version, 2.31.2 copies `size` bytes into its
        // own, shorter struct.
        let mut raw = sys::ncclCollConfig_t::initializer();
        self.write(&mut raw, target)?;
        target.check_order(self.min_ctas, self.max_ctas)?;
        if let Some(Event(event)) = self.launch_completion_event {
            target
                .require("ncclCollConfig_t.launchCompletionEvent", "ncclCollConfig.launchCompletionEvent")?;
            raw.launchCompletionEvent = event;
        }
        let mut alg_selection = None;
        if let Some(text) = &self.alg_selection {
            target.require("ncclCollConfig_t.algSelection", "ncclCollConfig.algSelection")?;
            raw.algSelection = alg_selection.insert(target.c_string("alg_selection", text)?).as_ptr();
        }
        #[allow(clippy::arc_with_non_send_sync)] // Its owner is `Send`.
        let raw = Arc::new(raw);
        Ok(RawCollectiveConfig { raw, _alg_selection: alg_selection })
    }
}

/// Options in C, with the string that they point to.
///
/// NCCL reads both until the end of the call or of the outermost group, so a group keeps this until then. It can be
/// moved in that time; hence no `Box`, as moving a `Box` invalidates pointers to its content.
#[derive(Debug, Clone)]
pub(crate) struct RawCollectiveConfig {
    raw: Arc<sys::ncclCollConfig_t>,
    _alg_selection: Option<Arc<CStr>>,
}

// SAFETY: its pointers refer to its own text and to an event, which CUDA accepts from any thread.
unsafe impl Send for RawCollectiveConfig {}

impl RawCollectiveConfig {
    /// Returns the address of the struct, valid as long as `self` exists.
    pub(crate) fn as_ptr(&self) -> *const sys::ncclCollConfig_t {
        Arc::as_ptr(&self.raw)
    }
}

/// A CUDA event; not null.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Event(sys::cudaEvent_t);

// SAFETY: only a handle, which CUDA accepts from any thread.
unsafe impl Send for Event {}
// SAFETY: as above.
unsafe impl Sync for Event {}

#[cfg(test)]
mod tests {
    use std::ffi::CStr;
    use std::ptr;

    use super::super::config::tests::{assert_documented, assert_since};
    use super::{CollectiveConfig, RawCollectiveConfig};
    use crate::config::CtaPolicy;
    use crate::error::Result;
    use crate::sys;
    use crate::version::Version;

    type Raw = sys::ncclCollConfig_t;

    const FIRST: Version = Version::new(2, 31, 2);

    fn raw(config: &CollectiveConfig, found: Version) -> Result<RawCollectiveConfig> {
        config.to_raw("all_reduce", found, "/opt/libnccl.so.2")
    }

    fn newest(config: &CollectiveConfig) -> RawCollectiveConfig {
        raw(config, Version::HEADER).unwrap()
    }

    fn event() -> sys::cudaEvent_t {
        ptr::without_provenance_mut(0x40)
    }

    fn with_event() -> CollectiveConfig {
        // SAFETY: never given to NCCL.
        unsafe { CollectiveConfig::new().launch_completion_event(event()) }
    }

    /// The first release that has an option, the option, and the change that it makes to an empty C struct.
    type Row = (&'static str, CollectiveConfig, fn(&mut Raw));

    #[rustfmt::skip]
    fn table() -> Vec<Row> {
        let new = CollectiveConfig::new;
        vec![
            ("2.31.2", new().min_ctas(3), |raw| raw.minCTAs = 3),
            ("2.31.2", new().max_ctas(3), |raw| raw.maxCTAs = 3),
            ("2.31.2", new().nvls_ctas(5), |raw| raw.nvlsCTAs = 5),
            ("2.31.2", new().cga_cluster_size(0), |raw| raw.cgaClusterSize = 0),
            ("2.31.2", new().force_alg_selection(false), |raw| raw.forceAlgSelection = 0),
            ("2.31.2", new().cta_policy(CtaPolicy::Zero), |raw| raw.CTAPolicy = 2),
            ("2.31.2", new().user_profiler_tag(u64::MAX >> 1), |raw| raw.userProfilerTag = u64::MAX >> 1),
            ("2.32.3", with_event(), |raw| raw.launchCompletionEvent = event()),
        ]
    }

    #[test]
    fn option_sets_exactly_its_field() {
        for (_, config, change) in table() {
            let mut expected = Raw::initializer();
            change(&mut expected);
            assert_eq!(*newest(&config).raw, expected, "{config:?}");
            assert!(!config.is_default());
        }
    }

    #[test]
    fn empty_config_is_the_initializer_for_every_release() {
        let unset = CollectiveConfig::new();
        assert!(unset.is_default());
        for found in [FIRST, Version::HEADER] {
            let raw = raw(&unset, found).unwrap();
            assert_eq!(*raw.raw, Raw::initializer());
            assert_eq!((raw.raw.version, raw.raw.size), (Version::HEADER.code(), size_of::<Raw>()));
        }
        // SAFETY: null means no event.
        assert!(unsafe { with_event().launch_completion_event(ptr::null_mut()) }.is_default());
    }

    #[test]
    fn option_newer_than_the_library_is_unsupported() {
        let mut table: Vec<_> = table().into_iter().map(|(since, config, _)| (since, config)).collect();
        table.push(("2.31.2", CollectiveConfig::new().alg_selection("ring")));
        for (since, config) in table {
            assert_since(since, |found| raw(&config, found));
        }
        assert_eq!(
            raw(&with_event(), FIRST).unwrap_err().to_string(),
            "ncclCollConfig_t.launchCompletionEvent needs NCCL 2.32.3 or newer; \
             the loaded library is 2.31.2 (/opt/libnccl.so.2)"
        );
    }

    #[test]
    fn documentation_of_an_option_names_its_field_and_release() {
        assert_documented("ncclCollConfig", CollectiveConfig::DOCUMENTED);
    }

    #[test]
    fn raw_config_addresses_survive_a_move() {
        let raw = newest(&CollectiveConfig::new().alg_selection("ring").max_ctas(2));
        let pointer = raw.as_ptr();
        let kept = vec![raw];
        // SAFETY: the vector keeps what both point to.
        let (max_ctas, algorithms) =
            unsafe { ((*pointer).maxCTAs, CStr::from_ptr((*pointer).algSelection).to_str()) };
        assert_eq!((max_ctas, algorithms), (2, Ok("ring")));
        drop(kept);
    }

    #[test]
    fn invalid_value_is_an_error() {
        let new = CollectiveConfig::new;
        for (config, text) in [
            (new().min_ctas(0), "min_ctas is 0; expected 1 to 2147483647"),
            (new().max_ctas(0), "max_ctas is 0; expected 1 to 2147483647"),
            (new().nvls_ctas(0), "nvls_ctas is 0; expected 1 to 2147483647"),
            (new().min_ctas(5).max_ctas(4), "min_ctas is 5, which is above max_ctas, 4"),
            (new().cga_cluster_size(9), "cga_cluster_size is 9; expected 0 to 8"),
            (
                new().user_profiler_tag(1 << 63),
                "user_profiler_tag is 9223372036854775808; expected 0 to 9223372036854775807",
            ),
            (new().alg_selection("a\0"), r#"alg_selection is "a\0"; expected no NUL, and byte 1 is one"#),
        ] {
            let error = raw(&config, Version::HEADER).unwrap_err();
            assert_eq!(error.to_string(), format!("all_reduce: {text}"));
        }
    }
}
