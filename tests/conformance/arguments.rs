//! Error codes of calls with arguments at and beyond their limits: a sample of the codes that NCCL 2.32.3 returns without a GPU
//! and on an H200. The CPU backend returns the same codes. Calls that crash NCCL, or whose mistake it does not detect, are made
//! with the CPU backend only.

use std::ffi::{CStr, c_int, c_void};
use std::fmt::Display;
use std::ptr;

use libnccl::sys::{
    NCCL_SPLIT_NOCOLOR, ncclCollConfig_t, ncclComm_t, ncclCommMemStat_t, ncclConfig_t, ncclDataType_t,
    ncclEncryptionConfig_t, ncclRedOp_t, ncclResult_t, ncclScalarResidence_t, ncclSimInfo_t, ncclUniqueId,
    ncclWaitSignalDesc_t,
};

use crate::rank::{ARGUMENT, I32, OK, PROGRESS, Rank, SUM, USAGE};
use crate::{Case, cases};

pub(crate) fn cases() -> Vec<Case> {
    cases! {
        1..=1 => calls_without_communicator, groups_without_communicator, parameters_without_communicator,
            options, options_of_old_versions, init, operations, reductions, options_of_collectives, children,
            queries_and_ends, registrations_and_windows, one_sided, foreign_handles;
    }
}

/// Requires a call to return a code.
macro_rules! expect {
    ($rank:expr, $code:expr, $name:ident($($argument:expr),* $(,)?)) => {
        check_code($rank, stringify!($name($($argument),*)), call!($rank, $name($($argument),*)), $code)
    };
}

#[track_caller]
fn check_code(rank: &Rank, call: impl Display, code: ncclResult_t, expected: ncclResult_t) {
    assert_eq!(code, expected, "{call}: {}", rank.last_error());
    if !rank.implementation.is_cpu_backend() {
        leave_groups(rank);
    }
}

/// Closes the groups that NCCL leaves open on a thread after a failed call; starts nothing.
fn leave_groups(rank: &Rank) {
    for _ in 0..16 {
        let none = ptr::null_mut();
        call!(rank, ncclAllReduce(none, none, 1, I32, SUM, ptr::null_mut(), ptr::null_mut()));
        if call!(rank, ncclGroupEnd()) == USAGE {
            return;
        }
    }
}

fn calls_without_communicator(rank: &Rank) {
    let mut zeros = vec![0_u64; 1 << 17];
    let (mut number, mut state, mut value, mut id) = (0, OK, 0, ncclUniqueId::default());
    let (mut handle, mut window, mut op, mut scalar) = (ptr::null_mut(), ptr::null_mut(), SUM, [2_f32; 4]);
    let (place, none): (*mut c_void, _) = (scalar.as_mut_ptr().cast(), ptr::null_mut());
    let (total, f32) = (ncclCommMemStat_t::ncclStatGpuMemTotal, ncclDataType_t::ncclFloat32);
    let immediate = ncclScalarResidence_t::ncclScalarHostImmediate;
    // Handles that are not a communicator in any version.
    for comm in [ptr::null_mut(), zeros.as_mut_ptr().cast()] {
        expect!(rank, ARGUMENT, ncclCommCount(comm, &mut number));
        expect!(rank, ARGUMENT, ncclCommCuDevice(comm, &mut number));
        expect!(rank, ARGUMENT, ncclCommUserRank(comm, &mut number));
        expect!(rank, ARGUMENT, ncclCommGetAsyncError(comm, &mut state));
        expect!(rank, ARGUMENT, ncclCommMemStats(comm, total, &mut value));
        expect!(rank, ARGUMENT, ncclCommRegister(comm, place, 16, &mut handle));
        expect!(rank, ARGUMENT, ncclCommDeregister(comm, none));
        expect!(rank, ARGUMENT, ncclCommWindowRegister(comm, place, 16, &mut window, 0));
        expect!(rank, ARGUMENT, ncclCommWindowDeregister(comm, ptr::null_mut()));
        expect!(rank, ARGUMENT, ncclWinGetUserPtr(comm, ptr::null_mut(), &mut handle));
        expect!(rank, ARGUMENT, ncclCommSuspend(comm, 1));
        expect!(rank, ARGUMENT, ncclCommResume(comm));
        expect!(rank, ARGUMENT, ncclCommGetUniqueId(comm, &mut id));
        expect!(rank, ARGUMENT, ncclRedOpCreatePreMulSum(&mut op, place, f32, immediate, comm));
    }
    let comm = ptr::null_mut();
    for (name, code) in each_operation(rank, comm, (place, place, 4), f32, SUM, 0) {
        check_code(rank, name, code, ARGUMENT);
    }
    let (stream, mut one) = (rank.stream(), ncclWaitSignalDesc_t { opCnt: 1, peer: 0, sigIdx: 0, ctx: 0 });
    expect!(rank, ARGUMENT, ncclSignal(0, 0, 0, 0, comm, stream));
    expect!(rank, ARGUMENT, ncclWaitSignal(1, &mut one, comm, stream));
    expect!(rank, ARGUMENT, ncclRedOpDestroy(ncclRedOp_t(5), comm));
    expect!(rank, OK, ncclCommFinalize(comm));
    expect!(rank, OK, ncclCommDestroy(comm));
    expect!(rank, OK, ncclCommAbort(comm));
    expect!(rank, OK, ncclCommRevoke(comm, 1));
    expect!(rank, ARGUMENT, ncclGetVersion(ptr::null_mut()));
    expect!(rank, ARGUMENT, ncclGetUniqueId(ptr::null_mut()));
    for code in 0..10 {
        let text = call!(rank, ncclGetErrorString(ncclResult_t(code)));
        // SAFETY: a NUL-terminated string, as the header promises.
        assert!(!unsafe { CStr::from_ptr(text) }.is_empty(), "{code}");
    }
}

