//! The settings of NCCL: the environment, and the configuration files that NCCL adds to it.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;

use crate::system::System;

/// The file that the administrator of a machine writes.
const SYSTEM_FILE: &str = "/etc/nccl.conf";

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
    /// The lines that set a variable, and those that NCCL ignores; `None` if there is no such file.
    pub(crate) lines: Option<Vec<Line>>,
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
    /// Reads the environment and the files. A variable that is set keeps its value, so the first place counts.
    pub(crate) fn read(system: &System) -> Self {
        let is_ours = |name: &str| name.starts_with("NCCL_") || name.starts_with("LIBNCCL_");
        let environment = system.environment().iter().filter(|(name, _)| is_ours(name));
        let mut values: BTreeMap<_, _> = environment
            .map(|(name, value)| {
                (name.clone(), Setting { value: value.clone(), origin: Origin::Environment })
            })
            .collect();
        let named = system.variable("NCCL_CONF_FILE").map(PathBuf::from);
        let is_named = named.is_some();
        let user = named.or_else(|| Some(PathBuf::from(system.variable("HOME")?).join(".nccl.conf")));
        let user = user.map(|path| (path, is_named));
        let paths = user.into_iter().chain([(SYSTEM_FILE.into(), false)]);
        let files = paths.map(|(path, is_named)| {
            let lines = system.read(&path).map(|text| add_lines(&mut values, &path, &text));
            ConfigurationFile { path, lines, is_named }
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

/// Parses the lines as NCCL does: `NAME=VALUE` with all spaces, or a comment if it begins with `#`.
fn add_lines(values: &mut BTreeMap<String, Setting>, path: &std::path::Path, text: &str) -> Vec<Line> {
    let lines = text.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
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

    use libnccl_test_support::random_inputs::{Random, inputs};

    use super::{Line, Origin, Settings};
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
            let settings = Settings::read(&System::at(root.path(), &[("NCCL_CONF_FILE", "/nccl.conf")]));
            let lines = settings.files[0].lines.as_deref().unwrap();
            let set = lines.iter().filter(|line| matches!(line, Line::Set { overridden_by: None, .. }));
            assert_eq!(set.count() + 1, settings.iter().count());
        }
    }

    #[test]
    fn first_place_counts() {
        let root = tempfile::tempdir().unwrap();
        let write = |path: &str, text| {
            let place = root.path().join(path);
            fs::create_dir_all(place.parent().unwrap()).unwrap();
            fs::write(place, text).unwrap();
        };
        write("home/me/.nccl.conf", "# a comment\nNCCL_DEBUG=INFO\nNCCL_ALGO=Ring\n");
        write("etc/nccl.conf", "NCCL_ALGO=Tree\nNCCL_SOCKET_IFNAME==eth0\r\nno value\n");
        let system =
            System::at(root.path(), &[("HOME", "/home/me"), ("NCCL_DEBUG", "WARN"), ("PATH", "/bin")]);
        let settings = Settings::read(&system);
        assert_eq!(settings.text("NCCL_DEBUG"), "NCCL_DEBUG=WARN (environment)");
        assert_eq!(settings.text("NCCL_ALGO"), "NCCL_ALGO=Ring (/home/me/.nccl.conf)");
        assert_eq!(settings.value("NCCL_SOCKET_IFNAME"), Some("=eth0"));
        assert_eq!(settings.get("PATH"), None);
        let lines = settings.files[1].lines.as_ref().unwrap();
        assert_eq!(lines[2], Line::Ignored("no value".into()));
        let overridden = Some(Origin::File("/home/me/.nccl.conf".into()));
        assert!(matches!(&lines[0], Line::Set { overridden_by, .. } if *overridden_by == overridden));
    }

    #[test]
    fn named_file_replaces_that_of_the_user() {
        let root = tempfile::tempdir().unwrap();
        let system = System::at(root.path(), &[("HOME", "/home/me"), ("NCCL_CONF_FILE", "/etc/mine.conf")]);
        let files = Settings::read(&system).files;
        let paths: Vec<_> = files.iter().map(|file| (file.path.as_path(), file.is_named)).collect();
        assert_eq!(paths, [(Path::new("/etc/mine.conf"), true), (Path::new("/etc/nccl.conf"), false)]);
        assert!(files.iter().all(|file| file.lines.is_none()));
    }
}
