//! Jobs: a process for each rank, which is this program, started again.
//!
//! A rank writes the outcome of each check to a file, and is killed if it does not end in time. So every check has an
//! outcome, whatever happens to the ranks.
#![allow(unsafe_code)]

use std::collections::HashMap;
use std::ffi::c_int;
use std::fmt;
use std::fs::{self, File};
use std::io::Write;
use std::panic;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::OnceLock;
use std::thread;
use std::time::{Duration, Instant};
use std::{env, io};

use libnccl::{Communicator, Config, Error, Nccl, UniqueId};
use libtest_mimic::{Completion, Failed};

use crate::scenarios::{self, Scenario};
use crate::{communicators, memory, more_operations, operations};

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

pub(crate) struct Job {
    setting: Setting,
    name: &'static str,
    /// The checks before the end of the job, which is a check of its own.
    checks: Vec<String>,
    limit: Duration,
    run: fn(&Rank),
    endings: OnceLock<Vec<Ending>>,
}

/// The end of a rank's process.
struct Ending {
    /// The outcomes by check.
    outcomes: HashMap<String, Outcome>,
    status: String,
    log: String,
}

/// The outcome of a check on one rank.
#[derive(Debug, Clone)]
enum Outcome {
    Passed,
    /// The check cannot run here, for this reason.
    Skipped(String),
    Failed(String),
}

impl Job {
    /// Returns every job, in the same order in every process.
    pub(crate) fn all() -> Vec<Self> {
        const SCENARIO: Duration = Duration::from_secs(60);
        const OPERATIONS: Duration = Duration::from_secs(240);
        let job = |setting, name, checks, limit, run| {
            let endings = OnceLock::new();
            Self { setting, name, checks, limit, run, endings }
        };
        let operations = [Setting::OneRank, Setting::TwoRanks].map(|setting| {
            let checks = operations::all().iter().map(ToString::to_string).collect();
            job(setting, "no error after the operations", checks, OPERATIONS, operations::run as fn(&Rank))
        });
        let scenarios: [&[Scenario]; 4] =
            [scenarios::SCENARIOS, communicators::SCENARIOS, memory::SCENARIOS, more_operations::SCENARIOS];
        let scenarios = scenarios.into_iter().flatten();
        let scenarios = scenarios.map(|&(setting, name, run)| job(setting, name, Vec::new(), SCENARIO, run));
        operations.into_iter().chain(scenarios).collect()
    }

    pub(crate) fn setting(&self) -> Setting {
        self.setting
    }

    /// Returns the names of the checks, in order.
    pub(crate) fn checks(&self) -> Vec<String> {
        self.checks.iter().cloned().chain([self.name.to_owned()]).collect()
    }

    /// Returns the names of the checks with less detail: for operations, without the types.
    pub(crate) fn groups(&self) -> Vec<String> {
        let first_word = |check: &String| check.split(' ').next().unwrap_or_default().to_owned();
        self.checks.iter().map(first_word).chain([self.name.to_owned()]).collect()
    }

    /// Returns the outcome of a check: skipped if it is skipped on any rank and has failed on none. The first call runs
    /// the job.
    pub(crate) fn outcome(&self, check: &str) -> Result<Completion, Failed> {
        let endings = self.endings.get_or_init(|| self.start().expect("processes and their files"));
        let (mut problems, mut reasons) = (Vec::new(), Vec::new());
        for (rank, ending) in endings.iter().enumerate() {
            match self.outcome_on(check, ending) {
                Outcome::Passed => {}
                Outcome::Skipped(reason) => reasons.push(reason),
                Outcome::Failed(problem) => problems.push(format!("rank {rank}: {problem}")),
            }
        }
        reasons.dedup();
        match (problems.is_empty(), reasons.is_empty()) {
            (false, _) => Err(problems.join("\n").into()),
            (true, false) => Ok(Completion::ignored_with(format!("skipped, {}", reasons.join("; ")))),
            (true, true) => Ok(Completion::Completed),
        }
    }

    fn outcome_on(&self, check: &str, Ending { outcomes, status, log }: &Ending) -> Outcome {
        if let Some(outcome) = outcomes.get(check) {
            return outcome.clone();
        }
        let first = self.checks().into_iter().find(|check| !outcomes.contains_key(check));
        Outcome::Failed(match first {
            Some(first) if first != check => {
                format!("not run, as the process ended before, at: {first}")
            }
            _ => format!("the process ended: {status}\n{log}"),
        })
    }

    fn start(&self) -> io::Result<Vec<Ending>> {
        let folder = tempfile::tempdir()?;
        let start = |rank| self.command(rank, folder.path())?.spawn();
        let mut ranks = (0..self.setting.ranks()).map(start).collect::<io::Result<Vec<_>>>()?;
        let statuses = self.wait(&mut ranks)?;
        let endings = statuses.into_iter().enumerate();
        Ok(endings.map(|(rank, status)| self.ending(rank, status, folder.path())).collect())
    }

