//! The arguments of C calls, by what a library does with them.

use std::ffi::{c_char, c_void};

use libnccl::sys::{
    CUstream_st, ncclCollConfig_t, ncclComm_t, ncclCommMemStat_t, ncclConfig_t, ncclDataType_t,
    ncclEncryptionConfig_t, ncclParamHandle_t, ncclRedOp_t, ncclResult_t, ncclScalarResidence_t,
    ncclSimInfo_t, ncclUniqueId, ncclWaitSignalDesc_t, ncclWindow_t,
};

/// An argument.
#[derive(Clone, Copy)]
pub(crate) enum Place {
    /// Read, or not looked at.
    In,
    Number(i64),
    Comm(ncclComm_t),
    Address(*mut c_void),
    /// Where a plain value of so many bytes is written.
    Value(*mut u8, usize),
    /// Where handles of communicators are written.
    NewComm(*mut ncclComm_t),
    /// Where another handle, or an address, is written.
    Handle(*mut *mut c_void),
    Text(*mut *const c_char),
    /// Where an array of strings is written.
    Texts(*mut *mut *const c_char),
}

/// Of an argument of a certain type.
pub(crate) trait IntoPlace {
    fn place(self) -> Place;
}

macro_rules! places {
    ($($type:ty: $value:pat => $place:expr;)*) => {$(
        impl IntoPlace for $type {
            fn place(self) -> Place {
                let $value = self;
                $place
            }
        }
    )*};
}

macro_rules! inputs {
    ($($type:ty),* $(,)?) => { places! { $($type: _ => Place::In;)* } };
}

macro_rules! values {
    ($($type:ty),* $(,)?) => { places! { $(*mut $type: out => Place::Value(out.cast(), size_of::<$type>());)* } };
}

inputs! {
    ncclResult_t, ncclCommMemStat_t, ncclScalarResidence_t, ncclRedOp_t, ncclDataType_t, ncclUniqueId,
    *const ncclUniqueId, *mut ncclConfig_t, *const ncclCollConfig_t, *const ncclEncryptionConfig_t,
    *const c_char, *const i32, *const c_void, *mut CUstream_st, ncclWindow_t, ncclParamHandle_t,
    *mut ncclWaitSignalDesc_t,
}
values! {
    i8, i16, i32, i64, u8, u16, u32, u64, ncclUniqueId, ncclResult_t, ncclRedOp_t, ncclSimInfo_t,
}
places! {
    i32: number => Place::Number(number.into());
    u32: number => Place::Number(number.into());
    usize: number => Place::Number(number as i64);
    ncclComm_t: comm => Place::Comm(comm);
    *mut c_void: address => Place::Address(address);
    *mut ncclComm_t: out => Place::NewComm(out);
    *mut ncclWindow_t: out => Place::Handle(out.cast());
    *mut ncclParamHandle_t: out => Place::Handle(out.cast());
    *mut *mut c_void: out => Place::Handle(out);
    *mut *const c_char: out => Place::Text(out);
    *mut *mut *const c_char: out => Place::Texts(out);
}

/// Pointers that are not const in the header, and are read all the same.
pub(crate) fn is_read(function: &str, argument: &str) -> bool {
    [("ncclCommShrink", "excludeRanksList"), ("ncclCommInitRankScalable", "commIds")]
        .contains(&(function, argument))
}
