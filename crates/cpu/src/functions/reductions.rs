//! Custom reductions.
#![allow(unsafe_code, non_snake_case)]

use std::ffi::c_void;

use libnccl::sys::{ncclComm_t, ncclDataType_t, ncclRedOp_t, ncclResult_t, ncclScalarResidence_t};

use super::guard::{check_mapped, check_not_null, guard, write_out};
use crate::comm::handle;
use crate::comm::registry::Scalar;
use crate::diag::error::Error;
use crate::reduce::data_type::DataType;
use crate::shm::buffer::ReadBuf;

pub(super) unsafe extern "C" fn ncclRedOpCreatePreMulSum(
    op: *mut ncclRedOp_t,
    scalar: *mut c_void,
    datatype: ncclDataType_t,
    residence: ncclScalarResidence_t,
    comm: ncclComm_t,
) -> ncclResult_t {
    guard(|| {
        let communicator = handle::get(comm)?;
        check_not_null(op, "the reduction")?;
        check_not_null(scalar, "the scalar")?;
        let data_type = DataType::new(datatype)?;
        if residence.0 > ncclScalarResidence_t::ncclScalarHostImmediate.0 {
            return Err(Error::argument(format!("invalid ncclScalarResidence_t {}", residence.0)));
        }
        let is_on_device = residence == ncclScalarResidence_t::ncclScalarDevice;
        match communicator.driver().filter(|_| is_on_device) {
            Some(driver) => {
                driver.resolve("the scalar", scalar.addr(), data_type.size())?;
            }
            None => check_mapped(scalar, data_type.size(), "scalar")?,
        }
        // SAFETY: the C declaration's contract: one element. In device memory (host memory here), it stays valid until the last operation
        // that uses it has run.
        let place = unsafe { ReadBuf::of_caller(scalar.cast(), data_type.size()) };
        let scalar = if is_on_device {
            Scalar::Deferred(place)
        } else {
            let mut bytes = [0; 8];
            place.read(0, &mut bytes[..data_type.size()]);
            Scalar::Immediate(bytes)
        };
        // SAFETY: the C declaration's contract.
        unsafe { write_out(op, communicator.custom_reductions.create(data_type, scalar)?) }
    })
}

pub(super) unsafe extern "C" fn ncclRedOpDestroy(op: ncclRedOp_t, comm: ncclComm_t) -> ncclResult_t {
    guard(|| handle::get(comm)?.custom_reductions.destroy(op))
}
