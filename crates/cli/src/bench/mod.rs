//! `nccl bench`: the measurements of nccl-tests, without MPI or a CUDA toolkit, on GPUs or on the CPU.

mod arguments;
mod benchmark;
mod choices;
mod compare;
mod data;
mod measure;
mod output;
mod pairs;
mod parameters;
mod plot;
mod session;
mod start;

use std::fmt::Display;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Result, bail};
use clap::Args;
use clap::error::ErrorKind;

pub(crate) use arguments::{BenchArguments, with_files_joined};
use arguments::{BenchCommand, MeasureArguments};
use measure::watchdog::Watchdog;
use output::Output;
use parameters::Parameters;
use start::implementation::implementation;
use start::{Start, interrupt};

/// Runs the subcommand, or measures the operation that the arguments select.
pub(crate) fn run(arguments: &BenchArguments) -> Result<ExitCode> {
    match (&arguments.command, &arguments.measure) {
        (Some(BenchCommand::Compare(arguments)), _) => compare::run(arguments),
        (Some(BenchCommand::Pairs(arguments)), _) => pairs::run(arguments),
        (Some(BenchCommand::Plot(arguments)), _) => plot::run(arguments),
        (None, Some(arguments)) => benchmark(arguments),
        (None, None) => bail!("no operation is given"),
    }
}

fn benchmark(arguments: &MeasureArguments) -> Result<ExitCode> {
    if [&arguments.json, &arguments.csv].contains(&&Some(None)) {
        crate::output::keep_libraries_out()?;
    }
    let start = Start::new(&arguments.ranks)?;
    let implementation = start.check(implementation(&arguments.ranks, arguments.backend))?;
    let parameters = start.check(Parameters::new(arguments, implementation.gpus, &start));
    let parameters = parameters.unwrap_or_else(|problem| refuse::<MeasureArguments>("nccl bench", problem));
    let Some(first) = parameters.first() else { bail!("nothing to measure") };
    let job = start.join(&arguments.ranks, implementation, first.threads, first.ranks_per_thread)?;
    let output = Output::new(arguments);
    if job.rank(0) == 0 {
        job.fallback.as_deref().map_or(Ok(()), |reason| output.note(reason))?;
        name_variables_of_nccl_tests();
    }
    let interrupted = output.clone();
    interrupt::end_with_output(move || interrupted.interrupt())?;
    let (interrupted, benchmark, rank) = (output.clone(), first.benchmark, job.rank(0));
    let timeout = Some(first.procedure.timeout).filter(|seconds| *seconds > 0).map(Duration::from_secs);
    let watchdog = Watchdog::start(timeout, move |timeout| {
        interrupted.interrupt();
        let problem = format!("rank {rank}: {benchmark}: nothing has ended for {timeout:?}");
        crate::output::write_to_stderr(&format!("error: {problem}\n"));
        interrupt::end(1)
    })?;
    let own = output.clone();
    let outcome = job.run(move |job, thread| session::run(job, thread, &parameters, &own, &watchdog));
    if outcome.is_err() {
        // The rows that have been measured are not lost.
        output.interrupt();
    }
    Ok(exit_code(outcome?))
}

/// Names the variables of nccl-tests that are set, as a run by nccl-tests would differ.
fn name_variables_of_nccl_tests() {
    for (name, _) in libnccl::internal::environment::variables() {
        let name = name.to_string_lossy();
        if name.starts_with("NCCL_TESTS_") {
            crate::output::write_to_stderr(&format!(
                "warning: {name} is ignored: nccl bench does not read the variables of nccl-tests\n"
            ));
        }
    }
}

/// Ends the program with a message about the arguments of a command, and its usage.
fn refuse<A: Args>(command: &'static str, problem: impl Display) -> ! {
    A::augment_args(clap::Command::new(command)).error(ErrorKind::ValueValidation, problem).exit()
}

/// Returns the exit status of a verdict that has been printed.
fn exit_code(is_good: bool) -> ExitCode {
    if is_good { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
