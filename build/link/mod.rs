//! Feature `link`: links NCCL.

mod search;

use std::env;
use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::Path;

use search::{Library, variable};

/// Prints cargo's directives to link NCCL, unless `LIBNCCL_NO_LINK` is set or the target is not Linux.
///
/// Features are additive: once a crate of the build has enabled `link`, no other crate can disable it. The variable allows
/// the person who builds the final program to do so.
pub(crate) fn link(out: &Path) {
    for variable in search::INPUTS {
        println!("cargo::rerun-if-env-changed={variable}");
    }
    if search::is_vetoed(variable) {
        return;
    }
    println!("cargo::rustc-cfg=nccl_linked");
    if variable("DOCS_RS").is_some() {
        return; // docs.rs links nothing and may have no C compiler for the target.
    }
    search::check(variable).unwrap_or_else(|problem| panic!("{problem}"));
    let linker_cache = fs::read(search::places::LINKER_CACHE).unwrap_or_default();
    let defaults = search::default_directories(variable, &linker_cache);
    let found = search::find(variable, &defaults, Path::exists);
    for path in search::watched(&found, variable, &defaults) {
        println!("cargo::rerun-if-changed={}", path.display());
    }
    match found {
        Ok(library) => {
            if matches!(library, Library::Static(..)) {
                compile_tables(out);
            }
            library.directives().iter().for_each(|directive| println!("cargo::{directive}"));
        }
        Err(missing) if missing.named => panic!("{missing}"),
        Err(missing) => {
            // `cargo check` and `cargo doc` need no library; for any other command the linker reports it.
            println!("cargo::warning={missing}");
            println!("cargo::rustc-link-lib=dylib=nccl");
        }
    }
}

/// Compiles the tables of the archive's functions. The tables' names contain the version and a hash of the functions: if
/// another version of this crate in the program used the same names, a linker would silently use one table for both.
fn compile_tables(out: &Path) {
    println!("cargo::rustc-cfg=nccl_archive");
    let version = env::var("CARGO_PKG_VERSION").expect("cargo sets CARGO_PKG_VERSION");
    let version = version.replace(|c: char| !c.is_ascii_alphanumeric(), "_");
    let mut build = cc::Build::new();
    for (file, table) in [("linked.c", "FUNCTIONS"), ("device.c", "DEVICE_FUNCTIONS")] {
        let file = out.join(file);
        let text = fs::read_to_string(&file).unwrap_or_else(|e| panic!("{}: {e}", file.display()));
        let mut hasher = DefaultHasher::new();
        text.hash(&mut hasher);
        let name = format!("libnccl_{version}_{:016x}_{}", hasher.finish(), table.to_lowercase());
        println!("cargo::rustc-env=LIBNCCL_{table}={name}");
        build.file(file).define(table, name.as_str());
    }
    // With `-flto` in CFLAGS, which come after this crate's flags, there would be no code that rustc's linker can read.
    build.flag_if_supported("-ffat-lto-objects").warnings(false).compile("nccl_archive_functions");
}
