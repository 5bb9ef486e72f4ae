use std::path::Path;

use anyhow::{Context, Result};

use crate::bench::output::report::Report;
use crate::file;

/// One side of a comparison: the results of a measurement, one for each round, all of the same command.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Side {
    /// The name in the output: a file, or a backend.
    pub(crate) name: String,
    /// At least one.
    pub(crate) first: Report,
    pub(crate) others: Vec<Report>,
}

impl Side {
    /// Reads a result of `nccl bench --json`.
    pub(crate) fn read(path: &Path) -> Result<Self> {
        let name = path.display().to_string();
        let text = file::read(path).with_context(|| format!("cannot read {name}"))?;
        let first = Report::from_json(&text).with_context(|| name.clone())?;
        Ok(Self { name, first, others: vec![] })
    }

    /// Returns the results of all rounds.
    pub(crate) fn rounds(&self) -> impl Iterator<Item = &Report> {
        std::iter::once(&self.first).chain(&self.others)
    }
}
