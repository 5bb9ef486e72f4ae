//! The server with communicators of libnccl.

#![allow(unsafe_code)] // Views of bytes.

use std::collections::HashMap;
use std::ffi::c_void;
use std::sync::{Arc, LazyLock, Mutex};

use cudarc::driver::{CudaContext, CudaSlice, CudaStream, DevicePtr, DevicePtrMut};
use libnccl::{AnySlice, AnySliceMut, Communicator, Config, DataType, Nccl, ReduceOp, UniqueId};

use crate::server::{self, Result};

/// The ids of communicators, by their devices.
static IDS: LazyLock<Mutex<HashMap<Vec<usize>, UniqueId>>> = LazyLock::new(Mutex::default);

struct Tensor {
    element: DataType,
    bytes: CudaSlice<u8>,
}

impl Tensor {
    /// Returns the elements, to be used on the stream of the server.
    fn elements(&self, stream: &CudaStream) -> Result<AnySlice<'_>> {
        let (address, _) = self.bytes.device_ptr(stream);
        // SAFETY: memory of so many bytes, which is freed on the same stream.
        Ok(unsafe { AnySlice::from_raw_bytes(self.element, address as *const c_void, self.bytes.len()) }?)
    }

    /// Returns the elements, to be used on the stream of the server.
    fn elements_mut(&mut self, stream: &CudaStream) -> Result<AnySliceMut<'_>> {
        let (length, (address, _)) = (self.bytes.len(), self.bytes.device_ptr_mut(stream));
        // SAFETY: as above.
        Ok(unsafe { AnySliceMut::from_raw_bytes(self.element, address as *mut c_void, length) }?)
    }
}

pub(crate) struct Server {
    nccl: Nccl,
    device: usize,
    context: Arc<CudaContext>,
    stream: Arc<CudaStream>,
    comms: HashMap<Vec<usize>, Communicator>,
    tensors: HashMap<u32, Tensor>,
}

impl server::Server for Server {
    fn start(device: usize) -> Result<Self> {
        let context = CudaContext::new(device)?;
        let (nccl, stream) = (Nccl::load()?, context.new_stream()?);
        Ok(Self { nccl, device, context, stream, comms: HashMap::new(), tensors: HashMap::new() })
    }

    fn connect(&mut self, devices: &[usize]) -> Result {
        let id = match IDS.lock().expect("no server panics").entry(devices.to_vec()) {
            std::collections::hash_map::Entry::Occupied(id) => *id.get(),
            std::collections::hash_map::Entry::Vacant(slot) => *slot.insert(self.nccl.unique_id()?),
        };
        let (size, rank) = (devices.len(), rank_of(self.device, devices)?);
        let comm = self.nccl.init_rank_on(&self.context, size, rank, &id, &Config::new())?;
        self.comms.insert(devices.to_vec(), comm);
        Ok(())
    }

    fn write(&mut self, tensor: u32, element: &str, bytes: &[u8]) -> Result {
        let (element, bytes) = (element.parse()?, self.stream.clone_htod(bytes)?);
        self.tensors.insert(tensor, Tensor { element, bytes });
        Ok(())
    }

    fn read(&mut self, tensor: u32) -> Result<Vec<u8>> {
        let Tensor { bytes, .. } = self.tensors.get(&tensor).ok_or("no such tensor")?;
        Ok(self.stream.clone_dtoh(bytes)?)
    }

    fn all_reduce(&mut self, tensor: u32, devices: &[usize]) -> Result {
        let comm = self.comms.get(devices).ok_or("not connected")?;
        let elements = self.tensors.get_mut(&tensor).ok_or("no such tensor")?.elements_mut(&self.stream)?;
        Ok(comm.all_reduce_in_place(elements, ReduceOp::Sum, &self.stream)?)
    }

    fn send(&mut self, tensor: u32, devices: &[usize], to: usize) -> Result {
        let comm = self.comms.get(devices).ok_or("not connected")?;
        let elements = self.tensors.get(&tensor).ok_or("no such tensor")?.elements(&self.stream)?;
        Ok(comm.send(elements, rank_of(to, devices)?, &self.stream)?)
    }

    fn recv(&mut self, tensor: u32, devices: &[usize], from: usize) -> Result {
        let comm = self.comms.get(devices).ok_or("not connected")?;
        let elements = self.tensors.get_mut(&tensor).ok_or("no such tensor")?.elements_mut(&self.stream)?;
        Ok(comm.recv(elements, rank_of(from, devices)?, &self.stream)?)
    }
}

fn rank_of(device: usize, devices: &[usize]) -> Result<usize> {
    Ok(devices.iter().position(|other| *other == device).ok_or("not one of the devices")?)
}
