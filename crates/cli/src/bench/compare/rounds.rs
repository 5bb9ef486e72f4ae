//! Measurements with two backends in turn, each by a process of this program.

use std::ffi::OsString;
use std::process::Stdio;

use anyhow::{Context, Result, bail, ensure};

use super::side::Side;
use crate::bench::output::report::Report;
use crate::bench::start::backend::Backend;
use crate::run::{THIS_PROGRAM, program_that_ends_with_this};

/// Measures in turn, so that what else the machine does falls on both. Each round begins with the other backend than the
/// round before.
pub(crate) fn run(backends: [Backend; 2], rounds: u32, arguments: &[OsString]) -> Result<(Side, Side)> {
    let mut reports = [vec![], vec![]];
    for round in 0..rounds {
        let order = if round % 2 == 0 { [0, 1] } else { [1, 0] };
        for side in order {
            reports[side].push(once(backends[side], arguments)?);
        }
    }
    let [one, two] = reports;
    Ok((side(backends[0], one)?, side(backends[1], two)?))
}

fn side(backend: Backend, reports: Vec<Report>) -> Result<Side> {
    let mut reports = reports.into_iter();
    let first = reports.next().context("no round")?;
    Ok(Side { name: backend.name().into(), first, others: reports.collect() })
}

fn once(backend: Backend, arguments: &[OsString]) -> Result<Report> {
    let mut command = program_that_ends_with_this(THIS_PROGRAM);
    command.arg("bench").args(arguments).args(["--backend", backend.name(), "--json"]);
    let output = command.stdin(Stdio::null()).stderr(Stdio::inherit()).output();
    let output = output.context("cannot start this program again")?;
    if !output.status.success() {
        bail!("the measurement with {} ended: {}", backend.name(), output.status);
    }
    let report = Report::from_json(&output.stdout)
        .with_context(|| format!("the measurement with {}", backend.name()))?;
    let measured = &report.library.backend;
    ensure!(measured == backend.name(), "asked for {}, and {measured} was measured", backend.name());
    Ok(report)
}
