//! The arguments of C calls, by what NCCL does with them, and their text in the log.
#![allow(unsafe_code)]

use std::ffi::{CStr, c_char, c_int, c_void};
use std::fmt::Debug;
use std::mem::offset_of;
use std::ptr;

use libnccl::sys::{
    CUstream_st, ncclCollConfig_t, ncclComm_t, ncclCommMemStat_t, ncclConfig_t, ncclDataType_t,
    ncclEncryptionConfig_t, ncclParamHandle_t, ncclRedOp_t, ncclResult_t, ncclScalarResidence_t,
    ncclSimInfo_t, ncclUniqueId, ncclWaitSignalDesc_t, ncclWindow_t,
};
use libnccl::{DataType, ReduceOp};

use super::dispatch::comm_name;
use super::memory::Memory;

#[derive(Clone, Copy)]
pub(crate) enum Argument {
    Number(i64),
    Comm(ncclComm_t),
    Op(ncclRedOp_t),
    Type(ncclDataType_t),
    Id(ncclUniqueId),
    IdPointer(*const ncclUniqueId),
    /// An array of ids, whose length is another argument.
    Ids(*const ncclUniqueId),
    Config(*mut ncclConfig_t),
    CollConfig(*const ncclCollConfig_t),
    Encryption(*const ncclEncryptionConfig_t),
    Text(*const c_char),
    /// An array of numbers, whose length is another argument.
    Numbers(*const i32),
    /// An array of signals to wait for, whose length is another argument.
    Signals(*const ncclWaitSignalDesc_t),
    /// A buffer, a stream, or a handle of another kind.
    Address(*mut c_void),
    /// The place for a plain value of this many bytes.
    ValueOut(*mut u8, usize),
    /// The place for the handles of new communicators.
    CommOut(*mut ncclComm_t),
    /// The place for another handle, or an address.
    HandleOut(*mut *mut c_void),
    TextOut(*mut *const c_char),
    /// The place for an array of strings.
    TextsOut(*mut *mut *const c_char),
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

macro_rules! value_outputs {
    ($($type:ty),* $(,)?) => {
        arguments! { $(*mut $type: out => Self::ValueOut(out.cast(), size_of::<$type>());)* }
    };
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
    *const i32: value => Self::Numbers(value);
    *mut ncclWaitSignalDesc_t: value => Self::Signals(value);
    *const c_void: value => Self::Address(value.cast_mut());
    *mut c_void: value => Self::Address(value);
    *mut CUstream_st: value => Self::Address(value.cast());
    ncclWindow_t: value => Self::Address(value.cast());
    ncclParamHandle_t: value => Self::Address(value.cast());
    *mut ncclComm_t: out => Self::CommOut(out);
    *mut ncclWindow_t: out => Self::HandleOut(out.cast());
    *mut ncclParamHandle_t: out => Self::HandleOut(out.cast());
    *mut *mut c_void: out => Self::HandleOut(out);
    *mut *const c_char: out => Self::TextOut(out);
    *mut *mut *const c_char: out => Self::TextsOut(out);
}
value_outputs! {
    i8, i16, i32, i64, u8, u16, u32, u64, ncclUniqueId, ncclResult_t, ncclRedOp_t, ncclSimInfo_t,
}

impl Argument {
    /// Corrects the pointers that the header does not declare const although NCCL only reads through them.
    pub(super) fn read_if_input(self, function: &str, name: &str) -> Self {
        match (function, name, self) {
            ("ncclCommShrink", "excludeRanksList", Self::ValueOut(list, _)) => Self::Numbers(list.cast()),
            ("ncclCommInitRankScalable", "commIds", Self::ValueOut(ids, _)) => Self::Ids(ids.cast()),
            _ => self,
        }
    }

    /// Returns the communicator of a call, which may be null.
    pub(super) fn comm(arguments: &[Self]) -> Option<ncclComm_t> {
        arguments.iter().find_map(|argument| match argument {
            Self::Comm(raw) => Some(*raw),
            _ => None,
        })
    }

