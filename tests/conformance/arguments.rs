//! Error codes of calls with arguments at and beyond their limits: a sample of the codes that NCCL 2.32.3 returns without a GPU
//! and on an H200. The CPU backend returns the same codes. Calls that crash NCCL, or whose mistake it does not detect, are made
//! with the CPU backend only, with the text of the error.

use std::ffi::{CStr, c_int, c_void};
use std::fmt::Display;
use std::ptr;

use libnccl::sys::{
    NCCL_SPLIT_NOCOLOR, ncclCollConfig_t, ncclComm_t, ncclCommMemStat_t, ncclConfig_t, ncclDataType_t,
    ncclEncryptionConfig_t, ncclRedOp_t, ncclResult_t, ncclScalarResidence_t, ncclSimInfo_t, ncclUniqueId,
    ncclWaitSignalDesc_t,
};

use crate::rank::{ARGUMENT, I32, OK, Rank, SUM, USAGE};
use crate::{Case, cases};

pub(crate) fn cases() -> Vec<Case> {
    cases! {
        1..=1 => calls_without_communicator, groups_without_communicator, parameters_without_communicator,
            options, options_of_old_versions, init, operations, reductions, options_of_collectives, children,
            queries_and_ends, registrations_and_windows, one_sided, foreign_handles;
    }
}

/// The calls of a case whose results were not the expected ones.
struct Table<'a> {
    rank: &'a Rank,
    wrong: Vec<String>,
}

impl<'a> Table<'a> {
    fn new(rank: &'a Rank) -> Self {
        Self { rank, wrong: vec![] }
    }

    fn row(&mut self, call: impl Display, code: ncclResult_t, expected: ncclResult_t) {
        if code != expected {
            self.wrong.push(format!("{call}: {code:?}, not {expected:?}: {}", self.rank.last_error()));
        }
        if !self.rank.implementation.is_cpu_backend() {
            leave_groups(self.rank);
        }
    }

    /// Adds a call with the text of its error, which is the CPU backend's.
    fn text(&mut self, text: &str, code: ncclResult_t, expected: ncclResult_t) {
        if code != expected || !self.rank.last_error().contains(text) {
            self.wrong.push(format!("{text}: {code:?}, not {expected:?}: {}", self.rank.last_error()));
        }
    }
}

impl Drop for Table<'_> {
    fn drop(&mut self) {
        assert!(self.wrong.is_empty(), "{} are wrong:\n{}", self.wrong.len(), self.wrong.join("\n"));
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
    let mut table = Table::new(rank);
    let mut zeros = vec![0_u64; 1 << 17];
    let (mut number, mut state, mut value, mut id) = (0, OK, 0, ncclUniqueId::default());
    let (mut handle, mut window, mut op, mut scalar) = (ptr::null_mut(), ptr::null_mut(), SUM, 2_f32);
    let (mut buffer, stream) = ([0_f32; 4], rank.stream());
    let place: *mut c_void = buffer.as_mut_ptr().cast();
    let (total, none) = (ncclCommMemStat_t::ncclStatGpuMemTotal, ptr::null_mut());
    let (f32, immediate) = (ncclDataType_t::ncclFloat32, ncclScalarResidence_t::ncclScalarHostImmediate);
    // Handles that are not a communicator in any version.
    for comm in [ptr::null_mut(), zeros.as_mut_ptr().cast()] {
        for (name, code) in [
            ("ncclCommCount", call!(rank, ncclCommCount(comm, &mut number))),
            ("ncclCommCuDevice", call!(rank, ncclCommCuDevice(comm, &mut number))),
            ("ncclCommUserRank", call!(rank, ncclCommUserRank(comm, &mut number))),
            ("ncclCommGetAsyncError", call!(rank, ncclCommGetAsyncError(comm, &mut state))),
            ("ncclCommMemStats", call!(rank, ncclCommMemStats(comm, total, &mut value))),
            ("ncclCommRegister", call!(rank, ncclCommRegister(comm, place, 16, &mut handle))),
            ("ncclCommDeregister", call!(rank, ncclCommDeregister(comm, none))),
            ("ncclCommWindowRegister", call!(rank, ncclCommWindowRegister(comm, place, 16, &mut window, 0))),
            ("ncclCommWindowDeregister", call!(rank, ncclCommWindowDeregister(comm, ptr::null_mut()))),
            ("ncclWinGetUserPtr", call!(rank, ncclWinGetUserPtr(comm, ptr::null_mut(), &mut handle))),
            ("ncclCommSuspend", call!(rank, ncclCommSuspend(comm, 1))),
            ("ncclCommResume", call!(rank, ncclCommResume(comm))),
            ("ncclCommGetUniqueId", call!(rank, ncclCommGetUniqueId(comm, &mut id))),
            (
                "ncclRedOpCreatePreMulSum",
                call!(
                    rank,
                    ncclRedOpCreatePreMulSum(&mut op, (&raw mut scalar).cast(), f32, immediate, comm)
                ),
            ),
        ] {
            table.row(format!("{name} {comm:?}"), code, ARGUMENT);
        }
    }
    let (comm, mut one) = (ptr::null_mut(), ncclWaitSignalDesc_t { opCnt: 1, peer: 0, sigIdx: 0, ctx: 0 });
    let calls: [(&str, &dyn Fn() -> ncclResult_t); 12] = [
        ("ncclAllReduce", &|| call!(rank, ncclAllReduce(place, place, 4, f32, SUM, comm, stream))),
        ("ncclReduce", &|| call!(rank, ncclReduce(place, place, 4, f32, SUM, 0, comm, stream))),
        ("ncclBroadcast", &|| call!(rank, ncclBroadcast(place, place, 4, f32, 0, comm, stream))),
        ("ncclBcast", &|| call!(rank, ncclBcast(place, 4, f32, 0, comm, stream))),
        ("ncclReduceScatter", &|| call!(rank, ncclReduceScatter(place, place, 4, f32, SUM, comm, stream))),
        ("ncclAllGather", &|| call!(rank, ncclAllGather(place, place, 4, f32, comm, stream))),
        ("ncclAlltoAll", &|| call!(rank, ncclAlltoAll(place, place, 4, f32, comm, stream))),
        ("ncclGather", &|| call!(rank, ncclGather(place, place, 4, f32, 0, comm, stream))),
        ("ncclScatter", &|| call!(rank, ncclScatter(place, place, 4, f32, 0, comm, stream))),
        ("ncclSend", &|| call!(rank, ncclSend(place, 4, f32, 0, comm, stream))),
        ("ncclRecv", &|| call!(rank, ncclRecv(place, 4, f32, 0, comm, stream))),
        ("ncclSignal", &|| call!(rank, ncclSignal(0, 0, 0, 0, comm, stream))),
    ];
    calls.iter().for_each(|(name, call)| table.row(name, call(), ARGUMENT));
    table.row("ncclWaitSignal", call!(rank, ncclWaitSignal(1, &mut one, comm, stream)), ARGUMENT);
    table.row("ncclRedOpDestroy", call!(rank, ncclRedOpDestroy(ncclRedOp_t(5), comm)), ARGUMENT);
    table.row("ncclCommFinalize", call!(rank, ncclCommFinalize(comm)), OK);
    table.row("ncclCommDestroy", call!(rank, ncclCommDestroy(comm)), OK);
    table.row("ncclCommAbort", call!(rank, ncclCommAbort(comm)), OK);
    table.row("ncclCommRevoke", call!(rank, ncclCommRevoke(comm, 1)), OK);
    table.row("ncclGetVersion", call!(rank, ncclGetVersion(ptr::null_mut())), ARGUMENT);
    table.row("ncclGetUniqueId", call!(rank, ncclGetUniqueId(ptr::null_mut())), ARGUMENT);
    for code in 0..10 {
        let text = call!(rank, ncclGetErrorString(ncclResult_t(code)));
        // SAFETY: a NUL-terminated string, as the header promises.
        assert!(!unsafe { CStr::from_ptr(text) }.is_empty(), "{code}");
    }
}

