#![allow(unsafe_code)] // Some checks need C calls.
//! Checks of the facade over a library: everything that needs no communicator, and so no GPU.

use std::collections::BTreeSet;
use std::ffi::CStr;
use std::panic::{self, AssertUnwindSafe};
use std::path::Path;

use libnccl::config::{CtaPolicy, Encryption, GraphUsageMode, HostCftMode, NvlsHostMode};
use libnccl::error::ResultCode;
use libnccl::{Config, Error, Nccl, UniqueId, Version, sys};

/// The cell of a check in the table, and details that all backends must agree on; or the problem.
type Outcome = Result<(String, String), String>;
type Check = fn(&Library) -> Outcome;

/// A library, and the version and file that it is expected to be.
struct Library<'a> {
    nccl: &'a Nccl,
    release: &'a str,
    path: &'a Path,
}

pub(crate) fn run(nccl: &Nccl, release: &str, library: &str) {
    let library = Library { nccl, release, path: Path::new(library) };
    let checks: [(&str, Check); 11] = [
        ("load", load),
        ("functions", functions),
        ("bytes of an id", bytes_of_an_id),
        ("codes", codes),
        ("groups", groups),
        ("options", options),
        ("initialisation", initialisation),
        ("allocation", allocation),
        ("simulation", simulation),
        ("parameters", parameters),
        ("encryption", encryption),
    ];
    for (name, check) in checks {
        let outcome = panic::catch_unwind(AssertUnwindSafe(|| check(&library)));
        report(name, outcome.unwrap_or_else(|_| Err("a panic".into())));
    }
}

fn cell(text: impl Into<String>) -> Outcome {
    cell_with(text, "")
}

fn cell_with(text: impl Into<String>, detail: impl Into<String>) -> Outcome {
    Ok((text.into(), detail.into()))
}

/// Prints a name, the outcome and its detail, separated by tabs.
fn report(name: &str, outcome: Outcome) {
    let line = |text: &str| text.replace(['\t', '\n'], " ");
    match outcome {
        Ok((text, detail)) => println!("{name}\t{}\t{}", line(&text), line(&detail)),
        Err(problem) => println!("{name}\tfailed: {}\t", line(&problem)),
    }
}

fn ensure(holds: bool, problem: impl FnOnce() -> String) -> Result<(), String> {
    if holds { Ok(()) } else { Err(problem()) }
}

/// Returns the code's number, such as `code 1`.
fn code(code: ResultCode) -> String {
    format!("code {}", code.as_raw().0)
}

/// Requests an id twice without a network: the environment's `NCCL_SOCKET_IFNAME` names no interface. Up to 2.21.5, NCCL's second call
/// hangs.
pub(crate) fn id_failure(nccl: &Nccl) {
    let request = || match nccl.unique_id() {
        Err(Error::Nccl { call: "ncclGetUniqueId", code, message, detail }) => Ok((code, message, detail)),
        other => Err(format!("{other:?}, expected an error of NCCL's")),
    };
    let twice = || {
        let (first, second) = (request()?, request()?);
        ensure(first == second, || format!("{first:?}, then {second:?}"))?;
        let (found, message, detail) = first;
        cell_with(format!("{}, twice", code(found)), format!("{message}: {detail}"))
    };
    report("id failure", twice());
}

/// Checks the file and the version.
fn load(library: &Library) -> Outcome {
    let (found, version) = (library.nccl.backend().to_string(), library.nccl.version().to_string());
    let same = std::fs::canonicalize(&found).ok() == std::fs::canonicalize(library.path).ok();
    ensure(same && version == library.release, || {
        format!("it is {version} at {found}, expected {} at {}", library.release, library.path.display())
    })?;
    cell("ok")
}

/// Checks that a version has exactly the functions that were introduced in it or before.
fn functions(library: &Library) -> Outcome {
    let version = library.nccl.version();
    let (present, missing): (Vec<_>, Vec<_>) =
        library.nccl.functions().partition(|function| function.present);
    for function in present.iter().chain(&missing) {
        // nccl.h has the parameters' functions since 2.30.4; 2.30.3 already exports them.
        let is_early = function.name.starts_with("ncclParam") && version == Version::new(2, 30, 3);
        let expected = function.since <= version || is_early;
        ensure(function.present == expected, || format!("{function:?} in {version}"))?;
        let is_supported = !matches!(library.nccl.require(function.name), Err(Error::Unsupported { .. }));
        ensure(is_supported == function.present, || format!("{function:?} is supported: {is_supported}"))?;
    }
    let missing: Vec<_> = missing.iter().map(|function| function.name).collect();
    cell_with(present.len().to_string(), missing.join(" "))
}

