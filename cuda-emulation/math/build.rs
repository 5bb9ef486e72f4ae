//! Generates stubs from the table of functions, and names the shared object as NVIDIA's library.

use std::env;

fn main() {
    let has = |feature: &str| env::var_os(format!("CARGO_FEATURE_{feature}")).is_some();
    let (library, major) = match (has("CURAND"), has("CUBLAS_13")) {
        (true, _) => ("curand", 10),
        (_, true) => ("cublas", 13),
        _ => ("cublas", 12),
    };
    let soname = format!("lib{library}.so.{major}");
    libnccl_cuda_functions::build_library(&format!("{library}.txt"), major, &soname);
}
