//! The arguments of a measurement. Options with a short name, and their numeric values, are the same as in nccl-tests 2.19.6.

use std::convert::Infallible;
use std::error::Error;
use std::ffi::OsStr;
use std::fmt::Display;
use std::path::PathBuf;
use std::str::FromStr;

use clap::ArgAction::Set;
use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use clap::error::ErrorKind;
use clap::{Arg, Args, Command, ValueEnum};
use libnccl::DataType;
use libnccl::config::CtaPolicy;

use super::benchmark::Benchmark;
use super::data::Reduction;
use super::start::{Backend, RankArguments};
use crate::value_parser::{MAX_RANKS, size, size_from_0, whole};

#[derive(Debug, Clone, Args)]
// The group counts as present if the operation is: clap does not count the arguments of a nested struct.
#[group(arg = "benchmark")]
pub(crate) struct MeasureArguments {
    /// Operation to measure
    #[arg(value_enum, value_name = "OPERATION")]
    pub(crate) benchmark: Benchmark,
    /// Refused: a word after the operation
    #[arg(hide = true, value_parser = no_word)]
    pub(crate) word: Option<Infallible>,

    /// Data type
    #[arg(short = 'd', long, default_value = "float", value_parser = OneOrAllOf(DataType::ALL))]
    pub(crate) datatype: Box<[DataType]>,
    /// Reduction
    #[arg(short = 'o', long, default_value = "sum", value_parser = OneOrAllOf(Reduction::ALL))]
    pub(crate) op: Box<[Reduction]>,
    /// Root of the operations that have one; all or -1 for each rank in turn
    #[arg(short = 'r', long, value_name = "RANK", default_value = "0", value_parser = root)]
    pub(crate) root: Root,

    // A heading also applies to the arguments that follow.
    #[command(flatten, next_help_heading = "Sizes")]
    pub(crate) sizes: SizeArguments,
    #[command(flatten, next_help_heading = "Ranks")]
    pub(crate) ranks: RankArguments,
    /// Number of threads of each process [default: 1 with -g, otherwise that of ranks]
    #[arg(short = 't', long, value_name = "N", value_parser = whole::<usize>(1..=MAX_RANKS))]
    #[arg(conflicts_with_all = ["ranks", "processes"])]
    pub(crate) nthreads: Option<usize>,
    /// Number of ranks of each thread, which starts their operations as a group [default: 1]
    #[arg(short = 'g', long, value_name = "N", value_parser = whole::<usize>(1..=MAX_RANKS))]
    #[arg(conflicts_with_all = ["ranks", "processes"])]
    pub(crate) ngpus: Option<usize>,
    /// Initialize the threads' ranks at the same time (1), as this program always does; 0 is refused
    #[arg(short = 'p', long = "parallel_init", value_name = "0|1", value_parser = parallel_init)]
    pub(crate) parallel_init: Option<u8>,
    /// Reach the library in this way [default: dlopen, or link if the program is linked with one]
    #[arg(long, value_enum, conflicts_with = "cpu")]
    pub(crate) backend: Option<Backend>,

    #[command(flatten, next_help_heading = "Iterations")]
    pub(crate) procedure: Procedure,
    #[command(flatten, next_help_heading = "Output")]
    pub(crate) columns: Columns,
    /// Print JSON instead of the table, or write it to FILE; it has times of single iterations too. The `=` may be a space unless
    /// FILE is the name of an operation
    #[arg(long, value_name = "FILE", num_args = 0..=1, require_equals = true)]
    pub(crate) json: Option<Option<PathBuf>>,
    /// Write JSON to FILE, as --json=FILE does
    #[arg(short = 'J', long = "output_file", value_name = "FILE", conflicts_with = "json")]
    pub(crate) output_file: Option<PathBuf>,
    /// Print comma-separated values instead of the table, or write them to FILE, likewise
    #[arg(long, value_name = "FILE", num_args = 0..=1, require_equals = true)]
    pub(crate) csv: Option<Option<PathBuf>>,
    /// Draw bandwidth and time against size into FILE, in SVG, as `nccl bench plot` does
    #[arg(long, value_name = "FILE")]
    pub(crate) plot: Option<PathBuf>,
}

#[derive(Debug, Clone, Args)]
pub(crate) struct SizeArguments {
    /// Smallest size in bytes, with an optional unit: 64K, 1M, 1G [default: 8]
    #[arg(short = 'b', long, value_name = "SIZE", value_parser = size_from_0)]
    pub(crate) minbytes: Option<u64>,
    /// Largest size [default: 4M on the CPU, 128M on GPUs]
    #[arg(short = 'e', long, value_name = "SIZE", value_parser = size_from_0)]
    pub(crate) maxbytes: Option<u64>,
    /// Factor between a size and the next [default: 4 on the CPU, 2 on GPUs]
    #[arg(short = 'f', long, value_name = "FACTOR", value_parser = whole::<u64>(2..=u64::MAX))]
    pub(crate) stepfactor: Option<u64>,
    /// Difference between a size and the next, instead of a factor
    #[arg(short = 'i', long, value_name = "SIZE", value_parser = size, conflicts_with = "stepfactor")]
    pub(crate) stepbytes: Option<u64>,
    /// Index of the first element of each buffer, to misalign it
    #[arg(short = 'u', long, value_name = "INDEX", default_value_t = 0)]
    #[arg(value_parser = whole::<usize>(0..=1 << 20))]
    pub(crate) unalign: usize,
}

