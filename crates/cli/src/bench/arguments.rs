//! The arguments of `nccl bench`.

use std::convert::Infallible;
use std::error::Error;
use std::ffi::{OsStr, OsString};
use std::fmt::Display;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::str::FromStr;

use clap::ArgAction::Set;
use clap::builder::{PossibleValue, TypedValueParser};
use clap::{Arg, Args, Command, Subcommand, ValueEnum};
use libnccl::DataType;

use super::benchmark::Benchmark;
use super::choices::{Average, Blocking, Policy, Register, switch};
use super::compare::CompareArguments;
use super::data::reduction::Reduction;
use super::pairs::PairsArguments;
use super::plot::PlotArguments;
use super::start::RankArguments;
use super::start::implementation::Backend;
use crate::value_parser::{MAX_RANKS, size, size_from_0, whole};

const HELP: &str = "\
Examples:
  nccl bench all_reduce -b 8 -e 128M -f 2 -g 8     one thread with 8 GPUs, as nccl-tests does it
  nccl bench sendrecv --cpu --ranks 4 --json out.json

Exit status:
  0    Success
  1    Failure, or wrong results
  2    Invalid command line
  130  Ctrl-C, after the output of what was measured; 143 for SIGTERM
  141  The reader of the output closed it, as in `nccl ... | head -1`";

#[derive(Debug, Args)]
#[command(after_help = HELP, disable_version_flag = true)] // -V is an option of nccl-tests.
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
#[command(allow_negative_numbers = true)] // A negative number is an invalid value, not an unknown option.
pub(crate) struct BenchArguments {
    #[command(subcommand)]
    pub(crate) command: Option<BenchCommand>,
    /// The arguments of a measurement; clap requires an operation if there is no subcommand.
    #[command(flatten)]
    pub(crate) measure: Option<MeasureArguments>,
}

/// A subcommand of `nccl bench`.
#[derive(Debug, Subcommand)]
pub(crate) enum BenchCommand {
    /// Compare two results, of nccl bench or nccl-tests, or two backends
    Compare(CompareArguments),
    /// Measure bandwidth and latency between every two ranks
    Pairs(PairsArguments),
    /// Draw bandwidth and time of one or several results
    Plot(PlotArguments),
}

/// The arguments of a measurement. Those with a short name are those of nccl-tests 2.19.6.
#[derive(Debug, Clone, Args)]
// Its presence is that of the operation: clap does not count the arguments of a struct within another.
#[group(arg = "benchmark")]
pub(crate) struct MeasureArguments {
    /// Operation to measure
    #[arg(value_enum, value_name = "OPERATION")]
    pub(crate) benchmark: Benchmark,
    /// Refused: a word after the operation
    #[arg(hide = true, value_parser = no_word)]
    pub(crate) word: Option<Infallible>,
    /// Smallest size in bytes, with an optional unit: 64K, 1M, 1G [default: 8]
    #[arg(short = 'b', long, value_name = "SIZE", value_parser = size_from_0, help_heading = "Sizes")]
    pub(crate) minbytes: Option<u64>,
    /// Largest size [default: 4M on the CPU, 128M on GPUs]
    #[arg(short = 'e', long, value_name = "SIZE", value_parser = size_from_0, help_heading = "Sizes")]
    pub(crate) maxbytes: Option<u64>,
    /// Factor between a size and the next [default: 4 on the CPU, 2 on GPUs]
    #[arg(short = 'f', long, value_name = "FACTOR", value_parser = whole::<u64>(2..=u64::MAX))]
    #[arg(help_heading = "Sizes")]
    pub(crate) stepfactor: Option<u64>,
    /// Difference between a size and the next, instead of a factor
    #[arg(short = 'i', long, value_name = "SIZE", value_parser = size, conflicts_with = "stepfactor")]
    #[arg(help_heading = "Sizes")]
    pub(crate) stepbytes: Option<u64>,
    /// Index of the first element of each buffer, to misalign it
    #[arg(short = 'u', long, value_name = "INDEX", default_value_t = 0, help_heading = "Sizes")]
    #[arg(value_parser = whole::<usize>(0..=1 << 20))]
    pub(crate) unalign: usize,

