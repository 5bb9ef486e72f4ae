//! The places where a libnccl may be, in search order.

use std::path::{Path, PathBuf};

use super::PATH_VARIABLE;
use crate::places::{
    self, CUDA, HPC_SDK, IN_HPC_SDK, IN_PACKAGES, NAMES, RCCL_NAMES, ROCM, children, version,
};

const NO_ROCM_PACKAGE: &str = "no librccl.so in _rocm_sdk_libraries*/lib or torch/lib of Python's packages";
/// The prefixes of the system's Python: what `pip` installs, then what the distribution does.
const SYSTEM_PREFIXES: [&str; 2] = ["/usr/local", "/usr"];

/// A candidate for the library.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Candidate {
    /// The place in the search, such as an environment variable.
    pub source: &'static str,
    /// The file, or a bare name for the dynamic linker to find, or the reason why the place names none.
    pub path: Result<PathBuf, &'static str>,
}

/// Reads a variable of the environment; an error gives the reason why it has no value.
type Variable<'a> = &'a dyn Fn(&str) -> Result<PathBuf, &'static str>;

/// A place of the search: its name, and the function that returns its files, at least one.
type Place = (&'static str, fn(Variable) -> Result<Vec<PathBuf>, &'static str>);

/// All places, in order.
///
/// NCCL precedes RCCL in every place: if both are installed, this crate prefers the one that it is named after.
const PLACES: [Place; 20] = [
    // A file even if it is a bare name, for which the dynamic linker would search.
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
    ("NCCL_HOME", |variable| Ok(in_home(&variable("NCCL_HOME")?))),
    ("NCCL_ROOT", |variable| Ok(in_home(&variable("NCCL_ROOT")?))),
    ("NCCL_ROOT_DIR", |variable| Ok(in_home(&variable("NCCL_ROOT_DIR")?))),
    ("CUDA_HOME", |variable| Ok(in_toolkit(&variable("CUDA_HOME")?))),
    ("CUDA_PATH", |variable| Ok(in_toolkit(&variable("CUDA_PATH")?))),
    ("CUDA's default directory", |_| Ok(in_toolkit(Path::new(CUDA)))),
    ("NVHPC_ROOT", |variable| Ok(in_directory(&variable("NVHPC_ROOT")?.join(IN_HPC_SDK), NAMES))),
    ("HPC SDK's default directory", |_| Ok(in_hpc_sdk(Path::new(HPC_SDK)))),
    ("dynamic linker", |_| Ok(RCCL_NAMES.map(PathBuf::from).into())),
    ("ROCm's Python packages", rocm_packages),
    ("ROCM_PATH", |variable| Ok(in_directory(&variable("ROCM_PATH")?.join("lib"), RCCL_NAMES))),
    ("ROCm's default directory", |_| Ok(in_directory(&Path::new(ROCM).join("lib"), RCCL_NAMES))),
];

/// Returns the candidates, at least one for each place. `variable` reads the environment; its errors give the reason why a
/// variable has no value.
///
/// If the user names a library, it is the only candidate: falling back to another would hide a mistake.
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

/// Returns the first of the files that exists in `directory`, or a file with a full version in its name, or the first of
/// the files, so that an error can name it.
fn in_directory(directory: &Path, names: [&str; 2]) -> Vec<PathBuf> {
    let files = names.map(|name| directory.join(name));
    let existing = files.iter().find(|file| file.exists()).cloned();
    vec![existing.or_else(|| with_full_version(&files[0])).unwrap_or_else(|| files[0].clone())]
}

/// Returns the files in the directories of a separate installation of NCCL.
fn in_home(home: &Path) -> Vec<PathBuf> {
    places::in_home(home).iter().flat_map(|lib| in_directory(lib, NAMES)).collect()
}

/// Returns the files in the directories of a CUDA toolkit.
fn in_toolkit(home: &Path) -> Vec<PathBuf> {
    let directories = places::in_toolkit(home, std::env::consts::ARCH);
    directories.iter().flat_map(|lib| in_directory(lib, NAMES)).collect()
}

/// Returns the newest file whose name is that of `file` with more of a version: `libnccl.so.2.16.2` for `libnccl.so.2`.
pub(super) fn with_full_version(file: &Path) -> Option<PathBuf> {
    let start = format!("{}.", file.file_name()?.to_str()?);
    let newest = children(file.parent()?).max_by_key(|found| version(found, &start))?;
    version(&newest, &start).map(|_| newest)
}

