//! Loading: each kind of bad library file gives an error that names the file and the problem.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;

use libnccl::Nccl;
use libnccl::error::LoadError;
use libnccl::sys::{dynamic::NcclLibrary, ncclResult_t};

use crate::rccl_library;

/// Returns the C library, a shared object without NCCL's functions.
fn c_library() -> PathBuf {
    let maps = fs::read_to_string("/proc/self/maps").unwrap();
    let line = maps.lines().find(|line| line.contains("/libc.so") || line.contains("/libc-"));
    line.and_then(|line| Some(line[line.find('/')?..].into()))
        .expect("this program is linked with the C library")
}

/// Creates files that are not an NCCL, and returns each with its expected error.
fn bad_files(directory: &Path) -> Vec<(PathBuf, &'static str)> {
    let good = fs::read(c_library()).unwrap();
    let changed = |at: usize, byte: u8| {
        let mut bytes = good.clone();
        bytes[at] = byte;
        bytes
    };
    let (foreign, name) = if cfg!(target_arch = "x86_64") {
        (183, "is built for aarch64")
    } else {
        (62, "is built for x86_64")
    };
    let other_order = if cfg!(target_endian = "little") { 2 } else { 1 };
    let truncated = |name, length: usize| (name, good[..length].to_vec(), "is truncated: it has ");
    let files: [(&str, Vec<u8>, &str); 12] = [
        ("empty.so", Vec::new(), "is empty"),
        truncated("header-less-1.so", 63),
        truncated("header-only.so", 64),
        ("text.so", b"INPUT(-lnccl)\n".to_vec(), "is not a shared object (no ELF header)"),
        ("header.so", good[..40].to_vec(), "is truncated: it has 40 bytes"),
        truncated("half.so", good.len() / 2),
        ("class.so", changed(4, 1), "is a 32-bit object; this process is 64-bit"),
        ("order.so", changed(5, other_order), "has the other byte order"),
        ("machine.so", changed(18, foreign), name),
        ("program.so", changed(16, 2), "is an ELF file, but not a shared object"),
        ("headers.so", changed(56, 0), "has no program headers"),
        ("other.so", good.clone(), "is a shared object without NCCL's functions (no ncclGetVersion)"),
    ];
    let mut bad: Vec<(PathBuf, &str)> = files
        .into_iter()
        .map(|(name, bytes, problem)| {
            let path = directory.join(name);
            fs::write(&path, bytes).unwrap();
            (path, problem)
        })
        .collect();
    // A sparse file may have the length that these headers require.
    let sparse = directory.join("sizes.so");
    let mut bytes = good.clone();
    bytes[54..58].fill(0xff);
    fs::write(&sparse, bytes).unwrap();
    File::options().write(true).open(&sparse).unwrap().set_len(1 << 33).unwrap();
    bad.push((sparse, "has program headers of 65535 bytes; expected 56"));
    bad.push((directory.into(), "is a directory; expected the library's file"));
    bad.push((directory.join("absent.so"), "No such file or directory"));
    bad.push(("/dev/null".into(), "is not a regular file"));
    bad
}

/// Runs `Nccl::load`, which searches once per process, in a child with this environment; returns its output.
fn load_with(environment: &[(&str, &Path)]) -> String {
    load_in(Path::new("."), environment)
}

/// Does the same in a child that starts in this directory.
fn load_in(directory: &Path, environment: &[(&str, &Path)]) -> String {
    let mut child = Command::new(std::env::current_exe().unwrap());
    child.args(["--ignored", "--exact", "search::load_in_child_process", "--nocapture"]);
    let variables = "LIBNCCL_PATH LD_LIBRARY_PATH PYTHONPATH VIRTUAL_ENV CONDA_PREFIX NCCL_HOME NCCL_ROOT NCCL_ROOT_DIR \
                     CUDA_HOME CUDA_PATH NVHPC_ROOT PATH PYTHONUSERBASE HOME ROCM_PATH";
    for variable in variables.split(' ') {
        child.env_remove(variable);
    }
    let output = child.current_dir(directory).envs(environment.iter().copied()).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap()
}

/// Writes half of the C library. If the dynamic linker mapped it, the process would die of SIGBUS.
fn write_truncated(file: &Path) {
    let good = fs::read(c_library()).unwrap();
    fs::create_dir_all(file.parent().unwrap()).unwrap();
    fs::write(file, &good[..good.len() / 2]).unwrap();
}

