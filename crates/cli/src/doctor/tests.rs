//! The doctor on fabricated machines: each problem, reports from the field, and healthy machines.

use std::fs;
use std::net::Ipv4Addr;
use std::path::PathBuf;

use libnccl::Version;

use super::driver::Driver;
use super::examine;
use super::finding::{Finding, Level};
use super::library::{Check, Library, Missing, Search};
use super::probe::{Call, Probe};
use super::report::Report;
use crate::interface::Interface;
use crate::nccl_file::NcclFile;
use crate::nccl_file::tests::write_library;
use crate::system::System;

const SITE: &str = "/usr/local/lib/python3.12/site-packages";
const IN_SITE: &str = "/usr/local/lib/python3.12/site-packages/nvidia/nccl/lib/libnccl.so.2";
const VARIABLES: &str = "NCCL_DEBUG\0NCCL_SOCKET_IFNAME\0NCCL_IB_HCA\0NCCL_IB_DISABLE\0NCCL_P2P_DISABLE\0\
    NCCL_RAS_ADDR\0NCCL_COMM_ID\0NCCL_SOCKET_FAMILY\0NCCL_MNNVL_ENABLE\0NCCL_IB_TIMEOUT\0NCCL_RAS_ENABLE\0NCCL_ALGO\0NCCL_PROTO\0NCCL_TOPO_FILE\0NCCL_CONF_FILE\0\
    NCCL_DEBUG_FILE\0NCCL_P2P_LEVEL\0NCCL_BUFFSIZE\0NCCL_NTHREADS\0NCCL_WORK_FIFO_BYTES\0NCCL_LAUNCH_MODE\0NCCL_HOSTID\0NCCL_GRAPH_FILE\0\
    NCCL_NET\0NCCL_NET_PLUGIN\0NCCL_TUNER_PLUGIN\0NCCL_MIN_NCHANNELS\0NCCL_MAX_NCHANNELS\0";

/// A machine whose files lie in a temporary folder.
struct Machine {
    root: tempfile::TempDir,
    environment: Vec<(&'static str, &'static str)>,
    probe: Probe,
    architecture: &'static str,
    driver: Driver,
    interfaces: Result<Vec<Interface>, String>,
    id: Check,
    missing: Vec<Missing>,
    needs: Option<Version>,
}

impl Machine {
    /// Returns a machine with eight H100, eight network cards, Ethernet, and NCCL 2.32.3 from Python's package.
    fn healthy() -> Self {
        let driver = Driver {
            library: "libcuda.so.1",
            loaded: true,
            gpus: 8,
            cuda: Some("12.9".into()),
            module: Some("575.57.08".into()),
            models: vec!["NVIDIA H100 80GB HBM3".into(); 8],
            ..Driver::default()
        };
        let environment = vec![("HOME", "/home/me"), ("NCCL_RAS_ENABLE", "0")];
        let interfaces = [
            Interface::new("lo", "running", Some("127.0.0.1")),
            Interface::new("eth0", "running", Some("10.0.0.1")),
            Interface::new("docker0", "running", Some("172.17.0.1")),
            Interface::new("ens9", "down", None),
        ];
        let machine = Self {
            root: tempfile::tempdir().unwrap(),
            environment,
            probe: Probe::default(),
            architecture: "x86_64",
            driver,
            interfaces: Ok(interfaces.into()),
            id: Check { ok: true, problem: None, address: Some(Ipv4Addr::new(10, 0, 0, 1).into()) },
            missing: Vec::new(),
            needs: None,
        };
        machine.write("/proc/self/mounts", "tmpfs /dev/shm tmpfs rw,nosuid,nodev 0 0\n");
        machine.write(
            "/proc/self/limits",
            "Limit                     Soft Limit           Hard Limit           Units\n\
             Max stack size            8388608              unlimited            bytes\n\
             Max open files            1024                 1048576              files\n\
             Max locked memory         unlimited            unlimited            bytes\n",
        );
        machine.write("/proc/self/cgroup", "0::/user.slice\n");
        machine.write("/proc/sys/kernel/osrelease", "6.8.0-45-generic\n");
        machine.write("/dev/shm/.keep", "");
        for index in 0..8 {
            let gpu = format!("/sys/bus/pci/devices/0000:{index}1:00.0");
            for (file, text) in [("vendor", "0x10de"), ("class", "0x030200"), ("numa_node", "0")] {
                machine.write(&format!("{gpu}/{file}"), text);
            }
            let card = format!("/sys/class/infiniband/mlx5_{index}");
            machine.write(&format!("{card}/ports/1/state"), "4: ACTIVE\n");
            machine.write(&format!("{card}/device/numa_node"), "0\n");
            machine.write(&format!("/dev/infiniband/uverbs{index}"), "");
        }
        for node in ["node0", "node1"] {
            machine.write(&format!("/sys/devices/system/node/{node}/cpulist"), "0-47\n");
        }
        machine.library(IN_SITE, "2.32.3", "12.9");
        machine.package("nvidia_nccl_cu12", "2.32.3", IN_SITE);
        machine
    }

    fn write(&self, path: &str, text: &str) {
        let place = self.place(path);
        fs::create_dir_all(place.parent().unwrap()).unwrap();
        fs::write(place, text).unwrap();
    }

    fn place(&self, path: &str) -> PathBuf {
        self.root.path().join(path.trim_start_matches('/'))
    }

    fn remove(&self, path: &str) {
        fs::remove_dir_all(self.place(path)).unwrap();
    }

    /// Writes a library with more variables than the CPU backend can be taken for.
    fn library(&self, path: &str, release: &str, cuda: &str) {
        let more: String = (0..50).map(|index| format!("NCCL_VARIABLE_{index}_OF_MANY\0")).collect();
        let text = format!("NCCL version {release}+cuda{cuda}\0{VARIABLES}{more}");
        write_library(&self.place(path), text.as_bytes());
    }

