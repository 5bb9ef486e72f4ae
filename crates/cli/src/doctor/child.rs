//! The child process that loads the driver, NCCL and its plugins. If it hangs or crashes, only its results are lost.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, ExitCode, Stdio};
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};
use std::{fs, thread};

use anyhow::Result;
use cuda_common::finding::REPORT;
use itertools::Itertools;
use libnccl::Nccl;
use libnccl_observe::variables::RECORDER;
use rustix::process::{Pid, Signal, kill_process_group, set_parent_process_death_signal};
use serde::{Deserialize, Serialize};

use super::driver::Driver;
use super::finding::Finding;
use super::library::{NOT_STARTED, Search};
use crate::nccl_file::NcclFile;
use crate::run::THIS_PROGRAM;
use crate::system::environment;
use crate::{library, output};

/// The time limit of the child. Resolving the host of `NCCL_COMM_ID` may take seconds.
const LIMIT: Duration = Duration::from_secs(20);
/// The time between two checks of whether the child has exited.
const PAUSE: Duration = Duration::from_millis(5);
/// The time limit for reading the streams of a child that has exited, because its descendants may keep them open.
const GRACE: Duration = Duration::from_secs(1);
/// The maximum number of bytes read from each of the child's streams.
const LONGEST: u64 = 1 << 20;
/// The variables that name plugins, each with the prefix of the plugin's file name.
const PLUGINS: [(&str, &str); 6] = [
    ("NCCL_NET_PLUGIN", "libnccl-net"),
    ("NCCL_TUNER_PLUGIN", "libnccl-tuner"),
    ("NCCL_PROFILER_PLUGIN", "libnccl-profiler"),
    ("NCCL_ENV_PLUGIN", "libnccl-env"),
    ("NCCL_GIN_PLUGIN", "libnccl-gin"),
    ("NCCL_RMA_PLUGIN", "libnccl-rma"),
];

/// The child's results so far. The child prints all of them after each step.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(default)]
struct ChildReport {
    driver: Option<Driver>,
    search: Option<Search>,
    probe: Probe,
    /// The NCCL file that the child had loaded, or was loading, when it was killed.
    #[serde(skip)]
    loaded: Option<String>,
}

/// Starts this program again to load the driver and the given library, or the library that the search finds.
pub(super) fn examine(file: Option<&Path>) -> (Driver, Search) {
    let mut command = Command::new(THIS_PROGRAM);
    command.args(["doctor", "--probe"]).envs(FORCED);
    command.args(file.iter().flat_map(|file| [Path::new("--library"), file]));
    // The child must not write the files that a job would write.
    command.env_remove(REPORT).env_remove(RECORDER);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).process_group(0);
    match command.spawn() {
        Ok(child) => wait(child, LIMIT).results(file),
        Err(error) => {
            let problem = format!("{THIS_PROGRAM} cannot be started: {error}");
            let finding = Finding::warning(format!("no library was examined, as {problem}"), NOT_STARTED);
            (Driver::failed(problem, true), Search::unfinished(finding))
        }
    }
}

