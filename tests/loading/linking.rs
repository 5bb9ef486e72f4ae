//! The build script's decisions, without building anything.

#[path = "../../build/link.rs"]
#[allow(dead_code)]
mod link;

use std::path::{Path, PathBuf};

use link::{Library, Missing, check, find, is_vetoed, watched};

fn found(environment: &[(&str, &str)], defaults: &[&str], files: &[&str]) -> Result<Library, Missing> {
    let variable = |name: &str| Some(environment.iter().find(|(n, _)| *n == name)?.1.into());
    let defaults: Vec<PathBuf> = defaults.iter().map(PathBuf::from).collect();
    find(variable, &defaults, |path: &Path| files.iter().any(|file| Path::new(file) == path))
}

fn variables(environment: &[(&str, &str)]) -> impl Fn(&str) -> Option<std::ffi::OsString> {
    |name: &str| Some(environment.iter().find(|(n, _)| *n == name)?.1.into())
}

#[test]
fn veto_is_that_of_the_user_or_of_a_system_without_nccl() {
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
    for name in ["NCCL_LIB_DIR", "NCCL_HOME", "NCCL_ROOT", "NCCL_ROOT_DIR", "CUDA_HOME", "CUDA_PATH"] {
        let problem = check(variables(&[(name, "lib")])).unwrap_err();
        assert_eq!(problem, format!("{name} is \"lib\"; expected an absolute path"));
    }
}

#[test]
fn watched_are_the_file_and_where_a_better_one_may_appear() {
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
    let missing = Err(Missing { searched: vec!["/a".into(), "/b".into()], named: false });
    let absent = ["/a/libnccl.so", "/b/libnccl.so"].map(PathBuf::from);
    assert_eq!(link::watched(&missing, variables(&[]), &[]), absent);
}

#[test]
fn nccl_lib_dir_excludes_other_directories() {
    let files = ["/named/libnccl.so.2", "/home/lib/libnccl.so", "/usr/lib/libnccl.so"];
    let environment = [("NCCL_LIB_DIR", "/named"), ("NCCL_HOME", "/home")];
    assert_eq!(found(&environment, &["/usr/lib"], &files), Ok(Library::Runtime("/named".into())));
    assert_eq!(found(&environment[1..], &["/usr/lib"], &files), Ok(Library::Development("/home/lib".into())));
    for name in ["NCCL_ROOT", "NCCL_ROOT_DIR"] {
        let environment = [(name, "/home"), ("CUDA_PATH", "/usr")];
        assert_eq!(found(&environment, &["/usr/lib"], &files), Ok(Library::Development("/home/lib".into())));
    }
    assert_eq!(found(&[], &["/lib", "/usr/lib"], &files), Ok(Library::Development("/usr/lib".into())));
    let missing = Missing { searched: vec!["/empty".into()], named: true };
    assert_eq!(found(&[("NCCL_LIB_DIR", "/empty")], &["/usr/lib"], &files), Err(missing));
}

#[test]
fn archive_is_linked_only_with_nccl_static() {
    let files = ["/n/libnccl_static.a", "/n/libnccl.so"];
    let environment = [("NCCL_LIB_DIR", "/n"), ("NCCL_STATIC", "1"), ("CUDA_HOME", "/cuda")];
    assert_eq!(found(&environment[..1], &[], &files), Ok(Library::Development("/n".into())));
    let library = found(&environment, &[], &files).unwrap();
    assert_eq!(library, Library::Static("/n".into(), Some("/cuda/lib64".into())));
    let directives = library.directives();
    assert_eq!(directives[1], "rustc-link-lib=static:+whole-archive,-bundle=nccl_static");
    assert!(directives.contains(&"rustc-link-search=native=/cuda/lib64".into()));
}

#[test]
fn libnccl_so_2_alone_is_linked_verbatim() {
    let library = found(&[("NCCL_LIB_DIR", "/p")], &[], &["/p/libnccl.so.2"]).unwrap();
    assert_eq!(
        library.directives(),
        ["rustc-link-search=native=/p", "rustc-link-lib=dylib:+verbatim=libnccl.so.2"]
    );
}
