//! One sentence instead of an error for each thing that only Linux has.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    let system = std::env::var("CARGO_CFG_TARGET_OS").unwrap_or_default();
    if system != "linux" {
        println!("cargo::error=libnccl-cpu is for Linux; the target's operating system is {system}");
    }
}
