//! The doctor on fabricated machines: findings that need files, devices or interfaces of such a machine. What environment variables
//! and the library's behaviour give is in `tests/cli/doctor`.

use std::fs;
use std::net::Ipv4Addr;
use std::path::PathBuf;

use rustix::process::Rlimit;

use super::driver::Driver;
use super::finding::{Finding, Level};
use super::library::{Check, Library, Search};
use super::probe::{Call, Probe};
use super::{Report, examine};
use crate::nccl_file::NcclFile;
use crate::nccl_file::tests::write_library;
use crate::system::{Interface, SharedMemory, System};

const SITE: &str = "/usr/local/lib/python3.12/site-packages";
const IN_SITE: &str = "/usr/local/lib/python3.12/site-packages/nvidia/nccl/lib/libnccl.so.2";
const VARIABLES: &str = "NCCL_DEBUG\0NCCL_SOCKET_IFNAME\0NCCL_IB_HCA\0NCCL_IB_DISABLE\0NCCL_P2P_DISABLE\0\
    NCCL_RAS_ADDR\0NCCL_COMM_ID\0NCCL_SOCKET_FAMILY\0NCCL_MNNVL_ENABLE\0NCCL_IB_TIMEOUT\0NCCL_RAS_ENABLE\0NCCL_ALGO\0NCCL_PROTO\0NCCL_TOPO_FILE\0NCCL_CONF_FILE\0\
    NCCL_DEBUG_FILE\0NCCL_P2P_LEVEL\0NCCL_BUFFSIZE\0NCCL_NTHREADS\0NCCL_WORK_FIFO_BYTES\0NCCL_LAUNCH_MODE\0NCCL_HOSTID\0NCCL_GRAPH_FILE\0\
    NCCL_NET\0NCCL_NET_PLUGIN\0NCCL_TUNER_PLUGIN\0NCCL_MIN_NCHANNELS\0NCCL_MAX_NCHANNELS\0";

/// A machine whose files lie in a temporary folder.
struct Machine {
    root: tempfile::TempDir,
    system: System,
    probe: Probe,
    driver: Driver,
    id: Check,
}

