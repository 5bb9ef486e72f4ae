//! Sets the shared object's soname to that of CUDA's driver.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libcuda.so.1");
    // Binds its own calls to its own functions, whatever else in the process has their names.
    println!("cargo::rustc-cdylib-link-arg=-Wl,-Bsymbolic");
    // Its threads run until the process ends, even if the program closes it.
    println!("cargo::rustc-cdylib-link-arg=-Wl,-z,nodelete");
}
