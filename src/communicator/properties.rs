#![allow(unsafe_code)]

use super::communicator::Communicator;
use crate::error::Result;
use crate::sys::device::ncclCommProperties_t;
use crate::version::Version;

/// The properties of a communicator; see [`Communicator::properties`]. Since NCCL 2.29.2.
///
/// ```no_run
/// # let nccl = libnccl::Nccl::load()?;
/// # let comm = nccl.communicator(8, 0, &nccl.unique_id()?).init()?;
/// let properties = comm.properties()?;
/// if properties.host_rma == Some(true) {
///     println!("GPU {} can put and signal", properties.cuda_device);
/// }
/// # Ok::<(), libnccl::Error>(())
/// ```
#[doc(alias = "ncclCommProperties_t")]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct Properties {
    /// The number of this rank.
    pub rank: usize,
    /// The number of ranks.
    pub size: usize,
    /// The number of this rank's device in CUDA.
    pub cuda_device: i32,
    /// The number of the device in NVML and `nvidia-smi`.
    pub nvml_device: i32,
    /// `true` if kernels can communicate through NCCL's device API.
    pub device_api: bool,
    /// `true` if kernels can address several GPUs at once.
    pub multimem: bool,
    /// `true` if the host can start one-sided operations; `None` before NCCL 2.29.7.
    pub host_rma: Option<bool>,
}

impl Communicator {
    /// Returns the properties of this communicator; for an example, see [`Properties`]. Since NCCL 2.29.2.
    ///
    /// # Errors
    /// [`Error::Unsupported`](crate::error::Error::Unsupported), [`Error::Nccl`](crate::Error::Nccl).
    #[doc(alias = "ncclCommQueryProperties")]
    pub fn properties(&self) -> Result<Properties> {
        let library = self.library();
        // The device API's header declares this function, so it is not in the table of nccl.h.
        let functions = &library.device_functions;
        let query = library.function("ncclCommQueryProperties", functions.ncclCommQueryProperties)?;
        let mut raw = ncclCommProperties_t::initializer(library.version.code());
        self.query("properties", || {
            // SAFETY: a live communicator, and a struct that is initialized for this release.
            library.check("ncclCommQueryProperties", unsafe { query(self.raw(), &raw mut raw) })
        })?;
        let to_usize = |value| usize::try_from(value).unwrap_or_default();
        Ok(Properties {
            rank: to_usize(raw.rank),
            size: to_usize(raw.nRanks),
            cuda_device: raw.cudaDev,
            nvml_device: raw.nvmlDev,
            device_api: raw.deviceApiSupport,
            multimem: raw.multimemSupport,
            // Earlier releases have another layout from here on.
            host_rma: (library.version >= Version::new(2, 29, 7)).then_some(raw.hostRmaSupport),
        })
    }
}
