//! The places where NCCL's library may be, in search order.

use std::env::consts::ARCH;
use std::fs::Metadata;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use super::PATH_VARIABLE;
use crate::places::{
    self, CUDA, HPC_SDK, IN_HPC_SDK, IN_PACKAGES, NAMES, RCCL_NAMES, ROCM, children, in_home, in_toolkit,
    version,
};

const NO_ROCM_PACKAGE: &str = "no librccl.so in _rocm_sdk_libraries*/lib or torch/lib of Python's packages";
/// The prefixes of the system's Python: for packages from `pip`, then for packages of the distribution.
const SYSTEM_PREFIXES: [&str; 2] = ["/usr/local", "/usr"];

/// One attempt of the search for NCCL's library: a file to load, or the reason why there is none.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Candidate {
    /// The source of the path, such as the name of an environment variable.
    pub source: &'static str,
    /// The file to load. If it is a name without a slash, the dynamic linker searches for it. If the source provides no file, an
    /// error with the reason.
    pub path: Result<PathBuf, &'static str>,
}

/// Reads an environment variable. An error is the reason why the variable has no value.
type Variable<'a> = &'a dyn Fn(&str) -> Result<PathBuf, &'static str>;

/// A place of the search: its name, and the function that returns its files, at least one.
type Place = (&'static str, fn(Variable) -> Result<Vec<PathBuf>, &'static str>);

/// All places, in order.
///
/// The places of NCCL precede the places of RCCL: if both are installed, this crate prefers NCCL.
const PLACES: [Place; 20] = [
    // Always a file: the dynamic linker would search for a bare name.
    (PATH_VARIABLE, |variable| Ok(vec![Path::new(".").join(variable(PATH_VARIABLE)?)])),
    ("dynamic linker", |_| Ok(NAMES.map(PathBuf::from).into())),
    ("PYTHONPATH", |variable| {
        let list = variable("PYTHONPATH")?;
        let files: Vec<_> = absolute(&list).map(|packages| packages.join(IN_PACKAGES)).collect();
        if files.is_empty() { Err("has no absolute directory") } else { Ok(files) }
    }),
    ("VIRTUAL_ENV", |variable| Ok(python_packages(&variable("VIRTUAL_ENV")?))),
    ("python3 on PATH", |variable| Ok(python_packages(&python_prefix(&variable("PATH")?)?))),
    ("CONDA_PREFIX", |variable| {
        let prefix = variable("CONDA_PREFIX")?;
        Ok([python_packages(&prefix), in_directory(&prefix.join("lib"), NAMES)].concat())
    }),
    ("user's Python packages", |variable| Ok(python_packages(&user_base(variable)?))),
    ("system's Python packages", |_| {
        Ok(SYSTEM_PREFIXES.map(|prefix| python_packages(Path::new(prefix))).concat())
    }),
    ("NCCL_HOME", |variable| Ok(in_directories(&in_home(&variable("NCCL_HOME")?)))),
    ("NCCL_ROOT", |variable| Ok(in_directories(&in_home(&variable("NCCL_ROOT")?)))),
    ("NCCL_ROOT_DIR", |variable| Ok(in_directories(&in_home(&variable("NCCL_ROOT_DIR")?)))),
    ("CUDA_HOME", |variable| Ok(in_directories(&in_toolkit(&variable("CUDA_HOME")?, ARCH)))),
    ("CUDA_PATH", |variable| Ok(in_directories(&in_toolkit(&variable("CUDA_PATH")?, ARCH)))),
    ("CUDA's default directory", |_| Ok(in_directories(&in_toolkit(Path::new(CUDA), ARCH)))),
    ("NVHPC_ROOT", |variable| Ok(in_directory(&variable("NVHPC_ROOT")?.join(IN_HPC_SDK), NAMES))),
    ("HPC SDK's default directory", |_| Ok(in_hpc_sdk(Path::new(HPC_SDK)))),
    ("dynamic linker", |_| Ok(RCCL_NAMES.map(PathBuf::from).into())),
    ("ROCm's Python packages", rocm_packages),
    ("ROCM_PATH", |variable| Ok(in_directory(&variable("ROCM_PATH")?.join("lib"), RCCL_NAMES))),
    ("ROCm's default directory", |_| Ok(in_directory(&Path::new(ROCM).join("lib"), RCCL_NAMES))),
];

