//! The CPU implementation side by side with OpenMPI: programs in C that differ in nothing but the library, run in
//! turns. docs/cpu-performance.md says what is measured and why so.

use std::fmt::{self, Display, Formatter};
use std::process::Command;
use std::str::FromStr;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use clap::{Args, ValueEnum};

use crate::process;

mod lifecycle;
mod machine;
mod measurement;
mod programs;
mod report;
mod target;

use measurement::Measurements;
use programs::Programs;

/// The longest that one program may run: several times what the slowest needs.
const LIMIT: Duration = Duration::from_secs(120);

#[derive(Debug, Args)]
pub(crate) struct Options {
    /// Numbers of ranks
    #[arg(long, value_delimiter = ',', default_value = "2,4", value_parser = clap::value_parser!(u32).range(2..=64))]
    ranks: Vec<u32>,
    /// Operations
    #[arg(
        long,
        value_delimiter = ',',
        value_enum,
        default_value = "all_reduce,all_gather,reduce_scatter,broadcast,all_to_all"
    )]
    operations: Vec<Operation>,
    /// Bytes of the larger buffer of a rank: the least, the most, and the factor between two; K, M and G are known
    #[arg(long, default_value = "4:64M:4")]
    sizes: Sizes,
    /// How many times to measure everything; the medians count
    #[arg(long, default_value_t = 15, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    /// Measure instead how long communicators take to create and to split, and the memory that they hold
    #[arg(long)]
    time_to_create: bool,
}

/// What is measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
#[value(rename_all = "snake_case")]
pub(crate) enum Operation {
    AllReduce,
    AllGather,
    ReduceScatter,
    Broadcast,
    AllToAll,
}

impl Display for Operation {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::AllReduce => "all_reduce",
            Self::AllGather => "all_gather",
            Self::ReduceScatter => "reduce_scatter",
            Self::Broadcast => "broadcast",
            Self::AllToAll => "all_to_all",
        })
    }
}

/// With what it is measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Way {
    OpenMpi,
    /// The CPU implementation: ranks are processes, their buffers from `malloc`.
    Malloc,
    /// The same with buffers from `ncclMemAlloc`.
    NcclMemAlloc,
    /// The CPU implementation: ranks are threads of one process.
    Threads,
}

impl Way {
    pub(crate) const ALL: [Self; 4] = [Self::OpenMpi, Self::Malloc, Self::NcclMemAlloc, Self::Threads];
    pub(crate) const OURS: [Self; 3] = [Self::Malloc, Self::NcclMemAlloc, Self::Threads];
}

impl Display for Way {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::OpenMpi => "OpenMPI",
            Self::Malloc => "malloc",
            Self::NcclMemAlloc => "ncclMemAlloc",
            Self::Threads => "threads",
        })
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Sizes {
    least: u64,
    most: u64,
    factor: u64,
}

impl Display for Sizes {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}:{}", self.least, self.most, self.factor)
    }
}

impl FromStr for Sizes {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let numbers: Option<Vec<u64>> = text.split(':').map(bytes).collect();
        match numbers.as_deref() {
            Some(&[least, most, factor]) if (4..=most).contains(&least) && factor >= 2 => {
                Ok(Self { least, most, factor })
            }
            _ => {
                Err("sizes are <least>:<most>:<factor>, from 4 bytes on and with a factor of 2 or more"
                    .into())
            }
        }
    }
}

/// The number in a text such as `64` or `1M`.
fn bytes(text: &str) -> Option<u64> {
    let (digits, unit) = match text.char_indices().last()? {
        (at, 'K') => (&text[..at], 1 << 10),
        (at, 'M') => (&text[..at], 1 << 20),
        (at, 'G') => (&text[..at], 1 << 30),
        _ => (text, 1),
    };
    digits.parse::<u64>().ok()?.checked_mul(unit)
}

pub(crate) fn run(options: &Options) -> Result<()> {
    let programs = programs::build(!options.time_to_create)?;
    if options.time_to_create {
        return lifecycle::run(&programs, options.sizes);
    }
    let cases: Vec<(u32, Operation)> =
        options.ranks.iter().flat_map(|&ranks| options.operations.iter().map(move |&o| (ranks, o))).collect();
    let mut busy = Vec::new();
    let mut speeds = Vec::new();
    let mut results = Measurements::default();
    let mut failures = Vec::new();
    for round in 1..=options.rounds {
        speeds.push(copy_speed(&programs)?);
        for &(ranks, operation) in &cases {
            eprintln!("round {round} of {}: {operation} with {ranks} ranks", options.rounds);
            busy.push(machine::busy());
            for way in Way::ALL {
                if failures.iter().any(|&(failed, _)| failed == (way, ranks, operation)) {
                    continue;
                }
                let mut command = programs.command(way, ranks);
                let ended = process::run(command.args(arguments(options, ranks, operation)), LIMIT)?;
                let added = results.add(way, &ended.printed);
                match ended.failure() {
                    // What it printed may end with anything.
                    Some(reason) => failures.push(((way, ranks, operation), reason)),
                    None => {
                        eprint!("{}", ended.complained);
                        added?;
                    }
                }
            }
        }
    }
    let machine = machine::describe(measurement::median(busy).unwrap_or_default());
    print!("{}", report::text(&machine, measurement::median(speeds).unwrap_or_default(), &results));
    for ((way, ranks, operation), reason) in &failures {
        println!("{way}, {operation} with {ranks} ranks: {reason}");
    }
    if failures.is_empty() {
        Ok(())
    } else {
        bail!("{} of the programs did not do their work", failures.len())
    }
}

/// The command line that all programs understand.
fn arguments(options: &Options, ranks: u32, operation: Operation) -> Vec<String> {
    let values = [
        ("--operation", operation.to_string()),
        ("--ranks", ranks.to_string()),
        ("--sizes", options.sizes.to_string()),
        ("--batches", "3".into()),
        ("--seconds", "0.01".into()),
        ("--limit", LIMIT.as_secs().to_string()),
    ];
    values.into_iter().flat_map(|(name, value)| [name.into(), value]).collect()
}

/// Bytes read and written in a second when this machine copies memory with all its cores.
fn copy_speed(programs: &Programs) -> Result<f64> {
    let ended = process::run(&mut Command::new(&programs.copy), LIMIT)?;
    if let Some(reason) = ended.failure() {
        bail!("the program that measures the speed of copying: {reason}");
    }
    let value = ended.printed.trim().strip_prefix("copy\t").and_then(|value| value.parse().ok());
    value.with_context(|| format!("the speed of copying is not {:?}", ended.printed))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_units() {
        assert_eq!("4:64M:4".parse(), Ok(Sizes { least: 4, most: 64 << 20, factor: 4 }));
        assert_eq!("1K:1K:2".parse(), Ok(Sizes { least: 1024, most: 1024, factor: 2 }));
        for wrong in
            ["", "4:64M", "4:64M:1", "8:4:2", "0:4:2", "4:8:2:2", "4:M:2", "4:20000000000G:2", "4:8é:2"]
        {
            assert!(wrong.parse::<Sizes>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn names_are_those_of_the_programs() {
        for operation in Operation::value_variants() {
            let value = operation.to_possible_value().expect("none is hidden");
            assert_eq!(value.get_name(), operation.to_string());
        }
    }
}
