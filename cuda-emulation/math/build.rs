//! Generates stubs from the table of functions, and gives the shared object the soname and the symbol versions of NVIDIA's library.

use std::env;

use libnccl_cuda_functions::{read_for_build, stubs, write_for_build};

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    let has = |feature: &str| env::var_os(format!("CARGO_FEATURE_{feature}")).is_some();
    let (library, major) = match (has("CURAND"), has("CUBLAS_13")) {
        (true, _) => ("curand", 10),
        (_, true) => ("cublas", 13),
        _ => ("cublas", 12),
    };
    let functions = read_for_build(&format!("{library}.txt"));
    write_for_build("stubs.rs", &stubs(functions.iter().filter(|function| function.is_in(major))));
    for argument in [
        &*format!("-Wl,-soname,lib{library}.so.{major}"),
        // As in the emulated runtime.
        "-Wl,--default-symver",
        "-fuse-ld=bfd",
        "-Wl,-Bsymbolic",
        "-Wl,-z,nodelete",
    ] {
        println!("cargo::rustc-cdylib-link-arg={argument}");
    }
}