/// Returns the libraries of the HPC SDK's versions, the newest first; if there are none, the pattern of their paths.
fn in_hpc_sdk(directory: &Path) -> Vec<PathBuf> {
    let found = places::in_hpc_sdk(directory, std::env::consts::ARCH);
    let mut files: Vec<_> =
        found.iter().flat_map(|lib| in_directory(lib, NAMES)).filter(|file| file.exists()).collect();
    if files.is_empty() {
        files.push(
            places::hpc_sdk_releases(directory, std::env::consts::ARCH)
                .join("*")
                .join(IN_HPC_SDK)
                .join(NAMES[0]),
        );
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

/// Returns the directories of packages below a prefix of Python, which need not exist. Debian's Python uses
/// `dist-packages`.
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

/// Returns RCCL in packages of Python, in all directories that are searched for NCCL: AMD's `rocm-sdk-libraries`, whose
/// directory may have the name of a GPU family in it, and `torch`, which has a copy.
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
    let files = libs.flat_map(|lib| in_directory(&lib, RCCL_NAMES)).filter(|file| file.exists());
    let files: Vec<_> = files.collect();
    if files.is_empty() { Err(NO_ROCM_PACKAGE) } else { Ok(files) }
}

/// Returns the prefix of the Python that a shell would start, as Python determines it: a virtual environment has a
/// `pyvenv.cfg` beside `bin`, where `python3` is a link to the Python that created it.
///
/// The prefix is useless if `python3` is a wrapper script (pyenv's shims).
fn python_prefix(path: &Path) -> Result<PathBuf, &'static str> {
    let prefix = absolute(path).find_map(|directory| {
        let prefix = directory.parent()?;
        if prefix.join("pyvenv.cfg").is_file() {
            return Some(prefix.into());
        }
        let python = std::fs::canonicalize(directory.join("python3")).ok()?;
        if !is_executable(&python) {
            return None;
        }
        Some(python.parent()?.parent()?.to_path_buf())
    });
    let prefix = prefix.ok_or("no python3 there")?;
    if SYSTEM_PREFIXES.iter().any(|system| prefix == Path::new(system)) {
        // A user's packages come first there, as in Python.
        return Err("is the system's Python, whose packages come later");
    }
    Ok(prefix)
}

/// Returns whether a shell would start the file.
#[cfg(unix)]
fn is_executable(file: &Path) -> bool {
    use std::os::unix::fs::PermissionsExt;
    file.metadata().is_ok_and(|metadata| metadata.is_file() && metadata.permissions().mode() & 0o111 != 0)
}

