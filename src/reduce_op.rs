use crate::sys::ncclRedOp_t;
use crate::values::values;

values! {
    /// The operation that a collective combines the elements of the ranks with.
    ///
    /// ```
    /// use libnccl::ReduceOp;
    ///
    /// assert_eq!("max".parse(), Ok(ReduceOp::Max));
    /// assert!(ReduceOp::ALL.contains(&ReduceOp::Avg));
    /// ```
    #[doc(alias = "ncclRedOp_t")]
    pub enum ReduceOp: ncclRedOp_t {
        /// The sum; integers wrap around.
        #[doc(alias = "ncclSum")]
        Sum = ncclSum as "sum",
        /// The product; integers wrap around.
        #[doc(alias = "ncclProd")]
        Prod = ncclProd as "prod",
        /// The maximum; NaN only if all elements are NaN.
        #[doc(alias = "ncclMax")]
        Max = ncclMax as "max",
        /// The minimum; NaN only if all elements are NaN.
        #[doc(alias = "ncclMin")]
        Min = ncclMin as "min",
        /// The mean over the ranks; integers are summed, wrapping, then divided and truncated toward zero.
        #[doc(alias = "ncclAvg")]
        Avg = ncclAvg as "avg",
    }

    expected: "an operation";
}

#[cfg(test)]
mod tests {
    use super::ReduceOp;
    use crate::sys::ncclRedOp_t;

    #[test]
    fn all_lists_every_reduction_of_nccl_in_order() {
        for (value, op) in ReduceOp::ALL.iter().copied().enumerate() {
            assert_eq!(op.as_raw().0 as usize, value);
            assert_eq!(op.raw_name(), format!("nccl{op:?}"));
        }
        assert_eq!(ReduceOp::ALL.len(), ncclRedOp_t::ncclNumOps.0 as usize);
    }

    #[test]
    fn names_round_trip() {
        for &op in ReduceOp::ALL {
            assert_eq!(op.to_string().parse(), Ok(op));
            assert_eq!(format!("{op:?}").parse(), Ok(op));
        }
        let error = "mean".parse::<ReduceOp>().unwrap_err().to_string();
        assert!(
            error.starts_with(r#""mean" is not an operation of NCCL; expected sum, prod, max, min, avg"#),
            "{error}"
        );
    }
}