    /// Data type
    #[arg(short = 'd', long, default_value = "float", value_parser = OneOrAllOf(DataType::ALL))]
    pub(crate) datatype: OneOrAll<DataType>,
    /// Reduction
    #[arg(short = 'o', long, default_value = "sum", value_parser = OneOrAllOf(Reduction::ALL))]
    pub(crate) op: OneOrAll<Reduction>,
    /// Root of the operations that have one; all or -1 for each rank in turn
    #[arg(short = 'r', long, value_name = "RANK", default_value = "0", value_parser = root)]
    pub(crate) root: OneOrAll<usize>,

    #[command(flatten, next_help_heading = "Ranks")]
    pub(crate) ranks: RankArguments,
    /// Number of threads of each process [default: 1 with -g, otherwise that of ranks]
    #[arg(short = 't', long, value_name = "N", value_parser = whole::<usize>(1..=MAX_RANKS))]
    #[arg(help_heading = "Ranks", conflicts_with_all = ["ranks", "processes"])]
    pub(crate) nthreads: Option<usize>,
    /// Number of ranks of each thread, which starts their operations as a group [default: 1]
    #[arg(short = 'g', long, value_name = "N", value_parser = whole::<usize>(1..=MAX_RANKS))]
    #[arg(help_heading = "Ranks", conflicts_with_all = ["ranks", "processes"])]
    pub(crate) ngpus: Option<usize>,
    /// Initialize the threads' ranks at the same time (1), as this program always does; 0 is refused
    #[arg(short = 'p', long = "parallel_init", value_name = "0|1", value_parser = parallel_init)]
    #[arg(help_heading = "Ranks")]
    pub(crate) parallel_init: Option<u8>,
    /// Reach the library in this way [default: dlopen, or link if the program is linked with one]
    #[arg(long, value_enum, conflicts_with = "cpu", help_heading = "Ranks")]
    pub(crate) backend: Option<Backend>,

    #[command(flatten)]
    pub(crate) procedure: Procedure,
    /// Print JSON instead of the table, or write it to FILE; it has times of single iterations too. The `=` may be a space unless
    /// FILE is the name of an operation
    #[arg(long, value_name = "FILE", num_args = 0..=1, require_equals = true, help_heading = "Output")]
    pub(crate) json: Option<Option<PathBuf>>,
    /// Write JSON to FILE, as --json=FILE does
    #[arg(short = 'J', long = "output_file", value_name = "FILE", conflicts_with = "json")]
    #[arg(help_heading = "Output")]
    pub(crate) output_file: Option<PathBuf>,
    /// Print comma-separated values instead of the table, or write them to FILE, likewise
    #[arg(long, value_name = "FILE", num_args = 0..=1, require_equals = true, help_heading = "Output")]
    pub(crate) csv: Option<Option<PathBuf>>,
    /// Draw bandwidth and time against size into FILE, in SVG, as `nccl bench plot` does
    #[arg(long, value_name = "FILE", help_heading = "Output")]
    pub(crate) plot: Option<PathBuf>,
}

