//! Generates code from the table of functions, and sets the shared object's soname to the soname of CUDA's driver.

use std::env;

use libnccl_cuda_functions::{addresses, read_for_build, stubs, write_for_build};

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    let functions = read_for_build("functions.txt");
    write_for_build("stubs.rs", &stubs(&functions));
    write_for_build("addresses.rs", &addresses(&functions));
    let mut arguments = vec![
        "-Wl,-soname,libcuda.so.1",
        // Binds its calls to its own functions, even if other objects in the process have functions with the same names.
        "-Wl,-Bsymbolic",
        // Its threads run until the process ends, even if the program closes it.
        "-Wl,-z,nodelete",
    ];
    // With a sanitizer, the program defines functions that the library calls.
    if env::var_os("CARGO_CFG_SANITIZE").is_none() {
        // A supported function that src does not define is an error.
        arguments.push("-Wl,-z,defs");
    }
    for argument in arguments {
        println!("cargo::rustc-cdylib-link-arg={argument}");
    }
}
