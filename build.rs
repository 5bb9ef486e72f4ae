//! Writes the bindings into `OUT_DIR` and, with feature `link`, finds and links the library.

use std::env;
use std::path::PathBuf;

#[cfg(feature = "bindgen")]
#[path = "build/bindings.rs"]
mod bindings;
#[path = "build/generated.rs"]
mod generated;
#[cfg(feature = "link")]
#[path = "build/link.rs"]
mod link;

fn main() {
    println!("cargo::rustc-check-cfg=cfg(nccl_archive, nccl_linked)");
    for input in ["build.rs", "build", "wrapper.h", "vendor-headers", generated::DIRECTORY] {
        println!("cargo::rerun-if-changed={input}");
    }
    let root = PathBuf::from(env::var_os("CARGO_MANIFEST_DIR").expect("cargo sets CARGO_MANIFEST_DIR"));
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));

    #[cfg(feature = "bindgen")]
    let fresh = generated::fresh_bindings(|| bindings::Bindings::generate(&root).map(|bindings| bindings.0));
    #[cfg(not(feature = "bindgen"))]
    let fresh = None;
    generated::write_bindings(&root, &out, fresh);

    #[cfg(feature = "link")]
    link_library(&out);
}

/// Tells cargo what to link, unless `LIBNCCL_NO_LINK` is set.
///
/// Features are additive: once a crate of the build has enabled `link`, no other crate can disable it. The
/// variable lets whoever builds the final program do so.
#[cfg(feature = "link")]
fn link_library(out: &std::path::Path) {
    for variable in link::INPUTS {
        println!("cargo::rerun-if-env-changed={variable}");
    }
    if env::var_os("LIBNCCL_NO_LINK").is_some_and(|value| value != "0") {
        return;
    }
    if env::var("CARGO_CFG_TARGET_OS").as_deref() != Ok("linux") {
        return; // There is no NCCL to link.
    }
    println!("cargo::rustc-cfg=nccl_linked");
    if env::var_os("DOCS_RS").is_some() {
        return; // docs.rs links nothing and may have no C compiler for the target.
    }
    match link::find(|name| env::var_os(name), &link::default_directories(), std::path::Path::exists) {
        Ok(library) => {
            if matches!(library, link::Library::Static(..)) {
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

/// Compiles the tables of the archive's functions. Another version of this crate in the same program has others, so
/// that the names of the tables hold the version and a hash of the functions: a linker that finds a name twice takes
/// one table for both without a word.
#[cfg(feature = "link")]
fn compile_tables(out: &std::path::Path) {
    use std::hash::{DefaultHasher, Hash, Hasher};

    println!("cargo::rustc-cfg=nccl_archive");
    let version = env::var("CARGO_PKG_VERSION").expect("cargo sets CARGO_PKG_VERSION");
    let version = version.replace(|c: char| !c.is_ascii_alphanumeric(), "_");
    let mut build = cc::Build::new();
    for (file, table) in [("linked.c", "FUNCTIONS"), ("device.c", "DEVICE_FUNCTIONS")] {
        let file = out.join(file);
        let text = std::fs::read_to_string(&file).unwrap_or_else(|e| panic!("{}: {e}", file.display()));
        let mut hasher = DefaultHasher::new();
        text.hash(&mut hasher);
        let name = format!("libnccl_{version}_{:016x}_{}", hasher.finish(), table.to_lowercase());
        println!("cargo::rustc-env=LIBNCCL_{table}={name}");
        build.file(file).define(table, name.as_str());
    }
    build.warnings(false).compile("nccl_archive_functions");
}