/// The arguments that say how each size is measured, and which of its times are printed.
#[derive(Debug, Clone, Copy, Args)]
pub(crate) struct Procedure {
    /// Measured iterations of each size
    #[arg(short = 'n', long, default_value_t = 20, value_parser = whole::<u32>(1..=u32::MAX))]
    #[arg(help_heading = "Iterations")]
    pub(crate) iters: u32,
    /// Operations of each iteration, started as a group
    #[arg(short = 'm', long = "agg_iters", value_name = "ITERS", default_value_t = 1)]
    #[arg(value_parser = whole::<u32>(1..=1024), help_heading = "Iterations")]
    pub(crate) agg_iters: u32,
    /// Warm-up iterations of the smallest size and of each twice as large as the one before
    #[arg(short = 'w', long = "warmup_iters", value_name = "ITERS", default_value_t = 5)]
    #[arg(value_parser = whole::<u32>(0..=u32::MAX), help_heading = "Iterations")]
    pub(crate) warmup_iters: u32,
    /// Times that all sizes are measured, one row each; 0: until Ctrl-C
    #[arg(short = 'N', long = "run_cycles", value_name = "CYCLES", default_value_t = 1)]
    #[arg(value_parser = whole::<u32>(0..=u32::MAX), help_heading = "Iterations")]
    pub(crate) run_cycles: u32,
    /// Times that the results of each row are checked, which stop at the first wrong one
    #[arg(short = 'c', long, default_value_t = 1, value_parser = whole::<u32>(0..=u32::MAX))]
    #[arg(help_heading = "Iterations")]
    pub(crate) check: u32,
    /// Wait after each iteration
    #[arg(short = 'z', long, value_name = "0|1|2|3", value_enum, default_value_t = Blocking::None)]
    #[arg(help_heading = "Iterations")]
    pub(crate) blocking: Blocking,
    /// Capture the iterations in a CUDA graph and launch it so many times
    #[arg(short = 'G', long, value_name = "LAUNCHES", default_value_t = 0, help_heading = "Iterations")]
    #[arg(value_parser = whole::<u32>(0..=u32::MAX))]
    pub(crate) cudagraph: u32,
    /// Use the default stream
    #[arg(short = 'y', long = "stream_null", value_name = "0|1", default_value = "0", action = Set)]
    #[arg(value_parser = switch(), help_heading = "Iterations")]
    pub(crate) stream_null: bool,
    /// Fail if nothing ends in so many seconds
    #[arg(short = 'T', long, value_name = "SECONDS", default_value_t = 0, help_heading = "Iterations")]
    #[arg(value_parser = whole::<u64>(0..=u64::MAX))]
    pub(crate) timeout: u64,
    /// Registration of the buffers
    #[arg(short = 'R', long = "local_register", value_name = "0|1|2", value_enum)]
    #[arg(default_value_t = Register::None, help_heading = "Iterations")]
    pub(crate) local_register: Register,
    /// Policy for thread blocks
    #[arg(short = 'x', long = "cta_policy", value_name = "0|1|2", value_enum, help_heading = "Iterations")]
    pub(crate) cta_policy: Option<Policy>,
    /// Refused: kernels of the device API
    #[arg(short = 'D', long = "device_implementation", hide = true, value_parser = no_kernels)]
    pub(crate) device_implementation: Option<u8>,
    /// Refused, as -D is
    #[arg(short = 'V', long = "device_cta_count", hide = true, value_parser = no_kernels)]
    pub(crate) device_cta_count: Option<u8>,

    /// Choice among the ranks' times to print
    #[arg(short = 'a', long, value_name = "0|1|2|3", value_enum, default_value_t = Average::Mean)]
    #[arg(help_heading = "Output")]
    pub(crate) average: Average,
    /// Print the time that rank 0 took to start the operations, without waiting for them
    #[arg(short = 'C', long = "report_cputime", value_name = "0|1", default_value = "0", action = Set)]
    #[arg(value_parser = switch(), help_heading = "Output")]
    pub(crate) report_cputime: bool,
    /// Measure single iterations too, and print their minimum, maximum, 99th percentile and variation
    #[arg(short = 'I', long = "per_iter_timing", value_name = "0|1", default_value = "0", action = Set)]
    #[arg(value_parser = switch(), help_heading = "Output")]
    pub(crate) per_iter_timing: bool,
    /// First iterations that -I leaves out
    #[arg(short = 'K', long = "per_iter_skip", value_name = "COUNT", default_value_t = 0)]
    #[arg(value_parser = whole::<u32>(0..=u32::MAX), help_heading = "Output")]
    pub(crate) per_iter_skip: u32,
    /// Print the time of each row, in UTC
    #[arg(short = 'S', long = "report_timestamps", value_name = "0|1", default_value = "0", action = Set)]
    #[arg(value_parser = switch(), help_heading = "Output")]
    pub(crate) report_timestamps: bool,
    /// Print how much GPU memory was used
    #[arg(short = 'M', long, value_name = "0|1", default_value = "0", action = Set, value_parser = switch())]
    #[arg(help_heading = "Output")]
    pub(crate) memory: bool,
}

impl Procedure {
    /// Returns the number of first iterations that the columns for single iterations leave out, if there are columns.
    pub(crate) fn iteration_columns(&self) -> Option<usize> {
        self.per_iter_timing.then_some(self.per_iter_skip as usize)
    }
}

/// Refuses the options of nccl-tests for its kernels.
fn no_kernels(_: &str) -> Result<u8, String> {
    Err("nccl bench measures NCCL's own operations; it has no kernels of the device API".into())
}

