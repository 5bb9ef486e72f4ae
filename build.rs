//! Writes the bindings into `OUT_DIR` and, with feature `link`, links NCCL.

use std::env;
#[cfg(feature = "bindgen")]
use std::path::Path;
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
    let path = |name| PathBuf::from(env::var_os(name).unwrap_or_else(|| panic!("cargo sets {name}")));
    let root = path("CARGO_MANIFEST_DIR");
    #[cfg(feature = "bindgen")]
    // SAFETY: no thread has been started yet.
    unsafe {
        bindings::remove_extra_arguments();
    }
    #[cfg(feature = "bindgen")]
    if let [_, task, directory] = &*env::args_os().collect::<Vec<_>>() {
        run_task(&root, &task.to_string_lossy(), directory.as_ref());
    }
    println!("cargo::rustc-check-cfg=cfg(nccl_archive, nccl_linked)");
    for input in ["build.rs", "build", "wrapper.h", "vendor-headers", generated::DIRECTORY] {
        println!("cargo::rerun-if-changed={input}");
    }
    let out = path("OUT_DIR");

    if env::var("CARGO_CFG_TARGET_POINTER_WIDTH").is_ok_and(|width| width != "64") {
        println!(
            "cargo::error=libnccl is for 64-bit targets: NCCL exists for no other, and its types are laid out for them"
        );
        return;
    }
    generated::write(&root, &out);
    check_header::check(&root, &out);
    #[cfg(feature = "link")]
    link::link(&out);
}

/// Runs a task of `cargo xtask` on a directory, and exits. cargo passes no arguments to a build script.
#[cfg(feature = "bindgen")]
fn run_task(root: &Path, task: &str, directory: &Path) -> ! {
    let result = bindings::find_libclang().and_then(|()| match task {
        "bindings" => generated::write_fresh(root, directory),
        "headers" => check_header::official::run(root, directory),
        _ => Err(format!("the task is {task:?}; expected bindings or headers")),
    });
    if let Err(reason) = &result {
        eprintln!("{reason}");
    }
    std::process::exit(result.is_err().into())
}
