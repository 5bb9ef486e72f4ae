//! The machine that is examined: its files and the environment of a job.

use std::collections::BTreeMap;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::{fs, io};

use rustix::fs::{Access, access};

use crate::file;
use crate::interface::Interface;

/// The files below a root, an environment and network interfaces. Tests fabricate them.
#[derive(Debug)]
pub(crate) struct System {
    root: PathBuf,
    environment: BTreeMap<String, String>,
    /// The architecture, by Rust's name.
    pub(crate) architecture: String,
    /// The network interfaces, or the reason why they cannot be read.
    pub(crate) interfaces: Result<Vec<Interface>, String>,
}

impl System {
    /// Returns this machine, with the environment of this process; with none for a set-uid program, which must not read
    /// files that its user names.
    pub(crate) fn here() -> Self {
        let lossy = |text: std::ffi::OsString| text.to_string_lossy().into_owned();
        let environment = libnccl::internal::environment::variables()
            .map(|(name, value)| (lossy(name), lossy(value)))
            .collect();
        Self {
            root: "/".into(),
            environment,
            architecture: std::env::consts::ARCH.into(),
            interfaces: Interface::all(),
        }
    }

    /// Returns a machine of x86-64 whose files lie below `root`.
    #[cfg(test)]
    pub(crate) fn at(root: &Path, environment: &[(&str, &str)]) -> Self {
        let environment = environment.iter().map(|(name, value)| ((*name).into(), (*value).into())).collect();
        Self { root: root.into(), environment, architecture: "x86_64".into(), interfaces: Ok(Vec::new()) }
    }

    /// Returns the place of an absolute path of the examined machine.
    pub(crate) fn place(&self, path: impl AsRef<Path>) -> PathBuf {
        let path = path.as_ref();
        if self.root == Path::new("/") {
            return path.into();
        }
        self.root.join(path.strip_prefix("/").unwrap_or(path))
    }

    /// Returns the path on the examined machine, without the root.
    pub(crate) fn path(&self, place: &Path) -> PathBuf {
        match place.strip_prefix(&self.root) {
            Ok(rest) => Path::new("/").join(rest),
            Err(_) => place.into(),
        }
    }

    /// Returns whether this process can read a regular file.
    pub(crate) fn is_readable_file(&self, path: impl AsRef<Path>) -> bool {
        let place = self.place(path);
        place.is_file() && access(place, Access::READ_OK).is_ok()
    }

    /// Reads a file of a few megabytes; `None` if it cannot be read, such as one without an end.
    pub(crate) fn read(&self, path: impl AsRef<Path>) -> Option<String> {
        const MOST: u64 = 16 << 20;
        let mut bytes = vec![];
        file::open_to_read(&self.place(path)).ok()?.take(MOST + 1).read_to_end(&mut bytes).ok()?;
        if bytes.len() as u64 > MOST {
            return None;
        }
        Some(String::from_utf8_lossy(&bytes).into_owned())
    }

    /// Reads a file of one line, without the spaces around it.
    pub(crate) fn line(&self, path: impl AsRef<Path>) -> Option<String> {
        Some(self.read(path)?.trim().to_owned())
    }

    pub(crate) fn exists(&self, path: impl AsRef<Path>) -> bool {
        self.place(path).exists()
    }

    /// Returns the reason why this process cannot read and write a file or folder; `None` if it can.
    pub(crate) fn denial(&self, path: impl AsRef<Path>) -> Option<io::Error> {
        access(self.place(path), Access::READ_OK | Access::WRITE_OK).err().map(io::Error::from)
    }

    /// Returns the names in a folder, sorted; none if it cannot be read.
    pub(crate) fn names(&self, folder: impl AsRef<Path>) -> Vec<String> {
        let entries = fs::read_dir(self.place(folder)).into_iter().flatten().flatten();
        let mut names: Vec<_> =
            entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
        names.sort();
        names
    }