    /// Writes the metadata of a package of Python that came with a library of the size of the one at `path`.
    fn package(&self, name: &str, release: &str, path: &str) {
        let info = format!("{SITE}/{name}-{release}.dist-info");
        let package = name.replace('_', "-");
        self.write(
            &format!("{info}/METADATA"),
            &format!("Metadata-Version: 2.1\nName: {package}\nVersion: {release}\n"),
        );
        let size = self.place(path).metadata().unwrap().len();
        self.write(&format!("{info}/RECORD"), &format!("nvidia/nccl/lib/libnccl.so.2,sha256=abc,{size}\n"));
    }

    /// Examines the machine, on which a program gets the library at `path`.
    fn with(mut self, path: &str) -> Report {
        let place = fs::canonicalize(self.place(path)).unwrap();
        let file = NcclFile::read(&place).unwrap();
        let library = Library {
            path: Some(path.into()),
            source: "system's Python packages".into(),
            version: file.version.unwrap().to_string(),
            cuda: file.cuda.map(|cuda| cuda.to_string()),
            memory: "device".into(),
            unique_id: std::mem::take(&mut self.id),
            missing_functions: std::mem::take(&mut self.missing),
            probe: std::mem::take(&mut self.probe),
            file,
            ..Library::default()
        };
        self.examine(Search::found(library))
    }

    fn examine(self, search: Search) -> Report {
        let root = fs::canonicalize(self.root.path()).unwrap();
        let mut system = System::at(&root, &self.environment);
        system.architecture = self.architecture.into();
        system.interfaces = self.interfaces;
        examine(&system, search, self.driver, self.needs)
    }

    fn report(self) -> Report {
        self.with(IN_SITE)
    }
}

/// Returns the findings of a section.
fn all<'a>(report: &'a Report, section: &str) -> &'a [Finding] {
    &report.sections.iter().find(|found| found.name == section).expect(section).findings
}

/// Returns the findings of a section that are not fine.
fn bad(report: &Report, section: &str) -> Vec<Finding> {
    all(report, section).iter().filter(|finding| finding.level != Level::Ok).cloned().collect()
}

/// Checks that these are the only findings that are not fine: section, level and a part of the text.
#[track_caller]
fn assert_finds(report: &Report, expected: &[(&str, Level, &str)]) {
    let found: Vec<_> = report
        .sections
        .iter()
        .flat_map(|section| bad(report, section.name).into_iter().map(|finding| (section.name, finding)))
        .collect();
    let is = |(section, finding): &(&str, Finding), (name, level, text): &(&str, Level, &str)| {
        section == name && finding.level == *level && finding.text.contains(text)
    };
    let all = found.len() == expected.len()
        && found.iter().zip(expected).all(|(found, expected)| is(found, expected));
    assert!(all, "expected {expected:#?}, found {found:#?}");
    assert!(found.iter().all(|(_, finding)| finding.advice.is_some()), "{found:#?}");
    let problems = expected.iter().filter(|(_, level, _)| *level == Level::Problem).count();
    assert_eq!(report.starts, problems == 0);
}

#[test]
fn healthy_machine_has_no_finding() {
    assert_finds(&Machine::healthy().report(), &[]);
}

#[test]
fn healthy_machine_of_the_cpu_implementation_has_no_finding() {
    let mut machine = Machine::healthy();
    for folder in ["/sys/class/infiniband", "/sys/bus/pci/devices", "/dev/infiniband", "/usr/local/lib"] {
        machine.remove(folder);
    }
    machine.write("/sys/bus/pci/slots", "");
    machine.write(
        "/proc/self/limits",
        "Max locked memory         65536                65536                bytes\n",
    );
    machine.environment.extend([("LIBNCCL_CPU_STRICT", "1"), ("NCCL_IB_HCA", "mlx5_0")]);
    machine.driver = Driver { problem: Some("no libcuda.so.1".into()), ..Driver::default() };
    write_library(&machine.place("/opt/cpu/lib/libnccl.so.2"), b"NCCL version \0libnccl-cpu: \0");
    let file = NcclFile::read(&machine.place("/opt/cpu/lib/libnccl.so.2")).unwrap();
    let library = Library {
        path: Some("/opt/cpu/lib/libnccl.so.2".into()),
        source: "LIBNCCL_PATH".into(),
        version: "2.32.3".into(),
        memory: "host".into(),
        unique_id: Check { ok: true, ..Check::default() },
        file,
        ..Library::default()
    };
    // It needs no interface.
    machine.interfaces = Ok(Vec::new());
    machine.environment.push(("NCCL_SOCKET_IFNAME", "eth9"));
    assert_finds(&machine.examine(Search::found(library)), &[]);
}

/// The report marin-community/marin 7344: packages for two releases of CUDA, of which the last one wins.
#[test]
fn two_packages_with_one_file_are_named_with_the_one_that_wrote_it() {
    let mut machine = Machine::healthy();
    machine.package("nvidia_nccl_cu12", "2.32.3", "/proc/self/cgroup");
    machine.library(IN_SITE, "2.28.9", "13.0");
    machine.package("nvidia_nccl_cu13", "2.28.9", IN_SITE);
    machine.driver.cuda = Some("13.0".into());
    let report = machine.report();
    let found = bad(&report, "copies");
    assert_eq!(found.len(), 1, "{found:?}");
    let text = &found[0].text;
    assert!(text.starts_with("nvidia-nccl-cu12 2.32.3 and nvidia-nccl-cu13 2.28.9 share one file"), "{text}");
    assert!(text.contains("(2.28.9 for CUDA 13.0)"), "{text}");
    assert!(text.ends_with("the file is that of nvidia-nccl-cu13"), "{text}");
    let advice = found[0].advice.as_ref().unwrap();
    assert!(advice.starts_with("keep one: pip uninstall nvidia-nccl-cu12 nvidia-nccl-cu13"), "{advice}");
}