/// The child process of [`load_with`].
#[test]
#[ignore = "the other tests run it, each in a separate process"]
fn load_in_child_process() {
    if let Some(directory) = std::env::var_os("CHANGE_DIRECTORY") {
        std::env::set_current_dir(directory).unwrap();
    }
    if let Some(global) = std::env::var_os("GLOBAL") {
        use libloading::os::unix::{Library, RTLD_GLOBAL, RTLD_LAZY};

        // As a program or another library may have done.
        // SAFETY: made by `rccl_library::build`; never unloaded.
        std::mem::forget(unsafe { Library::open(Some(global), RTLD_LAZY | RTLD_GLOBAL) }.unwrap());
    }
    let loaded = match std::env::var_os("OPENED") {
        // SAFETY: as above.
        Some(file) => unsafe { Nccl::open(file) },
        None => Nccl::load(),
    };
    match loaded {
        Ok(nccl) => println!("loaded {} {:?}", nccl.version(), nccl.backend()),
        Err(error) => println!("error: {error}"),
    }
}

// Regression: cudarc panics when no library is found.
#[test]
fn open_of_bad_file_names_the_problem() {
    let directory = tempfile::tempdir().unwrap();
    for (path, problem) in bad_files(directory.path()) {
        // SAFETY: none of the files has functions of NCCL's names, and none runs code when it is loaded but
        // the C library, which is loaded already.
        let error = unsafe { Nccl::open(&path) }.unwrap_err();
        let LoadError::NotFound { attempts } = &error else { panic!("{error}") };
        assert_eq!((attempts.len(), &attempts[0].path), (1, &path), "{error}");
        assert!(attempts[0].problem.contains(problem), "{error}");
        let text = error.to_string();
        assert!(text.starts_with("no NCCL library could be loaded\n  "), "{text}");
        assert!(text.contains(problem), "no {problem:?} in {text}");
    }
}

// Regression: cudarc panics when no library is found.
#[test]
#[cfg_attr(nccl_linked, ignore = "a linked library is never searched for")]
fn load_with_libnccl_path_tries_no_other_file() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("empty.so");
    fs::write(&path, "").unwrap();
    let printed = load_with(&[("LIBNCCL_PATH", &path)]);
    let expected =
        format!("error: no NCCL library could be loaded\n  {} (LIBNCCL_PATH): is empty\n", path.display());
    assert!(printed.contains(&expected), "{expected}\nis not in\n{printed}");
}

/// The dynamic linker's message alone reads as if the library itself were absent.
#[test]
#[cfg(all(target_os = "linux", target_env = "gnu"))]
#[cfg_attr(nccl_linked, ignore = "a linked library is never searched for")]
fn library_with_missing_dependency_is_not_reported_missing() {
    let directory = tempfile::tempdir().unwrap();
    let lib = directory.path().join("lib");
    let library = rccl_library::build(&lib, "libnccl.so.2");
    let (hip, deep) = (lib.join("libamdhip64.so"), lib.join("libdeep.so"));
    for absent in ["libamdhip64.so", "libdeep.so"] {
        if absent == "libdeep.so" {
            rccl_library::compile(&lib, absent, "int deep(void) { return 0; }", &[]);
            let needs = ["-Wl,--no-as-needed".as_ref(), deep.as_os_str(), "-Wl,-rpath,$ORIGIN".as_ref()];
            rccl_library::compile(&lib, "libamdhip64.so", "int hipGetDeviceCount;", &needs);
        }
        fs::remove_file(if absent == "libdeep.so" { &deep } else { &hip }).unwrap();
        let reason = format!("it needs {absent}, which cannot be opened: No such file or directory");
        for (variable, value, place) in [
            ("LIBNCCL_PATH", &library, &*format!("{} (LIBNCCL_PATH)", library.display())),
            ("NCCL_HOME", &directory.path().into(), &format!("{} (NCCL_HOME)", library.display())),
            ("LD_LIBRARY_PATH", &lib, "libnccl.so.2 (dynamic linker)"),
        ] {
            let printed = load_with(&[(variable, value)]);
            assert!(printed.contains(&format!("\n  {place}: {reason}\n")), "{variable}: {printed}");
        }
    }
}

