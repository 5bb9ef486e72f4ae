//! The places of the search, in order, and the files that each yields.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use libnccl::internal::interposer::{Candidate, candidates};
use libnccl::internal::places::IN_PACKAGES;

const LINKER: &str = "dynamic linker";
const ON_PATH: &str = "python3 on PATH";
const USER: &str = "user's Python packages";
const SYSTEM: &str = "system's Python packages";
const ROCM_PACKAGES: &str = "ROCm's Python packages";
const NO_ROCM_PACKAGE: &str = "no librccl.so in _rocm_sdk_libraries*/lib or torch/lib of Python's packages";
const SITE: &str = "lib/python3.12/site-packages/nvidia/nccl/lib/libnccl.so.2";

fn touch(file: &Path) {
    fs::create_dir_all(file.parent().unwrap()).unwrap();
    fs::write(file, "").unwrap();
}

fn search(environment: &[(&str, &Path)]) -> Vec<Candidate> {
    let value = |name: &str| environment.iter().find(|(n, _)| *n == name).map(|(_, value)| (*value).into());
    candidates(|name: &str| value(name).ok_or("not set")).collect()
}

/// Returns the files of a place, or the reason why there are none.
fn named(environment: &[(&str, &Path)], place: &str) -> Vec<Result<PathBuf, &'static str>> {
    let found = search(environment).into_iter().filter(|candidate| candidate.source == place);
    found.map(|candidate| candidate.path).collect()
}

/// A directory with files and links.
struct Tree {
    _directory: tempfile::TempDir,
    root: PathBuf,
}

impl Tree {
    /// Creates files: executable ones end with `*`, and links are written `link -> target`.
    fn new(files: &[&str]) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let root = fs::canonicalize(directory.path()).unwrap();
        for file in files {
            if let Some((link, target)) = file.split_once(" -> ") {
                fs::create_dir_all(root.join(link).parent().unwrap()).unwrap();
                symlink(root.join(target), root.join(link)).unwrap();
                continue;
            }
            let path = root.join(file.trim_end_matches('*'));
            touch(&path);
            if file.ends_with('*') {
                fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
            }
        }
        Self { _directory: directory, root }
    }

    /// Returns these directories as a list such as `PATH`; an empty name is an empty entry.
    fn list(&self, directories: &[&str]) -> PathBuf {
        let absolute = |name: &&str| if name.is_empty() { PathBuf::new() } else { self.root.join(name) };
        std::env::join_paths(directories.iter().map(absolute)).unwrap().into()
    }

    fn assert_named(&self, variable: &str, value: &Path, place: &str, expected: &[&str]) {
        let expected: Vec<_> = expected.iter().map(|file| Ok(self.root.join(file))).collect();
        assert_eq!(named(&[(variable, value)], place), expected, "{variable}={}", value.display());
    }
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

#[test]
fn packages_of_the_first_python_on_path_are_found() {
    const ENVIRONMENT: &str = "venv/lib/python3.12/site-packages/nvidia/nccl/lib/libnccl.so.2";
    const PYTHON: &str = "python/lib/python3.12/site-packages/nvidia/nccl/lib/libnccl.so.2";
    // `python3 -m venv` makes `python3` a link out of the environment.
    let venv = [
        "venv/pyvenv.cfg",
        ENVIRONMENT,
        "python/bin/python3*",
        PYTHON,
        "venv/bin/python3 -> python/bin/python3",
    ];
    let tree = Tree::new(&venv);
    tree.assert_named("PATH", &tree.list(&["venv/bin", "python/bin"]), ON_PATH, &[ENVIRONMENT]);
    // An image may have the packages alone, without the Python that installed them.
    fs::remove_dir_all(tree.root.join("python")).unwrap();
    tree.assert_named("PATH", &tree.list(&["venv/bin", "python/bin"]), ON_PATH, &[ENVIRONMENT]);

    // Outside of an environment, a link is followed to its prefix.
    let tree = Tree::new(&["python/bin/python3.12*", PYTHON, "links/bin/python3 -> python/bin/python3.12"]);
    tree.assert_named("PATH", &tree.list(&["empty", "links/bin"]), ON_PATH, &[PYTHON]);

    // A shell would start neither a directory nor a text.
    let tree = Tree::new(&["directory/bin/python3/file", "text/bin/python3", "python/bin/python3*", PYTHON]);
    let path = tree.list(&["", "directory/bin", "text/bin", "python/bin", ""]);
    tree.assert_named("PATH", &path, ON_PATH, &[PYTHON]);
    // A relative directory does not count.
    let depth = std::env::current_dir().unwrap().ancestors().count() - 1;
    let relative =
        Path::new(&"../".repeat(depth)).join(tree.root.strip_prefix("/").unwrap()).join("python/bin");
    assert!(relative.is_relative() && relative.is_dir());
    for path in [&*relative, Path::new(":")] {
        assert_eq!(named(&[("PATH", path)], ON_PATH), [Err("no python3 there")]);
    }
    let tree = Tree::new(&["bin/python3 -> /usr/bin/env"]);
    let reason = "is the system's Python, whose packages come later";
    assert_eq!(named(&[("PATH", &tree.root.join("bin"))], ON_PATH), [Err(reason)]);
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
    let tree = Tree::new(&[
        "target/_rocm_sdk_libraries/lib/librccl.so.1",
        "target/_rocm_sdk_libraries_gfx94X_dcgpu/lib/librccl.so.1.0",
        "target/torch/lib/librccl.so",
        // RCCL is not there.
        "target/_rocm_sdk_core/lib/librccl.so.1",
        "target/_rocm_sdk_libraries_gfx110X/lib/libamdhip64.so",
        "python/pyvenv.cfg",
        "python/lib/python3/dist-packages/torch/lib/librccl.so",
    ]);
    let expected = [
        "target/_rocm_sdk_libraries/lib/librccl.so.1",
        "target/_rocm_sdk_libraries_gfx94X_dcgpu/lib/librccl.so.1.0",
        "target/torch/lib/librccl.so",
    ];
    tree.assert_named("PYTHONPATH", &tree.root.join("target"), ROCM_PACKAGES, &expected);
    let expected = ["python/lib/python3/dist-packages/torch/lib/librccl.so"];
    for variable in ["VIRTUAL_ENV", "CONDA_PREFIX", "PYTHONUSERBASE"] {
        tree.assert_named(variable, &tree.root.join("python"), ROCM_PACKAGES, &expected);
    }
    tree.assert_named("PATH", &tree.root.join("python/bin"), ROCM_PACKAGES, &expected);
}

