//! Generates stubs from the table of functions, and gives the shared object the soname and the symbol versions of the CUDA runtime.

use std::env;

use libnccl_cuda_functions::{read_for_build, stubs, write_for_build};

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    let major = if env::var_os("CARGO_FEATURE_CUDA_13").is_some() { 13 } else { 12 };
    let functions = read_for_build("functions.txt");
    write_for_build("stubs.rs", &stubs(functions.iter().filter(|function| function.is_in(major))));
    for argument in [
        &*format!("-Wl,-soname,libcudart.so.{major}"),
        // In NVIDIA's library, the version of every symbol is the soname, and programs linked with it require that version.
        // Of the usual linkers, only GNU ld adds a version to the symbols that rustc exports.
        "-Wl,--default-symver",
        "-fuse-ld=bfd",
        // Calls between its own functions stay in it, whatever else in the process has their names.
        "-Wl,-Bsymbolic",
        // Other libraries and functions of `atexit` may call it after the program has closed it.
        "-Wl,-z,nodelete",
    ] {
        println!("cargo::rustc-cdylib-link-arg={argument}");
    }
}
