//! The C function of a collective with one count, and its form with options, in a table of functions.

use std::ffi::{c_int, c_void};
use std::fmt;

use crate::sys::{
    Functions, cudaStream_t, ncclCollConfig_t, ncclComm_t, ncclDataType_t, ncclRedOp_t, ncclResult_t,
};

/// A C function, by what it has between the type of the elements and the communicator.
#[derive(Debug, Clone, Copy)]
pub(super) enum CFunction {
    Plain(Form<Plain, PlainWithConfig>),
    Op(Form<Op, OpWithConfig>),
    Root(Form<Root, RootWithConfig>),
    OpAndRoot(Form<OpAndRoot, OpAndRootWithConfig>),
}

/// The places of a function, and of its form with options, in a table.
#[derive(Clone, Copy)]
pub(super) struct Form<P, C> {
    pub(super) plain: fn(&Functions) -> Option<P>,
    pub(super) with_config: fn(&Functions) -> Option<C>,
}

macro_rules! types {
    ($($plain:ident or $with_config:ident($($argument:ty),*);)*) => {
        $(
            pub(super) type $plain = unsafe extern "C" fn(
                *const c_void, *mut c_void, usize, ncclDataType_t, $($argument,)* ncclComm_t, cudaStream_t,
            ) -> ncclResult_t;
            pub(super) type $with_config = unsafe extern "C" fn(
                *const c_void, *mut c_void, usize, ncclDataType_t, $($argument,)* ncclComm_t, cudaStream_t,
                *const ncclCollConfig_t,
            ) -> ncclResult_t;
        )*
    };
}

types! {
    Plain or PlainWithConfig();
    Op or OpWithConfig(ncclRedOp_t);
    Root or RootWithConfig(c_int);
    OpAndRoot or OpAndRootWithConfig(ncclRedOp_t, c_int);
}

/// Returns a C function by its name and that of its form with options.
macro_rules! c_function {
    ($arguments:ident: $plain:ident or $with_config:ident) => {
        $crate::operation::c_function::CFunction::$arguments($crate::operation::c_function::Form {
            plain: |functions| functions.$plain,
            with_config: |functions| functions.$with_config,
        })
    };
}
pub(super) use c_function;

impl<P, C> fmt::Debug for Form<P, C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Form").finish_non_exhaustive()
    }
}