// Regression: cudarc never looks for libnccl.so.2.
#[test]
#[cfg_attr(nccl_linked, ignore = "a linked library is never searched for")]
fn load_without_library_lists_every_place_searched() {
    let printed = load_with(&[("NCCL_HOME", Path::new("/no/such/place"))]);
    if printed.contains("loaded ") {
        // This system has an NCCL.
        let sources = ["dynamic linker", "system's Python packages", "HPC SDK's default directory"];
        assert!(sources.iter().any(|source| printed.contains(&format!("source: {source:?}"))), "{printed}");
        return;
    }
    // `candidates.rs` has the order of the places.
    for expected in [
        "error: no NCCL library could be loaded\n  LIBNCCL_PATH: not set\n",
        "  libnccl.so.2 (dynamic linker): libnccl.so.2: cannot open shared object file: No such file or directory\n",
        "  user's Python packages: neither PYTHONUSERBASE nor HOME is set\n",
        "  /usr/local/lib/python3*/*-packages/nvidia/nccl/lib/libnccl.so.2 (system's Python packages): No such file",
        "  /no/such/place/lib64/libnccl.so.2 (NCCL_HOME): No such file or directory",
        "  /opt/rocm/lib/librccl.so.1 (ROCm's default directory): No such file or directory",
    ] {
        assert!(printed.contains(expected), "{expected}\nis not in\n{printed}");
    }
}

/// The dynamic linker does not look for such names.
#[test]
#[cfg_attr(any(nccl_linked, not(target_env = "gnu")), ignore = "the dynamic linker itself searches")]
fn load_error_suggests_files_with_a_full_version() {
    if load_with(&[]).contains("loaded ") {
        // This system has an NCCL.
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let root = fs::canonicalize(directory.path()).unwrap();
    let names = ["libnccl.so.2.9.6", "libnccl.so.2.16.2", "librccl.so.1.0"];
    for name in names {
        fs::write(root.join(name), "").unwrap();
    }
    let printed = load_with(&[("LD_LIBRARY_PATH", &root)]);
    let absent = "cannot open shared object file: No such file or directory";
    for (name, rest) in [
        ("libnccl.so.2", format!("; set LIBNCCL_PATH to {}", root.join(names[1]).display())),
        ("libnccl.so", String::new()),
        ("librccl.so.1", format!("; set LIBNCCL_PATH to {}", root.join(names[2]).display())),
    ] {
        let expected = format!("  {name} (dynamic linker): {name}: {absent}{rest}\n");
        assert!(printed.contains(&expected), "{expected}is not in\n{printed}");
    }
}

#[test]
#[cfg_attr(nccl_linked, ignore = "a linked library is never searched for")]
fn load_refuses_truncated_file_on_every_search_path() {
    let directory = tempfile::tempdir().unwrap();
    let root = fs::canonicalize(directory.path()).unwrap();
    let file = root.join("libnccl.so.2");
    write_truncated(&file);
    let text = root.display();
    let paths = [format!("{text}"), format!("/no/such/place:{text}"), format!("/no/such/place;{text}")];
    write_truncated(&root.join("levels/glibc-hwcaps/x86-64-v3/libnccl.so.2"));
    #[cfg(target_arch = "x86_64")]
    let has_level = std::arch::is_x86_feature_detected!("avx2");
    #[cfg(not(target_arch = "x86_64"))]
    let has_level = false;
    for path in paths.into_iter().chain(has_level.then(|| format!("{text}/levels"))) {
        let printed = load_with(&[("LD_LIBRARY_PATH", Path::new(&path))]);
        let expected = "libnccl.so.2, which the dynamic linker finds, is truncated";
        assert!(printed.contains(expected), "{path}: {printed}");
    }
    let printed = load_in(&root, &[("LD_LIBRARY_PATH", Path::new("/no/such/place:"))]);
    assert!(
        printed.contains(&format!("{}, which the dynamic linker finds, is trunc", file.display())),
        "{printed}"
    );
}

#[test]
#[cfg_attr(nccl_linked, ignore = "a linked library is never searched for")]
fn load_without_ld_library_path_ignores_the_current_directory() {
    let directory = tempfile::tempdir().unwrap();
    fs::write(directory.path().join("libnccl.so.2"), "").unwrap();
    for environment in [&[][..], &[("LD_LIBRARY_PATH", Path::new(""))], &[("PATH", Path::new(":"))]] {
        let printed = load_in(directory.path(), environment);
        assert!(!printed.contains("is empty"), "{environment:?}: {printed}");
    }
}

#[test]
#[cfg_attr(nccl_linked, ignore = "a linked library is never searched for")]
fn load_reports_the_file_that_was_loaded() {
    let directory = tempfile::tempdir().unwrap();
    let root = fs::canonicalize(directory.path()).unwrap();
    let [good, other, bad, foreign] = ["good", "other", "bad", "foreign"].map(|name| root.join(name));
    let library = rccl_library::build(&good, "libnccl.so.2");
    rccl_library::build(&other, "libnccl.so.2");
    write_truncated(&bad.join("libnccl.so.2"));
    let mut bytes = fs::read(&library).unwrap();
    bytes[18] = if cfg!(target_arch = "x86_64") { 183 } else { 62 };
    fs::create_dir(&foreign).unwrap();
    fs::write(foreign.join("libnccl.so.2"), &bytes).unwrap();
    let foreign_first = std::env::join_paths([&foreign, &good]).unwrap();
    let (file, relative, linker) = (Path::new("libnccl.so.2"), Path::new("./libnccl.so.2"), "dynamic linker");
    type Case<'a> = (&'a str, &'a [(&'a str, &'a Path)], &'a str);
    let cases: [Case<'_>; 4] = [
        ("before it, one of another machine", &[("LD_LIBRARY_PATH", Path::new(&foreign_first))], linker),
        ("in the process", &[("LD_PRELOAD", &library), ("LD_LIBRARY_PATH", &bad)], linker),
        ("in the first directory", &[("LD_PRELOAD", relative), ("CHANGE_DIRECTORY", &other)], linker),
        ("bare name in the current directory", &[("LIBNCCL_PATH", file)], "LIBNCCL_PATH"),
    ];
    for (name, environment, source) in cases {
        let printed = load_in(&good, environment);
        let expected = format!("path: {library:?}, source: {source:?}");
        assert!(printed.contains(&expected), "{name}: {expected} is not in\n{printed}");
    }
    let path = rccl_library::build(&root.join("rccl"), "librccl.so.1");
    let printed = load_with(&[("LD_LIBRARY_PATH", &root.join("rccl"))]);
    // This system may have an NCCL, which is found before RCCL.
    if printed.contains("librccl") {
        let expected = format!("path: {path:?}, source: \"dynamic linker\"");
        assert!(printed.contains("loaded 2.21.5") && printed.contains(&expected), "{printed}");
    }
}

