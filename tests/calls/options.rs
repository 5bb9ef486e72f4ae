//! The options of communicators and of collectives in C: their fields, first versions, ranges and lifetimes.

use std::ptr;
use std::time::Duration;

use libnccl::config::{CollectiveConfig, CtaPolicy, GraphUsageMode, HostCftMode, NvlsHostMode};
use libnccl::sys::ncclCollConfig_t;
use libnccl::{CallOptions, Config, Error, ReduceOp, Result, Version};
use libnccl_test_support::fake_nccl::{FakeNccl, IN_PROGRESS, SUCCESS};

use crate::fixture::{Fixture, WORK, id, recv, send, stream, work};

/// The first version of an option, the option, and the C fields that differ from NCCL's initializer.
type Row<C> = (&'static str, C, &'static str);

/// Returns the call that creates a communicator with these options.
fn init(config: &Config, version: Version) -> Result<String> {
    let fake = FakeNccl::of_version(version);
    let comm = fake.nccl().communicator(4, 2, &id(1)).config(config).init();
    let call = fake.take_log().into_iter().find(|call| call.starts_with("ncclCommInitRank"));
    comm.map(|_| call.unwrap())
}

/// Returns the call of a collective with these options.
fn all_reduce(config: &CollectiveConfig, version: Version) -> Result<String> {
    let fixture = Fixture::of_version(version);
    let options = CallOptions::on(stream()).config(config);
    fixture.comm.all_reduce(send::<f32>(3), recv::<f32>(3), ReduceOp::Sum, options)?;
    Ok(fixture.fake.take_log().concat())
}

/// Asserts that an option is unsupported before a version, whose patch level is not 0.
fn assert_since(since: &str, call: impl Fn(Version) -> Result<String>) {
    let since: Version = since.parse().unwrap();
    let before = Version { patch: since.patch - 1, ..since };
    call(since).unwrap_or_else(|error| panic!("{error}"));
    let Err(Error::Unsupported { function, since: named, found, .. }) = call(before) else {
        panic!("an option of {since} is accepted by {before}")
    };
    assert_eq!((named, found), (since, before), "{function}");
}

