//! The doctor on fabricated machines: findings that need files, devices or interfaces of such a machine. What environment variables
//! and the library's behaviour give is in `tests/cli/doctor`.

use std::fs;
use std::net::{IpAddr, Ipv4Addr};
use std::path::PathBuf;

use libnccl::Version;
use libnccl_observe::library_file::Identity;
use rustix::process::Rlimit;

use super::child::{Call, Probe};
use super::driver::Driver;
use super::finding::{Finding, Level, Text};
use super::library::{Check, Library, Search};
use super::{Report, examine};
use crate::nccl_file::tests::write_library;
use crate::nccl_file::{Cuda, NcclFile};
use crate::system::{Interface, SharedMemory, System};

const SITE: &str = "/usr/local/lib/python3.12/site-packages";
const IN_SITE: &str = "/usr/local/lib/python3.12/site-packages/nvidia/nccl/lib/libnccl.so.2";
const VARIABLES: &str = "NCCL_DEBUG\0NCCL_SOCKET_IFNAME\0NCCL_IB_HCA\0NCCL_IB_DISABLE\0NCCL_P2P_DISABLE\0\
    NCCL_RAS_ADDR\0NCCL_COMM_ID\0NCCL_SOCKET_FAMILY\0NCCL_MNNVL_ENABLE\0NCCL_IB_TIMEOUT\0NCCL_RAS_ENABLE\0NCCL_ALGO\0NCCL_PROTO\0NCCL_TOPO_FILE\0NCCL_CONF_FILE\0\
    NCCL_DEBUG_FILE\0NCCL_P2P_LEVEL\0NCCL_BUFFSIZE\0NCCL_NTHREADS\0NCCL_WORK_FIFO_BYTES\0NCCL_LAUNCH_MODE\0NCCL_HOSTID\0NCCL_GRAPH_FILE\0\
    NCCL_NET\0NCCL_NET_PLUGIN\0NCCL_TUNER_PLUGIN\0NCCL_MIN_NCHANNELS\0NCCL_MAX_NCHANNELS\0";

fn library(path: Option<&str>, version: Version, memory: &str, file: NcclFile) -> Library {
    Library {
        path: path.map(Into::into),
        source: "system's Python packages".into(),
        version: Text(version),
        cuda: None,
        memory: memory.into(),
        identity: Identity::default(),
        unique_id: Check::default(),
        log: vec![],
        missing_functions: vec![],
        other_loaded_libraries: vec![],
        file,
        probe: Probe::default(),
    }
}

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
            cuda: Some(Text(Cuda { major: 12, minor: 9 })),
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
            cuda: file.cuda.map(Text),
            unique_id: std::mem::take(&mut self.id),
            probe: std::mem::take(&mut self.probe),
            ..library(Some(path), file.version.unwrap(), "device", file)
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

fn all<'a>(report: &'a Report, section: &str) -> &'a [Finding] {
    &report.sections.iter().find(|found| found.name == section).expect(section).findings
}

/// Returns the findings of a section that are not fine.
fn bad(report: &Report, section: &str) -> Vec<Finding> {
    all(report, section).iter().filter(|finding| finding.level != Level::Ok).cloned().collect()
}

/// Checks that these are the only findings that are not fine, of one section or of all: section, level and a part of the text. Returns
/// the difference.
fn difference(report: &Report, only: Option<&str>, expected: &[(&str, Level, &str)]) -> Option<String> {
    let sections = report.sections.iter().map(|section| section.name);
    let found: Vec<_> = sections
        .filter(|name| only.is_none_or(|only| only == *name))
        .flat_map(|name| bad(report, name).into_iter().map(move |finding| (name, finding)))
        .collect();
    let is = |(section, finding): &(&str, Finding), (name, level, text): &(&str, Level, &str)| {
        section == name && finding.level == *level && finding.text.contains(text) && finding.advice.is_some()
    };
    let all = found.len() == expected.len()
        && found.iter().zip(expected).all(|(found, expected)| is(found, expected));
    let starts = expected.iter().all(|(_, level, _)| *level != Level::Problem);
    let is_right = all && (only.is_some() || report.starts == starts);
    (!is_right).then(|| format!("expected {expected:#?}, found {found:#?}"))
}