// The facade has its own table.
#[test]
fn raw_struct_has_the_functions_of_the_library() {
    let directory = tempfile::tempdir().unwrap();
    let path = rccl_library::build(directory.path(), "librccl.so.1");
    // SAFETY: made by `rccl_library::build`.
    let library = unsafe { NcclLibrary::new(path) }.unwrap();
    assert!(library.ncclAllReduce.is_ok());
    assert!(library.ncclCommShrink.is_err());
    let mut version = 0;
    // SAFETY: the library has the function, which writes the version.
    let code = unsafe { library.ncclGetVersion(&raw mut version) };
    assert_eq!((code, version), (ncclResult_t::ncclSuccess, rccl_library::VERSION.code() as i32));
}

/// Its internal calls would reach the other library.
#[test]
#[cfg_attr(nccl_linked, ignore = "the linked library comes before both")]
fn open_with_a_global_library_names_both() {
    let directories = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
    let [global, opened] = [0, 1].map(|index| rccl_library::build(directories[index].path(), "libnccl.so.2"));
    let printed = load_with(&[("GLOBAL", &global), ("OPENED", &opened)]);
    let expected = format!(
        "error: no NCCL library could be loaded\n  {} (given path): calls of its own functions would go to those of {}, ",
        opened.display(),
        fs::canonicalize(&global).unwrap().display()
    );
    assert!(printed.contains(&expected), "{expected}\nis not in\n{printed}");
    let printed = load_with(&[("GLOBAL", &global), ("OPENED", &global)]);
    assert!(printed.contains(&format!("path: {:?}", fs::canonicalize(&global).unwrap())), "{printed}");
}

#[test]
#[cfg_attr(not(nccl_linked), ignore = "no library is linked")]
fn open_with_a_linked_library_names_both() {
    #[cfg(all(nccl_linked, not(nccl_archive)))]
    {
        let linked = Nccl::linked().unwrap().backend().to_string();
        let directory = tempfile::tempdir().unwrap();
        let path = rccl_library::build(directory.path(), "libnccl.so.2");
        // SAFETY: made by `build`.
        let error = unsafe { Nccl::open(&path) }.unwrap_err().to_string();
        for library in [path.to_str().unwrap(), &linked] {
            assert!(error.contains(library), "no {library} in {error}");
        }
        // SAFETY: the linked library.
        let same = unsafe { Nccl::open(&linked) }.unwrap();
        assert_eq!(same.backend().to_string(), linked);
    }
}
