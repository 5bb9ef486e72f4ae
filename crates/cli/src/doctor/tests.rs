//! The doctor on fabricated machines: each problem, reports from the field, and healthy machines.

use std::fs;
use std::net::Ipv4Addr;
use std::path::PathBuf;

use libnccl::Version;

use super::driver::Driver;
use super::examine;
use super::finding::{Finding, Level};
use super::library::{Check, Library, Missing, Search};
use super::probe::{Answer, Probe};
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
    NCCL_NET\0NCCL_TUNER_PLUGIN\0NCCL_MIN_NCHANNELS\0NCCL_MAX_NCHANNELS\0";

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

/// Returns the findings of a section that are not fine.
fn bad(report: &Report, section: &str) -> Vec<Finding> {
    let section = report.sections.iter().find(|found| found.name == section).expect(section);
    section.findings.iter().filter(|finding| finding.level != Level::Ok).cloned().collect()
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
    write_library(&machine.place("/opt/cpu/lib/libnccl.so.2"), b"NCCL version 2.32.3+cuda13.0\0");
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
    assert!(
        text.contains("(2.28.9 for CUDA 13.0)") && text.ends_with("the file is that of nvidia-nccl-cu13"),
        "{text}"
    );
    assert!(
        found[0]
            .advice
            .as_ref()
            .unwrap()
            .starts_with("keep one: pip uninstall nvidia-nccl-cu12 nvidia-nccl-cu13")
    );
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
    let arm = bad(&report, "advisories");
    assert!(!report.starts);
    assert!(
        arm.iter().any(|finding| finding.level == Level::Problem
            && finding.text.starts_with("arm-proxy-hang: NCCL 2.28.9"))
    );
    assert!(
        arm.iter().any(|finding| finding.source.as_deref()
            == Some("https://github.com/marin-community/marin/issues/7344"))
    );
    assert!(
        bad(&examined("2.28.9", "x86_64"), "advisories").iter().all(|finding| !finding.text.contains("arm-"))
    );
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
    assert_finds(
        &report,
        &[(
            "copies",
            Level::Warning,
            "another version: /usr/lib/x86_64-linux-gnu/libnccl.so.2 (2.18.3 for CUDA 12.2)",
        )],
    );
    let copies = report.sections.iter().find(|section| section.name == "copies").unwrap();
    assert!(
        copies.findings.iter().any(|finding| finding.text.contains("/opt/conda/envs/job/lib/libnccl.so.2"))
    );
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
    let copies = report.sections.iter().find(|section| section.name == "copies").unwrap();
    for (_, _, file) in places {
        assert!(copies.findings.iter().any(|finding| finding.text.contains(file)), "{file}: {copies:?}");
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
fn file_that_is_not_its_packages_is_a_warning() {
    let machine = Machine::healthy();
    machine.library(IN_SITE, "2.27.7", "12.9");
    let report = machine.report();
    let found = bad(&report, "copies");
    assert!(
        found[0].text.ends_with("(2.27.7 for CUDA 12.9) is not the file of nvidia-nccl-cu12 2.32.3"),
        "{found:?}"
    );
}

#[test]
fn library_of_a_newer_cuda_than_the_drivers_is_a_problem() {
    let mut machine = Machine::healthy();
    machine.driver.cuda = Some("11.8".into());
    let report = machine.report();
    let found = bad(&report, "driver");
    assert!(
        !report.starts
            && found[0].text.contains("compiled with CUDA 12.9, and the driver supports CUDA up to 11.8"),
        "{found:?}"
    );
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
    let network = &report.sections.iter().find(|section| section.name == "network").unwrap().findings;
    let expected = "no library to test them with; interfaces: lo 127.0.0.1, eth0 10.0.0.1, docker0 172.17.0.1, ens9 (down)";
    assert_eq!(network[0], Finding::ok(expected));
}

/// A change of a healthy machine, and the only finding that it gives.
fn one(change: impl FnOnce(&mut Machine), section: &str, level: Level, text: &str) {
    let mut machine = Machine::healthy();
    change(&mut machine);
    assert_finds(&machine.report(), &[(section, level, text)]);
}

/// A change of a healthy machine that gives no finding.
fn none(change: impl FnOnce(&mut Machine)) {
    let mut machine = Machine::healthy();
    change(&mut machine);
    assert_finds(&machine.report(), &[]);
}

/// The change that sets a variable.
fn set(name: &'static str, value: &'static str) -> impl Fn(&mut Machine) {
    move |machine| machine.environment.push((name, value))
}

#[test]
fn each_limit_that_is_too_low_is_found() {
    let write =
        |path: &'static str, text: &'static str| move |machine: &mut Machine| machine.write(path, text);
    let limit = |line: &'static str| {
        move |machine: &mut Machine| {
            let others = fs::read_to_string(machine.place("/proc/self/limits")).unwrap();
            machine.write("/proc/self/limits", &format!("{line}\n{others}"));
        }
    };
    let warning = |change: &dyn Fn(&mut Machine), text| one(change, "limits", Level::Warning, text);
    warning(&write("/proc/self/mounts", "shm /dev/shm tmpfs rw,size=65536k 0 0\n"), "/dev/shm: 64 MiB");
    warning(
        &|machine| {
            machine.write("/proc/self/mounts", "shm /dev/shm tmpfs rw,size=1g 0 0\n");
            let file = fs::File::create(machine.place("/dev/shm/nccl-abc")).unwrap();
            file.set_len(900 << 20).unwrap();
        },
        "/dev/shm: 900 MiB of 1024 MiB are in use; files of NCCL: 1",
    );
    warning(&|machine| machine.remove("/dev/shm"), "there is no /dev/shm");
    warning(&limit("Max open files  1024  2048  files"), "open files: 1024, and 2048 at most");
    one(
        limit("Max locked memory         65536  65536  bytes"),
        "limits",
        Level::Problem,
        "locked memory: 64 KiB at most",
    );
    warning(&limit("Max locked memory  1073741824  1073741824  bytes"), "locked memory: 1048576 KiB");
    let group = "/sys/fs/cgroup/user.slice";
    for (file, text, expected) in [
        ("memory.max", "536870912", "memory of the control group: an unknown part of 512 MiB"),
        ("pids.max", "100", "threads of the control group: an unknown number of 100"),
        ("cpu.max", "50000 100000", "processors of the control group: 0.5"),
    ] {
        warning(&|machine| machine.write(&format!("{group}/{file}"), text), expected);
        // The group itself may have none.
        let above = |machine: &mut Machine| {
            machine.write("/proc/self/cgroup", "0::/user.slice/job\n");
            machine.write(&format!("{group}/{file}"), text);
            machine
                .write(&format!("{group}/job/{file}"), if file == "cpu.max" { "max 100000" } else { "max" });
        };
        warning(&above, expected);
    }
}

#[test]
fn limit_that_is_not_known_is_not_taken_for_none() {
    let warning = |change: &dyn Fn(&mut Machine), text: &str| one(change, "limits", Level::Warning, text);
    let mounts = |machine: &mut Machine| fs::remove_file(machine.place("/proc/self/mounts")).unwrap();
    warning(&mounts, "/dev/shm: its size is not known, as /proc/self/mounts cannot be read");
    for size in ["many", "", "-1k", "k", "99999999999999999999", "99999999999999g"] {
        let mounts = |machine: &mut Machine| {
            machine.write("/proc/self/mounts", &format!("shm /dev/shm tmpfs rw,size={size} 0 0\n"));
        };
        warning(
            &mounts,
            &format!("/dev/shm: its size is not known, as /proc/self/mounts has size={size}; expected"),
        );
    }
    for locked in ["", "Max locked memory  many  many  bytes", "Max locked memory"] {
        let locked = |machine: &mut Machine| {
            machine
                .write("/proc/self/limits", &format!("{locked}\nMax stack size  8388608  8388608  bytes\n"));
        };
        warning(&locked, "locked memory: /proc/self/limits does not say how much");
    }
    let threads = |file: &'static str, text: &'static str| {
        move |machine: &mut Machine| {
            let group = "/sys/fs/cgroup/user.slice";
            machine.write(&format!("{group}/pids.max"), "1000\n");
            machine.write(&format!("{group}/{file}"), text);
        }
    };
    warning(&threads("pids.other", ""), "threads of the control group: an unknown number of 1000");
    warning(&threads("pids.current", "many"), "threads of the control group: an unknown number of 1000");
    warning(&threads("pids.current", "900"), "threads of the control group: 900 of 1000");
    none(threads("pids.current", "0"));
    let machine = Machine::healthy();
    machine.remove("/sys/devices/system/node");
    let report = machine.report();
    let devices = &report.sections.iter().find(|section| section.name == "devices").unwrap().findings;
    assert_eq!(devices[..], [Finding::ok("GPUs on the PCI bus: 8; NUMA nodes: unknown")]);
}

#[test]
fn limits_that_do_not_hold_are_no_finding() {
    let mut machine = Machine::healthy();
    machine.write("/proc/self/limits", "Max locked memory         65536  65536  bytes\n");
    machine.write("/proc/self/status", "CapEff:\t000001ffffffffff\n");
    machine.write("/sys/fs/cgroup/user.slice/memory.max", "max\n");
    machine.write("/sys/fs/cgroup/user.slice/cpu.max", "max 100000\n");
    machine.write("/proc/self/mounts", "shm /dev/shm tmpfs rw,size=65536k 0 0\n");
    machine.environment.push(("NCCL_IB_DISABLE", "0"));
    machine.write("/.dockerenv", "");
    let report = machine.report();
    assert_finds(&report, &[("limits", Level::Warning, "/dev/shm")]);
    let limits = &report.sections.iter().find(|section| section.name == "limits").unwrap().findings;
    assert_eq!(limits[0], Finding::ok("in a container of Docker"));
}

/// Sets a variable, and the address in the id that the library made with it.
fn made(name: &'static str, value: &'static str, address: &'static str) -> impl Fn(&mut Machine) {
    move |machine| {
        set(name, value)(machine);
        machine.id.address = Some(address.parse().unwrap());
    }
}

#[test]
fn interface_is_the_one_in_the_unique_id() {
    let all = "interfaces: lo 127.0.0.1, eth0 10.0.0.1, docker0 172.17.0.1, ens9 (down)";
    let names = |value, address| made("NCCL_SOCKET_IFNAME", value, address);
    for value in ["eth", "=eth0", "^docker,lo", "eth0:5"] {
        none(names(value, "10.0.0.1"));
    }
    let warning = |change: &dyn Fn(&mut Machine), text: &str| one(change, "network", Level::Warning, text);
    warning(&names("lo", "127.0.0.1"), "ranks meet at 127.0.0.1 (lo), which other machines cannot reach");
    warning(&names("docker0", "172.17.0.1"), &format!("(docker0), which other machines cannot reach; {all}"));
    warning(&names("ens,docker9", "10.0.0.1"), &format!("the library uses eth0 nevertheless; {all}"));
    warning(&names("eth0, lo", "10.0.0.1"), "no interface is named \" lo\"");
    warning(&names("^eth0", "10.0.0.1"), "the library uses eth0 nevertheless");
    warning(
        &|machine| {
            machine.interfaces.as_mut().unwrap()[1] = Interface::new("eth0", "unplugged", Some("10.0.0.1"))
        },
        "ranks meet at 10.0.0.1 (eth0), which is not connected: eth0 10.0.0.1 (no carrier)",
    );
    let alone = |machine: &mut Machine| {
        machine.interfaces.as_mut().unwrap().truncate(1);
        machine.id.address = Some(Ipv4Addr::LOCALHOST.into());
    };
    none(alone);
    none(|machine| machine.interfaces = Err("Permission denied".into()));
    none(made("NCCL_COMM_ID", "10.0.0.9:5000", "10.0.0.9"));
}

#[test]
fn failure_of_the_library_is_reported_with_the_interfaces() {
    let failed = |machine: &mut Machine| {
        machine.id = Check { ok: false, problem: Some("no socket interface found".into()), address: None };
    };
    let no_id = ("library", Level::Problem, "no unique id can be made: no socket interface found");
    let examined = |name: Option<&'static str>| {
        let mut machine = Machine::healthy();
        failed(&mut machine);
        machine.probe.answer = Some(Answer::default());
        machine.environment.extend(name.map(|name| ("NCCL_SOCKET_IFNAME", name)));
        machine.report()
    };
    let text = "the library makes no unique id; interfaces: lo 127.0.0.1, eth0 10.0.0.1, docker0 172.17.0.1, ens9 (down)";
    assert_finds(&examined(None), &[no_id, ("network", Level::Problem, text)]);
    let text = format!("with NCCL_SOCKET_IFNAME=ib0 (environment), {text}");
    assert_finds(&examined(Some("ib0")), &[no_id, ("network", Level::Problem, &text)]);
    // A process that was killed says nothing of the network.
    let mut machine = Machine::healthy();
    failed(&mut machine);
    assert_finds(&machine.report(), &[no_id]);
    let plugin = |machine: &mut Machine| {
        machine.probe = Probe {
            answer: Some(Answer::default()),
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
        set("NCCL_TUNER_PLUGIN", "foo")(machine);
    };
    one(named, "variables", Level::Warning, "the plugin cannot be loaded: no such file");
}

/// The values of the report in `reproductions/4/users/sre.sh`, and others.
#[test]
fn values_that_nccl_reads_as_something_else_are_found() {
    for (name, value, text) in [
        ("NCCL_DEBUG", "INF0", "NCCL ignores this value"),
        ("NCCL_DEBUG", "WARN # quiet", "the comment is part of the value"),
        (
            "NCCL_DEBUG_FILE",
            "/nonexistent/dir/x.log",
            "nothing can be written to /nonexistent/dir: No such file",
        ),
        ("NCCL_SOCKET_FAMILY", "ipv6", "NCCL ignores this value"),
        ("NCCL_ALGO", "Ringg", "NCCL ignores \"Ringg\", which is unknown"),
        ("NCCL_ALGO", "ring;allredduce:tree", "NCCL ignores \"allredduce\""),
        ("NCCL_PROTO", "^LL256,LL", "NCCL ignores \"LL256\""),
        ("NCCL_P2P_LEVEL", "NVLNK", "NCCL ignores this value"),
        ("NCCL_P2P_LEVEL", "9", "NCCL reads a number above 4 as SYS"),
        ("NCCL_P2P_DISABLE", "true", "NCCL reads it as 0"),
        ("NCCL_P2P_DISABLE", "01", "NCCL_P2P_DISABLE=01 (environment): GPUs do not reach"),
        ("NCCL_BUFFSIZE", "4M", "NCCL reads it as 4"),
        ("NCCL_BUFFSIZE", "010000000", "NCCL reads it as 2097152"),
        ("NCCL_BUFFSIZE", "99999999999999999999", "the number is too large, so NCCL uses the default"),
        ("NCCL_BUFFSIZE", "1", "expected 65536 to 1073741824"),
        ("NCCL_IB_TIMEOUT", "99", "expected 1 to 31"),
        ("NCCL_NTHREADS", "100", "not a multiple of 32"),
        ("NCCL_WORK_FIFO_BYTES", "3", "not a power of 2"),
        ("NCCL_LAUNCH_MODE", "PARALEL", "NCCL ignores this value"),
        ("NCCL_HOSTID", "", "an empty value makes NCCL take all machines for one"),
        ("NCCL_TOPO_FILE", "", "an empty value is the name of a file"),
        (
            "NCCL_TOPO_FILE",
            "/etc/topology.xml",
            "NCCL_TOPO_FILE=/etc/topology.xml (environment): there is no such file",
        ),
        ("NCCL_BLOCKING_WAIT", "1", "PyTorch has retired this name"),
        ("nccl_debug", "INFO", "the library does not know this variable"),
    ] {
        one(set(name, value), "variables", Level::Warning, text);
    }
    for (name, value, text) in [
        ("NCCL_GRAPH_FILE", "/nonexistent.xml", "there is no such file"),
        ("NCCL_GRAPH_FILE", "", "an empty value is the name of a file"),
    ] {
        one(set(name, value), "variables", Level::Problem, text);
    }
    for (name, value) in [
        ("NCCL_DEBUG", "info"),
        ("NCCL_ALGO", "ring;allreduce:tree,CollNetDirect"),
        ("NCCL_PROTO", "^LL"),
        ("NCCL_P2P_LEVEL", "SYS"),
        ("NCCL_BUFFSIZE", "0x400000"),
        ("NCCL_BUFFSIZE", "-2"),
        ("NCCL_NET", "ib"),
        ("NCCL_NTHREADS", "256"),
        ("NCCL_DEBUG_FILE", "/dev/shm/x.%h.%p"),
        ("NCCL_DEBUG_FILE", "relative"),
        ("TORCH_NCCL_BLOCKING_WAIT", "1"),
        ("nccl_of_another_program", "1"),
    ] {
        none(set(name, value));
    }
    let minimum = |machine: &mut Machine| {
        machine.environment.extend([("NCCL_MIN_NCHANNELS", "8"), ("NCCL_MAX_NCHANNELS", "4")]);
    };
    one(minimum, "variables", Level::Warning, "is above NCCL_MAX_NCHANNELS=4");
    let no_device = |machine: &mut Machine| {
        machine.remove("/sys/class/infiniband");
        machine.environment.push(("NCCL_NET", "IB"));
    };
    one(no_device, "variables", Level::Problem, "there is no RDMA device with a link");
    let parameter = |machine: &mut Machine| {
        machine.environment.push(("NCCL_ALGO", "Ring"));
        let parameters = [("NCCL_ALGO".into(), "TREE".into())].into();
        machine.probe.answer = Some(Answer { parameters, ..Answer::default() });
    };
    one(parameter, "variables", Level::Warning, "the library reads \"TREE\"");
    let refused = |machine: &mut Machine| {
        machine.library(IN_SITE, "2.32.3", "12.9\0Unrecognized element token");
        machine.package("nvidia_nccl_cu12", "2.32.3", IN_SITE);
        machine.environment.push(("NCCL_PROTO", "LL256"));
    };
    one(refused, "variables", Level::Problem, "no communicator can be made, as \"LL256\" is unknown");
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
fn rdma_devices_that_nccl_cannot_use_are_found() {
    let warning = |change: &dyn Fn(&mut Machine), text| one(change, "network", Level::Warning, text);
    warning(&|machine| machine.remove("/sys/class"), "/sys/class is not there");
    warning(&|machine| machine.remove("/dev/infiniband"), "have no files in /dev/infiniband");
    let select = |value| set("NCCL_IB_HCA", value);
    warning(&select("=mlx5_9"), "NCCL_IB_HCA==mlx5_9 (environment) selects no RDMA device");
    for value in
        ["=mlx5_0,mlx5_9", "mlx5_0, mlx5_1", "mlx5_1:1,mlx5_2:2", "mlx5_0,mlx5_1 ,mlx5_2", "mlx5_0,mlx5_1:x"]
    {
        warning(&select(value), ", but no port with a link is ");
    }
    warning(
        &select("mlx5_1:2,mlx4"),
        "selects no RDMA device (no port with a link is \"mlx5_1:2\", \"mlx4\"), so NCCL uses sockets",
    );
    let none_there = |machine: &mut Machine| {
        machine.remove("/sys/class/infiniband");
        select("mlx5_0")(machine);
    };
    warning(&none_there, "there is no RDMA device, so NCCL uses sockets");
    for value in ["mlx5_0,mlx5_7:1", "^mlx5_9", "^=mlx5_0", "mlx5", "mlx5_0:", "mlx5_0:-1"] {
        none(select(value));
    }
    for value in ["1", "2", "0x1"] {
        warning(&set("NCCL_IB_DISABLE", value), "are not used");
    }
    let linkless = |machine: &mut Machine| {
        for index in 0..8 {
            machine.write(&format!("/sys/class/infiniband/mlx5_{index}/ports/1/state"), "1: DOWN\n");
        }
    };
    warning(&linkless, "RDMA devices without a link: mlx5_0");
    warning(&|machine| machine.write("/proc/sys/kernel/osrelease", "5.4.0-200"), "no GPUDirect RDMA");
}

#[test]
fn gpus_that_are_hidden_or_placed_nowhere_are_found() {
    let visible = |value| set("CUDA_VISIBLE_DEVICES", value);
    one(visible(""), "devices", Level::Problem, "CUDA_VISIBLE_DEVICES= hides all 8 GPUs");
    one(visible("-1"), "devices", Level::Problem, "hides all");
    one(visible("0,1,1"), "devices", Level::Problem, "has 1 twice");
    one(visible("8"), "devices", Level::Problem, "there is no GPU 8");
    one(visible("0,8,1"), "devices", Level::Warning, "there is no GPU 8");
    one(visible("MIG-1-2-3"), "devices", Level::Problem, "there are no files in /dev/nvidia-caps");
    for value in ["0,1,2,3,4,5,6,7", "GPU-8932f937,GPU-11111111", "3"] {
        none(visible(value));
    }
    let unplaced =
        |machine: &mut Machine| machine.write("/sys/bus/pci/devices/0000:01:00.0/numa_node", "-1\n");
    one(unplaced, "devices", Level::Warning, "1 of 8 GPUs have no NUMA node, and the machine has 2");
    one(set("NVIDIA_VISIBLE_DEVICES", "none"), "devices", Level::Warning, "NVIDIA_VISIBLE_DEVICES=none");
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
        set("NVIDIA_VISIBLE_DEVICES", "MIG-1-2-3")(machine);
    };
    assert_eq!(examined(&[], &part).len(), 1);
    assert_eq!(examined(&["nvidia-caps/nvidia-cap21"], &part), [""; 0]);

    let of_rack = |machine: &mut Machine| {
        working(machine);
        machine.driver.models[0] = "NVIDIA GB200".into();
    };
    let off = |machine: &mut Machine| {
        of_rack(machine);
        set("NCCL_MNNVL_ENABLE", "0")(machine);
    };
    let on = |machine: &mut Machine| {
        working(machine);
        set("NCCL_MNNVL_ENABLE", "1")(machine);
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
    let files = &report.sections.iter().find(|section| section.name == "files").unwrap().findings;
    assert!(files.contains(&Finding::ok("/home/me/.nccl.conf sets NCCL_ALGO=Tree")), "{files:?}");
    for overridden in [
        "/etc/nccl.conf: NCCL_ALGO has no effect; its value is from /home/me/.nccl.conf",
        "/home/me/.nccl.conf: NCCL_DEBUG has no effect; its value is from environment",
    ] {
        assert!(files.contains(&Finding::ok(overridden)), "{files:?}");
    }
    let named = set("NCCL_CONF_FILE", "~/mine.conf");
    one(named, "files", Level::Warning, "NCCL_CONF_FILE=~/mine.conf: there is no such file");

    for (line, part) in [
        ("NCCL_DEBUG=\"INFO\"", "the quotes are part of the value"),
        ("NCCL_ALGO='Ring'", "the quotes are part of the value"),
        ("NCCL_ALGO=Ring ", "the spaces are part of the value"),
        ("export NCCL_ALGO=Ring", "the spaces are part of the name"),
    ] {
        one(|machine| machine.write("/etc/nccl.conf", line), "files", Level::Warning, part);
    }
    for line in ["NCCL_IB_TIMEOUT=20 \n", "NCCL_ALGO=Ring\r\n", "# NCCL_ALGO='Ring'\n"] {
        none(|machine| machine.write("/etc/nccl.conf", line));
    }
    // A folder stands for what cannot be read, as root reads every file.
    one(
        |machine| machine.write("/etc/nccl.conf/file", ""),
        "files",
        Level::Warning,
        "this user cannot read it",
    );
    let unread = |machine: &mut Machine| {
        machine.write("/etc/nccl.conf", "NCCL_ALGO=Ring\nNCCL_DEBUG=WARN\nNCCL_PROTO=LL\n");
        let added = [("NCCL_PROTO".into(), "LL\r".into()), ("NCCL_NTHREADS".into(), "64".into())].into();
        machine.probe.answer = Some(Answer { added, ..Answer::default() });
    };
    one(unread, "files", Level::Warning, "/etc/nccl.conf: NCCL 2.32.3 does not read NCCL_ALGO from it");
}

#[test]
fn quotes_and_spaces_in_the_environment_are_found() {
    for (name, value) in [
        ("NCCL_DEBUG", "\"INFO\""),
        ("NCCL_ALGO", "'Ring'"),
        ("NCCL_PROTO", "Simple "),
        ("NCCL_ALGO", "Tree\r"),
        ("NCCL_P2P_DISABLE", "\"1\""),
    ] {
        let text = format!("{name}={value:?} (environment): the ");
        one(set(name, value), "variables", Level::Warning, &text);
    }
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
    let names: Vec<_> = json["sections"]
        .as_array()
        .unwrap()
        .iter()
        .map(|section| section["name"].as_str().unwrap())
        .collect();
    let all = [
        "library",
        "copies",
        "driver",
        "devices",
        "advisories",
        "limits",
        "network",
        "files",
        "variables",
        "ras",
    ];
    assert_eq!(names, all);
    let finding = &json["sections"][8]["findings"][0];
    assert_eq!(finding["level"], "problem");
    assert!(finding["text"].is_string() && finding["advice"].is_string());
}
