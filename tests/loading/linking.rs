//! The build script's decisions, without building anything.

#[path = "../../build/link/search.rs"]
#[allow(dead_code)]
mod link;

use std::path::{Path, PathBuf};

use link::places::in_linker_cache;
use link::{Library, Missing, check, default_directories, find, is_vetoed, watched};

fn found(environment: &[(&str, &str)], defaults: &[&str], files: &[&str]) -> Result<Library, Missing> {
    let defaults: Vec<PathBuf> = defaults.iter().map(PathBuf::from).collect();
    find(variables(environment), &defaults, |path: &Path| files.iter().any(|file| Path::new(file) == path))
}

fn variables(environment: &[(&str, &str)]) -> impl Fn(&str) -> Option<std::ffi::OsString> {
    |name: &str| Some(environment.iter().find(|(n, _)| *n == name)?.1.into())
}

#[test]
fn veto_comes_from_the_user_or_a_system_without_nccl() {
    for (environment, vetoed) in [
        (&[][..], false),
        (&[("LIBNCCL_NO_LINK", "0")], false),
        (&[("LIBNCCL_NO_LINK", "1")], true),
        (&[("CARGO_CFG_TARGET_OS", "linux")], false),
        (&[("CARGO_CFG_TARGET_OS", "macos")], true),
        (&[("CARGO_CFG_TARGET_OS", "windows")], true),
    ] {
        assert_eq!(is_vetoed(variables(environment)), vetoed, "{environment:?}");
    }
}

#[test]
fn static_c_library_and_relative_directory_are_refused() {
    assert_eq!(check(variables(&[("CARGO_CFG_TARGET_FEATURE", "fxsr,sse"), ("CUDA_HOME", "/c")])), Ok(()));
    let problem = check(variables(&[("CARGO_CFG_TARGET_FEATURE", "crt-static,fxsr")])).unwrap_err();
    assert!(problem.contains("`-C target-feature=-crt-static`"), "{problem}");
    for name in
        ["NCCL_LIB_DIR", "NVHPC_ROOT", "NCCL_HOME", "NCCL_ROOT", "NCCL_ROOT_DIR", "CUDA_HOME", "CUDA_PATH"]
    {
        let problem = check(variables(&[(name, "lib")])).unwrap_err();
        assert_eq!(problem, format!("{name} is \"lib\"; expected an absolute path"));
    }
}

#[test]
fn watched_paths_are_the_file_and_where_a_better_one_may_appear() {
    let directory = tempfile::tempdir().unwrap();
    let [lib, lib64, pkg] = ["lib", "lib64", "pkg"].map(|name| directory.path().join(name));
    [&lib, &lib64, &pkg].into_iter().for_each(|path| std::fs::create_dir(path).unwrap());
    let (home, pkg_text) = (directory.path().to_str().unwrap(), pkg.to_str().unwrap());
    let watched = |library, environment: &[_], defaults: &[PathBuf]| {
        watched(&Ok(library), variables(environment), defaults)
    };
    assert_eq!(
        watched(Library::Development(lib64.clone()), &[("NCCL_HOME", home)], &[]),
        [lib.clone(), lib64.join("libnccl.so")]
    );
    assert_eq!(
        watched(Library::Runtime(lib64.clone()), &[("NCCL_HOME", home)], &[]),
        [lib.clone(), lib64.clone(), lib64.join("libnccl.so.2")]
    );
    let defaults = ["/usr/lib".into(), "/usr/lib/x86_64-linux-gnu".into(), lib.clone(), lib64.clone()];
    let found = watched(Library::Development(lib64.clone()), &[("PKG_CONFIG_PATH", pkg_text)], &defaults);
    for directory in [&lib, &pkg] {
        assert!(found.contains(directory), "no {directory:?} in {found:?}");
    }
    assert!(!defaults[..2].iter().any(|system| found.contains(system)), "{found:?}");
    let missing = Err(Missing { searched: vec!["/a".into(), "/b".into()], named: false, rccl: None });
    let absent = ["/a/libnccl.so", "/b/libnccl.so"].map(PathBuf::from);
    assert_eq!(link::watched(&missing, variables(&[]), &[]), absent);
}

