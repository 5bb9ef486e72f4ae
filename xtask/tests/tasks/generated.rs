//! Builds of a copy of libnccl in which bindgen generates other bindings than the committed ones.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Command;

use tempfile::TempDir;

use crate::{cargo_check, write_dependent};

/// Makes bindgen generate another value for a constant, as a wrong libclang may.
const PLANT: [&str; 2] = [
    "let types = generate(builder().blocklist_function(\".*\").layout_tests(true))?;",
    "let types = generate(builder().blocklist_function(\".*\").layout_tests(true))?
            .replace(\"NCCL_SPLIT_NOCOLOR: i32 = -1\", \"NCCL_SPLIT_NOCOLOR: i32 = -7\");",
];
const COMMITTED: i32 = -1;
const GENERATED: i32 = -7;

/// A copy of libnccl with the planted difference, and a crate that depends on it.
struct Planted(TempDir);

impl Planted {
    fn new() -> Self {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the workspace");
        let planted = Self(tempfile::tempdir().expect("a temporary directory"));
        let libnccl = planted.0.path().join("libnccl");
        for directory in ["", "build", "vendor-headers"] {
            fs::create_dir(libnccl.join(directory)).expect("a directory");
            for entry in fs::read_dir(root.join(directory)).expect("the checkout") {
                let entry = entry.expect("an entry");
                let name = entry.file_name();
                if ![".git", "build", "target", "vendor-headers"].iter().any(|left_out| name == *left_out) {
                    symlink(entry.path(), libnccl.join(directory).join(name)).expect("a link");
                }
            }
        }
        planted.replace("libnccl/build/bindings.rs", PLANT[0], PLANT[1]);
        write_dependent(&planted.0.path().join("dependent"), &libnccl, "bindgen");
        planted
    }

    /// Replaces text in a file, which may be a link.
    fn replace(&self, file: &str, old: &str, new: &str) {
        let file = self.0.path().join(file);
        let text = fs::read_to_string(&file).expect("the file");
        assert_eq!(text.matches(old).count(), 1, "{old}");
        fs::remove_file(&file).expect("it is replaced");
        fs::write(&file, text.replace(old, new)).expect("it is written");
    }

    /// Builds the dependent crate, which compiles only if the constant has this value. Returns cargo's output.
    fn build(&self, value: i32, environment: &[(&str, &str)]) -> Result<String, String> {
        self.build_with(&[], value, environment)
    }

    fn build_with(
        &self,
        arguments: &[&str],
        value: i32,
        environment: &[(&str, &str)],
    ) -> Result<String, String> {
        let directory = self.0.path().join("dependent");
        let text = format!("const _: () = assert!(libnccl::sys::NCCL_SPLIT_NOCOLOR == {value});\n");
        fs::write(directory.join("src/lib.rs"), text).expect("the library is written");
        cargo_check(&directory, arguments, environment)
    }
}

const WARNING: &str = "the committed copy of the bindings is compiled: ";

#[test]
#[ignore = "builds bindgen: .ci/run matrix"]
fn bindings_that_differ_from_the_copy_are_compiled_only_for_changed_headers() {
    let planted = Planted::new();
    let printed = planted.build(COMMITTED, &[]).unwrap_or_else(|stderr| panic!("{stderr}"));
    assert_eq!(printed.matches("warning: libnccl").count(), 1, "{printed}");
    assert!(printed.contains(&format!("{WARNING}bindgen with libclang (")), "{printed}");
    let version = printed.split_once("libclang (").expect("as above").1.split_once(')').expect("it ends").0;
    assert!(version.contains("clang version "), "{version}");
    let item = ", NCCL_SPLIT_NOCOLOR: the copy has `pub const NCCL_SPLIT_NOCOLOR: i32 = -1;`, bindgen `pub const \
                NCCL_SPLIT_NOCOLOR: i32 = -7;`";
    assert!(
        printed.contains(") generates other bindings from the same headers: types.rs, line "),
        "{printed}"
    );
    assert!(printed.contains(item), "{printed}");

    let failed = planted.build(COMMITTED, &[("LIBNCCL_BINDGEN", "require")]).expect_err("it is required");
    assert!(failed.contains("LIBNCCL_BINDGEN=require, but bindgen with libclang ("), "{failed}");

    let printed = planted.build(COMMITTED, &[("LIBCLANG_PATH", "/nowhere")]).expect("the copy is compiled");
    assert!(printed.contains(&format!("{WARNING}bindgen failed: Unable to find libclang")), "{printed}");

    let line = "typedef struct ncclComm ";
    planted.replace("libnccl/vendor-headers/nccl.h", line, &format!("int ncclOwn(void);\n{line}"));
    let printed = planted.build(GENERATED, &[]).unwrap_or_else(|stderr| panic!("{stderr}"));
    assert!(!printed.contains("warning"), "{printed}");
    let printed = planted.build(COMMITTED, &[("LIBCLANG_PATH", "/nowhere")]).expect("the copy is compiled");
    assert!(printed.contains("; the copy is stale, as the headers have changed"), "{printed}");
    let printed =
        planted.build_with(&["--no-default-features"], COMMITTED, &[]).expect("the copy is compiled");
    assert!(printed.contains("` is off; the copy is stale, as the headers have changed"), "{printed}");
}

#[test]
#[ignore = "builds bindgen: .ci/run matrix"]
fn unusable_libclang_is_reported_and_arguments_for_clang_are_ignored() {
    let planted = Planted::new();
    planted.replace("libnccl/build/bindings.rs", PLANT[1], PLANT[0]);
    let host = format!("BINDGEN_EXTRA_CLANG_ARGS_{}_unknown_linux_gnu", std::env::consts::ARCH);
    let arguments = ["BINDGEN_EXTRA_CLANG_ARGS", &host].map(|name| (name, "-fpack-struct=4"));
    let required = [&arguments[..], &[("LIBNCCL_BINDGEN", "require")]].concat();
    planted.build(COMMITTED, &required).unwrap_or_else(|stderr| panic!("{stderr}"));

    let directory = |name| {
        let path = planted.0.path().join(name);
        fs::create_dir(&path).expect("a directory");
        path.to_str().expect("its name is text").to_owned()
    };
    // Without functions.
    let path = directory("unusable");
    let library = format!("{path}/libclang.so");
    let cc = Command::new("cc").args(["-shared", "-x", "c", "/dev/null", "-o", &library]).status();
    assert!(cc.expect("cc runs").success());
    let printed = planted.build(COMMITTED, &[("LIBCLANG_PATH", &path)]).expect("the copy is compiled");
    assert!(printed.contains(&format!("{WARNING}bindgen failed: ")), "{printed}");
    // The start of another library: a process that maps it ends with SIGBUS.
    let path = directory("truncated");
    let libc = Command::new("cc").arg("-print-file-name=libc.so.6").output().expect("cc runs").stdout;
    let libc = fs::read(String::from_utf8(libc).expect("a path").trim()).expect("the C library");
    fs::write(format!("{path}/libclang.so"), &libc[..1_000_000]).expect("its start");
    let failed = planted.build(COMMITTED, &[("LIBCLANG_PATH", &path)]).expect_err("it is damaged");
    assert!(failed.contains("If this ends with a signal, the libclang that bindgen has loaded is damaged: "));
    let never = [("LIBCLANG_PATH", path.as_str()), ("LIBNCCL_BINDGEN", "never")];
    planted.build(COMMITTED, &never).expect("the copy is compiled");
    let failed = planted.build(COMMITTED, &[("LIBNCCL_BINDGEN", "yes")]).expect_err("it is no value");
    assert!(failed.contains("LIBNCCL_BINDGEN is \"yes\"; expected auto, require or never"), "{failed}");
}
