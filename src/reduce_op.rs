use std::fmt;

use crate::sys::ncclRedOp_t;

/// How a collective combines the ranks' elements.
#[doc(alias = "ncclRedOp_t")]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ReduceOp {
    /// The sum; integers wrap around.
    Sum,
    /// The product; integers wrap around.
    Prod,
    /// The greatest; a NaN counts only if all are.
    Max,
    /// The least; a NaN counts only if all are.
    Min,
    /// The mean over the ranks; integers are summed, wrapping, then divided and truncated toward zero.
    Avg,
}

impl ReduceOp {
    /// Every operation, in NCCL's order.
    pub const ALL: [Self; 5] = [Self::Sum, Self::Prod, Self::Max, Self::Min, Self::Avg];

    /// NCCL's constant.
    #[must_use]
    pub const fn as_raw(self) -> ncclRedOp_t {
        match self {
            Self::Sum => ncclRedOp_t::ncclSum,
            Self::Prod => ncclRedOp_t::ncclProd,
            Self::Max => ncclRedOp_t::ncclMax,
            Self::Min => ncclRedOp_t::ncclMin,
            Self::Avg => ncclRedOp_t::ncclAvg,
        }
    }
}

/// The name that nccl-tests uses.
impl fmt::Display for ReduceOp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Sum => "sum",
            Self::Prod => "prod",
            Self::Max => "max",
            Self::Min => "min",
            Self::Avg => "avg",
        })
    }
}
