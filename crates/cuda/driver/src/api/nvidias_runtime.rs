//! NVIDIA's own runtime library, which needs more of a driver than is documented, and so does not run on this one.

use std::ffi::{CStr, OsStr, c_void};
use std::fmt::Write;
use std::mem::MaybeUninit;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::ptr;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use crate::message;

static IS_KNOWN: AtomicBool = AtomicBool::new(false);

/// Returns true once the runtime library is known to be in the process, which has been told what that means.
pub(super) fn is_known() -> bool {
    IS_KNOWN.load(Relaxed)
}

/// Says once that the caller is NVIDIA's runtime library, a shared object or a part of the caller, and what runs instead: this is
/// called for what it asks of a driver first.
pub(super) fn report() {
    if IS_KNOWN.swap(true, Relaxed) {
        return;
    }
    let own = object_of(report as fn() as *const c_void).unwrap_or_default();
    let caller = caller(&own).unwrap_or_else(|| "a file of this process".into());
    let name = caller.file_name().unwrap_or_default().as_bytes();
    let caller = caller.display();
    let message = if name.starts_with(b"libcudart.so") {
        format!(
            "libnccl: {caller} is NVIDIA's, and does not run on the CPU stand-in for CUDA: start the program with `nccl run --cpu`, or \
             with{}\n",
            preload(&own)
        )
    } else {
        format!(
            "libnccl: {caller} asks for per-thread default streams, which the CPU stand-in for CUDA does not have; so does NVIDIA's \
             runtime library, if it is linked in, as by nvcc's default: nvcc -cudart shared links one that runs here\n"
        )
    };
    message::write(&message);
}

/// Returns the variable by which the libraries beside this one are preloaded.
fn preload(own: &Path) -> String {
    let folder = own.parent().unwrap_or(own);
    let mut text = " LD_PRELOAD=".to_owned();
    // In the Python wheel, NCCL is in another folder.
    let names = ["libcudart.so.12", "libcudart.so.13", "libnccl.so.2", "../lib/libnccl.so.2"];
    for (place, file) in names.map(|name| folder.join(name)).iter().filter(|file| file.exists()).enumerate() {
        let _ = write!(text, "{}{}", if place > 0 { ":" } else { "" }, file.display());
    }
    text
}

/// Returns the file of the nearest caller that is not this library.
fn caller(own: &Path) -> Option<PathBuf> {
    let mut frames = [ptr::null_mut(); 32];
    // SAFETY: so many addresses can be stored.
    let count = unsafe { libc::backtrace(frames.as_mut_ptr(), frames.len() as i32) };
    let frames = frames.iter().take(usize::try_from(count).unwrap_or(0));
    frames.filter_map(|frame| object_of(*frame)).find(|file| file != own)
}

/// Returns the file of the object with this code.
fn object_of(address: *const c_void) -> Option<PathBuf> {
    let mut information = MaybeUninit::<libc::Dl_info>::zeroed();
    // SAFETY: any address may be asked for. All pointers of the answer may be null, and its name is a C string that lives as long as
    // the object.
    let name = unsafe {
        libc::dladdr(address, information.as_mut_ptr());
        information.assume_init().dli_fname.as_ref().map(|name| CStr::from_ptr(name))
    };
    name.map(|name| PathBuf::from(OsStr::from_bytes(name.to_bytes())))
}
