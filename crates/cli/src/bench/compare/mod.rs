//! `nccl bench compare`: two results side by side, size by size, or two backends that are measured in turn.

pub(crate) mod arguments;
mod comparison;
mod rounds;
mod side;

use std::process::ExitCode;

use anyhow::{Result, bail};
use clap::error::ErrorKind;
use clap::{Args, Command};

use crate::output;
use arguments::CompareArguments;
use comparison::Comparison;
use side::Side;

/// Compares what the arguments name.
pub(crate) fn run(arguments: &CompareArguments) -> Result<ExitCode> {
    let (one, two) = match (&arguments.files[..], &arguments.backend[..]) {
        ([one, two], _) => (Side::read(one)?, Side::read(two)?),
        (_, [one, two]) if !arguments.measurement.is_empty() => {
            rounds::run([*one, *two], arguments.rounds, &arguments.measurement)?
        }
        (_, backends) => {
            let problem = match backends.len() {
                2 => "no operation to measure: expected the arguments of nccl bench after --".into(),
                number => format!("--backend is given {number} times: expected two to compare"),
            };
            CompareArguments::augment_args(Command::new("nccl bench compare"))
                .error(ErrorKind::ValueValidation, problem)
                .exit()
        }
    };
    let comparison = Comparison::new(one, two, arguments.threshold)?;
    output::print(&comparison, arguments.json)?;
    if !comparison.wrong.is_empty() {
        bail!("wrong elements in {} of the rows: their times are of something else", comparison.wrong.len());
    }
    let (below, without_ratio) = (comparison.below(), comparison.without_ratio);
    match arguments.threshold {
        Some(threshold) if below > 0 => {
            bail!("{below} of {} ratios are below {threshold}", comparison.rows.len())
        }
        Some(threshold) if without_ratio > 0 => {
            bail!("{without_ratio} of the rows have no ratio, which could be below {threshold}")
        }
        _ => Ok(ExitCode::SUCCESS),
    }
}
