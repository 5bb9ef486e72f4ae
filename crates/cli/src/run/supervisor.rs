//! The supervisor: starts the ranks, sends them signals, and ends all of them if one fails.

use std::env;
use std::ffi::{OsStr, OsString};
use std::hash::BuildHasher;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{Ipv4Addr, TcpListener};
use std::os::unix::process::{CommandExt, parent_id};
use std::path::{Path, PathBuf, absolute};
use std::process::{Child, Command, ExitCode, ExitStatus, Stdio};
use std::sync::Arc;
use std::sync::mpsc::{Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use itertools::Itertools;
use libnccl::internal::environment::variable;
use rustix::process::{Pid, Signal, WaitIdOptions, kill_process_group};
use signal_hook::iterator::Signals;

use super::RunArguments;
use super::machine::{Action, Event, Machine};
use super::output::{Output, Stream};
use super::process::{self, ROLE, exit_code, has_exited, requests_the_end, spawn, this_program};
use crate::{output, preload};

/// The interval of checks whether the front is stopped, so that the ranks are stopped too.
const LOOK_INTERVAL: Duration = Duration::from_millis(100);

/// Runs the ranks until an attempt succeeds, or all attempts have failed.
pub(super) fn run(arguments: &RunArguments, colors: &str, signals: Signals) -> Result<ExitCode> {
    let (reports, next) = channel();
    listen(&reports, signals)?;
    let mut ranks = Ranks::new(arguments, colors, reports.clone())?;
    let mut machine = Machine::new(arguments.ranks, arguments.restart);
    let (mut problem, mut first, mut is_read) = (None, None, true);
    let mut deadline = Some(Instant::now());
    loop {
        let longest = deadline.map_or(Duration::MAX, |end| end.saturating_duration_since(Instant::now()));
        let event = match next.recv_timeout(longest) {
            Ok(Report::Event(event)) => event,
            Ok(Report::Ended(rank)) => {
                let (status, is_first) = reap(&mut ranks, rank, machine.is_sound(), arguments.inherit)?;
                first = is_first.then_some(rank).or(first);
                Event::Ended(status)
            }
            Ok(Report::CannotPrint(error)) => Event::OutputLost(status_of(&error, machine.is_sound())),
            Err(_) => {
                deadline = None;
                Event::Due
            }
        };
        // If the reader has closed the output, exit statuses are not reported.
        is_read &= !matches!(event, Event::OutputLost(output::CLOSED));
        for action in machine.on(event) {
            match action {
                Action::Start { attempt, rank } => {
                    if attempt > 0 && rank == 0 {
                        first = None;
                        say(&format!("starting all ranks again, {attempt} of {} times", arguments.restart));
                    }
                    let started = ranks.start(attempt, rank);
                    let event = if started.is_ok() { Event::Started } else { Event::NotStarted };
                    problem = problem.or(started.err());
                    let _ = reports.send(Report::Event(event));
                }
                Action::Send(signal) => ranks.send(signal),
                Action::NameSurvivors => {
                    for (rank, pid) in ranks.running() {
                        let end = format!("has survived SIGKILL: its state is {}", process::state(pid));
                        say(&format!("rank {rank} (process {pid}) {end}"));
                    }
                }
                Action::Sweep => {
                    if is_read && !arguments.inherit {
                        ranks.ends(first).iter().for_each(|end| say(end));
                    }
                    sweep(&ranks.running().map(|(_, pid)| pid).collect_vec());
                    // No output is waited for after the output that is already available.
                    ranks.open = None;
                }
                Action::Wait(time) => deadline = Some(Instant::now() + time),
                Action::Exit(status) => return problem.map_or(Ok(status.into()), Err),
            }
        }
    }
}

/// Kills the remaining descendants of the ranks, except ranks that have survived SIGKILL. Does not affect the job's exit status.
fn sweep(left_behind: &[Pid]) {
    match process::kill_all(left_behind) {
        Ok(left) => left.into_iter().for_each(|pid| {
            let state = process::state(pid);
            say(&format!("process {pid}, which a rank started, has survived SIGKILL: its state is {state}"));
        }),
        Err(error) => say(&format!("processes of the ranks may be left: {error:#}")),
    }
}

fn listen(reports: &Sender<Report>, mut signals: Signals) -> Result<()> {
    // Signals forwarded by the front. The pipe is closed when the front exits for any reason.
    let to_reports = reports.clone();
    spawn(move || {
        for signal in io::stdin().lock().bytes().map_while(Result::ok) {
            let event = match Signal::from_named_raw(signal.into()) {
                Some(Signal::PIPE) => Event::OutputLost(output::CLOSED),
                Some(signal) => Event::Signal(signal),
                None => continue,
            };
            to_reports.send(Report::Event(event))?;
        }
        to_reports.send(Report::Event(Event::FrontEnded))
    })?;
    // Signals sent to every process of the job. The ranks get the other signals themselves.
    let to_reports = reports.clone();
    spawn(move || {
        let ends =
            signals.forever().filter_map(Signal::from_named_raw).filter(|signal| requests_the_end(*signal));
        ends.map(Event::Signal).try_for_each(|signal| to_reports.send(Report::Event(signal)))
    })?;
    // A process is not notified when its parent is stopped.
    let (front, to_reports) = (parent_id() as i32, reports.clone());
    spawn(move || {
        let mut was_stopped = false;
        loop {
            thread::sleep(LOOK_INTERVAL);
            if process::state_and_parent(front).is_some_and(|(state, _)| state == "T") != was_stopped {
                was_stopped = !was_stopped;
                let _ = to_reports.send(Report::Event(Event::FrontStopped(was_stopped)));
            }
        }
    })
}

/// Returns the exit status of a rank, and whether it is the first rank that failed. The first failure is printed immediately,
/// unless the rank has exited normally and the ranks report their failures themselves, as in `nccl bench`.
fn reap(ranks: &mut Ranks, rank: usize, is_sound: bool, ranks_report: bool) -> Result<(u8, bool)> {
    let own = &mut ranks.ranks[rank];
    let (pid, status) = (own.pid(), own.child.wait()?);
    own.status = Some(status);
    let is_first = !status.success() && is_sound;
    if is_first && !(ranks_report && status.code().is_some()) {
        let others = if ranks.running().next().is_some() { "; ending the others" } else { "" };
        say(&format!("rank {rank} (process {pid}) {}{others}", process::describe(status, None, "was")));
    }
    Ok((exit_code(status), is_first))
}

/// Returns the exit status of a job whose output is lost. The reason is printed, if it is the first problem.
fn status_of(error: &io::Error, is_first: bool) -> u8 {
    if error.kind() == ErrorKind::BrokenPipe {
        return output::CLOSED;
    }
    if is_first {
        say(&format!("the ranks' output cannot be written: {error}; ending them"));
    }
    1
}

fn say(message: &str) {
    let _ = io::stderr().write_all(format!("nccl run: {message}\n").as_bytes());
}

/// A rank of the last attempt, the first process of a process group.
struct Rank {
    child: Child,
    status: Option<ExitStatus>,
    /// The last signal that was sent to end the rank.
    sent: Option<Signal>,
}

impl Rank {
    fn pid(&self) -> Pid {
        Pid::from_child(&self.child)
    }
}

/// A message from a thread of the supervisor to its main thread, which handles messages in order.
enum Report {
    Event(Event),
    /// A rank has exited, and must be reaped.
    Ended(usize),
    CannotPrint(io::Error),
}

/// The ranks of the last attempt, and the data to start them.
struct Ranks<'a> {
    arguments: &'a RunArguments,
    colors: &'a str,
    reports: Sender<Report>,
    /// A unique id of the job.
    run_id: String,
    /// The variables that select the CPU backend, if it is used.
    cpu: Vec<(&'static str, OsString)>,
    port: u16,
    ranks: Vec<Rank>,
    /// Shared with the threads that print output.
    open: Option<Arc<Open>>,
}

/// Reports the end of the attempt's output when it is dropped.
struct Open(Sender<Report>);

impl Drop for Open {
    fn drop(&mut self) {
        let _ = self.0.send(Report::Event(Event::OutputEnded));
    }
}

impl<'a> Ranks<'a> {
    fn new(arguments: &'a RunArguments, colors: &'a str, reports: Sender<Report>) -> Result<Self> {
        let run_id = format!("{:016x}", std::hash::RandomState::new().hash_one(std::process::id()));
        let (cpu, program) = arguments.cpu_and_program();
        let program = program.first().map(OsString::as_os_str).unwrap_or_default();
        let cpu = cpu.map(|given| variables_of_cpu(given, program)).transpose()?.unwrap_or_default();
        Ok(Self { arguments, colors, reports, run_id, cpu, port: 0, ranks: vec![], open: None })
    }

    /// Starts a rank. Rank 0 must be the first of an attempt. The rank's exit and errors in printing its output are reported.
    ///
    /// Must be called on the main thread: the kernel kills the ranks when the *thread* that started them exits.
    fn start(&mut self, attempt: u32, rank: usize) -> Result<()> {
        if rank == 0 {
            // Another program may take the port before rank 0 does.
            let free = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).and_then(|free| free.local_addr());
            self.port = free.context("no port is free")?.port();
            self.ranks.clear();
            self.open = Some(Arc::new(Open(self.reports.clone())));
        }
        let log = self.arguments.log_dir.as_ref().map(|logs| logs.join(format!("attempt_{attempt}")));
        let output = |stream| Output::new(stream, rank, self.arguments.ranks, log.as_deref(), self.colors);
        let (stdout, stderr) = (output(Stream::Stdout)?, output(Stream::Stderr)?);
        let mut command = this_program()?;
        command.env(ROLE, process::rank());
        self.set_variables(&mut command, attempt, rank);
        command.stdin(Stdio::null()).process_group(0);
        if !self.arguments.inherit {
            command.stdout(Stdio::piped()).stderr(Stdio::piped());
        }
        let mut child = command.spawn().with_context(|| format!("cannot start rank {rank}"))?;
        let stdout = child.stdout.take().map_or(Ok(()), |from| self.copy(stdout, from));
        let stderr = child.stderr.take().map_or(Ok(()), |from| self.copy(stderr, from));
        let mut child = Rank { child, status: None, sent: None };
        let watched = stdout.and(stderr).and_then(|()| self.watch(rank, child.pid()));
        if watched.is_err() {
            let _ = child.child.kill();
            child.status = child.child.wait().ok();
        }
        self.ranks.push(child);
        watched
    }

    /// Sets torchrun's variables, which describe a rank and its job, and `LIBNCCL_RUN_ID`.
    fn set_variables(&self, command: &mut Command, attempt: u32, rank: usize) {
        let (rank, ranks) = (rank.to_string(), self.arguments.ranks.to_string());
        command.envs(["RANK", "LOCAL_RANK", "ROLE_RANK"].map(|name| (name, &rank)));
        command.envs(["WORLD_SIZE", "LOCAL_WORLD_SIZE", "ROLE_WORLD_SIZE"].map(|name| (name, &ranks)));
        command.env("GROUP_RANK", "0").env("GROUP_WORLD_SIZE", "1").env("ROLE_NAME", "default");
        command.env("MASTER_ADDR", Ipv4Addr::LOCALHOST.to_string()).env("MASTER_PORT", self.port.to_string());
        command.env("TORCHELASTIC_RESTART_COUNT", attempt.to_string());
        command.env("TORCHELASTIC_MAX_RESTARTS", self.arguments.restart.to_string());
        command.env("TORCHELASTIC_RUN_ID", &self.run_id).env(libnccl_launch::RUN_ID, &self.run_id);
        // No store listens on the port: rank 0 creates it.
        command.env("TORCHELASTIC_USE_AGENT_STORE", "False");
        command.envs(self.cpu.iter().map(|(name, value)| (name, value)));
    }

    fn watch(&self, rank: usize, pid: Pid) -> Result<()> {
        let reports = self.reports.clone();
        spawn(move || {
            has_exited(pid, WaitIdOptions::empty());
            reports.send(Report::Ended(rank))
        })
    }

    fn copy(&self, output: Output, from: impl Read + Send + 'static) -> Result<()> {
        let (reports, open) = (self.reports.clone(), self.open.clone());
        spawn(move || {
            output.copy(from, |error| drop(reports.send(Report::CannotPrint(error))));
            drop(open);
        })
    }

    fn running(&self) -> impl Iterator<Item = (usize, Pid)> {
        let running = self.ranks.iter().enumerate().filter(|(_, rank)| rank.status.is_none());
        running.map(|(number, rank)| (number, rank.pid()))
    }

    /// Returns a sentence for each distinct exit status of the ranks other than `except`; none if all ranks have succeeded.
    fn ends(&self, except: Option<usize>) -> Vec<String> {
        if self.ranks.iter().all(|rank| rank.status.is_some_and(|status| status.success())) {
            return vec![];
        }
        let mut ways: Vec<(_, Vec<usize>)> = vec![];
        for (number, rank) in self.ranks.iter().enumerate().filter(|(number, _)| Some(*number) != except) {
            let end = (rank.status, rank.sent.filter(|_| rank.status.is_some()));
            match ways.iter_mut().find(|(known, _)| *known == end) {
                Some((_, ranks)) => ranks.push(number),
                None => ways.push((end, vec![number])),
            }
        }
        let sentence = |((status, sent), ranks): (_, Vec<usize>)| {
            let [is, has] = if ranks.len() == 1 { ["was", "has"] } else { ["were", "have"] };
            let way = match status {
                Some(status) => process::describe(status, sent, is),
                None => format!("{has} not ended, and {is} left behind"),
            };
            format!("{} {way}", name_ranks(&ranks))
        };
        ways.into_iter().map(sentence).collect()
    }

    /// Sends a signal to the process groups of the running ranks.
    fn send(&mut self, signal: Signal) {
        let asks = requests_the_end(signal) && !matches!(signal, Signal::STOP | Signal::CONT);
        for rank in self.ranks.iter_mut().filter(|rank| rank.status.is_none()) {
            // A rank that has already exited did not exit because of this signal.
            if asks && !has_exited(rank.pid(), WaitIdOptions::NOHANG) {
                rank.sent = Some(signal);
            }
            let _ = kill_process_group(rank.pid(), signal);
        }
    }
}