#[track_caller]
fn assert_finds(report: &Report, expected: &[(&str, Level, &str)]) {
    let difference = difference(report, None, expected);
    assert!(difference.is_none(), "{}", difference.unwrap());
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
    machine.driver.cuda = Some(Text(Cuda { major: 13, minor: 0 }));
    let found = bad(&machine.report(), "copies");
    let text = format!(
        "nvidia-nccl-cu12 2.32.3 and nvidia-nccl-cu13 2.28.9 share one file, and the last one that was installed wrote it: {IN_SITE} \
         (2.28.9 for CUDA 13.0); the file is that of nvidia-nccl-cu13"
    );
    let advice = "keep one: pip uninstall nvidia-nccl-cu12 nvidia-nccl-cu13, then pip install --force-reinstall the one for the \
                  driver's CUDA";
    assert_eq!(found, [Finding::warning(text, advice)]);
}

/// The reports marin-community/marin 7344 and 8038: jobs on Grace hang with 2.28.9, and not with 2.30.7.
#[test]
fn release_that_hangs_on_arm_is_a_problem_there_alone() {
    for (release, architecture, hangs) in
        [("2.28.9", "aarch64", true), ("2.28.9", "x86_64", false), ("2.30.7", "aarch64", false)]
    {
        let mut machine = Machine::healthy();
        machine.system.architecture = architecture.into();
        machine.library(IN_SITE, release, "12.9");
        let report = machine.report();
        let source = Some("https://github.com/marin-community/marin/issues/7344");
        let is_hang = |finding: &Finding| {
            finding.text.starts_with("arm-proxy-hang: NCCL 2.28.9") && finding.source.as_deref() == source
        };
        assert_eq!(bad(&report, "advisories").iter().any(is_hang), hangs, "{release} {architecture}");
        assert_eq!(report.starts, !hangs);
    }
}

