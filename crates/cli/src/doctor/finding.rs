//! The doctor's findings, with advice.

use std::fmt::Display;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// The consequence of a finding for a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Level {
    Ok,
    /// The job may be slower than it could be, or fail under some conditions.
    Warning,
    /// The job does not start, or hangs, or computes wrong results.
    Problem,
}

/// One fact and its consequence. The field names are also the names in the JSON.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct Finding {
    pub(crate) level: Level,
    pub(crate) text: String,
    /// The advice, in one sentence, or `null`.
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

    pub(crate) fn warning_if(is_bad: bool, text: impl Into<String>, advice: impl Into<String>) -> Self {
        if is_bad { Self::warning(text, advice) } else { Self::ok(text) }
    }
}

/// Returns the findings or, if there are none, one of level [`Level::Ok`].
pub(super) fn or_ok(findings: Vec<Finding>, text: impl FnOnce() -> String) -> Vec<Finding> {
    if findings.is_empty() { vec![Finding::ok(text())] } else { findings }
}

#[derive(Debug, Serialize)]
pub(crate) struct Section {
    pub(crate) name: &'static str,
    pub(crate) findings: Vec<Finding>,
}

/// A value that is a string in JSON.
#[derive(Debug, Default, Clone, Copy, PartialEq, PartialOrd)]
pub(crate) struct Text<T>(pub(crate) T);

impl<T: Display> Serialize for Text<T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&self.0)
    }
}

impl<'de, T: FromStr<Err: Display>> Deserialize<'de> for Text<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map(Self).map_err(serde::de::Error::custom)
    }
}
