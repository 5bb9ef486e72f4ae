//! Reductions that a caller makes.
#![allow(unsafe_code, non_snake_case)]

use std::ffi::c_void;

use libnccl::sys::{ncclComm_t, ncclDataType_t, ncclRedOp_t, ncclResult_t, ncclScalarResidence_t};

use super::{answer, check, put};
use crate::buffer::Source;
use crate::data_type::DataType;
use crate::failure::Failure;
use crate::handle;

pub(crate) unsafe extern "C" fn ncclRedOpCreatePreMulSum(
    op: *mut ncclRedOp_t,
    scalar: *mut c_void,
    datatype: ncclDataType_t,
    residence: ncclScalarResidence_t,
    comm: ncclComm_t,
) -> ncclResult_t {
    answer(|| {
        let communicator = handle::get(comm)?;
        check(op, "the reduction")?;
        check(scalar, "the scalar")?;
        let data_type = DataType::new(datatype)?;
        if residence.0 > ncclScalarResidence_t::ncclScalarHostImmediate.0 {
            return Err(Failure::argument(format!("invalid residence {} of a scalar", residence.0)));
        }
        let mut bytes = [0; 8];
        // SAFETY: the C declaration's contract: one element. Device memory is host memory here, and reading
        // it now instead of at every use is what NCCL allows: it must not change before the last use.
        unsafe { Source::new(scalar.cast(), data_type.size()) }.read(0, &mut bytes[..data_type.size()]);
        // SAFETY: the C declaration's contract.
        unsafe { put(op, communicator.create_scalar(data_type, bytes)) }
    })
}

pub(crate) unsafe extern "C" fn ncclRedOpDestroy(op: ncclRedOp_t, comm: ncclComm_t) -> ncclResult_t {
    answer(|| handle::get(comm)?.destroy_scalar(op))
}
