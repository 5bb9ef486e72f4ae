//! The reductions that can be measured: NCCL's, and the sum of products.

use std::fmt;
use std::str::FromStr;

use anyhow::Result;
use libnccl::buffer::AnyElement;
use libnccl::{Communicator, PreMulSum, ReduceOp};

use super::number::Arithmetic;

/// A reduction that nccl-tests names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Reduction {
    Op(ReduceOp),
    /// The sum of each rank's elements times its [`factor`] (`ncclRedOpCreatePreMulSum`).
    MulSum,
}

impl Reduction {
    /// All reductions, in the order of nccl-tests.
    pub(crate) const ALL: &'static [Self] = &[
        Self::Op(ReduceOp::Sum),
        Self::Op(ReduceOp::Prod),
        Self::Op(ReduceOp::Max),
        Self::Op(ReduceOp::Min),
        Self::Op(ReduceOp::Avg),
        Self::MulSum,
    ];
}

/// Returns the number that a rank's elements are multiplied by: 1 or 2, as in nccl-tests.
pub(crate) fn factor(rank: usize) -> i64 {
    1 + rank as i64 % 2
}

/// Creates the sum of products of a rank, whose scalar is its factor.
pub(crate) fn mul_sum(
    communicator: &Communicator,
    arithmetic: Arithmetic,
) -> Result<PreMulSum<'static, AnyElement>> {
    let scalar = arithmetic.integer(factor(communicator.rank()));
    Ok(communicator.pre_mul_sum_any(arithmetic.data_type, &scalar[..arithmetic.size()])?)
}

impl fmt::Display for Reduction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Op(op) => op.fmt(f),
            Self::MulSum => f.pad("mulsum"),
        }
    }
}

/// Parses the name that nccl-tests uses, in upper or lower case.
impl FromStr for Reduction {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let named = |reduction: &Self| reduction.to_string().eq_ignore_ascii_case(text);
        Self::ALL.iter().copied().find(named).ok_or_else(|| {
            let names: Vec<_> = Self::ALL.iter().map(ToString::to_string).collect();
            format!("{text:?} is not a reduction; expected {}", names.join(", "))
        })
    }
}

#[cfg(test)]
mod tests {
    use libnccl::ReduceOp;

    use super::Reduction;

    #[test]
    fn reductions_are_nccls_and_the_sum_of_products() {
        let (last, nccls) = Reduction::ALL.split_last().unwrap();
        assert!(nccls.iter().zip(ReduceOp::ALL).all(|(reduction, op)| *reduction == Reduction::Op(*op)));
        assert_eq!((*last, nccls.len()), (Reduction::MulSum, ReduceOp::ALL.len()));
        for reduction in Reduction::ALL {
            assert_eq!(reduction.to_string().to_uppercase().parse(), Ok(*reduction));
        }
        let error = "mean".parse::<Reduction>().unwrap_err();
        assert_eq!(error, "\"mean\" is not a reduction; expected sum, prod, max, min, avg, mulsum");
    }
}
