//! Copies of NCCL: on the machine, in Python packages, and in processes.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use itertools::Itertools;
use libnccl::internal::places::{
    self, CUDA_HOMES, HOMES, HPC_SDK, HPC_SDK_HOME, IN_HPC_SDK, IN_PACKAGES, NAMES,
};

use super::finding::{Finding, or_ok};
use super::library::Library;
use crate::nccl_file::{NcclFile, hash};
use crate::system::System;

/// The maximum number of processes whose mappings are read.
const PROCESSES: usize = 1024;
/// The minimum size of a mapped library that is searched for NCCL's functions. NCCL's GPU code is larger.
const LARGE: u64 = 32 << 20;
/// The PyTorch library that may contain NCCL, relative to a directory of Python packages.
const PYTORCH: &str = "torch/lib/libtorch_cuda.so";

/// An NCCL file, or a library that contains NCCL.
struct Copy {
    path: PathBuf,
    file: NcclFile,
}

impl Copy {
    fn of(system: &System, path: impl Into<PathBuf>) -> Self {
        let path = path.into();
        Self { file: NcclFile::read(&system.place(&path)).unwrap_or_default(), path }
    }

    fn text(&self) -> String {
        let version = match self.file.version {
            Some(version) => version.to_string(),
            None if self.file.is_cpu_backend => "libnccl's CPU backend".into(),
            None => "of an unknown version".into(),
        };
        let cuda = self.file.cuda.map(|cuda| format!(" for CUDA {cuda}")).unwrap_or_default();
        let contains = if is_nccl(&self.path) { "" } else { ", which contains NCCL" };
        format!("{}{contains} ({version}{cuda})", self.path.display())
    }

    /// Compares the file with the library at `path`, which has the same version. Returns the difference, if any.
    fn difference(&self, system: &System, path: &Path, library: &NcclFile) -> Option<String> {
        let (own, other) = (&self.file.identity, &library.identity);
        if own != other {
            return Some(format!("{own}; the library: {other}"));
        }
        let places = [system.place(&self.path), system.place(path)];
        let nodes = places.each_ref().map(|place| place.metadata().map(|file| (file.dev(), file.ino())).ok());
        if nodes[0] == nodes[1] {
            return None;
        }
        let [own_hash, other_hash] = places.map(|place| hash(&place).ok());
        let shown = |hash: Option<u64>| hash.map_or("unreadable".into(), |hash| format!("{hash:016x}"));
        (own_hash != other_hash)
            .then(|| format!("{own}, hash {}; the library: hash {}", shown(own_hash), shown(other_hash)))
    }
}

fn is_nccl(path: &Path) -> bool {
    path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("libnccl.so"))
}

pub(super) fn findings(system: &System, library: Option<&Library>) -> Vec<Finding> {
    let chosen = library.and_then(|library| library.path.as_ref());
    let chosen = chosen.map(|path| fs::canonicalize(path).unwrap_or_else(|_| path.clone()));
    let mut findings = packages(system).iter().filter_map(|one| of_packages(system, one)).collect_vec();
    // For an NCCL that is linked into the program, other copies are not a mistake.
    let loaded = library.filter(|library| library.path.is_some());
    let loaded = loaded.map(|library| library.file.version.unwrap_or(library.version.0));
    for copy in on_machine(system).filter(|copy| Some(&copy.path) != chosen.as_ref()) {
        let is_cpu = |library: &Library| library.file.is_cpu_backend && copy.file.is_cpu_backend;
        let is_same_version = copy.file.version == loaded || library.is_some_and(is_cpu);
        let difference = library.filter(|library| is_same_version && library.file.identity.size > 0);
        let difference =
            difference.and_then(|library| copy.difference(system, library.path.as_ref()?, &library.file));
        let text = copy.text();
        findings.push(if let Some(difference) = difference {
            let advice = "make all programs of a job use one file: these two were built or changed separately";
            Finding::warning(format!("another file of the same version: {text}: {difference}"), advice)
        } else if loaded.is_some() && !is_same_version {
            let other = if copy.file.version.is_some() { "another version" } else { "another copy" };
            let advice = "remove it, or make all programs of a job use one file: ranks of different versions do not connect";
            Finding::warning(format!("{other}: {text}"), advice)
        } else {
            Finding::ok(format!("another copy: {text}"))
        });
    }
    findings.extend(in_processes(system));
    if let Some(library) = library
        && !library.other_loaded_libraries.is_empty()
    {
        let others = library.other_loaded_libraries.iter().map(|path| path.display()).join(", ");
        let advice = "let all users of NCCL in the process load the same file";
        findings.push(Finding::warning(format!("also in this process: {others}"), advice));
    }
    or_ok(findings, || "no other copy".into())
}

