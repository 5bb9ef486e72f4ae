//! Writes the bindings into `OUT_DIR` and, with feature `link`, finds and links the library.

use std::env;
use std::path::PathBuf;

#[cfg(feature = "bindgen")]
#[path = "build/bindings.rs"]
mod bindings;
#[cfg(feature = "link")]
#[path = "build/link.rs"]
mod link;
#[path = "build/snapshot.rs"]
mod snapshot;

fn main() {
    println!("cargo::rustc-check-cfg=cfg(nccl_linked)");
    for input in ["build.rs", "build", "wrapper.h", "vendor-headers", snapshot::DIRECTORY] {
        println!("cargo::rerun-if-changed={input}");
    }
    let root = PathBuf::from(env::var_os("CARGO_MANIFEST_DIR").expect("cargo sets CARGO_MANIFEST_DIR"));
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));

    #[cfg(feature = "bindgen")]
    let fresh = snapshot::fresh_bindings(&root);
    #[cfg(not(feature = "bindgen"))]
    let fresh = None;
    snapshot::write_bindings(&root, &out, fresh);

    #[cfg(feature = "link")]
    link_library(&out);
}

/// Tells cargo what to link, unless whoever builds the final program has vetoed it.
///
/// Features are additive: once any crate of a build has switched `link` on, no other can take that back.
#[cfg(feature = "link")]
fn link_library(out: &std::path::Path) {
    for variable in link::INPUTS {
        println!("cargo::rerun-if-env-changed={variable}");
    }
    if env::var_os("LIBNCCL_NO_LINK").is_some_and(|veto| veto != "0") {
        return;
    }
    println!("cargo::rustc-cfg=nccl_linked");
    if env::var_os("DOCS_RS").is_some() {
        return; // Nothing is linked there, and there may be no C compiler for the target.
    }
    let tables = ["linked.c", "device.c"].map(|file| out.join(file));
    cc::Build::new().files(tables).warnings(false).compile("nccl_linked_functions");
    match link::find(|name| env::var_os(name), &link::default_directories(), std::path::Path::exists) {
        Ok(library) => library.directives().iter().for_each(|directive| println!("cargo::{directive}")),
        Err(missing) if missing.named => panic!("{missing}"),
        Err(missing) => {
            // Checking and documenting need no library; if this is more, the linker will say so.
            println!("cargo::warning={missing}");
            println!("cargo::rustc-link-lib=dylib=nccl");
        }
    }
}
