//! Gives the shared object the soname of NVIDIA's management library.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    for argument in [
        "-Wl,-soname,libnvidia-ml.so.1",
        // As NVIDIA's library has them, and libnccl's stand-in for the runtime library.
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
