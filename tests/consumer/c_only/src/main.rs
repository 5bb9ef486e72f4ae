//! Prints NCCL's version, with a function that is declared here.

#[cfg(feature = "named")]
use libnccl as _;

unsafe extern "C" {
    fn ncclGetVersion(version: *mut i32) -> u32;
}

fn main() {
    let mut version = 0;
    // SAFETY: a place for the version.
    let code = unsafe { ncclGetVersion(&raw mut version) };
    println!("{code} {version}");
}