/// A package may lack the links that the dynamic linker looks for.
#[test]
fn directory_with_only_full_versions_gives_the_newest() {
    let directory = tempfile::tempdir().unwrap();
    let (home, lib) = (directory.path(), directory.path().join("lib"));
    let found = || named(&[("NCCL_HOME", home)], "NCCL_HOME")[0].clone().unwrap();
    for other in ["libnccl.so.2.bak", "libnccl.so.2.", "libnccl.so.2.x.1", "libnccl_static.a", "libnccl.so.3"]
    {
        touch(&lib.join(other));
        assert_eq!(found(), lib.join("libnccl.so.2"), "{other}");
    }
    for newer in ["libnccl.so.2.9.6", "libnccl.so.2.16.2", "libnccl.so.2.16.10", "libnccl.so", "libnccl.so.2"]
    {
        touch(&lib.join(newer));
        assert_eq!(found(), lib.join(newer));
    }
}

#[test]
fn library_is_found_in_the_directory_of_each_variable() {
    let target = if cfg!(target_arch = "aarch64") { "sbsa-linux" } else { "x86_64-linux" };
    let in_target = format!("targets/{target}/lib/libnccl.so.2");
    for (variable, file) in [
        ("NCCL_HOME", "lib/libnccl.so.2.16.2"),
        ("NCCL_ROOT", "lib64/libnccl.so.2"),
        ("NCCL_ROOT_DIR", "lib/libnccl.so"),
        ("CUDA_HOME", "lib64/libnccl.so.2.16.2"),
        ("CUDA_PATH", &in_target),
        ("NVHPC_ROOT", "comm_libs/nccl/lib/libnccl.so.2"),
        ("CONDA_PREFIX", "lib/libnccl.so.2"),
        ("ROCM_PATH", "lib/librccl.so.1.0.70002"),
    ] {
        // Libraries for another machine are not taken.
        let tree = Tree::new(&[file, "targets/other-linux/lib/libnccl.so.2"]);
        let mut found = named(&[(variable, &tree.root)], variable);
        found.retain(|candidate| candidate.as_ref().is_ok_and(|file| file.exists()));
        assert_eq!(found, [Ok(tree.root.join(file))], "{variable}");
    }
}

#[test]
fn user_packages_prefer_pythonuserbase_over_home_and_include_debians() {
    let tree = Tree::new(&[&format!("base/{SITE}"), &format!("home/.local/{SITE}")]);
    let (base, home) = (tree.root.join("base"), tree.root.join("home"));
    assert_eq!(named(&[("HOME", &home), ("PYTHONUSERBASE", &base)], USER), [Ok(base.join(SITE))]);
    assert_eq!(named(&[("HOME", &home)], USER), [Ok(home.join(".local").join(SITE))]);
    // Debian's packages come first, and those of Python 2 are not searched.
    let files = ["python3/dist-packages", "python3.11/dist-packages", "python3.11/site-packages"]
        .map(|packages| format!("lib/{packages}/{IN_PACKAGES}"));
    let files = files.each_ref().map(String::as_str);
    let older = format!("lib/python2.7/dist-packages/{IN_PACKAGES}");
    let tree = Tree::new(&[&files[..], &[&older]].concat());
    tree.assert_named("PYTHONUSERBASE", &tree.root, USER, &files);
}

#[test]
fn system_packages_are_searched_in_usr_local_then_usr() {
    let found = named(&[], SYSTEM);
    let is_in_usr =
        |candidate: &Result<PathBuf, _>| candidate.as_ref().is_ok_and(|file| file.starts_with("/usr"));
    assert!(found.len() >= 2 && found.iter().all(is_in_usr), "{found:?}");
    assert!(found[0].as_ref().is_ok_and(|file| file.starts_with("/usr/local/lib")), "{found:?}");
}
