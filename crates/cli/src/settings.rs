//! The settings of NCCL: the environment, and the configuration files that NCCL adds to it.

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};

use libnccl::Version;

use crate::system::System;

/// The file that the administrator of a machine writes.
const SYSTEM_FILE: &str = "/etc/nccl.conf";
/// The release from which on `NCCL_CONF_FILE` names a file in place of the user's.
pub(crate) const CONF_FILE: Version = Version::new(2, 23, 4);
/// The release from which on the user's file is in `HOME`, no longer where the list of users has their folder, and carriage
/// returns at the ends of lines are none of the value.
const HOME: Version = Version::new(2, 30, 3);

/// The variables that NCCL sees.
#[derive(Debug)]
pub(crate) struct Settings {
    values: BTreeMap<String, Setting>,
    /// The configuration files, in the order in which NCCL reads them, whether they exist or not.
    pub(crate) files: Vec<ConfigurationFile>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Setting {
    pub(crate) value: String,
    pub(crate) origin: Origin,
}

/// The place that a value comes from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Origin {
    Environment,
    File(PathBuf),
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Environment => f.write_str("environment"),
            Self::File(path) => write!(f, "{}", path.display()),
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
    /// A value that has an effect, or none because the variable has a value already.
    Set { name: String, value: String, overridden_by: Option<Origin> },
    /// A line without `=`.
    Ignored(String),
}

impl Settings {
    /// Reads the environment and the files as this release does. A variable that is set keeps its value, so the first place
    /// counts.
    pub(crate) fn read(system: &System, release: Version) -> Self {
        let is_ours = |name: &str| name.starts_with("NCCL_") || name.starts_with("LIBNCCL_");
        let environment = system.environment().iter().filter(|(name, _)| is_ours(name));
        let mut values: BTreeMap<_, _> = environment
            .map(|(name, value)| {
                (name.clone(), Setting { value: value.clone(), origin: Origin::Environment })
            })
            .collect();
        let named = system.variable("NCCL_CONF_FILE").filter(|_| release >= CONF_FILE).map(PathBuf::from);
        let is_named = named.is_some();
        let home = match release {
            release if release >= HOME => system.variable("HOME").map(PathBuf::from),
            _ => system.home.clone(),
        };
        let user = named.or_else(|| Some(home?.join(".nccl.conf")));
        let user = user.map(|path| (path, is_named));
        let paths = user.into_iter().chain([(SYSTEM_FILE.into(), false)]);
        let files = paths.map(|(path, is_named)| {
            let lines = system.read(&path).map(|text| add_lines(&mut values, &path, &text, release));
            let exists = system.exists(&path);
            ConfigurationFile { path, lines, exists, is_named }
        });
        let files = files.collect();
        Self { values, files }
    }

    pub(crate) fn get(&self, name: &str) -> Option<&Setting> {
        self.values.get(name)
    }

    /// Returns a value that is not empty.
    pub(crate) fn value(&self, name: &str) -> Option<&str> {
        self.get(name).map(|setting| setting.value.as_str()).filter(|value| !value.is_empty())
    }