fn groups_without_communicator(rank: &Rank) {
    let (info, none) = (ncclSimInfo_t::initializer(), ptr::null_mut());
    let simulate = |mut info: ncclSimInfo_t| call!(rank, ncclGroupSimulateEnd(&mut info));
    expect!(rank, USAGE, ncclGroupEnd());
    check_code(rank, "ncclGroupSimulateEnd without a start", simulate(info), USAGE);
    for (info, code) in [
        (info, OK),
        (ncclSimInfo_t { magic: 1, ..info }, ARGUMENT),
        (ncclSimInfo_t { version: 0, ..info }, OK),
        (ncclSimInfo_t { version: 999_999, ..info }, OK),
        (ncclSimInfo_t { size: 11, ..info }, ARGUMENT),
        (ncclSimInfo_t { size: 12, ..info }, OK),
        (ncclSimInfo_t { size: 32, ..info }, OK),
    ] {
        check!(rank, ncclGroupStart());
        check_code(rank, format!("ncclGroupSimulateEnd {info:?}"), simulate(info), code);
        expect!(rank, USAGE, ncclGroupEnd());
    }
    check!(rank, ncclGroupStart());
    expect!(rank, OK, ncclGroupSimulateEnd(ptr::null_mut()));
    for is_simulated in [false, true] {
        check!(rank, ncclGroupStart());
        check!(rank, ncclGroupStart());
        assert_eq!(
            call!(rank, ncclAllReduce(none, none, 1, I32, SUM, ptr::null_mut(), rank.stream())),
            ARGUMENT
        );
        assert!([OK, ARGUMENT].contains(&call!(rank, ncclGroupEnd())), "the inner group");
        let code = if is_simulated { simulate(info) } else { call!(rank, ncclGroupEnd()) };
        check_code(rank, "the end after a failed call", code, ARGUMENT);
        expect!(rank, USAGE, ncclGroupEnd());
    }
}

fn parameters_without_communicator(rank: &Rank) {
    let (mut handle, mut value, mut length, mut keys) = (ptr::null_mut(), ptr::null(), 0, ptr::null_mut());
    let (key, none) = (c"NCCL_DEBUG".as_ptr(), ptr::null_mut());
    expect!(rank, OK, ncclParamGetAllParameterKeys(&mut keys, &mut length));
    expect!(rank, ARGUMENT, ncclParamGetAllParameterKeys(ptr::null_mut(), &mut length));
    expect!(rank, ARGUMENT, ncclParamGetAllParameterKeys(&mut keys, none));
    expect!(rank, OK, ncclParamBind(&mut handle, key));
    expect!(rank, ARGUMENT, ncclParamBind(ptr::null_mut(), key));
    for unknown in [ptr::null(), c"NCCL_NO".as_ptr(), c"".as_ptr()] {
        expect!(rank, ARGUMENT, ncclParamBind(&mut ptr::null_mut(), unknown));
        expect!(rank, ARGUMENT, ncclParamGetParameter(unknown, &mut value, &mut length));
    }
    expect!(rank, ARGUMENT, ncclParamGetParameter(key, ptr::null_mut(), &mut length));
    expect!(rank, ARGUMENT, ncclParamGetParameter(key, &mut value, none));
    let mut bytes = [0_u8; 64];
    let place: *mut c_void = bytes.as_mut_ptr().cast();
    expect!(rank, ARGUMENT, ncclParamGet(handle, ptr::null_mut(), 64, &mut length));
    expect!(rank, ARGUMENT, ncclParamGet(handle, place, 64, none));
    expect!(rank, ARGUMENT, ncclParamGet(ptr::null_mut(), place, 64, &mut length));
    expect!(rank, ARGUMENT, ncclParamGet(handle, place, 0, &mut length));
    expect!(rank, ARGUMENT, ncclParamGet(handle, place, -1, &mut length));
    expect!(rank, ARGUMENT, ncclParamGetStr(handle, ptr::null_mut()));
    expect!(rank, ARGUMENT, ncclParamGetI64(ptr::null_mut(), &mut 0));

    let unset = ncclEncryptionConfig_t::initializer();
    let short = c"1234567890123456789012345678901".as_ptr();
    expect!(rank, OK, ncclSetEncryption(ptr::null()));
    for (config, code) in [
        (unset, OK),
        (ncclEncryptionConfig_t { psk: short, ..unset }, OK),
        (ncclEncryptionConfig_t { version: 0, ..unset }, OK),
        (ncclEncryptionConfig_t { version: 0, mode: 2, ..unset }, ARGUMENT),
        (ncclEncryptionConfig_t { size: 16, mode: 2, ..unset }, OK),
        (ncclEncryptionConfig_t { size: 20, mode: 2, ..unset }, ARGUMENT),
        (ncclEncryptionConfig_t { magic: 0, ..unset }, ARGUMENT),
        (ncclEncryptionConfig_t { mode: -1, ..unset }, ARGUMENT),
        (ncclEncryptionConfig_t { mode: 1, ..unset }, ARGUMENT),
        (ncclEncryptionConfig_t { mode: 1, psk: short, ..unset }, ARGUMENT),
    ] {
        check_code(rank, format!("{config:?}"), call!(rank, ncclSetEncryption(&config)), code);
    }
    if rank.implementation.is_cpu_backend() {
        let psk = c"12345678901234567890123456789012".as_ptr();
        expect!(rank, USAGE, ncclSetEncryption(&ncclEncryptionConfig_t { mode: 1, psk, ..unset }));
        rank.assert_last_error("opens no TCP connections that could be encrypted");
        expect!(rank, ARGUMENT, ncclSetEncryption(&ncclEncryptionConfig_t { mode: 2, ..unset }));
        rank.assert_last_error("encryption mode 2:");
        expect!(rank, ARGUMENT, ncclSetEncryption(&ncclEncryptionConfig_t { magic: 0, ..unset }));
        rank.assert_last_error("0x0 and has to be 0xcafebeef");
    }
}