/// The reports marin-community/marin 7344 and 8038: jobs on Grace hang with 2.28.9, and not with 2.30.7.
#[test]
fn release_that_hangs_on_arm_is_a_problem_there_alone() {
    let examined = |release: &str, architecture| {
        let mut machine = Machine::healthy();
        machine.architecture = architecture;
        machine.remove(&format!("{SITE}/nvidia_nccl_cu12-2.32.3.dist-info"));
        machine.library(IN_SITE, release, "12.9");
        machine.package("nvidia_nccl_cu12", release, IN_SITE);
        machine.report()
    };
    let report = examined("2.28.9", "aarch64");
    assert!(!report.starts);
    let source = "https://github.com/marin-community/marin/issues/7344";
    let is_hang = |finding: &Finding| {
        finding.text.starts_with("arm-proxy-hang: NCCL 2.28.9") && finding.source.as_deref() == Some(source)
    };
    let arm = bad(&report, "advisories");
    assert!(arm.iter().any(|finding| finding.level == Level::Problem && is_hang(finding)), "{arm:?}");
    assert!(!bad(&examined("2.28.9", "x86_64"), "advisories").iter().any(is_hang));
    assert_finds(&examined("2.30.7", "aarch64"), &[]);
}

/// The report verl 6621: the package, a copy in the system's folder and one beside the program, all in one process.
#[test]
fn three_copies_in_one_process_are_named_with_their_releases() {
    let machine = Machine::healthy();
    let copies = [IN_SITE, "/opt/program/lib/libnccl.so.2", "/usr/lib/x86_64-linux-gnu/libnccl.so.2.18.3"];
    machine.library(copies[1], "2.21.5", "12.4");
    machine.library(copies[2], "2.18.3", "12.2");
    let lines = copies.map(|path| {
        format!("7f00-7f10 r-xp 00000000 fe:00 12   {path}\n7f10-7f20 rw-p 0 fe:00 12   {path}\n")
    });
    machine
        .write("/proc/4242/maps", &(lines.concat() + "7f20-7f30 r-xp 0 fe:00 1   /usr/lib/libnccl-net.so\n"));
    machine.write("/proc/4242/comm", "python3\n");
    machine.write("/proc/17/maps", &lines[0]);
    let report = machine.report();
    assert_finds(&report, &[("copies", Level::Warning, "3 copies in process 4242 (python3): ")]);
    let text = &bad(&report, "copies")[0].text;
    for copy in ["(2.32.3 for CUDA 12.9)", "(2.21.5 for CUDA 12.4)", "(2.18.3 for CUDA 12.2)"] {
        assert!(text.contains(copy), "{text}");
    }
}

#[test]
fn other_release_in_the_search_path_is_a_warning_and_another_copy_of_the_same_is_fine() {
    let mut machine = Machine::healthy();
    machine.library("/usr/lib/x86_64-linux-gnu/libnccl.so.2", "2.18.3", "12.2");
    machine.library("/opt/conda/envs/job/lib/libnccl.so.2", "2.32.3", "12.9");
    machine.environment.push(("CONDA_PREFIX", "/opt/conda"));
    let report = machine.report();
    let text = "another version: /usr/lib/x86_64-linux-gnu/libnccl.so.2 (2.18.3 for CUDA 12.2)";
    assert_finds(&report, &[("copies", Level::Warning, text)]);
    let is_copy = |finding: &Finding| finding.text.contains("/opt/conda/envs/job/lib/libnccl.so.2");
    assert!(all(&report, "copies").iter().any(is_copy));
}

#[test]
fn copies_are_found_wherever_the_search_looks() {
    let mut machine = Machine::healthy();
    let places = [
        ("PYTHONPATH", "/target", "/target/nvidia/nccl/lib/libnccl.so.2"),
        ("NCCL_ROOT", "/opt/nccl", "/opt/nccl/lib/libnccl.so.2"),
        ("NCCL_ROOT_DIR", "/srv/nccl", "/srv/nccl/lib64/libnccl.so"),
        ("CUDA_PATH", "/cuda", "/cuda/lib64/libnccl.so.2"),
        ("CUDA_HOME", "/toolkit", "/toolkit/targets/x86_64-linux/lib/libnccl.so.2"),
        ("NCCL_DEBUG", "WARN", "/usr/local/cuda-12.9/targets/x86_64-linux/lib/libnccl.so"),
        ("NVHPC_ROOT", "/hpc", "/hpc/comm_libs/nccl/lib/libnccl.so.2"),
        ("NCCL_DEBUG", "WARN", "/opt/nvidia/hpc_sdk/Linux_x86_64/25.1/comm_libs/nccl/lib/libnccl.so.2"),
    ];
    for (variable, value, file) in places {
        machine.library(file, "2.18.3", "12.2");
        machine.environment.push((variable, value));
    }
    let report = machine.report();
    let copies = all(&report, "copies");
    for (_, _, file) in places {
        assert!(copies.iter().any(|finding| finding.text.contains(file)), "{file}: {copies:?}");
    }
}

#[test]
fn copy_of_an_unknown_release_is_a_warning() {
    let copy = "/usr/lib/x86_64-linux-gnu/libnccl.so.2";
    let unknown = |machine: &mut Machine| write_library(&machine.place(copy), b"no release");
    one(unknown, "copies", Level::Warning, &format!("another copy: {copy} (of an unknown version)"));
    // Nor is another one known to be the same as a library whose file does not tell its release.
    let release = |version: &str, path: Option<&str>| {
        let machine = Machine::healthy();
        machine.library(copy, "2.31.1", "12.9");
        let library = Library {
            path: path.map(Into::into),
            source: "LIBNCCL_PATH".into(),
            version: version.into(),
            memory: "host".into(),
            unique_id: Check { ok: true, ..Check::default() },
            ..Library::default()
        };
        bad(&machine.examine(Search::found(library)), "copies").len()
    };
    let path = Some("/opt/libnccl.so.2");
    // Those are the copy and that of the Python package.
    assert_eq!((release("2.30.7", path), release("2.31.1", path), release("2.30.7", None)), (2, 1, 0));
}

#[test]
fn machine_without_a_driver_is_a_problem() {
    let mut machine = Machine::healthy();
    machine.driver = Driver {
        problem: Some("libcuda.so.1: not found".into()),
        models: machine.driver.models,
        ..Driver::default()
    };
    let report = machine.report();
    let undecided = "known faults that may concern NCCL 2.32.3 here, for lack of the driver's release, the driver's CUDA: \
                     p2p-hang-driver-560, cuda-graph-memory";
    assert_finds(
        &report,
        &[("driver", Level::Problem, "libcuda.so.1: not found"), ("advisories", Level::Warning, undecided)],
    );
    assert!(bad(&report, "driver")[0].advice.as_ref().unwrap().contains("--gpus all"));
}

