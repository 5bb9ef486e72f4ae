#![allow(unsafe_code)] // Some questions can only be asked in C.
//! What the facade makes of a library: everything that needs no communicator, and so no GPU.

use std::collections::BTreeSet;
use std::ffi::CStr;
use std::panic::{self, AssertUnwindSafe};
use std::path::Path;
use std::ptr;

use libnccl::{
    Config, CtaPolicy, Encryption, Error, GraphUsageMode, HostCftMode, Nccl, NvlsHostMode, ResultCode,
    UniqueId, Version, sys,
};

use crate::{Found, Outcome, code, ensure, report};

type Check = fn(&Cell) -> Outcome;

struct Cell<'a> {
    nccl: &'a Nccl,
    /// What is expected.
    release: &'a str,
    library: &'a Path,
}

pub(crate) fn run(nccl: &Nccl, release: &str, library: &str) {
    let cell = Cell { nccl, release, library: Path::new(library) };
    let checks: [(&str, Check); 17] = [
        ("load", load),
        ("version", version),
        ("functions", functions),
        ("missing functions", missing_functions),
        ("last error", last_error),
        ("ids", ids),
        ("bytes of an id", bytes_of_an_id),
        ("codes", codes),
        ("groups", groups),
        ("wrong arguments", wrong_arguments),
        ("null arguments", null_arguments),
        ("options", options),
        ("initialisation", initialisation),
        ("allocation", allocation),
        ("simulation", simulation),
        ("parameters", parameters),
        ("encryption", encryption),
    ];
    for (name, check) in checks {
        let outcome = panic::catch_unwind(AssertUnwindSafe(|| check(&cell)));
        report(name, outcome.unwrap_or_else(|_| Err("a panic".into())));
    }
}

fn load(cell: &Cell) -> Outcome {
    let found = cell.nccl.backend().to_string();
    let same = std::fs::canonicalize(&found).ok() == std::fs::canonicalize(cell.library).ok();
    ensure(same, || format!("it is {found}, expected {}", cell.library.display()))?;
    Ok(Found::new("ok"))
}

fn version(cell: &Cell) -> Outcome {
    let found = cell.nccl.version().to_string();
    ensure(found == cell.release, || format!("it is {found}, expected {}", cell.release))?;
    Ok(Found::new("ok"))
}

/// nccl.h has the parameters' functions since 2.30.4; 2.30.3 already exports them.
fn is_early(cell: &Cell, name: &str) -> bool {
    name.starts_with("ncclParam") && cell.nccl.version() == Version::new(2, 30, 3)
}

/// A release has exactly the functions that came with it or before.
fn functions(cell: &Cell) -> Outcome {
    let version = cell.nccl.version();
    for function in cell.nccl.functions() {
        let expected = function.since <= version || is_early(cell, function.name);
        ensure(function.present == expected, || format!("{function:?} in {version}"))?;
    }
    let present = cell.nccl.functions().filter(|function| function.present).count();
    Ok(Found::new(present.to_string()))
}

fn missing_functions(cell: &Cell) -> Outcome {
    let version = cell.nccl.version();
    let mut missing = Vec::new();
    for function in cell.nccl.functions().filter(|function| !function.present) {
        let text = match cell.nccl.require(function.name) {
            Err(error @ Error::Unsupported { .. }) => error.to_string(),
            other => return Err(format!("{}: {other:?}, expected it to be unsupported", function.name)),
        };
        let start = format!(
            "{} needs NCCL {} or newer; the loaded library is {version} (",
            function.name, function.since
        );
        ensure(text.starts_with(&start), || format!("{text}, expected {start}..."))?;
        missing.push(function.name);
    }
    Ok(Found::new(format!("{} named", missing.len())).with(missing.join(" ")))
}

/// Before anything has failed.
fn last_error(cell: &Cell) -> Outcome {
    let before = cell.nccl.last_error();
    ensure(before.is_empty(), || format!("it is {before:?} before anything has failed"))?;
    let end = raw_end(cell)?;
    let after = cell.nccl.last_error();
    ensure(end == ResultCode::INVALID_USAGE && !after.is_empty(), || {
        format!("{end} and {after:?} after a group's end without its start")
    })?;
    Ok(Found::new("ok").with(after))
}

