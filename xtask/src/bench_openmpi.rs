//! Compares the CPU backend with OpenMPI and its peers, or with another build of itself: programs that differ
//! only in the library take turns. docs/cpu-performance.md describes the method.

use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};
use clap::Args;

use crate::process;

mod baseline_report;
mod compiler;
mod configuration;
mod format;
mod lifecycle;
mod machine;
mod measurement;
mod openmpi_report;
mod operation;
mod page;
mod peer_program;
mod programs;
mod sizes;
mod target;

use configuration::{Configuration, Peer};
use measurement::Measurements;
pub(crate) use measurement::median;
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
    /// Further libraries to compare `all_reduce` between 2 processes with, beside OpenMPI
    #[arg(long, value_delimiter = ',', value_enum, conflicts_with = "baseline")]
    peers: Vec<Peer>,
    /// Compare with another build of the CPU backend instead of OpenMPI: its libnccl.so.2, or the folder with it
    #[arg(long, value_name = "PATH")]
    baseline: Option<PathBuf>,
    /// Write the tables to docs/generated/cpu-performance-tables.md instead of printing them
    #[arg(
        long,
        conflicts_with_all = ["ranks", "operations", "sizes", "peers", "baseline", "time_to_create"]
    )]
    write: bool,
    /// Measure the time to create and to split a communicator, and the memory that it uses, instead of operations
    #[arg(long, conflicts_with_all = ["peers", "baseline"])]
    time_to_create: bool,
}

impl Options {
    /// Returns an error if there is nothing to measure in one of the configurations.
    fn check(&self, configurations: &[Configuration]) -> Result<()> {
        for configuration in configurations {
            let is_measured =
                |&ranks| self.operations.iter().any(|&operation| configuration.has(operation, ranks));
            ensure!(
                self.ranks.iter().any(is_measured),
                "{configuration} is measured in all_reduce between 2 processes, which --ranks or --operations leaves out"
            );
        }
        Ok(())
    }
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
            let configurations = Configuration::with_openmpi(&options.peers);
            options.check(&configurations)?;
            let programs = Programs::build(Reference::OpenMpi(&options.peers))?;
            let run = measure(options, &programs, &configurations)?;
            let speed = median(run.copy_speeds.clone()).unwrap_or_default();
            let text = openmpi_report::text(speed, &run.results, &configurations);
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
                for &configuration in turns.iter().filter(|configuration| configuration.has(operation, ranks))
                {
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

    use super::{Configuration, Options, Peer};

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
            [&["--baseline", "lib"][..], &["--ranks", "2"], &["--peers", "oneccl"], &["--time-to-create"]]
        {
            let arguments: Vec<&str> = ["--write"].iter().chain(selection).copied().collect();
            assert!(parse(&arguments).is_err(), "{arguments:?}");
        }
        assert!(parse(&["--baseline", "lib", "--time-to-create"]).is_err());
    }

    #[test]
    fn peers_are_parsed_and_rejected_where_openmpi_does_not_run() {
        assert!(parse(&[]).unwrap().peers.is_empty());
        assert_eq!(parse(&["--peers", "intel-mpi,oneccl"]).unwrap().peers, [Peer::IntelMpi, Peer::OneCcl]);
        for wrong in [&["--peers", "mpich"][..], &["--peers", "oneccl", "--baseline", "lib"]] {
            assert!(parse(wrong).is_err(), "{wrong:?}");
        }
        assert!(parse(&["--peers", "oneccl", "--time-to-create"]).is_err());
    }

    #[test]
    fn peers_without_all_reduce_of_two_processes_are_rejected() {
        let configurations = Configuration::with_openmpi(&[Peer::OneCcl]);
        assert!(parse(&["--ranks", "4,2"]).unwrap().check(&configurations).is_ok());
        for wrong in [&["--ranks", "4"][..], &["--operations", "broadcast,all_to_all"]] {
            let error = parse(wrong).unwrap().check(&configurations).unwrap_err().to_string();
            assert!(error.starts_with("oneCCL is measured in all_reduce between 2 processes"), "{error}");
        }
        assert!(parse(&["--ranks", "4"]).unwrap().check(&Configuration::with_openmpi(&[])).is_ok());
    }
}
