//! Writes the bindings into `OUT_DIR` and, with feature `link`, finds and links the library.

use std::env;
use std::path::PathBuf;

#[cfg(feature = "bindgen")]
#[path = "build/bindings.rs"]
mod bindings;
#[cfg(feature = "bindgen")]
#[path = "build/check_header.rs"]
mod check_header;
#[path = "build/committed.rs"]
mod committed;
#[path = "build/generated.rs"]
mod generated;
#[cfg(feature = "link")]
#[path = "build/link.rs"]
mod link;

fn main() {
    println!("cargo::rustc-check-cfg=cfg(nccl_archive, nccl_linked)");
    for input in ["build.rs", "build", "wrapper.h", "vendor-headers", committed::DIRECTORY] {
        println!("cargo::rerun-if-changed={input}");
    }
    let path = |name| PathBuf::from(env::var_os(name).unwrap_or_else(|| panic!("cargo sets {name}")));
    let (root, out) = (path("CARGO_MANIFEST_DIR"), path("OUT_DIR"));

    if env::var("CARGO_CFG_TARGET_POINTER_WIDTH").is_ok_and(|width| width != "64") {
        println!(
            "cargo::error=libnccl is for 64-bit targets: NCCL exists for no other, and its types are laid out for them"
        );
        return;
    }
    #[cfg(feature = "bindgen")]
    // SAFETY: nothing before has started a thread.
    unsafe {
        bindings::remove_extra_arguments();
    }
    generated::write(&root, &out);
    check_header(&root, &out);
    #[cfg(feature = "link")]
    link_library(&out);
}

#[cfg(feature = "bindgen")]
use check_header::check as check_header;

#[cfg(not(feature = "bindgen"))]
fn check_header(_: &std::path::Path, _: &std::path::Path) {
    println!("cargo::rerun-if-env-changed=LIBNCCL_CHECK_HEADER");
    if let Some(header) = env::var_os("LIBNCCL_CHECK_HEADER").filter(|header| !header.is_empty()) {
        panic!("LIBNCCL_CHECK_HEADER is {header:?}, and the check needs the feature `bindgen` of libnccl");
    }
}

/// Tells cargo what to link, unless `LIBNCCL_NO_LINK` is set or the target is not Linux, which alone has NCCL.
///
/// Features are additive: once a crate of the build has enabled `link`, no other crate can disable it. The
/// variable lets whoever builds the final program do so.
#[cfg(feature = "link")]
fn link_library(out: &std::path::Path) {
    for variable in link::INPUTS {
        println!("cargo::rerun-if-env-changed={variable}");
    }
    if link::is_vetoed(link::variable) {
        return;
    }
    println!("cargo::rustc-cfg=nccl_linked");
    if link::variable("DOCS_RS").is_some() {
        return; // docs.rs links nothing and may have no C compiler for the target.
    }
    link::check(link::variable).unwrap_or_else(|problem| panic!("{problem}"));
    let defaults = link::default_directories(link::variable, &link::linker_cache());
    let found = link::find(link::variable, &defaults, std::path::Path::exists);
    for path in link::watched(&found, link::variable, &defaults) {
        println!("cargo::rerun-if-changed={}", path.display());
    }
    match found {
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
    // With `-flto` in CFLAGS, which come after this crate's flags, there would be no code that rustc's linker can read.
    build.flag_if_supported("-ffat-lto-objects").warnings(false).compile("nccl_archive_functions");
}