/// Returns `rank 3`, or `ranks 0-2, 5`.
fn name_ranks(ranks: &[usize]) -> String {
    let name = |range: &[usize]| match range {
        [first, .., last] => format!("{first}-{last}"),
        _ => range[0].to_string(),
    };
    let names = ranks.chunk_by(|rank, next| rank + 1 == *next).map(name).join(", ");
    format!("rank{} {names}", if ranks.len() == 1 { "" } else { "s" })
}

const RAS_ENABLE: &str = "NCCL_RAS_ENABLE";
const LIBRARY: &str = "libnccl.so.2";
/// CUDA's runtime libraries, which the directories may contain. A program uses the one that it was linked with.
const RUNTIMES: [&str; 2] = ["libcudart.so.12", "libcudart.so.13"];

fn variables_of_cpu(given: Option<&Path>, program: &OsStr) -> Result<Vec<(&'static str, OsString)>> {
    let directories = cpu_directories(given, program)?;
    let files = |name: &'static str| directories.iter().map(move |directory| directory.join(name));
    let library = files(LIBRARY).find(|file| file.is_file()).context("no library")?;
    // First in the linker's search path, and preloaded for programs with an own path to NVIDIA's libraries, such as PyTorch.
    let runtimes = RUNTIMES.into_iter().filter_map(|name| files(name).find(|file| file.is_file()));
    let own: Vec<PathBuf> = runtimes.chain([library.clone()]).collect();
    let mut variables = vec![
        (libnccl::internal::PATH_VARIABLE, library.into()),
        ("LD_LIBRARY_PATH", preload::search_first(&directories)?),
    ];
    variables.extend(preload::preload(own)?);
    // NCCL serves `nccl ras` by default, the CPU backend only on request.
    if variable(RAS_ENABLE).is_none() {
        variables.push((RAS_ENABLE, "1".into()));
    }
    Ok(variables)
}