/// Returns the files to try when searching for NCCL's library, in order. Each place that is searched provides at least one file,
/// or the reason why it has none. `variable` returns the value of an environment variable, or the reason why the variable has no
/// value.
///
/// If `LIBNCCL_PATH` is set, its file is the only candidate: falling back to another file would hide a mistake.
///
/// The places are examined lazily, as most programs need only the first.
pub fn candidates(
    variable: impl Fn(&str) -> Result<PathBuf, &'static str>,
) -> impl Iterator<Item = Candidate> {
    let places = if variable(PATH_VARIABLE).is_ok() { &PLACES[..1] } else { &PLACES[..] };
    places.iter().flat_map(move |(source, files)| {
        let paths = match files(&variable) {
            Ok(files) => files.into_iter().map(Ok).collect(),
            Err(problem) => vec![Err(problem)],
        };
        paths.into_iter().map(|path| Candidate { source, path })
    })
}

/// Returns the first of the files that exists in `directory`. If none does, returns a file with a full version in its name.
/// Without such a file, returns the first of the files, for the error.
fn in_directory(directory: &Path, names: [&str; 2]) -> Vec<PathBuf> {
    let files = names.map(|name| directory.join(name));
    let existing = files.iter().find(|file| file.exists()).cloned();
    vec![existing.or_else(|| with_full_version(&files[0])).unwrap_or_else(|| files[0].clone())]
}

fn in_directories(directories: &[PathBuf]) -> Vec<PathBuf> {
    directories.iter().flat_map(|lib| in_directory(lib, NAMES)).collect()
}

/// Returns the newest file whose name is `file`'s name with a longer version: `libnccl.so.2.16.2` for `libnccl.so.2`.
pub(super) fn with_full_version(file: &Path) -> Option<PathBuf> {
    let start = format!("{}.", file.file_name()?.to_str()?);
    let newest = children(file.parent()?).max_by_key(|found| version(found, &start))?;
    version(&newest, &start).map(|_| newest)
}

/// Returns the libraries of the HPC SDK's versions, the newest first; if there are none, the pattern of their paths.
fn in_hpc_sdk(directory: &Path) -> Vec<PathBuf> {
    let mut files = in_directories(&places::in_hpc_sdk(directory, ARCH));
    files.retain(|file| file.exists());
    if files.is_empty() {
        let versions = places::hpc_sdk_releases(directory, ARCH);
        files.push(versions.join("*").join(IN_HPC_SDK).join(NAMES[0]));
    }
    files
}

/// Returns the absolute directories of a list: the current directory must not decide which library is loaded.
fn absolute(list: &Path) -> impl Iterator<Item = PathBuf> {
    std::env::split_paths(list).filter(|directory| directory.is_absolute())
}

/// Returns the libraries that `pip install nvidia-nccl-cu12` (or `-cu13`) has installed below a prefix of Python. If there
/// are none, returns the pattern of their paths, so that an error can name it.
fn python_packages(prefix: &Path) -> Vec<PathBuf> {
    let files = package_directories(prefix).into_iter().map(|packages| packages.join(IN_PACKAGES));
    let mut files: Vec<_> = files.filter(|file| file.exists()).collect();
    if files.is_empty() {
        files.push(prefix.join("lib/python3*/*-packages").join(IN_PACKAGES));
    }
    files
}

/// Returns the package directories below a prefix of Python, whether they exist or not. Debian's Python uses `dist-packages`.
fn package_directories(prefix: &Path) -> Vec<PathBuf> {
    let versions = children(&prefix.join("lib")).filter(|version| is_named(version, "python3"));
    let mut directories: Vec<_> = versions
        .flat_map(|version| ["site-packages", "dist-packages"].map(|packages| version.join(packages)))
        .collect();
    directories.sort();
    directories
}

