//! The report: as JSON, and as text.

use std::io::{Result, Write};

use anstyle::{AnsiColor, Style};
use libnccl::Version;
use serde::Serialize;

use super::driver::Driver;
use super::finding::{Finding, Level, Section};
use super::library::{Library, Search, Tried};
use crate::escapes::in_line;

/// The version of the JSON, which changes if a field goes or changes its meaning.
const SCHEMA: u32 = 1;

/// The findings. The names of the fields are a stable interface: they are those of the JSON (`docs/doctor.md`).
#[derive(Debug, Serialize)]
pub(super) struct Report {
    schema: u32,
    /// True if there is no problem: a job would start, and end well.
    pub(super) starts: bool,
    /// The library that a program loads; `null` if there is none.
    library: Option<Library>,
    /// The reason why no library was loaded.
    error: Option<String>,
    /// The places that were searched before, with the attempts that failed; a place may be empty.
    tried: Vec<Tried>,
    /// The release of the header that the bindings were generated from.
    header_version: String,
    driver: Driver,
    /// All advice, that of problems first; empty if nothing is wrong.
    advice: Vec<String>,
    pub(super) sections: Vec<Section>,
}

impl Report {
    pub(super) fn new(search: Search, driver: Driver, sections: Vec<Section>) -> Self {
        let mut found: Vec<&Finding> = sections.iter().flat_map(|section| &section.findings).collect();
        found.sort_by_key(|finding| std::cmp::Reverse(finding.level));
        let advice = found.iter().filter_map(|finding| finding.advice.clone()).collect();
        let starts = found.iter().all(|finding| finding.level < Level::Problem);
        let Search { library, error, tried, .. } = search;
        let header_version = Version::HEADER.to_string();
        Self { schema: SCHEMA, starts, library, error, tried, header_version, driver, advice, sections }
    }

    fn count(&self, level: Level) -> usize {
        self.sections
            .iter()
            .flat_map(|section| &section.findings)
            .filter(|finding| finding.level == level)
            .count()
    }

    /// Prints the sections, with what to do below each finding, and a summary.
    pub(super) fn print(&self, out: &mut impl Write) -> Result<()> {
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
            false => "a job would not start here, or not end well",
        };
        let number =
            |count: usize, noun: &str| format!("{count} {noun}{}", if count == 1 { "" } else { "s" });
        let problems = number(self.count(Level::Problem), "problem");
        writeln!(
            out,
            "{bold}{problems}, {}: {summary}{bold:#}",
            number(self.count(Level::Warning), "warning")
        )
    }
}

fn style(level: Level) -> (Style, &'static str) {
    let coloured = |colour: AnsiColor| Style::new().fg_color(Some(colour.into()));
    match level {
        Level::Ok => (coloured(AnsiColor::Green), "ok"),
        Level::Warning => (coloured(AnsiColor::Yellow), "warning"),
        Level::Problem => (coloured(AnsiColor::Red).bold(), "problem"),
    }
}