#[test]
fn machine_without_a_library_is_a_problem() {
    let report = Machine::healthy().examine(Search::nothing());
    assert_finds(&report, &[("library", Level::Problem, "no NCCL library")]);
    let expected = "no library to test them with; interfaces: lo 127.0.0.1, eth0 10.0.0.1, docker0 172.17.0.1, ens9 (down)";
    assert_eq!(all(&report, "network")[0], Finding::ok(expected));
}

/// The only finding, or `ok`, that changes of a healthy machine give: `NAME=VALUE` sets a variable, `/path=TEXT` writes a file,
/// `+/path=LINE` adds a first line to it, `-/path` removes a directory, and `id=ADDRESS` is the address in the unique id. Changes
/// are separated by `|`, alternatives by `||`.
const CASES: &str = r#"
limits warning: /dev/shm: 64 MiB <- /proc/self/mounts=shm /dev/shm tmpfs rw,size=65536k 0 0
limits warning: there is no /dev/shm <- -/dev/shm
limits warning: open files: 1024, and 2048 at most <- +/proc/self/limits=Max open files  1024  2048  files
limits warning: locked memory: 1048576 KiB <- +/proc/self/limits=Max locked memory  1073741824  1073741824  bytes
limits problem: locked memory: 64 KiB at most <- +/proc/self/limits=Max locked memory  65536  65536  bytes
limits warning: locked memory: /proc/self/limits does not say how much <- /proc/self/limits=Max stack size  8388608  8388608  bytes
limits warning: locked memory: /proc/self/limits does not say how much <- +/proc/self/limits=Max locked memory  many  many  bytes
limits warning: locked memory: /proc/self/limits does not say how much <- +/proc/self/limits=Max locked memory
limits warning: memory of the control group: an unknown part of 512 MiB <- /sys/fs/cgroup/user.slice/memory.max=536870912
limits warning: memory of the control group: an unknown part of 512 MiB <- /sys/fs/cgroup/user.slice/memory.max=536870912 | /sys/fs/cgroup/user.slice/job/memory.max=max | /proc/self/cgroup=0::/user.slice/job
limits warning: threads of the control group: an unknown number of 100 <- /sys/fs/cgroup/user.slice/pids.max=100
limits warning: threads of the control group: an unknown number of 100 <- /sys/fs/cgroup/user.slice/pids.max=100 | /sys/fs/cgroup/user.slice/job/pids.max=max | /proc/self/cgroup=0::/user.slice/job
limits warning: threads of the control group: an unknown number of 1000 <- /sys/fs/cgroup/user.slice/pids.max=1000 | /sys/fs/cgroup/user.slice/pids.current=many
limits warning: threads of the control group: 900 of 1000 <- /sys/fs/cgroup/user.slice/pids.max=1000 | /sys/fs/cgroup/user.slice/pids.current=900
ok <- /sys/fs/cgroup/user.slice/pids.max=1000 | /sys/fs/cgroup/user.slice/pids.current=0
ok <- /sys/fs/cgroup/user.slice/memory.max=max | /sys/fs/cgroup/user.slice/cpu.max=max 100000 | NCCL_IB_DISABLE=0
ok <- +/proc/self/limits=Max locked memory  65536  65536  bytes | /proc/self/status=CapEff:\t000001ffffffffff
limits warning: processors of the control group: 0.5 <- /sys/fs/cgroup/user.slice/cpu.max=50000 100000
limits warning: processors of the control group: 0.5 <- /sys/fs/cgroup/user.slice/cpu.max=50000 100000 | /sys/fs/cgroup/user.slice/job/cpu.max=max 100000 | /proc/self/cgroup=0::/user.slice/job
limits warning: /dev/shm: its size is not known, as /proc/self/mounts has size=many; expected <- /proc/self/mounts=shm /dev/shm tmpfs rw,size=many 0 0
limits warning: /proc/self/mounts has size=; expected <- /proc/self/mounts=shm /dev/shm tmpfs rw,size= 0 0
limits warning: /proc/self/mounts has size=-1k; expected <- /proc/self/mounts=shm /dev/shm tmpfs rw,size=-1k 0 0
limits warning: /proc/self/mounts has size=k; expected <- /proc/self/mounts=shm /dev/shm tmpfs rw,size=k 0 0
limits warning: its size is not known <- /proc/self/mounts=shm /dev/shm tmpfs rw,size=99999999999999999999 0 0
limits warning: its size is not known <- /proc/self/mounts=shm /dev/shm tmpfs rw,size=99999999999999g 0 0

ok <- NCCL_SOCKET_IFNAME=eth || NCCL_SOCKET_IFNAME==eth0 || NCCL_SOCKET_IFNAME=^docker,lo || NCCL_SOCKET_IFNAME=eth0:5
ok <- NCCL_COMM_ID=10.0.0.9:5000 | id=10.0.0.9
network warning: ranks meet at 127.0.0.1 (lo), which other machines cannot reach; interfaces: lo 127.0.0.1, eth0 <- NCCL_SOCKET_IFNAME=lo | id=127.0.0.1
network warning: ranks meet at 172.17.0.1 (docker0), which other machines cannot reach <- NCCL_SOCKET_IFNAME=docker0 | id=172.17.0.1
network warning: the library uses eth0 nevertheless; interfaces: lo 127.0.0.1, eth0 10.0.0.1, docker0 172.17.0.1, ens9 (down) <- NCCL_SOCKET_IFNAME=ens,docker9
network warning: the library uses eth0 nevertheless <- NCCL_SOCKET_IFNAME=^eth0
network warning: no interface is named " lo" <- NCCL_SOCKET_IFNAME=eth0, lo

