use cudarc::driver::CudaContext;

use crate::{Communicator, Config, Element, Error, Nccl, NcclBuffer, Result, UniqueId};

/// With the feature `cudarc`.
impl Nccl {
    /// Creates a communicator as [`init_rank_with`](Self::init_rank_with) does, on the device of `context`, which
    /// becomes the calling thread's current context.
    ///
    /// ```no_run
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// use cudarc::driver::CudaContext;
    /// use libnccl::{Config, Nccl};
    ///
    /// let (nccl, context) = (Nccl::load()?, CudaContext::new(1)?);
    /// let comm = nccl.init_rank_on(&context, 1, 0, &nccl.unique_id()?, &Config::new())?;
    /// assert_eq!(comm.device(), 1);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// The errors of [`init_rank_with`](Self::init_rank_with); [`Error::InvalidUsage`] if CUDA cannot make the context
    /// current.
    #[doc(alias = "ncclCommInitRankConfig")]
    pub fn init_rank_on(
        &self,
        context: &CudaContext,
        size: usize,
        rank: usize,
        id: &UniqueId,
        config: &Config,
    ) -> Result<Communicator> {
        make_current("init_rank_on", context)?;
        self.init_rank_with(size, rank, id, config)
    }

    /// Allocates elements as [`alloc`](Self::alloc) does, on the device of `context`, which becomes the calling thread's
    /// current context.
    ///
    /// ```no_run
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// use cudarc::driver::CudaContext;
    /// use libnccl::Nccl;
    ///
    /// let (nccl, context) = (Nccl::load()?, CudaContext::new(1)?);
    /// let buffer = nccl.alloc_on::<f32>(&context, 1 << 20)?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// The errors of [`alloc`](Self::alloc); [`Error::InvalidUsage`] if CUDA cannot make the context current.
    #[doc(alias = "ncclMemAlloc")]
    pub fn alloc_on<T: Element>(&self, context: &CudaContext, length: usize) -> Result<NcclBuffer<T>> {
        make_current("alloc_on", context)?;
        self.alloc(length)
    }
}

fn make_current(call: &'static str, context: &CudaContext) -> Result<()> {
    context.bind_to_thread().map_err(|error| {
        Error::usage(
            call,
            format!("the context of device {} cannot be made current: {error}", context.ordinal()),
        )
    })
}