/// Returns the directories of Python packages: of active environments, of conda environments, of the user and of the system.
fn packages(system: &System) -> BTreeSet<PathBuf> {
    let mut prefixes: Vec<PathBuf> = ["/usr/local", "/usr", "/opt/venv", "/venv"].map(PathBuf::from).into();
    let named = ["VIRTUAL_ENV", "PYTHONUSERBASE"].into_iter().filter_map(|name| system.variable(name));
    prefixes.extend(named.map(PathBuf::from));
    let path = system.variable("PATH").unwrap_or_default();
    prefixes.extend(path.split(':').filter_map(|directory| Path::new(directory).parent()).map(PathBuf::from));
    prefixes.extend(system.variable("HOME").map(|home| Path::new(home).join(".local")));
    prefixes.extend(conda(system));
    let prefixes: BTreeSet<_> = prefixes.into_iter().filter(|prefix| prefix.is_absolute()).collect();
    // `pip install --target`.
    let given = system.variable("PYTHONPATH").unwrap_or_default().split(':');
    let given = given.map(Path::new).filter(|directory| directory.is_absolute() && system.exists(directory));
    let mut directories: BTreeSet<_> = given.map(|directory| canonical(system, directory)).collect();
    for prefix in prefixes {
        let lib = prefix.join("lib");
        let versions = system.names(&lib).into_iter().filter(|name| name.starts_with("python3"));
        for (version, packages) in versions.cartesian_product(["site-packages", "dist-packages"]) {
            let directory = lib.join(version).join(packages);
            if system.exists(&directory) {
                // Debian's /usr/lib/python3.11 and /usr/lib/python3 may be the same directory.
                directories.insert(canonical(system, &directory));
            }
        }
    }
    directories
}

/// Returns conda's prefixes: the active environment, the usual installation directories, and their environments.
fn conda(system: &System) -> Vec<PathBuf> {
    let mut bases = vec![PathBuf::from("/opt/conda")];
    bases.extend(system.variable("CONDA_PREFIX").map(PathBuf::from));
    if let Some(home) = system.variable("HOME") {
        bases.extend(["miniconda3", "anaconda3", "miniforge3"].map(|name| Path::new(home).join(name)));
    }
    let environments: Vec<_> = bases.iter().flat_map(|base| system.children(base.join("envs"))).collect();
    bases.extend(environments);
    bases
}

fn canonical(system: &System, path: &Path) -> PathBuf {
    let place = system.place(path);
    fs::canonicalize(&place).map_or_else(|_| path.into(), |place| system.path(&place))
}

/// Returns the directories in which the dynamic linker and programs look for libraries.
fn directories(system: &System) -> Vec<PathBuf> {
    let mut directories: Vec<PathBuf> =
        ["/lib", "/usr/lib", "/lib64", "/usr/lib64", "/usr/local/lib"].map(PathBuf::from).into();
    let multiarch = format!("{}-linux-gnu", system.architecture);
    directories.extend(["/lib", "/usr/lib"].map(|lib| Path::new(lib).join(&multiarch)));
    for file in [vec![PathBuf::from("/etc/ld.so.conf")], system.children("/etc/ld.so.conf.d")].concat() {
        let text = system.read(file).unwrap_or_default();
        directories
            .extend(text.lines().map(str::trim).filter(|line| line.starts_with('/')).map(PathBuf::from));
    }
    let list = system.variable("LD_LIBRARY_PATH").unwrap_or_default();
    directories.extend(list.split(':').filter(|directory| directory.starts_with('/')).map(PathBuf::from));
    let named = |variable: &&str| system.variable(variable).map(PathBuf::from);
    directories.extend(HOMES.iter().filter_map(named).flat_map(|home| places::in_home(&home)));
    let default = system.children("/usr/local").into_iter().filter(|directory| {
        directory.file_name().is_some_and(|name| name.to_string_lossy().starts_with("cuda"))
    });
    let toolkits = CUDA_HOMES.iter().filter_map(named).chain(default);
    directories.extend(toolkits.flat_map(|home| places::in_toolkit(&home, &system.architecture)));
    let releases = system.children(HPC_SDK).into_iter().flat_map(|directory| system.children(directory));
    let releases = releases.chain(system.variable(HPC_SDK_HOME).map(PathBuf::from));
    directories.extend(releases.map(|release| release.join(IN_HPC_SDK)));
    directories.extend(conda(system).into_iter().map(|prefix| prefix.join("lib")));
    directories
}

/// Returns the copies in `directories` and in Python packages, each file once.
fn on_machine(system: &System) -> impl Iterator<Item = Copy> {
    let in_directories =
        directories(system).into_iter().flat_map(|directory| NAMES.map(|name| directory.join(name)));
    let in_packages = packages(system).into_iter().map(|directory| directory.join(IN_PACKAGES));
    let in_pytorch = packages(system).into_iter().map(|directory| directory.join(PYTORCH));
    let in_pytorch = in_pytorch.filter(|file| NcclFile::has_nccl(&system.place(file)));
    let files = in_directories.chain(in_packages).chain(in_pytorch).filter(|file| system.exists(file));
    let files: BTreeSet<_> = files.map(|file| canonical(system, &file)).collect();
    // Linker scripts and broken files are not libraries.
    let copy = |path: PathBuf| Some(Copy { file: NcclFile::read(&system.place(&path))?, path });
    files.into_iter().filter_map(copy)
}

