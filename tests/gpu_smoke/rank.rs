//! A rank of a job: its setting, its outcomes, and the files by which it exchanges data with its peer.
#![allow(unsafe_code)]

use std::ffi::c_int;
use std::fmt;
use std::fs::{self, File};
use std::io::Write;
use std::panic;
use std::path::PathBuf;
use std::thread;
use std::time::{Duration, Instant};

use libnccl::{Communicator, Config, Error, Nccl, UniqueId};

const PAUSE: Duration = Duration::from_millis(5);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Setting {
    OneRank,
    /// Two ranks on one GPU, which the environment tells NCCL to allow.
    TwoRanks,
    /// Two ranks on one GPU, which NCCL refuses by default.
    TwoRanksByDefault,
}

impl Setting {
    pub(crate) fn ranks(self) -> usize {
        match self {
            Self::OneRank => 1,
            Self::TwoRanks | Self::TwoRanksByDefault => 2,
        }
    }
}

impl fmt::Display for Setting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::OneRank => "one rank",
            Self::TwoRanks => "two ranks",
            Self::TwoRanksByDefault => "two ranks, by default",
        })
    }
}

/// The outcome of a check on one rank.
#[derive(Debug, Clone)]
pub(crate) enum Outcome {
    Passed,
    /// The check cannot run here, for this reason.
    Skipped(String),
    Failed(String),
}

impl Outcome {
    /// Returns the outcome as a line of the results file.
    fn line(&self, check: &str) -> String {
        let (word, text) = match self {
            Self::Passed => ("passed", ""),
            Self::Skipped(reason) => ("skipped", reason.as_str()),
            Self::Failed(problem) => ("failed", problem.as_str()),
        };
        format!("{check}\t{word}\t{}", text.replace(['\n', '\t'], " "))
    }

    pub(crate) fn parse(line: &str) -> Option<(String, Self)> {
        let (check, outcome) = line.split_once('\t')?;
        let (word, text) = outcome.split_once('\t')?;
        let outcome = match word {
            "passed" => Self::Passed,
            "skipped" => Self::Skipped(text.to_owned()),
            _ => Self::Failed(text.to_owned()),
        };
        Some((check.to_owned(), outcome))
    }
}

/// A process that is a rank.
pub(crate) struct Rank {
    pub(crate) setting: Setting,
    /// The job's own check.
    pub(crate) check: &'static str,
    pub(crate) limit: Duration,
    pub(crate) number: usize,
    pub(crate) nccl: Nccl,
    pub(crate) folder: PathBuf,
}

impl Rank {
    /// Runs the job's check.
    pub(crate) fn run(self, check: fn(&Self)) {
        // Code that waits for the GPU or for a peer cannot be unwound, and also blocks a normal exit.
        let report = panic::take_hook();
        panic::set_hook(Box::new(move |panic| {
            report(panic);
            _exit(101);
        }));
        let limit = self.limit;
        thread::spawn(move || {
            thread::sleep(limit);
            panic!("not done within {limit:?}");
        });
        check(&self);
        self.report(self.check, Ok(()));
    }

    pub(crate) fn size(&self) -> usize {
        self.setting.ranks()
    }

    pub(crate) fn report(&self, check: &str, outcome: Result<(), String>) {
        self.write_outcome(check, &outcome.map_or_else(Outcome::Failed, |()| Outcome::Passed));
    }

    fn write_outcome(&self, check: &str, outcome: &Outcome) {
        let path = self.folder.join(format!("results{}", self.number));
        let file = File::options().create(true).append(true).open(path);
        file.and_then(|mut file| writeln!(file, "{}", outcome.line(check))).expect("a file of results");
    }

    /// Ends this process, because the job's check cannot run here. The other ranks find this out by themselves.
    pub(crate) fn skip(&self, reason: &str) -> ! {
        self.write_outcome(self.check, &Outcome::Skipped(reason.to_owned()));
        _exit(0)
    }

    /// Returns the value. The check is [skipped](Self::skip) if the library is too old, or if NCCL says that the call is
    /// not supported here; every other error is a failure.
    #[track_caller]
    pub(crate) fn supported<T>(&self, result: libnccl::Result<T>) -> T {
        match result {
            Ok(value) => value,
            Err(error) if is_unsupported(&error) => self.skip(&error.to_string()),
            Err(error) => panic!("{error:?}"),
        }
    }

    /// Creates a communicator with the other ranks.
    #[track_caller]
    pub(crate) fn join(&self, name: &str) -> Communicator {
        self.try_join(name).expect("a communicator")
    }

    pub(crate) fn try_join(&self, name: &str) -> libnccl::Result<Communicator> {
        self.try_join_with(name, &Config::new())
    }

    pub(crate) fn try_join_with(&self, name: &str, config: &Config) -> libnccl::Result<Communicator> {
        let id = self.share_id(name)?;
        self.nccl.communicator(self.size(), self.number, &id).config(config).init()
    }

    /// Returns an id that rank 0 creates.
    pub(crate) fn share_id(&self, name: &str) -> libnccl::Result<UniqueId> {
        if self.number == 0 {
            self.publish(name, &self.nccl.unique_id()?.to_string());
        }
        Ok(self.receive(name).parse().expect("an id"))
    }

    /// Publishes a text under a name, for the other ranks to [`receive`](Self::receive).
    pub(crate) fn publish(&self, name: &str, text: &str) {
        let unfinished = self.folder.join(format!("unfinished{}", self.number));
        fs::write(&unfinished, text)
            .and_then(|()| fs::rename(&unfinished, self.folder.join(name)))
            .expect("a file for the other ranks");
    }

    /// Waits until all ranks have reached the barrier of this name.
    pub(crate) fn barrier(&self, name: &str) {
        self.publish(&format!("{} {name}", self.number), "");
        for rank in 0..self.size() {
            self.receive(&format!("{rank} {name}"));
        }
    }

    /// Waits for a text that another rank [publishes](Self::publish).
    pub(crate) fn receive(&self, name: &str) -> String {
        const LIMIT: Duration = Duration::from_secs(30);
        let start = Instant::now();
        loop {
            if let Ok(text) = fs::read_to_string(self.folder.join(name)) {
                return text;
            }
            assert!(start.elapsed() < LIMIT, "the other rank did not publish {name:?} within {LIMIT:?}");
            thread::sleep(PAUSE);
        }
    }
}

/// Returns whether the library is too old, or NCCL's message says that something is not supported.
fn is_unsupported(error: &Error) -> bool {
    match error {
        Error::Unsupported { since, found, .. } => found < since,
        Error::Nccl { detail, .. } => detail.to_lowercase().contains("not supported"),
        _ => false,
    }
}

unsafe extern "C" {
    /// POSIX's `_exit`: ends the process at once, without running exit handlers.
    safe fn _exit(status: c_int) -> !;
}