/// Counts how many of the 128 bytes NCCL writes; the facade zeroes the rest.
fn bytes_of_an_id(library: &Library) -> Outcome {
    let get = library.nccl.as_raw().ncclGetUniqueId.ok_or("it is absent")?;
    // A byte that keeps two different fillings was not written. By chance an id may contain a filling, but not at its
    // end, where it has zeros.
    let mut written = 0;
    for filling in [0x5a, 0x25] {
        let mut id = sys::ncclUniqueId { internal: [filling; 128] };
        // SAFETY: a place for an id.
        let returned = ResultCode::from_raw(unsafe { get(&raw mut id) });
        ensure(returned == ResultCode::SUCCESS, || format!("{returned}"))?;
        let last = id.internal.iter().rposition(|byte| *byte != filling);
        written = written.max(last.map_or(0, |last| last + 1));
    }
    let id = library.nccl.unique_id().map_err(|error| error.to_string())?;
    let rest = &id.as_bytes()[written..];
    ensure(rest.iter().all(|byte| *byte == 0), || format!("after {written} bytes, {rest:?}"))?;
    cell(written.to_string())
}

fn codes(library: &Library) -> Outcome {
    let text = |code: u32| -> Result<String, String> {
        let text = library.nccl.as_raw().ncclGetErrorString.ok_or("it is absent")?;
        // SAFETY: takes any code.
        let text = unsafe { text(sys::ncclResult_t(code)) };
        ensure(!text.is_null(), || format!("null for {code}"))?;
        // SAFETY: a string that lives as long as the library.
        Ok(unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned())
    };
    let unknown = text(77)?;
    let mut texts = Vec::new();
    for code in 0..32 {
        texts.push(text(code)?);
    }
    texts.push(text(u32::MAX)?);
    let known = texts.iter().take_while(|text| **text != unknown).count();
    ensure(texts[known..].iter().all(|text| *text == unknown), || format!("{texts:?}"))?;
    texts.truncate(known);
    let distinct: BTreeSet<&String> = texts.iter().collect();
    ensure(distinct.len() == known, || format!("{texts:?}, expected each once"))?;
    cell_with(format!("0 to {}", known.saturating_sub(1)), format!("{texts:?}, {unknown:?}"))
}

/// Checks that no group is open: NCCL returns invalid usage for a group end without a start.
fn check_no_open_group(library: &Library, after: &str) -> Result<(), String> {
    let end = library.nccl.as_raw().ncclGroupEnd.ok_or("ncclGroupEnd is absent")?;
    // SAFETY: takes nothing.
    let returned = ResultCode::from_raw(unsafe { end() });
    ensure(returned == ResultCode::INVALID_USAGE, || format!("inside a group after {after}: {returned}"))
}

/// Opens an empty group, and a nested one.
fn groups(library: &Library) -> Outcome {
    let nccl = library.nccl;
    let returned = |result: Result<i32, Error>| match result {
        Ok(7) => Ok("ok".to_string()),
        Err(Error::Nccl { call: "ncclGroupEnd", code: found, .. }) => Ok(code(found)),
        other => Err(format!("{other:?}, expected 7")),
    };
    let empty = returned(nccl.group(|_| Ok(7)))?;
    check_no_open_group(library, "an empty group")?;
    let nested = returned(nccl.group(|group| group.group(|_| Ok(7))))?;
    check_no_open_group(library, "a group in a group")?;
    ensure(empty == nested, || format!("{empty} for an empty group, {nested} for one in another"))?;
    cell(empty)
}

/// Checks that each option is unsupported by a library without it, and passed on to a library with it.
fn options(library: &Library) -> Outcome {
    let minute = std::time::Duration::from_secs(60);
    let options = [
        ("blocking", Config::new().timeout(minute)),
        ("cgaClusterSize", Config::new().cga_cluster_size(4)),
        ("minCTAs", Config::new().min_ctas(1)),
        ("maxCTAs", Config::new().max_ctas(8)),
        ("netName", Config::new().net_name("Socket")),
        ("splitShare", Config::new().split_share(true)),
        ("trafficClass", Config::new().traffic_class(1)),
        ("commName", Config::new().name("matrix")),
        ("collnetEnable", Config::new().collnet_enable(true)),
        ("CTAPolicy", Config::new().cta_policy(CtaPolicy::Efficiency)),
        ("shrinkShare", Config::new().shrink_share(true)),
        ("nvlsCTAs", Config::new().nvls_ctas(4)),
        ("nChannelsPerNetPeer", Config::new().n_channels_per_net_peer(2)),
        ("nvlinkCentricSched", Config::new().nvlink_centric_sched(true)),
        ("graphUsageMode", Config::new().graph_usage_mode(GraphUsageMode::Single)),
        ("numRmaCtx", Config::new().num_rma_ctx(1)),
        ("maxP2pPeers", Config::new().max_p2p_peers(4)),
        ("graphStreamOrdering", Config::new().graph_stream_ordering(true)),
        ("launchOrderImplicit", Config::new().launch_order_implicit(true)),
        ("numRmaSig", Config::new().num_rma_sig(1)),
        ("rmaEagerInit", Config::new().rma_eager_init(true)),
        ("hostCftMode", Config::new().host_cft_mode(HostCftMode::Enable)),
        ("nvlsHostMode", Config::new().nvls_host_mode(NvlsHostMode::Enable)),
    ];
    let (version, id) = (library.nccl.version(), UniqueId::from_bytes([0; 128]));
    let mut known = Vec::new();
    for (field, config) in &options {
        let since = sys::since(&format!("ncclConfig.{field}")).ok_or(format!("{field} has no release"))?;
        let since = Version::from_code(since);
        match library.nccl.communicator(1, 0, &id).config(config).init().map(drop) {
            Err(Error::Nccl { code, .. }) if since <= version && code == ResultCode::UNHANDLED_CUDA_ERROR => {
                known.push(*field);
            }
            Err(Error::Unsupported { function, since: needs, found, .. })
                if version < since && (needs, found) == (since, version) =>
            {
                ensure(function == format!("ncclConfig_t.{field}"), || format!("{function} for {field}"))?;
            }
            other => return Err(format!("{field}, since {since}: {other:?}")),
        }
        check_no_open_group(library, field)?;
    }
    cell_with(format!("{} of {}", known.len(), options.len()), known.join(" "))
}