fn ids(cell: &Cell) -> Outcome {
    let make = || cell.nccl.unique_id().map_err(|error| error.to_string());
    let (one, other) = (make()?, make()?);
    ensure(one != other, || format!("{one:?} twice"))?;
    ensure(one.to_string().parse() == Ok(one), || format!("{one:?} is not what its text says"))?;
    ensure(UniqueId::from_bytes(*one.as_bytes()) == one, || format!("{one:?} is not what its bytes say"))?;
    Ok(Found::new("ok"))
}

/// How many of the 128 NCCL writes; the facade makes the others zero.
fn bytes_of_an_id(cell: &Cell) -> Outcome {
    let get = cell.nccl.as_raw().ncclGetUniqueId.ok_or("it is absent")?;
    // What keeps both of two fillings was not written. An id's own bytes may be the same by chance, but not at the end
    // of it, where zeros are.
    let mut written = 0;
    for filling in [0x5a, 0x25] {
        let mut id = sys::ncclUniqueId { internal: [filling; 128] };
        // SAFETY: a place for an id.
        let answered = ResultCode::from_raw(unsafe { get(&raw mut id) });
        ensure(answered == ResultCode::SUCCESS, || format!("{answered}"))?;
        let last = id.internal.iter().rposition(|byte| *byte != filling);
        written = written.max(last.map_or(0, |last| last + 1));
    }
    let id = cell.nccl.unique_id().map_err(|error| error.to_string())?;
    let rest = &id.as_bytes()[written..];
    ensure(rest.iter().all(|byte| *byte == 0), || format!("after {written} bytes, {rest:?}"))?;
    Ok(Found::new(written.to_string()))
}

