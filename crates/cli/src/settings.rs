//! NCCL's settings: the environment, and the configuration files that NCCL adds to it.

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};

use crate::system::System;

#[derive(Debug)]
pub(crate) struct Settings {
    values: BTreeMap<String, Setting>,
    /// The configuration files in NCCL's order, including files that do not exist.
    pub(crate) files: Vec<ConfigurationFile>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Setting {
    pub(crate) value: String,
    pub(crate) origin: Origin,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Origin {
    Environment,
    File(PathBuf),
    /// A configuration file that only the library has read.
    Library,
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Environment => f.write_str("environment"),
            Self::File(path) => write!(f, "{}", path.display()),
            Self::Library => f.write_str("another configuration file of the library"),
        }
    }
}

#[derive(Debug)]
pub(crate) struct ConfigurationFile {
    pub(crate) path: PathBuf,
    /// The lines that set a variable, and those that NCCL ignores; `None` if the file cannot be read.
    pub(crate) lines: Option<Vec<Line>>,
    pub(crate) exists: bool,
    /// True if `NCCL_CONF_FILE` names it.
    pub(crate) is_named: bool,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Line {
    /// A value, which has no effect if the variable already has one.
    Set { name: String, value: String, overridden_by: Option<Origin> },
    /// A line without `=`.
    Ignored(String),
}

impl Settings {
    /// Reads the environment and the files by the rule of the newest version: the file that `NCCL_CONF_FILE` names, or else
    /// `~/.nccl.conf`, then `/etc/nccl.conf`. The first value of a variable counts.
    pub(crate) fn of(system: &System) -> Self {
        let is_ours = |name: &str| {
            let name = name.to_ascii_uppercase();
            name.starts_with("NCCL_") || name.starts_with("LIBNCCL_")
        };
        let environment = system.environment.iter().filter(|(name, _)| is_ours(name));
        let setting = |value: &String| Setting { value: value.clone(), origin: Origin::Environment };
        let mut values = environment.map(|(name, value)| (name.clone(), setting(value))).collect();
        let named = system.variable("NCCL_CONF_FILE").map(|path| (PathBuf::from(path), true));
        let home = system.variable("HOME").map(|home| (Path::new(home).join(".nccl.conf"), false));
        let paths = named.or(home).into_iter().chain([("/etc/nccl.conf".into(), false)]);
        let files = paths.map(|(path, is_named)| {
            let lines = system.read(&path).map(|text| add_lines(&mut values, &path, &text));
            ConfigurationFile { exists: system.exists(&path), path, lines, is_named }
        });
        Self { files: files.collect(), values }
    }

    /// Replaces the files' values with the values that the library added to its environment. Returns the names and files of
    /// values that it did not read. Names selected by `is_unknown` keep their values.
    pub(crate) fn correct(
        &mut self,
        added: &BTreeMap<String, String>,
        is_unknown: impl Fn(&str) -> bool,
    ) -> Vec<(String, PathBuf)> {
        let mut unread = Vec::new();
        self.values.retain(|name, setting| match (&setting.origin, added.get(name)) {
            (Origin::File(_), Some(value)) => {
                setting.value.clone_from(value);
                true
            }
            (Origin::File(path), None) if !is_unknown(name) => {
                unread.push((name.clone(), path.clone()));
                false
            }
            _ => true,
        });
        for (name, value) in added {
            let setting = Setting { value: value.clone(), origin: Origin::Library };
            self.values.entry(name.clone()).or_insert(setting);
        }
        unread
    }

    pub(crate) fn get(&self, name: &str) -> Option<&Setting> {
        self.values.get(name)
    }

    /// Returns the value, unless it is empty.
    pub(crate) fn value(&self, name: &str) -> Option<&str> {
        self.get(name).map(|setting| setting.value.as_str()).filter(|value| !value.is_empty())
    }

    /// Returns the value of a numeric option as NCCL parses it: 0 if it does not begin with a number.
    pub(crate) fn number(&self, name: &str) -> Option<i64> {
        self.value(name).map(|value| integer(value).0)
    }

    /// Returns whether an option is set to anything but 0.
    pub(crate) fn is_on(&self, name: &str) -> bool {
        self.number(name).is_some_and(|value| value != 0)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (&str, &Setting)> {
        self.values.iter().map(|(name, setting)| (name.as_str(), setting))
    }

    /// Returns a variable as `NAME=VALUE (origin)`, for messages.
    pub(crate) fn text(&self, name: &str) -> String {
        match self.get(name) {
            Some(Setting { value, origin }) => format!("{name}={value} ({origin})"),
            None => format!("{name} (not set)"),
        }
    }
}

/// Returns the integer at the start of a text, as C's `strtoll` with base 0 does, and the rest; without digits, 0 and the text.
pub(crate) fn integer(text: &str) -> (i64, &str) {
    let start = text.trim_start_matches([' ', '\t', '\n', '\u{b}', '\u{c}', '\r']);
    let (sign, digits) = match start.strip_prefix('-') {
        Some(rest) => (-1, rest),
        None => (1, start.strip_prefix('+').unwrap_or(start)),
    };
    let hexadecimal = digits.strip_prefix("0x").or_else(|| digits.strip_prefix("0X"));
    let (radix, digits) =
        match hexadecimal.filter(|rest| rest.starts_with(|digit: char| digit.is_ascii_hexdigit())) {
            Some(rest) => (16, rest),
            None if digits.starts_with('0') => (8, digits),
            None => (10, digits),
        };
    let rest = digits.trim_start_matches(|digit: char| digit.is_digit(radix));
    let number = digits[..digits.len() - rest.len()].chars().filter_map(|digit| digit.to_digit(radix));
    let number = number.fold(0, |number: i64, digit| {
        number.saturating_mul(radix.into()).saturating_add(sign * i64::from(digit))
    });
    (number, if rest.len() == digits.len() { text } else { rest })
}

/// Returns the probable mistake in a value: quotes, spaces or a comment. NCCL skips the spaces around a number.
pub(crate) fn taken_literally(value: &str) -> Option<&'static str> {
    let trimmed = value.trim();
    let is_quoted = |quote: char| trimmed.starts_with(quote) || trimmed.ends_with(quote);
    let is_number = !trimmed.is_empty() && trimmed.bytes().all(|byte| byte.is_ascii_digit());
    if is_quoted('"') || is_quoted('\'') {
        Some("the quotes are part of the value")
    } else if value.contains(" #") || value.contains("\t#") {
        Some("the comment is part of the value")
    } else if is_number || trimmed == value {
        None
    } else if value.ends_with('\r') {
        Some("the carriage return is part of the value")
    } else {
        Some("the spaces are part of the value")
    }
}

/// Parses the lines as NCCL does: `NAME=VALUE` including all spaces and quotes, or a comment that begins with `#`.
fn add_lines(values: &mut BTreeMap<String, Setting>, path: &Path, text: &str) -> Vec<Line> {
    let lines = text.split('\n').map(|line| line.strip_suffix('\r').unwrap_or(line));
    let lines = lines.filter(|line| !line.is_empty() && !line.starts_with('#'));
    let parse = |line: &str| {
        let Some((name, value)) = line.split_once('=') else { return Line::Ignored(line.into()) };
        let overridden_by = values.get(name).map(|setting| setting.origin.clone());
        if overridden_by.is_none() {
            values.insert(name.into(), Setting { value: value.into(), origin: Origin::File(path.into()) });
        }
        Line::Set { name: name.into(), value: value.into(), overridden_by }
    };
    lines.map(parse).collect()
}

#[cfg(test)]
#[path = "../tests/unit/settings.rs"]
mod tests;