    /// Returns the first number of a call, which is its length if it has one.
    pub(super) fn length(arguments: &[Self]) -> usize {
        let number = arguments.iter().find_map(|argument| match argument {
            Self::Number(number) => Some(*number),
            _ => None,
        });
        number.and_then(|number| usize::try_from(number).ok()).unwrap_or_default()
    }
}

/// Returns a call as the log has it.
pub(super) fn call_text(function: &str, arguments: &[Argument], memory: &Memory) -> String {
    let texts = arguments.iter().enumerate().map(|(index, argument)| {
        // The length of an array is the argument before it, or after it.
        let place = if function == "ncclCommShrink" { index + 1 } else { index.wrapping_sub(1) };
        let length = arguments.get(place).map_or(0, |length| Argument::length(&[*length]));
        text(*argument, length, memory)
    });
    format!("{function}({})", texts.collect::<Vec<_>>().join(", "))
}

fn text(argument: Argument, length: usize, memory: &Memory) -> String {
    match argument {
        Argument::Number(number) => number.to_string(),
        Argument::Comm(raw) => comm_name(raw),
        Argument::Op(op) => {
            let known = ReduceOp::ALL.iter().copied().find(|known| known.as_raw() == op);
            known.map_or_else(
                || format!("custom{}", op.0 as i64 - i64::from(ncclRedOp_t::ncclNumOps.0)),
                |known| format!("{known:?}"),
            )
        }
        Argument::Type(raw) => {
            let known = DataType::ALL.iter().copied().find(|known| known.as_raw() == raw);
            known.map_or_else(|| format!("type{}", raw.0), |known| format!("{known:?}"))
        }
        Argument::Id(id) => format!("id{}", id.internal[0]),
        // SAFETY: null or the caller's id.
        Argument::IdPointer(id) => unless_null(unsafe { id.as_ref() }, |id| format!("id{}", id.internal[0])),
        Argument::Ids(ids) => {
            // SAFETY: the caller's array.
            let ids = unsafe { std::slice::from_raw_parts(ids, length) };
            format!("{:?}", ids.iter().map(|id| id.internal[0]).collect::<Vec<_>>())
        }
        // SAFETY: null or the caller's struct.
        Argument::Config(config) => unless_null(unsafe { config.as_ref() }, config_text),
        // SAFETY: null or the caller's struct.
        Argument::CollConfig(config) => unless_null(unsafe { config.as_ref() }, coll_config_text),
        // SAFETY: null or the caller's struct.
        Argument::Encryption(config) => unless_null(unsafe { config.as_ref() }, |config| {
            format!("{{mode={} psk={}}}", config.mode, string(config.psk))
        }),
        Argument::Text(text) => string(text),
        // SAFETY: the caller's array.
        Argument::Numbers(list) => format!("{:?}", unsafe { std::slice::from_raw_parts(list, length) }),
        Argument::Signals(signals) => {
            // SAFETY: the caller's array.
            let signals = unsafe { std::slice::from_raw_parts(signals, length) };
            let fields = signals.iter().map(|signal| (signal.opCnt, signal.peer, signal.sigIdx, signal.ctx));
            format!("{:?}", fields.collect::<Vec<_>>())
        }
        Argument::Address(address) if address.is_null() => "null".into(),
        Argument::Address(address) => {
            memory.name(address.addr()).unwrap_or_else(|| format!("{:#x}", address.addr()))
        }
        Argument::ValueOut(out, _) => output_text(out),
        Argument::CommOut(out) => output_text(out),
        Argument::HandleOut(out) => output_text(out),
        Argument::TextOut(out) => output_text(out),
        Argument::TextsOut(out) => output_text(out),
    }
}

fn unless_null<T>(value: Option<&T>, text: impl FnOnce(&T) -> String) -> String {
    value.map_or_else(|| "null".into(), text)
}

fn output_text<T>(out: *mut T) -> String {
    if out.is_null() { "null".into() } else { "&".into() }
}

pub(super) fn string(text: *const c_char) -> String {
    if text.is_null() {
        return "null".into();
    }
    // SAFETY: the caller's C string.
    format!("{:?}", unsafe { CStr::from_ptr(text) })
}

/// Lists the fields of a struct that differ from its initializer's, and the text of those that are C strings.
fn set_fields(config: &dyn Debug, plain: &dyn Debug, strings: &[(&str, *const c_char)]) -> String {
    let [config, plain] = [config, plain].map(|config| format!("{config:#?}"));
    let set = config.lines().zip(plain.lines()).filter(|(field, plain)| field != plain).map(|(field, _)| {
        let (name, value) = field.trim().trim_end_matches(',').split_once(": ").unwrap_or_default();
        let text = strings.iter().find(|(string, _)| *string == name).map(|(_, text)| string(*text));
        format!("{name}={}", text.as_deref().unwrap_or(value))
    });
    format!("{{{}}}", set.collect::<Vec<_>>().join(" "))
}

fn config_text(config: &ncclConfig_t) -> String {
    // Later versions have fields in the padding.
    let end = offset_of!(ncclConfig_t, nvlsHostMode) + size_of::<c_int>();
    // SAFETY: the caller's struct, whose padding the facade has written.
    let padding =
        unsafe { std::slice::from_raw_parts(ptr::from_ref(config).cast::<u8>(), size_of_val(config)) };
    let wrong = if padding[end..].iter().any(|byte| *byte != 0) { " with padding" } else { "" };
    let strings = [("netName", config.netName), ("commName", config.commName)];
    set_fields(config, &ncclConfig_t::initializer(), &strings) + wrong
}

fn coll_config_text(config: &ncclCollConfig_t) -> String {
    set_fields(config, &ncclCollConfig_t::initializer(), &[("algSelection", config.algSelection)])
}
