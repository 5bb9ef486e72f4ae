use std::error::Error as StdError;
use std::sync::Arc;

use crate::buffer::NcclBuffer;
use crate::data_type::Element;
use crate::error::{Error, Result};
use crate::nccl::Nccl;

/// A CUDA context of another crate. Contexts of the crates cudarc and cuda-core implement this, with the features of these
/// names.
///
/// ```
/// use libnccl::Context;
/// use std::error::Error;
///
/// /// The primary context of a device, in some CUDA crate.
/// struct Device(usize);
///
/// impl Context for Device {
///     fn device(&self) -> usize {
///         self.0
///     }
///     fn make_current(&self) -> Result<(), Box<dyn Error>> {
///         // cudaSetDevice, for instance.
///         Ok(())
///     }
/// }
///
/// let nccl = libnccl_cpu::nccl();
/// let comm = nccl.communicator(1, 0, &nccl.unique_id()?).device(&Device(0)).init()?;
/// # Ok::<(), libnccl::Error>(())
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a CUDA context",
    label = "not a context",
    note = "contexts of the crates cudarc and cuda-core are, with the features of these names, and types that implement `Context`"
)]
pub trait Context {
    /// Returns the number of its CUDA device.
    fn device(&self) -> usize;

    /// Makes it the calling thread's current context.
    ///
    /// # Errors
    /// The error of CUDA.
    fn make_current(&self) -> std::result::Result<(), Box<dyn StdError>>;
}

impl<C: Context + ?Sized> Context for Arc<C> {
    fn device(&self) -> usize {
        (**self).device()
    }
    fn make_current(&self) -> std::result::Result<(), Box<dyn StdError>> {
        (**self).make_current()
    }
}

impl Nccl {
    /// Allocates elements as [`alloc`](Self::alloc) does, on the device of `context`, which becomes the calling thread's
    /// current context.
    ///
    /// # Errors
    /// The errors of [`alloc`](Self::alloc); [`Error::InvalidUsage`] if CUDA cannot make the context current.
    #[doc(alias = "ncclMemAlloc")]
    pub fn alloc_on<T: Element>(
        &self,
        context: &(impl Context + ?Sized),
        length: usize,
    ) -> Result<NcclBuffer<T>> {
        const CALL: &str = "alloc_on";
        make_current(CALL, context)?;
        NcclBuffer::new(CALL, &self.library, length)
    }
}

pub(crate) fn make_current(call: &'static str, context: &(impl Context + ?Sized)) -> Result<()> {
    context.make_current().map_err(|error| {
        let device = context.device();
        Error::usage(call, format!("the context of device {device} cannot be made current: {error}"))
    })
}
