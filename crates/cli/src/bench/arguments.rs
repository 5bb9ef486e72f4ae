//! The arguments of `nccl bench`.

use std::fmt::Display;
use std::path::PathBuf;
use std::str::FromStr;

use clap::{Args, Subcommand, ValueEnum};
use libnccl::{DataType, ReduceOp};

use super::backend::Backend;
use super::bisect::arguments::BisectArguments;
use super::compare::arguments::CompareArguments;
use super::pairs::arguments::PairsArguments;
use super::plot::arguments::PlotArguments;
use crate::args::{MAX_RANKS, size, whole};
use crate::exit_status;

#[derive(Debug, Args)]
#[command(after_help = exit_status::HELP)]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
#[command(allow_negative_numbers = true)] // A negative number is an invalid value, not an unknown option.
pub(crate) struct BenchArguments {
    #[command(subcommand)]
    pub(crate) command: Option<BenchCommand>,
    /// The arguments of a measurement; clap requires an operation if there is no subcommand.
    #[command(flatten)]
    pub(crate) measure: Option<MeasureArguments>,
}

/// What `nccl bench` does besides measuring an operation.
#[derive(Debug, Subcommand)]
pub(crate) enum BenchCommand {
    /// Find the slow, wrong or hanging rank by halving the ranks
    Bisect(BisectArguments),
    /// Compare two results, or two backends
    Compare(CompareArguments),
    /// Measure bandwidth and latency between every two ranks
    Pairs(PairsArguments),
    /// Draw bandwidth and latency of one or several results
    Plot(PlotArguments),
}

#[derive(Debug, Args)]
pub(crate) struct MeasureArguments {
    /// Operation to measure
    #[arg(value_enum, value_name = "OPERATION")]
    pub(crate) operation: Operation,
    /// Smallest size in bytes, with an optional unit: 64K, 1M, 1G [default: 8]
    #[arg(short = 'b', long, value_name = "SIZE", value_parser = size)]
    pub(crate) minbytes: Option<u64>,
    /// Largest size [default: 4M on the CPU, 128M on GPUs]
    #[arg(short = 'e', long, value_name = "SIZE", value_parser = size)]
    pub(crate) maxbytes: Option<u64>,
    /// Factor between a size and the next [default: 4 on the CPU, 2 on GPUs]
    #[arg(short = 'f', long, value_name = "FACTOR", value_parser = whole::<u64>(2..=u64::MAX))]
    pub(crate) stepfactor: Option<u64>,
    /// Difference between a size and the next, instead of a factor
    #[arg(short = 'i', long, value_name = "SIZE", value_parser = size, conflicts_with = "stepfactor")]
    pub(crate) stepbytes: Option<u64>,
    /// Measured iterations of each size
    #[arg(short = 'n', long, default_value_t = 20, value_parser = whole::<u32>(1..=u32::MAX))]
    pub(crate) iters: u32,
    /// Warm-up iterations of the largest and the smallest size
    #[arg(short = 'w', long = "warmup_iters", value_name = "ITERS", default_value_t = 5)]
    #[arg(value_parser = whole::<u32>(0..=u32::MAX))]
    pub(crate) warmup_iters: u32,
    #[arg(short = 'd', long, default_value = "float", help = help("Data type", DataType::ALL))]
    pub(crate) datatype: OneOrAll<DataType>,
    #[arg(short = 'o', long, default_value = "sum", help = help("Reduction", ReduceOp::ALL))]
    pub(crate) op: OneOrAll<ReduceOp>,
    /// Root of broadcast and reduce
    #[arg(short = 'r', long, value_name = "RANK", default_value_t = 0)]
    #[arg(value_parser = whole::<usize>(0..=MAX_RANKS - 1))]
    pub(crate) root: usize,
    /// Check the results (1) or not (0)
    #[arg(short = 'c', long, default_value_t = 1, value_parser = whole::<u8>(0..=1))]
    pub(crate) check: u8,
    /// Number of ranks, unless a launcher has started them [default: one for each GPU; 2 on the CPU]
    #[arg(long, value_name = "N", value_parser = whole::<usize>(1..=MAX_RANKS))]
    pub(crate) ranks: Option<usize>,
    /// Run each rank as a process instead of a thread
    #[arg(long)]
    pub(crate) processes: bool,
    /// Use the CPU implementation even if NCCL and GPUs are available
    #[arg(long, conflicts_with = "library")]
    pub(crate) cpu: bool,
    /// Use this NCCL library instead of searching for one
    #[arg(long, value_name = "PATH")]
    pub(crate) library: Option<PathBuf>,
    /// Reach the library in this way
    #[arg(long, value_enum, conflicts_with = "cpu")]
    pub(crate) backend: Option<Backend>,
}

/// An operation that `nccl bench` measures.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
#[value(rename_all = "snake_case")]
pub(crate) enum Operation {
    /// Reduce all ranks' buffers; every rank gets the result
    AllReduce,
    /// Copy the root's buffer to every rank
    Broadcast,
    /// Reduce all ranks' buffers; the root gets the result
    Reduce,
    /// Gather all ranks' buffers at every rank
    AllGather,
    /// Reduce all ranks' buffers; every rank gets its part of the result
    ReduceScatter,
    /// Send to the next rank and receive from the previous one
    #[value(name = "sendrecv")]
    SendRecv,
}

/// Returns the help of an option that takes one of `values` or `all`.
fn help(what: &str, values: &[impl Display]) -> String {
    let names: Vec<String> = values.iter().map(ToString::to_string).collect();
    format!("{what}: {}, or all", names.join(", "))
}

/// The value of an option that also takes `all`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum OneOrAll<T> {
    One(T),
    All,
}

impl<T: FromStr> FromStr for OneOrAll<T> {
    type Err = T::Err;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if text.eq_ignore_ascii_case("all") { Ok(Self::All) } else { text.parse().map(Self::One) }
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;
    use libnccl::{DataType, ReduceOp};

    use super::OneOrAll;
    use crate::args::Arguments;

    #[test]
    fn help_of_bench_names_all_types_and_reductions() {
        let mut command = Arguments::command();
        let bench = command.find_subcommand_mut("bench").unwrap();
        let help = bench.render_help().to_string().split_whitespace().collect::<Vec<_>>().join(" ");
        let types =
            "int8, uint8, int32, uint32, int64, uint64, half, float, double, bfloat16, f8e4m3, f8e5m2";
        assert!(help.contains(&format!("Data type: {types}, or all [default: float]")), "{help}");
        let ops = ReduceOp::ALL.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
        assert!(help.contains(&format!("Reduction: {ops}, or all [default: sum]")), "{help}");
    }

    #[test]
    fn one_or_all_parses_names_and_all() {
        assert_eq!("double".parse(), Ok(OneOrAll::One(DataType::Float64)));
        assert_eq!("f64".parse(), Ok(OneOrAll::One(DataType::Float64)));
        assert_eq!("all".parse(), Ok(OneOrAll::<DataType>::All));
        let error = "f99".parse::<OneOrAll<DataType>>().unwrap_err().to_string();
        assert!(error.contains("is not a data type of NCCL; expected int8"), "{error}");
    }
}
