//! The limits of the operating system and of the container.

use rustix::process::Rlimit;

use super::finding::Finding;
use crate::run::has_bit;
use crate::settings::Settings;
use crate::system::{MEMORY_LIMITS, MEMORY_USES, SharedMemory, System};

const MIB: u64 = 1 << 20;
/// The size below which /dev/shm counts as too small. Docker's default is 64 MiB.
const SMALL_SHARED_MEMORY: u64 = 512 * MIB;
/// The number of files in /dev/shm that the ranks of one machine may need.
const FEW_SHARED_FILES: u64 = 256;
/// The number of open files that the ranks of one machine may need.
const FEW_FILES: u64 = 4096;
/// The number of processes and threads that a rank may need.
const FEW_THREADS: u64 = 256;
/// The host memory that a rank may need.
const LITTLE_MEMORY: u64 = 1024 * MIB;
/// The bit of the capability to lock memory, `CAP_IPC_LOCK`.
const IPC_LOCK: i32 = 14;

pub(super) fn findings(system: &System, settings: &Settings, rdma: bool) -> Vec<Finding> {
    let found = [
        system.container().map(|container| Finding::ok(format!("in a container of {container}"))),
        Some(shared_memory(system, settings)),
        Some(locked_memory(system, rdma)),
        Some(open_files(system)),
        threads(system),
        memory(system),
        processors(system),
    ];
    found.into_iter().flatten().collect()
}

fn shared_memory(system: &System, settings: &Settings) -> Finding {
    let advice = "give the container more: `--shm-size=1g` or `--ipc=host`; in Kubernetes, an emptyDir of medium Memory at \
                  /dev/shm";
    if !system.exists("/dev/shm") {
        let text = "there is no /dev/shm, through which processes of a machine share memory";
        return Finding::warning(text, advice);
    }
    if let Some(error) = system.denial("/dev/shm") {
        let advice = "make it writable for all: `mount -o remount,rw,mode=1777 /dev/shm`";
        return Finding::warning(format!("/dev/shm: this user cannot write there: {error}"), advice);
    }
    let SharedMemory { size, used, files, free_files } = system.shared_memory;
    if let Some(files) = files.filter(|_| free_files < FEW_SHARED_FILES) {
        let advice = "remove files there, or raise the limit: `mount -o remount,nr_inodes=100k /dev/shm`";
        return Finding::warning(format!("/dev/shm: {free_files} files of {files} can be made yet"), advice);
    }
    let shown = size.map_or_else(|| "no own limit".to_owned(), in_mib);
    if !settings.is_on("NCCL_SHM_DISABLE") && size.is_some_and(|size| size < SMALL_SHARED_MEMORY) {
        let text = format!("/dev/shm: {shown}, too little for several ranks of one machine");
        return Finding::warning(text, advice);
    }
    if size.is_some_and(|size| used > size / 2) {
        let left = system.names("/dev/shm").iter().filter(|name| name.starts_with("nccl-")).count();
        let text = format!("/dev/shm: {} of {shown} are in use; files of NCCL: {left}", in_mib(used));
        let advice = "if no job runs, remove the files nccl-* in /dev/shm that killed jobs left";
        return Finding::warning(text, advice);
    }
    Finding::ok(format!("/dev/shm: {shown}"))
}

fn in_mib(bytes: u64) -> String {
    format!("{} MiB", bytes / MIB)
}

fn locked_memory(system: &System, rdma: bool) -> Finding {
    let Some(soft) = system.locked_memory else { return Finding::ok("locked memory: unlimited") };
    let shown = format!("locked memory: {} KiB at most", soft >> 10);
    if !rdma {
        return Finding::ok(format!("{shown}; there is no RDMA device that would need more"));
    }
    if has_bit(&system.read("/proc/self/status").unwrap_or_default(), "CapEff:", IPC_LOCK) {
        return Finding::ok(format!("{shown}, which does not hold for this process (CAP_IPC_LOCK)"));
    }
    let advice = "raise it: `ulimit -l unlimited`, LimitMEMLOCK=infinity of the service, or `--ulimit memlock=-1` of the container";
    let text = format!("{shown}: NCCL cannot register its buffers with the RDMA devices");
    if soft < 64 * MIB { Finding::problem(text, advice) } else { Finding::warning(text, advice) }
}

/// Checks the hard limit of open files, to which NCCL raises the soft limit.
fn open_files(system: &System) -> Finding {
    let Rlimit { current, maximum } = system.open_files;
    let shown = |limit: Option<u64>| limit.map_or_else(|| "unlimited".into(), |limit| limit.to_string());
    let text = format!("open files: {}, and {} at most", shown(current), shown(maximum));
    let advice = "raise the hard limit, to which NCCL raises its own: `ulimit -Hn 65536`, or LimitNOFILE of the service";
    Finding::warning_if(maximum.is_some_and(|maximum| maximum < FEW_FILES), text, advice)
}

/// Reads the limit of the control group or of its nearest ancestor with a limit, and the usage there, if known.
fn limit_of_group(system: &System, controller: &str, files: [&[&str]; 2]) -> Option<(u64, Option<u64>)> {
    let [limits, uses] = files;
    system.control_groups(controller).iter().find_map(|group| {
        // In version 1, "unlimited" is a number greater than any memory size.
        let limit = system.number(group, limits).filter(|limit| *limit < 1 << 60)?;
        Some((limit, system.number(group, uses)))
    })
}

fn threads(system: &System) -> Option<Finding> {
    let (limit, used) = limit_of_group(system, "pids", [&["pids.max"], &["pids.current"]])?;
    let shown = used.map_or_else(|| "an unknown number".into(), |used| used.to_string());
    let text = format!("threads of the control group: {shown} of {limit}");
    Some(if limit.saturating_sub(used.unwrap_or(0)) < FEW_THREADS {
        Finding::warning(text, "raise the limit: TasksMax of the service, or `--pids-limit` of the container")
    } else {
        Finding::warning_if(used.is_none(), text, "look at pids.current of the group")
    })
}

fn memory(system: &System) -> Option<Finding> {
    let (limit, used) = limit_of_group(system, "memory", [&MEMORY_LIMITS, &MEMORY_USES])?;
    let used = used.map_or_else(|| "an unknown part".into(), in_mib);
    let text = format!("memory of the control group: {used} of {}", in_mib(limit));
    let advice = "give the job more memory: each rank needs some hundred MiB on the host";
    Some(Finding::warning_if(limit < LITTLE_MEMORY, text, advice))
}

fn processors(system: &System) -> Option<Finding> {
    let (quota, period) = system.control_groups("cpu").iter().find_map(|group| {
        let line = system.line(group.join("cpu.max"))?;
        let (quota, period) = line.split_once(' ')?;
        Some((quota.parse::<f64>().ok()?, period.parse::<f64>().ok()?))
    })?;
    let text = format!("processors of the control group: {:.1}", quota / period);
    let advice = "give the job one processor for each rank at least: NCCL's threads drive the network";
    Some(Finding::warning_if(quota < period, text, advice))
}