fn is_named(path: &Path, start: &str) -> bool {
    path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(start))
}

/// Returns RCCL in Python packages, in all directories that are searched for NCCL. The packages are AMD's `rocm-sdk-libraries`,
/// whose directory name may contain a GPU family, and `torch`, which has a copy.
fn rocm_packages(variable: Variable) -> Result<Vec<PathBuf>, &'static str> {
    let active = [
        variable("VIRTUAL_ENV"),
        variable("PATH").and_then(|path| python_prefix(&path)),
        variable("CONDA_PREFIX"),
        user_base(variable),
    ];
    let prefixes = active.into_iter().flatten().chain(SYSTEM_PREFIXES.map(PathBuf::from));
    let given = variable("PYTHONPATH").unwrap_or_default();
    let directories = absolute(&given).chain(prefixes.flat_map(|prefix| package_directories(&prefix)));
    let libs = directories.flat_map(|directory| {
        let packages = children(&directory).filter(|package| is_named(package, "_rocm_sdk_libraries"));
        let mut libs: Vec<_> = packages.map(|package| package.join("lib")).collect();
        libs.sort();
        libs.push(directory.join("torch/lib"));
        libs
    });
    let files = libs.flat_map(|lib| in_directory(&lib, RCCL_NAMES));
    let files: Vec<_> = files.filter(|file| file.exists()).collect();
    if files.is_empty() { Err(NO_ROCM_PACKAGE) } else { Ok(files) }
}

/// Returns the prefix of the Python that a shell would start, as Python determines it: a virtual environment has a
/// `pyvenv.cfg` next to `bin`, and its `bin/python3` is a link to the Python that created it.
///
/// The prefix is useless if `python3` is a wrapper script (pyenv's shims).
fn python_prefix(path: &Path) -> Result<PathBuf, &'static str> {
    let prefix = absolute(path).find_map(|directory| {
        let prefix = directory.parent()?;
        if prefix.join("pyvenv.cfg").is_file() {
            return Some(prefix.into());
        }
        let python = std::fs::canonicalize(directory.join("python3")).ok()?;
        let is_executable = |file: &Metadata| file.is_file() && file.permissions().mode() & 0o111 != 0;
        python.metadata().ok().filter(is_executable)?;
        Some(python.parent()?.parent()?.to_path_buf())
    });
    let prefix = prefix.ok_or("no python3 there")?;
    if SYSTEM_PREFIXES.iter().any(|system| prefix == Path::new(system)) {
        // A user's packages come first there, as in Python.
        return Err("is the system's Python, whose packages come later");
    }
    Ok(prefix)
}

/// Returns the prefix of `pip install --user`.
fn user_base(variable: Variable) -> Result<PathBuf, &'static str> {
    match (variable("PYTHONUSERBASE"), variable("HOME")) {
        (Ok(base), _) => Ok(base),
        (_, Ok(home)) => Ok(home.join(".local")),
        (Err("not set"), Err("not set")) => Err("neither PYTHONUSERBASE nor HOME is set"),
        (Err("not set"), Err(reason)) | (Err(reason), _) => Err(reason),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::{IN_HPC_SDK, in_hpc_sdk};

    #[test]
    fn versions_of_the_hpc_sdk_are_those_with_nccl_the_newest_first() {
        let directory = tempfile::tempdir().unwrap();
        let versions = directory.path().join(format!("Linux_{}", std::env::consts::ARCH));
        let file = |version: &str| versions.join(version).join(IN_HPC_SDK).join("libnccl.so.2");
        assert_eq!(in_hpc_sdk(directory.path()), [file("*")]);
        fs::create_dir_all(versions.join("26.1")).unwrap();
        let expected = ["24.11", "24.9", "9.1", "modulefiles"].map(file);
        for file in &expected {
            fs::create_dir_all(file.parent().unwrap()).unwrap();
            fs::write(file, "").unwrap();
        }
        assert_eq!(in_hpc_sdk(directory.path()), expected);
    }
}
