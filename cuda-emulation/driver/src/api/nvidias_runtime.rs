//! NVIDIA's runtime library, alone or linked into another file. It needs undocumented functions of a driver, so it does not run
//! on this driver.

use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::ptr;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use cuda_common::object_of;

use crate::error::print;

static IS_KNOWN: AtomicBool = AtomicBool::new(false);

/// Returns whether NVIDIA's runtime library was reported.
pub(super) fn is_known() -> bool {
    IS_KNOWN.load(Relaxed)
}

/// Reports once that the caller is, or contains, NVIDIA's runtime library, and which library to use instead.
pub(super) fn report() {
    if IS_KNOWN.swap(true, Relaxed) {
        return;
    }
    let own = object_of(report as fn() as usize).unwrap_or_default();
    let caller = caller(&own).unwrap_or_else(|| "a file of this process".into());
    print(&text(&caller, &own));
}

fn text(caller: &Path, own: &Path) -> String {
    let name = caller.file_name().unwrap_or_default().to_string_lossy();
    let is_nvidias = OF_NVIDIA.split(' ').any(|library| name.starts_with(&format!("lib{library}.so")));
    let caller = caller.display();
    if name.starts_with("libcudart.so") {
        format!(
            "libnccl: {caller} is NVIDIA's, and does not run on the CUDA emulation: start the program with `nccl run --cpu`, or \
             with{}\n",
            preload(own)
        )
    } else if name.contains("nccl") {
        format!(
            "libnccl: {caller} is NVIDIA's NCCL, and does not run on the CUDA emulation: something in this process has loaded it by its path, \
             which LD_LIBRARY_PATH and LD_PRELOAD do not change. Load libnccl.so.2 by that name alone, or give the path of the CPU \
             backend's{} (in vLLM, VLLM_NCCL_SO_PATH)\n",
            nccl_beside(own).map_or_else(String::new, |file| format!(", {}", file.display())),
        )
    } else if is_nvidias {
        format!(
            "libnccl: {caller} is NVIDIA's, has NVIDIA's runtime library linked in, and does not run on the CUDA emulation\n"
        )
    } else {
        format!(
            "libnccl: {caller} uses per-thread default streams, which the CUDA emulation does not support. NVIDIA's runtime \
             library uses them too, and nvcc links it into a file by default: link with nvcc -cudart shared instead\n"
        )
    }
}

/// NVIDIA's libraries that link its runtime library statically, apart from NCCL.
const OF_NVIDIA: &str = "cublas cublasLt cudnn cufft cufile cupti curand cusolver cusparse cusparseLt nvrtc nvJitLink nvshmem_host";

/// The paths of NCCL's CPU backend, relative to this library. The Python wheel has the backend in another directory.
const NCCL: [&str; 2] = ["libnccl.so.2", "../lib/libnccl.so.2"];

fn nccl_beside(own: &Path) -> Option<PathBuf> {
    let directory = own.parent()?;
    NCCL.iter().map(|name| directory.join(name)).find(|file| file.exists())
}

/// Returns an `LD_PRELOAD` setting with the libraries of this library's directory.
fn preload(own: &Path) -> String {
    let folder = own.parent().unwrap_or(own);
    let mut text = " LD_PRELOAD=".to_owned();
    let names = ["libcudart.so.12", "libcudart.so.13", NCCL[0], NCCL[1]];
    for (place, file) in names.map(|name| folder.join(name)).iter().filter(|file| file.exists()).enumerate() {
        let _ = write!(text, "{}{}", if place > 0 { ":" } else { "" }, file.display());
    }
    text
}

/// Returns the file of the nearest caller outside this library.
fn caller(own: &Path) -> Option<PathBuf> {
    let mut frames = [ptr::null_mut(); 32];
    // SAFETY: so many addresses can be stored.
    let count = unsafe { libc::backtrace(frames.as_mut_ptr(), frames.len() as i32) };
    let frames = frames.iter().take(usize::try_from(count).unwrap_or(0));
    frames.filter_map(|frame| object_of(frame.addr())).find(|file| file != own)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_names_the_file_that_called_and_the_remedy_for_it() {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let own = directory.path().join("libcuda.so.1");
        let cpu = directory.path().join("libnccl.so.2");
        std::fs::write(&cpu, "").expect("a file");
        for (caller, expected) in [
            ("/a/libcudart.so.12", "with `nccl run --cpu`, or with LD_PRELOAD="),
            ("/a/nvidia/nccl/lib/libnccl.so.2", "Load libnccl.so.2 by that name alone"),
            ("/a/libnccl_2.28.9.so", cpu.to_str().expect("UTF-8")),
            ("/a/libcudnn.so.9", "is NVIDIA's, has NVIDIA's runtime library linked in"),
            ("/a/program", "nvcc links it into a file by default"),
            ("/a/libcudnn_own.so", "nvcc -cudart shared"),
        ] {
            let text = text(Path::new(caller), &own);
            assert!(text.starts_with(&format!("libnccl: {caller} ")), "{text}");
            assert!(text.contains(expected), "{text}");
            assert_eq!(text.contains("-cudart shared"), expected.contains("nvcc"), "{text}");
        }
    }
}
