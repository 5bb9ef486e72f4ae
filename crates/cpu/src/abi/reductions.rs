//! Reductions that a caller makes.
#![allow(unsafe_code, non_snake_case)]

use std::ffi::c_void;

use libnccl::sys::{ncclComm_t, ncclDataType_t, ncclRedOp_t, ncclResult_t, ncclScalarResidence_t};

use super::{answer, check, put};
use crate::buffer::Source;
use crate::communicator::Scalar;
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
        // SAFETY: the C declaration's contract: one element, which in device memory, host memory here, stays until
        // the last operation that takes it has run.
        let place = unsafe { Source::new(scalar.cast(), data_type.size()) };
        let scalar = if residence == ncclScalarResidence_t::ncclScalarDevice {
            Scalar::Later(place)
        } else {
            let mut bytes = [0; 8];
            place.read(0, &mut bytes[..data_type.size()]);
            Scalar::Now(bytes)
        };
        // SAFETY: the C declaration's contract.
        unsafe { put(op, communicator.create_scalar(data_type, scalar)) }
    })
}

pub(crate) unsafe extern "C" fn ncclRedOpDestroy(op: ncclRedOp_t, comm: ncclComm_t) -> ncclResult_t {
    answer(|| handle::get(comm)?.destroy_scalar(op))
}
