use std::iter;

use libnccl::{DataType, ReduceOp};

use super::arguments::{MeasureArguments, OneOrAll, Operation};

/// The parameters of a measurement with all defaults filled in, equal on all ranks.
#[derive(Debug, Clone)]
pub(crate) struct Parameters {
    pub(crate) operation: Operation,
    pub(crate) op: ReduceOp,
    pub(crate) data_type: DataType,
    pub(crate) root: usize,
    pub(crate) ranks: usize,
    pub(crate) processes: bool,
    /// The number of GPUs that the ranks are spread over; 0 for host memory.
    pub(crate) gpus: usize,
    pub(crate) min_bytes: u64,
    pub(crate) max_bytes: u64,
    pub(crate) step: Step,
    pub(crate) iters: u32,
    pub(crate) warmup_iters: u32,
    pub(crate) check: bool,
}

/// The step from one size to the next.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Step {
    Factor(u64),
    Bytes(u64),
}

impl Parameters {
    /// Returns the parameters for every selected data type and reduction, of so many ranks if a launcher has started them.
    /// The error names the values that conflict.
    pub(crate) fn new(
        arguments: &MeasureArguments,
        gpus: usize,
        launched: Option<usize>,
    ) -> Result<Vec<Self>, String> {
        let on_gpus = gpus > 0;
        let largest = if on_gpus { 128 << 20 } else { 4 << 20 };
        let min_bytes = arguments.minbytes.unwrap_or(8);
        let max_bytes = arguments.maxbytes.unwrap_or(largest.max(min_bytes));
        if min_bytes > max_bytes {
            return Err(format!("--minbytes {min_bytes} is above --maxbytes {max_bytes}"));
        }
        let ranks = launched.or(arguments.ranks).unwrap_or(if on_gpus { gpus } else { 2 });
        let root = arguments.root;
        if root >= ranks {
            return Err(format!("--root {root} is not a rank: expected 0 to {}", ranks - 1));
        }
        let mut ops = match arguments.op {
            OneOrAll::One(op) => vec![op],
            OneOrAll::All => ReduceOp::ALL.to_vec(),
        };
        if !reduces(arguments.operation) {
            ops.truncate(1);
        }
        let data_types = match arguments.datatype {
            OneOrAll::One(data_type) => vec![data_type],
            OneOrAll::All => DataType::ALL.to_vec(),
        };
        let pairs = data_types.into_iter().flat_map(|data_type| ops.iter().map(move |op| (data_type, *op)));
        let parameters = |(data_type, op)| Self {
            operation: arguments.operation,
            op,
            data_type,
            root,
            ranks,
            processes: launched.is_some() || arguments.processes,
            gpus,
            min_bytes,
            max_bytes,
            step: match (arguments.stepbytes, arguments.stepfactor) {
                (Some(bytes), _) => Step::Bytes(bytes),
                (None, Some(factor)) => Step::Factor(factor),
                (None, None) => Step::Factor(if on_gpus { 2 } else { 4 }),
            },
            iters: arguments.iters,
            warmup_iters: arguments.warmup_iters,
            check: arguments.check != 0,
        };
        Ok(pairs.map(parameters).collect())
    }

    /// Returns the sizes in bytes, in ascending order.
    pub(crate) fn sizes(&self) -> impl Iterator<Item = u64> + use<> {
        let Self { min_bytes, max_bytes, step, .. } = *self;
        let next = move |size: &u64| match step {
            Step::Factor(factor) => size.checked_mul(factor),
            Step::Bytes(bytes) => size.checked_add(bytes),
        };
        iter::successors(Some(min_bytes), next).take_while(move |size| *size <= max_bytes)
    }

    /// Returns the root, `None` for an operation without one.
    pub(crate) fn root(&self) -> Option<usize> {
        matches!(self.operation, Operation::Broadcast | Operation::Reduce).then_some(self.root)
    }

    /// Returns the reduction, `None` for an operation without one.
    pub(crate) fn op(&self) -> Option<ReduceOp> {
        reduces(self.operation).then_some(self.op)
    }
}

/// Returns whether the operation combines elements; the others only move them.
fn reduces(operation: Operation) -> bool {
    matches!(operation, Operation::AllReduce | Operation::Reduce | Operation::ReduceScatter)
}

#[cfg(test)]
mod tests {
    use clap::Parser;
    use libnccl::{DataType, ReduceOp};

    use super::Parameters;
    use crate::args::{Arguments, Command};

    fn all(arguments: &str, gpus: usize) -> Result<Vec<Parameters>, String> {
        let words = ["nccl", "bench"].into_iter().chain(arguments.split_whitespace());
        let Command::Bench(arguments) = Arguments::try_parse_from(words).unwrap().command else {
            unreachable!()
        };
        let arguments = arguments.measure.unwrap();
        Parameters::new(&arguments, gpus, None)
    }

    fn parameters(arguments: &str, gpus: usize) -> Result<Parameters, String> {
        all(arguments, gpus).map(|mut all| all.remove(0))
    }

    #[test]
    fn all_selects_every_type_and_reduction() {
        let (types, ops) = (DataType::ALL.len(), ReduceOp::ALL.len());
        let number = |arguments| all(arguments, 0).unwrap().len();
        assert_eq!(number("all_reduce -d half -o avg"), 1);
        assert_eq!(number("all_reduce -d all"), types);
        assert_eq!(number("reduce -d all -o all"), types * ops);
        // A broadcast has no reduction.
        assert_eq!(number("broadcast -d all -o all"), types);
    }

    fn sizes(arguments: &str) -> Vec<u64> {
        parameters(arguments, 0).unwrap().sizes().collect()
    }

    #[test]
    fn sizes_grow_by_factor_or_by_bytes() {
        assert_eq!(sizes("all_reduce -b 8 -e 100 -f 3"), [8, 24, 72]);
        assert_eq!(sizes("all_reduce -b 8 -e 24 -i 8"), [8, 16, 24]);
        assert_eq!(sizes("all_reduce -b 1K -e 1K"), [1024]);
        let most = u64::MAX.to_string();
        assert_eq!(sizes(&format!("all_reduce -b {most} -e {most}")), [u64::MAX]);
    }

    #[test]
    fn defaults_depend_on_the_number_of_gpus() {
        let cpu = parameters("broadcast", 0).unwrap();
        let gpu = parameters("broadcast", 8).unwrap();
        assert_eq!((cpu.ranks, cpu.max_bytes, cpu.root()), (2, 4 << 20, Some(0)));
        assert_eq!((gpu.ranks, gpu.max_bytes, gpu.op()), (8, 128 << 20, None));
        assert_eq!(sizes("all_reduce -b 1G"), [1 << 30]);
    }

    #[test]
    fn conflicting_values_are_rejected() {
        let error = parameters("all_reduce -b 64 -e 8", 0).unwrap_err();
        assert_eq!(error, "--minbytes 64 is above --maxbytes 8");
        let error = parameters("reduce -r 4 --ranks 4", 0).unwrap_err();
        assert_eq!(error, "--root 4 is not a rank: expected 0 to 3");
    }
}
