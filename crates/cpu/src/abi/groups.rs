//! Groups.
#![allow(unsafe_code, non_snake_case)]

use libnccl::sys::ncclResult_t;

use super::answer;
use crate::group;

pub(crate) unsafe extern "C" fn ncclGroupStart() -> ncclResult_t {
    answer(|| {
        group::start();
        Ok(())
    })
}

pub(crate) unsafe extern "C" fn ncclGroupEnd() -> ncclResult_t {
    answer(group::end)
}
