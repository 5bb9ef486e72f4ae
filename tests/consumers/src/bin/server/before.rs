//! The server with handles of NCCL, by the raw layer of cudarc.

#![allow(unsafe_code)] // Functions of NCCL, and `Send`.

use std::collections::HashMap;
use std::ffi::c_void;
use std::sync::{Arc, LazyLock, Mutex};

use cudarc::driver::{CudaContext, CudaSlice, CudaStream, DevicePtr, DevicePtrMut};
use cudarc::nccl::{result, sys};

use crate::server::{self, Result};

/// The ids of communicators, by their devices.
static IDS: LazyLock<Mutex<HashMap<Vec<usize>, sys::ncclUniqueId>>> = LazyLock::new(Mutex::default);

struct Tensor {
    element: sys::ncclDataType_t,
    count: usize,
    bytes: CudaSlice<u8>,
}

pub(crate) struct Server {
    device: usize,
    context: Arc<CudaContext>,
    stream: Arc<CudaStream>,
    /// Communicators, which nothing destroys.
    comms: HashMap<Vec<usize>, sys::ncclComm_t>,
    tensors: HashMap<u32, Tensor>,
}

// SAFETY: NCCL takes calls of any thread, one at a time, and all methods need `&mut self`.
unsafe impl Send for Server {}

impl server::Server for Server {
    fn start(device: usize) -> Result<Self> {
        let context = CudaContext::new(device)?;
        let stream = context.new_stream()?;
        Ok(Self { device, context, stream, comms: HashMap::new(), tensors: HashMap::new() })
    }

    fn connect(&mut self, devices: &[usize]) -> Result {
        let id = match IDS.lock().expect("no server panics").entry(devices.to_vec()) {
            std::collections::hash_map::Entry::Occupied(id) => *id.get(),
            std::collections::hash_map::Entry::Vacant(slot) => {
                *slot.insert(result::get_uniqueid().map_err(describe)?)
            }
        };
        self.context.bind_to_thread()?;
        let (size, rank) = (devices.len(), rank_of(self.device, devices)?);
        let mut comm = std::ptr::null_mut();
        // SAFETY: an out-parameter, and the same arguments on all ranks.
        unsafe {
            result::comm_init_rank(&raw mut comm, size as i32, id, rank).map_err(describe)?;
        }
        self.comms.insert(devices.to_vec(), comm);
        Ok(())
    }

    fn write(&mut self, tensor: u32, element: &str, bytes: &[u8]) -> Result {
        let (element, size) = match element {
            "u8" => (sys::ncclDataType_t::ncclUint8, 1),
            "bf16" => (sys::ncclDataType_t::ncclBfloat16, 2),
            "f32" => (sys::ncclDataType_t::ncclFloat32, 4),
            "i64" => (sys::ncclDataType_t::ncclInt64, 8),
            other => return Err(format!("NCCL has no type {other}").into()),
        };
        let count = bytes.len() / size;
        let bytes = self.stream.clone_htod(bytes)?;
        self.tensors.insert(tensor, Tensor { element, count, bytes });
        Ok(())
    }

    fn read(&mut self, tensor: u32) -> Result<Vec<u8>> {
        let Tensor { bytes, .. } = self.tensors.get(&tensor).ok_or("no such tensor")?;
        Ok(self.stream.clone_dtoh(bytes)?)
    }

    fn all_reduce(&mut self, tensor: u32, devices: &[usize]) -> Result {
        let comm = *self.comms.get(devices).ok_or("not connected")?;
        let Tensor { element, count, bytes } = self.tensors.get_mut(&tensor).ok_or("no such tensor")?;
        let (address, _written) = bytes.device_ptr_mut(&self.stream);
        // SAFETY: memory of so many elements, which is freed on the same stream.
        unsafe {
            result::all_reduce(
                address as *const c_void,
                address as *mut c_void,
                *count,
                *element,
                sys::ncclRedOp_t::ncclSum,
                comm,
                self.stream.cu_stream().cast(),
            )
        }
        .map_err(describe)?;
        Ok(())
    }

    fn send(&mut self, tensor: u32, devices: &[usize], to: usize) -> Result {
        let comm = *self.comms.get(devices).ok_or("not connected")?;
        let Tensor { element, count, bytes } = self.tensors.get(&tensor).ok_or("no such tensor")?;
        let peer = rank_of(to, devices)?;
        let (address, _read) = bytes.device_ptr(&self.stream);
        // SAFETY: as in `all_reduce`.
        unsafe {
            result::send(
                address as *const c_void,
                *count,
                *element,
                peer,
                comm,
                self.stream.cu_stream().cast(),
            )
        }
        .map_err(describe)?;
        Ok(())
    }

    fn recv(&mut self, tensor: u32, devices: &[usize], from: usize) -> Result {
        let comm = *self.comms.get(devices).ok_or("not connected")?;
        let Tensor { element, count, bytes } = self.tensors.get_mut(&tensor).ok_or("no such tensor")?;
        let peer = rank_of(from, devices)?;
        let (address, _written) = bytes.device_ptr_mut(&self.stream);
        // SAFETY: as in `all_reduce`.
        unsafe {
            result::recv(address as *mut c_void, *count, *element, peer, comm, self.stream.cu_stream().cast())
        }
        .map_err(describe)?;
        Ok(())
    }
}

fn rank_of(device: usize, devices: &[usize]) -> Result<i32> {
    let rank = devices.iter().position(|other| *other == device).ok_or("not one of the devices")?;
    Ok(rank as i32)
}

/// Returns a text for an error, which has none.
fn describe(result::NcclError(code): result::NcclError) -> String {
    format!("NCCL returned {code:?}")
}