fn wait(mut child: Child, limit: Duration) -> ChildReport {
    let (sender, lines) = channel();
    let stdout = child.stdout.take().map(|stream| (false, Box::new(stream) as Box<dyn Read + Send>));
    let stderr = child.stderr.take().map(|stream| (true, Box::new(stream) as _));
    for (is_log, stream) in stdout.into_iter().chain(stderr) {
        let sender = sender.clone();
        // A process that the library started may keep the stream open, so nothing joins this thread.
        thread::spawn(move || {
            for line in BufReader::new(stream.take(LONGEST)).split(b'\n').map_while(std::io::Result::ok) {
                let line = String::from_utf8_lossy(&line).trim_end().to_owned();
                // The receiver may have timed out.
                let _ = sender.send((is_log, line));
            }
        });
    }
    drop(sender);
    let end = Instant::now() + limit;
    let mut runs = || matches!(child.try_wait(), Ok(None));
    while runs() && Instant::now() <= end {
        thread::sleep(PAUSE);
    }
    let is_late = runs();
    let loaded = if is_late { last_loaded(&child) } else { None };
    // Includes the processes that the library has started.
    let _ = kill_process_group(Pid::from_child(&child), Signal::KILL);
    let failure = match child.wait() {
        _ if is_late => Some(format!("it took more than {} s, and was killed", limit.as_secs())),
        Ok(status) if status.success() => None,
        Ok(status) => Some(format!("the process ended with {status}")),
        // The kernel keeps no exit status if this program was started with SIGCHLD ignored.
        Err(error) if error.raw_os_error() == Some(libc::ECHILD) => None,
        Err(error) => Some(format!("the end of the process is not known: {error}")),
    };
    let (mut report, mut log) = (ChildReport::default(), vec![]);
    let end = Instant::now() + GRACE;
    while let Ok((is_log, line)) = lines.recv_timeout(end.saturating_duration_since(Instant::now())) {
        match is_log {
            true => log.push(line),
            false => report = serde_json::from_str(&line).unwrap_or(report),
        }
    }
    ChildReport { probe: Probe { log, failure, ..report.probe }, loaded, ..report }
}

/// Returns the last NCCL file among the child's mappings.
fn last_loaded(child: &Child) -> Option<String> {
    let maps = fs::read_to_string(format!("/proc/{}/maps", child.id())).ok()?;
    let mut paths = maps.lines().filter_map(|line| Some(&line[line.find('/')?..]));
    paths.rfind(|path| path.contains("/libnccl.so") || path.contains("/librccl.so")).map(str::to_owned)
}

impl ChildReport {
    /// Returns the known results, with the reason why the others are missing.
    fn results(self, file: Option<&Path>) -> (Driver, Search) {
        let Self { driver, search, probe, loaded } = self;
        let file = file.map(|file| file.display().to_string()).or(loaded);
        let failure = probe.reasons();
        let Some(driver) = driver else {
            let problem = format!("{} cannot be loaded: {failure}", library::DRIVER);
            let text = "no library was examined, as the driver ended the process that would have loaded it";
            let finding = Finding::warning(text, "repair the driver, and run `nccl doctor` again");
            return (Driver::failed(problem, false), Search::unfinished(finding));
        };
        if let Some(search) = search {
            let library = search.library.map(|library| library.with(probe));
            return (driver, Search { library, ..search });
        }
        let advice = match &file {
            Some(file) => format!("repair or remove {file}"),
            None => "name one by --library, to find the one that ends its process".into(),
        };
        let file = file.unwrap_or_else(|| "a library".into());
        let finding = Finding::problem(format!("{file} cannot be loaded: {failure}"), advice);
        (driver, Search::unfinished(finding))
    }
}

pub(super) fn run(file: Option<&Path>) -> Result<ExitCode> {
    set_parent_process_death_signal(Some(Signal::KILL))?;
    output::keep_libraries_out()?;
    let before = environment();
    let mut out = output::stdout();
    let mut print =
        |report: &ChildReport| -> Result<()> { Ok(writeln!(out, "{}", serde_json::to_string(report)?)?) };
    // Before the library: the CPU backend uses CUDA's memory space if CUDA is available.
    let mut report = ChildReport { driver: Some(Driver::new()), ..ChildReport::default() };
    print(&report)?;
    let (search, nccl) = Search::new(file);
    let path = search.library.as_ref().and_then(|library| library.path.clone());
    report.search = Some(search);
    print(&report)?;
    let Some(nccl) = nccl else { return Ok(ExitCode::SUCCESS) };
    let id = nccl.unique_id();
    let mut added = environment();
    added.retain(|name, _| !before.contains_key(name));
    report.probe.call = Some(Call {
        id: id.as_ref().ok().map(|id| id.as_bytes().to_vec()),
        problem: id.err().map(|error| error.to_string()),
        parameters: parameters(&nccl, before.keys().chain(added.keys())),
        added: added.clone(),
    });
    print(&report)?;
    report.probe.plugins = plugins(|name| added.get(name).or(before.get(name)).map_or("", String::as_str));
    print(&report)?;
    if library::emulation().is_some() {
        // Its initialization checks its variables.
        let _ = library::gpus();
    }
    if path.as_deref().and_then(NcclFile::read).is_some_and(|file| file.is_cpu_backend) {
        // The library checks some of its variables only now.
        let _ = nccl.init_all(&[0, 1]);
    }
    Ok(ExitCode::SUCCESS)
}