#[rustfmt::skip]
fn communicator_options() -> Vec<Row<Config>> {
    let new = Config::new;
    vec![
        ("2.14.3", new().timeout(Duration::from_secs(1)), "blocking=0"),
        ("2.17.1", new().cga_cluster_size(8), "cgaClusterSize=8"),
        ("2.17.1", new().max_ctas(3), "maxCTAs=3"),
        ("2.17.1", new().min_ctas(3), "minCTAs=3 maxCTAs=2147483647"),
        ("2.17.1", new().min_ctas(3).max_ctas(3), "minCTAs=3 maxCTAs=3"),
        ("2.17.1", new().net_name("IB"), r#"netName="IB""#),
        ("2.18.1", new().split_share(true), "splitShare=1"),
        ("2.26.2", new().traffic_class(0), "trafficClass=0"),
        ("2.27.3", new().collnet_enable(false), "collnetEnable=0"),
        ("2.27.3", new().cta_policy(CtaPolicy::Default), "CTAPolicy=0"),
        ("2.27.3", new().cta_policy(CtaPolicy::Efficiency), "CTAPolicy=1"),
        ("2.28.3", new().cta_policy(CtaPolicy::Zero), "CTAPolicy=2"),
        ("2.27.3", new().name("grad\u{e9}"), "commName=\"grad\u{e9}\""),
        ("2.27.3", new().shrink_share(true), "shrinkShare=1"),
        ("2.27.3", new().nvls_ctas(5), "nvlsCTAs=5"),
        ("2.28.3", new().n_channels_per_net_peer(6), "nChannelsPerNetPeer=6"),
        ("2.28.3", new().nvlink_centric_sched(true), "nvlinkCentricSched=1"),
        ("2.29.2", new().graph_usage_mode(GraphUsageMode::Never), "graphUsageMode=0"),
        ("2.29.2", new().graph_usage_mode(GraphUsageMode::Single), "graphUsageMode=1"),
        ("2.29.2", new().graph_usage_mode(GraphUsageMode::Mixed), "graphUsageMode=2"),
        ("2.29.2", new().num_rma_ctx(7), "numRmaCtx=7"),
        ("2.30.3", new().max_p2p_peers(9), "maxP2pPeers=9"),
        ("2.30.7", new().graph_stream_ordering(false), "graphStreamOrdering=0"),
        ("2.31.2", new().launch_order_implicit(true), "launchOrderImplicit=1"),
        ("2.31.2", new().num_rma_sig(11), "numRmaSig=11"),
        ("2.31.2", new().rma_eager_init(true), "rmaEagerInit=1"),
        ("2.31.2", new().host_cft_mode(HostCftMode::Enable), "hostCftMode=1"),
        ("2.31.2", new().host_cft_mode(HostCftMode::Disable), "hostCftMode=2"),
        ("2.31.2", new().host_cft_mode(HostCftMode::Fallback), "hostCftMode=3"),
        ("2.32.3", new().nvls_host_mode(NvlsHostMode::Enable), "nvlsHostMode=0"),
        ("2.32.3", new().nvls_host_mode(NvlsHostMode::DisableTransport), "nvlsHostMode=1"),
        ("2.32.3", new().nvls_host_mode(NvlsHostMode::DisableSymmetricMultimem), "nvlsHostMode=2"),
        ("2.32.3", new().nvls_host_mode(NvlsHostMode::DisableTransportAndSymmetricMultimem), "nvlsHostMode=3"),
        ("2.32.3", new().nvls_host_mode(NvlsHostMode::Disable), "nvlsHostMode=2147483647"),
    ]
}

#[rustfmt::skip]
fn collective_options() -> Vec<Row<CollectiveConfig>> {
    let new = CollectiveConfig::new;
    vec![
        ("2.31.2", new().min_ctas(3), "minCTAs=3"),
        ("2.31.2", new().max_ctas(3), "maxCTAs=3"),
        ("2.31.2", new().nvls_ctas(5), "nvlsCTAs=5"),
        ("2.31.2", new().cga_cluster_size(0), "cgaClusterSize=0"),
        ("2.31.2", new().force_alg_selection(false), "forceAlgSelection=0"),
        ("2.31.2", new().cta_policy(CtaPolicy::Zero), "CTAPolicy=2"),
        ("2.31.2", new().user_profiler_tag(u64::MAX >> 1), "userProfilerTag=9223372036854775807"),
        ("2.31.2", new().alg_selection("ring"), r#"algSelection="ring""#),
        ("2.32.3", with_event(), "launchCompletionEvent=0x0000000000000040"),
    ]
}

fn with_event() -> CollectiveConfig {
    // SAFETY: the fake does not use it.
    unsafe { CollectiveConfig::new().launch_completion_event(ptr::without_provenance_mut(0x40)) }
}

#[test]
fn option_of_a_communicator_sets_exactly_its_field_since_its_version() {
    for (since, config, fields) in communicator_options() {
        let expected = format!("ncclCommInitRankConfig(&, 4, id1, 2, {{{fields}}})");
        assert_eq!(init(&config, Version::HEADER).unwrap(), expected);
        assert_since(since, |version| init(&config, version));
    }
    assert_eq!(init(&Config::new(), Version::HEADER).unwrap(), "ncclCommInitRank(&, 4, id1, 2)");
    assert_eq!(Config::new().timeout_duration(), None);
    assert_eq!(
        init(&Config::new().min_ctas(4), Version::new(2, 16, 5)).unwrap_err().to_string(),
        "ncclConfig_t.minCTAs needs NCCL 2.17.1 or newer; the loaded library is 2.16.5 (the fake NCCL)"
    );
}

#[test]
fn option_of_a_collective_sets_exactly_its_field_since_its_version() {
    let first = Version::new(2, 31, 2);
    for (since, config, fields) in collective_options() {
        let expected = WORK.replace('(', "Config(").replace(')', &format!(", {{{fields}}})"));
        assert_eq!(all_reduce(&config, Version::HEADER).unwrap(), expected);
        if since == "2.31.2" {
            // The size and the version of the struct are the header's with any library.
            assert_eq!(all_reduce(&config, first).unwrap(), expected);
        }
        assert_since(since, |version| all_reduce(&config, version));
    }
    // SAFETY: null means no event.
    let without_event = unsafe { with_event().launch_completion_event(ptr::null_mut()) };
    for unset in [CollectiveConfig::new(), without_event] {
        assert_eq!(all_reduce(&unset, first).unwrap(), WORK);
    }
    let raw = ncclCollConfig_t::initializer();
    assert_eq!((raw.version, raw.size), (Version::HEADER.code(), size_of::<ncclCollConfig_t>()));
    assert_eq!(
        all_reduce(&with_event(), first).unwrap_err().to_string(),
        "ncclCollConfig_t.launchCompletionEvent needs NCCL 2.32.3 or newer; \
         the loaded library is 2.31.2 (the fake NCCL)"
    );
}

#[test]
fn invalid_option_of_a_communicator_or_a_collective_is_an_error() {
    let new = Config::new;
    for (config, problem) in [
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
        (new().name("a\0b"), r#"name is "a\0b"; expected no NUL, and byte 1 is one"#),
        (new().net_name("\0"), r#"net_name is "\0"; expected no NUL, and byte 0 is one"#),
    ] {
        let error = init(&config, Version::HEADER).unwrap_err();
        assert_eq!(error.to_string(), format!("init: {problem}"));
    }
    let new = CollectiveConfig::new;
    for (config, problem) in [
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
        let error = all_reduce(&config, Version::HEADER).unwrap_err();
        assert_eq!(error.to_string(), format!("all_reduce: {problem}"));
    }
}

#[test]
fn operation_made_of_sends_takes_only_options_without_a_value() {
    let fixture = Fixture::of_version(Version::new(2, 27, 7));
    let all_to_all = |config: CollectiveConfig| {
        let options = CallOptions::on(stream()).config(&config);
        fixture.comm.all_to_all(send::<f32>(4), recv::<f32>(4), options)
    };
    let error = all_to_all(CollectiveConfig::new().min_ctas(2)).unwrap_err().to_string();
    assert!(error.starts_with("ncclAlltoAllConfig needs NCCL 2.31.2 or newer"), "{error}");
    assert_eq!(fixture.fake.take_log(), [] as [String; 0]);
    all_to_all(CollectiveConfig::new()).unwrap();
    assert!(fixture.fake.take_log().iter().any(|call| call.starts_with("ncclSend(")));
}

#[test]
fn child_inherits_the_timeout_of_its_parent_unless_it_is_set() {
    let [short, long] = [20, 20_000].map(Duration::from_millis);
    for (parents, config, options) in [
        (short, Config::new(), "null"),
        (short, Config::new().split_share(true), "{blocking=0 splitShare=1}"),
        (long, Config::new().timeout(short), "{blocking=0}"),
    ] {
        let fake = FakeNccl::new();
        let parent = fake.nccl().communicator(4, 2, &id(1)).timeout(parents).init().unwrap();
        fake.take_log();
        let child = parent.split(Some(0), 0).config(&config).init().unwrap().unwrap();
        assert_eq!(fake.take_log()[0], format!("ncclCommSplit(comm0, 0, 0, &, {options})"));
        fake.set_code("ncclAllReduce", IN_PROGRESS);
        fake.set_async_states([], IN_PROGRESS);
        let error = work(&child).unwrap_err();
        assert!(matches!(error, Error::Timeout { elapsed, .. } if elapsed < long), "{error}");
        fake.set_async_states([], SUCCESS);
    }
}
