//! The arguments of C calls, made uniform and readable.

use std::ffi::{CStr, c_char, c_void};

use libnccl::sys::{
    CUstream_st, ncclCollConfig_t, ncclComm, ncclComm_t, ncclCommMemStat_t, ncclConfig_t, ncclDataType_t,
    ncclEncryptionConfig_t, ncclParamHandle_t, ncclRedOp_t, ncclResult_t, ncclScalarResidence_t,
    ncclSimInfo_t, ncclUniqueId, ncclWaitSignalDesc_t, ncclWindow_t,
};
use libnccl::{DataType, ReduceOp};

#[derive(Clone, Copy)]
pub(crate) enum Argument {
    Number(i64),
    Comm(ncclComm_t),
    Op(ncclRedOp_t),
    Type(ncclDataType_t),
    Id(ncclUniqueId),
    IdPointer(*const ncclUniqueId),
    Config(*mut ncclConfig_t),
    CollConfig(*const ncclCollConfig_t),
    Encryption(*const ncclEncryptionConfig_t),
    Text(*const c_char),
    /// Numbers, whose count is another argument.
    List(*const i32),
    /// A buffer, a stream, or a handle of another kind.
    Address(usize),
    /// Where the function writes to.
    Out(*mut c_void),
}

macro_rules! arguments {
    ($($type:ty: $value:ident => $argument:expr;)*) => {$(
        impl From<$type> for Argument {
            fn from($value: $type) -> Self {
                $argument
            }
        }
    )*};
}

macro_rules! outs {
    ($($type:ty),* $(,)?) => { arguments! { $(*mut $type: pointer => Self::Out(pointer.cast());)* } };
}

arguments! {
    i32: value => Self::Number(value.into());
    u32: value => Self::Number(value.into());
    usize: value => Self::Number(value as i64);
    ncclResult_t: value => Self::Number(value.0.into());
    ncclCommMemStat_t: value => Self::Number(value.0.into());
    ncclScalarResidence_t: value => Self::Number(value.0.into());
    ncclComm_t: value => Self::Comm(value);
    ncclRedOp_t: value => Self::Op(value);
    ncclDataType_t: value => Self::Type(value);
    ncclUniqueId: value => Self::Id(value);
    *const ncclUniqueId: value => Self::IdPointer(value);
    *mut ncclConfig_t: value => Self::Config(value);
    *const ncclCollConfig_t: value => Self::CollConfig(value);
    *const ncclEncryptionConfig_t: value => Self::Encryption(value);
    *const c_char: value => Self::Text(value);
    *const i32: value => Self::List(value);
    *const c_void: value => Self::Address(value.addr());
    *mut c_void: value => Self::Address(value.addr());
    *mut CUstream_st: value => Self::Address(value.addr());
    ncclWindow_t: value => Self::Address(value.addr());
    ncclParamHandle_t: value => Self::Address(value.addr());
}
outs! {
    i8, i16, i32, i64, u8, u16, u32, u64, ncclComm_t, ncclUniqueId, ncclResult_t, ncclWindow_t, ncclRedOp_t,
    ncclSimInfo_t, ncclParamHandle_t, ncclWaitSignalDesc_t, *mut c_void, *const c_char, *mut *const c_char,
}

/// A function's call as the log has it; `comm` names communicators.
pub(crate) fn text(function: &str, arguments: &[Argument], comm: impl Fn(*mut ncclComm) -> String) -> String {
    let shown = arguments.iter().enumerate().map(|(index, argument)| match (function, index, arguments) {
        ("ncclCommShrink", 1, &[_, Argument::Out(list), Argument::Number(count), ..]) => {
            numbers(list.cast(), count)
        }
        ("ncclCommInitAll", 2, &[_, Argument::Number(count), Argument::List(list)]) => numbers(list, count),
        ("ncclCommInitRankScalable", 4, &[.., Argument::Number(count), Argument::Out(ids), _]) => {
            // SAFETY: the caller's array of `count` ids.
            let ids = unsafe { std::slice::from_raw_parts(ids.cast::<ncclUniqueId>(), count as usize) };
            format!("{:?}", ids.iter().map(|id| id.internal[0]).collect::<Vec<_>>())
        }
        (_, _, _) => one(argument, &comm),
    });
    format!("{function}({})", shown.collect::<Vec<_>>().join(", "))
}

