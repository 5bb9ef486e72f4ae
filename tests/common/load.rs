//! `Nccl::load` in processes of their own: it searches once, and in the environment.

use std::path::Path;
use std::process::Command;

use libnccl::Nccl;

/// `Nccl::load` in a process with this environment: what it printed.
pub(crate) fn load_with(environment: &[(&str, &Path)]) -> String {
    let mut child = Command::new(std::env::current_exe().unwrap());
    child.args(["--ignored", "--exact", "load::child_loads", "--nocapture"]);
    for variable in [
        "LIBNCCL_PATH",
        "LD_LIBRARY_PATH",
        "VIRTUAL_ENV",
        "CONDA_PREFIX",
        "NCCL_HOME",
        "CUDA_HOME",
        "PATH",
        "ROCM_PATH",
    ] {
        child.env_remove(variable);
    }
    let output = child.envs(environment.iter().copied()).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap()
}

/// Not a test of its own: what [`load_with`] runs.
#[test]
#[ignore = "the other tests run it, each in a process of its own"]
fn child_loads() {
    match Nccl::load() {
        Ok(nccl) => println!("loaded {} {:?}", nccl.version(), nccl.backend()),
        Err(error) => println!("error: {error}"),
    }
}
