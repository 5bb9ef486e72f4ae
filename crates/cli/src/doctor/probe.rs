//! Runs the library in a child process, with NCCL's own logging, and collects what it did.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, ExitCode, Stdio};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Result;
use cuda_common::finding::REPORT;
use libnccl::Nccl;
use libnccl::internal::environment::variables;
use libnccl_observe::variables::RECORDER;
use rustix::process::{Pid, Signal, kill_process_group, set_parent_process_death_signal};
use serde::{Deserialize, Serialize};

use crate::nccl_file::NcclFile;
use crate::run::THIS_PROGRAM;
use crate::{gpu, library, output};

/// The time limit of the child. Resolving the host of `NCCL_COMM_ID` may take seconds.
const LIMIT: Duration = Duration::from_secs(20);
/// The time between two looks at whether the child has ended.
const PAUSE: Duration = Duration::from_millis(50);
/// The time for the rest of the streams of a child that has ended, which its own children may keep open.
const GRACE: Duration = Duration::from_secs(1);
/// The limit for each of the child's streams.
const LONGEST: u64 = 1 << 20;
/// The variables that the child has for itself, with their values.
const FORCED: [(&str, &str); 3] =
    [("NCCL_DEBUG", "INFO"), ("NCCL_DEBUG_SUBSYS", "ALL"), ("NCCL_DEBUG_FILE", "/dev/stderr")];
/// The variables that name plugins, with the prefix of the file's name.
const PLUGINS: [(&str, &str); 6] = [
    ("NCCL_NET_PLUGIN", "libnccl-net"),
    ("NCCL_TUNER_PLUGIN", "libnccl-tuner"),
    ("NCCL_PROFILER_PLUGIN", "libnccl-profiler"),
    ("NCCL_ENV_PLUGIN", "libnccl-env"),
    ("NCCL_GIN_PLUGIN", "libnccl-gin"),
    ("NCCL_RMA_PLUGIN", "libnccl-rma"),
];

/// The outcome of the child.
#[derive(Debug, Default)]
pub(crate) struct Probe {
    /// `None` if the child did not get as far as this.
    pub(crate) call: Option<Call>,
    /// The reason why each of these plugins cannot be loaded, by variable.
    pub(crate) plugins: BTreeMap<String, String>,
    /// The library's log.
    pub(crate) log: Vec<String>,
    /// The reason why the child failed.
    pub(crate) failure: Option<String>,
}

/// The result of `ncclGetUniqueId`, and its effect.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct Call {
    pub(crate) id: Option<Vec<u8>>,
    pub(crate) problem: Option<String>,
    /// The variables that NCCL added to the environment: the settings in its configuration files.
    pub(crate) added: BTreeMap<String, String>,
    /// The values of NCCL's parameters, for variables that are set.
    pub(crate) parameters: BTreeMap<String, String>,
}