fn one(argument: &Argument, comm: impl Fn(*mut ncclComm) -> String) -> String {
    let pointed = |is_null: bool, text: &dyn Fn() -> String| if is_null { "null".into() } else { text() };
    match *argument {
        Argument::Number(number) => number.to_string(),
        Argument::Comm(raw) => comm(raw),
        Argument::Op(op) => {
            let known = ReduceOp::ALL.into_iter().find(|known| known.as_raw() == op);
            known.map_or_else(|| format!("op{}", op.0), |known| format!("{known:?}"))
        }
        Argument::Type(raw) => {
            let known = DataType::ALL.into_iter().find(|known| known.as_raw() == raw);
            known.map_or_else(|| format!("type{}", raw.0), |known| format!("{known:?}"))
        }
        Argument::Id(id) => format!("id{}", id.internal[0]),
        // SAFETY: null or the caller's id.
        Argument::IdPointer(id) => pointed(id.is_null(), &|| format!("id{}", unsafe { &*id }.internal[0])),
        // SAFETY: null or the caller's struct.
        Argument::Config(config) => pointed(config.is_null(), &|| config_text(unsafe { &*config })),
        // SAFETY: as above.
        Argument::CollConfig(config) => pointed(config.is_null(), &|| coll_config_text(unsafe { &*config })),
        Argument::Encryption(config) => {
            // SAFETY: the caller's struct.
            let config = unsafe { &*config };
            format!("{{mode={} psk={}}}", config.mode, string(config.psk))
        }
        Argument::Text(text) => string(text),
        Argument::List(list) => pointed(list.is_null(), &|| "[..]".into()),
        Argument::Address(address) => pointed(address == 0, &|| format!("{address:#x}")),
        Argument::Out(out) => pointed(out.is_null(), &|| "&".into()),
    }
}

fn numbers(list: *const i32, count: i64) -> String {
    // SAFETY: the caller's array of `count` numbers.
    format!("{:?}", unsafe { std::slice::from_raw_parts(list, count as usize) })
}

pub(crate) fn string(text: *const c_char) -> String {
    if text.is_null() {
        return "null".into();
    }
    // SAFETY: the caller's C string.
    format!("{:?}", unsafe { CStr::from_ptr(text) })
}

/// Defines a function that lists the fields that differ from the initializer's.
macro_rules! set_fields {
    ($name:ident, $struct:ty, [$($field:ident),*], [$($string:ident),*]) => {
        fn $name(config: &$struct) -> String {
            let plain = <$struct>::initializer();
            let mut set: Vec<String> = Vec::new();
            $(if config.$field != plain.$field {
                set.push(format!("{}={:?}", stringify!($field), config.$field));
            })*
            $(if !config.$string.is_null() {
                set.push(format!("{}={}", stringify!($string), string(config.$string)));
            })*
            format!("{{{}}}", set.join(" "))
        }
    };
}

set_fields!(
    config_text,
    ncclConfig_t,
    [
        size,
        magic,
        version,
        blocking,
        cgaClusterSize,
        minCTAs,
        maxCTAs,
        splitShare,
        trafficClass,
        collnetEnable,
        CTAPolicy,
        shrinkShare,
        nvlsCTAs,
        nChannelsPerNetPeer,
        nvlinkCentricSched,
        graphUsageMode,
        numRmaCtx,
        maxP2pPeers,
        graphStreamOrdering,
        launchOrderImplicit,
        numRmaSig,
        rmaEagerInit,
        hostCftMode,
        nvlsHostMode
    ],
    [netName, commName]
);
set_fields!(
    coll_config_text,
    ncclCollConfig_t,
    [
        size,
        magic,
        version,
        minCTAs,
        maxCTAs,
        nvlsCTAs,
        cgaClusterSize,
        forceAlgSelection,
        CTAPolicy,
        userProfilerTag,
        launchCompletionEvent
    ],
    [algSelection]
);