fn groups_without_communicator(rank: &Rank) {
    let (mut table, info) = (Table::new(rank), ncclSimInfo_t::initializer());
    let none = ptr::null_mut();
    let fail = || call!(rank, ncclAllReduce(none, none, 1, I32, SUM, ptr::null_mut(), rank.stream()));
    let simulate = |mut info: ncclSimInfo_t| call!(rank, ncclGroupSimulateEnd(&mut info));
    let bad = ncclSimInfo_t { magic: 1, ..info };
    table.row("ncclGroupEnd without a start", call!(rank, ncclGroupEnd()), USAGE);
    table.row("ncclGroupSimulateEnd without a start", simulate(info), USAGE);
    let versions = [0, 22_203, 999_999].map(|version| (ncclSimInfo_t { version, ..info }, OK));
    let sizes = [(0, ARGUMENT), (8, ARGUMENT), (11, ARGUMENT), (12, OK), (16, OK), (32, OK)];
    let sizes = sizes.map(|(size, code)| (ncclSimInfo_t { size, ..info }, code));
    for (info, code) in [(info, OK), (bad, ARGUMENT)].into_iter().chain(versions).chain(sizes) {
        check!(rank, ncclGroupStart());
        table.row(format!("ncclGroupSimulateEnd {info:?}"), simulate(info), code);
        table.row("ncclGroupEnd after it", call!(rank, ncclGroupEnd()), USAGE);
    }
    check!(rank, ncclGroupStart());
    table.row("ncclGroupSimulateEnd NULL", call!(rank, ncclGroupSimulateEnd(ptr::null_mut())), OK);
    for end in [&|| call!(rank, ncclGroupEnd()), &|| simulate(info) as ncclResult_t]
        as [&dyn Fn() -> ncclResult_t; 2]
    {
        check!(rank, ncclGroupStart());
        check!(rank, ncclGroupStart());
        assert_eq!(fail(), ARGUMENT);
        assert!([OK, ARGUMENT].contains(&call!(rank, ncclGroupEnd())), "the inner group");
        table.row("the end after a failed call", end(), ARGUMENT);
        table.row("the group has ended", call!(rank, ncclGroupEnd()), USAGE);
    }
}