#[test]
fn nccl_lib_dir_excludes_other_directories() {
    let files = ["/named/libnccl.so.2", "/home/lib/libnccl.so", "/usr/lib/libnccl.so"];
    let environment = [("NCCL_LIB_DIR", "/named"), ("NCCL_HOME", "/home")];
    let library = found(&environment, &["/usr/lib"], &files);
    assert_eq!(library, Ok(Library::Runtime("/named".into())));
    let verbatim = "rustc-link-lib=dylib:+verbatim=libnccl.so.2";
    assert_eq!(library.unwrap().directives(), ["rustc-link-search=native=/named", verbatim]);
    assert_eq!(found(&environment[1..], &["/usr/lib"], &files), Ok(Library::Development("/home/lib".into())));
    for name in ["NCCL_ROOT", "NCCL_ROOT_DIR"] {
        let environment = [(name, "/home"), ("CUDA_PATH", "/usr")];
        assert_eq!(found(&environment, &["/usr/lib"], &files), Ok(Library::Development("/home/lib".into())));
    }
    assert_eq!(found(&[], &["/lib", "/usr/lib"], &files), Ok(Library::Development("/usr/lib".into())));
    let missing = Missing { searched: vec!["/empty".into()], named: true, rccl: None };
    assert_eq!(found(&[("NCCL_LIB_DIR", "/empty")], &["/usr/lib"], &files), Err(missing));
}

#[test]
fn archive_is_linked_only_with_nccl_static_and_with_the_toolkits_libraries() {
    let files = ["/n/libnccl_static.a", "/n/libnccl.so"];
    let environment = [("NCCL_LIB_DIR", "/n"), ("NCCL_STATIC", "1"), ("CUDA_HOME", "/cuda")];
    assert_eq!(found(&environment[..1], &[], &files), Ok(Library::Development("/n".into())));
    let library = found(&environment, &[], &files).unwrap();
    assert_eq!(library, Library::Static("/n".into(), vec!["/cuda/lib64".into()]));
    assert_eq!(library.directives()[1], "rustc-link-lib=static:+whole-archive,-bundle=nccl_static");
    // The toolkit's libraries are those for the target.
    for (architecture, targets) in
        [("x86_64", &["x86_64-linux"][..]), ("aarch64", &["sbsa-linux", "aarch64-linux"])]
    {
        let environment = [&environment[..], &[("CARGO_CFG_TARGET_ARCH", architecture)]].concat();
        let library = found(&environment, &[], &files).unwrap();
        let targets = targets.iter().map(|target| format!("/cuda/targets/{target}/lib"));
        let expected: Vec<_> = targets.chain(["/cuda/lib64".into()]).collect();
        let search: Vec<_> = expected.iter().map(|lib| format!("rustc-link-search=native={lib}")).collect();
        assert_eq!(library.directives()[2..2 + search.len()], search);
    }
    assert_eq!(
        found(&environment[..2], &[], &files),
        Ok(Library::Static("/n".into(), vec!["/usr/local/cuda/lib64".into()]))
    );
}

/// Returns a cache with these entries: name, path, and a bit mask of processors.
fn linker_cache_with(entries: &[(&str, &str, u64)]) -> Vec<u8> {
    let mut strings = Vec::new();
    let mut table = Vec::new();
    let mut text = |text: &str| {
        let at = 48 + 24 * entries.len() + strings.len();
        strings.extend_from_slice(text.as_bytes());
        strings.push(0);
        u32::try_from(at).unwrap().to_ne_bytes()
    };
    for (name, path, processors) in entries {
        table.extend_from_slice(&0x303_u32.to_ne_bytes());
        table.extend_from_slice(&text(name));
        table.extend_from_slice(&text(path));
        table.extend_from_slice(&[0; 4]);
        table.extend_from_slice(&processors.to_ne_bytes());
    }
    let mut cache = b"glibc-ld.so.cache1.1".to_vec();
    cache.extend_from_slice(&u32::try_from(entries.len()).unwrap().to_ne_bytes());
    cache.resize(48, 0);
    [cache, table, strings].concat()
}

#[test]
fn cache_gives_the_files_of_a_name_in_its_order() {
    let name = Path::new("libnccl.so.2");
    let bytes = linker_cache_with(&[
        ("libnccl.so.2", "/b/libnccl.so.2", 0),
        ("libnccl.so.2", "/some-processor/libnccl.so.2", 1),
        ("libnccl.so.2", "/a/libnccl.so.2", 0),
        ("libnccl.so", "/b/libnccl.so", 0),
    ]);
    let expected = ["/b/libnccl.so.2", "/a/libnccl.so.2"].map(PathBuf::from);
    assert_eq!(in_linker_cache(&bytes, name), expected);
    // The older format comes first in a cache that has both.
    assert_eq!(in_linker_cache(&[b"ld.so-1.7.0\0\0\0\0\0".as_slice(), &bytes].concat(), name), expected);
    for length in 0..bytes.len() {
        let _ = in_linker_cache(&bytes[..length], name);
    }
}

