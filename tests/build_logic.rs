//! What the build script decides, without building anything.

#[path = "../build/link.rs"]
#[allow(dead_code)]
mod link;

mod linking {
    use std::path::{Path, PathBuf};

    use super::link::{Library, Missing, find};

    fn found(environment: &[(&str, &str)], defaults: &[&str], files: &[&str]) -> Result<Library, Missing> {
        let variable = |name: &str| Some(environment.iter().find(|(n, _)| *n == name)?.1.into());
        let defaults: Vec<PathBuf> = defaults.iter().map(PathBuf::from).collect();
        find(variable, &defaults, |path: &Path| files.iter().any(|file| Path::new(file) == path))
    }

    #[test]
    fn nccl_lib_dir_excludes_other_directories() {
        let files = ["/named/libnccl.so.2", "/home/lib/libnccl.so", "/usr/lib/libnccl.so"];
        let environment = [("NCCL_LIB_DIR", "/named"), ("NCCL_HOME", "/home")];
        assert_eq!(found(&environment, &["/usr/lib"], &files), Ok(Library::Runtime("/named".into())));
        assert_eq!(
            found(&environment[1..], &["/usr/lib"], &files),
            Ok(Library::Development("/home/lib".into()))
        );
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
}

/// The committed bindings and what bindgen makes of the header are the same bytes, so that it does not matter
/// which a build used. With libclang, `OUT_DIR` has the fresh ones.
#[test]
fn build_used_the_committed_bindings() {
    for (file, used) in [
        ("types.rs", include_str!(concat!(env!("OUT_DIR"), "/types.rs"))),
        ("linked.rs", include_str!(concat!(env!("OUT_DIR"), "/linked.rs"))),
        ("linked.c", include_str!(concat!(env!("OUT_DIR"), "/linked.c"))),
        ("dynamic.rs", include_str!(concat!(env!("OUT_DIR"), "/dynamic.rs"))),
        ("functions.rs", include_str!(concat!(env!("OUT_DIR"), "/functions.rs"))),
        ("since.rs", include_str!(concat!(env!("OUT_DIR"), "/since.rs"))),
        ("device_types.rs", include_str!(concat!(env!("OUT_DIR"), "/device_types.rs"))),
        ("device_functions.rs", include_str!(concat!(env!("OUT_DIR"), "/device_functions.rs"))),
        ("device.c", include_str!(concat!(env!("OUT_DIR"), "/device.c"))),
    ] {
        let committed = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("src/sys/snapshot").join(file);
        let committed = std::fs::read_to_string(committed).unwrap();
        assert!(used == committed, "{file} differs from src/sys/snapshot: run `cargo xtask bindings`");
    }
}

/// bindgen's two forms of the functions name the same ones.
// Regression: ztensor compares codes in the width of a register.
#[test]
fn extern_block_and_dlopen_struct_declare_the_same_functions() {
    let snapshot = |file: &str| {
        let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("src/sys/snapshot").join(file);
        std::fs::read_to_string(path).unwrap()
    };
    let linked = snapshot("linked.rs");
    let dynamic = snapshot("dynamic.rs");
    let linked: Vec<&str> =
        linked.split("pub fn ").skip(1).filter_map(|rest| rest.split('(').next()).collect();
    let dynamic: Vec<&str> =
        dynamic.split("pub nccl").skip(1).filter_map(|rest| rest.split(':').next()).collect();
    let dynamic: Vec<String> = dynamic.iter().map(|name| format!("nccl{name}")).collect();
    assert_eq!(linked.len(), 72);
    assert_eq!(linked, dynamic);
    assert_eq!(linked, libnccl::sys::Functions::NAMES);
}