fn parameters_without_communicator(rank: &Rank) {
    let mut table = Table::new(rank);
    let (mut handle, mut value, mut length, mut keys) = (ptr::null_mut(), ptr::null(), 0, ptr::null_mut());
    let (key, none) = (c"NCCL_DEBUG".as_ptr(), ptr::null_mut());
    table.row("keys", call!(rank, ncclParamGetAllParameterKeys(&mut keys, &mut length)), OK);
    table.row(
        "table=NULL",
        call!(rank, ncclParamGetAllParameterKeys(ptr::null_mut(), &mut length)),
        ARGUMENT,
    );
    table.row("length=NULL", call!(rank, ncclParamGetAllParameterKeys(&mut keys, ptr::null_mut())), ARGUMENT);
    table.row("ncclParamBind", call!(rank, ncclParamBind(&mut handle, key)), OK);
    table.row("ncclParamBind out=NULL", call!(rank, ncclParamBind(ptr::null_mut(), key)), ARGUMENT);
    for (name, unknown) in [("NULL", ptr::null()), ("unknown", c"NCCL_NO".as_ptr()), ("empty", c"".as_ptr())]
    {
        let mut out = ptr::null_mut();
        table.row(format!("ncclParamBind {name}"), call!(rank, ncclParamBind(&mut out, unknown)), ARGUMENT);
        let code = call!(rank, ncclParamGetParameter(unknown, &mut value, &mut length));
        table.row(format!("ncclParamGetParameter {name}"), code, ARGUMENT);
    }
    table.row("value=NULL", call!(rank, ncclParamGetParameter(key, ptr::null_mut(), &mut length)), ARGUMENT);
    table.row(
        "valueLen=NULL",
        call!(rank, ncclParamGetParameter(key, &mut value, ptr::null_mut())),
        ARGUMENT,
    );
    let mut bytes = [0_u8; 64];
    let place: *mut c_void = bytes.as_mut_ptr().cast();
    table.row("ncclParamGet out=NULL", call!(rank, ncclParamGet(handle, none, 64, &mut length)), ARGUMENT);
    table.row(
        "ncclParamGet len=NULL",
        call!(rank, ncclParamGet(handle, place, 64, ptr::null_mut())),
        ARGUMENT,
    );
    table.row(
        "ncclParamGet h=NULL",
        call!(rank, ncclParamGet(ptr::null_mut(), place, 64, &mut length)),
        ARGUMENT,
    );
    for room in [0, -1] {
        table.row(
            "ncclParamGet maxLen",
            call!(rank, ncclParamGet(handle, place, room, &mut length)),
            ARGUMENT,
        );
    }
    table.row("ncclParamGetStr", call!(rank, ncclParamGetStr(handle, ptr::null_mut())), ARGUMENT);
    table.row("ncclParamGetI64", call!(rank, ncclParamGetI64(ptr::null_mut(), &mut 0)), ARGUMENT);

    let unset = ncclEncryptionConfig_t::initializer();
    table.row("ncclSetEncryption NULL", call!(rank, ncclSetEncryption(ptr::null())), OK);
    let set = |config: ncclEncryptionConfig_t| call!(rank, ncclSetEncryption(&config));
    for (config, code) in [
        (unset, OK),
        (ncclEncryptionConfig_t { psk: c"short".as_ptr(), ..unset }, OK),
        (ncclEncryptionConfig_t { version: 0, ..unset }, OK),
        (ncclEncryptionConfig_t { version: 0, mode: 2, ..unset }, ARGUMENT),
        (ncclEncryptionConfig_t { size: 16, mode: 2, ..unset }, OK),
        (ncclEncryptionConfig_t { size: 20, mode: 2, ..unset }, ARGUMENT),
        (ncclEncryptionConfig_t { magic: 0, ..unset }, ARGUMENT),
        (ncclEncryptionConfig_t { mode: -1, ..unset }, ARGUMENT),
        (ncclEncryptionConfig_t { mode: 1, ..unset }, ARGUMENT),
        (ncclEncryptionConfig_t { mode: 1, psk: c"".as_ptr(), ..unset }, ARGUMENT),
        (
            ncclEncryptionConfig_t { mode: 1, psk: c"1234567890123456789012345678901".as_ptr(), ..unset },
            ARGUMENT,
        ),
    ] {
        table.row(format!("ncclSetEncryption {config:?}"), set(config), code);
    }
    if rank.implementation.is_cpu_backend() {
        let psk = c"12345678901234567890123456789012".as_ptr();
        let text = "opens no TCP connections that could be encrypted";
        table.text(text, set(ncclEncryptionConfig_t { mode: 1, psk, ..unset }), USAGE);
        table.text("encryption mode 2:", set(ncclEncryptionConfig_t { mode: 2, ..unset }), ARGUMENT);
        table.text(
            "0x0 and has to be 0xcafebeef",
            set(ncclEncryptionConfig_t { magic: 0, ..unset }),
            ARGUMENT,
        );
    }
}

/// Initializes a communicator of one rank with a config, and destroys it. On a GPU, NCCL only reads the config, in a group that
/// starts nothing.
fn init_with(rank: &Rank, config: *mut ncclConfig_t) -> ncclResult_t {
    let (comm, id) = (Box::leak(Box::new(ptr::null_mut())), rank.new_id());
    let is_cpu = rank.implementation.is_cpu_backend();
    if !is_cpu {
        check!(rank, ncclGroupStart());
    }
    let code = call!(rank, ncclCommInitRankConfig(comm, 1, id, 0, config));
    if !is_cpu {
        leave_groups(rank);
    } else if !comm.is_null() {
        rank.wait(*comm);
        call!(rank, ncclCommDestroy(*comm));
    }
    if code == crate::rank::PROGRESS { OK } else { code }
}