    fn command(&self, rank: usize, folder: &Path) -> io::Result<Command> {
        let log = File::create(folder.join(format!("output{rank}")))?;
        let number = Self::all().iter().position(|job| job.setting == self.setting && job.name == self.name);
        let mut command = Command::new(env::current_exe()?);
        command.args([RANK, &number.unwrap_or_default().to_string(), &rank.to_string()]).arg(folder);
        command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
        command.env("NCCL_DEBUG_FILE", folder.join(format!("nccl{rank}")));
        if env::var_os("NCCL_DEBUG").is_none() {
            command.env("NCCL_DEBUG", "WARN");
        }
        match self.setting {
            // Reductions in NVLink's switches (NVLS) do not support a shared GPU.
            Setting::TwoRanks => command.env("NCCL_MULTI_RANK_GPU_ENABLE", "1").env("NCCL_NVLS_ENABLE", "0"),
            _ => command.env_remove("NCCL_MULTI_RANK_GPU_ENABLE"),
        };
        Ok(command)
    }

    /// Waits until all ranks have ended: by themselves, because one failed, or because the time is over.
    fn wait(&self, ranks: &mut [Child]) -> io::Result<Vec<String>> {
        const GRACE: Duration = Duration::from_secs(5);
        let mut deadline = Instant::now() + self.limit + GRACE;
        let mut failed = false;
        let mut killed = vec![false; ranks.len()];
        loop {
            let ends = ranks.iter_mut().map(Child::try_wait).collect::<io::Result<Vec<_>>>()?;
            let now = Instant::now();
            if !failed && ends.iter().flatten().any(|status| !status.success()) {
                failed = true;
                deadline = deadline.min(now + GRACE);
            }
            // A process that is stuck in the driver cannot be killed: it is left behind.
            if ends.iter().all(Option::is_some) || killed.contains(&true) && now > deadline {
                let status = |(end, killed): (Option<ExitStatus>, bool)| match end {
                    Some(status) if killed => format!("{status}, as it or its peer took too long"),
                    Some(status) => status.to_string(),
                    None => "it does not end even when killed".to_owned(),
                };
                return Ok(ends.into_iter().zip(killed).map(status).collect());
            }
            if now > deadline {
                deadline = now + GRACE;
                for ((rank, end), killed) in ranks.iter_mut().zip(ends).zip(&mut killed) {
                    *killed = end.is_none();
                    // An error means that it has ended.
                    let _ = rank.kill();
                }
            }
            thread::sleep(PAUSE);
        }
    }

    fn ending(&self, rank: usize, status: String, folder: &Path) -> Ending {
        let read = |name: &str| {
            let text = fs::read(folder.join(format!("{name}{rank}"))).unwrap_or_default();
            String::from_utf8_lossy(&text).into_owned()
        };
        let results = read("results");
        let mut outcomes: HashMap<_, _> = results.lines().filter_map(Outcome::parse).collect();
        if status != "exit status: 0" {
            outcomes.remove(self.name);
        }
        Ending { outcomes, status, log: tail(&read("output")) + &tail(&read("nccl")) }
    }
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

    fn parse(line: &str) -> Option<(String, Self)> {
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

/// Returns the last lines.
fn tail(text: &str) -> String {
    const LINES: usize = 30;
    let skip = text.lines().count().saturating_sub(LINES);
    text.lines().skip(skip).map(|line| format!("    {line}\n")).collect()
}

/// The argument that makes a process a rank.
const RANK: &str = "--rank";

/// A process that is a rank.
pub(crate) struct Rank {
    job: Job,
    pub(crate) number: usize,
    pub(crate) nccl: Nccl,
    folder: PathBuf,
}

impl Rank {
    /// Returns this process's rank, if the process is one.
    pub(crate) fn of_this_process() -> Option<Self> {
        let mut arguments = env::args().skip(1);
        if arguments.next()? != RANK {
            return None;
        }
        let mut number = || arguments.next()?.parse().ok();
        let (job, number) = (number()?, number()?);
        let folder = arguments.next()?.into();
        let nccl = Nccl::load().expect("loaded by the parent before");
        Some(Self { job: Job::all().swap_remove(job), number, nccl, folder })
    }

    pub(crate) fn run(self) {
        // Code that waits for the GPU or for a peer cannot be unwound, and also blocks a normal exit.
        let report = panic::take_hook();
        panic::set_hook(Box::new(move |panic| {
            report(panic);
            _exit(101);
        }));
        let limit = self.job.limit;
        thread::spawn(move || {
            thread::sleep(limit);
            panic!("not done within {limit:?}");
        });
        (self.job.run)(&self);
        self.report(self.job.name, Ok(()));
    }

    pub(crate) fn size(&self) -> usize {
        self.job.setting.ranks()
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
        self.write_outcome(self.job.name, &Outcome::Skipped(reason.to_owned()));
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
        self.nccl.init_rank_with(self.size(), self.number, &id, config)
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
