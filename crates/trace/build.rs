//! Sets the shared object's soname to NCCL's.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    // Once it is preloaded, the dynamic linker uses it for every object that needs this name.
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libnccl.so.2");
    // Binds its calls to its own functions, even if other objects in the process have functions with the same names.
    println!("cargo::rustc-cdylib-link-arg=-Wl,-Bsymbolic");
    // Never unloaded: threads use its data, and forked children call its handler.
    println!("cargo::rustc-cdylib-link-arg=-Wl,-z,nodelete");
}
