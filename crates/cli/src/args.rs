//! The command line, and what is wrong with a value that cannot be.

use std::fmt::Display;
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::str::FromStr;

use clap::{Args, Parser, Subcommand, ValueEnum};
use libnccl::{DataType, ReduceOp};

/// More ranks than one host can have any use for.
const MOST_RANKS: usize = 1024;

/// Diagnose and measure NCCL.
#[derive(Debug, Parser)]
#[command(name = "nccl", version, propagate_version = true)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Measure an operation, and check its results, as nccl-tests does
    Bench(BenchArguments),
    /// Say which NCCL library is found, and what it can do
    Doctor(DoctorArguments),
}

#[derive(Debug, Args)]
pub(crate) struct DoctorArguments {
    /// Write JSON
    #[arg(long)]
    pub(crate) json: bool,
    /// Examine this NCCL library instead of searching for one
    #[arg(long, value_name = "PATH")]
    pub(crate) library: Option<PathBuf>,
}

#[derive(Debug, Args)]
#[command(allow_negative_numbers = true)] // So that they are bad values, and not unknown options.
pub(crate) struct BenchArguments {
    /// The operation
    #[arg(value_enum, value_name = "OPERATION")]
    pub(crate) operation: Operation,
    /// Smallest size, in bytes or as 64K, 1M, 1G [default: 8]
    #[arg(short = 'b', long, value_name = "SIZE", value_parser = size)]
    pub(crate) minbytes: Option<u64>,
    /// Largest size [default: 4M on the CPU, 128M on GPUs]
    #[arg(short = 'e', long, value_name = "SIZE", value_parser = size)]
    pub(crate) maxbytes: Option<u64>,
    /// Multiply each size by this to get the next [default: 4 on the CPU, 2 on GPUs]
    #[arg(short = 'f', long, value_name = "FACTOR", value_parser = whole::<u64>(2..=u64::MAX))]
    pub(crate) stepfactor: Option<u64>,
    /// Add this to each size to get the next, instead
    #[arg(short = 'i', long, value_name = "SIZE", value_parser = size, conflicts_with = "stepfactor")]
    pub(crate) stepbytes: Option<u64>,
    /// How often each size is measured
    #[arg(short = 'n', long, default_value_t = 20, value_parser = whole::<u32>(1..=u32::MAX))]
    pub(crate) iters: u32,
    /// How often the largest and the smallest size run first, unmeasured
    #[arg(short = 'w', long = "warmup_iters", value_name = "ITERS", default_value_t = 5)]
    #[arg(value_parser = whole::<u32>(0..=u32::MAX))]
    pub(crate) warmup_iters: u32,
    /// Element type, or all
    #[arg(short = 'd', long, default_value = "float")]
    pub(crate) datatype: OneOrAll<DataType>,
    /// Reduction: sum, prod, max, min or avg, or all
    #[arg(short = 'o', long, default_value = "sum")]
    pub(crate) op: OneOrAll<ReduceOp>,
    /// Root of broadcast and reduce
    #[arg(short = 'r', long, value_name = "RANK", default_value_t = 0)]
    #[arg(value_parser = whole::<usize>(0..=MOST_RANKS - 1))]
    pub(crate) root: usize,
    /// Compare the results with what they should be (1) or not (0)
    #[arg(short = 'c', long, default_value_t = 1, value_parser = whole::<u8>(0..=1))]
    pub(crate) check: u8,
    /// How many ranks take part [default: one for each GPU; without GPUs 2]
    #[arg(long, value_name = "N", value_parser = whole::<usize>(1..=MOST_RANKS))]
    pub(crate) ranks: Option<usize>,
    /// Make every rank a process instead of a thread
    #[arg(long)]
    pub(crate) processes: bool,
    /// Use the CPU implementation even if there are NCCL and GPUs
    #[arg(long, conflicts_with = "library")]
    pub(crate) cpu: bool,
    /// Use this NCCL library instead of searching for one
    #[arg(long, value_name = "PATH")]
    pub(crate) library: Option<PathBuf>,
}

/// What is measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
#[value(rename_all = "snake_case")]
pub(crate) enum Operation {
    /// Every rank gets the combination of all ranks' buffers
    AllReduce,
    /// Every rank gets the root's buffer
    Broadcast,
    /// The root gets the combination of all ranks' buffers
    Reduce,
    /// Every rank gets all ranks' parts
    AllGather,
    /// Every rank gets its part of the combination of all ranks' buffers
    ReduceScatter,
    /// Every rank sends to the next one and receives from the one before
    #[value(name = "sendrecv")]
    SendRecv,
}

/// Parses a whole number of a range.
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

/// What is named, or everything that there is.
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
    use libnccl::DataType;

    use super::{Arguments, OneOrAll, size, whole};

    #[test]
    fn the_command_line_is_consistent() {
        Arguments::command().debug_assert();
    }

    #[test]
    fn sizes() {
        let sizes = [("8", 8), ("64K", 65_536), ("64k", 65_536), ("1M", 1 << 20), ("3G", 3 << 30)];
        for (text, bytes) in sizes {
            assert_eq!(size(text), Ok(bytes), "{text}");
        }
        for text in ["", "K", "0", "0M", "-1", "1.5M", "8 K", "1T", "ä", "18446744073709551615K"] {
            assert!(size(text).is_err(), "{text}");
        }
    }

    #[test]
    fn whole_numbers() {
        let parse = whole::<usize>(1..=1024);
        assert_eq!((parse("1"), parse("1024")), (Ok(1), Ok(1024)));
        for text in ["0", "-1", "1025", "two", "", "1.0"] {
            assert_eq!(parse(text).unwrap_err(), "expected a whole number from 1 to 1024", "{text}");
        }
    }

    #[test]
    fn names() {
        assert_eq!("double".parse(), Ok(OneOrAll::One(DataType::Float64)));
        assert_eq!("f64".parse(), Ok(OneOrAll::One(DataType::Float64)));
        assert_eq!("all".parse(), Ok(OneOrAll::<DataType>::All));
        let error = "f99".parse::<OneOrAll<DataType>>().unwrap_err().to_string();
        assert!(error.contains("is not a data type of NCCL; expected int8"), "{error}");
    }
}