fn codes(cell: &Cell) -> Outcome {
    let text = |code: u32| -> Result<String, String> {
        let text = cell.nccl.as_raw().ncclGetErrorString.ok_or("it is absent")?;
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
    Ok(Found::new(format!("0 to {}", known.saturating_sub(1))).with(format!("{texts:?}, {unknown:?}")))
}

fn raw_end(cell: &Cell) -> Result<ResultCode, String> {
    let end = cell.nccl.as_raw().ncclGroupEnd.ok_or("ncclGroupEnd is absent")?;
    // SAFETY: takes nothing.
    Ok(ResultCode::from_raw(unsafe { end() }))
}

/// NCCL's own word: ending a group that is not there is invalid usage.
fn outside(cell: &Cell, after: &str) -> Result<(), String> {
    let answered = raw_end(cell)?;
    ensure(answered == ResultCode::INVALID_USAGE, || format!("inside a group after {after}: {answered}"))
}

/// An empty group, one in another, in the wrong place, after a panic.
fn groups(cell: &Cell) -> Outcome {
    let nccl = cell.nccl;
    let answered = |result: Result<i32, Error>| match result {
        Ok(7) => Ok("ok".to_string()),
        Err(Error::Nccl { call: "ncclGroupEnd", code: found, .. }) => Ok(code(found)),
        other => Err(format!("{other:?}, expected 7")),
    };
    let empty = answered(nccl.group(|_| Ok(7)))?;
    outside(cell, "an empty group")?;
    let nested = answered(nccl.group(|group| group.group(|_| Ok(7))))?;
    outside(cell, "a group in a group")?;
    ensure(empty == nested, || format!("{empty} for an empty group, {nested} for one in another"))?;

    let misplaced = nccl.group(|_| nccl.group(|_| Ok(())));
    ensure(matches!(misplaced, Err(Error::InvalidUsage { call: "group", .. })), || format!("{misplaced:?}"))?;
    outside(cell, "a group that was not asked of the group that it is in")?;

    let panicked = panic::catch_unwind(AssertUnwindSafe(|| {
        nccl.group(|_| -> libnccl::Result<()> { panic::resume_unwind(Box::new(7)) })
    }));
    let payload = panicked.err().and_then(|payload| payload.downcast::<i32>().ok());
    ensure(payload.as_deref() == Some(&7), || "a panic in a group does not come out of it".into())?;
    outside(cell, "a panic")?;
    Ok(Found::new(empty))
}

/// All are found before NCCL is called: its last error stays what it was.
fn wrong_arguments(cell: &Cell) -> Outcome {
    let nccl = cell.nccl;
    let id = UniqueId::from_bytes([0; 128]);
    let before = nccl.last_error();
    let with = |config: Config| nccl.init_rank_with(1, 0, &id, &config).map(drop);
    let mut wrong = vec![
        nccl.init_rank(0, 0, &id).map(drop),
        nccl.init_rank(4, 4, &id).map(drop),
        nccl.init_rank(1 << 40, 0, &id).map(drop),
        nccl.init_rank_scalable(1, 0, &[], &Config::new()).map(drop),
        nccl.init_all(&[]).map(drop),
        nccl.init_all(&[0, -3]).map(drop),
        nccl.alloc::<u64>(usize::MAX).map(drop),
        nccl.set_encryption(Encryption::PreSharedKey(b"short")),
        nccl.require("ncclFrobnicate"),
    ];
    if nccl.version() >= Version::new(2, 17, 1) {
        wrong.push(with(Config::new().min_ctas(0)));
        wrong.push(with(Config::new().min_ctas(8).max_ctas(4)));
        wrong.push(with(Config::new().net_name("a\0b")));
    }
    for (number, wrong) in wrong.iter().enumerate() {
        ensure(matches!(wrong, Err(Error::InvalidArgument { .. })), || {
            format!("number {number}: {wrong:?}, expected an invalid argument")
        })?;
    }
    let inside = nccl.group(|_| nccl.init_all(&[0]).map(drop));
    ensure(matches!(inside, Err(Error::InvalidUsage { .. })), || format!("{inside:?}, inside a group"))?;
    outside(cell, "a call inside a group")?;
    let texts: Vec<_> = wrong.iter().flat_map(|wrong| wrong.as_ref().err()).map(Error::to_string).collect();
    let after = nccl.last_error();
    // Cancelling the group and asking whether one is open are calls of NCCL's, and fail on purpose.
    let known = ["", &before].contains(&&*after) || after.contains("not in a group");
    ensure(known, || format!("NCCL was called: {after}"))?;
    Ok(Found::new(format!("{} refused", texts.len())).with(texts.join("; ")))
}

/// NCCL's own checks, on which the facade does not rely.
fn null_arguments(cell: &Cell) -> Outcome {
    let (functions, null) = (cell.nccl.as_raw(), ptr::null_mut());
    let mut number = 0;
    let absent = "a function of 2.13.4 is absent";
    // SAFETY: all releases check these arguments for null.
    let answered = unsafe {
        [
            functions.ncclGetVersion.ok_or(absent)?(ptr::null_mut()),
            functions.ncclGetUniqueId.ok_or(absent)?(ptr::null_mut()),
            functions.ncclCommCount.ok_or(absent)?(null, &raw mut number),
            functions.ncclCommUserRank.ok_or(absent)?(null, &raw mut number),
            functions.ncclCommCuDevice.ok_or(absent)?(null, &raw mut number),
            functions.ncclCommDestroy.ok_or(absent)?(null),
            functions.ncclCommAbort.ok_or(absent)?(null),
        ]
    };
    let codes = answered.map(|code| code.0.to_string()).join(" ");
    ensure(codes == "4 4 4 4 4 0 0", || format!("{codes}, expected 4 of all but destroy and abort"))?;
    Ok(Found::new("ok").with(codes))
}

/// Each option: refused where the library does not know it, and on its way to NCCL where it does.
fn options(cell: &Cell) -> Outcome {
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
    let (version, id) = (cell.nccl.version(), UniqueId::from_bytes([0; 128]));
    let mut known = Vec::new();
    for (field, config) in &options {
        let since = sys::since(&format!("ncclConfig.{field}")).ok_or(format!("{field} has no release"))?;
        let since = Version::from_code(since);
        match cell.nccl.init_rank_with(1, 0, &id, config).map(drop) {
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
        outside(cell, field)?;
    }
    Ok(Found::new(format!("{} of {}", known.len(), options.len())).with(known.join(" ")))
}

fn initialisation(cell: &Cell) -> Outcome {
    let (nccl, id) = (cell.nccl, cell.nccl.unique_id().map_err(|error| error.to_string())?);
    let mut outcome = None;
    let mut tries = vec![nccl.init_rank(1, 0, &id).map(drop), nccl.init_all(&[0]).map(drop)];
    if nccl.require("ncclCommInitRankConfig").is_ok() {
        let config = Config::new().timeout(std::time::Duration::from_secs(60));
        tries.push(nccl.init_rank_with(1, 0, &id, &config).map(drop));
    }
    if nccl.require("ncclCommInitRankScalable").is_ok() {
        tries.push(nccl.init_rank_scalable(2, 0, &[id, id], &Config::new()).map(drop));
    }
    for failed in tries {
        let Err(Error::Nccl { code: found, message, detail, .. }) = failed else {
            return Err(format!("{failed:?}, expected an error of NCCL's"));
        };
        ensure(found == ResultCode::UNHANDLED_CUDA_ERROR && !detail.is_empty(), || {
            format!("{found}: {detail}, expected a CUDA error")
        })?;
        outside(cell, "an initialisation that failed")?;
        let outcome = outcome.get_or_insert((code(found), format!("{message}: {detail}")));
        ensure(outcome.1 == format!("{message}: {detail}"), || format!("{outcome:?}, then {detail}"))?;
    }
    let (text, detail) = outcome.ok_or("nothing was tried")?;
    Ok(Found::new(text).with(detail))
}

/// A function of a known release: `-` if it is rightly unsupported, otherwise what it answered.
fn gated<T>(
    cell: &Cell,
    name: &'static str,
    result: libnccl::Result<T>,
    found: impl FnOnce(T) -> Outcome,
) -> Outcome {
    match (cell.nccl.require(name), result) {
        (Err(_), Err(Error::Unsupported { function, found, .. })) => {
            ensure((function, found) == (name, cell.nccl.version()), || format!("{function} in {found}"))?;
            Ok(Found::new("-"))
        }
        (Ok(()), Ok(value)) => found(value),
        (Ok(()), Err(Error::Nccl { call, code: found, detail, .. })) if call == name => {
            Ok(Found::new(code(found)).with(detail))
        }
        (_, result) => Err(format!("{name}: {:?}", result.map(drop))),
    }
}

fn allocation(cell: &Cell) -> Outcome {
    gated(cell, "ncclMemAlloc", cell.nccl.alloc::<f32>(256), |_| Err("it worked, without a GPU".into()))
}

fn simulation(cell: &Cell) -> Outcome {
    let outcome = gated(cell, "ncclGroupSimulateEnd", cell.nccl.simulate(|_| Ok(())), |estimate| {
        ensure(estimate.is_none(), || format!("{estimate:?} for nothing"))?;
        Ok(Found::new("ok"))
    })?;
    outside(cell, "a simulation")?;
    Ok(outcome)
}

fn parameters(cell: &Cell) -> Outcome {
    gated(cell, "ncclParamGetParameter", cell.nccl.parameters(), |parameters| {
        let text = |error: Error| error.to_string();
        let keys = parameters.keys().map_err(text)?;
        for key in &keys {
            let value = parameters.get::<String>(key).map_err(text)?;
            ensure(value.is_some(), || format!("{key} is listed, and has no value"))?;
        }
        let unknown = parameters.get::<String>("NCCL_FROBNICATE").map_err(text)?;
        ensure(unknown.is_none(), || format!("NCCL_FROBNICATE is {unknown:?}"))?;
        Ok(Found::new(keys.len().to_string()).with(keys.join(" ")))
    })
}

fn encryption(cell: &Cell) -> Outcome {
    gated(cell, "ncclSetEncryption", cell.nccl.set_encryption(Encryption::None), |()| Ok(Found::new("ok")))
}