/// The names of a host and a target, which is the host, of an architecture.
const NATIVE: [(&str, &str); 3] =
    [("HOST", "native"), ("TARGET", "native"), ("CARGO_CFG_TARGET_ARCH", "aarch64")];

#[test]
fn default_directories_cover_every_installation() {
    let cache = linker_cache_with(&[
        ("libnccl.so.2", "/srv/nccl/libnccl.so.2", 0),
        ("libother.so", "/other/libother.so", 0),
    ]);
    let named =
        [("CONDA_PREFIX", "/conda"), ("CUDA_HOME", "/c"), ("CUDA_PATH", "/d"), ("NVHPC_ROOT", "/hpc")];
    let directories = default_directories(variables(&[&NATIVE[..], &named].concat()), &cache);
    let expected = [
        "/usr/lib/aarch64-linux-gnu",
        "/usr/lib",
        "/srv/nccl",
        "/conda/lib",
        "/c/targets/sbsa-linux/lib",
        "/c/lib64",
        "/d/targets/sbsa-linux/lib",
        "/d/lib64",
        "/hpc/comm_libs/nccl/lib",
    ];
    let mut rest = directories.iter();
    for path in expected {
        assert!(
            rest.any(|directory| directory == Path::new(path)),
            "{path} is missing or misplaced: {directories:?}"
        );
    }
    assert!(!directories.contains(&"/other".into()), "{directories:?}");
    let library = found(&[], &["/srv/nccl"], &["/srv/nccl/libnccl.so.2"]);
    assert_eq!(library, Ok(Library::Runtime("/srv/nccl".into())));

    let directories = default_directories(variables(&NATIVE), &[]);
    assert!(directories.contains(&"/usr/local/cuda/targets/sbsa-linux/lib".into()), "{directories:?}");
}

#[test]
fn cross_compiling_finds_only_a_toolkits_libraries_for_the_target() {
    let environment = [
        ("HOST", "host"),
        ("TARGET", "target"),
        ("CARGO_CFG_TARGET_ARCH", "aarch64"),
        ("CUDA_HOME", "/c"),
        ("CONDA_PREFIX", "/conda"),
    ];
    let expected = ["/c/targets/sbsa-linux/lib", "/c/targets/aarch64-linux/lib"].map(PathBuf::from);
    assert_eq!(default_directories(variables(&environment), &[]), expected);
}

#[test]
fn rccl_alone_error_says_why_it_is_not_linked() {
    type Case = (&'static [(&'static str, &'static str)], &'static [&'static str], &'static str);
    let cases: [Case; 4] = [
        (&[("NCCL_LIB_DIR", "/r")], &[], "/r/librccl.so"),
        (&[("NCCL_HOME", "/r")], &[], "/r/lib64/librccl.so.1"),
        (&[("ROCM_PATH", "/r")], &["/usr/lib"], "/r/lib/librccl.so"),
        (&[], &["/usr/lib"], "/opt/rocm/lib/librccl.so.1"),
    ];
    for (environment, defaults, file) in cases {
        let missing = found(environment, defaults, &[file]).unwrap_err().to_string();
        let expected = format!(
            "; {file} is AMD's RCCL, which cannot be linked, only loaded: build without the feature `link`, or with \
             LIBNCCL_NO_LINK=1"
        );
        assert!(
            missing.starts_with("no NCCL library to link in ") && missing.ends_with(&expected),
            "{missing}"
        );
    }
    // Next to an NCCL, or in another directory, it does not matter.
    let files = ["/r/librccl.so", "/r/libnccl.so"];
    assert_eq!(found(&[("NCCL_LIB_DIR", "/r")], &[], &files), Ok(Library::Development("/r".into())));
    let missing = found(&[("NCCL_LIB_DIR", "/n")], &[], &["/opt/rocm/lib/librccl.so"]).unwrap_err();
    assert_eq!(missing.rccl, None);
}
