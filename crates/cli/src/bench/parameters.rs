//! The parameters of a measurement.

use std::iter;

use anyhow::Context;
use itertools::iproduct;
use libnccl::{DataType, ReduceOp};
use serde_json::{Map, Value, json};

use super::arguments::{Blocking, Columns, MeasureArguments, Procedure, Register};
use super::benchmark::{Benchmark, Shape};
use super::data::Reduction;
use crate::value_parser::MAX_RANKS;

const MIN_BYTES: u64 = 8;

/// The parameters of a measurement with all defaults filled in, equal on all ranks.
#[derive(Debug, Clone)]
pub(crate) struct Parameters {
    pub(crate) benchmark: Benchmark,
    pub(crate) op: Reduction,
    pub(crate) data_type: DataType,
    pub(crate) root: usize,
    pub(crate) ranks: usize,
    pub(crate) threads: usize,
    pub(crate) ranks_per_thread: usize,
    /// The number of GPUs that the ranks are spread over; 0 for host memory.
    pub(crate) gpus: usize,
    pub(crate) min_bytes: u64,
    /// The largest requested size; `fitting_bytes` is the largest size that fits into memory.
    pub(crate) max_bytes: u64,
    pub(crate) fitting_bytes: u64,
    pub(crate) step: Step,
    pub(crate) unalign: usize,
    pub(crate) procedure: Procedure,
    pub(crate) columns: Columns,
    pub(crate) iteration_times: bool,
    pub(crate) parallel_init: bool,
}

#[derive(Debug, Clone, Copy)]
pub(crate) enum Step {
    Factor(u64),
    Bytes(u64),
}

impl Parameters {
    /// Returns the parameters for every selected data type, reduction and root. The error names the values that conflict.
    ///
    /// `threads` is the number of threads of each process unless `--nthreads` or `--ngpus` is given.
    pub(crate) fn new(
        arguments: &MeasureArguments,
        gpus: usize,
        (processes, threads): (usize, usize),
    ) -> Result<Vec<Self>, String> {
        let on_gpus = gpus > 0;
        let largest = if on_gpus { 128 << 20 } else { 4 << 20 };
        let sizes = &arguments.sizes;
        let min_bytes = sizes.minbytes.unwrap_or(MIN_BYTES);
        let max_bytes = sizes.maxbytes.unwrap_or(largest.max(min_bytes));
        if min_bytes > max_bytes {
            return Err(format!("--minbytes {min_bytes} is above --maxbytes {max_bytes}"));
        }
        let (threads, ranks_per_thread) = match (arguments.nthreads, arguments.ngpus) {
            (None, None) => (threads, 1),
            (threads, ranks) => (threads.unwrap_or(1), ranks.unwrap_or(1)),
        };
        let of_process = threads * ranks_per_thread;
        let ranks = of_process * processes;
        if of_process > MAX_RANKS {
            let both = format!("--nthreads {threads} and --ngpus {ranks_per_thread}");
            return Err(format!("{both} make {of_process} ranks of a process: expected at most {MAX_RANKS}"));
        }
        let benchmark = arguments.benchmark;
        let first = Self {
            benchmark,
            op: Reduction::Op(ReduceOp::Sum),
            data_type: DataType::Float32,
            root: 0,
            ranks,
            threads,
            ranks_per_thread,
            gpus,
            min_bytes,
            max_bytes,
            fitting_bytes: u64::MAX,
            step: match (sizes.stepbytes, sizes.stepfactor) {
                (Some(bytes), _) => Step::Bytes(bytes),
                (None, Some(factor)) => Step::Factor(factor),
                (None, None) => Step::Factor(if on_gpus { 2 } else { 4 }),
            },
            unalign: sizes.unalign,
            procedure: arguments.procedure,
            columns: arguments.columns,
            iteration_times: arguments.columns.per_iter_timing
                || arguments.json.is_some()
                || arguments.output_file.is_some(),
            parallel_init: arguments.parallel_init.is_some(),
        };
        first.check_conflicts(arguments)?;
        let ops = if benchmark.has_op() { &arguments.op[..] } else { &arguments.op[..1] };
        let roots = match arguments.root {
            Some(root) if root >= ranks => {
                return Err(format!("--root {root} is not a rank: expected 0 to {}", ranks - 1));
            }
            Some(root) => root..root + 1,
            None if benchmark.operation().has_root() => 0..ranks,
            None => 0..1,
        };
        let all = iproduct!(&arguments.datatype, ops, roots);
        Ok(all.map(|(&data_type, &op, root)| Self { op, data_type, root, ..first.clone() }).collect())
    }

