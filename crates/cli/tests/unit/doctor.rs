//! The doctor on fabricated machines: findings that need files, devices or interfaces of such a machine. `tests/cli/doctor` has the
//! findings from environment variables and the library's behavior.

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
use crate::system::{Interface, System};

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

/// A machine whose files are in a temporary directory.
struct Machine {
    root: tempfile::TempDir,
    system: System,
    probe: Probe,
    driver: Driver,
    id: Check,
    /// The sections whose findings are all shown.
    shown: &'static str,
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
        let machine = Self { root, system, probe: Probe::default(), driver, id, shown: "" };
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

    /// Writes a library with too many variables to be taken for the CPU backend.
    fn library(&self, path: &str, release: &str, cuda: &str) {
        let more: String = (0..50).map(|index| format!("NCCL_VARIABLE_{index}_OF_MANY\0")).collect();
        let text = format!("NCCL version {release}+cuda{cuda}\0{VARIABLES}{more}");
        write_library(&self.place(path), text.as_bytes());
    }

    /// Writes the metadata of a Python package whose library has the same size as the library at `path`.
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

    /// Examines the machine, on which a program loads the library at `path`.
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

const CASES: &str = include_str!("doctor.txt");

/// The file has a line `$ CHANGES` for each machine, followed by its findings; `SNAPSHOTS=overwrite` rewrites them. Changes to the
/// healthy machine are separated by `|`: `NAME=VALUE` sets a variable, `/path=TEXT` writes a file, `-/path` removes a directory;
/// [`change`] has others.
#[test]
fn each_machine_has_its_findings() {
    let mut found = String::new();
    for line in CASES.lines().filter(|line| line.is_empty() || line.starts_with(['#', '$'])) {
        found += &format!("{line}\n");
        let Some(changes) = line.strip_prefix("$ ") else { continue };
        let mut machine = Machine::healthy();
        changes.split(" | ").filter(|text| *text != "healthy").for_each(|text| change(&mut machine, text));
        let (shown, root) = (machine.shown, machine.system.place("/").display().to_string());
        let report = machine.report();
        let findings: Vec<_> = report
            .sections
            .iter()
            .flat_map(|section| section.findings.iter().map(move |finding| (section.name, finding)))
            .filter(|(name, finding)| {
                finding.level != Level::Ok || shown.split(' ').any(|shown| shown == *name)
            })
            .collect();
        assert_eq!(
            report.starts,
            findings.iter().all(|(_, finding)| finding.level != Level::Problem),
            "{changes}"
        );
        for (section, Finding { level, text, advice, source }) in findings {
            assert!(*level == Level::Ok || advice.is_some(), "{text}");
            let level = format!("{level:?}").to_lowercase();
            found += &format!("{section} {level}: {text}\n");
            found.extend([advice, source].into_iter().flatten().map(|more| format!("    -> {more}\n")));
        }
        found = found.replace(root.trim_end_matches('/'), "");
    }
    if std::env::var("SNAPSHOTS").is_ok_and(|value| value == "overwrite") {
        let file = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/unit/doctor.txt");
        fs::write(file, found).unwrap();
        return;
    }
    for (number, (expected, found)) in CASES.lines().zip(found.lines()).enumerate() {
        assert_eq!(found, expected, "doctor.txt:{}", number + 1);
    }
    assert_eq!(found, CASES);
}

fn change(machine: &mut Machine, text: &'static str) {
    if let Some(directory) = text.strip_prefix('-') {
        return fs::remove_dir_all(machine.place(directory)).unwrap();
    }
    let (name, value) = text.split_once('=').unwrap();
    // An end that editors would remove has `\e`.
    let value: &'static str = match value.contains('\\') {
        true => {
            let value = value.replace("\\n", "\n").replace("\\r", "\r").replace("\\t", "\t");
            value.replace("\\e", "").replace("\\0", "\0").leak()
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
        "used" => machine.system.shared_memory.used = value.parse::<u64>().unwrap() << 20,
        // A library with a version, for a version of CUDA.
        "lib" => {
            let words: Vec<_> = value.split(' ').collect();
            machine.library(words[0], words[1], &words[2].replace("\\s", " "));
        }
        // A package with a version and a library size.
        "package" => {
            let words: Vec<_> = value.split(' ').collect();
            machine.package(words[0], words[1], words[2]);
        }
        // Another file of the same size.
        "changed" => {
            let mut bytes = fs::read(machine.place(value)).unwrap();
            *bytes.last_mut().unwrap() ^= 1;
            fs::write(machine.place(value), bytes).unwrap();
        }
        "arch" => machine.system.architecture = value.into(),
        "links" => {
            for index in 0..8 {
                machine.write(&format!("/sys/class/infiniband/mlx5_{index}/ports/1/state"), value);
            }
        }
        "parameter" => {
            let (name, value) = value.split_once(' ').unwrap();
            let parameters = [(name.into(), value.into())].into();
            machine.probe.call = Some(Call { parameters, ..Call::default() });
        }
        // The library's error instead of an id.
        "no id" => {
            machine.id = Check { ok: false, problem: Some(value.into()), address: None };
            machine.probe.call = Some(Call::default());
        }
        // The first and the end of the existing ones, or the error.
        "interfaces" => match value.split_once(' ').map(|(first, end)| (first.parse(), end.parse())) {
            Some((Ok(first), Ok(end))) => {
                machine.system.interfaces =
                    machine.system.interfaces.clone().map(|all| all[first..end].to_vec());
            }
            _ => machine.system.interfaces = Err(value.into()),
        },
        // More of the first interface.
        "addresses" => {
            let addresses = value.split(' ').map(|address| address.parse::<IpAddr>().unwrap());
            machine.system.interfaces.as_mut().unwrap()[0].addresses.extend(addresses);
        }
        // The sections whose other findings are shown.
        "ok" => machine.shown = value,
        // The driver's error, its CUDA, its GPUs, and the kernel's module.
        "driver" => machine.driver.problem = Some(value.into()),
        "no driver" => machine.driver = Driver { problem: Some(value.into()), ..Driver::default() },
        "cuda" => machine.driver.cuda = value.parse().ok().map(Text),
        "model" => machine.driver.models = vec![value.into()],
        "module" => machine.driver.module = None,
        "eth0" => {
            machine.system.interfaces.as_mut().unwrap()[1] = Interface::new(name, value, Some("10.0.0.1"));
        }
        _ => machine.set(name, value),
    }
}

#[test]
fn copy_is_compared_with_a_library_whose_file_lacks_its_version() {
    let warnings = |version: &str, path: Option<&str>| {
        let machine = Machine::healthy();
        let library = library(path, version.parse().unwrap(), "host", NcclFile::default());
        let report = machine.examine(Search { library: Some(library), ..Search::default() });
        let copies = report.sections.iter().find(|section| section.name == "copies").unwrap();
        copies.findings.iter().filter(|finding| finding.level != Level::Ok).count()
    };
    let path = Some("/opt/libnccl.so.2");
    assert_eq!((warnings("2.30.7", path), warnings("2.32.3", path), warnings("2.30.7", None)), (1, 0, 0));
}