impl Machine {
    /// Returns a machine with eight H100, eight network cards, Ethernet, and NCCL 2.32.3 from Python's package.
    fn healthy() -> Self {
        let driver = Driver {
            library: "libcuda.so.1".into(),
            loaded: true,
            gpus: 8,
            cuda: Some("12.9".into()),
            module: Some("575.57.08".into()),
            models: vec!["NVIDIA H100 80GB HBM3".into(); 8],
            ..Driver::default()
        };
        let root = tempfile::tempdir().unwrap();
        let place = fs::canonicalize(root.path()).unwrap();
        let mut system = System::at(&place, &[("HOME", "/home/me"), ("NCCL_RAS_ENABLE", "0")]);
        system.interfaces = Ok(vec![
            Interface::new("lo", "running", Some("127.0.0.1")),
            Interface::new("eth0", "running", Some("10.0.0.1")),
            Interface::new("docker0", "running", Some("172.17.0.1")),
            Interface::new("ens9", "down", None),
        ]);
        let id = Check { ok: true, problem: None, address: Some(Ipv4Addr::new(10, 0, 0, 1).into()) };
        let machine = Self { root, system, probe: Probe::default(), driver, id };
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
            probe: std::mem::take(&mut self.probe),
            file,
            ..Library::default()
        };
        self.examine(Search { library: Some(library), ..Search::default() })
    }

    fn examine(self, search: Search) -> Report {
        examine(&self.system, search, self.driver, None)
    }

    fn set(&mut self, name: &str, value: &str) {
        self.system.environment.insert(name.into(), value.into());
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
    let examined = |release: &str, architecture: &str| {
        let mut machine = Machine::healthy();
        machine.system.architecture = architecture.into();
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
    machine.set("CONDA_PREFIX", "/opt/conda");
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
        machine.set(variable, value);
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
    let warnings = |version: &str, path: Option<&str>| {
        let machine = Machine::healthy();
        let (path, version) = (path.map(Into::into), version.into());
        let library = Library { path, version, memory: "host".into(), ..Library::default() };
        bad(&machine.examine(Search { library: Some(library), ..Search::default() }), "copies").len()
    };
    let path = Some("/opt/libnccl.so.2");
    assert_eq!((warnings("2.30.7", path), warnings("2.32.3", path), warnings("2.30.7", None)), (1, 0, 0));
}

#[test]
fn machine_without_a_driver_is_a_problem() {
    let problem = Some("libcuda.so.1: not found".into());
    let examined = |models| {
        let driver = Driver { problem: problem.clone(), models, ..Driver::default() };
        Machine { driver, ..Machine::healthy() }.report()
    };
    let report = examined(vec!["NVIDIA H100 80GB HBM3".into()]);
    let undecided = "known faults that may concern NCCL 2.32.3 here, for lack of the driver's release, the driver's CUDA: \
                     p2p-hang-driver-560, cuda-graph-memory";
    let no_driver = ("driver", Level::Problem, "libcuda.so.1: not found");
    assert_finds(&report, &[no_driver, ("advisories", Level::Warning, undecided)]);
    assert!(bad(&report, "driver")[0].advice.as_ref().unwrap().contains("--gpus all"));
    let unnamed = "the driver's CUDA, the names of the GPUs: ";
    assert_finds(&examined(vec![]), &[no_driver, ("advisories", Level::Warning, unnamed)]);
}

/// The only finding, or `ok`, that changes of a healthy machine give: `NAME=VALUE` sets a variable, `/path=TEXT` writes a file,
/// `-/path` removes a directory, `id=ADDRESS` is the address in the unique id, `locked`, `files` and `shm` (MiB) are limits. Changes
/// are separated by `|`, alternatives by `||`.
const CASES: &str = r#"
limits warning: /dev/shm: 64 MiB <- shm=64
limits warning: there is no /dev/shm <- -/dev/shm
limits warning: open files: 1024, and 2048 at most <- files=2048
limits warning: locked memory: 1048576 KiB <- locked=1073741824
limits problem: locked memory: 64 KiB at most <- locked=65536
limits warning: memory of the control group: an unknown part of 512 MiB <- /sys/fs/cgroup/user.slice/memory.max=536870912
limits warning: memory of the control group: an unknown part of 512 MiB <- /sys/fs/cgroup/user.slice/memory.max=536870912 | /sys/fs/cgroup/user.slice/job/memory.max=max | /proc/self/cgroup=0::/user.slice/job
limits warning: threads of the control group: an unknown number of 100 <- /sys/fs/cgroup/user.slice/pids.max=100
limits warning: threads of the control group: an unknown number of 100 <- /sys/fs/cgroup/user.slice/pids.max=100 | /sys/fs/cgroup/user.slice/job/pids.max=max | /proc/self/cgroup=0::/user.slice/job
limits warning: threads of the control group: an unknown number of 1000 <- /sys/fs/cgroup/user.slice/pids.max=1000 | /sys/fs/cgroup/user.slice/pids.current=many
limits warning: threads of the control group: 900 of 1000 <- /sys/fs/cgroup/user.slice/pids.max=1000 | /sys/fs/cgroup/user.slice/pids.current=900
ok <- /sys/fs/cgroup/user.slice/pids.max=1000 | /sys/fs/cgroup/user.slice/pids.current=0
ok <- /sys/fs/cgroup/user.slice/memory.max=max | /sys/fs/cgroup/user.slice/cpu.max=max 100000 | NCCL_IB_DISABLE=0
ok <- locked=65536 | /proc/self/status=CapEff:\t000001ffffffffff
limits warning: processors of the control group: 0.5 <- /sys/fs/cgroup/user.slice/cpu.max=50000 100000
limits warning: processors of the control group: 0.5 <- /sys/fs/cgroup/user.slice/cpu.max=50000 100000 | /sys/fs/cgroup/user.slice/job/cpu.max=max 100000 | /proc/self/cgroup=0::/user.slice/job

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

files warning: the spaces are part of the value <- /etc/nccl.conf=NCCL_ALGO=Ring \n
files warning: the comment is part of the value <- /etc/nccl.conf=NCCL_DEBUG=WARN # quiet
files warning: the spaces are part of the name <- /etc/nccl.conf=export NCCL_ALGO=Ring
files warning: this user cannot read it <- /etc/nccl.conf/file=
ok <- /etc/nccl.conf=NCCL_IB_TIMEOUT=20 \n || /etc/nccl.conf=NCCL_ALGO=Ring\r\n || /etc/nccl.conf=# NCCL_ALGO='Ring'\n

ok <- NCCL_NET=ib
variables problem: there is no RDMA device with a link <- NCCL_NET=IB | -/sys/class/infiniband
variables problem: NCCL_NET_PLUGIN excludes others <- NCCL_NET=Foo | NCCL_NET_PLUGIN=none
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
    match name {
        path if path.starts_with('/') => machine.write(path, value),
        "id" => machine.id.address = Some(value.parse().unwrap()),
        "locked" => machine.system.locked_memory = value.parse().ok(),
        "files" => machine.system.open_files = Rlimit { current: Some(1024), maximum: value.parse().ok() },
        "shm" => machine.system.shared_memory.size = Some(value.parse::<u64>().unwrap() << 20),
        _ => machine.set(name, value),
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
        machine.write("/dev/shm/nccl-abc", "");
        let (size, used) = (Some(1 << 30), 900 << 20);
        machine.system.shared_memory = SharedMemory { size, used, ..SharedMemory::default() };
    };
    one(small, "limits", Level::Warning, "/dev/shm: 900 MiB of 1024 MiB are in use; files of NCCL: 1");
    let linkless = |machine: &mut Machine| {
        for index in 0..8 {
            machine.write(&format!("/sys/class/infiniband/mlx5_{index}/ports/1/state"), "1: DOWN\n");
        }
    };
    one(linkless, "network", Level::Warning, "RDMA devices without a link: mlx5_0");
    let unplugged = |machine: &mut Machine| {
        machine.system.interfaces.as_mut().unwrap()[1] =
            Interface::new("eth0", "unplugged", Some("10.0.0.1"));
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
        machine.set("NCCL_ALGO", "Ring");
        let parameters = [("NCCL_ALGO".into(), "TREE".into())].into();
        machine.probe.call = Some(Call { parameters, ..Call::default() });
    };
    one(parameter, "variables", Level::Warning, "the library reads \"TREE\"");
    let refused = |machine: &mut Machine| {
        machine.library(IN_SITE, "2.32.3", "12.9\0Unrecognized element token");
        machine.package("nvidia_nccl_cu12", "2.32.3", IN_SITE);
        machine.set("NCCL_PROTO", "LL256");
    };
    one(refused, "variables", Level::Problem, "no communicator can be made, as \"LL256\" is unknown");

    let mut alone = Machine::healthy();
    alone.system.interfaces.as_mut().unwrap().truncate(1);
    alone.id.address = Some(Ipv4Addr::LOCALHOST.into());
    assert_finds(&alone.report(), &[]);
    let mut unknown = Machine::healthy();
    unknown.system.interfaces = Err("Permission denied".into());
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
        machine.system.interfaces = machine.system.interfaces.map(|all| all[interfaces].to_vec());
        machine.probe.call = Some(Call::default());
        name.iter().for_each(|name| machine.set("NCCL_SOCKET_IFNAME", name));
        machine.report()
    };
    let text = "the library makes no unique id; interfaces: lo 127.0.0.1, eth0 10.0.0.1, docker0 172.17.0.1, ens9 (down)";
    // The interfaces are not to blame.
    assert_finds(&examined(None, 0..), &[no_id]);
    let text = format!("with NCCL_SOCKET_IFNAME=ib0 (environment), {text}");
    assert_finds(&examined(Some("ib0"), 0..), &[no_id, ("network", Level::Problem, &text)]);
    let text = "the library makes no unique id; interfaces: ens9 (down)";
    assert_finds(&examined(None, 3..), &[no_id, ("network", Level::Problem, text)]);
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
        machine.set("NVIDIA_VISIBLE_DEVICES", "MIG-1-2-3");
    };
    assert_eq!(examined(&[], &part).len(), 1);
    assert_eq!(examined(&["nvidia-caps/nvidia-cap21"], &part), [""; 0]);

    let of_rack = |machine: &mut Machine| {
        working(machine);
        machine.driver.models[0] = "NVIDIA GB200".into();
    };
    let off = |machine: &mut Machine| {
        of_rack(machine);
        machine.set("NCCL_MNNVL_ENABLE", "0");
    };
    let on = |machine: &mut Machine| {
        working(machine);
        machine.set("NCCL_MNNVL_ENABLE", "1");
    };
    let channel = "nvidia-caps-imex-channels/channel0";
    for (change, found) in [(&of_rack as &dyn Fn(&mut Machine), 1), (&off, 0), (&on, 1)] {
        assert_eq!(examined(&[], change).len(), found);
        assert_eq!(examined(&[channel], change), [""; 0]);
    }
}
