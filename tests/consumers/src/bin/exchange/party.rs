//! A party, in either form.

use std::error::Error;
use std::ops::Range;
use std::sync::Arc;

use cudarc::driver::{CudaSlice, CudaStream};

pub(crate) type Result<T = ()> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

/// The communicator of a party.
pub(crate) trait Party: Send + Sync + Sized {
    /// Creates an id, in hexadecimal digits.
    fn id() -> Result<String>;
    fn join(stream: &Arc<CudaStream>, rank: usize, size: usize, id: &str) -> Result<Self>;
    /// Sends a part of each share to the next party, and receives the same part of the previous one's.
    fn exchange(
        &self,
        shares: &[CudaSlice<u32>],
        received: &mut [CudaSlice<u32>],
        part: Range<usize>,
    ) -> Result;
}
