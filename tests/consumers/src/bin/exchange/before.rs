//! The party with a communicator of its own, made on the raw layer of cudarc.

#![allow(unsafe_code)] // Functions of NCCL, and `Send`.

use std::ffi::{c_char, c_void};
use std::ops::Range;
use std::sync::Arc;

use cudarc::driver::{CudaSlice, CudaStream, CudaView, CudaViewMut, DevicePtr, DevicePtrMut};
use cudarc::nccl::safe::NcclType;
use cudarc::nccl::{group_end, group_start, result, sys};

use crate::party::{self, Result};

pub(crate) struct Party {
    comm: sys::ncclComm_t,
    stream: Arc<CudaStream>,
    rank: usize,
    size: usize,
}

// SAFETY: the threads of a party take turns, which nothing checks.
unsafe impl Send for Party {}
// SAFETY: as above.
unsafe impl Sync for Party {}

impl party::Party for Party {
    fn id() -> Result<String> {
        let id = result::get_uniqueid().map_err(describe)?;
        Ok(id.internal.iter().map(|char| format!("{:02x}", *char as u8)).collect())
    }

    fn join(stream: &Arc<CudaStream>, rank: usize, size: usize, id: &str) -> Result<Self> {
        let mut internal = [0; 128];
        for (index, char) in internal.iter_mut().enumerate() {
            let digits = id.get(2 * index..2 * index + 2).ok_or("the id is too short")?;
            *char = u8::from_str_radix(digits, 16)? as c_char;
        }
        stream.context().bind_to_thread()?;
        let mut comm = std::ptr::null_mut();
        // SAFETY: an out-parameter, and the same arguments on all ranks.
        unsafe {
            result::comm_init_rank(&raw mut comm, size as i32, sys::ncclUniqueId { internal }, rank as i32)
                .map_err(describe)?;
        }
        Ok(Self { comm, stream: stream.clone(), rank, size })
    }

    fn exchange(
        &self,
        shares: &[CudaSlice<u32>],
        received: &mut [CudaSlice<u32>],
        part: Range<usize>,
    ) -> Result {
        let (next, previous) = ((self.rank + 1) % self.size, (self.rank + self.size - 1) % self.size);
        group_start().map_err(describe)?;
        for (share, received) in shares.iter().zip(received) {
            self.send_view(&share.slice(part.clone()), next)?;
            self.recv_view(&mut received.slice_mut(part.clone()), previous)?;
        }
        group_end().map_err(describe)?;
        Ok(())
    }
}

impl Party {
    fn send_view<T: NcclType>(&self, view: &CudaView<'_, T>, peer: usize) -> Result {
        let (address, _read) = view.device_ptr(&self.stream);
        // SAFETY: memory of so many elements, which has to live until the group has ended.
        unsafe {
            result::send(
                address as *const c_void,
                view.len(),
                T::as_nccl_type(),
                peer as i32,
                self.comm,
                self.stream.cu_stream().cast(),
            )
        }
        .map_err(describe)?;
        Ok(())
    }

    fn recv_view<T: NcclType>(&self, view: &mut CudaViewMut<'_, T>, peer: usize) -> Result {
        let count = view.len();
        let (address, _written) = view.device_ptr_mut(&self.stream);
        // SAFETY: as in `send_view`.
        unsafe {
            result::recv(
                address as *mut c_void,
                count,
                T::as_nccl_type(),
                peer as i32,
                self.comm,
                self.stream.cu_stream().cast(),
            )
        }
        .map_err(describe)?;
        Ok(())
    }
}

/// Returns a text for an error, which has none.
fn describe(result::NcclError(code): result::NcclError) -> String {
    format!("NCCL returned {code:?}")
}
