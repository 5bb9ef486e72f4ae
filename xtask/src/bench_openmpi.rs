//! Compares the CPU implementation with OpenMPI, or with another build of itself: C programs that differ only in the
//! library take turns. docs/cpu-performance.md describes the method.

use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result, bail};
use clap::Args;

use crate::process;

mod baseline_report;
mod configuration;
mod format;
mod lifecycle;
mod machine;
mod measurement;
mod openmpi_report;
mod operation;
mod page;
mod programs;
mod sizes;
mod target;

use configuration::Configuration;
use measurement::{Measurements, median};
use operation::Operation;
use programs::{Programs, Reference, TIME_LIMIT};
use sizes::Sizes;

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
    /// Sizes in bytes of a rank's larger buffer, as MIN:MAX:FACTOR; the units K, M and G are allowed
    #[arg(long, default_value = "4:64M:4")]
    sizes: Sizes,
    /// Number of times that everything is measured; the medians are reported
    #[arg(long, default_value_t = 15, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    /// Compare with another build of the CPU implementation instead of OpenMPI: its libnccl.so.2, or the folder with it
    #[arg(long, value_name = "PATH")]
    baseline: Option<PathBuf>,
    /// Write the tables to docs/cpu-performance-tables.md instead of printing them
    #[arg(long, conflicts_with_all = ["ranks", "operations", "sizes", "rounds", "baseline", "time_to_create"])]
    write: bool,
    /// Measure the time to create and to split a communicator, and the memory that it uses, instead of operations
    #[arg(long, conflicts_with = "baseline")]
    time_to_create: bool,
}

/// The measurements of all rounds.
#[derive(Debug, Default)]
struct Run {
    results: Measurements,
    /// Programs that failed, with the reason. Each is left out of the later rounds.
    failures: Vec<(Configuration, u32, Operation, String)>,
    /// The share of CPU time that other programs took, sampled before each operation.
    busy: Vec<f64>,
    /// Bytes read and written in a second by a copy on all cores, one value for each round.
    copy_speeds: Vec<f64>,
}

/// Measures what the options select, and prints or writes the tables.
pub(crate) fn run(options: &Options) -> Result<()> {
    if options.time_to_create {
        return lifecycle::run(&Programs::build(Reference::None)?, options.sizes);
    }
    let (run, text) = match &options.baseline {
        None => {
            let programs = Programs::build(Reference::OpenMpi)?;
            let run = measure(options, &programs, &Configuration::WITH_OPENMPI)?;
            let speed = median(run.copy_speeds.clone()).unwrap_or_default();
            let text = openmpi_report::text(speed, &run.results);
            (run, text)
        }
        Some(library) => {
            let programs = Programs::build(Reference::Baseline(library))?;
            let run = measure(options, &programs, &Configuration::WITH_BASELINE)?;
            let text = baseline_report::text(&run.results);
            (run, text)
        }
    };
    let machine = machine::describe(median(run.busy).unwrap_or_default());
    for (configuration, ranks, operation, reason) in &run.failures {
        eprintln!("{configuration}, {operation} with {ranks} ranks: {reason}");
    }
    if options.write && run.failures.is_empty() {
        return page::write(crate::checkout::root(), &page::page(&machine, options.rounds, &text));
    }
    print!("{machine}\n\n{text}");
    if !run.failures.is_empty() {
        bail!("{} programs failed", run.failures.len());
    }
    Ok(())
}

/// Runs every configuration in turns, operation by operation and round by round.
fn measure(options: &Options, programs: &Programs, configurations: &[Configuration]) -> Result<Run> {
    let mut run = Run::default();
    for round in 1..=options.rounds {
        let mut turns = configurations.to_vec();
        if options.baseline.is_none() {
            run.copy_speeds.push(copy_speed(programs)?);
        } else if round % 2 == 0 {
            // Neither build always runs first.
            turns.reverse();
        }
        for &ranks in &options.ranks {
            for &operation in &options.operations {
                eprintln!("round {round} of {}: {operation} with {ranks} ranks", options.rounds);
                run.busy.push(machine::busy());
                for &configuration in &turns {
                    run.add(programs, configuration, ranks, operation, options.sizes)?;
                }
            }
        }
    }
    Ok(run)
}

impl Run {
    /// Measures all sizes of an operation, unless it has failed before.
    fn add(
        &mut self,
        programs: &Programs,
        configuration: Configuration,
        ranks: u32,
        operation: Operation,
        sizes: Sizes,
    ) -> Result<()> {
        let case = (configuration, ranks, operation);
        if self
            .failures
            .iter()
            .any(|&(configuration, ranks, operation, _)| (configuration, ranks, operation) == case)
        {
            return Ok(());
        }
        let mut command = programs.command(configuration, ranks)?;
        let outcome = process::run(command.args(arguments(ranks, operation, sizes)), TIME_LIMIT)?;
        let added = self.results.add(configuration, &outcome.stdout);
        match outcome.failure() {
            // The last line of a failed program may be cut off, so its parse error does not matter.
            Some(reason) => self.failures.push((configuration, ranks, operation, reason)),
            None => {
                eprint!("{}", outcome.stderr);
                added?;
            }
        }
        Ok(())
    }
}

/// Returns the command line that all programs share.
fn arguments(ranks: u32, operation: Operation, sizes: Sizes) -> Vec<String> {
    let values = [
        ("--operation", operation.to_string()),
        ("--ranks", ranks.to_string()),
        ("--sizes", sizes.to_string()),
        ("--batches", "3".into()),
        ("--seconds", "0.01".into()),
        ("--limit", TIME_LIMIT.as_secs().to_string()),
    ];
    values.into_iter().flat_map(|(name, value)| [name.into(), value]).collect()
}

/// Measures the bytes read and written in a second when all cores copy memory.
fn copy_speed(programs: &Programs) -> Result<f64> {
    let outcome = process::run(&mut Command::new(programs.copy()), TIME_LIMIT)?;
    if let Some(reason) = outcome.failure() {
        bail!("the program that measures the copy speed: {reason}");
    }
    let value = outcome.stdout.trim().strip_prefix("copy\t").and_then(|value| value.parse().ok());
    value.with_context(|| format!("invalid copy speed {:?}", outcome.stdout))
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::Options;

    #[derive(Debug, Parser)]
    struct CommandLine {
        #[command(flatten)]
        options: Options,
    }

    fn parse(arguments: &[&str]) -> Result<Options, clap::Error> {
        let words = ["bench-openmpi"].iter().chain(arguments);
        CommandLine::try_parse_from(words).map(|line| line.options)
    }

    #[test]
    fn options_without_arguments_are_those_of_the_page() {
        let options = parse(&["--write"]).unwrap();
        assert_eq!((&*options.ranks, options.operations.len(), options.rounds), (&[2, 4][..], 5, 15));
    }

    #[test]
    fn write_with_a_selection_is_rejected() {
        for selection in
            [&["--rounds", "1"][..], &["--baseline", "lib"], &["--ranks", "2"], &["--time-to-create"]]
        {
            let arguments: Vec<&str> = ["--write"].iter().chain(selection).copied().collect();
            assert!(parse(&arguments).is_err(), "{arguments:?}");
        }
        assert!(parse(&["--baseline", "lib", "--time-to-create"]).is_err());
    }
}
