//! Generates stubs from the table of functions, and gives the shared object the soname of NVIDIA's management library.

use libnccl_cuda_functions::{read_for_build, stubs, write_for_build};

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    write_for_build("stubs.rs", &stubs(&read_for_build("functions.txt")));
    for argument in [
        "-Wl,-soname,libnvidia-ml.so.1",
        // As in NVIDIA's library, and in the emulated runtime.
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