impl Probe {
    /// Starts this program again to run the library.
    pub(crate) fn run(library: &Path) -> Self {
        let mut command = Command::new(THIS_PROGRAM);
        command.args(["doctor", "--probe"]).arg(library).envs(FORCED);
        // The child must not write what a job would write.
        command.env_remove(REPORT).env_remove(RECORDER);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).process_group(0);
        match command.spawn() {
            Ok(child) => Self::wait(child, LIMIT),
            Err(error) => {
                let failure = format!("the process that loads it cannot be started: {error}");
                Self { failure: Some(failure), ..Self::default() }
            }
        }
    }

    fn wait(mut child: Child, limit: Duration) -> Self {
        let (sender, lines) = channel();
        let streams: [Option<Box<dyn Read + Send>>; 2] = [
            child.stdout.take().map(|stream| Box::new(stream) as _),
            child.stderr.take().map(|stream| Box::new(stream) as _),
        ];
        for (is_log, stream) in [false, true].into_iter().zip(streams) {
            let (sender, stream) = (sender.clone(), stream.into_iter());
            // A process that the library started may keep the stream open, so nothing joins this thread.
            thread::spawn(move || {
                let lines = stream.flat_map(|stream| BufReader::new(stream.take(LONGEST)).split(b'\n'));
                for line in lines.map_while(std::io::Result::ok) {
                    let line = String::from_utf8_lossy(&line).trim_end().to_owned();
                    // The receiver may have given up.
                    let _ = sender.send((is_log, line));
                }
            });
        }
        drop(sender);
        let (mut probe, mut results) = (Self::default(), 0);
        let (mut end, mut has_ended) = (Instant::now() + limit, false);
        let mut looked = Instant::now();
        let is_late = loop {
            match lines.recv_timeout(PAUSE) {
                Ok((true, line)) => probe.log.push(line),
                Ok((false, line)) => {
                    match results {
                        0 => probe.call = serde_json::from_str(&line).ok(),
                        _ => probe.plugins = serde_json::from_str(&line).unwrap_or_default(),
                    }
                    results += 1;
                }
                // It has closed its streams, but may not have ended.
                Err(RecvTimeoutError::Disconnected) if has_ended => break false,
                Err(RecvTimeoutError::Disconnected) => thread::sleep(PAUSE),
                Err(RecvTimeoutError::Timeout) => {}
            }
            if !has_ended && looked.elapsed() >= PAUSE {
                looked = Instant::now();
                has_ended = matches!(child.try_wait(), Ok(Some(_)));
                end = if has_ended { end.min(Instant::now() + GRACE) } else { end };
            }
            if Instant::now() > end {
                break !has_ended;
            }
        };
        // With the processes that the library has started.
        let _ = kill_process_group(Pid::from_child(&child), Signal::KILL);
        probe.failure = match child.wait() {
            _ if is_late => Some(format!("it took more than {} s, and was killed", limit.as_secs())),
            Ok(status) if status.success() => None,
            Ok(status) => Some(format!("the process ended with {status}")),
            Err(error) => Some(format!("the end of the process is not known: {error}")),
        };
        probe
    }

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

    /// Returns the library's warnings and errors.
    pub(crate) fn warnings(&self) -> Vec<&str> {
        let warnings = self.log.iter().filter_map(|line| Some(line.split_once("NCCL WARN ")?.1.trim()));
        // Without a driver, every process has this one; the section on the driver has it.
        let mut warnings: Vec<_> = warnings.filter(|text| !text.starts_with("Cuda failure")).collect();
        warnings.dedup();
        warnings.truncate(3);
        warnings
    }

    /// Returns what the CPU backend and the CUDA emulation report of their own variables.
    pub(crate) fn rejected_variables(&self) -> BTreeSet<&str> {
        let lines = self.log.iter().filter(|line| line.starts_with("libnccl"));
        let texts = lines.filter_map(|line| Some(line.split_once(": ")?.1));
        texts.filter(|text| text.trim_start_matches("invalid ").starts_with("LIBNCCL_CPU_")).collect()
    }

    /// Returns whether the CPU backend or the CUDA emulation reports this variable.
    pub(crate) fn rejects(&self, name: &str) -> bool {
        self.rejected_variables().iter().any(|text| text.split(' ').any(|word| word == name))
    }

    /// Returns the variables that the log names as set.
    pub(crate) fn set_by_environment(&self) -> Vec<&str> {
        let texts = self.log.iter().filter_map(|line| Some(line.split_once("NCCL INFO ")?.1));
        let is_forced = |text: &str| FORCED.iter().any(|(name, _)| text.split(' ').next() == Some(name));
        let mut texts: Vec<_> = texts
            .filter(|text| text.starts_with("NCCL_") && text.contains(" set by environment to "))
            .filter(|text| !is_forced(text))
            .collect();
        texts.dedup();
        texts
    }
}

/// Returns whether the child has another value of the variable than a job.
pub(crate) fn is_forced(name: &str) -> bool {
    FORCED.iter().any(|(forced, _)| *forced == name)
}

