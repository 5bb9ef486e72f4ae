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