network warning: /sys/class is not there <- -/sys/class
network warning: have no files in /dev/infiniband <- -/dev/infiniband
network warning: NCCL_IB_HCA==mlx5_9 (environment) selects no RDMA device <- NCCL_IB_HCA==mlx5_9
network warning: , but no port with a link is "mlx5_9" <- NCCL_IB_HCA==mlx5_0,mlx5_9
network warning: , but no port with a link is " mlx5_1" <- NCCL_IB_HCA=mlx5_0, mlx5_1
network warning: , but no port with a link is "mlx5_2:2" <- NCCL_IB_HCA=mlx5_1:1,mlx5_2:2
network warning: , but no port with a link is "mlx5_1:x" <- NCCL_IB_HCA=mlx5_0,mlx5_1:x
network warning: selects no RDMA device (no port with a link is "mlx5_1:2", "mlx4"), so NCCL uses sockets <- NCCL_IB_HCA=mlx5_1:2,mlx4
network warning: there is no RDMA device, so NCCL uses sockets <- NCCL_IB_HCA=mlx5_0 | -/sys/class/infiniband
ok <- NCCL_IB_HCA=mlx5_0,mlx5_7:1 || NCCL_IB_HCA=^mlx5_9 || NCCL_IB_HCA=^=mlx5_0 || NCCL_IB_HCA=mlx5_0: || NCCL_IB_HCA=mlx5_0:-1
network warning: are not used <- NCCL_IB_DISABLE=1 || NCCL_IB_DISABLE=0x1
network warning: no GPUDirect RDMA <- /proc/sys/kernel/osrelease=5.4.0-200

devices problem: CUDA_VISIBLE_DEVICES= hides all 8 GPUs <- CUDA_VISIBLE_DEVICES=
devices problem: hides all <- CUDA_VISIBLE_DEVICES=-1
devices problem: has 1 twice <- CUDA_VISIBLE_DEVICES=0,1,1
devices problem: there is no GPU 8 <- CUDA_VISIBLE_DEVICES=8
devices warning: there is no GPU 8 <- CUDA_VISIBLE_DEVICES=0,8,1
devices problem: there are no files in /dev/nvidia-caps <- CUDA_VISIBLE_DEVICES=MIG-1-2-3
ok <- CUDA_VISIBLE_DEVICES=0,1,2,3,4,5,6,7 || CUDA_VISIBLE_DEVICES=GPU-8932f937,GPU-11111111
devices warning: 1 of 8 GPUs have no NUMA node, and the machine has 2 <- /sys/bus/pci/devices/0000:01:00.0/numa_node=-1
devices warning: NVIDIA_VISIBLE_DEVICES=none <- NVIDIA_VISIBLE_DEVICES=none

files warning: NCCL_CONF_FILE=~/mine.conf: there is no such file <- NCCL_CONF_FILE=~/mine.conf
files warning: the quotes are part of the value <- /etc/nccl.conf=NCCL_DEBUG="INFO" || /etc/nccl.conf=NCCL_ALGO='Ring'
files warning: the spaces are part of the value <- /etc/nccl.conf=NCCL_ALGO=Ring \n
files warning: the comment is part of the value <- /etc/nccl.conf=NCCL_DEBUG=WARN # quiet
files warning: the spaces are part of the name <- /etc/nccl.conf=export NCCL_ALGO=Ring
files warning: this user cannot read it <- /etc/nccl.conf/file=
ok <- /etc/nccl.conf=NCCL_IB_TIMEOUT=20 \n || /etc/nccl.conf=NCCL_ALGO=Ring\r\n || /etc/nccl.conf=# NCCL_ALGO='Ring'\n

variables warning: NCCL_DEBUG="\"INFO\"" (environment): the quotes <- NCCL_DEBUG="INFO"
variables warning: NCCL_PROTO="Simple " (environment): the spaces <- NCCL_PROTO=Simple \e
variables warning: NCCL_ALGO="Tree\r" (environment): the carriage return <- NCCL_ALGO=Tree\r
variables warning: NCCL_P2P_DISABLE="\"1\"" (environment): the quotes <- NCCL_P2P_DISABLE="1"
variables warning: the comment is part of the value <- NCCL_DEBUG=WARN # quiet
variables warning: NCCL ignores this value <- NCCL_DEBUG=INF0 || NCCL_SOCKET_FAMILY=ipv6 || NCCL_P2P_LEVEL=NVLNK
variables warning: NCCL ignores this value <- NCCL_LAUNCH_MODE=PARALEL
variables warning: nothing can be written to /nonexistent/dir: No such file <- NCCL_DEBUG_FILE=/nonexistent/dir/x.log
variables warning: NCCL ignores "Ringg", which is unknown <- NCCL_ALGO=Ringg
variables warning: NCCL ignores "allredduce" <- NCCL_ALGO=ring;allredduce:tree
variables warning: NCCL ignores "LL256" <- NCCL_PROTO=^LL256,LL
variables warning: NCCL reads a number above 4 as SYS <- NCCL_P2P_LEVEL=9
variables warning: NCCL reads it as 0 <- NCCL_P2P_DISABLE=true
variables warning: NCCL_P2P_DISABLE=01 (environment): GPUs do not reach <- NCCL_P2P_DISABLE=01
variables warning: NCCL reads it as 4 <- NCCL_BUFFSIZE=4M
variables warning: NCCL reads it as 2097152 <- NCCL_BUFFSIZE=010000000
variables warning: the number is too large, so NCCL uses the default <- NCCL_BUFFSIZE=99999999999999999999
variables warning: expected 65536 to 1073741824 <- NCCL_BUFFSIZE=1
variables warning: expected 1 to 31 <- NCCL_IB_TIMEOUT=99
variables warning: not a multiple of 32 <- NCCL_NTHREADS=100
variables warning: not a power of 2 <- NCCL_WORK_FIFO_BYTES=3
variables warning: an empty value makes NCCL take all machines for one <- NCCL_HOSTID=
variables warning: an empty value is the name of a file <- NCCL_TOPO_FILE=
variables warning: NCCL_TOPO_FILE=/etc/topology.xml (environment): there is no such file <- NCCL_TOPO_FILE=/etc/topology.xml
variables problem: there is no such file <- NCCL_GRAPH_FILE=/nonexistent.xml
variables problem: an empty value is the name of a file <- NCCL_GRAPH_FILE=
variables warning: is above NCCL_MAX_NCHANNELS=4 <- NCCL_MIN_NCHANNELS=8 | NCCL_MAX_NCHANNELS=4
variables problem: there is no RDMA device with a link <- NCCL_NET=IB | -/sys/class/infiniband
variables problem: NCCL_NET_PLUGIN excludes others <- NCCL_NET=Foo | NCCL_NET_PLUGIN=none
variables warning: PyTorch has retired this name <- NCCL_BLOCKING_WAIT=1
variables warning: the library does not know this variable <- nccl_debug=INFO
ok <- NCCL_DEBUG=info || NCCL_ALGO=ring;allreduce:tree,CollNetDirect || NCCL_PROTO=^LL || NCCL_P2P_LEVEL=SYS
ok <- NCCL_BUFFSIZE=0x400000 || NCCL_BUFFSIZE=-2 || NCCL_NET=ib || NCCL_NTHREADS=256 || NCCL_DEBUG_FILE=/dev/shm/x.%h.%p
ok <- NCCL_DEBUG_FILE=relative || TORCH_NCCL_BLOCKING_WAIT=1 || nccl_of_another_program=1
"#;