fn initialisation(library: &Library) -> Outcome {
    let (nccl, id) = (library.nccl, library.nccl.unique_id().map_err(|error| error.to_string())?);
    let mut outcome = None;
    let mut tries = vec![nccl.communicator(1, 0, &id).init().map(drop), nccl.init_all(&[0]).map(drop)];
    if nccl.require("ncclCommInitRankConfig").is_ok() {
        let config = Config::new().timeout(std::time::Duration::from_secs(60));
        tries.push(nccl.communicator(1, 0, &id).config(&config).init().map(drop));
    }
    if nccl.require("ncclCommInitRankScalable").is_ok() {
        tries.push(nccl.communicator(2, 0, &id).ids(&[id, id]).init().map(drop));
    }
    for failed in tries {
        let Err(Error::Nccl { code: found, message, detail, .. }) = failed else {
            return Err(format!("{failed:?}, expected an error of NCCL's"));
        };
        ensure(found == ResultCode::UNHANDLED_CUDA_ERROR && !detail.is_empty(), || {
            format!("{found}: {detail}, expected a CUDA error")
        })?;
        check_no_open_group(library, "an initialisation that failed")?;
        let outcome = outcome.get_or_insert((code(found), format!("{message}: {detail}")));
        // 2.13.4 sets no text when an initialization fails, so the text may describe an earlier failure.
        let is_stale = nccl.version() < Version::new(2, 14, 3);
        let is_same = outcome.1 == format!("{message}: {detail}");
        ensure(is_same || is_stale, || format!("{outcome:?}, then {detail}"))?;
    }
    let (text, detail) = outcome.ok_or("nothing was tried")?;
    cell_with(text, detail)
}

/// Returns `-` if the library rightly lacks a function, otherwise the outcome of its call.
fn unless_unsupported<T>(
    library: &Library,
    name: &'static str,
    result: libnccl::Result<T>,
    found: impl FnOnce(T) -> Outcome,
) -> Outcome {
    match (library.nccl.require(name), result) {
        (Err(_), Err(Error::Unsupported { function, found, .. })) => {
            ensure((function, found) == (name, library.nccl.version()), || format!("{function} in {found}"))?;
            cell("-")
        }
        (Ok(()), Ok(value)) => found(value),
        (Ok(()), Err(Error::Nccl { call, code: found, detail, .. })) if call == name => {
            cell_with(code(found), detail)
        }
        (_, result) => Err(format!("{name}: {:?}", result.map(drop))),
    }
}

fn allocation(library: &Library) -> Outcome {
    unless_unsupported(library, "ncclMemAlloc", library.nccl.alloc::<f32>(256), |_| {
        Err("it succeeded without a GPU".into())
    })
}

fn simulation(library: &Library) -> Outcome {
    let outcome =
        unless_unsupported(library, "ncclGroupSimulateEnd", library.nccl.simulate(|_| Ok(())), |estimate| {
            ensure(estimate.is_none(), || format!("{estimate:?} for nothing"))?;
            cell("ok")
        })?;
    check_no_open_group(library, "a simulation")?;
    Ok(outcome)
}

fn parameters(library: &Library) -> Outcome {
    unless_unsupported(library, "ncclParamGetParameter", library.nccl.parameters(), |parameters| {
        let text = |error: Error| error.to_string();
        let keys = parameters.keys().map_err(text)?;
        for key in &keys {
            let value = parameters.get::<String>(key).map_err(text)?;
            ensure(value.is_some(), || format!("{key} is listed, and has no value"))?;
        }
        let unknown = parameters.get::<String>("NCCL_FROBNICATE").map_err(text)?;
        ensure(unknown.is_none(), || format!("NCCL_FROBNICATE is {unknown:?}"))?;
        cell_with(keys.len().to_string(), keys.join(" "))
    })
}

fn encryption(library: &Library) -> Outcome {
    unless_unsupported(library, "ncclSetEncryption", library.nccl.set_encryption(Encryption::None), |()| {
        cell("ok")
    })
}
