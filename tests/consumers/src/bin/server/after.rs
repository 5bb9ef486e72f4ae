//! The server with communicators of libnccl.

use std::collections::HashMap;
use std::sync::{Arc, LazyLock, Mutex};

use cudarc::driver::{CudaContext, CudaSlice, CudaStream};
use libnccl::{AnyBuffer, Communicator, Config, DataType, Nccl, ReduceOp, UniqueId};

use crate::server::{self, Result};

/// The ids of communicators, by their devices.
static IDS: LazyLock<Mutex<HashMap<Vec<usize>, UniqueId>>> = LazyLock::new(Mutex::default);

struct Tensor {
    element: DataType,
    bytes: CudaSlice<u8>,
}

impl Tensor {
    fn elements(&self) -> AnyBuffer<&CudaSlice<u8>> {
        AnyBuffer::new(self.element, &self.bytes)
    }

    fn elements_mut(&mut self) -> AnyBuffer<&mut CudaSlice<u8>> {
        AnyBuffer::new(self.element, &mut self.bytes)
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
        let elements = self.tensors.get_mut(&tensor).ok_or("no such tensor")?.elements_mut();
        Ok(comm.all_reduce_in_place(elements, ReduceOp::Sum, &self.stream)?)
    }

    fn send(&mut self, tensor: u32, devices: &[usize], to: usize) -> Result {
        let comm = self.comms.get(devices).ok_or("not connected")?;
        let elements = self.tensors.get(&tensor).ok_or("no such tensor")?.elements();
        Ok(comm.send(elements, rank_of(to, devices)?, &self.stream)?)
    }

    fn recv(&mut self, tensor: u32, devices: &[usize], from: usize) -> Result {
        let comm = self.comms.get(devices).ok_or("not connected")?;
        let elements = self.tensors.get_mut(&tensor).ok_or("no such tensor")?.elements_mut();
        Ok(comm.recv(elements, rank_of(from, devices)?, &self.stream)?)
    }
}

fn rank_of(device: usize, devices: &[usize]) -> Result<usize> {
    Ok(devices.iter().position(|other| *other == device).ok_or("not one of the devices")?)
}