#[test]
fn each_change_of_a_healthy_machine_gives_its_finding() {
    for case in CASES.lines().filter(|case| !case.is_empty()) {
        println!("{case}");
        let (expected, alternatives) = case.split_once(" <- ").unwrap();
        let finding = expected.split_once(": ").map(|(subject, text)| {
            let (section, level) = subject.split_once(' ').unwrap();
            (section, if level == "warning" { Level::Warning } else { Level::Problem }, text)
        });
        for changes in alternatives.split(" || ") {
            let mut machine = Machine::healthy();
            changes.split(" | ").for_each(|text| change(&mut machine, text));
            assert_finds(&machine.report(), finding.as_slice());
        }
    }
}

fn change(machine: &mut Machine, text: &'static str) {
    if let Some(directory) = text.strip_prefix('-') {
        return machine.remove(directory);
    }
    let (name, value) = text.split_once('=').unwrap();
    // An end that editors would remove has `\e`.
    let value: &'static str = match value.contains('\\') {
        true => {
            value.replace("\\n", "\n").replace("\\r", "\r").replace("\\t", "\t").replace("\\e", "").leak()
        }
        false => value,
    };
    match name.strip_prefix('+') {
        Some(path) => {
            let others = fs::read_to_string(machine.place(path)).unwrap();
            machine.write(path, &format!("{value}\n{others}"));
        }
        None if name.starts_with('/') => machine.write(name, value),
        None if name == "id" => machine.id.address = Some(value.parse().unwrap()),
        None => machine.environment.push((name, value)),
    }
}

/// A change of a healthy machine, and the only finding that it gives.
fn one(change: impl FnOnce(&mut Machine), section: &str, level: Level, text: &str) {
    let mut machine = Machine::healthy();
    change(&mut machine);
    assert_finds(&machine.report(), &[(section, level, text)]);
}

#[test]
fn changes_that_are_no_text_give_their_findings() {
    let small = |machine: &mut Machine| {
        machine.write("/proc/self/mounts", "shm /dev/shm tmpfs rw,size=1g 0 0\n");
        let file = fs::File::create(machine.place("/dev/shm/nccl-abc")).unwrap();
        file.set_len(900 << 20).unwrap();
    };
    one(small, "limits", Level::Warning, "/dev/shm: 900 MiB of 1024 MiB are in use; files of NCCL: 1");
    let mounts = |machine: &mut Machine| fs::remove_file(machine.place("/proc/self/mounts")).unwrap();
    one(mounts, "limits", Level::Warning, "its size is not known, as /proc/self/mounts cannot be read");
    let linkless = |machine: &mut Machine| {
        for index in 0..8 {
            machine.write(&format!("/sys/class/infiniband/mlx5_{index}/ports/1/state"), "1: DOWN\n");
        }
    };
    one(linkless, "network", Level::Warning, "RDMA devices without a link: mlx5_0");
    let unplugged = |machine: &mut Machine| {
        machine.interfaces.as_mut().unwrap()[1] = Interface::new("eth0", "unplugged", Some("10.0.0.1"));
    };
    let text = "ranks meet at 10.0.0.1 (eth0), which is not connected: eth0 10.0.0.1 (no carrier)";
    one(unplugged, "network", Level::Warning, text);
    let other = Machine::healthy();
    other.library(IN_SITE, "2.27.7", "12.9");
    let found = bad(&other.report(), "copies");
    let text = "(2.27.7 for CUDA 12.9) is not the file of nvidia-nccl-cu12 2.32.3";
    assert!(found[0].text.ends_with(text), "{found:?}");
    let mut old = Machine::healthy();
    old.driver.cuda = Some("11.8".into());
    let found = bad(&old.report(), "driver");
    let text = "compiled with CUDA 12.9, and the driver supports CUDA up to 11.8";
    assert!(found[0].level == Level::Problem && found[0].text.contains(text), "{found:?}");
    let parameter = |machine: &mut Machine| {
        machine.environment.push(("NCCL_ALGO", "Ring"));
        let parameters = [("NCCL_ALGO".into(), "TREE".into())].into();
        machine.probe.call = Some(Call { parameters, ..Call::default() });
    };
    one(parameter, "variables", Level::Warning, "the library reads \"TREE\"");
    let refused = |machine: &mut Machine| {
        machine.library(IN_SITE, "2.32.3", "12.9\0Unrecognized element token");
        machine.package("nvidia_nccl_cu12", "2.32.3", IN_SITE);
        machine.environment.push(("NCCL_PROTO", "LL256"));
    };
    one(refused, "variables", Level::Problem, "no communicator can be made, as \"LL256\" is unknown");

    let mut alone = Machine::healthy();
    alone.interfaces.as_mut().unwrap().truncate(1);
    alone.id.address = Some(Ipv4Addr::LOCALHOST.into());
    assert_finds(&alone.report(), &[]);
    let mut unknown = Machine::healthy();
    unknown.interfaces = Err("Permission denied".into());
    unknown.write("/.dockerenv", "");
    unknown.remove("/sys/devices/system/node");
    let report = unknown.report();
    assert_finds(&report, &[]);
    assert_eq!(all(&report, "devices"), [Finding::ok("GPUs on the PCI bus: 8; NUMA nodes: unknown")]);
    assert_eq!(all(&report, "limits")[0], Finding::ok("in a container of Docker"));
}