/// Requires the initialization of a communicator of one rank with a config to return a code. On a GPU, NCCL only reads the config,
/// in a group that starts nothing.
#[track_caller]
fn check_config(rank: &Rank, name: impl Display, config: *mut ncclConfig_t, expected: ncclResult_t) {
    let (comm, id) = (Box::leak(Box::new(ptr::null_mut())), rank.new_id());
    let is_cpu = rank.implementation.is_cpu_backend();
    if !is_cpu {
        check!(rank, ncclGroupStart());
    }
    let code = call!(rank, ncclCommInitRankConfig(comm, 1, id, 0, config));
    check_code(rank, name, if code == PROGRESS { OK } else { code }, expected);
    if is_cpu && !comm.is_null() {
        rank.wait(*comm);
        call!(rank, ncclCommDestroy(*comm));
    }
}

type Field = fn(&mut ncclConfig_t) -> &mut c_int;

/// Fields of a config: each with the smallest and the largest value that is allowed, and since which version of the config it
/// counts.
const FIELDS: [(&str, Field, c_int, c_int, u32); 19] = [
    ("blocking", |c| &mut c.blocking, 0, 1, 21_400),
    ("splitShare", |c| &mut c.splitShare, 0, 1, 0),
    ("cgaClusterSize", |c| &mut c.cgaClusterSize, 0, c_int::MAX, 21_700),
    ("maxCTAs", |c| &mut c.maxCTAs, 1, c_int::MAX, 21_700),
    ("collnetEnable", |c| &mut c.collnetEnable, 0, 1, 22_700),
    ("CTAPolicy", |c| &mut c.CTAPolicy, 0, 3, 22_700),
    ("shrinkShare", |c| &mut c.shrinkShare, 0, 1, 22_700),
    ("nvlsCTAs", |c| &mut c.nvlsCTAs, 1, c_int::MAX, 22_700),
    ("nChannelsPerNetPeer", |c| &mut c.nChannelsPerNetPeer, 1, 64, 22_800),
    ("nvlinkCentricSched", |c| &mut c.nvlinkCentricSched, 0, 1, 22_800),
    ("graphUsageMode", |c| &mut c.graphUsageMode, 0, 2, 22_900),
    ("numRmaCtx", |c| &mut c.numRmaCtx, 0, c_int::MAX, 22_900),
    ("maxP2pPeers", |c| &mut c.maxP2pPeers, 1, c_int::MAX, 23_000),
    ("graphStreamOrdering", |c| &mut c.graphStreamOrdering, 0, 1, 23_005),
    ("launchOrderImplicit", |c| &mut c.launchOrderImplicit, 0, 1, 23_100),
    ("numRmaSig", |c| &mut c.numRmaSig, 0, c_int::MAX, 23_100),
    ("rmaEagerInit", |c| &mut c.rmaEagerInit, 0, 1, 23_100),
    ("hostCftMode", |c| &mut c.hostCftMode, 1, 3, 23_100),
    ("nvlsHostMode", |c| &mut c.nvlsHostMode, 0, 3, 23_100),
];

fn options(rank: &Rank) {
    let unset = ncclConfig_t::initializer();
    for (name, field, least, most, _) in FIELDS {
        let is_limited = most != c_int::MAX;
        // The largest of a number without limit would be allocated by NCCL.
        for (value, code) in [(least, OK), (most.min(64), OK), (least - 1, ARGUMENT)]
            .into_iter()
            .chain(is_limited.then(|| (most + 1, ARGUMENT)))
        {
            let mut config = unset;
            *field(&mut config) = value;
            check_config(rank, format!("{name}={value}"), &mut config, code);
        }
    }
    for (mut config, code, text) in [
        (ncclConfig_t { nvlsHostMode: c_int::MAX, ..unset }, OK, ""),
        (ncclConfig_t { trafficClass: -5, ..unset }, OK, ""),
        (ncclConfig_t { minCTAs: 4, maxCTAs: 4, ..unset }, OK, ""),
        (ncclConfig_t { minCTAs: 0, maxCTAs: 4, ..unset }, ARGUMENT, ""),
        (
            ncclConfig_t { minCTAs: 4, maxCTAs: 2, ..unset },
            ARGUMENT,
            "4 of minCTAs: it has to be at most maxCTAs, which is 2",
        ),
        (ncclConfig_t { magic: 0, ..unset }, ARGUMENT, ""),
        (
            ncclConfig_t { nChannelsPerNetPeer: 65, ..unset },
            ARGUMENT,
            "value 65 of nChannelsPerNetPeer: it has to be in 1..=64",
        ),
        (ncclConfig_t { splitShare: -1, ..unset }, ARGUMENT, "value -1 of splitShare: it has to be 0 or 1"),
        (ncclConfig_t { nvlsHostMode: 4, ..unset }, ARGUMENT, "ncclNvlsHostMode_t"),
    ] {
        check_config(rank, format!("{config:?}"), &mut config, code);
        rank.assert_last_error(text);
    }
    check_config(rank, "config=NULL", ptr::null_mut(), OK);
}