#[test]
fn copy_is_compared_with_a_library_whose_file_does_not_tell_its_release() {
    let warnings = |version: &str, path: Option<&str>| {
        let machine = Machine::healthy();
        let library = library(path, version.parse().unwrap(), "host", NcclFile::default());
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
    let undecided = "known faults that may concern NCCL 2.32.3 here, for lack of the driver's version, the driver's CUDA: \
                     p2p-hang-driver-560, cuda-graph-memory";
    let no_driver = ("driver", Level::Problem, "libcuda.so.1: not found");
    assert_finds(&report, &[no_driver, ("advisories", Level::Warning, undecided)]);
    assert!(bad(&report, "driver")[0].advice.as_ref().unwrap().contains("--gpus all"));
    let unnamed = "the driver's CUDA, the names of the GPUs: ";
    assert_finds(&examined(vec![]), &[no_driver, ("advisories", Level::Warning, unnamed)]);
}

/// The only finding, or `ok`, that changes of a healthy machine give: `NAME=VALUE` sets a variable, `/path=TEXT` writes a file,
/// `-/path` removes a directory; [`change`] has others. Changes are separated by `|`, alternatives by `||`, and several findings by `&&`.
/// `only SECTION` compares the findings of this section.
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
copies warning: another version: /usr/lib/x86_64-linux-gnu/libnccl.so.2 (2.18.3 for CUDA 12.2) <- lib=/usr/lib/x86_64-linux-gnu/libnccl.so.2 2.18.3 12.2
copies warning: another version: /opt/conda/envs/job/lib/libnccl.so.2 <- lib=/opt/conda/envs/job/lib/libnccl.so.2 2.18.3 12.2 | CONDA_PREFIX=/opt/conda
copies warning: another version: /target/nvidia/nccl/lib/libnccl.so.2 <- lib=/target/nvidia/nccl/lib/libnccl.so.2 2.18.3 12.2 | PYTHONPATH=/target
copies warning: another version: /opt/nccl/lib/libnccl.so.2 <- lib=/opt/nccl/lib/libnccl.so.2 2.18.3 12.2 | NCCL_ROOT=/opt/nccl
copies warning: another version: /srv/nccl/lib64/libnccl.so <- lib=/srv/nccl/lib64/libnccl.so 2.18.3 12.2 | NCCL_ROOT_DIR=/srv/nccl
copies warning: another version: /cuda/lib64/libnccl.so.2 <- lib=/cuda/lib64/libnccl.so.2 2.18.3 12.2 | CUDA_PATH=/cuda
copies warning: another version: /toolkit/targets/x86_64-linux/lib/libnccl.so.2 <- lib=/toolkit/targets/x86_64-linux/lib/libnccl.so.2 2.18.3 12.2 | CUDA_HOME=/toolkit
copies warning: another version: /usr/local/cuda-12.9/targets/x86_64-linux/lib/libnccl.so <- lib=/usr/local/cuda-12.9/targets/x86_64-linux/lib/libnccl.so 2.18.3 12.2
copies warning: another version: /hpc/comm_libs/nccl/lib/libnccl.so.2 <- lib=/hpc/comm_libs/nccl/lib/libnccl.so.2 2.18.3 12.2 | NVHPC_ROOT=/hpc
copies warning: another version: /opt/nvidia/hpc_sdk/Linux_x86_64/25.1/comm_libs/nccl/lib/libnccl.so.2 <- lib=/opt/nvidia/hpc_sdk/Linux_x86_64/25.1/comm_libs/nccl/lib/libnccl.so.2 2.18.3 12.2
copies warning: bytes, no build id; the library:  <- lib=/usr/lib/libnccl.so.2 2.32.3 12.9more
copies warning: another copy: /usr/lib/libnccl.so.2 (of an unknown version) <- lib=/usr/lib/libnccl.so.2 unknown unknown
copies warning: 2 copies in process 42 (python3): /opt/lib/libnccl.so.2.18.3 (2.18.3 for CUDA 12.2), /opt/libnccl.so.2 (2.21.5 for CUDA 12.4) <- lib=/opt/libnccl.so.2 2.21.5 12.4 | lib=/opt/lib/libnccl.so.2.18.3 2.18.3 12.2 | /proc/42/comm=python3\n | /proc/42/maps=7f00-7f10 r-xp 0 fe:00 12   /opt/libnccl.so.2\n7f10-7f20 rw-p 0 fe:00 12   /opt/libnccl.so.2\n7f20-7f30 rw-p 0 fe:00 12   /opt/lib/libnccl.so.2.18.3\n7f30-7f40 r-xp 0 fe:00 1   /usr/lib/libnccl-net.so\n | /proc/17/maps=7f00-7f10 r-xp 0 fe:00 12   /opt/libnccl.so.2\n
only copies warning: (2.27.7 for CUDA 12.9) is not the file of nvidia-nccl-cu12 2.32.3 <- lib=/usr/local/lib/python3.12/site-packages/nvidia/nccl/lib/libnccl.so.2 2.27.7 12.9
ok <- lib=/usr/lib/libnccl.so.2 2.32.3 12.9

driver problem: no GPU && devices problem: /dev/nvidiactl: No such file && devices problem: /dev/nvidia-uvm: No such && devices problem: /dev/nvidia0: No such <- driver=no GPU
driver problem: no GPU && devices problem: /dev/nvidia-uvm: No such file or directory (os error 2); the kernel has NVIDIA's module <- driver=no GPU | /dev/nvidiactl= | /dev/nvidia5=
driver problem: no GPU <- driver=no GPU | /dev/nvidiactl= | /dev/nvidia-uvm= | /dev/nvidia5=
driver problem: no GPU && advisories warning: for lack of the driver's version <- driver=no GPU | module=
only driver problem: the library is compiled with CUDA 12.9, and the driver supports CUDA up to 11.8 <- cuda=11.8
devices problem: NVIDIA_VISIBLE_DEVICES names a part of a GPU (MIG) <- NVIDIA_VISIBLE_DEVICES=MIG-1-2-3
ok <- NVIDIA_VISIBLE_DEVICES=MIG-1-2-3 | /dev/nvidia-caps/nvidia-cap21=
only devices warning: there is no channel in /dev/nvidia-caps-imex-channels <- model=NVIDIA GB200 || NCCL_MNNVL_ENABLE=1
only devices <- model=NVIDIA GB200 | NCCL_MNNVL_ENABLE=0 || model=NVIDIA GB200 | /dev/nvidia-caps-imex-channels/channel0=
network warning: ranks meet at 10.0.0.1 (eth0), which is not connected: eth0 10.0.0.1 (no carrier) <- eth0=unplugged

variables problem: NCCL_NET_PLUGIN excludes others <- NCCL_NET=Foo | NCCL_NET_PLUGIN=none
"#;

#[test]
fn each_change_of_a_healthy_machine_gives_its_finding() {
    let mut differences = vec![];
    for case in CASES.lines().filter(|case| !case.is_empty()) {
        let (expected, alternatives) = case.split_once(" <- ").unwrap();
        let (only, expected) = match expected.strip_prefix("only ") {
            Some(rest) => (rest.split(' ').next(), rest),
            None => (None, expected),
        };
        let finding = |text: &'static str| {
            let (subject, text) = text.split_once(": ")?;
            let (section, level) = subject.split_once(' ')?;
            Some((section, if level == "warning" { Level::Warning } else { Level::Problem }, text))
        };
        let findings: Vec<_> = expected.split(" && ").filter_map(finding).collect();
        for changes in alternatives.split(" || ") {
            let mut machine = Machine::healthy();
            changes.split(" | ").for_each(|text| change(&mut machine, text));
            let difference = difference(&machine.report(), only, &findings);
            differences.extend(difference.map(|difference| format!("{case}\n{difference}")));
        }
    }
    assert!(differences.is_empty(), "{}", differences.join("\n"));
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
        // The address in the unique id.
        "id" => machine.id.address = Some(value.parse().unwrap()),
        "locked" => machine.system.locked_memory = value.parse().ok(),
        "files" => machine.system.open_files = Rlimit { current: Some(1024), maximum: value.parse().ok() },
        // In MiB.
        "shm" => machine.system.shared_memory.size = Some(value.parse::<u64>().unwrap() << 20),
        // A library with a version, for a version of CUDA.
        "lib" => {
            let words: Vec<_> = value.split(' ').collect();
            machine.library(words[0], words[1], words[2]);
        }
        // The driver's error, its CUDA, its GPUs, and the kernel's module.
        "driver" => machine.driver.problem = Some(value.into()),
        "cuda" => machine.driver.cuda = value.parse().ok().map(Text),
        "model" => machine.driver.models = vec![value.into()],
        "module" => machine.driver.module = None,
        "eth0" => {
            machine.system.interfaces.as_mut().unwrap()[1] = Interface::new(name, value, Some("10.0.0.1"));
        }
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
    let meets_at = |address: &str| {
        let mut machine = Machine::healthy();
        let interfaces = machine.system.interfaces.as_mut().unwrap();
        interfaces.truncate(1);
        interfaces[0].addresses.extend(["::1", "10.9.9.9"].map(|address| address.parse::<IpAddr>().unwrap()));
        machine.id.address = Some(address.parse().unwrap());
        bad(&machine.report(), "network")
    };
    assert_eq!(meets_at("10.9.9.9"), []);
    assert!(meets_at("127.0.0.1")[0].advice.as_ref().unwrap().contains("NCCL_COMM_ID to 10.9.9.9"));
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
fn another_file_of_the_same_size_is_told_by_its_hash() {
    let copy = "/usr/lib/libnccl.so.2";
    let changed = |machine: &mut Machine| {
        machine.library(copy, "2.32.3", "12.9");
        let mut bytes = fs::read(machine.place(copy)).unwrap();
        *bytes.last_mut().unwrap() ^= 1;
        fs::write(machine.place(copy), bytes).unwrap();
    };
    one(changed, "copies", Level::Warning, "no build id, hash ");
}
