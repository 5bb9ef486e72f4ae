//! Jobs: a process for each rank, which is this program, started again.
//!
//! A rank writes the outcome of each check to a file, and is killed if it does not end in time. So every check has an
//! outcome, whatever happens to the ranks.

use std::collections::HashMap;
use std::fs::{self, File};
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::OnceLock;
use std::thread;
use std::time::{Duration, Instant};
use std::{env, io};

use libnccl::Nccl;
use libtest_mimic::{Completion, Failed};

use crate::common::Scenario;
use crate::rank::{Outcome, Rank, Setting};
use crate::{communicators, memory, more_operations, operations, scenarios};

const PAUSE: Duration = Duration::from_millis(5);

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

    pub(crate) fn name(&self) -> &str {
        self.name
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

/// Returns the last lines.
fn tail(text: &str) -> String {
    const LINES: usize = 30;
    let skip = text.lines().count().saturating_sub(LINES);
    text.lines().skip(skip).map(|line| format!("    {line}\n")).collect()
}

/// The argument that makes a process a rank.
const RANK: &str = "--rank";

/// Runs this process's rank, if the process is one. Returns `false` if it is not.
pub(crate) fn run_rank() -> bool {
    let mut arguments = env::args().skip(1);
    if arguments.next().is_none_or(|argument| argument != RANK) {
        return false;
    }
    let mut number = || arguments.next().and_then(|number| number.parse().ok()).expect("a number");
    let (job, number) = (number(), number());
    let folder = arguments.next().expect("a folder").into();
    let nccl = Nccl::load().expect("loaded by the parent before");
    let Job { setting, name: check, limit, run, .. } = Job::all().swap_remove(job);
    Rank { setting, check, limit, number, nccl, folder }.run(run);
    true
}