/// The arguments that control the measurement of each size.
#[derive(Debug, Clone, Copy, Args)]
pub(crate) struct Procedure {
    /// Measured iterations of each size
    #[arg(short = 'n', long, default_value_t = 20, value_parser = whole::<u32>(1..=u32::MAX))]
    pub(crate) iters: u32,
    /// Operations of each iteration, started as a group
    #[arg(short = 'm', long = "agg_iters", value_name = "ITERS", default_value_t = 1)]
    #[arg(value_parser = whole::<u32>(1..=1024))]
    pub(crate) agg_iters: u32,
    /// Warm-up iterations of the smallest size and of each twice as large as the one before
    #[arg(short = 'w', long = "warmup_iters", value_name = "ITERS", default_value_t = 5)]
    #[arg(value_parser = whole::<u32>(0..=u32::MAX))]
    pub(crate) warmup_iters: u32,
    /// Times that all sizes are measured, one row each; 0: until Ctrl-C
    #[arg(short = 'N', long = "run_cycles", value_name = "CYCLES", default_value_t = 1)]
    #[arg(value_parser = whole::<u32>(0..=u32::MAX))]
    pub(crate) run_cycles: u32,
    /// Times that the results of each row are checked, which stop at the first wrong one
    #[arg(short = 'c', long, default_value_t = 1, value_parser = whole::<u32>(0..=u32::MAX))]
    pub(crate) check: u32,
    /// Wait after each iteration
    #[arg(short = 'z', long, value_name = "0|1|2|3", value_enum, default_value_t = Blocking::None)]
    pub(crate) blocking: Blocking,
    /// Capture the iterations in a CUDA graph and launch it so many times
    #[arg(short = 'G', long, value_name = "LAUNCHES", default_value_t = 0)]
    #[arg(value_parser = whole::<u32>(0..=u32::MAX))]
    pub(crate) cudagraph: u32,
    /// Use the default stream
    #[arg(short = 'y', long = "stream_null", value_name = "0|1", default_value = "0", action = Set)]
    #[arg(value_parser = switch())]
    pub(crate) stream_null: bool,
    /// Fail if nothing ends in so many seconds
    #[arg(short = 'T', long, value_name = "SECONDS", default_value_t = 0)]
    #[arg(value_parser = whole::<u64>(0..=u64::MAX))]
    pub(crate) timeout: u64,
    /// Registration of the buffers
    #[arg(short = 'R', long = "local_register", value_name = "0|1|2", value_enum)]
    #[arg(default_value_t = Register::None)]
    pub(crate) local_register: Register,
    /// Policy for thread blocks
    #[arg(short = 'x', long = "cta_policy", value_name = "0|1|2", value_parser = policy())]
    pub(crate) cta_policy: Option<CtaPolicy>,
    /// Refused: kernels of the device API
    #[arg(short = 'D', long = "device_implementation", hide = true, value_parser = no_kernels)]
    pub(crate) device_implementation: Option<u8>,
    /// Refused, as -D is
    #[arg(short = 'V', long = "device_cta_count", hide = true, value_parser = no_kernels)]
    pub(crate) device_cta_count: Option<u8>,
}

