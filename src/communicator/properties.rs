#![allow(unsafe_code)]

use super::Communicator;
use crate::sys::device::ncclCommProperties_t;
use crate::{Result, Version};

/// What NCCL says of a communicator; see [`Communicator::properties`]. Since NCCL 2.29.2.
///
/// ```no_run
/// # fn main() -> libnccl::Result<()> {
/// # let nccl = libnccl::Nccl::load()?;
/// # let comm = nccl.init_rank(8, 0, &nccl.unique_id()?)?;
/// let properties = comm.properties()?;
/// if properties.host_rma == Some(true) {
///     println!("GPU {} can put and signal", properties.cuda_device);
/// }
/// # Ok(())
/// # }
/// ```
#[doc(alias = "ncclCommProperties_t")]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Properties {
    /// This rank.
    pub rank: usize,
    /// How many ranks there are.
    pub size: usize,
    /// The number that CUDA gives this rank's device.
    pub cuda_device: i32,
    /// The number that NVML, and `nvidia-smi`, give it.
    pub nvml_device: i32,
    /// Whether kernels can communicate through NCCL's device API.
    pub device_api: bool,
    /// Whether kernels can address several GPUs at once.
    pub multimem: bool,
    /// Whether the host can start one-sided operations. Since NCCL 2.29.7, else `None`.
    pub host_rma: Option<bool>,
}

impl Communicator {
    /// What NCCL says of this communicator. Since NCCL 2.29.2.
    ///
    /// ```no_run
    /// # fn main() -> libnccl::Result<()> {
    /// # let nccl = libnccl::Nccl::load()?;
    /// # let comm = nccl.init_rank(1, 0, &nccl.unique_id()?)?;
    /// println!("rank {} is on device {}", comm.rank(), comm.properties()?.nvml_device);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`Error::Unsupported`](crate::Error::Unsupported), [`Error::Nccl`](crate::Error::Nccl).
    #[doc(alias = "ncclCommQueryProperties")]
    pub fn properties(&self) -> Result<Properties> {
        let library = self.library();
        // This function is of the device API's header, and so not in the table of nccl.h.
        let functions = &library.device_functions;
        let query = library.function("ncclCommQueryProperties", functions.ncclCommQueryProperties)?;
        let mut raw = ncclCommProperties_t::initializer(library.version.code());
        self.ask("properties", || {
            // SAFETY: a live communicator, and a struct that is initialized as this library wants it.
            library.check("ncclCommQueryProperties", unsafe { query(self.raw(), &raw mut raw) })
        })?;
        let positive = |value| usize::try_from(value).unwrap_or_default();
        Ok(Properties {
            rank: positive(raw.rank),
            size: positive(raw.nRanks),
            cuda_device: raw.cudaDev,
            nvml_device: raw.nvmlDev,
            device_api: raw.deviceApiSupport,
            multimem: raw.multimemSupport,
            // Before, what follows had another layout.
            host_rma: (library.version >= Version::new(2, 29, 7)).then_some(raw.hostRmaSupport),
        })
    }
}
