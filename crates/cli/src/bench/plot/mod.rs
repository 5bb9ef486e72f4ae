//! `nccl bench plot`: bandwidth and time against size, of one or several results in one picture.

mod chart;
mod series;
pub(crate) mod theme;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result, ensure};
use clap::Args;

use super::output::report::Report;
use super::output::statistic::Statistic;
use crate::{file, named_file};
use series::Series;

const HELP: &str = "\
Example:
  nccl bench plot before.json after.json -o both.svg

The picture shows the times out of place: medians of single iterations if all results have them, otherwise the means of
the loops. `nccl bench compare` compares the same.

Exit status:
  0    Success
  1    A result cannot be read, or the picture cannot be written
  2    Invalid command line";

#[derive(Debug, Args)]
#[command(after_help = HELP)]
pub(crate) struct PlotArguments {
    /// Results of `nccl bench --json`
    #[arg(value_name = "FILE", required = true)]
    pub(crate) files: Vec<PathBuf>,
    /// File to write, in SVG
    #[arg(short, long, value_name = "FILE")]
    pub(crate) output: PathBuf,
}

pub(crate) fn run(arguments: &PlotArguments) -> Result<ExitCode> {
    let mut reports = vec![];
    for path in &arguments.files {
        let name = path.display().to_string();
        let text = file::read(path).with_context(|| format!("cannot read {name}"))?;
        let report = Report::from_json(&text).with_context(|| name)?;
        let name = path.file_stem().unwrap_or(path.as_os_str()).to_string_lossy().into_owned();
        reports.push((name, report));
    }
    write(&reports, &arguments.output)?;
    Ok(ExitCode::SUCCESS)
}

/// Writes the picture of results, given with their names.
pub(crate) fn write(reports: &[(String, Report)], file: &Path) -> Result<()> {
    let statistic = Statistic::of(reports.iter().map(|(_, report)| report));
    let all = reports.iter().flat_map(|(name, report)| Series::all(name, report, statistic));
    let series: Vec<Series> = all.collect();
    let omitted = reports.iter().flat_map(|(name, report)| series::omitted(name, report, statistic));
    let omitted: Vec<String> = omitted.collect();
    if let Some(first) = omitted.first() {
        let rows =
            format!("no place on logarithmic axes for {} of the rows, the first: {first}", omitted.len());
        ensure!(!series.is_empty(), "there is nothing to draw; {rows}");
        anstream::eprintln!("warning: {rows}");
    }
    ensure!(!series.is_empty(), "there is nothing to draw: the results have no rows");
    named_file::write(file, chart::draw(&series, statistic)?.as_bytes())
}