    fn check_conflicts(&self, arguments: &MeasureArguments) -> Result<(), String> {
        let &Self { benchmark, ranks, ranks_per_thread, .. } = self;
        let on_gpus = self.gpus > 0;
        let Procedure { iters, agg_iters, blocking, stream_null, local_register, .. } = self.procedure;
        let Columns { per_iter_timing: timing, per_iter_skip: skip, memory, .. } = self.columns;
        let graph = self.procedure.cudagraph > 0;
        let [waits, registers] = [blocking != Blocking::None, local_register != Register::None];
        let has_policy = self.procedure.cta_policy.is_some();
        let is_hypercube = benchmark == Benchmark::HyperCube;
        let grouped = ranks_per_thread > 1 || agg_iters > 1;
        let both_to_stdout = matches!((&arguments.json, &arguments.csv), (Some(None), Some(None)));
        let conflicts = [
            (graph && !on_gpus, "--cudagraph needs GPUs: host memory has no CUDA graphs"),
            (graph && waits, "--cudagraph and --blocking: a stream that is captured cannot be waited for"),
            (graph && stream_null, "--cudagraph and --stream_null: the default stream cannot be captured"),
            (graph && timing, "--cudagraph and --per_iter_timing: a graph has no single iterations"),
            (registers && !on_gpus, "--local_register needs GPUs: host memory is not registered"),
            (has_policy && !on_gpus, "--cta_policy needs GPUs: it is about their thread blocks"),
            (memory && !on_gpus, "--memory needs GPUs: it is about their memory"),
            (stream_null && !on_gpus, "--stream_null needs GPUs: host memory has no streams"),
            (skip > 0 && !timing, "--per_iter_skip needs --per_iter_timing 1"),
            (skip >= iters, "--per_iter_skip leaves no iteration: expected less than --iters"),
            (is_hypercube && !ranks.is_power_of_two(), "a hypercube has as many ranks as a power of two"),
            (
                is_hypercube && grouped,
                "hypercube with --ngpus or --agg_iters above 1: its messages depend on each other and cannot be one group",
            ),
            (both_to_stdout, "--json and --csv both go to stdout: expected a file for one of them"),
        ];
        let conflict = conflicts.into_iter().find(|(conflict, _)| *conflict);
        conflict.map_or(Ok(()), |(_, problem)| Err(problem.into()))
    }

    /// Returns the limit of the sizes: the requested one or, if smaller, the one set by memory.
    pub(crate) fn largest(&self) -> u64 {
        self.max_bytes.min(self.fitting_bytes)
    }

    /// Returns the note of nccl-tests about a reduced limit, if not all sizes fit into memory.
    pub(crate) fn reduction(&self) -> Option<String> {
        let bytes = self.fitting_bytes;
        (bytes < self.max_bytes).then(|| format!("Reducing maxBytes to {bytes} due to memory limitation"))
    }

    pub(crate) fn shape(&self, bytes: u64) -> anyhow::Result<Shape> {
        let size =
            usize::try_from(bytes).with_context(|| format!("{bytes} bytes exceed the address space"))?;
        let element_size = self.data_type.size();
        Ok(Shape::new(self.benchmark, size / element_size, element_size, self.ranks))
    }

    pub(crate) fn sizes(&self) -> impl Iterator<Item = u64> + use<> {
        let Self { min_bytes, step, .. } = *self;
        let max_bytes = self.largest();
        let next = move |size: &u64| match step {
            // Multiplication would not change a size of 0.
            Step::Factor(_) if *size == 0 => Some(MIN_BYTES),
            Step::Factor(factor) => size.checked_mul(factor),
            Step::Bytes(bytes) => size.checked_add(bytes),
        };
        iter::successors(Some(min_bytes), next).take_while(move |size| *size <= max_bytes)
    }

    /// Returns the last size, for which buffers are allocated.
    pub(crate) fn last_size(&self) -> u64 {
        match self.step {
            Step::Bytes(bytes) => self.largest() - (self.largest() - self.min_bytes) % bytes,
            Step::Factor(_) => self.sizes().last().unwrap_or(self.min_bytes),
        }
    }

    /// Returns the sizes to warm up with, each twice as large as the one before.
    pub(crate) fn warmup_sizes(&self) -> impl Iterator<Item = u64> + use<> {
        Self { step: Step::Factor(2), max_bytes: self.last_size(), ..self.clone() }.sizes()
    }

    /// Returns the root, or `None` for an operation without one.
    pub(crate) fn root(&self) -> Option<usize> {
        self.benchmark.operation().has_root().then_some(self.root)
    }

    /// Returns the reduction, or `None` for an operation without one.
    pub(crate) fn op(&self) -> Option<Reduction> {
        self.benchmark.operation().reduces.then_some(self.op)
    }

    /// Returns the reduction as nccl-tests prints it, even for sendrecv, which reduces nothing.
    pub(crate) fn op_name(&self) -> String {
        match self.benchmark {
            Benchmark::HyperCube => String::new(),
            benchmark if benchmark.has_op() => self.op.to_string(),
            _ => "none".into(),
        }
    }

    pub(crate) fn report(&self) -> Map<String, Value> {
        let Self { min_bytes, procedure, unalign, .. } = self;
        let (step_factor, step_bytes) = match self.step {
            Step::Factor(factor) => (Some(factor), None),
            Step::Bytes(bytes) => (None, Some(bytes)),
        };
        let parameters = json!({
            "min_bytes": min_bytes,
            "max_bytes": self.largest(),
            "step_factor": step_factor,
            "step_bytes": step_bytes,
            "iters": procedure.iters,
            "warmup_iters": procedure.warmup_iters,
            "agg_iters": procedure.agg_iters,
            "run_cycles": procedure.run_cycles,
            "check": procedure.check,
            "graph": procedure.cudagraph,
            "blocking": procedure.blocking as u8,
            "average": self.columns.average as u8,
            "local_register": procedure.local_register as u8,
            "unalign": unalign,
        });
        if let Value::Object(parameters) = parameters { parameters } else { Map::new() }
    }
}

/// A measured case: an operation of one size, out of place or in place.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Case<'a> {
    pub(crate) parameters: &'a Parameters,
    pub(crate) shape: Shape,
    pub(crate) in_place: bool,
}

#[cfg(test)]
#[path = "../../tests/unit/parameters.rs"]
mod tests;
