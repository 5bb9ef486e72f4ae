//! Errors of the safe interface of the crate cudarc.

use std::error::Error;

use cudarc::nccl::result::NcclError;

pub(crate) type Result<T = (), E = Box<dyn Error + Send + Sync>> = std::result::Result<T, E>;

/// An error of NCCL, which cudarc gives no text.
pub(crate) fn nccl<T>(result: Result<T, NcclError>) -> Result<T> {
    result.map_err(|NcclError(code)| format!("NCCL returned {code:?}").into())
}
