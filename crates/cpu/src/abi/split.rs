//! `ncclCommSplit`.
#![allow(unsafe_code, non_snake_case)]

use std::ffi::c_int;
use std::ptr;

use libnccl::sys::{NCCL_SPLIT_NOCOLOR, ncclComm_t, ncclConfig_t, ncclResult_t};

use super::child::create_child;
use super::ffi_guard::{check_not_null, guard_of_all, undocumented};
use crate::comm::handle;
use crate::comm::init::InitKind;

pub(super) unsafe extern "C" fn ncclCommSplit(
    comm: ncclComm_t,
    color: c_int,
    key: c_int,
    newcomm: *mut ncclComm_t,
    config: *mut ncclConfig_t,
) -> ncclResult_t {
    guard_of_all("ncclCommSplit", comm, || {
        let parent = handle::get(comm)?;
        check_not_null(newcomm, "the new communicator")?;
        let context = parent.check_parent()?;
        if color < NCCL_SPLIT_NOCOLOR {
            undocumented(
                context,
                &format!("ncclCommSplit: color {color} is neither NCCL_SPLIT_NOCOLOR nor at least 0"),
            );
        }
        // Without a child there is nothing to configure: NCCL does not read it then.
        let config = if color == NCCL_SPLIT_NOCOLOR { ptr::null_mut() } else { config };
        // SAFETY: the C declaration's contract.
        unsafe { create_child(parent, newcomm, config, InitKind::Split { color, key }) }
    })
}
