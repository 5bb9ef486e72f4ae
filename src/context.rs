use std::error::Error as StdError;
use std::sync::Arc;

use crate::{Communicator, Config, Element, Error, Nccl, NcclBuffer, Result, UniqueId};

/// A CUDA context of another crate. Contexts of the crates cudarc and cuda-core implement this, with the features of these
/// names.
///
/// ```
/// use libnccl::{Config, Context};
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
/// let comm = nccl.init_rank_on(&Device(0), 1, 0, &nccl.unique_id()?, &Config::new())?;
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
    /// Creates a communicator as [`init_rank_with`](Self::init_rank_with) does, on the device of `context`, which
    /// becomes the calling thread's current context. For an example, see [`Context`].
    ///
    /// # Errors
    /// The errors of [`init_rank_with`](Self::init_rank_with); [`Error::InvalidUsage`] if CUDA cannot make the context
    /// current.
    #[doc(alias = "ncclCommInitRankConfig")]
    pub fn init_rank_on(
        &self,
        context: &(impl Context + ?Sized),
        size: usize,
        rank: usize,
        id: &UniqueId,
        config: &Config,
    ) -> Result<Communicator> {
        const CALL: &str = "init_rank_on";
        make_current(CALL, context)?;
        self.create_rank(CALL, size, rank, std::slice::from_ref(id), config)
    }

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

fn make_current(call: &'static str, context: &(impl Context + ?Sized)) -> Result<()> {
    context.make_current().map_err(|error| {
        let device = context.device();
        Error::usage(call, format!("the context of device {device} cannot be made current: {error}"))
    })
}
