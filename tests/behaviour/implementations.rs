//! The implementations of NCCL that this test program can reach.

use libnccl::Nccl;

/// Returns the name of each implementation that this program is built for, and the library or the reason why it is missing.
pub(crate) fn all() -> Vec<(&'static str, Result<Nccl, String>)> {
    vec![
        ("CPU in process", Ok(libnccl_cpu::nccl())),
        #[cfg(feature = "dlopen")]
        ("CPU shared object by dlopen", cpu_shared_object()),
        #[cfg(nccl_linked)]
        ("linked library", Ok(Nccl::linked().expect("a linked library returns its version"))),
        #[cfg(feature = "dlopen")]
        ("real library by dlopen", real()),
    ]
}

#[cfg(feature = "dlopen")]
fn cpu_shared_object() -> Result<Nccl, String> {
    // SAFETY: built from crates/cpu-so, next to this program.
    unsafe { Nccl::open(libnccl_test_support::shared_object("nccl_cpu")) }.map_err(|e| e.to_string())
}

#[cfg(feature = "dlopen")]
fn real() -> Result<Nccl, String> {
    let file = std::env::var_os("LIBNCCL_TEST_LIBRARY").ok_or("LIBNCCL_TEST_LIBRARY is not set")?;
    if cfg!(nccl_linked) {
        // Two NCCLs in one process interpose: its internal calls would end up in the linked one.
        return Err("another library is linked".into());
    }
    // SAFETY: the variable names a NCCL library.
    Ok(unsafe { Nccl::open(file) }.expect("LIBNCCL_TEST_LIBRARY can be loaded"))
}
