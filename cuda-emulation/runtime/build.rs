//! Generates stubs from the table of functions, and names the shared object as the CUDA runtime.

use std::env;

fn main() {
    let major = if env::var_os("CARGO_FEATURE_CUDA_13").is_some() { 13 } else { 12 };
    libnccl_cuda_functions::build_library("functions.txt", major, &format!("libcudart.so.{major}"));
}