/// Returns the words of a command line with `=` between `--json` or `--csv` and a file that follows. Clap takes a file without `=`
/// too, but then also the operation of `nccl bench --json all_reduce`.
pub(crate) fn with_files_joined(words: impl Iterator<Item = OsString>) -> Vec<OsString> {
    let mut joined: Vec<OsString> = vec![];
    let mut words = words.peekable();
    let is_name = |word: &OsStr| {
        let name = word.to_str().unwrap_or_default();
        BenchCommand::has_subcommand(name) || <Benchmark as ValueEnum>::from_str(name, false).is_ok()
    };
    while let Some(word) = words.next() {
        let is_option = word == "--json" || word == "--csv";
        joined.push(word);
        // What subcommands have by these names takes no file, and other programs may have anything.
        let is_measurement = joined.get(1).is_some_and(|word| word == "bench")
            && joined.get(2).is_some_and(|word| !BenchCommand::has_subcommand(&word.to_string_lossy()));
        let is_file = |next: &OsString| !next.as_bytes().starts_with(b"-") && !is_name(next);
        if let Some(option) = joined.last_mut().filter(|_| is_option && is_measurement)
            && let Some(file) = words.next_if(is_file)
        {
            option.push("=");
            option.push(file);
        }
    }
    joined
}

/// Refuses a word after the operation.
fn no_word(_: &str) -> Result<Infallible, String> {
    Err("expected one operation".into())
}

fn parallel_init(text: &str) -> Result<u8, String> {
    match text {
        "1" => Ok(1),
        "0" => {
            Err("threads initialize their ranks at the same time; one after another would wait for ever"
                .into())
        }
        _ => Err("expected 1".into()),
    }
}

fn root(text: &str) -> Result<OneOrAll<usize>, String> {
    if text == "all" || text == "-1" {
        return Ok(OneOrAll::All);
    }
    let rank = whole::<usize>(0..=MAX_RANKS - 1)(text).map(OneOrAll::One);
    rank.map_err(|problem| format!("{problem}, or all"))
}

/// The value of an option that also takes `all`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum OneOrAll<T> {
    One(T),
    All,
}

/// The parser of one of these values, by any of its names, or `all`.
#[derive(Debug, Clone, Copy)]
struct OneOrAllOf<T: 'static>(&'static [T]);

impl<T> TypedValueParser for OneOrAllOf<T>
where
    T: FromStr<Err: Into<Box<dyn Error + Send + Sync>>> + Display + Clone + Send + Sync,
{
    type Value = OneOrAll<T>;

    fn parse_ref(
        &self,
        command: &Command,
        option: Option<&Arg>,
        text: &OsStr,
    ) -> Result<Self::Value, clap::Error> {
        let parse = |text: &str| {
            if text.eq_ignore_ascii_case("all") {
                Ok(OneOrAll::All)
            } else {
                text.parse::<T>().map(OneOrAll::One)
            }
        };
        TypedValueParser::parse_ref(&parse, command, option, text)
    }

    /// Returns the values that help and completions name.
    fn possible_values(&self) -> Option<Box<dyn Iterator<Item = PossibleValue> + '_>> {
        // They have to be static.
        let name = |value: &T| &*value.to_string().leak();
        Some(Box::new(self.0.iter().map(name).chain(["all"]).map(PossibleValue::new)))
    }
}

#[cfg(test)]
mod tests {
    use std::ffi::OsStr;

    use clap::builder::TypedValueParser;
    use clap::{Command, CommandFactory};
    use libnccl::DataType;

    use super::{OneOrAll, OneOrAllOf};
    use crate::args::Arguments;

    #[test]
    fn help_of_bench_names_all_types_and_reductions() {
        let mut command = Arguments::command();
        let bench = command.find_subcommand_mut("bench").unwrap();
        let help = bench.render_help().to_string().split_whitespace().collect::<Vec<_>>().join(" ");
        let types =
            "int8, uint8, int32, uint32, int64, uint64, half, float, double, bfloat16, f8e4m3, f8e5m2";
        assert!(
            help.contains(&format!("Data type [default: float] [possible values: {types}, all]")),
            "{help}"
        );
        let ops = "sum, prod, max, min, avg, mulsum";
        assert!(help.contains(&format!("Reduction [default: sum] [possible values: {ops}, all]")), "{help}");
    }

    #[test]
    fn one_or_all_parses_names_and_all() {
        let parse = |text| OneOrAllOf(DataType::ALL).parse_ref(&Command::new("nccl"), None, OsStr::new(text));
        for text in ["double", "f64"] {
            assert_eq!(parse(text).unwrap(), OneOrAll::One(DataType::Float64));
        }
        assert_eq!(parse("all").unwrap(), OneOrAll::All);
        let error = parse("f99").unwrap_err().to_string();
        assert!(error.contains("is not a data type of NCCL; expected int8"), "{error}");
    }
}
