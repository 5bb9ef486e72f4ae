//! Loading of the NCCL library, and of the CUDA driver or its emulation.
#![allow(unsafe_code)]

use std::error::Error;
use std::ffi::{c_int, c_uint, c_void};
use std::mem::ManuallyDrop;
use std::path::{Path, PathBuf};
use std::ptr;

use anyhow::Result;
use cuda_common::{Interface, object_of};
use cudarc::driver::CudaContext;
use libnccl::error::{Attempt, LoadError};
use libnccl::{Backend, Nccl};

use crate::nccl_file::Cuda;

/// Loads the file that the user named, or searches the system for a library.
pub(crate) fn load(path: Option<&Path>) -> Result<Nccl, LoadError> {
    match path {
        // SAFETY: the user vouches that the file is an NCCL library, as they do for a program that they start.
        Some(path) => unsafe { Nccl::open(path) },
        None => Nccl::load(),
    }
}

/// Does the same as [`load`], but returns `None` if there is no library and the user named none. If the user named one, using
/// another implementation would hide a mistake.
pub(crate) fn find(path: Option<&Path>) -> Result<Option<Nccl>, LoadError> {
    match load(path) {
        Err(LoadError::NotFound { attempts })
            if path.is_none() && !attempts.iter().any(is_named_by_variable) =>
        {
            Ok(None)
        }
        loaded => loaded.map(Some),
    }
}

/// Returns the library that this program is linked with. Fails if there is none.
pub(crate) fn linked() -> Result<Nccl> {
    #[cfg(feature = "link")]
    return Ok(Nccl::linked()?);
    #[cfg(not(feature = "link"))]
    anyhow::bail!("this program is not linked with NCCL: expected one that was built with `--features link`")
}

/// Loads a library at run time: the file that the user named, the one that this program is linked with, or a search's result.
pub(crate) fn open(path: Option<&Path>) -> Result<Nccl> {
    let linked = linked().ok();
    let of_program = match linked.as_ref().map(Nccl::backend) {
        Some(Backend::Linked { path }) => path.as_deref(),
        _ => None,
    };
    Ok(load(path.or(of_program))?)
}

pub(crate) fn is_named_by_variable(attempt: &Attempt) -> bool {
    attempt.source == libnccl::internal::PATH_VARIABLE && !attempt.path.as_os_str().is_empty()
}

/// Loads an NCCL plugin, as NCCL does, and never unloads it.
pub(crate) fn open_plugin(name: &str) -> Result<(), String> {
    use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW};

    // SAFETY: the user has named the plugin for NCCL, which runs its initializers too.
    let plugin = unsafe { Library::open(Some(name), RTLD_NOW | RTLD_LOCAL) };
    plugin.map(std::mem::forget).map_err(|error| reason(&error))
}

pub(crate) const DRIVER: &str = "libcuda.so.1";

/// Returns the number of GPUs, at least one, or the reason why there is none.
pub(crate) fn gpus() -> Result<usize, String> {
    load_driver()?;
    match CudaContext::device_count() {
        Ok(count @ 1..) => Ok(count as usize),
        Ok(_) => Err("the CUDA driver reports no GPU".into()),
        Err(error) => Err(format!("the CUDA driver cannot be used: {error}")),
    }
}

/// Returns the newest CUDA version that the driver supports; `None` without a driver.
pub(crate) fn newest_cuda() -> Option<Cuda> {
    load_driver().ok()?;
    let mut code = 0;
    // SAFETY: the driver is loaded, and gets a valid place for a number.
    unsafe { cudarc::driver::sys::cuDriverGetVersion(&raw mut code) }.result().ok()?;
    let code = u32::try_from(code).ok()?;
    Some(Cuda { major: code / 1000, minor: code % 1000 / 10 })
}

/// Loads the driver. Must succeed before any use of cudarc, which panics without a driver.
pub(crate) fn load_driver() -> Result<(), String> {
    // SAFETY: loading only runs the driver's initializers, which NVIDIA intends for any program.
    let driver = unsafe { libloading::Library::new(DRIVER) };
    // Never unloaded: it starts threads.
    driver.map(std::mem::forget).map_err(|error| reason(&error))
}

/// NVML's `nvmlGpuFabricInfo_t`.
#[repr(C)]
#[derive(Default)]
struct FabricInfo {
    cluster: [u8; 16],
    status: c_int,
    clique: c_uint,
    state: u8,
}

/// Returns the GPUs that cannot use the fabric of their NVLink switches, with the reason. `None` without NVML.
pub(crate) fn unready_fabrics() -> Option<Vec<String>> {
    // SAFETY: loading only runs the library's initializers, which NVIDIA intends for any program.
    let nvml = unsafe { libloading::Library::new("libnvidia-ml.so.1") }.ok()?;
    // Never unloaded, like the driver.
    let nvml = ManuallyDrop::new(nvml);
    let mut count = 0;
    // SAFETY: the functions have these types, and get valid places for their results.
    let (get, infos) = unsafe {
        let init = nvml.get::<unsafe extern "C" fn() -> c_int>(b"nvmlInit_v2").ok()?;
        let counts = nvml.get::<unsafe extern "C" fn(*mut c_uint) -> c_int>(b"nvmlDeviceGetCount_v2").ok()?;
        let get = b"nvmlDeviceGetHandleByIndex_v2";
        let get = nvml.get::<unsafe extern "C" fn(c_uint, *mut *mut c_void) -> c_int>(get).ok()?;
        let info = b"nvmlDeviceGetGpuFabricInfo";
        let info = nvml.get::<unsafe extern "C" fn(*mut c_void, *mut FabricInfo) -> c_int>(info).ok()?;
        (init() == 0 && counts(&raw mut count) == 0).then_some((get, info))?
    };
    let unready = |gpu| {
        let (mut device, mut info) = (ptr::null_mut(), FabricInfo::default());
        // SAFETY: as above.
        let is_known = unsafe { get(gpu, &raw mut device) == 0 && infos(device, &raw mut info) == 0 };
        let problem = match (info.state, info.status) {
            (1, _) => "has not begun to register".into(),
            (2, _) => "has not been registered yet".into(),
            (3, status @ 1..) => format!("was refused with the NVML error {status}"),
            _ => return None,
        };
        is_known.then(|| format!("GPU {gpu} {problem}"))
    };
    Some((0..count).filter_map(unready).collect())
}

/// Returns the dynamic linker's error text, if there is one.
fn reason(error: &libloading::Error) -> String {
    error.source().map_or_else(|| error.to_string(), ToString::to_string)
}

/// The description of the file that [`emulation`] returns.
pub(crate) const EMULATION: &str = "libnccl's CUDA emulation";

/// Returns the file of the CUDA emulation if it is the driver of this process.
pub(crate) fn emulation() -> Option<PathBuf> {
    load_driver().ok()?;
    // SAFETY: it is already loaded, so no initializer runs.
    let driver = unsafe { libloading::os::unix::Library::new(DRIVER) }.ok()?;
    // SAFETY: only the address is used. No other driver has this symbol.
    let interface = unsafe { driver.get::<*const c_void>(Interface::SYMBOL.to_bytes_with_nul()) };
    object_of(interface.ok()?.as_raw_ptr().addr())
}
