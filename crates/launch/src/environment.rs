//! The environment variables of the launchers. The crate's documentation lists them.

use std::collections::BTreeMap;

use super::directory;
use super::error::{LaunchError, Result};
use super::job::{self, Launcher};
use super::rendezvous::{Rendezvous, is_host};

/// A job id that replaces the launcher's. Ranks with another id are refused. Default: the launcher's job id.
const JOB: &str = "LIBNCCL_JOB";
/// The rendezvous: `tcp://HOST:PORT`, `tcpstore://HOST:PORT` or `file:///DIRECTORY`. Default: the launcher's.
const RENDEZVOUS: &str = "LIBNCCL_RENDEZVOUS";
/// The environment variable in which `nccl run` passes its job id.
pub const RUN_ID: &str = "LIBNCCL_RUN_ID";

/// The default port in a pod, which shares its ports with no other job. It is also PyTorch's default.
const POD_PORT: u16 = 29_500;
/// The maximum length of a job id in bytes. The id is part of a TCPStore key, whose length is limited.
const MAX_JOB: usize = 1024;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Environment {
    pub(super) launcher: Launcher,
    pub(super) ranks: Ranks,
    pub(super) job: String,
    /// Set if only the port identifies the job.
    pub(super) is_open: bool,
    /// The rendezvous; `None` for a single rank without `LIBNCCL_RENDEZVOUS`.
    pub(super) rendezvous: Option<Rendezvous>,
    /// Set if the rendezvous is a directory that rank 0 creates for this user.
    pub(super) is_private: bool,
}

impl Environment {
    pub(super) fn hash(&self) -> u128 {
        job::hash(&self.job)
    }

    /// Returns the TCPStore key under which rank 0 publishes its address.
    pub(super) fn key(&self) -> String {
        format!("/libnccl/{}/address", self.job)
    }
}

/// Reads the variables. `parent` is the id of the parent process.
pub(super) fn read(
    variables: impl IntoIterator<Item = (String, String)>,
    parent: u32,
) -> Result<Environment> {
    let values = variables.into_iter().filter(|(_, value)| !value.is_empty()).collect();
    // Until a launcher is recognized, errors are about a SLURM batch script.
    let mut v = Variables { launcher: Launcher::Slurm, values };
    v.launcher = recognize(&v)?;
    let (v, launcher) = (&v, v.launcher);
    let ranks = Ranks::read(v)?;
    check_outer(v, &ranks)?;
    let mut job = match v.get(JOB) {
        Some(job) => format!("job/{job}"),
        None => job_id(v, parent)?,
    };
    if job.len() > MAX_JOB {
        return Err(v.problem(format!("the job id has {} bytes; expected at most {MAX_JOB}", job.len())));
    }
    let expected = "tcp://HOST:PORT, tcpstore://HOST:PORT or file:///DIRECTORY";
    let (rendezvous, is_private) = match v.parse(RENDEZVOUS, expected, Rendezvous::parse)? {
        None if ranks.size > 1 => match rendezvous(v, &ranks, &job)? {
            Some(rendezvous) => (Some(rendezvous), false),
            None => {
                let name = format!("{}{:032x}", directory::OWN, job::hash(&job));
                (Some(Rendezvous::Directory(std::env::temp_dir().join(name))), true)
            }
        },
        given => (given, false),
    };
    // The ranks may have different names for rank 0's host, but they share the port.
    let mut is_open = false;
    if let (true, Some(Rendezvous::Tcp { port, .. })) = (job.is_empty(), &rendezvous) {
        is_open = true;
        job = format!("port/{port}");
    }
    Ok(Environment { launcher, ranks, job, is_open, rendezvous, is_private })
}

