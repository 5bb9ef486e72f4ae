//! The server of a device, in either form.

use std::error::Error;

pub(crate) type Result<T = ()> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

/// The server of one device. Tensors have the numbers that the clients choose.
pub(crate) trait Server: Send + Sized {
    fn start(device: usize) -> Result<Self>;
    /// Creates the communicator of some devices; the servers of all of them call it.
    fn connect(&mut self, devices: &[usize]) -> Result;
    /// Stores elements of the type that is called so.
    fn write(&mut self, tensor: u32, element: &str, bytes: &[u8]) -> Result;
    fn read(&mut self, tensor: u32) -> Result<Vec<u8>>;
    /// Sums a tensor over the devices, in place.
    fn all_reduce(&mut self, tensor: u32, devices: &[usize]) -> Result;
    fn send(&mut self, tensor: u32, devices: &[usize], to: usize) -> Result;
    fn recv(&mut self, tensor: u32, devices: &[usize], from: usize) -> Result;
}