    /// Returns the value of an option that is a number, as NCCL reads it: 0 if it begins with none.
    pub(crate) fn number(&self, name: &str) -> Option<i64> {
        self.value(name).map(|value| integer(value, 0))
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

/// Returns the integer that a text begins with, as C's `strtoll` does; 0 if there is none. A radix of 0 is that of the
/// prefix `0x` or `0`, or else 10.
pub(crate) fn integer(text: &str, radix: u32) -> i64 {
    let text =
        text.trim_start_matches(|character: char| character.is_ascii_whitespace() || character == '\u{b}');
    let (sign, digits) = match text.strip_prefix('-') {
        Some(rest) => (-1, rest),
        None => (1, text.strip_prefix('+').unwrap_or(text)),
    };
    let hexadecimal = digits.strip_prefix("0x").or_else(|| digits.strip_prefix("0X"));
    let (radix, digits) = match (radix, hexadecimal) {
        (0, Some(rest)) => (16, rest),
        (0, None) if digits.starts_with('0') => (8, digits),
        (0, None) => (10, digits),
        (radix, _) => (radix, digits),
    };
    let digits = digits.chars().map_while(|character| character.to_digit(radix));
    digits.fold(0, |number: i64, digit| {
        number.saturating_mul(radix.into()).saturating_add(sign * i64::from(digit))
    })
}

/// Returns what is part of a value, and hardly meant: quotes and spaces around it, which no shell has removed. `None` for
/// spaces around a number, which NCCL passes over.
pub(crate) fn taken_literally(value: &str) -> Option<&'static str> {
    let trimmed = value.trim();
    let is_quoted = |quote: char| value.trim().starts_with(quote) || trimmed.ends_with(quote);
    let is_number = !trimmed.is_empty() && trimmed.bytes().all(|byte| byte.is_ascii_digit());
    if is_quoted('"') || is_quoted('\'') {
        Some("the quotes are part of the value")
    } else if is_number || trimmed == value {
        None
    } else if value.ends_with('\r') {
        Some("the carriage return is part of the value")
    } else {
        Some("the spaces are part of the value")
    }
}

/// Parses the lines as NCCL does: `NAME=VALUE` with all spaces and quotes, or a comment if it begins with `#`.
fn add_lines(values: &mut BTreeMap<String, Setting>, path: &Path, text: &str, release: Version) -> Vec<Line> {
    let end = |line| if release >= HOME { str::strip_suffix(line, '\r').unwrap_or(line) } else { line };
    let lines = text.split('\n').map(end).filter(|line| !line.is_empty() && !line.starts_with('#'));
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
mod tests {
    use std::fs;
    use std::path::Path;

    use libnccl::Version;
    use libnccl_test_support::random_inputs::{Random, inputs};

    use super::{Line, Settings, integer, taken_literally};
    use crate::system::System;

    #[test]
    fn random_files_are_settings_or_lines_that_are_ignored() {
        let root = tempfile::tempdir().unwrap();
        let file = root.path().join("nccl.conf");
        let mut random = Random(37);
        for _ in inputs(5_000) {
            let mut bytes =
                b"# a comment\nNCCL_ALGO=Tree\nNCCL_SOCKET_IFNAME==eth0\r\nno value\n\n=\n".to_vec();
            random.change_all(&mut bytes);
            fs::write(&file, bytes).unwrap();
            let settings = Settings::read(
                &System::at(root.path(), &[("NCCL_CONF_FILE", "/nccl.conf")]),
                Version::HEADER,
            );
            let lines = settings.files[0].lines.as_deref().unwrap();
            let set = lines.iter().filter(|line| matches!(line, Line::Set { overridden_by: None, .. }));
            assert_eq!(set.count() + 1, settings.iter().count());
        }
    }

    #[test]
    fn named_file_replaces_that_of_the_user() {
        let root = tempfile::tempdir().unwrap();
        let system = System::at(root.path(), &[("HOME", "/home/me"), ("NCCL_CONF_FILE", "/etc/mine.conf")]);
        let files = Settings::read(&system, Version::HEADER).files;
        let paths: Vec<_> = files.iter().map(|file| (file.path.as_path(), file.is_named)).collect();
        assert_eq!(paths, [(Path::new("/etc/mine.conf"), true), (Path::new("/etc/nccl.conf"), false)]);
        assert!(files.iter().all(|file| file.lines.is_none()));
    }

    #[test]
    fn files_are_those_of_the_release() {
        let root = tempfile::tempdir().unwrap();
        for (path, text) in [
            ("home/nccl.conf", "NCCL_ALGO=named\r\n"),
            ("home/.nccl.conf", "NCCL_ALGO=home\r\n"),
            ("list/.nccl.conf", "NCCL_ALGO=list\r\n"),
        ] {
            let place = root.path().join(path);
            fs::create_dir_all(place.parent().unwrap()).unwrap();
            fs::write(place, text).unwrap();
        }
        let value = |release: &str, variables: &[(&str, &str)]| {
            let mut system = System::at(root.path(), variables);
            system.home = Some("/list".into());
            let settings = Settings::read(&system, release.parse().unwrap());
            settings.value("NCCL_ALGO").unwrap().to_owned()
        };
        let (home, named) = (("HOME", "/home"), ("NCCL_CONF_FILE", "/home/nccl.conf"));
        for (release, of_user, of_name) in [
            ("2.13.4", "list\r", "list\r"),
            ("2.22.3", "list\r", "list\r"),
            ("2.23.4", "list\r", "named\r"),
            ("2.29.7", "list\r", "named\r"),
            ("2.30.3", "home", "named"),
        ] {
            assert_eq!(value(release, &[home]), of_user, "{release}");
            assert_eq!(value(release, &[home, named]), of_name, "{release}");
        }
    }

    #[test]
    fn numbers_are_those_of_c() {
        for (text, radix, expected) in [
            ("1", 0, 1),
            (" \t+12x", 0, 12),
            ("-3", 0, -3),
            ("0x1F", 0, 31),
            ("010", 0, 8),
            ("010", 10, 10),
            ("0x10", 10, 0),
            ("true", 0, 0),
            ("\"1\"", 0, 0),
            ("", 0, 0),
            ("99999999999999999999", 0, i64::MAX),
        ] {
            assert_eq!(integer(text, radix), expected, "{text:?}");
        }
    }

    #[test]
    fn quotes_and_spaces_around_a_value_are_found() {
        for value in ["\"INFO\"", "'eth0'", "\"eth0", "eth0'", "\"1\"", " 'a b' "] {
            assert_eq!(taken_literally(value), Some("the quotes are part of the value"), "{value:?}");
        }
        for value in ["eth0 ", " =eth0", "\tRing", "Ring\n", " "] {
            assert_eq!(taken_literally(value), Some("the spaces are part of the value"), "{value:?}");
        }
        assert_eq!(taken_literally("Ring\r"), Some("the carriage return is part of the value"));
        for value in ["", "eth0", "1 ", " 1", "1\r", "a b", "it's"] {
            assert_eq!(taken_literally(value), None, "{value:?}");
        }
    }
}