/// Fields newer than the version of a config, and those beyond its size, are ignored.
fn options_of_old_versions(rank: &Rank) {
    let unset = ncclConfig_t::initializer();
    for (name, field, _, _, since) in FIELDS {
        let before = since.checked_sub(1).map(|version| (version, OK));
        for (version, code) in before.into_iter().chain([(since, ARGUMENT), (999_999, ARGUMENT)]) {
            let mut config = ncclConfig_t { version, ..unset };
            *field(&mut config) = -7;
            check_config(rank, format!("version {version} {name}=-7"), &mut config, code);
        }
    }
    check_config(rank, "size=8", &mut ncclConfig_t { size: 8, ..unset }, ARGUMENT);
    for (size, version) in [(24, 21_605), (48, 22_403), (72, 22_707), (112, 23_102)] {
        let mut old = ncclConfig_t { size, version, ..unset };
        let start: *mut u8 = (&raw mut old).cast();
        // SAFETY: bytes that a program of that version leaves after its config, in bounds of this one.
        unsafe { ptr::write_bytes(start.add(size), 0x5a, size_of::<ncclConfig_t>() - size) };
        check_config(rank, format!("size {size} of {version}"), &mut old, OK);
    }
    #[repr(C)]
    struct Later {
        config: ncclConfig_t,
        more: [c_int; 8],
    }
    let mut later = Later { config: unset, more: [-77; 8] };
    (later.config.size, later.config.version) = (size_of::<Later>(), 99_999);
    check_config(rank, "a later version", &mut later.config, OK);
    assert_eq!(later.more, [-77; 8]);
}

fn init(rank: &Rank) {
    let (id, none, mut comm) = (rank.new_id(), ptr::null_mut(), ptr::null_mut());
    for (ranks, number) in [(0, 0), (-1, 0), (c_int::MIN, 0), (1, -1), (1, 1), (2, 2), (4, c_int::MAX)] {
        expect!(rank, ARGUMENT, ncclCommInitRank(&mut comm, ranks, id, number));
    }
    expect!(rank, ARGUMENT, ncclCommInitRank(ptr::null_mut(), 1, id, 0));
    let mut ids = [id; 4];
    for number in [-1, 0, 3] {
        expect!(rank, ARGUMENT, ncclCommInitRankScalable(&mut comm, 2, 0, number, ids.as_mut_ptr(), none));
    }
    let mut comms = [ptr::null_mut(); 2];
    let comms = comms.as_mut_ptr();
    expect!(rank, ARGUMENT, ncclCommInitAll(ptr::null_mut(), 1, ptr::null()));
    expect!(rank, ARGUMENT, ncclCommInitAll(comms, -1, ptr::null()));
    expect!(rank, ARGUMENT, ncclCommInitAll(comms, 1, [-1].as_ptr()));
    if rank.implementation.is_cpu_backend() {
        comm = ptr::dangling_mut();
        expect!(rank, ARGUMENT, ncclCommInitRank(&mut comm, 2, id, 2));
        rank.assert_last_error("invalid rank 2: it has to be in 0..2");
        assert!(comm.is_null(), "a failed initialization leaves nothing to destroy");
        expect!(rank, ARGUMENT, ncclCommInitRank(&mut comm, 1, ncclUniqueId::default(), 0));
        rank.assert_last_error("this unique id is not from");
        expect!(rank, ARGUMENT, ncclCommInitRankScalable(&mut comm, 1, 0, 1, ptr::null_mut(), none));
        ids[1] = ncclUniqueId::default();
        expect!(rank, ARGUMENT, ncclCommInitRankScalable(&mut comm, 2, 0, 2, ids.as_mut_ptr(), none));
        rank.assert_last_error("unique id");
        expect!(rank, ARGUMENT, ncclCommInitAll(comms, 0, ptr::null()));
        rank.assert_last_error("invalid number of ranks 0");
    }
}