#[test]
fn failure_of_the_library_is_reported_with_the_interfaces() {
    let failed = |machine: &mut Machine| {
        machine.id = Check { ok: false, problem: Some("no socket interface found".into()), address: None };
    };
    let no_id = ("library", Level::Problem, "no unique id can be made: no socket interface found");
    let examined = |name: Option<&'static str>, interfaces: std::ops::RangeFrom<usize>| {
        let mut machine = Machine::healthy();
        failed(&mut machine);
        machine.interfaces = machine.interfaces.map(|all| all[interfaces].to_vec());
        machine.probe.call = Some(Call::default());
        machine.environment.extend(name.map(|name| ("NCCL_SOCKET_IFNAME", name)));
        machine.report()
    };
    let text = "the library makes no unique id; interfaces: lo 127.0.0.1, eth0 10.0.0.1, docker0 172.17.0.1, ens9 (down)";
    // The interfaces are not to blame.
    assert_finds(&examined(None, 0..), &[no_id]);
    let text = format!("with NCCL_SOCKET_IFNAME=ib0 (environment), {text}");
    assert_finds(&examined(Some("ib0"), 0..), &[no_id, ("network", Level::Problem, &text)]);
    let text = "the library makes no unique id; interfaces: ens9 (down)";
    assert_finds(&examined(None, 3..), &[no_id, ("network", Level::Problem, text)]);
    // A process that was killed says nothing of the network.
    let mut machine = Machine::healthy();
    failed(&mut machine);
    assert_finds(&machine.report(), &[no_id]);
    let plugin = |machine: &mut Machine| {
        machine.probe = Probe {
            call: Some(Call::default()),
            plugins: [("NCCL_TUNER_PLUGIN".into(), "no such file".into())].into(),
            failure: Some("the process ended with signal: 11".into()),
            ..Probe::default()
        };
    };
    one(
        plugin,
        "library",
        Level::Warning,
        "did not end normally after the unique id: the process ended with signal: 11",
    );
    let named = |machine: &mut Machine| {
        plugin(machine);
        machine.probe.failure = None;
        machine.environment.push(("NCCL_TUNER_PLUGIN", "foo"));
    };
    one(named, "variables", Level::Warning, "the plugin cannot be loaded: no such file");
}

#[test]
fn another_file_of_the_same_version_is_a_warning() {
    let machine = Machine::healthy();
    let copy = "/usr/lib/x86_64-linux-gnu/libnccl.so.2";
    machine.library(copy, "2.32.3", "12.9");
    let mut bytes = fs::read(machine.place(copy)).unwrap();
    let last = bytes.len() - 1;
    bytes[last] ^= 1;
    fs::write(machine.place(copy), bytes).unwrap();
    let text = format!("another file of the same version: {copy} (2.32.3 for CUDA 12.9): ");
    let report = machine.report();
    assert_finds(&report, &[("copies", Level::Warning, &text)]);
    assert!(bad(&report, "copies")[0].text.contains(", hash "), "{report:?}");
    let longer = |machine: &mut Machine| machine.library(copy, "2.32.3", "12.9\0more");
    one(longer, "copies", Level::Warning, "bytes, no build id; the library: ");
}

#[test]
fn device_files_that_a_container_lacks_are_found() {
    let examined = |files: &[&str], change: &dyn Fn(&mut Machine)| {
        let mut machine = Machine::healthy();
        machine.driver.problem = Some("cuInit: no device".into());
        files.iter().for_each(|file| machine.write(&format!("/dev/{file}"), ""));
        change(&mut machine);
        bad(&machine.report(), "devices").iter().map(|finding| finding.text.clone()).collect::<Vec<_>>()
    };
    let all = ["nvidiactl", "nvidia-uvm", "nvidia0"];
    for (left_out, file) in all.iter().enumerate() {
        let files: Vec<_> = all.iter().copied().filter(|other| other != file).collect();
        let found = examined(&files, &|_| {});
        assert!(
            found.len() == 1 && found[0].starts_with(&format!("/dev/{file}: No such file")),
            "{left_out} {found:?}"
        );
    }
    assert_eq!(examined(&[], &|_| {}).len(), 3);
    assert_eq!(examined(&["nvidiactl", "nvidia-uvm", "nvidia5"], &|_| {}), [""; 0]);
    // Without the kernel's module, what is missing is the driver.
    assert_eq!(examined(&[], &|machine| machine.driver.module = None), [""; 0]);
    let working = |machine: &mut Machine| machine.driver.problem = None;
    assert_eq!(examined(&[], &working), [""; 0]);

    let part = |machine: &mut Machine| {
        working(machine);
        machine.environment.push(("NVIDIA_VISIBLE_DEVICES", "MIG-1-2-3"));
    };
    assert_eq!(examined(&[], &part).len(), 1);
    assert_eq!(examined(&["nvidia-caps/nvidia-cap21"], &part), [""; 0]);

    let of_rack = |machine: &mut Machine| {
        working(machine);
        machine.driver.models[0] = "NVIDIA GB200".into();
    };
    let off = |machine: &mut Machine| {
        of_rack(machine);
        machine.environment.push(("NCCL_MNNVL_ENABLE", "0"));
    };
    let on = |machine: &mut Machine| {
        working(machine);
        machine.environment.push(("NCCL_MNNVL_ENABLE", "1"));
    };
    let channel = "nvidia-caps-imex-channels/channel0";
    for (change, found) in [(&of_rack as &dyn Fn(&mut Machine), 1), (&off, 0), (&on, 1)] {
        assert_eq!(examined(&[], change).len(), found);
        assert_eq!(examined(&[channel], change), [""; 0]);
    }
}

