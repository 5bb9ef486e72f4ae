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
mod interfaces;
mod library;
mod limits;
mod network;
mod ras;
mod report;
mod selection;
#[cfg(test)]
mod tests;
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
    // Without a library, the rules are those of the newest.
    let release = found.unwrap_or(Version::HEADER);
    let settings = Settings::read(system, release);
    let needs_driver = library.is_some_and(Library::needs_driver);
    let rdma = network::has_rdma(system, &settings);
    let known = library.map(|library| Variables::of(&library.file)).unwrap_or_default();
    let situation = found.map(|release| Situation { release, system, settings: &settings, driver: &driver });
    let sections = [
        ("library", search.findings(needs)),
        ("copies", copies::findings(system, library)),
        ("driver", driver.findings(system, library)),
        ("devices", devices::findings(system, &settings, &driver, release, library)),
        (
            "advisories",
            situation
                .filter(|_| needs_driver)
                .map(|situation| advisories::findings(&situation))
                .unwrap_or_default(),
        ),
        ("limits", limits::findings(system, &settings, rdma)),
        ("network", network::findings(system, &settings, release, library)),
        ("files", files::findings(&settings, release)),
        ("variables", variables::findings(&settings, &known.names, known.is_cpu)),
        ("ras", ras::findings(&settings)),
    ];
    let sections = sections.into_iter().filter(|(_, findings)| !findings.is_empty());
    let sections = sections.map(|(name, findings)| Section { name, findings }).collect();
    Report::new(search, driver, sections)
}
