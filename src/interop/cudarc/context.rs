use cudarc::driver::CudaContext;

use crate::cuda::Context;

impl Context for CudaContext {
    fn device(&self) -> usize {
        self.ordinal()
    }
    fn make_current(&self) -> Result<(), Box<dyn std::error::Error>> {
        Ok(self.bind_to_thread()?)
    }
}