/// Reads the socket address in a unique id. It is at the beginning, or behind 8 bytes of a random number since NCCL 2.16.
fn socket_address(id: &[u8]) -> Option<(IpAddr, u16)> {
    let at = |offset: usize| {
        let address = id.get(offset..offset + 28)?;
        let family = libc::c_int::from(u16::from_ne_bytes(*address.first_chunk()?));
        let port = u16::from_be_bytes([address[2], address[3]]);
        let v4: [u8; 4] = address[4..8].try_into().ok()?;
        let v6: [u8; 16] = address[8..24].try_into().ok()?;
        // The padding and the flow are 0, which a random number before the address is not.
        match family {
            libc::AF_INET if address[8..16] == [0; 8] => Some((Ipv4Addr::from(v4).into(), port)),
            libc::AF_INET6 if v4 == [0; 4] => Some((Ipv6Addr::from(v6).into(), port)),
            _ => None,
        }
    };
    at(0).or_else(|| at(8))
}

/// The child: makes a unique id, opens the plugins, and prints a line of JSON for each.
pub(super) fn child(path: &Path) -> Result<ExitCode> {
    set_parent_process_death_signal(Some(Signal::KILL))?;
    output::keep_libraries_out()?;
    let environment =
        || variables().map(|(name, value)| [name, value].map(|text| text.to_string_lossy().into_owned()));
    let before: BTreeMap<_, _> = environment().map(|[name, value]| (name, value)).collect();
    let nccl = library::load(Some(path))?;
    let id = nccl.unique_id();
    let added = environment().map(|[name, value]| (name, value));
    let added: BTreeMap<_, _> = added.filter(|(name, _)| !before.contains_key(name)).collect();
    let call = Call {
        id: id.as_ref().ok().map(|id| id.as_bytes().to_vec()),
        problem: id.err().map(|error| error.to_string()),
        parameters: parameters(&nccl, before.keys().chain(added.keys())),
        added,
    };
    let mut out = output::stdout();
    writeln!(out, "{}", serde_json::to_string(&call)?)?;
    let value = |name: &str| call.added.get(name).or(before.get(name));
    let mut plugins = BTreeMap::new();
    for (variable, prefix) in PLUGINS {
        let names = value(variable).map(|names| names.split(',').filter(|name| !name.is_empty()));
        let problems: Vec<_> =
            names.into_iter().flatten().filter_map(|name| open_plugin(name, prefix).err()).collect();
        if !problems.is_empty() {
            plugins.insert(variable, problems.join("; "));
        }
    }
    let is_internal =
        |name: &&String| ["", "IB", "Socket"].iter().any(|internal| name.eq_ignore_ascii_case(internal));
    if value("NCCL_NET").is_some_and(|name| !is_internal(&name)) && value("NCCL_NET_PLUGIN").is_none() {
        let problem = library::open_plugin("libnccl-net.so").err();
        plugins.extend(problem.map(|problem| ("NCCL_NET", problem)));
    }
    writeln!(out, "{}", serde_json::to_string(&plugins)?)?;
    if gpu::stand_in().is_some() {
        // Its initialization checks its variables.
        let _ = gpu::count();
    }
    if NcclFile::read(path).is_some_and(|file| file.is_cpu_backend) {
        // It checks some of its variables only now.
        let _ = nccl.init_all(&[0, 1]);
    }
    Ok(ExitCode::SUCCESS)
}

/// Returns the library's values of the variables that are set, as far as it has parameters for them.
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

#[cfg(test)]
mod tests {
    use std::os::unix::process::CommandExt;
    use std::process::{Command, Stdio};
    use std::time::{Duration, Instant};

    use super::{Probe, socket_address};