#[cfg(not(unix))]
fn is_executable(file: &Path) -> bool {
    file.is_file()
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
    use std::os::unix::fs::{PermissionsExt, symlink};
    use std::path::{Path, PathBuf};

    use super::{
        Candidate, IN_HPC_SDK, IN_PACKAGES, NO_ROCM_PACKAGE, candidates, in_hpc_sdk, python_packages,
    };

    const LINKER: &str = "dynamic linker";
    const ON_PATH: &str = "python3 on PATH";
    const USER: &str = "user's Python packages";
    const SYSTEM: &str = "system's Python packages";
    const ROCM_PACKAGES: &str = "ROCm's Python packages";
    const SITE: &str = "lib/python3.12/site-packages/nvidia/nccl/lib/libnccl.so.2";

    fn touch(file: &Path) {
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        fs::write(file, "").unwrap();
    }

    /// Creates an executable file.
    fn touch_program(file: &Path) {
        touch(file);
        fs::set_permissions(file, fs::Permissions::from_mode(0o755)).unwrap();
    }

    /// Creates a virtual environment with the package, as `python3 -m venv` does: `python3` is a link out of it.
    fn virtual_environment(prefix: &Path, python: &Path) {
        touch(&prefix.join("pyvenv.cfg"));
        touch(&prefix.join(SITE));
        fs::create_dir_all(prefix.join("bin")).unwrap();
        symlink(python, prefix.join("bin/python3")).unwrap();
    }

    fn search(environment: &[(&str, &Path)]) -> Vec<Candidate> {
        let value =
            |name: &str| environment.iter().find(|(n, _)| *n == name).map(|(_, value)| (*value).into());
        candidates(|name: &str| value(name).ok_or("not set")).collect()
    }

    /// Returns what a place names: files, or the reason why none.
    fn named(environment: &[(&str, &Path)], place: &str) -> Vec<Result<PathBuf, &'static str>> {
        let found = search(environment).into_iter().filter(|candidate| candidate.source == place);
        found.map(|candidate| candidate.path).collect()
    }

    #[test]
    fn places_of_an_empty_environment_are_in_the_documented_order_with_their_reasons() {
        let found = search(&[]);
        let mut places: Vec<_> = found.iter().map(|place| (place.source, place.path.clone().err())).collect();
        places.dedup();
        let unset = |place| (place, Some("not set"));
        #[rustfmt::skip]
        let expected = [
            unset("LIBNCCL_PATH"), (LINKER, None), unset("PYTHONPATH"), unset("VIRTUAL_ENV"), unset(ON_PATH),
            unset("CONDA_PREFIX"), (USER, Some("neither PYTHONUSERBASE nor HOME is set")), (SYSTEM, None),
            unset("NCCL_HOME"), unset("NCCL_ROOT"), unset("NCCL_ROOT_DIR"), unset("CUDA_HOME"), unset("CUDA_PATH"),
            ("CUDA's default directory", None), unset("NVHPC_ROOT"), ("HPC SDK's default directory", None), (LINKER, None),
            (ROCM_PACKAGES, Some(NO_ROCM_PACKAGE)), unset("ROCM_PATH"), ("ROCm's default directory", None),
        ];
        assert_eq!(places, expected);
    }

    /// The link of `bin/python3` leads out of the environment.
    #[test]
    fn virtual_environment_on_path_is_found_without_virtual_env() {
        let directory = tempfile::tempdir().unwrap();
        let (environment, python) = (directory.path().join("venv"), directory.path().join("python"));
        touch_program(&python.join("bin/python3"));
        touch(&python.join(SITE));
        virtual_environment(&environment, &python.join("bin/python3"));
        let path = std::env::join_paths([environment.join("bin"), python.join("bin")]).unwrap();
        let path = Path::new(&path);
        assert_eq!(named(&[("PATH", path)], ON_PATH), [Ok(environment.join(SITE))]);
        // An image may have the packages alone, without the Python that installed them.
        fs::remove_dir_all(&python).unwrap();
        assert_eq!(named(&[("PATH", path)], ON_PATH), [Ok(environment.join(SITE))]);
    }

    #[test]
    fn python_on_path_outside_of_an_environment_is_followed_to_its_prefix() {
        let directory = tempfile::tempdir().unwrap();
        let root = fs::canonicalize(directory.path()).unwrap();
        touch_program(&root.join("python/bin/python3.12"));
        touch(&root.join("python").join(SITE));
        fs::create_dir_all(root.join("links/bin")).unwrap();
        symlink(root.join("python/bin/python3.12"), root.join("links/bin/python3")).unwrap();
        let path = std::env::join_paths([root.join("empty"), root.join("links/bin")]).unwrap();
        assert_eq!(named(&[("PATH", Path::new(&path))], ON_PATH), [Ok(root.join("python").join(SITE))]);
    }

    #[test]
    fn relative_directory_on_path_does_not_count() {
        let directory = tempfile::tempdir().unwrap();
        let environment = fs::canonicalize(directory.path()).unwrap();
        virtual_environment(&environment, Path::new("/usr/bin/python3"));
        let depth = std::env::current_dir().unwrap().ancestors().count() - 1;
        let relative =
            Path::new(&"../".repeat(depth)).join(environment.strip_prefix("/").unwrap()).join("bin");
        assert!(relative.is_relative() && relative.is_dir());
        assert_eq!(named(&[("PATH", &relative)], ON_PATH), [Err("no python3 there")]);
        assert_eq!(named(&[("PATH", &environment.join("bin"))], ON_PATH), [Ok(environment.join(SITE))]);
    }

    #[test]
    fn python3_that_a_shell_would_not_start_does_not_end_the_search() {
        let directory = tempfile::tempdir().unwrap();
        let root = fs::canonicalize(directory.path()).unwrap();
        fs::create_dir_all(root.join("directory/bin/python3")).unwrap();
        touch(&root.join("text/bin/python3"));
        touch(&root.join("text").join(SITE));
        touch_program(&root.join("program/bin/python3"));
        touch(&root.join("program").join(SITE));
        let path = ["", "directory/bin", "text/bin", "program/bin", ""];
        let path = path.map(|entry| if entry.is_empty() { PathBuf::new() } else { root.join(entry) });
        let path = std::env::join_paths(path).unwrap();
        assert_eq!(named(&[("PATH", Path::new(&path))], ON_PATH), [Ok(root.join("program").join(SITE))]);
        assert_eq!(named(&[("PATH", Path::new(":"))], ON_PATH), [Err("no python3 there")]);
    }

    #[test]
    fn ignored_environment_is_the_reason_of_every_place_that_needs_it() {
        let reason = "ignored";
        let found: Vec<_> =
            candidates(|name: &str| Err(if name == "HOME" { "not set" } else { reason })).collect();
        let reasons: Vec<_> = found.iter().filter_map(|candidate| candidate.path.clone().err()).collect();
        assert_eq!(reasons, [&[reason; 12][..], &[NO_ROCM_PACKAGE, reason]].concat());
    }

    /// `pip install --target` puts packages there.
    #[test]
    fn pythonpath_gives_the_package_of_each_absolute_directory() {
        let given = [("PYTHONPATH", Path::new("relative:/a::/b:."))];
        let expected = ["/a", "/b"].map(|packages| Ok(Path::new(packages).join(IN_PACKAGES)));
        assert_eq!(named(&given, "PYTHONPATH"), expected);
        let relative = [("PYTHONPATH", Path::new("packages:."))];
        assert_eq!(named(&relative, "PYTHONPATH"), [Err("has no absolute directory")]);
        assert_eq!(named(&relative, ROCM_PACKAGES), [Err(NO_ROCM_PACKAGE)]);
    }

    #[test]
    fn rccl_is_found_in_the_packages_of_every_python() {
        let directory = tempfile::tempdir().unwrap();
        let root = directory.path();
        let expected = [
            ("PYTHONPATH", "target", "target/_rocm_sdk_libraries/lib/librccl.so.1"),
            ("PYTHONPATH", "target", "target/_rocm_sdk_libraries_gfx94X_dcgpu/lib/librccl.so.1.0"),
            ("PYTHONPATH", "target", "target/torch/lib/librccl.so"),
            ("VIRTUAL_ENV", "a", "a/lib/python3.12/site-packages/torch/lib/librccl.so"),
            ("PATH", "b/bin", "b/lib/python3.12/site-packages/_rocm_sdk_libraries/lib/librccl.so.1"),
            ("CONDA_PREFIX", "c", "c/lib/python3.12/site-packages/torch/lib/librccl.so"),
            ("PYTHONUSERBASE", "d", "d/lib/python3/dist-packages/torch/lib/librccl.so"),
        ];
        expected.iter().for_each(|(_, _, file)| touch(&root.join(file)));
        touch(&root.join("b/pyvenv.cfg"));
        // RCCL is not there.
        touch(&root.join("target/_rocm_sdk_core/lib/librccl.so.1"));
        touch(&root.join("target/_rocm_sdk_libraries_gfx110X/lib/libamdhip64.so"));
        for variable in ["PYTHONPATH", "VIRTUAL_ENV", "PATH", "CONDA_PREFIX", "PYTHONUSERBASE"] {
            let own: Vec<_> = expected.iter().filter(|(name, ..)| *name == variable).collect();
            let files: Vec<_> = own.iter().map(|(.., file)| Ok(root.join(file))).collect();
            assert_eq!(named(&[(variable, &root.join(own[0].1))], ROCM_PACKAGES), files, "{variable}");
        }
    }

    #[test]
    fn releases_of_the_hpc_sdk_are_those_with_nccl_the_newest_first() {
        let directory = tempfile::tempdir().unwrap();
        let releases = directory.path().join(format!("Linux_{}", std::env::consts::ARCH));
        let file = |release: &str| releases.join(release).join(IN_HPC_SDK).join("libnccl.so.2");
        assert_eq!(in_hpc_sdk(directory.path()), [file("*")]);
        fs::create_dir_all(releases.join("26.1")).unwrap();
        ["24.9", "24.11", "9.1", "modulefiles"].iter().for_each(|release| touch(&file(release)));
        let expected = ["24.11", "24.9", "9.1", "modulefiles"].map(file);
        assert_eq!(in_hpc_sdk(directory.path()), expected);
    }

    /// A package may lack the links that the dynamic linker looks for.
    #[test]
    fn home_with_full_versions_alone_gives_the_newest() {
        let directory = tempfile::tempdir().unwrap();
        let (home, lib) = (directory.path(), directory.path().join("lib"));
        let found = || named(&[("NCCL_HOME", home)], "NCCL_HOME")[0].clone().unwrap();
        for other in
            ["libnccl.so.2.bak", "libnccl.so.2.", "libnccl.so.2.x.1", "libnccl_static.a", "libnccl.so.3"]
        {
            touch(&lib.join(other));
            assert_eq!(found(), lib.join("libnccl.so.2"), "{other}");
        }
        for newer in
            ["libnccl.so.2.9.6", "libnccl.so.2.16.2", "libnccl.so.2.16.10", "libnccl.so", "libnccl.so.2"]
        {
            touch(&lib.join(newer));
            assert_eq!(found(), lib.join(newer));
        }
    }

    #[test]
    fn toolkit_has_libraries_for_the_architecture_in_targets() {
        let directory = tempfile::tempdir().unwrap();
        let target = if cfg!(target_arch = "aarch64") { "sbsa-linux" } else { "x86_64-linux" };
        let file = directory.path().join("targets").join(target).join("lib/libnccl.so.2");
        touch(&file);
        // Libraries for another machine.
        touch(&directory.path().join("targets/other-linux/lib/libnccl.so.2"));
        for variable in ["CUDA_HOME", "CUDA_PATH"] {
            let found: Vec<_> = named(&[(variable, directory.path())], variable);
            assert_eq!(found[0], Ok(file.clone()), "{variable}");
            assert_eq!(found.last(), Some(&Ok(directory.path().join("lib64/libnccl.so.2"))), "{variable}");
            let existing = found.iter().flatten().filter(|file| file.exists());
            assert_eq!(existing.count(), 1, "{found:?}");
        }
    }

    #[test]
    fn system_python_on_path_leaves_its_packages_to_a_later_place() {
        let directory = tempfile::tempdir().unwrap();
        symlink("/usr/bin/env", directory.path().join("python3")).unwrap();
        let reason = "is the system's Python, whose packages come later";
        assert_eq!(named(&[("PATH", directory.path())], ON_PATH), [Err(reason)]);
    }

    #[test]
    fn user_packages_are_those_of_pythonuserbase_before_those_of_home() {
        let directory = tempfile::tempdir().unwrap();
        let (base, home) = (directory.path().join("base"), directory.path().join("home"));
        touch(&base.join(SITE));
        touch(&home.join(".local").join(SITE));
        let both = [("HOME", &*home), ("PYTHONUSERBASE", &*base)];
        assert_eq!(named(&both, USER), [Ok(base.join(SITE))]);
    }

    #[test]
    fn system_packages_are_those_below_usr_local_then_usr() {
        let found = named(&[], SYSTEM);
        let is_in_usr =
            |candidate: &Result<PathBuf, _>| candidate.as_ref().is_ok_and(|file| file.starts_with("/usr"));
        assert!(found.len() >= 2 && found.iter().all(is_in_usr), "{found:?}");
        assert!(found[0].as_ref().is_ok_and(|file| file.starts_with("/usr/local/lib")), "{found:?}");
    }

    #[test]
    fn python_packages_include_those_of_debian() {
        let directory = tempfile::tempdir().unwrap();
        let lib = directory.path().join("lib");
        let files = ["python3.11/dist-packages", "python3/dist-packages", "python3.11/site-packages"]
            .map(|packages| lib.join(packages).join(IN_PACKAGES));
        files.iter().for_each(|file| touch(file));
        touch(&lib.join("python2.7/dist-packages").join(IN_PACKAGES));
        let mut expected = files.to_vec();
        expected.sort();
        assert_eq!(python_packages(directory.path()), expected);
    }
}
