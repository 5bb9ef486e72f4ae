//! Generates stubs from the table of functions and the names of the driver's functions, and names the shared object as the CUDA
//! runtime.

use std::env;

use libnccl_cuda_functions::{build_library, names, read_for_build, write_for_build};

fn main() {
    let major = if env::var_os("CARGO_FEATURE_CUDA_13").is_some() { 13 } else { 12 };
    write_for_build("driver_names.rs", &names(&read_for_build("../driver/functions.txt")));
    build_library("functions.txt", major, &format!("libcudart.so.{major}"));
}