/// The arguments that select the printed times.
#[derive(Debug, Clone, Copy, Args)]
pub(crate) struct Columns {
    /// Choice among the ranks' times to print
    #[arg(short = 'a', long, value_name = "0|1|2|3", value_enum, default_value_t = Average::Mean)]
    pub(crate) average: Average,
    /// Print the time that rank 0 took to start the operations, without waiting for them
    #[arg(short = 'C', long = "report_cputime", value_name = "0|1", default_value = "0", action = Set)]
    #[arg(value_parser = switch())]
    pub(crate) report_cputime: bool,
    /// Measure single iterations too, and print their minimum, maximum, 99th percentile and variation
    #[arg(short = 'I', long = "per_iter_timing", value_name = "0|1", default_value = "0", action = Set)]
    #[arg(value_parser = switch())]
    pub(crate) per_iter_timing: bool,
    /// First iterations that -I leaves out
    #[arg(short = 'K', long = "per_iter_skip", value_name = "COUNT", default_value_t = 0)]
    #[arg(value_parser = whole::<u32>(0..=u32::MAX))]
    pub(crate) per_iter_skip: u32,
    /// Print the time of each row, in UTC
    #[arg(short = 'S', long = "report_timestamps", value_name = "0|1", default_value = "0", action = Set)]
    #[arg(value_parser = switch())]
    pub(crate) report_timestamps: bool,
    /// Print how much GPU memory was used
    #[arg(short = 'M', long, value_name = "0|1", default_value = "0", action = Set, value_parser = switch())]
    pub(crate) memory: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Blocking {
    /// No wait
    #[value(name = "0")]
    None,
    /// Wait for all ranks
    #[value(name = "1")]
    Barrier,
    /// Wait for the rank's own work
    #[value(name = "2")]
    Wait,
    /// Wait for all ranks, which does not count
    #[value(name = "3")]
    UncountedBarrier,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Register {
    /// No registration
    #[value(name = "0")]
    None,
    /// Register with each communicator, by `ncclCommRegister`
    #[value(name = "1")]
    Local,
    /// Register as symmetric windows, with the same offsets on all ranks
    #[value(name = "2")]
    Symmetric,
}

/// The rule that computes a row's time from the ranks' times.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Average {
    /// The time of rank 0
    #[value(name = "0")]
    RankZero,
    /// The mean
    #[value(name = "1")]
    Mean,
    /// The minimum
    #[value(name = "2")]
    Minimum,
    /// The maximum
    #[value(name = "3")]
    Maximum,
}

impl Average {
    pub(crate) fn of(self, times: &[f64]) -> f64 {
        match self {
            Self::RankZero => times.first().copied().unwrap_or_default(),
            Self::Mean => times.iter().sum::<f64>() / times.len().max(1) as f64,
            Self::Minimum => times.iter().copied().fold(f64::INFINITY, f64::min),
            Self::Maximum => times.iter().copied().fold(0.0, f64::max),
        }
    }
}

fn policy() -> impl TypedValueParser<Value = CtaPolicy> {
    let values = [
        PossibleValue::new("0").help("Default: the number that is fastest"),
        PossibleValue::new("1").help("Efficiency: few"),
        PossibleValue::new("2").help("Zero: none if copy engines or the switch can do the work"),
    ];
    PossibleValuesParser::new(values).map(|text| match &*text {
        "1" => CtaPolicy::Efficiency,
        "2" => CtaPolicy::Zero,
        _ => CtaPolicy::Default,
    })
}

fn switch() -> impl TypedValueParser<Value = bool> {
    PossibleValuesParser::new(["0", "1"]).map(|text| text == "1")
}

fn no_kernels(_: &str) -> Result<u8, String> {
    Err("nccl bench measures NCCL's own operations; it has no kernels of the device API".into())
}

fn no_word(_: &str) -> Result<Infallible, String> {
    Err("expected one operation".into())
}

fn parallel_init(text: &str) -> Result<u8, &'static str> {
    match text {
        "1" => Ok(1),
        "0" => Err("threads initialize their ranks at the same time; one after another would wait for ever"),
        _ => Err("expected 1"),
    }
}

/// A root, or `None` for each rank in turn. Without this alias, clap would treat an `Option` as an optional argument.
pub(crate) type Root = Option<usize>;

fn root(text: &str) -> Result<Root, String> {
    if text == "all" || text == "-1" {
        return Ok(None);
    }
    whole::<usize>(0..=MAX_RANKS - 1)(text).map(Some).map_err(|problem| format!("{problem}, or all"))
}

/// Parser for the name of one of these values, or `all`.
#[derive(Debug, Clone, Copy)]
struct OneOrAllOf<T: 'static>(&'static [T]);

impl<T> TypedValueParser for OneOrAllOf<T>
where
    T: FromStr<Err: Into<Box<dyn Error + Send + Sync>>> + Display + Clone + Send + Sync,
{
    type Value = Box<[T]>;

    fn parse_ref(
        &self,
        command: &Command,
        option: Option<&Arg>,
        text: &OsStr,
    ) -> Result<Self::Value, clap::Error> {
        let parse = |text: &str| match text.eq_ignore_ascii_case("all") {
            true => Ok(self.0.into()),
            false => text.parse().map(|value| Box::from([value])),
        };
        TypedValueParser::parse_ref(&parse, command, option, text)
    }

    fn possible_values(&self) -> Option<Box<dyn Iterator<Item = PossibleValue> + '_>> {
        // Clap needs static texts.
        let name = |value: &T| &*value.to_string().leak();
        Some(Box::new(self.0.iter().map(name).chain(["all"]).map(PossibleValue::new)))
    }
}

/// Exits with an error about a command's arguments, followed by the command's usage.
pub(crate) fn refuse<A: Args>(command: &'static str, problem: impl Display) -> ! {
    A::augment_args(Command::new(command)).error(ErrorKind::ValueValidation, problem).exit()
}

#[cfg(test)]
#[path = "../../tests/unit/arguments.rs"]
mod tests;
