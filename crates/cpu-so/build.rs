//! Gives the shared object NCCL's name.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libnccl.so.2");
    // Its own functions call each other, whatever else in the process has their names.
    println!("cargo::rustc-cdylib-link-arg=-Wl,-Bsymbolic");
}
