//! The places of the search, in order, and the files that each names.

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
    let value = |name: &str| environment.iter().find(|(n, _)| *n == name).map(|(_, value)| (*value).into());
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
    let relative = Path::new(&"../".repeat(depth)).join(environment.strip_prefix("/").unwrap()).join("bin");
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

/// A package may lack the links that the dynamic linker looks for.
#[test]
fn home_with_full_versions_alone_gives_the_newest() {
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
    let expected: Vec<_> = expected.into_iter().map(Ok).collect();
    assert_eq!(named(&[("VIRTUAL_ENV", directory.path())], "VIRTUAL_ENV"), expected);
}
