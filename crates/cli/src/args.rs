//! The command line.

use std::ffi::OsString;
use std::fmt::Display;
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::str::FromStr;

use clap::{Args, Parser, Subcommand, ValueEnum};
use libnccl::{DataType, ReduceOp};

use crate::completions::CompletionsArguments;
use crate::doctor::arguments::DoctorArguments;
use crate::env::EnvArguments;
use crate::man::ManArguments;
use crate::ras::arguments::RasArguments;
use crate::recorder::arguments::RecorderArguments;
use crate::{exit_status, version};

const EXAMPLES: &str = "\
Examples:
  nccl doctor                                 is there anything to do before a job starts?
  nccl bench all_reduce --ranks 4             is it right, and how fast?
  nccl run -n 4 -- python3 train.py           start the ranks of a program on this host";

const RUN_HELP: &str = "\
Each rank gets the variables of torchrun: RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR, MASTER_PORT and others. If one fails, \
the others get SIGTERM, and SIGKILL 10 s later. No process remains, however the program ends.

Example:
  nccl run -n 4 --cpu=/tmp/cpu-nccl -- python3 train.py

Exit status:
  0    All ranks succeeded
  N    That of the first rank that failed; 128 and its number if a signal ended it
  1    A failure of nccl run itself
  2    Invalid command line
  141  The reader of the output closed it";

/// The limit of ranks, more than one host can use.
const MAX_RANKS: usize = 1024;

/// Diagnose and measure NCCL.
#[derive(Debug, Parser)]
#[command(name = "nccl", version, long_version = version::long(), propagate_version = true)]
#[command(after_help = format!("{EXAMPLES}\n\n{}", exit_status::HELP))]
pub(crate) struct Arguments {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Measure an operation and check its results, as nccl-tests does
    Bench(BenchArguments),
    /// Report what a job of NCCL would find on this machine, and what to do
    Doctor(DoctorArguments),
    /// List the variables that the library reads, their values and where these come from
    Env(EnvArguments),
    /// Report which ranks of a running job are late, stuck, failed or dead
    Ras(RasArguments),
    /// Compare what the ranks of a job have recorded
    Recorder(RecorderArguments),
    /// Start the ranks of a program on this host
    Run(RunArguments),
    /// Print the completions of a shell
    Completions(CompletionsArguments),
    /// Write the manual pages
    Man(ManArguments),
}

#[derive(Debug, Args)]
#[command(after_help = RUN_HELP)]
pub(crate) struct RunArguments {
    /// Number of ranks
    #[arg(short = 'n', long, value_name = "N", value_parser = whole::<usize>(1..=MAX_RANKS))]
    pub(crate) ranks: usize,
    /// Put the CPU implementation of NCCL, and the stand-in for CUDA, before other libraries; from DIR, which
    /// `cargo xtask cpu-so DIR` makes [default: libnccl-cpu beside this program, or in ../lib]
    #[arg(long, value_name = "DIR", num_args = 0..=1, require_equals = true)]
    pub(crate) cpu: Option<Option<PathBuf>>,
    /// Write the output to `DIR/attempt_A/RANK/stdout.log` and `stderr.log` as well
    #[arg(long, value_name = "DIR")]
    pub(crate) log_dir: Option<PathBuf>,
    /// Start all ranks again if one fails, at most N times
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub(crate) restart: u32,
    /// Program to run, and its arguments
    #[arg(value_name = "PROGRAM", required = true, trailing_var_arg = true, allow_hyphen_values = true)]
    pub(crate) program: Vec<OsString>,
}

#[derive(Debug, Args)]
#[command(after_help = exit_status::HELP)]
#[command(allow_negative_numbers = true)] // A negative number is an invalid value, not an unknown option.
pub(crate) struct BenchArguments {
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

/// Returns a parser of whole numbers of a range.
fn whole<T>(range: RangeInclusive<T>) -> impl Fn(&str) -> Result<T, String> + Clone
where
    T: Copy + FromStr + PartialOrd + Display,
{
    move |text| {
        let number = text.parse().ok().filter(|number| range.contains(number));
        number.ok_or_else(|| format!("expected a whole number from {} to {}", range.start(), range.end()))
    }
}

fn size(text: &str) -> Result<u64, String> {
    let expected = "expected a number of bytes above 0, such as 8, 64K, 1M or 1G";
    let (digits, unit) = match text.as_bytes() {
        [.., b'K' | b'k'] => (&text[..text.len() - 1], 1 << 10),
        [.., b'M' | b'm'] => (&text[..text.len() - 1], 1 << 20),
        [.., b'G' | b'g'] => (&text[..text.len() - 1], 1 << 30),
        _ => (text, 1),
    };
    let bytes = digits.parse::<u64>().ok().and_then(|number| number.checked_mul(unit));
    bytes.filter(|bytes| *bytes > 0).ok_or_else(|| expected.into())
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

    use super::{Arguments, OneOrAll, size, whole};

    #[test]
    fn command_line_is_consistent() {
        Arguments::command().debug_assert();
    }

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
    fn size_accepts_units_and_rejects_other_text() {
        let sizes = [("8", 8), ("64K", 65_536), ("64k", 65_536), ("1M", 1 << 20), ("3G", 3 << 30)];
        for (text, bytes) in sizes {
            assert_eq!(size(text), Ok(bytes), "{text}");
        }
        for text in ["", "K", "0", "0M", "-1", "1.5M", "8 K", "1T", "ä", "18446744073709551615K"] {
            assert!(size(text).is_err(), "{text}");
        }
    }

    #[test]
    fn whole_rejects_numbers_outside_of_the_range() {
        let parse = whole::<usize>(1..=1024);
        assert_eq!((parse("1"), parse("1024")), (Ok(1), Ok(1024)));
        for text in ["0", "-1", "1025", "two", "", "1.0"] {
            assert_eq!(parse(text).unwrap_err(), "expected a whole number from 1 to 1024", "{text}");
        }
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
