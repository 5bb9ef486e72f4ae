//! `nccl doctor`: reports what a job of NCCL would find on this machine, and what to do.
//!
//! It changes nothing. Files and the environment are read through [`System`], which tests fabricate.

mod advisories;
pub(crate) mod arguments;
mod copies;
mod devices;
mod driver;
mod files;
mod finding;
mod library;
mod limits;
mod network;
mod probe;
mod ras;
mod report;
#[cfg(test)]
mod tests;
mod values;
mod variables;

use std::process::ExitCode;

use anyhow::Result;
use libnccl::Version;

use crate::output;
use crate::settings::Settings;
use crate::system::System;
use crate::variables::Variables;
use advisories::Situation;
use arguments::DoctorArguments;
use driver::Driver;
use finding::Section;
use library::{Library, Search};
use report::Report;

pub(crate) fn run(arguments: &DoctorArguments) -> Result<ExitCode> {
    if let Some(library) = &arguments.probe {
        return probe::child(library);
    }
    if arguments.json {
        output::keep_libraries_out()?;
    }
    let system = System::here();
    let driver = Driver::new(&system);
    let report = examine(&system, Search::new(arguments.library.as_deref()), driver, arguments.needs);
    if arguments.json {
        output::print_json(&report)?;
    } else {
        report.print(&mut anstream::stdout())?;
    }
    Ok(if report.starts { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn examine(system: &System, search: Search, driver: Driver, needs: Option<Version>) -> Report {
    let library = search.library.as_ref();
    let found: Option<Version> = library.and_then(|library| library.version.parse().ok());
    let mut settings = Settings::of(system);
    let call = library.and_then(|library| library.probe.call.as_ref());
    let unread = call.map(|call| settings.correct(&call.added, probe::is_forced)).unwrap_or_default();
    let rdma = network::has_rdma(system, &settings);
    let known = library.map(|library| Variables::of(&library.file)).unwrap_or_default();
    let has_advisories = library.is_some_and(Library::needs_driver) && !known.is_cpu;
    let situation = found.filter(|_| has_advisories);
    let situation =
        situation.map(|release| Situation { release, system, settings: &settings, driver: &driver });
    let sections = [
        ("library", search.findings(needs)),
        ("copies", copies::findings(system, library)),
        ("driver", driver.findings(system, library)),
        ("devices", devices::findings(system, &settings, &driver, library)),
        ("advisories", situation.map(|situation| advisories::findings(&situation)).unwrap_or_default()),
        ("limits", limits::findings(system, &settings, rdma)),
        ("network", network::findings(system, &settings, library)),
        ("files", files::findings(&settings, &unread, library)),
        ("variables", variables::findings(system, &settings, &known, library)),
        ("ras", ras::findings(&settings)),
    ];
    let sections = sections.into_iter().filter(|(_, findings)| !findings.is_empty());
    let sections = sections.map(|(name, findings)| Section { name, findings }).collect();
    Report::new(search, driver, sections)
}
