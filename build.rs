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
    let root = PathBuf::from(env::var_os("CARGO_MANIFEST_DIR").expect("cargo sets CARGO_MANIFEST_DIR"));
    #[cfg(feature = "bindgen")]
    if let Some(directory) = env::args_os().nth(1) {
        let fresh = bindings::Bindings::generate(&root).map(|bindings| bindings.0);
        return generated::write_fresh(fresh, directory.as_ref());
    }
    println!("cargo::rustc-check-cfg=cfg(nccl_linked)");
    for input in ["build.rs", "build", "wrapper.h", "vendor-headers", generated::DIRECTORY] {
        println!("cargo::rerun-if-changed={input}");
    }
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));

    #[cfg(feature = "bindgen")]
    generated::compare_with_bindgen(&root, &out);
    generated::write_bindings(&root, &out);

    #[cfg(feature = "link")]
    link_library(&out);
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
    let tables = ["linked.c", "device.c"].map(|file| out.join(file));
    // With `-flto` in CFLAGS, which come after this crate's flags, there would be no code that rustc's linker can read.
    let mut compiler = cc::Build::new();
    compiler
        .flag_if_supported("-ffat-lto-objects")
        .files(tables)
        .warnings(false)
        .compile("nccl_linked_functions");
    let defaults = link::default_directories();
    let found = link::find(link::variable, &defaults, std::path::Path::exists);
    for path in link::watched(&found, link::variable, &defaults) {
        println!("cargo::rerun-if-changed={}", path.display());
    }
    match found {
        Ok(library) => library.directives().iter().for_each(|directive| println!("cargo::{directive}")),
        Err(missing) if missing.named => panic!("{missing}"),
        Err(missing) => {
            // `cargo check` and `cargo doc` need no library; for any other command the linker reports it.
            println!("cargo::warning={missing}");
            println!("cargo::rustc-link-lib=dylib=nccl");
        }
    }
}
