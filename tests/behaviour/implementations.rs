//! The implementations of NCCL that this test program can reach.

use libnccl::Nccl;

pub(crate) struct Implementation {
    pub(crate) name: &'static str,
    /// The library, or the reason why it is missing.
    pub(crate) nccl: Result<Nccl, String>,
}

pub(crate) fn all() -> Vec<Implementation> {
    vec![
        Implementation { name: "CPU in process", nccl: Ok(libnccl_cpu::nccl()) },
        Implementation { name: "CPU shared object by dlopen", nccl: cpu_shared_object() },
        Implementation { name: "linked library", nccl: linked() },
        Implementation { name: "real library by dlopen", nccl: real() },
    ]
}

#[cfg(feature = "dlopen")]
fn cpu_shared_object() -> Result<Nccl, String> {
    let file = build_cpu_shared_object()?;
    // SAFETY: built from crates/cpu-so just before.
    unsafe { Nccl::open(&file) }.map_err(|e| e.to_string())
}

/// Builds the shared object: Cargo does not build another package's cdylib for tests.
#[cfg(feature = "dlopen")]
fn build_cpu_shared_object() -> Result<std::path::PathBuf, String> {
    let target = std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join("cpu-so");
    let output = std::process::Command::new(env!("CARGO"))
        .args(["build", "--quiet", "--package", "libnccl-cpu-so", "--target-dir"])
        .arg(&target)
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .output()
        .map_err(|e| format!("cargo: {e}"))?;
    if output.status.success() {
        Ok(target.join("debug/libnccl_cpu.so"))
    } else {
        panic!("crates/cpu-so does not build:\n{}", String::from_utf8_lossy(&output.stderr))
    }
}

#[cfg(feature = "dlopen")]
fn real() -> Result<Nccl, String> {
    let file = std::env::var_os("LIBNCCL_TEST_LIBRARY").ok_or("LIBNCCL_TEST_LIBRARY is not set")?;
    if cfg!(nccl_linked) {
        // Two NCCLs in one process interpose: its internal calls would end up in the linked one.
        return Err("another library is linked".into());
    }
    // SAFETY: whoever set the variable says that it is NCCL.
    Ok(unsafe { Nccl::open(file) }.expect("LIBNCCL_TEST_LIBRARY can be loaded"))
}

#[cfg(not(feature = "dlopen"))]
fn cpu_shared_object() -> Result<Nccl, String> {
    Err("built without feature dlopen".into())
}

#[cfg(not(feature = "dlopen"))]
fn real() -> Result<Nccl, String> {
    Err("built without feature dlopen".into())
}

#[cfg(nccl_linked)]
fn linked() -> Result<Nccl, String> {
    Ok(Nccl::linked().expect("a linked library answers its version"))
}

#[cfg(not(nccl_linked))]
fn linked() -> Result<Nccl, String> {
    Err("built without feature link".into())
}