    /// Returns the folders of a folder, as paths of the examined machine.
    pub(crate) fn children(&self, folder: impl AsRef<Path>) -> Vec<PathBuf> {
        let folder = folder.as_ref();
        self.names(folder).iter().map(|name| folder.join(name)).collect()
    }

    /// Returns the value of a variable; `None` if it is not set or empty, which counts as unset almost everywhere.
    pub(crate) fn variable(&self, name: &str) -> Option<&str> {
        self.environment.get(name).map(String::as_str).filter(|value| !value.is_empty())
    }

    pub(crate) fn environment(&self) -> &BTreeMap<String, String> {
        &self.environment
    }

    /// Returns the limit of a resource of this process, as `/proc/self/limits` names it: the soft and the hard one;
    /// `None` stands for unlimited. What is neither a number nor that is no limit that is known.
    pub(crate) fn limit(&self, resource: &str) -> Option<(Option<u64>, Option<u64>)> {
        let limits = self.read("/proc/self/limits")?;
        let rest = limits.lines().find_map(|line| line.strip_prefix(resource))?;
        let value = |text: &str| if text == "unlimited" { Some(None) } else { text.parse().ok().map(Some) };
        let mut values = rest.split_whitespace().map(value);
        Some((values.next()??, values.next()??))
    }

    /// Returns the reason to take this for a container; `None` if there is no sign of one.
    pub(crate) fn container(&self) -> Option<&'static str> {
        if self.exists("/.dockerenv") {
            Some("Docker")
        } else if self.exists("/run/.containerenv") {
            Some("Podman")
        } else if self.variable("KUBERNETES_SERVICE_HOST").is_some() {
            Some("Kubernetes")
        } else if self.variable("APPTAINER_CONTAINER").or(self.variable("SINGULARITY_CONTAINER")).is_some() {
            Some("Apptainer")
        } else {
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use super::System;

    #[test]
    fn paths_lead_below_the_root_and_back() {
        let root = tempfile::tempdir().unwrap();
        fs::create_dir_all(root.path().join("etc")).unwrap();
        fs::write(root.path().join("etc/name"), "value\n").unwrap();
        let system = System::at(root.path(), &[("EMPTY", ""), ("SET", "1")]);
        assert_eq!(system.line("/etc/name").as_deref(), Some("value"));
        assert_eq!(system.path(&system.place("/etc/name")), Path::new("/etc/name"));
        assert_eq!(system.children("/etc"), [Path::new("/etc/name")]);
        assert_eq!((system.variable("EMPTY"), system.variable("SET")), (None, Some("1")));
    }

    #[test]
    fn limits_of_this_process_are_numbers_or_unlimited() {
        let system = System::here();
        let (soft, hard) = system.limit("Max open files").unwrap();
        assert!(
            soft.is_none_or(|soft| soft > 0) && hard.is_none_or(|hard| Some(hard) >= soft),
            "{soft:?} {hard:?}"
        );
        assert_eq!(system.limit("Max nothing"), None);
    }

    #[test]
    fn limit_that_is_neither_a_number_nor_unlimited_is_unknown() {
        let root = tempfile::tempdir().unwrap();
        let system = System::at(root.path(), &[]);
        assert_eq!(system.limit("Max x"), None);
        fs::create_dir_all(root.path().join("proc/self")).unwrap();
        for (text, limit) in [
            ("Max x  unlimited  unlimited  bytes", Some((None, None))),
            ("Max x  1  unlimited  bytes", Some((Some(1), None))),
            ("Max x  0  2", Some((Some(0), Some(2)))),
            ("Max x  many  unlimited  bytes", None),
            ("Max x  1  18446744073709551616", None),
            ("Max x  -1  2", None),
            ("Max x  1", None),
            ("Max x", None),
        ] {
            fs::write(root.path().join("proc/self/limits"), text).unwrap();
            assert_eq!(system.limit("Max x"), limit, "{text}");
        }
    }
}