/// A field of a config: its name, its place, and since which version of the config it counts.
type Field = (&'static str, fn(&mut ncclConfig_t) -> &mut c_int, u32);

/// Each with the smallest and the largest value that is allowed.
const FIELDS: [(Field, c_int, c_int); 19] = [
    (("blocking", |c| &mut c.blocking, 21_400), 0, 1),
    (("splitShare", |c| &mut c.splitShare, 0), 0, 1),
    (("cgaClusterSize", |c| &mut c.cgaClusterSize, 21_700), 0, c_int::MAX),
    (("maxCTAs", |c| &mut c.maxCTAs, 21_700), 1, c_int::MAX),
    (("collnetEnable", |c| &mut c.collnetEnable, 22_700), 0, 1),
    (("CTAPolicy", |c| &mut c.CTAPolicy, 22_700), 0, 3),
    (("shrinkShare", |c| &mut c.shrinkShare, 22_700), 0, 1),
    (("nvlsCTAs", |c| &mut c.nvlsCTAs, 22_700), 1, c_int::MAX),
    (("nChannelsPerNetPeer", |c| &mut c.nChannelsPerNetPeer, 22_800), 1, 64),
    (("nvlinkCentricSched", |c| &mut c.nvlinkCentricSched, 22_800), 0, 1),
    (("graphUsageMode", |c| &mut c.graphUsageMode, 22_900), 0, 2),
    (("numRmaCtx", |c| &mut c.numRmaCtx, 22_900), 0, c_int::MAX),
    (("maxP2pPeers", |c| &mut c.maxP2pPeers, 23_000), 1, c_int::MAX),
    (("graphStreamOrdering", |c| &mut c.graphStreamOrdering, 23_005), 0, 1),
    (("launchOrderImplicit", |c| &mut c.launchOrderImplicit, 23_100), 0, 1),
    (("numRmaSig", |c| &mut c.numRmaSig, 23_100), 0, c_int::MAX),
    (("rmaEagerInit", |c| &mut c.rmaEagerInit, 23_100), 0, 1),
    (("hostCftMode", |c| &mut c.hostCftMode, 23_100), 1, 3),
    (("nvlsHostMode", |c| &mut c.nvlsHostMode, 23_100), 0, 3),
];

/// Returns a config that differs from the initializer.
fn config(change: impl FnOnce(&mut ncclConfig_t)) -> ncclConfig_t {
    let mut config = ncclConfig_t::initializer();
    change(&mut config);
    config
}

fn options(rank: &Rank) {
    let mut table = Table::new(rank);
    let mut with = |name: String, mut config: ncclConfig_t, code| {
        table.row(name, init_with(rank, &mut config), code);
    };
    for ((name, field, _), least, most) in FIELDS {
        // The largest of a number without limit would be allocated by NCCL.
        let largest = most.min(64);
        let beyond = [most.wrapping_add(1)].into_iter().filter(|value| *value > most);
        let values = [(least, OK), (largest, OK), (least - 1, ARGUMENT)].into_iter();
        for (value, code) in values.chain(beyond.map(|value| (value, ARGUMENT))) {
            with(format!("{name}={value}"), config(|config| *field(config) = value), code);
        }
    }
    with("nvlsHostMode=INT_MAX".into(), config(|config| config.nvlsHostMode = c_int::MAX), OK);
    with("trafficClass=-5".into(), config(|config| config.trafficClass = -5), OK);
    for (least, most, code) in
        [(4, 4, OK), (5, 4, ARGUMENT), (0, 4, ARGUMENT), (4, 0, ARGUMENT), (1, 1000, OK)]
    {
        let name = format!("minCTAs={least} maxCTAs={most}");
        with(name, config(|config| (config.minCTAs, config.maxCTAs) = (least, most)), code);
    }
    with("magic=0".into(), config(|config| config.magic = 0), ARGUMENT);
    table.row("config=NULL", init_with(rank, ptr::null_mut()), OK);
    if rank.implementation.is_cpu_backend() {
        for (change, text) in [
            (
                config(|c| c.nChannelsPerNetPeer = 65),
                "value 65 of nChannelsPerNetPeer: it has to be in 1..=64",
            ),
            (config(|c| c.splitShare = -1), "value -1 of splitShare: it has to be 0 or 1"),
            (
                config(|c| (c.minCTAs, c.maxCTAs) = (4, 2)),
                "4 of minCTAs: it has to be at most maxCTAs, which is 2",
            ),
            (config(|c| c.nvlsHostMode = 4), "ncclNvlsHostMode_t"),
        ] {
            table.text(text, init_with(rank, &mut { change }), ARGUMENT);
        }
    }
}

/// Fields newer than the version of a config, and those beyond its size, are ignored.
fn options_of_old_versions(rank: &Rank) {
    let mut table = Table::new(rank);
    for ((name, field, since), ..) in FIELDS {
        for (version, code) in [(since.saturating_sub(1), OK), (since, ARGUMENT), (999_999, ARGUMENT)] {
            let mut config = config(|config| (config.version, *field(config)) = (version, -7));
            let code = if since == 0 { ARGUMENT } else { code };
            table.row(format!("version {version} {name}=-7"), init_with(rank, &mut config), code);
        }
    }
    for size in [0, 8] {
        table.row("size", init_with(rank, &mut config(|config| config.size = size)), ARGUMENT);
    }
    for (size, version) in
        [(24, 21_605), (40, 21_701), (48, 22_403), (72, 22_707), (96, 23_004), (112, 23_102)]
    {
        let mut old = config(|config| (config.size, config.version) = (size, version));
        let start: *mut u8 = (&raw mut old).cast();
        // SAFETY: bytes that a program of that version leaves after its config, in bounds of this one.
        unsafe { ptr::write_bytes(start.add(size), 0x5a, size_of::<ncclConfig_t>() - size) };
        table.row(format!("size {size} of {version}"), init_with(rank, &mut old), OK);
    }
    #[repr(C)]
    struct Later {
        config: ncclConfig_t,
        more: [c_int; 8],
    }
    let mut later = Later { config: ncclConfig_t::initializer(), more: [-77; 8] };
    (later.config.size, later.config.version) = (size_of::<Later>(), 99_999);
    table.row("a later version", init_with(rank, &mut later.config), OK);
    assert_eq!(later.more, [-77; 8]);
}

fn init(rank: &Rank) {
    let mut table = Table::new(rank);
    let (id, none) = (rank.new_id(), ptr::null_mut());
    for (ranks, number) in [(0, 0), (-1, 0), (c_int::MIN, 0), (1, -1), (1, 1), (2, 2), (4, c_int::MAX)] {
        let mut comm = ptr::null_mut();
        let code = call!(rank, ncclCommInitRank(&mut comm, ranks, id, number));
        table.row(format!("nranks={ranks} rank={number}"), code, ARGUMENT);
    }
    let mut comm = ptr::dangling_mut();
    table.row("comm=NULL", call!(rank, ncclCommInitRank(ptr::null_mut(), 1, id, 0)), ARGUMENT);
    let mut ids = [id; 4];
    for number in [-1, 0, 3] {
        let code = call!(rank, ncclCommInitRankScalable(&mut comm, 2, 0, number, ids.as_mut_ptr(), none));
        table.row(format!("nId={number}"), code, ARGUMENT);
    }
    table.row("comms=NULL", call!(rank, ncclCommInitAll(ptr::null_mut(), 1, ptr::null())), ARGUMENT);
    let mut comms = [ptr::null_mut(); 2];
    table.row("ndev=-1", call!(rank, ncclCommInitAll(comms.as_mut_ptr(), -1, ptr::null())), ARGUMENT);
    table.row("device=-1", call!(rank, ncclCommInitAll(comms.as_mut_ptr(), 1, [-1].as_ptr())), ARGUMENT);
    if rank.implementation.is_cpu_backend() {
        let code = call!(rank, ncclCommInitRank(&mut comm, 2, id, 2));
        table.text("invalid rank 2: it has to be in 0..2", code, ARGUMENT);
        assert!(comm.is_null(), "a failed initialization leaves nothing to destroy");
        let code = call!(rank, ncclCommInitRank(&mut comm, 1, ncclUniqueId::default(), 0));
        table.text("this unique id is not from", code, ARGUMENT);
        let code = call!(rank, ncclCommInitRankScalable(&mut comm, 1, 0, 1, ptr::null_mut(), none));
        table.row("commIds=NULL", code, ARGUMENT);
        ids[1] = ncclUniqueId::default();
        let code = call!(rank, ncclCommInitRankScalable(&mut comm, 2, 0, 2, ids.as_mut_ptr(), none));
        table.text("unique id", code, ARGUMENT);
        let code = call!(rank, ncclCommInitAll(comms.as_mut_ptr(), 0, ptr::null()));
        table.text("invalid number of ranks 0", code, ARGUMENT);
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
    let (mut table, comm) = (Table::new(rank), rank.join("communicator"));
    let memory = rank.upload_to_nccl(&[0_i32; 4096]);
    let (from, to, stream) = (memory.at(0), memory.at(8192), rank.stream());
    for count in [0, 4] {
        let buffers = (from, to, count);
        for data in [12, 13, 1000, u32::MAX] {
            for (name, code) in each_operation(rank, comm, buffers, ncclDataType_t(data), SUM, 0) {
                table.row(format!("{name} count={count} type={data}"), code, ARGUMENT);
            }
        }
        for op in [5, 6, 100, u32::MAX] {
            for (name, code) in &each_operation(rank, comm, buffers, I32, ncclRedOp_t(op), 9)[7..9] {
                table.row(format!("{name} count={count} op={op}"), *code, ARGUMENT);
            }
            let code = call!(rank, ncclReduce(from, to, count, I32, ncclRedOp_t(op), 0, comm, stream));
            table.row(format!("ncclReduce count={count} op={op}"), code, ARGUMENT);
        }
        for root in [-1, 1, c_int::MIN, c_int::MAX] {
            for (name, code) in &each_operation(rank, comm, buffers, I32, SUM, root)[..7] {
                table.row(format!("{name} count={count} root={root}"), *code, ARGUMENT);
            }
        }
    }
    if rank.implementation.is_cpu_backend() {
        let sum =
            |from, to, count, data| call!(rank, ncclAllReduce(from, to, count, data, SUM, comm, stream));
        table.text("invalid ncclDataType_t 77", sum(from, to, 4, ncclDataType_t(77)), ARGUMENT);
        table.text("the pointer to the send buffer is NULL", sum(ptr::null_mut(), to, 4, I32), ARGUMENT);
        table.row("recvbuff=NULL", sum(from, ptr::null_mut(), 4, I32), ARGUMENT);
        let code = call!(rank, ncclAllReduce(from, to, 4, I32, ncclRedOp_t(77), comm, stream));
        table.text("reduction 77 is unknown", code, ARGUMENT);
        let code = call!(rank, ncclBroadcast(from, to, 4, I32, 2, comm, stream));
        table.text("invalid root 2: it has to be in 0..1", code, ARGUMENT);
        for count in [usize::MAX, 1 << 62] {
            let text =
                format!("count {count} of ncclInt32 for each of 1 ranks is more than any buffer holds");
            table.text(&text, sum(from, to, count, I32), ARGUMENT);
            let text = format!("count {count} of ncclInt32 is more than any buffer holds");
            table.text(&text, call!(rank, ncclSend(from, count, I32, 0, comm, stream)), ARGUMENT);
        }
        let code = call!(rank, ncclSend(from, 4, I32, 0, comm, stream));
        table.row("ncclSend to itself without a group", code, USAGE);
    }
    rank.assert_works(comm);
    rank.destroy(comm);
}

fn reductions(rank: &Rank) {
    let mut table = Table::new(rank);
    let [comm, other] = ["communicator", "other"].map(|name| rank.join(name));
    let (memory, mut scalar) = (rank.upload_to_nccl(&[0_f64; 64]), 2_f32);
    let [f32, f64] = [ncclDataType_t::ncclFloat32, ncclDataType_t::ncclFloat64];
    let place: *mut c_void = (&raw mut scalar).cast();
    let make = |op: *mut ncclRedOp_t, scalar, data, residence, comm| {
        let residence = ncclScalarResidence_t(residence);
        call!(rank, ncclRedOpCreatePreMulSum(op, scalar, data, residence, comm))
    };
    let mut ops = [SUM; 3];
    let [own, destroyed, foreign] = &mut ops;
    for (op, comm) in [(own, comm), (destroyed, comm), (foreign, other)] {
        assert_eq!(make(op, place, f32, 1, comm), OK);
    }
    let [own, destroyed, foreign] = ops;
    let destroy = |op| call!(rank, ncclRedOpDestroy(op, comm));
    assert_eq!(destroy(destroyed), OK);
    let sum = |count, data, op| {
        let (from, to) = (memory.at(0), memory.at(256));
        call!(rank, ncclAllReduce(from, to, count, data, op, comm, rank.stream()))
    };
    for count in [0, 4] {
        table.row("own", sum(count, f32, own), OK);
        table.row("destroyed", sum(count, f32, destroyed), ARGUMENT);
        table.row("of another communicator", sum(count, f32, foreign), ARGUMENT);
    }
    table.row("own, of another type", sum(4, f64, own), ARGUMENT);
    for op in [0, 1, 2, 3, 4, u32::MAX, i32::MAX as u32] {
        table.row(format!("ncclRedOpDestroy {op}"), destroy(ncclRedOp_t(op)), ARGUMENT);
    }
    table.row("ncclRedOpDestroy destroyed", destroy(destroyed), ARGUMENT);
    table.row("ncclRedOpDestroy of another communicator", destroy(foreign), ARGUMENT);
    table.row("ncclRedOpDestroy", destroy(own), OK);
    if rank.implementation.is_cpu_backend() {
        let mut op = SUM;
        table.row("op=NULL", make(ptr::null_mut(), place, f32, 1, comm), ARGUMENT);
        table.row("scalar=NULL", make(&mut op, ptr::null_mut(), f32, 1, comm), ARGUMENT);
        table.row("residence=2", make(&mut op, place, f32, 2, comm), ARGUMENT);
        table.row("type=12", make(&mut op, place, ncclDataType_t(12), 1, comm), ARGUMENT);
    }
    [comm, other].into_iter().for_each(|comm| rank.destroy(comm));
}

fn options_of_collectives(rank: &Rank) {
    let (mut table, comm) = (Table::new(rank), rank.join("communicator"));
    let (memory, unset) = (rank.upload_to_nccl(&[0_i32; 4096]), ncclCollConfig_t::initializer());
    let with = |count, config: &ncclCollConfig_t| {
        let (from, to) = (memory.at(0), memory.at(8192));
        call!(rank, ncclAllReduceConfig(from, to, count, I32, SUM, comm, rank.stream(), config))
    };
    let policies = [(-1, ARGUMENT), (0, OK), (3, OK), (4, ARGUMENT)];
    let policies = policies.map(|(value, code)| (ncclCollConfig_t { CTAPolicy: value, ..unset }, code));
    let forces = [(-1, ARGUMENT), (0, OK), (1, OK), (2, ARGUMENT), (c_int::MIN + 1, ARGUMENT)];
    let forces = forces.map(|(value, code)| (ncclCollConfig_t { forceAlgSelection: value, ..unset }, code));
    let sizes = [(0, ARGUMENT), (8, ARGUMENT), (12, OK), (64, OK)];
    let sizes = sizes.map(|(size, code)| (ncclCollConfig_t { size, version: 23_102, ..unset }, code));
    let others = [
        (unset, OK),
        (ncclCollConfig_t { magic: 0, ..unset }, ARGUMENT),
        (ncclCollConfig_t { version: 0, ..unset }, OK),
        (ncclCollConfig_t { minCTAs: -1, maxCTAs: 0, ..unset }, OK),
        (ncclCollConfig_t { algSelection: c"ring,tree".as_ptr(), ..unset }, OK),
    ];
    for (config, code) in policies.into_iter().chain(forces).chain(sizes).chain(others) {
        for count in [4, 0] {
            table.row(format!("{count} {config:?}"), with(count, &config), code);
        }
    }
    if rank.implementation.is_cpu_backend() {
        let text = "the magic of the collective's config is 0x0";
        table.text(text, with(4, &ncclCollConfig_t { magic: 0, ..unset }), ARGUMENT);
        table.text("has to have 12 or more", with(4, &ncclCollConfig_t { size: 11, ..unset }), ARGUMENT);
        table.text(
            "at least 0 and at most 3",
            with(4, &ncclCollConfig_t { CTAPolicy: 4, ..unset }),
            ARGUMENT,
        );
        let code = rank.group(|| assert_eq!(with(4, &ncclCollConfig_t { magic: 1, ..unset }), ARGUMENT));
        table.text("ncclAllReduceConfig in this group failed", code, ARGUMENT);
    }
    rank.destroy(comm);
}

fn children(rank: &Rank) {
    let (mut table, comm) = (Table::new(rank), rank.join("communicator"));
    let split = |color, config: &mut ncclConfig_t| {
        let mut child = ptr::null_mut();
        let code = call!(rank, ncclCommSplit(comm, color, 0, &mut child, config));
        if !child.is_null() {
            rank.destroy(child);
        }
        code
    };
    for color in [NCCL_SPLIT_NOCOLOR, 0, c_int::MAX, -2, c_int::MIN] {
        table.row(format!("color={color}"), split(color, &mut ncclConfig_t::initializer()), OK);
    }
    for (name, change) in [
        ("magic=0", config(|config| config.magic = 0)),
        ("splitShare=2", config(|config| config.splitShare = 2)),
        ("size=0", config(|config| config.size = 0)),
    ] {
        table.row(name, split(0, &mut { change }), ARGUMENT);
        table.row(format!("{name}, no color"), split(NCCL_SPLIT_NOCOLOR, &mut { change }), OK);
    }
    let none = ptr::null_mut();
    table.row("newcomm=NULL", call!(rank, ncclCommSplit(comm, 0, 0, ptr::null_mut(), none)), ARGUMENT);
    for (name, list, number, flags) in [
        ("list=NULL", ptr::null_mut(), 1, 0),
        ("list=NULL count=0", ptr::null_mut(), 0, 0),
        ("count=0", [0].as_mut_ptr(), 0, 0),
        ("count=-1", [0].as_mut_ptr(), -1, 0),
        ("itself", [0].as_mut_ptr(), 1, 0),
        ("itself flags=8", [0].as_mut_ptr(), 1, 8),
        ("rank=5", [5].as_mut_ptr(), 1, 0),
        ("rank=-1", [-1].as_mut_ptr(), 1, 0),
    ] {
        let code = call!(rank, ncclCommShrink(comm, list, number, &mut ptr::null_mut(), none, flags));
        table.row(format!("ncclCommShrink {name}"), code, ARGUMENT);
    }
    let new_id = rank.new_id();
    let (no_id, id, no_comm) = (ptr::null(), &raw const new_id, ptr::null_mut());
    for (name, comm, size, id, number) in [
        ("nRanks=0", comm, 0, no_id, -1),
        ("nRanks=1", comm, 1, no_id, -1),
        ("rank=0", comm, 2, no_id, 0),
        ("rank=-2", comm, 2, no_id, -2),
        ("of a new rank uniqueId=NULL", no_comm, 2, no_id, 1),
        ("of a new rank nRanks=0", no_comm, 0, id, 0),
        ("of a new rank rank=-1", no_comm, 2, id, -1),
        ("of a new rank rank=nRanks", no_comm, 2, id, 2),
    ] {
        let code = call!(rank, ncclCommGrow(comm, size, id, number, &mut ptr::null_mut(), none));
        table.row(format!("ncclCommGrow {name}"), code, ARGUMENT);
    }
    rank.assert_works(comm);
    rank.destroy(comm);
}

fn queries_and_ends(rank: &Rank) {
    let (mut table, comm) = (Table::new(rank), rank.join("communicator"));
    let none = ptr::null_mut();
    table.row("ncclCommCount", call!(rank, ncclCommCount(comm, none)), ARGUMENT);
    table.row("ncclCommCuDevice", call!(rank, ncclCommCuDevice(comm, none)), ARGUMENT);
    table.row("ncclCommUserRank", call!(rank, ncclCommUserRank(comm, none)), ARGUMENT);
    table.row("ncclCommGetAsyncError", call!(rank, ncclCommGetAsyncError(comm, ptr::null_mut())), ARGUMENT);
    table.row("ncclCommGetUniqueId", call!(rank, ncclCommGetUniqueId(comm, ptr::null_mut())), ARGUMENT);
    let stats = |stat, value| call!(rank, ncclCommMemStats(comm, ncclCommMemStat_t(stat), value));
    for (stat, code) in [(0, OK), (3, OK), (4, ARGUMENT), (u32::MAX, ARGUMENT)] {
        table.row(format!("ncclCommMemStats {stat}"), stats(stat, &mut 0), code);
    }
    table.row("ncclCommMemStats value=NULL", stats(3, ptr::null_mut()), ARGUMENT);
    table.row("ncclCommResume", call!(rank, ncclCommResume(comm)), USAGE);
    table.row("ncclCommRevoke flags=1", call!(rank, ncclCommRevoke(comm, 1)), ARGUMENT);
    check!(rank, ncclCommFinalize(comm));
    table.row("ncclCommFinalize twice", call!(rank, ncclCommFinalize(comm)), ARGUMENT);
    table.row("ncclCommRevoke after ncclCommFinalize", call!(rank, ncclCommRevoke(comm, 0)), ARGUMENT);
    table.row("ncclCommCount after ncclCommFinalize", call!(rank, ncclCommCount(comm, &mut 0)), OK);
    if rank.implementation.is_cpu_backend() {
        let code = call!(rank, ncclAllReduce(none.cast(), none.cast(), 0, I32, SUM, comm, rank.stream()));
        table.text("the communicator has been finalized", code, USAGE);
    }
    table.row("ncclCommDestroy after ncclCommFinalize", call!(rank, ncclCommDestroy(comm)), OK);
}

fn registrations_and_windows(rank: &Rank) {
    let (mut table, comm) = (Table::new(rank), rank.join("communicator"));
    let (memory, none) = (rank.upload_to_nccl(&vec![0_u8; 1 << 20]), ptr::null_mut());
    let window = |place, size, flags| {
        let mut window = ptr::null_mut();
        let code = call!(rank, ncclCommWindowRegister(comm, place, size, &mut window, flags));
        if !window.is_null() {
            check!(rank, ncclCommWindowDeregister(comm, window));
        }
        code
    };
    let whole = |flags| window(memory.at(0), memory.bytes, flags);
    for flags in [0, 1, 2, 3, 4, 6, 0x10, 0x100] {
        table.row(format!("winFlags={flags:#x}"), whole(flags), OK);
    }
    for flags in [5, 7, 8, 9, 0xf, -1] {
        table.row(format!("winFlags={flags:#x}"), whole(flags), ARGUMENT);
    }
    table.row("winFlags=0x15", whole(0x15), ARGUMENT);
    rank.assert_last_error("cannot be combined with NCCL_WIN_GIN_ONLY");
    table.row("buff=NULL", window(none, 4096, 0), ARGUMENT);
    table.row("size=0", window(memory.at(0), 0, 0), ARGUMENT);
    table.row("size=100", window(memory.at(0), 100, 1), OK);
    table.row("at 4096", window(memory.at(4096), 4096, 1), OK);
    for offset in [1, 64, 256] {
        table.row(format!("at {offset}"), window(memory.at(offset), 4096, 0), ARGUMENT);
        rank.assert_last_error("has to be a multiple of 4096");
    }
    let code = call!(rank, ncclCommWindowRegister(comm, memory.at(0), 4096, ptr::null_mut(), 0));
    table.row("win=NULL", code, ARGUMENT);
    table.row("ncclCommWindowDeregister", call!(rank, ncclCommWindowDeregister(comm, ptr::null_mut())), OK);
    let code = call!(rank, ncclWinGetUserPtr(comm, ptr::null_mut(), &mut ptr::null_mut()));
    table.row("ncclWinGetUserPtr win=NULL", code, ARGUMENT);
    table.row("ncclCommDeregister NULL", call!(rank, ncclCommDeregister(comm, none)), OK);
    table.row("ncclCommDeregister", call!(rank, ncclCommDeregister(comm, memory.at(0))), USAGE);
    if rank.implementation.is_cpu_backend() {
        let mut handle = ptr::null_mut();
        let register = |place, size, handle: *mut _| call!(rank, ncclCommRegister(comm, place, size, handle));
        table.row("size=SIZE_MAX", window(memory.at(0), usize::MAX, 1), ARGUMENT);
        table.row("buff=NULL", register(none, 10, &raw mut handle), ARGUMENT);
        table.row("handle=NULL", register(memory.at(0), 10, ptr::null_mut()), ARGUMENT);
        let text = "invalid buffer size 18446744073709551615 at";
        table.text(text, register(memory.at(0), usize::MAX, &raw mut handle), ARGUMENT);
        let wrong = memory.at(0).cast();
        table.row("no window", call!(rank, ncclCommWindowDeregister(comm, wrong)), ARGUMENT);
        table.row("no window", call!(rank, ncclWinGetUserPtr(comm, wrong, &mut ptr::null_mut())), ARGUMENT);
    }
    rank.destroy(comm);
}

fn one_sided(rank: &Rank) {
    let (mut table, comm) = (Table::new(rank), rank.join("communicator"));
    let memory = rank.upload_to_nccl(&[0_i32; 2048]);
    let (stream, mut outside) = (rank.stream(), [0_i32; 4]);
    let mut window = ptr::null_mut();
    check!(rank, ncclCommWindowRegister(comm, memory.at(0), memory.bytes, &mut window, 1));
    if window.is_null() {
        rank.skip("ncclCommWindowRegister succeeded and made no window");
    }
    let put = |from, count, data, peer, window, offset, (index, context, flags)| {
        let data = ncclDataType_t(data);
        call!(
            rank,
            ncclPutSignal(from, count, data, peer, window, offset, index, context, flags, comm, stream)
        )
    };
    let (source, none) = (memory.at(4096), (0, 0, 0));
    table.row("win=NULL", put(source, 4, 2, 0, ptr::null_mut(), 0, none), ARGUMENT);
    for peer in [-1, 1] {
        table.row(format!("peer={peer}"), put(source, 4, 2, peer, window, 0, none), ARGUMENT);
        let code = call!(rank, ncclSignal(peer, 0, 0, 0, comm, stream));
        table.row(format!("ncclSignal peer={peer}"), code, ARGUMENT);
    }
    for last in [(-1, 0, 0), (1, 0, 0), (0, -1, 0), (0, 1, 0), (0, 0, 1)] {
        table.row(format!("sigIdx, ctx, flags={last:?}"), put(source, 4, 2, 0, window, 0, last), ARGUMENT);
        let code = call!(rank, ncclSignal(0, last.0, last.1, last.2, comm, stream));
        table.row(format!("ncclSignal sigIdx, ctx, flags={last:?}"), code, ARGUMENT);
    }
    for count in [4, 0] {
        table.row("localbuff=NULL", put(ptr::null_mut(), count, 2, 0, window, 0, none), ARGUMENT);
        table.row(
            "localbuff outside",
            put(outside.as_mut_ptr().cast(), count, 2, 0, window, 0, none),
            ARGUMENT,
        );
    }
    table.row("type=12", put(source, 4, 12, 0, window, 0, none), ARGUMENT);
    table.row("offset beyond", put(source, 4, 2, 0, window, memory.bytes, none), ARGUMENT);
    let wait = |number, list| call!(rank, ncclWaitSignal(number, list, comm, stream));
    table.row("descs=NULL", wait(1, ptr::null_mut()), ARGUMENT);
    table.row("nDesc=0", wait(0, ptr::null_mut()), ARGUMENT);
    for (count, index, context) in [(0, 0, 0), (-1, 0, 0), (1, -1, 0), (1, 1, 0), (1, 0, -1), (1, 0, 1)] {
        let mut one = ncclWaitSignalDesc_t { opCnt: count, peer: 0, sigIdx: index, ctx: context };
        table.row(format!("{one:?}"), wait(1, &raw mut one), ARGUMENT);
    }
    if rank.implementation.is_cpu_backend() {
        table.text(
            "invalid flags 0x1: they have to be 0",
            put(source, 4, 2, 0, window, 0, (0, 0, 1)),
            ARGUMENT,
        );
        let text = "is not a window of this communicator";
        table.text(text, put(source, 4, 2, 0, ptr::dangling_mut(), 0, none), ARGUMENT);
        // The window has 2048 elements of 4 bytes.
        for (count, offset) in [(2049, 0), (1, 8189), (0, 8193), (1, usize::MAX), (2, usize::MAX - 7)] {
            let text = format!("{} bytes at offset {offset} are not inside the window", count * 4);
            table.text(&text, put(memory.at(0), count, 2, 0, window, offset, none), ARGUMENT);
        }
        table.text("rank 0's part has 8192 bytes", put(source, 1, 2, 0, window, 8189, none), ARGUMENT);
        table.row("count=SIZE_MAX", put(source, usize::MAX, 2, 0, window, 0, none), ARGUMENT);
        table.row(
            "localbuff before",
            put(memory.at(0).wrapping_byte_sub(4), 2, 2, 0, window, 0, none),
            ARGUMENT,
        );
        table.text("overlaps with the destination", put(memory.at(0), 8, 2, 0, window, 16, none), ARGUMENT);
        table.row("to itself", put(memory.at(0), 8, 2, 0, window, 0, none), OK);
        table.row("adjacent", put(memory.at(0), 8, 2, 0, window, 32, none), OK);
        table.row("nDesc=-1", wait(-1, ptr::null_mut()), ARGUMENT);
        let mut beyond = ncclWaitSignalDesc_t { opCnt: 1, peer: 5, sigIdx: 0, ctx: 0 };
        table.row("peer=5", wait(1, &raw mut beyond), ARGUMENT);
    }
    rank.destroy(comm);
}

/// NCCL dereferences handles.
fn foreign_handles(rank: &Rank) {
    if !rank.implementation.is_cpu_backend() {
        rank.skip("NCCL reads what the handle points to");
    }
    let mut table = Table::new(rank);
    let [comm, destroyed] = ["communicator", "other"].map(|name| rank.join(name));
    rank.destroy(destroyed);
    let mut object = [0_u64; 64];
    for wrong in [destroyed, object.as_mut_ptr().cast(), 8 as ncclComm_t, usize::MAX as ncclComm_t] {
        let text = "is not a communicator, or was destroyed";
        table.text(text, call!(rank, ncclCommCount(wrong, &mut 0)), ARGUMENT);
        table.text(text, call!(rank, ncclCommDestroy(wrong)), ARGUMENT);
        table.text(text, call!(rank, ncclCommAbort(wrong)), ARGUMENT);
        let code =
            call!(rank, ncclAllReduce(ptr::null(), ptr::null_mut(), 0, I32, SUM, wrong, rank.stream()));
        table.text(text, code, ARGUMENT);
    }
    table.text("the communicator is NULL", call!(rank, ncclCommCount(ptr::null_mut(), &mut 0)), ARGUMENT);
    rank.destroy(comm);
}
