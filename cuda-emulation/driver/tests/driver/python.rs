//! The stacks of Python programs.

use std::process::Command;

use crate::process;

/// The Python versions whose frames are reported.
const RELEASES: [&str; 2] = ["python3.11", "python3.12"];

/// Fills the same memory on two streams.
const PROGRAM: &str = "
import ctypes

cuda = ctypes.CDLL('libcuda.so.1')
context, memory = ctypes.c_void_p(), ctypes.c_uint64()
streams = ctypes.c_void_p(), ctypes.c_void_p()
cuda.cuInit(0)
cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0)
cuda.cuCtxSetCurrent(context)
cuda.cuMemAlloc_v2(ctypes.byref(memory), ctypes.c_size_t(64))

def fill(stream):
    cuda.cuStreamCreate(ctypes.byref(stream), 1)
    cuda.cuMemsetD8Async(memory, ctypes.c_ubyte(1), ctypes.c_size_t(64), stream)

for stream in streams:
    fill(stream)
cuda.cuCtxSynchronize()
";

pub(crate) fn run() -> Result<(), String> {
    let is_there = |release: &&str| {
        Command::new(release).arg("--version").output().is_ok_and(|output| output.status.success())
    };
    let found: Vec<_> = RELEASES.into_iter().filter(is_there).collect();
    if found.is_empty() {
        eprintln!("skipped: the stacks of Python programs, as there is no {}", RELEASES.join(" and no "));
    }
    for release in found {
        let mut command = Command::new(release);
        command
            .args(["-c", PROGRAM])
            .env("LD_LIBRARY_PATH", process::directory())
            .env("LIBNCCL_CPU_STACKS", "1");
        let output = command.output().map_err(|error| error.to_string())?;
        let errors = String::from_utf8_lossy(&output.stderr);
        let frames = "\n        fill at <string>:14\n        <module> at <string>:17\n";
        if errors.matches(frames).count() != 2 || errors.contains("_PyEval_") {
            return Err(format!("{release}: {}\n{errors}", output.status));
        }
    }
    Ok(())
}
