//! Sets the shared object's soname to NCCL's.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    // Once it is preloaded, the dynamic linker gives it to whoever asks for this name.
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libnccl.so.2");
    // Binds its own calls to its own functions, whatever else in the process has their names.
    println!("cargo::rustc-cdylib-link-arg=-Wl,-Bsymbolic");
    // Threads have its data, and forked children its handler.
    println!("cargo::rustc-cdylib-link-arg=-Wl,-z,nodelete");
}