/// Calls each operation with an element type, a reduction, and a root or peer.
fn each_operation(
    rank: &Rank,
    comm: ncclComm_t,
    (from, to, count): (*mut c_void, *mut c_void, usize),
    data: ncclDataType_t,
    op: ncclRedOp_t,
    root: c_int,
) -> [(&'static str, ncclResult_t); 11] {
    let stream = rank.stream();
    [
        ("ncclSend", call!(rank, ncclSend(from, count, data, root, comm, stream))),
        ("ncclRecv", call!(rank, ncclRecv(to, count, data, root, comm, stream))),
        ("ncclBroadcast", call!(rank, ncclBroadcast(from, to, count, data, root, comm, stream))),
        ("ncclBcast", call!(rank, ncclBcast(from, count, data, root, comm, stream))),
        ("ncclGather", call!(rank, ncclGather(from, to, count, data, root, comm, stream))),
        ("ncclScatter", call!(rank, ncclScatter(from, to, count, data, root, comm, stream))),
        ("ncclReduce", call!(rank, ncclReduce(from, to, count, data, op, root, comm, stream))),
        ("ncclAllReduce", call!(rank, ncclAllReduce(from, to, count, data, op, comm, stream))),
        ("ncclReduceScatter", call!(rank, ncclReduceScatter(from, to, count, data, op, comm, stream))),
        ("ncclAllGather", call!(rank, ncclAllGather(from, to, count, data, comm, stream))),
        ("ncclAlltoAll", call!(rank, ncclAlltoAll(from, to, count, data, comm, stream))),
    ]
}

fn operations(rank: &Rank) {
    let (comm, stream) = (rank.join("communicator"), rank.stream());
    let memory = rank.upload_to_nccl(&[0_i32; 4096]);
    let (from, to) = (memory.at(0), memory.at(8192));
    for count in [0, 4] {
        let buffers = (from, to, count);
        for data in [12, u32::MAX] {
            for (name, code) in each_operation(rank, comm, buffers, ncclDataType_t(data), SUM, 0) {
                check_code(rank, format!("{name} count={count} type={data}"), code, ARGUMENT);
            }
        }
        for op in [5, u32::MAX].map(ncclRedOp_t) {
            for (name, code) in &each_operation(rank, comm, buffers, I32, op, 9)[7..9] {
                check_code(rank, format!("{name} count={count} {op:?}"), *code, ARGUMENT);
            }
            expect!(rank, ARGUMENT, ncclReduce(from, to, count, I32, op, 0, comm, stream));
        }
        for root in [-1, 1, c_int::MAX] {
            for (name, code) in &each_operation(rank, comm, buffers, I32, SUM, root)[..7] {
                check_code(rank, format!("{name} count={count} root={root}"), *code, ARGUMENT);
            }
        }
    }
    if rank.implementation.is_cpu_backend() {
        let none = ptr::null_mut();
        expect!(rank, ARGUMENT, ncclAllReduce(from, to, 4, ncclDataType_t(77), SUM, comm, stream));
        rank.assert_last_error("invalid ncclDataType_t 77");
        expect!(rank, ARGUMENT, ncclAllReduce(none, to, 4, I32, SUM, comm, stream));
        rank.assert_last_error("the pointer to the send buffer is NULL");
        expect!(rank, ARGUMENT, ncclAllReduce(from, none, 4, I32, SUM, comm, stream));
        expect!(rank, ARGUMENT, ncclAllReduce(from, to, 4, I32, ncclRedOp_t(77), comm, stream));
        rank.assert_last_error("reduction 77 is unknown");
        expect!(rank, ARGUMENT, ncclBroadcast(from, to, 4, I32, 2, comm, stream));
        rank.assert_last_error("invalid root 2: it has to be in 0..1");
        for count in [usize::MAX, 1 << 62] {
            expect!(rank, ARGUMENT, ncclAllReduce(from, to, count, I32, SUM, comm, stream));
            let end = "is more than any buffer holds";
            rank.assert_last_error(&format!("count {count} of ncclInt32 for each of 1 ranks {end}"));
            expect!(rank, ARGUMENT, ncclSend(from, count, I32, 0, comm, stream));
            rank.assert_last_error(&format!("count {count} of ncclInt32 {end}"));
        }
        // A group fails for its first error.
        check!(rank, ncclGroupStart());
        expect!(rank, ARGUMENT, ncclBroadcast(from, to, 4, I32, 2, comm, stream));
        expect!(rank, ARGUMENT, ncclAllReduce(from, to, 4, I32, ncclRedOp_t(77), comm, stream));
        expect!(rank, ARGUMENT, ncclGroupEnd());
        rank.assert_last_error("ncclBroadcast in this group failed: invalid root 2");
        if rank.implementation.has_device_memory() {
            let mut host = [0_i32; 4];
            let host: *mut c_void = host.as_mut_ptr().cast();
            expect!(rank, ARGUMENT, ncclAllReduce(host, to, 4, I32, SUM, comm, stream));
            expect!(rank, ARGUMENT, ncclAllReduce(from, host, 4, I32, SUM, comm, stream));
            // More than the memory has.
            expect!(rank, ARGUMENT, ncclAllReduce(from, to, 1 << 28, I32, SUM, comm, stream));
        }
        // To itself without a group.
        expect!(rank, USAGE, ncclSend(from, 4, I32, 0, comm, stream));
    }
    rank.assert_works(comm);
    rank.destroy(comm);
}

fn reductions(rank: &Rank) {
    let [comm, other] = ["communicator", "other"].map(|name| rank.join(name));
    let (memory, mut scalar) = (rank.upload_to_nccl(&[0_f64; 64]), 2_f32);
    let [f32, f64] = [ncclDataType_t::ncclFloat32, ncclDataType_t::ncclFloat64];
    let place: *mut c_void = (&raw mut scalar).cast();
    let immediate = ncclScalarResidence_t::ncclScalarHostImmediate;
    let [own, destroyed, foreign] = [comm, comm, other].map(|comm| {
        let mut op = SUM;
        expect!(rank, OK, ncclRedOpCreatePreMulSum(&mut op, place, f32, immediate, comm));
        op
    });
    expect!(rank, OK, ncclRedOpDestroy(destroyed, comm));
    let (from, to, stream) = (memory.at(0), memory.at(256), rank.stream());
    for count in [0, 4] {
        expect!(rank, OK, ncclAllReduce(from, to, count, f32, own, comm, stream));
        expect!(rank, ARGUMENT, ncclAllReduce(from, to, count, f32, destroyed, comm, stream));
        expect!(rank, ARGUMENT, ncclAllReduce(from, to, count, f32, foreign, comm, stream));
    }
    expect!(rank, ARGUMENT, ncclAllReduce(from, to, 4, f64, own, comm, stream));
    for op in [0, 4, u32::MAX, i32::MAX as u32].map(ncclRedOp_t).into_iter().chain([destroyed, foreign]) {
        expect!(rank, ARGUMENT, ncclRedOpDestroy(op, comm));
    }
    expect!(rank, OK, ncclRedOpDestroy(own, comm));
    if rank.implementation.is_cpu_backend() {
        let (mut op, none, residence) = (SUM, ptr::null_mut(), ncclScalarResidence_t(2));
        expect!(rank, ARGUMENT, ncclRedOpCreatePreMulSum(ptr::null_mut(), place, f32, immediate, comm));
        expect!(rank, ARGUMENT, ncclRedOpCreatePreMulSum(&mut op, none, f32, immediate, comm));
        expect!(rank, ARGUMENT, ncclRedOpCreatePreMulSum(&mut op, place, f32, residence, comm));
        expect!(
            rank,
            ARGUMENT,
            ncclRedOpCreatePreMulSum(&mut op, place, ncclDataType_t(12), immediate, comm)
        );
    }
    [comm, other].into_iter().for_each(|comm| rank.destroy(comm));
}

fn options_of_collectives(rank: &Rank) {
    let (comm, unset) = (rank.join("communicator"), ncclCollConfig_t::initializer());
    let memory = rank.upload_to_nccl(&[0_i32; 4096]);
    let with = |count, config: &ncclCollConfig_t| {
        let (from, to) = (memory.at(0), memory.at(8192));
        call!(rank, ncclAllReduceConfig(from, to, count, I32, SUM, comm, rank.stream(), config))
    };
    for (config, code, text) in [
        (unset, OK, ""),
        (ncclCollConfig_t { CTAPolicy: -1, ..unset }, ARGUMENT, ""),
        (ncclCollConfig_t { CTAPolicy: 0, ..unset }, OK, ""),
        (ncclCollConfig_t { CTAPolicy: 3, ..unset }, OK, ""),
        (ncclCollConfig_t { CTAPolicy: 4, ..unset }, ARGUMENT, "at least 0 and at most 3"),
        (ncclCollConfig_t { forceAlgSelection: -1, ..unset }, ARGUMENT, ""),
        (ncclCollConfig_t { forceAlgSelection: 1, ..unset }, OK, ""),
        (ncclCollConfig_t { forceAlgSelection: 2, ..unset }, ARGUMENT, ""),
        (ncclCollConfig_t { size: 8, version: 23_102, ..unset }, ARGUMENT, "has to have 12 or more"),
        (ncclCollConfig_t { size: 12, version: 23_102, ..unset }, OK, ""),
        (ncclCollConfig_t { size: 64, version: 23_102, ..unset }, OK, ""),
        (ncclCollConfig_t { magic: 0, ..unset }, ARGUMENT, "the magic of the collective's config is 0x0"),
        (ncclCollConfig_t { version: 0, ..unset }, OK, ""),
        (ncclCollConfig_t { minCTAs: -1, maxCTAs: 0, ..unset }, OK, ""),
        (ncclCollConfig_t { algSelection: c"ring,tree".as_ptr(), ..unset }, OK, ""),
    ] {
        for count in [4, 0] {
            check_code(rank, format!("{count} {config:?}"), with(count, &config), code);
            rank.assert_last_error(text);
        }
    }
    if rank.implementation.is_cpu_backend() {
        let code = rank.group(|| assert_eq!(with(4, &ncclCollConfig_t { magic: 1, ..unset }), ARGUMENT));
        check_code(rank, "a group with a refused collective", code, ARGUMENT);
        rank.assert_last_error("ncclAllReduceConfig in this group failed");
    }
    rank.destroy(comm);
}

fn children(rank: &Rank) {
    let (comm, unset) = (rank.join("communicator"), ncclConfig_t::initializer());
    let split = |color, mut config: ncclConfig_t, expected| {
        let mut child = ptr::null_mut();
        let code = call!(rank, ncclCommSplit(comm, color, 0, &mut child, &mut config));
        check_code(rank, format!("ncclCommSplit {color} {config:?}"), code, expected);
        assert_eq!(child.is_null(), color == NCCL_SPLIT_NOCOLOR || expected != OK);
        if !child.is_null() {
            rank.destroy(child);
        }
    };
    // Colors may be any number: programs pass hashes, half of which are negative.
    [NCCL_SPLIT_NOCOLOR, 0, c_int::MAX, -2, c_int::MIN].into_iter().for_each(|color| split(color, unset, OK));
    for bad in [
        ncclConfig_t { magic: 0, ..unset },
        ncclConfig_t { splitShare: 2, ..unset },
        ncclConfig_t { size: 0, ..unset },
    ] {
        split(0, bad, ARGUMENT);
        split(NCCL_SPLIT_NOCOLOR, bad, OK);
    }
    let (none, mut new) = (ptr::null_mut(), ptr::null_mut());
    expect!(rank, ARGUMENT, ncclCommSplit(comm, 0, 0, ptr::null_mut(), none));
    expect!(rank, ARGUMENT, ncclCommShrink(comm, ptr::null_mut(), 1, &mut new, none, 0));
    expect!(rank, ARGUMENT, ncclCommShrink(comm, ptr::null_mut(), 0, &mut new, none, 0));
    for (mut list, number, flags) in
        [([0], 0, 0), ([0], -1, 0), ([0], 1, 0), ([0], 1, 8), ([5], 1, 0), ([-1], 1, 0)]
    {
        expect!(rank, ARGUMENT, ncclCommShrink(comm, list.as_mut_ptr(), number, &mut new, none, flags));
    }
    let id = rank.new_id();
    for (size, number) in [(0, -1), (1, -1), (2, 0), (2, -2)] {
        expect!(rank, ARGUMENT, ncclCommGrow(comm, size, ptr::null(), number, &mut new, none));
    }
    expect!(rank, ARGUMENT, ncclCommGrow(ptr::null_mut(), 2, ptr::null(), 1, &mut new, none));
    for (size, number) in [(0, 0), (2, -1), (2, 2)] {
        expect!(rank, ARGUMENT, ncclCommGrow(ptr::null_mut(), size, &id, number, &mut new, none));
    }
    rank.assert_works(comm);
    rank.destroy(comm);
}

fn queries_and_ends(rank: &Rank) {
    let (comm, none) = (rank.join("communicator"), ptr::null_mut());
    expect!(rank, ARGUMENT, ncclCommCount(comm, none));
    expect!(rank, ARGUMENT, ncclCommCuDevice(comm, none));
    expect!(rank, ARGUMENT, ncclCommUserRank(comm, none));
    expect!(rank, ARGUMENT, ncclCommGetAsyncError(comm, ptr::null_mut()));
    expect!(rank, ARGUMENT, ncclCommGetUniqueId(comm, ptr::null_mut()));
    for (stat, code) in [(0, OK), (3, OK), (4, ARGUMENT), (u32::MAX, ARGUMENT)] {
        expect!(rank, code, ncclCommMemStats(comm, ncclCommMemStat_t(stat), &mut 0));
    }
    expect!(rank, ARGUMENT, ncclCommMemStats(comm, ncclCommMemStat_t(3), ptr::null_mut()));
    expect!(rank, USAGE, ncclCommResume(comm));
    expect!(rank, ARGUMENT, ncclCommRevoke(comm, 1));
    check!(rank, ncclCommFinalize(comm));
    expect!(rank, ARGUMENT, ncclCommFinalize(comm));
    expect!(rank, ARGUMENT, ncclCommRevoke(comm, 0));
    expect!(rank, OK, ncclCommCount(comm, &mut 0));
    if rank.implementation.is_cpu_backend() {
        expect!(rank, USAGE, ncclAllReduce(none.cast(), none.cast(), 0, I32, SUM, comm, rank.stream()));
        rank.assert_last_error("the communicator has been finalized");
    }
    expect!(rank, OK, ncclCommDestroy(comm));
}

fn registrations_and_windows(rank: &Rank) {
    let comm = rank.join("communicator");
    let (memory, none) = (rank.upload_to_nccl(&vec![0_u8; 1 << 20]), ptr::null_mut());
    let window = |place, size, flags, expected| {
        let mut window = ptr::null_mut();
        let code = call!(rank, ncclCommWindowRegister(comm, place, size, &mut window, flags));
        check_code(rank, format!("window of {size} at {place:?}, flags {flags:#x}"), code, expected);
        if !window.is_null() {
            check!(rank, ncclCommWindowDeregister(comm, window));
        }
    };
    [0, 1, 4, 6, 0x100].into_iter().for_each(|flags| window(memory.at(0), memory.bytes, flags, OK));
    [5, 8, 0xf, -1].into_iter().for_each(|flags| window(memory.at(0), memory.bytes, flags, ARGUMENT));
    window(memory.at(0), memory.bytes, 0x15, ARGUMENT);
    rank.assert_last_error("cannot be combined with NCCL_WIN_GIN_ONLY");
    window(none, 4096, 0, ARGUMENT);
    window(memory.at(0), 0, 0, ARGUMENT);
    window(memory.at(0), 100, 1, OK);
    window(memory.at(4096), 4096, 1, OK);
    for offset in [1, 256] {
        window(memory.at(offset), 4096, 0, ARGUMENT);
        rank.assert_last_error("has to be a multiple of 4096");
    }
    expect!(rank, ARGUMENT, ncclCommWindowRegister(comm, memory.at(0), 4096, ptr::null_mut(), 0));
    expect!(rank, OK, ncclCommWindowDeregister(comm, ptr::null_mut()));
    expect!(rank, ARGUMENT, ncclWinGetUserPtr(comm, ptr::null_mut(), &mut ptr::null_mut()));
    expect!(rank, OK, ncclCommDeregister(comm, none));
    expect!(rank, USAGE, ncclCommDeregister(comm, memory.at(0)));
    if rank.implementation.is_cpu_backend() {
        let (mut handle, wrong) = (ptr::null_mut(), memory.at(0).cast());
        window(memory.at(0), usize::MAX, 1, ARGUMENT);
        expect!(rank, ARGUMENT, ncclCommRegister(comm, none, 10, &mut handle));
        expect!(rank, ARGUMENT, ncclCommRegister(comm, memory.at(0), 10, ptr::null_mut()));
        expect!(rank, ARGUMENT, ncclCommRegister(comm, memory.at(0), usize::MAX, &mut handle));
        rank.assert_last_error("invalid buffer size 18446744073709551615 at");
        expect!(rank, ARGUMENT, ncclCommWindowDeregister(comm, wrong));
        expect!(rank, ARGUMENT, ncclWinGetUserPtr(comm, wrong, &mut ptr::null_mut()));
    }
    rank.destroy(comm);
}

fn one_sided(rank: &Rank) {
    let (comm, stream) = (rank.join("communicator"), rank.stream());
    let memory = rank.upload_to_nccl(&[0_i32; 2048]);
    let (source, mut outside, mut window) = (memory.at(4096), [0_i32; 4], ptr::null_mut());
    check!(rank, ncclCommWindowRegister(comm, memory.at(0), memory.bytes, &mut window, 1));
    if window.is_null() {
        rank.skip("ncclCommWindowRegister succeeded and made no window");
    }
    let put = |from, count, peer, offset, (index, context, flags)| {
        let code = call!(
            rank,
            ncclPutSignal(from, count, I32, peer, window, offset, index, context, flags, comm, stream)
        );
        check_code(
            rank,
            format!("put {count} to {peer} at {offset}, {index} {context} {flags}"),
            code,
            ARGUMENT,
        );
    };
    for peer in [-1, 1] {
        put(source, 4, peer, 0, (0, 0, 0));
        expect!(rank, ARGUMENT, ncclSignal(peer, 0, 0, 0, comm, stream));
    }
    for (index, context, flags) in [(-1, 0, 0), (1, 0, 0), (0, -1, 0), (0, 1, 0), (0, 0, 1)] {
        expect!(rank, ARGUMENT, ncclSignal(0, index, context, flags, comm, stream));
        put(source, 4, 0, 0, (index, context, flags));
    }
    rank.assert_last_error("invalid flags 0x1: they have to be 0");
    for count in [4, 0] {
        put(ptr::null_mut(), count, 0, 0, (0, 0, 0));
        put(outside.as_mut_ptr().cast(), count, 0, 0, (0, 0, 0));
    }
    put(source, 4, 0, memory.bytes, (0, 0, 0));
    let (none, unknown) = (ptr::null_mut(), ncclDataType_t(12));
    expect!(rank, ARGUMENT, ncclPutSignal(source, 4, I32, 0, none, 0, 0, 0, 0, comm, stream));
    expect!(rank, ARGUMENT, ncclPutSignal(source, 4, unknown, 0, window, 0, 0, 0, 0, comm, stream));
    expect!(rank, ARGUMENT, ncclWaitSignal(1, ptr::null_mut(), comm, stream));
    expect!(rank, ARGUMENT, ncclWaitSignal(0, ptr::null_mut(), comm, stream));
    for (count, index, context) in [(0, 0, 0), (-1, 0, 0), (1, -1, 0), (1, 1, 0), (1, 0, -1), (1, 0, 1)] {
        let mut one = ncclWaitSignalDesc_t { opCnt: count, peer: 0, sigIdx: index, ctx: context };
        check_code(
            rank,
            format!("{one:?}"),
            call!(rank, ncclWaitSignal(1, &mut one, comm, stream)),
            ARGUMENT,
        );
    }
    if rank.implementation.is_cpu_backend() {
        let foreign = ptr::dangling_mut();
        expect!(rank, ARGUMENT, ncclPutSignal(source, 4, I32, 0, foreign, 0, 0, 0, 0, comm, stream));
        rank.assert_last_error("is not a window of this communicator");
        // The window has 2048 elements of 4 bytes.
        for (count, offset) in [(2049, 0), (1, 8189), (0, 8193), (1, usize::MAX), (2, usize::MAX - 7)] {
            put(memory.at(0), count, 0, offset, (0, 0, 0));
            let bytes = count * 4;
            rank.assert_last_error(&format!("{bytes} bytes at offset {offset} are not inside the window"));
        }
        put(source, 1, 0, 8189, (0, 0, 0));
        rank.assert_last_error("rank 0's part has 8192 bytes");
        put(source, usize::MAX, 0, 0, (0, 0, 0));
        put(memory.at(0).wrapping_byte_sub(4), 2, 0, 0, (0, 0, 0));
        put(memory.at(0), 8, 0, 16, (0, 0, 0));
        rank.assert_last_error("overlaps with the destination");
        for offset in [0, 32] {
            let from = memory.at(0);
            expect!(rank, OK, ncclPutSignal(from, 8, I32, 0, window, offset, 0, 0, 0, comm, stream));
        }
        expect!(rank, ARGUMENT, ncclWaitSignal(-1, ptr::null_mut(), comm, stream));
        let mut beyond = ncclWaitSignalDesc_t { opCnt: 1, peer: 5, sigIdx: 0, ctx: 0 };
        expect!(rank, ARGUMENT, ncclWaitSignal(1, &mut beyond, comm, stream));
    }
    rank.destroy(comm);
}

/// NCCL dereferences handles.
fn foreign_handles(rank: &Rank) {
    if !rank.implementation.is_cpu_backend() {
        rank.skip("NCCL reads what the handle points to");
    }
    let destroyed = rank.join("communicator");
    rank.destroy(destroyed);
    let (mut object, none) = ([0_u64; 64], ptr::null_mut());
    for wrong in [destroyed, object.as_mut_ptr().cast(), 8 as ncclComm_t, usize::MAX as ncclComm_t] {
        let text = "is not a communicator, or was destroyed";
        expect!(rank, ARGUMENT, ncclCommCount(wrong, &mut 0));
        rank.assert_last_error(text);
        expect!(rank, ARGUMENT, ncclCommDestroy(wrong));
        rank.assert_last_error(text);
        expect!(rank, ARGUMENT, ncclCommAbort(wrong));
        rank.assert_last_error(text);
        expect!(rank, ARGUMENT, ncclAllReduce(none, none, 0, I32, SUM, wrong, rank.stream()));
        rank.assert_last_error(text);
    }
    expect!(rank, ARGUMENT, ncclCommCount(ptr::null_mut(), &mut 0));
    rank.assert_last_error("the communicator is NULL");
}