/// A Python package whose metadata claims the library's path.
struct Package {
    name: String,
    version: String,
    /// The size of the package's library, according to the metadata.
    size: Option<u64>,
}

impl Package {
    fn text(&self) -> String {
        format!("{} {}", self.name, self.version)
    }
}

/// Compares the library in a package directory with the packages that own it.
fn of_packages(system: &System, directory: &Path) -> Option<Finding> {
    let path = directory.join(IN_PACKAGES);
    let metadata = system.place(&path).metadata().ok()?;
    let owners: Vec<_> = system.children(directory).iter().filter_map(|info| package(system, info)).collect();
    let copy = Copy::of(system, path);
    if owners.len() > 1 {
        let (owned, names): (Vec<_>, Vec<_>) = owners.iter().map(|own| (own.text(), &*own.name)).unzip();
        let (owned, names) = (owned.join(" and "), names.join(" "));
        let writer = owners.iter().find(|owner| owner.size == Some(metadata.len()));
        let writer = writer.map(|owner| format!("; the file is that of {}", owner.name)).unwrap_or_default();
        let share = "share one file, and the last one that was installed wrote it";
        let others = "then pip install --force-reinstall the one for the driver's CUDA";
        let text = format!("{owned} {share}: {}{writer}", copy.text());
        return Some(Finding::warning(text, format!("keep one: pip uninstall {names}, {others}")));
    }
    let owner = owners.first()?;
    let version = copy.file.version.map(|version| version.to_string());
    let differs = version.is_some_and(|version| version != owner.version);
    (differs || owner.size.is_some_and(|size| size != metadata.len())).then(|| {
        let advice = format!("pip install --force-reinstall {}=={}", owner.name, owner.version);
        let text = format!("{} is not the file of {}", copy.text(), owner.text());
        Finding::warning(text, format!("install it again: {advice}"))
    })
}

/// Reads the directory `NAME-VERSION.dist-info` of a package that owns the library.
fn package(system: &System, info: &Path) -> Option<Package> {
    let directory = info.file_name()?.to_str()?;
    if !directory.starts_with("nvidia_nccl_cu") || !directory.ends_with(".dist-info") {
        return None;
    }
    let metadata = system.read(info.join("METADATA"))?;
    let field = |name: &str| {
        metadata.lines().find_map(|line| line.strip_prefix(name)).map(|value| value.trim().to_owned())
    };
    // Lines of `path,sha256=hash,size`.
    let record = system.read(info.join("RECORD")).unwrap_or_default();
    let line = record.lines().find_map(|line| line.strip_prefix(IN_PACKAGES)?.strip_prefix(','));
    let size = line.and_then(|line| line.rsplit(',').next()?.parse().ok());
    Some(Package { name: field("Name:")?, version: field("Version:")?, size })
}

fn in_processes(system: &System) -> Vec<Finding> {
    let is_number = |name: &&String| name.bytes().all(|byte| byte.is_ascii_digit());
    let processes = system.names("/proc");
    let processes = processes.iter().filter(is_number).take(PROCESSES);
    let mut found: BTreeMap<BTreeSet<String>, Vec<String>> = BTreeMap::new();
    let mut large: BTreeMap<String, bool> = BTreeMap::new();
    let mut has_nccl = |path: &str| {
        let contains = |path: &str| {
            let place = system.place(path);
            place.metadata().is_ok_and(|file| file.len() >= LARGE) && NcclFile::has_nccl(&place)
        };
        is_nccl(path.as_ref()) || *large.entry(path.into()).or_insert_with(|| contains(path))
    };
    for process in processes {
        let Some(maps) = system.read(format!("/proc/{process}/maps")) else { continue };
        let files: BTreeSet<_> = maps.lines().filter_map(|line| Some(&line[line.find('/')?..])).collect();
        let copies: BTreeSet<_> =
            files.into_iter().filter(|path| has_nccl(path)).map(str::to_owned).collect();
        if copies.len() > 1 {
            let name = system.line(format!("/proc/{process}/comm")).unwrap_or_default();
            found.entry(copies).or_default().push(format!("{process} ({name})"));
        }
    }
    let finding = |(copies, processes): (BTreeSet<String>, Vec<String>)| {
        let noun = if processes.len() == 1 { "process" } else { "processes" };
        let texts = copies.iter().map(|path| Copy::of(system, path).text()).join(", ");
        let text = format!("{} copies in {noun} {}: {texts}", copies.len(), processes.join(", "));
        let advice = "let all users of NCCL in a process load the same file, for instance by LD_LIBRARY_PATH or VLLM_NCCL_SO_PATH";
        Finding::warning(text, advice)
    };
    found.into_iter().map(finding).collect()
}
