//! Gives the shared object the soname and the symbol versions of NVIDIA's library.

use std::env;

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    let has = |feature: &str| env::var_os(format!("CARGO_FEATURE_{feature}")).is_some();
    let soname = match (has("CURAND"), has("CUBLAS_13")) {
        (true, _) => "libcurand.so.10",
        (_, true) => "libcublas.so.13",
        _ => "libcublas.so.12",
    };
    for argument in [
        &*format!("-Wl,-soname,{soname}"),
        // As in the stand-in for the runtime library.
        "-Wl,--default-symver",
        "-fuse-ld=bfd",
        "-Wl,-Bsymbolic",
        // As there.
        "-Wl,-z,nodelete",
    ] {
        println!("cargo::rustc-cdylib-link-arg={argument}");
    }
}
