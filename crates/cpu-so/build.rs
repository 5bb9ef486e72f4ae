//! Sets the shared object's soname to NCCL's.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libnccl.so.2");
    // Binds its calls to its own functions, even if other objects in the process have functions with the same names.
    println!("cargo::rustc-cdylib-link-arg=-Wl,-Bsymbolic");
    // Streams, graphs and threads call it after the program has closed it.
    println!("cargo::rustc-cdylib-link-arg=-Wl,-z,nodelete");
}