fn recognize(v: &Variables) -> Result<Launcher> {
    let launchers: [(Launcher, &[&str]); 9] = [
        (Launcher::NcclRun, &[RUN_ID]),
        (Launcher::Torchrun, &["TORCHELASTIC_RUN_ID"]),
        (Launcher::OpenMpi, &["OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"]),
        (Launcher::Mpich, &["PMI_RANK", "PMI_SIZE"]),
        (Launcher::Slurm, &["SLURM_STEP_ID"]),
        (Launcher::LeaderWorkerSet, &["LWS_GROUP_SIZE", "LWS_WORKER_INDEX"]),
        (Launcher::Kubeflow, &["PET_NNODES", "PET_NODE_RANK"]),
        (Launcher::JobSet, &["JOB_COMPLETION_INDEX"]),
        (Launcher::Variables, &["RANK", "WORLD_SIZE"]),
    ];
    // `srun --mpi=pmi2` sets PMI_RANK too, but not the local rank.
    let is_srun = v.has("SLURM_STEP_ID") && !v.has("MPI_LOCALRANKID");
    for (launcher, names) in launchers {
        if names.iter().any(|name| v.has(name)) && !(launcher == Launcher::Mpich && is_srun) {
            return Ok(launcher);
        }
    }
    match v.number("SLURM_NTASKS")? {
        // A batch script has the variables of a task, but is not a task.
        Some(tasks @ 2..) if v.has("SLURM_PROCID") => Err(v.problem(format!(
            "SLURM_NTASKS is {tasks}, but SLURM_STEP_ID is not set; start the tasks with srun"
        ))),
        _ => Err(LaunchError::NoLauncher),
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Ranks {
    pub(super) rank: u32,
    pub(super) size: u32,
    pub(super) local_rank: u32,
    pub(super) local_size: u32,
}

impl Ranks {
    fn read(v: &Variables) -> Result<Self> {
        let launcher = v.launcher;
        let [rank, size] = match launcher {
            Launcher::OpenMpi => ["OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"],
            Launcher::Mpich => ["PMI_RANK", "PMI_SIZE"],
            Launcher::Slurm => ["SLURM_PROCID", v.either("SLURM_STEP_NUM_TASKS", "SLURM_NTASKS")],
            Launcher::LeaderWorkerSet => ["LWS_WORKER_INDEX", "LWS_GROUP_SIZE"],
            Launcher::Kubeflow if !v.has("RANK") => ["PET_NODE_RANK", "PET_NNODES"],
            Launcher::JobSet => [v.either("RANK", "JOB_COMPLETION_INDEX"), "WORLD_SIZE"],
            _ => ["RANK", "WORLD_SIZE"],
        };
        let [local_rank, local_size] = match launcher {
            Launcher::OpenMpi => ["OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"],
            Launcher::Mpich => ["MPI_LOCALRANKID", "MPI_LOCALNRANKS"],
            Launcher::Slurm => {
                ["SLURM_LOCALID", v.either("SLURM_STEP_TASKS_PER_NODE", "SLURM_TASKS_PER_NODE")]
            }
            _ => ["LOCAL_RANK", "LOCAL_WORLD_SIZE"],
        };
        // Without them, there is one rank per host.
        let is_optional =
            local_rank == "LOCAL_RANK" && !matches!(launcher, Launcher::NcclRun | Launcher::Torchrun);
        let number = |name| v.set(name, v.number(name)?);
        let mut ranks = Self { rank: number(rank)?, size: number(size)?, local_rank: 0, local_size: 1 };
        if launcher == Launcher::Slurm {
            ranks.local_rank = number(local_rank)?;
            let node = number("SLURM_NODEID")?;
            let expected = format!("the number of tasks of node {node}");
            let tasks = v.parse(local_size, &expected, |list| tasks_of_node(list, node))?;
            ranks.local_size = v.set(local_size, tasks)?;
        } else if !is_optional || v.has(local_rank) || v.has(local_size) {
            (ranks.local_rank, ranks.local_size) = (number(local_rank)?, number(local_size)?);
        } else if launcher == Launcher::Kubeflow
            && let Some(processes) = v.get("PET_NPROC_PER_NODE")
            // These words let torchrun choose, but this program was started without torchrun, as one process.
            && !["1", "auto", "cpu", "gpu"].contains(&processes)
        {
            let expected = "expected LOCAL_RANK to be set: start the program with torchrun";
            return Err(v.problem(format!("PET_NPROC_PER_NODE is {processes}; {expected}")));
        }
        let Self { rank: r, size: s, local_rank: l, local_size: n } = ranks;
        let invalid = |text: String| Err(v.problem(text));
        if r >= s {
            invalid(format!("{rank} is {r}, {size} is {s}; expected a rank below the size"))
        } else if l >= n {
            invalid(format!("{local_rank} is {l}, {local_size} is {n}; expected a rank below the size"))
        } else if n > s {
            invalid(format!("{local_size} is {n}, {size} is {s}; expected at most as many ranks on a host"))
        } else {
            Ok(ranks)
        }
    }
}

/// Fails if `RANK` and `WORLD_SIZE` are both set, but differ from the launcher's rank and size.
fn check_outer(v: &Variables, ranks: &Ranks) -> Result<()> {
    match (v.number("RANK")?, v.number("WORLD_SIZE")?) {
        (Some(rank), Some(size)) if (rank, size) != (ranks.rank, ranks.size) => Err(v.problem(format!(
            "this is rank {} of {}, but RANK is {rank}, WORLD_SIZE is {size}; expected the same: unset those of the outer launcher",
            ranks.rank, ranks.size
        ))),
        _ => Ok(()),
    }
}

/// Returns the launcher's job id with, where possible, the number of restarts. It is empty if the launcher has no id.
fn job_id(v: &Variables, parent: u32) -> Result<String> {
    let count = |name| v.number(name).map(Option::unwrap_or_default);
    Ok(match v.launcher {
        Launcher::NcclRun => {
            format!("nccl-run/{}/{}", v.require(RUN_ID)?, count("TORCHELASTIC_RESTART_COUNT")?)
        }
        Launcher::Torchrun => {
            let run = v.require("TORCHELASTIC_RUN_ID")?;
            // Each agent counts its own restarts, and not every agent counts the failure of a worker.
            match count("GROUP_WORLD_SIZE")? {
                0 | 1 => format!("torchrun/{run}/{}", count("TORCHELASTIC_RESTART_COUNT")?),
                _ => format!("torchrun/{run}"),
            }
        }
        Launcher::OpenMpi => {
            let namespace = v.get(v.either("PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid"));
            namespace.map(|namespace| format!("openmpi/{namespace}")).unwrap_or_default()
        }
        // There is no job id, but all ranks of a host have one parent process.
        Launcher::Mpich if v.get("PMI_SIZE") == v.get("MPI_LOCALNRANKS") => format!("mpich/{parent}"),
        Launcher::Slurm => {
            let (job, step) = (v.require("SLURM_JOB_ID")?, v.require("SLURM_STEP_ID")?);
            format!("slurm/{job}.{step}/{}", count("SLURM_RESTART_COUNT")?)
        }
        Launcher::LeaderWorkerSet => format!("lws/{}", v.get("LWS_LEADER_ADDRESS").unwrap_or_default()),
        Launcher::Mpich | Launcher::Kubeflow | Launcher::JobSet | Launcher::Variables => String::new(),
    })
}

/// Returns the launcher's rendezvous, or `None` if it is a directory that rank 0 creates.
fn rendezvous(v: &Variables, ranks: &Ranks, job: &str) -> Result<Option<Rendezvous>> {
    let (mut host, mut port) = (v.host("MASTER_ADDR")?, v.port("MASTER_PORT")?);
    match v.launcher {
        Launcher::NcclRun => return Ok(None),
        Launcher::OpenMpi | Launcher::Mpich if host.is_none() && port.is_none() => {
            if ranks.local_size == ranks.size && !job.is_empty() {
                return Ok(None);
            }
            let text = "MASTER_ADDR and MASTER_PORT are not set; the launcher has no address of rank 0, so pass \
                        them, or LIBNCCL_RENDEZVOUS, to the ranks";
            return Err(v.problem(text));
        }
        Launcher::Slurm => {
            let nodes = v.number("SLURM_STEP_NUM_NODES")?.or(v.number("SLURM_NNODES")?);
            host = Some(match host {
                Some(host) => host,
                None if nodes == Some(1) => "127.0.0.1".into(),
                None => {
                    let list = v.either("SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST");
                    v.set(list, v.parse(list, "a list of hosts", first_host)?)?
                }
            });
            // Other jobs may be on the same hosts.
            port = port.or(Some(20_000 + (job::hash(job) % 10_000) as u16));
        }
        Launcher::LeaderWorkerSet => {
            if host.is_none() {
                host = Some(v.set("LWS_LEADER_ADDRESS", v.host("LWS_LEADER_ADDRESS")?)?);
            }
            port = port.or(Some(POD_PORT));
        }
        Launcher::Kubeflow => {
            host = host.or(v.host("PET_MASTER_ADDR")?);
            port = port.or(v.port("PET_MASTER_PORT")?);
        }
        Launcher::JobSet => port = port.or(Some(POD_PORT)),
        Launcher::Torchrun | Launcher::OpenMpi | Launcher::Mpich | Launcher::Variables => {}
    }
    let (host, port) = (v.set("MASTER_ADDR", host)?, v.set("MASTER_PORT", port)?);
    let has_store = v.parse("TORCHELASTIC_USE_AGENT_STORE", "True or False", |value| match value {
        "True" => Some(true),
        "False" => Some(false),
        _ => None,
    });
    Ok(Some(if v.launcher == Launcher::Torchrun && has_store? == Some(true) {
        Rendezvous::TcpStore { host, port }
    } else {
        Rendezvous::Tcp { host, port }
    }))
}

/// Returns the first host of a list such as `node[01-04,07],gpu5`.
fn first_host(list: &str) -> Option<String> {
    let mut host = String::new();
    let mut rest = list;
    loop {
        let end = rest.find([',', '[']).unwrap_or(rest.len());
        host.push_str(&rest[..end]);
        // A name may have several brackets: `rack[1-2]-node[3,5]`.
        let Some(brackets) = rest[end..].strip_prefix('[') else { break };
        let (numbers, after) = brackets.split_once(']')?;
        let first = numbers.split([',', '-']).next()?;
        if first.is_empty() || !first.bytes().all(|byte| byte.is_ascii_digit()) {
            return None;
        }
        host.push_str(first);
        rest = after;
    }
    let is_name = |byte: u8| byte.is_ascii_alphanumeric() || b"-._:".contains(&byte);
    (!host.is_empty() && host.bytes().all(is_name)).then_some(host)
}

/// Returns the number of tasks on `node`, from a list such as `2(x3),1`: two on each of three nodes, one on the next.
fn tasks_of_node(list: &str, node: u32) -> Option<u32> {
    let mut nodes_before = 0_u32;
    for entry in list.split(',') {
        let (tasks, repeated) = match entry.split_once("(x") {
            Some((tasks, times)) => (tasks, times.strip_suffix(')')?.parse().ok()?),
            None => (entry, 1),
        };
        let tasks = tasks.parse().ok()?;
        nodes_before = nodes_before.checked_add(repeated)?;
        if node < nodes_before {
            return Some(tasks);
        }
    }
    None
}

/// The environment variables of a launcher. An empty variable counts as unset.
struct Variables {
    launcher: Launcher,
    values: BTreeMap<String, String>,
}

impl Variables {
    fn get(&self, name: &str) -> Option<&str> {
        self.values.get(name).map(String::as_str)
    }

    fn has(&self, name: &str) -> bool {
        self.values.contains_key(name)
    }

    /// Returns `name` if this variable is set, otherwise `other`.
    fn either<'n>(&self, name: &'n str, other: &'n str) -> &'n str {
        if self.has(name) { name } else { other }
    }

    fn problem(&self, problem: impl Into<Box<str>>) -> LaunchError {
        LaunchError::Variables { launcher: self.launcher, problem: problem.into() }
    }

    /// Returns the value, parsed by `parse`, if the variable is set.
    fn parse<T>(
        &self,
        name: &str,
        expected: &str,
        parse: impl FnOnce(&str) -> Option<T>,
    ) -> Result<Option<T>> {
        let Some(value) = self.get(name) else { return Ok(None) };
        let parsed = parse(value).map(Some);
        parsed.ok_or_else(|| self.problem(format!("{name} is {value:?}; expected {expected}")))
    }

    fn number(&self, name: &str) -> Result<Option<u32>> {
        // `parse` alone would accept a sign.
        let is_number = |value: &&str| value.bytes().all(|byte| byte.is_ascii_digit());
        self.parse(name, "a number", |value| Some(value).filter(is_number)?.parse().ok())
    }

    fn port(&self, name: &str) -> Result<Option<u16>> {
        let Some(number) = self.number(name)? else { return Ok(None) };
        let port = u16::try_from(number).ok().filter(|port| *port > 0).map(Some);
        port.ok_or_else(|| self.problem(format!("{name} is {number}; expected a port, 1 to 65535")))
    }

    /// Returns the host name or IP address in a variable, if it is set. Brackets of an IPv6 address are removed.
    fn host(&self, name: &str) -> Result<Option<String>> {
        let expected = "the name or the IP address of a host, and nothing else";
        self.parse(name, expected, |value| {
            let bare = value.strip_prefix('[').and_then(|value| value.strip_suffix(']')).unwrap_or(value);
            Some(bare.to_owned()).filter(|host| is_host(host))
        })
    }

    fn require(&self, name: &str) -> Result<&str> {
        self.set(name, self.get(name))
    }

    /// Returns `value`, or an error if the variable `name` is not set.
    fn set<T>(&self, name: &str, value: Option<T>) -> Result<T> {
        value.ok_or_else(|| self.problem(format!("{name} is not set")))
    }
}
