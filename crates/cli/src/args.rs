//! The command line.

use std::ffi::OsString;
use std::fmt::Display;
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::str::FromStr;

use clap::{Args, Parser, Subcommand};

use crate::bench::BenchArguments;
use crate::exit_status;

const RUN_HELP: &str = "\
Each rank gets the variables of torchrun: RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR, MASTER_PORT and others. If one fails, \
the others get SIGTERM, and SIGKILL 10 s later. No process remains, however the program ends.

Exit status:
  0    All ranks succeeded
  N    That of the first rank that failed; 128 and its number if a signal ended it
  1    A failure of nccl run itself
  2    Invalid command line
  141  The reader of the output closed it";

/// The limit of ranks, more than one host can use.
pub(crate) const MAX_RANKS: usize = 1024;

/// Diagnose and measure NCCL.
#[derive(Debug, Parser)]
#[command(name = "nccl", version, propagate_version = true, after_help = exit_status::HELP)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Measure an operation and check its results, as nccl-tests does
    Bench(Box<BenchArguments>),
    /// Report which NCCL library a program finds, and what it supports
    Doctor(DoctorArguments),
    /// Start the ranks of a program on this host
    Run(RunArguments),
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
pub(crate) struct DoctorArguments {
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
    /// Examine this NCCL library instead of searching for one
    #[arg(long, value_name = "PATH")]
    pub(crate) library: Option<PathBuf>,
}

/// Returns a parser of whole numbers of a range.
pub(crate) fn whole<T>(range: RangeInclusive<T>) -> impl Fn(&str) -> Result<T, String> + Clone
where
    T: Copy + FromStr + PartialOrd + Display,
{
    move |text| {
        let number = text.parse().ok().filter(|number| range.contains(number));
        number.ok_or_else(|| format!("expected a whole number from {} to {}", range.start(), range.end()))
    }
}

pub(crate) fn size(text: &str) -> Result<u64, String> {
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

#[cfg(test)]
mod tests {
    use super::{Arguments, size, whole};
    use clap::CommandFactory;

    #[test]
    fn command_line_is_consistent() {
        Arguments::command().debug_assert();
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
}
