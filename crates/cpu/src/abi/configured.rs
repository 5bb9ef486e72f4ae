//! Collectives with options for one call.
//!
//! The options tune what a GPU does, so they are checked and then have no effect. Nothing is recorded in
//! `launchCompletionEvent`: there is no GPU that would.
#![allow(unsafe_code, non_snake_case)]

use std::ffi::{c_int, c_void};
use std::mem::offset_of;

use libnccl::sys::{
    NCCL_API_MAGIC, NCCL_CONFIG_UNDEF_INT, cudaStream_t, ncclCollConfig_t, ncclComm_t, ncclDataType_t,
    ncclRedOp_t, ncclResult_t,
};

use super::{answer_in_group, collectives};
use crate::failure::{Failure, Result};

/// Makes the plain call if `config` is in order.
///
/// # Safety
///
/// `config` is NULL or points to as many bytes as its first field, `size`, says, and at least to that and
/// `magic`.
unsafe fn configured(
    function: &str,
    config: *const ncclCollConfig_t,
    call: impl FnOnce() -> ncclResult_t,
) -> ncclResult_t {
    // SAFETY: the same contract.
    match answer_in_group(function, || unsafe { check(config) }) {
        ncclResult_t::ncclSuccess => call(),
        code => code,
    }
}

/// # Safety
///
/// That of [`configured`].
unsafe fn check(config: *const ncclCollConfig_t) -> Result {
    if config.is_null() {
        return Ok(());
    }
    // SAFETY: the caller's contract. The struct may be an older and shorter one, so it is not made a reference.
    let (size, magic) = unsafe { ((*config).size, (*config).magic) };
    // What the first release with this struct had.
    const LEAST: usize = offset_of!(ncclCollConfig_t, launchCompletionEvent);
    if magic != NCCL_API_MAGIC {
        return Err(Failure::argument(format!(
            "the magic of the collective's config is {magic:#x} and has to be {NCCL_API_MAGIC:#x}: start from \
             NCCL_COLLCONFIG_INITIALIZER"
        )));
    }
    if size < LEAST {
        return Err(Failure::argument(format!(
            "the collective's config has {size} bytes and has to have {LEAST} or more: start from \
             NCCL_COLLCONFIG_INITIALIZER"
        )));
    }
    // SAFETY: `size` covers them all.
    let [least, most, nvls, cluster, force, policy] = unsafe {
        [
            (*config).minCTAs,
            (*config).maxCTAs,
            (*config).nvlsCTAs,
            (*config).cgaClusterSize,
            (*config).forceAlgSelection,
            (*config).CTAPolicy,
        ]
    };
    let limit = |name: &str, value: c_int, least: c_int, most: c_int| {
        if value == NCCL_CONFIG_UNDEF_INT || (least..=most).contains(&value) {
            return Ok(());
        }
        let upper = if most == c_int::MAX { String::new() } else { format!(" and at most {most}") };
        Err(Failure::argument(format!(
            "invalid {name} {value} in the collective's config: it has to be at least {least}{upper}"
        )))
    };
    limit("minCTAs", least, 1, c_int::MAX)?;
    limit("maxCTAs", most, least.max(1), c_int::MAX)?;
    limit("nvlsCTAs", nvls, 1, c_int::MAX)?;
    limit("cgaClusterSize", cluster, 0, 8)?;
    limit("CTAPolicy", policy, 0, 3)?;
    if ![0, 1].contains(&force) {
        return Err(Failure::argument(format!(
            "invalid forceAlgSelection {force} in the collective's config: it has to be 0 or 1"
        )));
    }
    Ok(())
}

macro_rules! define_configured {
    ($(fn $name:ident = $plain:ident($($argument:ident: $type:ty),* $(,)?);)*) => {$(
        pub(crate) unsafe extern "C" fn $name(
            $($argument: $type,)*
            stream: cudaStream_t,
            config: *const ncclCollConfig_t,
        ) -> ncclResult_t {
            // SAFETY: the same contracts.
            unsafe {
                configured(stringify!($name), config, || collectives::$plain($($argument,)* stream))
            }
        }
    )*};
}

define_configured! {
    fn ncclAllReduceConfig = ncclAllReduce(
        send: *const c_void,
        receive: *mut c_void,
        count: usize,
        datatype: ncclDataType_t,
        op: ncclRedOp_t,
        comm: ncclComm_t,
    );
    fn ncclBroadcastConfig = ncclBroadcast(
        send: *const c_void,
        receive: *mut c_void,
        count: usize,
        datatype: ncclDataType_t,
        root: c_int,
        comm: ncclComm_t,
    );
    fn ncclReduceConfig = ncclReduce(
        send: *const c_void,
        receive: *mut c_void,
        count: usize,
        datatype: ncclDataType_t,
        op: ncclRedOp_t,
        root: c_int,
        comm: ncclComm_t,
    );
    fn ncclAllGatherConfig = ncclAllGather(
        send: *const c_void,
        receive: *mut c_void,
        count: usize,
        datatype: ncclDataType_t,
        comm: ncclComm_t,
    );
    fn ncclReduceScatterConfig = ncclReduceScatter(
        send: *const c_void,
        receive: *mut c_void,
        count: usize,
        datatype: ncclDataType_t,
        op: ncclRedOp_t,
        comm: ncclComm_t,
    );
    fn ncclAlltoAllConfig = ncclAlltoAll(
        send: *const c_void,
        receive: *mut c_void,
        count: usize,
        datatype: ncclDataType_t,
        comm: ncclComm_t,
    );
    fn ncclGatherConfig = ncclGather(
        send: *const c_void,
        receive: *mut c_void,
        count: usize,
        datatype: ncclDataType_t,
        root: c_int,
        comm: ncclComm_t,
    );
    fn ncclScatterConfig = ncclScatter(
        send: *const c_void,
        receive: *mut c_void,
        count: usize,
        datatype: ncclDataType_t,
        root: c_int,
        comm: ncclComm_t,
    );
}
