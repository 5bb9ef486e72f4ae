//! Communicators made from another: what split, shrink and grow have in common.
#![allow(unsafe_code)]

use std::ptr;
use std::sync::Arc;

use libnccl::sys::{ncclComm_t, ncclConfig_t};

use super::config::read_config;
use crate::comm::communicator::Communicator;
use crate::comm::group;
use crate::comm::init::{Init, InitKind};
use crate::comm::out_param::OutParam;
use crate::diag::error::Result;

/// Makes a communicator from another, with the parent's config unless the caller passes one. As in NCCL, this succeeds while a
/// nonblocking parent still makes the child: NCCL drops the `ncclInProgress` of the group that it opens for the call.
///
/// # Safety
///
/// `config` is as for [`read_config`], and `newcomm` can be written until the work has ended.
pub(super) unsafe fn create_child(
    parent: Arc<Communicator>,
    newcomm: *mut ncclComm_t,
    config: *const ncclConfig_t,
    kind: InitKind,
) -> Result {
    // SAFETY: the caller's contract.
    let config = unsafe { read_config(config) }?.unwrap_or_else(|| parent.config().clone());
    // SAFETY: the caller's contract.
    let out = unsafe { OutParam::new(newcomm) };
    out.write(ptr::null_mut());
    group::init(Init::of_child(
        Communicator::new(parent.device(), parent.known_driver(), config),
        parent,
        kind,
        out,
    ))?;
    Ok(())
}