    fn probe(script: &str, limit: u64) -> Probe {
        let mut shell = Command::new("sh");
        shell.args(["-c", script]).stdout(Stdio::piped()).stderr(Stdio::piped()).process_group(0);
        Probe::wait(shell.spawn().unwrap(), Duration::from_secs(limit))
    }

    #[test]
    fn child_that_hangs_or_dies_is_a_failure_with_a_reason() {
        let start = Instant::now();
        let hung = probe("sleep 60 & sleep 60", 1);
        assert!(start.elapsed() < Duration::from_secs(30));
        assert_eq!(hung.failure.as_deref(), Some("it took more than 1 s, and was killed"));
        // A process that the child leaves behind does not matter.
        let left = probe("sleep 60 & echo '{\"added\":{},\"parameters\":{}}'", 50);
        assert!(left.failure.is_none() && left.call.is_some() && start.elapsed() < Duration::from_secs(30));
        let killed = probe("echo '{\"added\":{},\"parameters\":{},\"problem\":\"none\"}'; kill -9 $$", 30);
        assert_eq!(killed.failure.as_deref(), Some("the process ended with signal: 9 (SIGKILL)"));
        assert_eq!(killed.call.unwrap().problem.as_deref(), Some("none"));
        let silent = probe("exec >&- 2>&-; sleep 60", 1);
        assert_eq!(silent.failure.as_deref(), Some("it took more than 1 s, and was killed"));
        let noisy =
            probe("(while sleep 0.01; do echo x >&2; done) & echo '{\"added\":{},\"parameters\":{}}'", 50);
        assert!(noisy.failure.is_none() && noisy.call.is_some());
        let garbage = probe("head -c 3000000 /dev/urandom; head -c 3000000 /dev/urandom >&2", 30);
        assert!(garbage.call.is_none() && garbage.warnings().is_empty());
    }

    #[test]
    fn log_has_the_interface_warnings_and_settings() {
        let log = "vm:1:1 [0] NCCL INFO Bootstrap : Using eth0:fe80::1%eth0<0>\n\
                   [2026-01-01] vm:1:1 [0] socket.cc:1 NCCL WARN no interface\n\
                   vm:1:1 [0] NCCL INFO NCCL_SOCKET_IFNAME set by environment to eth0\n\
                   vm:1:1 [0] NCCL INFO NCCL_DEBUG_FILE set by environment to /dev/stderr\n\
                   libnccl-cpu: LIBNCCL_CPU_TIMEOUT is \"x\", which is ignored\n\
                   libnccl: invalid LIBNCCL_CPU_SEED \"x\"; it must be a number\n";
        let probe = Probe { log: log.lines().map(Into::into).collect(), ..Probe::default() };
        assert_eq!(probe.interface(), Some(("eth0", "fe80::1".parse().unwrap())));
        assert_eq!(probe.warnings(), ["no interface"]);
        assert_eq!(probe.set_by_environment(), ["NCCL_SOCKET_IFNAME set by environment to eth0"]);
        assert_eq!(probe.rejected_variables().len(), 2);
    }

    #[test]
    fn address_is_found_with_and_without_a_number_before_it() {
        let mut v4 = vec![0; 128];
        v4[..8].copy_from_slice(&[2, 0, 0x12, 0x34, 10, 0, 0, 1]);
        let mut v6 = vec![0; 128];
        v6[..4].copy_from_slice(&[10, 0, 0x12, 0x34]);
        v6[8..10].copy_from_slice(&[0xfd, 0x77]);
        for (id, ip) in [(v4, "10.0.0.1"), (v6, "fd77::")] {
            let expected = Some((ip.parse().unwrap(), 0x1234));
            assert_eq!(socket_address(&id), expected);
            // A number that looks like a family.
            for number in [[2, 0, 1, 2, 3, 4, 5, 6], [10, 0, 1, 2, 3, 4, 5, 6]] {
                assert_eq!(socket_address(&[&number[..], &id[..120]].concat()), expected);
            }
        }
        assert_eq!(socket_address(&[0; 128]), None);
    }
}
