//! Writes the bindings into `OUT_DIR` and, with feature `link`, links NCCL.

use std::env;
use std::path::PathBuf;

#[cfg(feature = "bindgen")]
#[path = "build/bindings.rs"]
mod bindings;
#[path = "build/check_header/mod.rs"]
mod check_header;
#[path = "build/generated.rs"]
mod generated;
#[cfg(feature = "link")]
#[path = "build/link/mod.rs"]
mod link;

fn main() {
    println!("cargo::rustc-check-cfg=cfg(nccl_archive, nccl_linked)");
    for input in ["build.rs", "build", "wrapper.h", "vendor-headers", generated::DIRECTORY] {
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
    // SAFETY: no thread has been started yet.
    unsafe {
        bindings::remove_extra_arguments();
    }
    generated::write(&root, &out);
    check_header::check(&root, &out);
    #[cfg(feature = "link")]
    link::link(&out);
}
