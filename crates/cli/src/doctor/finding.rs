//! The doctor's findings, with advice.

use serde::{Deserialize, Serialize};

/// The consequence of a finding for a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Level {
    /// No consequence.
    Ok,
    /// It may be slower than it could be, or fail under some conditions.
    Warning,
    /// It does not start, or hangs, or computes wrong results.
    Problem,
}

/// One fact and its consequence. The names of the fields are those of the JSON.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct Finding {
    pub(crate) level: Level,
    pub(crate) text: String,
    /// The thing to do, in one sentence; `null` if there is none.
    pub(crate) advice: Option<String>,
    /// The public source of an advisory.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) source: Option<String>,
}

impl Finding {
    pub(crate) fn ok(text: impl Into<String>) -> Self {
        Self { level: Level::Ok, text: text.into(), advice: None, source: None }
    }

    pub(crate) fn warning(text: impl Into<String>, advice: impl Into<String>) -> Self {
        Self { level: Level::Warning, text: text.into(), advice: Some(advice.into()), source: None }
    }

    pub(crate) fn problem(text: impl Into<String>, advice: impl Into<String>) -> Self {
        Self { level: Level::Problem, ..Self::warning(text, advice) }
    }
}

#[derive(Debug, Serialize)]
pub(crate) struct Section {
    pub(crate) name: &'static str,
    pub(crate) findings: Vec<Finding>,
}
