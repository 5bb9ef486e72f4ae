//! Generates stubs from the table of functions, and names the shared object as NVIDIA's management library.

fn main() {
    libnccl_cuda_functions::build_library("functions.txt", 12, "libnvidia-ml.so.1");
}
