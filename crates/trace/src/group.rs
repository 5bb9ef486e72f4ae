//! The functions that start and end groups.

use libnccl::sys::{ncclResult_t, ncclSimInfo_t};

use crate::library::forward;
use crate::thread::{end_group, outermost, start_group};

pub(crate) unsafe extern "C" fn ncclGroupStart() -> ncclResult_t {
    let (code, is_outermost) = outermost(|| forward!(functions.ncclGroupStart()));
    if is_outermost.is_some() && code == ncclResult_t::ncclSuccess {
        start_group();
    }
    code
}

pub(crate) unsafe extern "C" fn ncclGroupEnd() -> ncclResult_t {
    let (code, is_outermost) = outermost(|| forward!(functions.ncclGroupEnd()));
    is_outermost.into_iter().for_each(|()| end_group(Some(code)));
    code
}

pub(crate) unsafe extern "C" fn ncclGroupSimulateEnd(simInfo: *mut ncclSimInfo_t) -> ncclResult_t {
    let (code, is_outermost) = outermost(|| forward!(functions.ncclGroupSimulateEnd(simInfo)));
    is_outermost.into_iter().for_each(|()| end_group(None));
    code
}