#[test]
fn library_that_is_older_or_less_than_it_should_be_is_found() {
    let examined = |needs: Option<&str>, missing: &[(&str, &str)]| {
        let mut machine = Machine::healthy();
        machine.needs = needs.map(|needs| needs.parse().unwrap());
        let missing =
            missing.iter().map(|(name, since)| Missing { name: (*name).into(), since: (*since).into() });
        machine.missing = missing.collect();
        machine.report()
    };
    assert_finds(&examined(Some("2.32.3"), &[]), &[]);
    let older = "NCCL 2.32.3 is older than 2.32.4, which --needs asks for";
    assert_finds(&examined(Some("2.32.4"), &[]), &[("library", Level::Problem, older)]);
    assert_finds(&examined(None, &[("ncclOfTomorrow", "2.33.1")]), &[]);
    let (split, shrink, new) =
        (("ncclCommSplit", "2.18.1"), ("ncclCommShrink", "2.27.3"), ("ncclOfTomorrow", "2.33.1"));
    let lacks =
        "it is NCCL 2.32.3, and lacks 2 functions of NCCL 2.18.1 or later: ncclCommSplit, ncclCommShrink";
    for (needs, level) in
        [(None, Level::Warning), (Some("2.13.4"), Level::Warning), (Some("2.18.1"), Level::Problem)]
    {
        assert_finds(&examined(needs, &[split, shrink, new]), &[("library", level, lacks)]);
    }
}

#[test]
fn configuration_files_are_read_as_nccl_does() {
    let mut machine = Machine::healthy();
    machine.write("/etc/nccl.conf", "NCCL_ALGO=Ring\nNCCL_DEBUG = INFO\nnonsense\n");
    machine.write("/home/me/.nccl.conf", "# mine\nNCCL_DEBUG=INFO\nNCCL_ALGO=Tree\n");
    machine.environment.push(("NCCL_DEBUG", "WARN"));
    let report = machine.report();
    let found = bad(&report, "files");
    assert!(found[0].text.contains("NCCL_DEBUG =\" INFO\": the spaces are part of the name"), "{found:?}");
    assert!(found[1].text.contains("NCCL_DEBUG =\" INFO\": the spaces are part of the value"), "{found:?}");
    assert!(found[2].text.contains("NCCL ignores the line \"nonsense\""), "{found:?}");
    let files = all(&report, "files");
    assert!(files.contains(&Finding::ok("/home/me/.nccl.conf sets NCCL_ALGO=Tree")), "{files:?}");
    for overridden in [
        "/etc/nccl.conf: NCCL_ALGO has no effect; its value is from /home/me/.nccl.conf",
        "/home/me/.nccl.conf: NCCL_DEBUG has no effect; its value is from environment",
    ] {
        assert!(files.contains(&Finding::ok(overridden)), "{files:?}");
    }
    let unread = |machine: &mut Machine| {
        machine.write("/etc/nccl.conf", "NCCL_ALGO=Ring\nNCCL_DEBUG=WARN\nNCCL_PROTO=LL\n");
        let added = [("NCCL_PROTO".into(), "LL\r".into()), ("NCCL_NTHREADS".into(), "64".into())].into();
        machine.probe.call = Some(Call { added, ..Call::default() });
    };
    one(unread, "files", Level::Warning, "/etc/nccl.conf: NCCL 2.32.3 does not read NCCL_ALGO from it");
}

#[test]
fn variables_that_the_library_does_not_know_are_named_with_the_nearest() {
    let set = |name: &'static str| {
        let mut machine = Machine::healthy();
        machine.environment.push((name, "1"));
        bad(&machine.report(), "variables")
    };
    for (name, nearest) in [
        ("NCCL_SOCKET_IFNAMES", "NCCL_SOCKET_IFNAME"),
        ("NCCL_SOKET_IFNAME", "NCCL_SOCKET_IFNAME"),
        ("NCCL_P2P_DISABLED", "NCCL_P2P_DISABLE"),
        ("NCCL_DEBGU", "NCCL_DEBUG"),
    ] {
        let found = set(name);
        assert_eq!(found.len(), 1, "{name}: {found:?}");
        let advice = found[0].advice.as_ref().unwrap();
        assert!(advice.starts_with(&format!("write {nearest},")), "{name}: {advice}");
    }
    let found = set("NCCL_FROBNICATION");
    assert!(found[0].advice.as_ref().unwrap().starts_with("remove it"), "{found:?}");
    for name in [
        "NCCL_RAS_ENABLE",
        "NCCL_HOME",
        "LIBNCCL_CPU_TIMEOUT",
        "NCCL_TESTS_DEVICE",
        "LIBNCCL_PATH",
        "NCCL_VERSION",
    ] {
        assert_eq!(set(name), [], "{name}");
    }
    assert!(set("NCCL_P2P_DISABLE")[0].text.contains("GPUs do not reach each other directly"));
}

#[test]
fn report_as_text_ends_with_a_summary_and_as_json_has_the_documented_fields() {
    let mut machine = Machine::healthy();
    machine.environment.push(("NCCL_GRAPH_FILE", "/ib0"));
    let report = machine.report();
    let mut text = Vec::new();
    report.print(&mut anstream::StripStream::new(&mut text)).unwrap();
    let text = String::from_utf8(text).unwrap();
    assert!(text.starts_with("library\n  ok       /usr/local/lib/python3.12"), "{text}");
    assert!(
        text.contains("\n  problem  NCCL_GRAPH_FILE=/ib0")
            && text.contains("\n           -> correct the name, or unset NCCL_GRAPH_FILE"),
        "{text}"
    );
    assert!(text.ends_with("1 problem, 0 warnings: a job would not start here, or not end well\n"), "{text}");
    let json = serde_json::to_value(&report).unwrap();
    let mut fields: Vec<_> = json.as_object().unwrap().keys().map(String::as_str).collect();
    fields.sort_unstable();
    let expected =
        ["advice", "driver", "error", "header_version", "library", "schema", "sections", "starts", "tried"];
    assert_eq!(fields, expected);
    assert_eq!((&json["schema"], &json["starts"]), (&1.into(), &false.into()));
    let names: Vec<_> = report.sections.iter().map(|section| section.name).collect();
    let expected = "library copies driver devices advisories limits network files variables ras";
    assert_eq!(names.join(" "), expected);
    let finding = &json["sections"][8]["findings"][0];
    assert_eq!(finding["level"], "problem");
    assert!(finding["text"].is_string() && finding["advice"].is_string());
}
