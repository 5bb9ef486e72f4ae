//! Gives the shared object the soname and the symbol versions of CUDA's runtime library.

use std::env;

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    let release = if env::var_os("CARGO_FEATURE_CUDA_13").is_some() { 13 } else { 12 };
    for argument in [
        &*format!("-Wl,-soname,libcudart.so.{release}"),
        // Versions of symbols are named like the soname in NVIDIA's library, which programs linked with it ask for. Of
        // the usual linkers, only GNU ld adds a version to what rustc exports.
        "-Wl,--default-symver",
        "-fuse-ld=bfd",
        // Binds its own calls to its own functions, whatever else in the process has their names.
        "-Wl,-Bsymbolic",
        // Other libraries and functions of `atexit` may call it after the program has closed it.
        "-Wl,-z,nodelete",
    ] {
        println!("cargo::rustc-cdylib-link-arg={argument}");
    }
}
