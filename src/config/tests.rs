//! Tests of both kinds of options.
#![allow(unsafe_code)] // Reads C strings and structs.

use std::ffi::{CStr, c_char};
use std::slice;
use std::time::Duration;

use super::options::RawConfig;
use super::{Config, CtaPolicy, GraphUsageMode, HostCftMode, NvlsHostMode};
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

/// Fails unless an option is unsupported before a version, whose patch level is not 0.
fn assert_since<T>(since: &str, raw: impl Fn(Version) -> Result<T>) {
    let since: Version = since.parse().unwrap();
    let before = Version { patch: since.patch - 1, ..since };
    raw(since).unwrap_or_else(|error| panic!("{error}"));
    let Err(Error::Unsupported { function, since: named, found, .. }) = raw(before) else {
        panic!("an option of {since} is taken before")
    };
    assert_eq!((named, found), (since, before), "{function}");
}

/// Fails unless the name and the documentation of each option match its field and its version.
fn assert_documented(c_struct: &str, options: &[(&str, &str, &str, &str)]) {
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

/// The first version that has an option, the option, and its change of an empty C struct.
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

/// Options of one collective.
mod collective {
    use std::ffi::CStr;
    use std::ptr;

    use super::super::options::RawCollectiveConfig;
    use super::super::{CollectiveConfig, CtaPolicy};
    use super::{assert_documented, assert_since};
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

    /// The first version that has an option, the option, and its change of an empty C struct.
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