/// Returns the reasons why plugins cannot be loaded, by the variable that names them. `value` returns a variable's value.
fn plugins<'a>(value: impl Fn(&str) -> &'a str) -> BTreeMap<String, String> {
    let mut problems = BTreeMap::new();
    for (variable, prefix) in PLUGINS {
        let names = value(variable).split(',').filter(|name| !name.is_empty());
        let found = names.filter_map(|name| open_plugin(name, prefix).err()).join("; ");
        if !found.is_empty() {
            problems.insert(variable.into(), found);
        }
    }
    let is_internal = ["", "IB", "Socket"].iter().any(|name| name.eq_ignore_ascii_case(value("NCCL_NET")));
    if !is_internal && value("NCCL_NET_PLUGIN").is_empty() {
        let problem = library::open_plugin("libnccl-net.so").err();
        problems.extend(problem.map(|problem| ("NCCL_NET".into(), problem)));
    }
    problems
}

/// Returns the values of the library's parameters for set variables.
fn parameters<'a>(nccl: &Nccl, names: impl Iterator<Item = &'a String>) -> BTreeMap<String, String> {
    let Ok(parameters) = nccl.parameters() else { return BTreeMap::new() };
    let names = names.filter(|name| name.starts_with("NCCL_") && !is_forced(name));
    names.filter_map(|name| Some((name.clone(), parameters.get::<String>(name).ok()??))).collect()
}

/// Opens a plugin as NCCL does: by the given name, or as `PREFIX-NAME.so`.
fn open_plugin(name: &str, prefix: &str) -> Result<(), String> {
    if ["none", "STATIC_PLUGIN"].iter().any(|special| name.eq_ignore_ascii_case(special)) {
        return Ok(());
    }
    library::open_plugin(name).or_else(|problem| {
        if name.contains('/') || (name.starts_with("lib") && name.ends_with(".so")) {
            return Err(problem);
        }
        library::open_plugin(&format!("{prefix}-{name}.so")).map_err(|other| format!("{problem}; {other}"))
    })
}

/// The variables that are set only for the child process, with their values.
pub(super) const FORCED: [(&str, &str); 3] =
    [("NCCL_DEBUG", "INFO"), ("NCCL_DEBUG_SUBSYS", "ALL"), ("NCCL_DEBUG_FILE", "/dev/stderr")];

#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Probe {
    /// The call of `ncclGetUniqueId`; `None` if the process exited before it.
    pub(crate) call: Option<Call>,
    /// The reasons why plugins cannot be loaded, by variable.
    pub(crate) plugins: BTreeMap<String, String>,
    #[serde(skip)]
    pub(crate) log: Vec<String>,
    #[serde(skip)]
    pub(crate) failure: Option<String>,
}

/// The result and the effects of `ncclGetUniqueId`.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct Call {
    pub(crate) id: Option<Vec<u8>>,
    pub(crate) problem: Option<String>,
    /// The variables that NCCL added to the environment: the settings in its configuration files.
    pub(crate) added: BTreeMap<String, String>,
    /// The values of NCCL's parameters for set variables.
    pub(crate) parameters: BTreeMap<String, String>,
}

