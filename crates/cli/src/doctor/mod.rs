//! `nccl doctor`: reports what a job of NCCL would find on this machine, and what to do.
//!
//! It changes nothing. A child process loads the driver and libraries. Tests replace [`System`]: files and the environment.

mod advisories;
mod child;
mod copies;
mod driver;
mod finding;
mod library;
mod limits;
mod network;
#[cfg(test)]
#[path = "../../tests/unit/doctor.rs"]
mod tests;
mod variables;

use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

use anstyle::{AnsiColor, Style};
use anyhow::Result;
use clap::Args;
use itertools::Itertools;
use libnccl::Version;
use serde::Serialize;

use crate::nccl_file::Variables;
use crate::output::{self, in_line};
use crate::settings::Settings;
use crate::system::System;
use driver::Driver;
use finding::{Finding, Level, Section};
use library::{Library, Search, Tried};

#[derive(Debug, Args)]
#[command(after_help = include_str!("../help/doctor.txt").trim_end())]
pub(crate) struct DoctorArguments {
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// Examine this NCCL library instead of searching for one
    #[arg(long, value_name = "PATH")]
    library: Option<PathBuf>,
    /// Report a library older than this version as a problem
    #[arg(long, value_name = "RELEASE")]
    needs: Option<Version>,
    /// Be the child process that loads the driver and the library
    #[arg(long, hide = true)]
    probe: bool,
}

pub(crate) fn run(arguments: &DoctorArguments) -> Result<ExitCode> {
    let library = arguments.library.as_deref();
    if arguments.probe {
        return child::run(library);
    }
    let system = System::here();
    let (driver, search) = child::examine(library);
    let report = examine(&system, search, driver.with(&system), arguments.needs);
    if arguments.json {
        output::print_json(&report)?;
    } else {
        report.print(&mut anstream::stdout())?;
    }
    Ok(if report.starts { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

struct Examined<'a> {
    system: &'a System,
    settings: &'a Settings,
    driver: &'a Driver,
    library: Option<&'a Library>,
    known: &'a Variables,
}

fn examine(system: &System, search: Search, driver: Driver, needs: Option<Version>) -> Report {
    let library = search.library.as_ref();
    let mut settings = Settings::of(system);
    let call = library.and_then(|library| library.probe.call.as_ref());
    let unread = call.map(|call| settings.correct(&call.added, child::is_forced)).unwrap_or_default();
    let rdma = network::has_rdma(system, &settings);
    let known = library.map(|library| Variables::of(&library.file)).unwrap_or_default();
    let examined = Examined { system, settings: &settings, driver: &driver, library, known: &known };
    let nvidias = library.filter(|library| library.needs_driver() && !known.is_cpu);
    let advisories = nvidias.map(|library| advisories::findings(&examined, library.version.0));
    let sections = [
        ("library", search.findings(needs)),
        ("copies", copies::findings(system, library)),
        ("driver", driver.findings(system, library)),
        ("devices", driver::devices(&examined)),
        ("advisories", advisories.unwrap_or_default()),
        ("limits", limits::findings(system, &settings, rdma)),
        ("network", network::findings(system, &settings, library)),
        ("files", variables::files(&examined, &unread)),
        ("variables", variables::findings(&examined)),
        ("ras", vec![network::ras(&settings)]),
    ];
    let sections = sections.into_iter().filter(|(_, findings)| !findings.is_empty());
    let sections = sections.map(|(name, findings)| Section { name, findings }).collect_vec();
    let mut found = sections.iter().flat_map(|section| &section.findings).collect_vec();
    found.sort_by_key(|finding| std::cmp::Reverse(finding.level));
    let advice = found.iter().filter_map(|finding| finding.advice.clone()).collect();
    let starts = !driver.is_unqueried && found.iter().all(|finding| finding.level < Level::Problem);
    let Search { library, error, tried, .. } = search;
    let header_version = Version::HEADER.to_string();
    Report { schema: SCHEMA, starts, library, error, tried, header_version, driver, advice, sections }
}

/// The version of the JSON. It changes if a field is removed or changes its meaning.
const SCHEMA: u32 = 1;

/// The findings. The field names are also the names in the JSON, and are a stable interface (`docs/doctor.md`).
#[derive(Debug, Serialize)]
struct Report {
    schema: u32,
    /// True if there is no problem: a job would start and succeed. False if this is unknown.
    starts: bool,
    /// The library that a program loads; `null` if there is none.
    library: Option<Library>,
    /// The reason why no library was loaded.
    error: Option<String>,
    /// The failed attempts to load a library, in search order; an attempt may have no path.
    tried: Vec<Tried>,
    /// The version of the header that the bindings were generated from.
    header_version: String,
    driver: Driver,
    /// All advice, problems first; empty if nothing is wrong.
    advice: Vec<String>,
    sections: Vec<Section>,
}

impl Report {
    fn print(&self, out: &mut impl Write) -> std::io::Result<()> {
        let bold = Style::new().bold();
        for (index, Section { name, findings }) in self.sections.iter().enumerate() {
            writeln!(out, "{bold}{name}{bold:#}")?;
            for Finding { level, text, advice, source } in findings {
                let (style, word) = style(*level);
                writeln!(out, "  {style}{word:<8}{style:#} {}", in_line(text))?;
                for line in [advice, source].into_iter().flatten() {
                    writeln!(out, "           -> {}", in_line(line))?;
                }
            }
            if index == 0 {
                for tried in &self.tried {
                    writeln!(out, "  searched {}", in_line(&tried.text()))?;
                }
            }
        }
        let summary = match self.starts {
            true => "a job would start here",
            false if self.driver.is_unqueried => "it is not known whether a job would start here",
            false => "a job would not start here, or not end well",
        };
        let found = || self.sections.iter().flat_map(|section| &section.findings);
        let number = |level, noun: &str| {
            let count = found().filter(|finding| finding.level == level).count();
            format!("{count} {noun}{}", if count == 1 { "" } else { "s" })
        };
        let [problems, warnings] = [number(Level::Problem, "problem"), number(Level::Warning, "warning")];
        writeln!(out, "{bold}{problems}, {warnings}: {summary}{bold:#}")
    }
}

fn style(level: Level) -> (Style, &'static str) {
    let colored = |color: AnsiColor| Style::new().fg_color(Some(color.into()));
    match level {
        Level::Ok => (colored(AnsiColor::Green), "ok"),
        Level::Warning => (colored(AnsiColor::Yellow), "warning"),
        Level::Problem => (colored(AnsiColor::Red).bold(), "problem"),
    }
}
