//! Commands with all that they print, as files in `tests/snapshots`.

use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use libnccl_test_support::shared_object;
use regex::Regex;
use snapbox::{Assert, Data, Redactions, assert::DEFAULT_ACTION_ENV};
use tempfile::TempDir;

use crate::common::{NCCL, assert_has, assert_visible, command, nccl, read, run};

/// Commands that were run in a temporary directory, and their output.
pub(crate) struct Session {
    directory: TempDir,
    redactions: Redactions,
    text: String,
}

impl Session {
    pub(crate) fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let mut redactions = Redactions::new();
        let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
        for (name, pattern) in [
            ("[HOST]", format!(r" *\b{host}\b")),
            ("[PID]", r"(?:Pid|[pP]rocess)(?<redacted> +\d+)".into()),
            ("[VERSION]", format!(r"nccl (?<redacted>{})", env!("CARGO_PKG_VERSION"))),
            // In a row of `nccl bench`, before the number of mismatches.
            ("[TIMES]", r"(?m)(?<redacted>(?: +\d+(?:\.\d+)?(?:e[+-]\d+)?){3}) +(?:\d+|N/A)(?: |$)".into()),
            ("[PORT]", r"127\.0\.0\.1:(?<redacted>\d+)".into()),
            ("[DURATION]", r"within (?<redacted>\d+\.\ds)".into()),
            ("[REPORTS]", r"\d+ reports in \S+ s".into()),
            ("[SIZE_AND_ID]", r"its file: (?<redacted>.+)".into()),
            ("[BANDWIDTH]", r"bandwidth +: (?<redacted>\S+)".into()),
        ] {
            redactions.insert(name, Regex::new(&pattern).unwrap()).unwrap();
        }
        redactions.insert("[TMP]", directory.path().to_path_buf()).unwrap();
        Self { directory, redactions, text: String::new() }
    }

    /// Replaces variable text by this name.
    pub(crate) fn redact(&mut self, name: &'static str, text: &str) {
        self.redactions.insert(name, text.to_owned()).unwrap();
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    pub(crate) fn read(&self, name: &str) -> String {
        read(&self.path(name))
    }

    /// Writes a file, and the directories above it.
    pub(crate) fn write(&self, name: &str, text: impl AsRef<[u8]>) -> PathBuf {
        let path = self.path(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, text).unwrap();
        path
    }

    /// Runs `nccl` with these arguments, separated by spaces.
    pub(crate) fn nccl(&mut self, arguments: &str) {
        self.run(&format!("nccl {arguments}"), &mut nccl(arguments));
    }

    /// Runs a command below this name. Returns stdout.
    pub(crate) fn run(&mut self, name: &str, command: &mut Command) -> String {
        let output = command.current_dir(self.directory.path()).output().unwrap();
        self.ended(name, output)
    }

    /// Adds a command with its stdout, its stderr and its status, if that is not 0. Returns stdout.
    pub(crate) fn ended(&mut self, command: &str, output: Output) -> String {
        let [stdout, stderr] = [output.stdout, output.stderr].map(|bytes| String::from_utf8(bytes).unwrap());
        self.add(&format!("$ {command}"), &stdout);
        for line in stderr.lines() {
            writeln!(self.text, "2> {line}").unwrap();
        }
        if !output.status.success() {
            writeln!(self.text, "? {}", output.status).unwrap();
        }
        stdout
    }

    /// Runs a line of the shell, in which `nccl` and `$NCCL` are the program, and `$CPU` is the CPU backend.
    pub(crate) fn shell(&mut self, line: &str) {
        self.shell_with(line, &[]);
    }

    /// Runs a line of the shell with these variables, for five minutes at most.
    pub(crate) fn shell_with(&mut self, line: &str, variables: &[(&str, &Path)]) {
        let mut path = Path::new(NCCL).parent().unwrap().as_os_str().to_owned();
        path.push(":");
        path.push(std::env::var_os("PATH").unwrap());
        let mut command = command("timeout");
        command
            .args(["300", "sh", "-c", line])
            .env("PATH", path)
            .env("CPU", shared_object("nccl_cpu"))
            .env("NCCL", NCCL)
            .env("LC_ALL", "C");
        command.envs(variables.iter().copied()).current_dir(self.directory.path());
        self.ended(line, command.output().unwrap());
    }

    /// Runs `nccl bench` on the CPU backend, which must succeed without mismatches, and adds the table's rows.
    #[track_caller]
    pub(crate) fn bench_rows(&mut self, line: &str) {
        let arguments = line.strip_prefix("nccl ").unwrap();
        let (stdout, stderr) = run(&mut nccl(&format!("{arguments} --cpu")), 0);
        assert_has(&stdout, &["\n# Out of bounds values : 0 OK\n", "\n# Avg bus bandwidth    : "]);
        assert_eq!(stderr, "", "{arguments}");
        let rows: String = stdout.split_inclusive('\n').filter(|line| !line.starts_with('#')).collect();
        self.add(&format!("$ {line}"), &rows);
    }

    /// Runs the commands of the file, which are in lines that begin with `$ `, and compares their output with the rest of it. Lines that
    /// begin with `## ` are comments.
    #[track_caller]
    pub(crate) fn replay(mut self, name: &str, run: impl Fn(&mut Self, &str)) {
        for line in read(&file(name)).lines() {
            match line.strip_prefix("$ ") {
                Some(command) => run(&mut self, command),
                None if line.starts_with("## ") => self.add(line, ""),
                None => {}
            }
        }
        self.check(name);
    }

    /// Adds a text below a title.
    pub(crate) fn add(&mut self, title: &str, text: &str) {
        let end = if text.is_empty() || text.ends_with('\n') { "" } else { "[no newline]\n" };
        write!(self.text, "{title}\n{text}{end}").unwrap();
    }

    /// Compares all with a file of `tests/snapshots`. No command prints control characters.
    #[track_caller]
    pub(crate) fn check(self, name: &str) {
        assert_visible(&self.text);
        let assert = Assert::new().action_env(DEFAULT_ACTION_ENV).normalize_paths(false);
        assert.redact_with(self.redactions).eq(self.text, Data::read_from(&file(name), None));
    }
}

fn directory() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/snapshots")
}

fn file(name: &str) -> PathBuf {
    directory().join(name).with_extension("txt")
}

#[test]
fn each_snapshot_is_that_of_a_test() {
    let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/cli");
    let texts = [sources.clone(), sources.join("doctor")].map(|directory| fs::read_dir(directory).unwrap());
    let texts = texts.into_iter().flatten().map(|entry| entry.unwrap().path());
    let sources: String = texts
        .filter(|path| path.extension().is_some_and(|end| end == "rs"))
        .map(|path| read(&path))
        .collect();
    let snapshots = fs::read_dir(directory()).unwrap().map(|entry| entry.unwrap().path());
    let is_unused = |path: &PathBuf| {
        let name = path.file_stem().unwrap().to_str().unwrap();
        !["check", "replay"].iter().any(|method| sources.contains(&format!("{method}(\"{name}\"")))
    };
    assert_eq!(snapshots.filter(is_unused).collect::<Vec<_>>(), Vec::<PathBuf>::new());
}
