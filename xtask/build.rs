//! Tells the tests whether there is a libclang here: what needs it is listed as ignored where there is none.

fn main() {
    println!("cargo::rustc-check-cfg=cfg(libclang)");
    println!("cargo::rerun-if-env-changed=LIBCLANG_PATH");
    if clang_sys::load().is_ok() {
        println!("cargo::rustc-cfg=libclang");
    }
}