/// Returns the directories of the CPU backend: the given one, the installed one, or the Python package's.
fn cpu_directories(given: Option<&Path>, program: &OsStr) -> Result<Vec<PathBuf>> {
    let candidates = match given {
        Some(directory) => vec![directory.to_owned()],
        None => preload::installed("libnccl-cpu")?.into(),
    };
    let has_library = |directory: &PathBuf| directory.join(LIBRARY).is_file();
    let mut found = Vec::from_iter(candidates.iter().find(|one| has_library(one)).cloned());
    if found.is_empty() && given.is_none() {
        found = directories_of_wheel(program);
    }
    if !found.iter().any(has_library) {
        let names = candidates.iter().map(|directory| directory.display()).join(" or ");
        let wheel = if given.is_none() { ", and `python3 -m libnccl_cpu` prints none" } else { "" };
        bail!(
            "no {LIBRARY} in {names}{wheel}; `cargo xtask cpu-so DIR` makes one, and --cpu=DIR says where it is"
        );
    }
    for directory in &mut found {
        *directory = absolute(&directory).context("the path of the current directory is not known")?;
        preload::check(directory)?;
    }
    Ok(found)
}

/// Returns the directories of the Python package `libnccl_cpu`, as printed by the program if it is Python, or else by `python3`.
fn directories_of_wheel(program: &OsStr) -> Vec<PathBuf> {
    let is_python =
        Path::new(program).file_name().is_some_and(|name| name.to_string_lossy().starts_with("python"));
    let has_path = program.as_encoded_bytes().contains(&b'/');
    let program = if has_path { absolute(program).unwrap_or_default() } else { program.into() };
    let mut python = Command::new(if is_python { program } else { "python3".into() });
    // `-m` searches the current directory first, which may contain any module of this name.
    let output = python.args(["-m", "libnccl_cpu", "cuda"]).current_dir("/").stdin(Stdio::null()).output();
    let printed = output.ok().filter(|output| output.status.success()).map(|output| output.stdout);
    let printed = printed.and_then(|printed| String::from_utf8(printed).ok()).unwrap_or_default();
    env::split_paths(printed.trim_end()).filter(|path| path.is_dir()).collect()
}
