//! Sets `cfg(libclang)` if libclang is installed; tests that need it are ignored otherwise.

fn main() {
    println!("cargo::rustc-check-cfg=cfg(libclang)");
    println!("cargo::rerun-if-env-changed=LIBCLANG_PATH");
    if clang_sys::load().is_ok() {
        println!("cargo::rustc-cfg=libclang");
    }
}