impl Probe {
    /// Returns the address and port at which the ranks meet.
    pub(crate) fn address(&self) -> Option<(IpAddr, u16)> {
        socket_address(self.call.as_ref()?.id.as_ref()?)
    }

    /// Returns the name and the address of the interface in the line `Bootstrap : Using eth0:10.0.0.1<0>`.
    pub(crate) fn interface(&self) -> Option<(&str, IpAddr)> {
        let line = self.log.iter().find(|line| line.contains("Bootstrap"))?;
        let (text, _) = line.split_once("Using ")?.1.split_once('<')?;
        let (name, address) = text.split_once(':')?;
        Some((name, address.split('%').next()?.parse().ok()?))
    }

    /// Returns the reasons for the child's failure: its exit status, the library's warnings, and its own errors.
    pub(super) fn reasons(&self) -> String {
        let failure = self.failure.as_deref().unwrap_or("the process printed no result");
        let errors = self.log.iter().filter(|line| line.starts_with("error: ")).map(String::as_str);
        [failure].into_iter().chain(self.warnings()).chain(errors).join("; ")
    }

    pub(crate) fn warnings(&self) -> Vec<&str> {
        let warnings = self.log.iter().filter_map(|line| Some(line.split_once("NCCL WARN ")?.1.trim()));
        // Without a driver, every process has this warning, and the section on the driver reports it.
        warnings.filter(|text| !text.starts_with("Cuda failure")).dedup().take(3).collect()
    }

    /// Returns the messages of the CPU backend and the CUDA emulation about rejected variables.
    pub(crate) fn rejected_variables(&self) -> BTreeSet<&str> {
        let lines = self.log.iter().filter(|line| line.starts_with("libnccl"));
        let texts = lines.filter_map(|line| Some(line.split_once(": ")?.1));
        texts.filter(|text| text.trim_start_matches("invalid ").starts_with("LIBNCCL_CPU_")).collect()
    }

    /// Returns whether the CPU backend or the CUDA emulation rejects this variable.
    pub(crate) fn rejects(&self, name: &str) -> bool {
        self.rejected_variables().iter().any(|text| text.split(' ').any(|word| word == name))
    }

    pub(crate) fn set_by_environment(&self) -> Vec<&str> {
        let texts = self.log.iter().filter_map(|line| Some(line.split_once("NCCL INFO ")?.1));
        let texts =
            texts.filter(|text| text.starts_with("NCCL_") && text.contains(" set by environment to "));
        texts.filter(|text| !is_forced(text.split(' ').next().unwrap_or_default())).dedup().collect()
    }
}

/// Returns whether a variable has a different value in the child than in a job.
pub(crate) fn is_forced(name: &str) -> bool {
    FORCED.iter().any(|(forced, _)| *forced == name)
}

/// Reads the socket address in a unique id. The address is at the beginning or, since NCCL 2.16, after an 8-byte random number.
fn socket_address(id: &[u8]) -> Option<(IpAddr, u16)> {
    let at = |offset: usize| {
        let address = id.get(offset..offset + 28)?;
        let family = libc::c_int::from(u16::from_ne_bytes(*address.first_chunk()?));
        let port = u16::from_be_bytes([address[2], address[3]]);
        let v4: [u8; 4] = address[4..8].try_into().ok()?;
        let v6: [u8; 16] = address[8..24].try_into().ok()?;
        // Padding and flow are 0, unlike a random number before the address.
        match family {
            libc::AF_INET if address[8..16] == [0; 8] => Some((Ipv4Addr::from(v4).into(), port)),
            libc::AF_INET6 if v4 == [0; 4] => Some((Ipv6Addr::from(v6).into(), port)),
            _ => None,
        }
    };
    at(0).or_else(|| at(8))
}

#[cfg(test)]
#[path = "../../tests/unit/doctor_child.rs"]
mod tests;
