//! The functions.

use std::ffi::{CStr, c_char, c_int, c_uint, c_ulonglong, c_void};

use cuda_common::{Device, device_name};

use crate::driver;
use crate::status::{Result, Status};

/// Exports functions. After `older(name)`, a function is exported a second time under that name. `fn nvmlX(...) = value;` returns the
/// value of an expression.
macro_rules! api {
    () => {};
    ($(older($older:ident))? fn $name:ident $arguments:tt = $value:expr; $($rest:tt)*) => {
        api! { $(older($older))? fn $name $arguments { $value } $($rest)* }
    };
    ($(older($older:ident))? fn $name:ident $arguments:tt $body:block $($rest:tt)*) => {
        $(api!(@one $older $arguments $body);)?
        api!(@one $name $arguments $body);
        api! { $($rest)* }
    };
    (@one $name:ident ($($argument:ident: $type:ty),* $(,)?) $body:block) => {
        #[unsafe(no_mangle)]
        #[allow(unused_unsafe)]
        unsafe extern "C" fn $name($($argument: $type),*) -> Status {
            let run = move || -> Result<()> {
                // SAFETY: the caller keeps the function's contract: pointers are null or valid for what NVML documents.
                unsafe { $body }
            };
            run().err().unwrap_or(Status::SUCCESS)
        }
    };
}

fn not_supported(_function: &'static str) -> Status {
    driver::initialized().err().unwrap_or(Status::NOT_SUPPORTED)
}

// The unsupported functions of functions.txt.
include!(concat!(env!("OUT_DIR"), "/stubs.rs"));

/// A device: its index plus one, which is never dereferenced.
type Handle = *mut c_void;

fn handle(index: usize) -> Handle {
    std::ptr::without_provenance_mut(index + 1)
}

fn device(handle: Handle) -> Result<(usize, Device)> {
    let driver = driver::initialized()?;
    let index = handle.addr().checked_sub(1).ok_or(Status::INVALID_ARGUMENT)?;
    Ok((index, driver.device(index)?.ok_or(Status::INVALID_ARGUMENT)?))
}

/// Writes a result.
///
/// # Safety
/// `out` must be null or valid for a write.
unsafe fn put<T>(out: *mut T, value: T) -> Result<()> {
    if out.is_null() {
        return Err(Status::INVALID_ARGUMENT);
    }
    // SAFETY: as the caller guarantees.
    unsafe { out.write(value) };
    Ok(())
}

/// Writes a text and a null byte.
///
/// # Safety
/// `out` must be null or valid for `length` writes.
unsafe fn put_text(out: *mut c_char, length: c_uint, text: &str) -> Result<()> {
    if out.is_null() {
        return Err(Status::INVALID_ARGUMENT);
    }
    if length as usize <= text.len() {
        return Err(Status::INSUFFICIENT_SIZE);
    }
    // SAFETY: the caller guarantees that there is room.
    unsafe {
        out.copy_from_nonoverlapping(text.as_ptr().cast(), text.len());
        out.add(text.len()).write(0);
    }
    Ok(())
}

/// # Safety
/// `text` must be null or a C string.
unsafe fn read<'a>(text: *const c_char) -> Result<&'a str> {
    if text.is_null() {
        return Err(Status::INVALID_ARGUMENT);
    }
    // SAFETY: as the caller guarantees.
    unsafe { CStr::from_ptr(text) }.to_str().map_err(|_| Status::INVALID_ARGUMENT)
}

/// Parses the bus of an id such as `00000000:01:00.0`, or `0000:01:00.0` in CUDA's form. Each bus has one device.
fn bus(id: &str) -> Option<u32> {
    let number = |text| u32::from_str_radix(text, 16).ok();
    let (bus, slot) = id.rsplit_once(':')?;
    let (domain, bus) = bus.split_once(':').unwrap_or(("0", bus));
    let (slot, function) = slot.split_once('.').unwrap_or((slot, "0"));
    (number(domain)? == 0 && number(slot)? == 0 && number(function)? == 0).then(|| number(bus))?
}

/// Returns the handle of the first device that matches.
fn find(matches: impl Fn(&Device) -> bool) -> Result<Handle> {
    let devices = driver::initialized()?.devices()?;
    devices.iter().position(matches).map(handle).ok_or(Status::NOT_FOUND)
}

/// `nvmlPciInfo_t`.
#[repr(C)]
struct PciInfo {
    bus_id_legacy: [c_char; 16],
    domain: c_uint,
    bus: c_uint,
    device: c_uint,
    /// The device and subsystem ids, which are 0.
    ids: [c_uint; 2],
    bus_id: [c_char; 32],
}

/// `nvmlMemory_t`.
#[repr(C)]
struct Memory {
    total: c_ulonglong,
    free: c_ulonglong,
    used: c_ulonglong,
}

/// `nvmlMemory_v2_t`.
#[repr(C)]
struct MemoryV2 {
    version: c_uint,
    total: c_ulonglong,
    reserved: c_ulonglong,
    free: c_ulonglong,
    used: c_ulonglong,
}

/// `nvmlGpuFabricInfo_t`. The default describes a device without a fabric: state 0 is `NVML_GPU_FABRIC_STATE_NOT_SUPPORTED`.
#[derive(Default)]
#[repr(C)]
struct FabricInfo {
    cluster_uuid: [u8; 16],
    status: c_uint,
    clique: c_uint,
    state: u8,
}

/// `nvmlGpuFabricInfo_v2_t`.
#[derive(Default)]
#[repr(C)]
struct FabricInfoV2 {
    version: c_uint,
    info: FabricInfo,
    health_mask: c_uint,
}

/// `nvmlGpuFabricInfo_v3_t`.
#[derive(Default)]
#[repr(C)]
struct FabricInfoV3 {
    info: FabricInfoV2,
    health_summary: u8,
}

/// Returns the version of a struct as NVML encodes it: its size and its number.
const fn version_of<T>(number: c_uint) -> c_uint {
    size_of::<T>() as c_uint | number << 24
}

/// `nvmlProcessInfo_v1_t`.
#[repr(C)]
struct Process {
    id: c_uint,
    memory: c_ulonglong,
}

/// `nvmlProcessInfo_v2_t`.
#[repr(C)]
struct ProcessV2 {
    process: Process,
    gpu_instance: c_uint,
    compute_instance: c_uint,
}

/// Lists the processes that use a device: only this one, and only if it has memory there. PyTorch requests the list when memory
/// runs out.
///
/// # Safety
/// `count` must be null or valid for reads and writes; `out` must be valid for `*count` writes.
unsafe fn list_processes<T>(
    own: Handle,
    count: *mut c_uint,
    out: *mut T,
    entry: impl Fn(Process) -> T,
) -> Result<()> {
    let (_, Device { total, free, .. }) = device(own)?;
    // SAFETY: as the caller guarantees.
    let room = *unsafe { count.as_ref() }.ok_or(Status::INVALID_ARGUMENT)?;
    let processes = c_uint::from(free < total);
    // SAFETY: as above.
    unsafe { count.write(processes) };
    if processes == 0 {
        Ok(())
    } else if room == 0 {
        Err(Status::INSUFFICIENT_SIZE)
    } else {
        // SAFETY: the caller guarantees that there is room.
        unsafe { put(out, entry(Process { id: std::process::id(), memory: total - free })) }
    }
}

/// The version of NVIDIA's driver for the CUDA version of the emulated driver. Programs compare it with the oldest version that
/// they support.
const DRIVER_VERSION: &str = "580.00";

api! {
    fn nvmlInitWithFlags(flags: c_uint) {
        const NO_GPUS: c_uint = 1;
        driver::initialize(flags & NO_GPUS == 0)
    }

    older(nvmlInit) fn nvmlInit_v2() = driver::initialize(true);
    fn nvmlShutdown() = driver::shut_down();

    fn nvmlSystemGetDriverVersion(version: *mut c_char, length: c_uint) {
        driver::initialized()?;
        put_text(version, length, DRIVER_VERSION)
    }

    fn nvmlSystemGetNVMLVersion(version: *mut c_char, length: c_uint) {
        let major = driver::get()?.version()? / 1000;
        put_text(version, length, &format!("{major}.{DRIVER_VERSION}"))
    }

    older(nvmlSystemGetCudaDriverVersion) fn nvmlSystemGetCudaDriverVersion_v2(version: *mut c_int)
        = put(version, driver::get()?.version()?);

    older(nvmlDeviceGetCount) fn nvmlDeviceGetCount_v2(count: *mut c_uint)
        = put(count, driver::initialized()?.devices()?.len() as c_uint);

    older(nvmlDeviceGetHandleByIndex) fn nvmlDeviceGetHandleByIndex_v2(index: c_uint, out: *mut Handle) {
        let own = handle(index as usize);
        put(out, device(own).map(|_| own)?)
    }

    fn nvmlDeviceGetHandleByUUID(text: *const c_char, out: *mut Handle) {
        let text = read(text)?;
        put(out, find(|device| device_name(device.uuid).eq_ignore_ascii_case(text))?)
    }

    older(nvmlDeviceGetHandleByPciBusId) fn nvmlDeviceGetHandleByPciBusId_v2(id: *const c_char, out: *mut Handle) {
        let wanted = bus(read(id)?);
        put(out, find(|device| Some(device.bus) == wanted)?)
    }

    fn nvmlDeviceGetName(own: Handle, name: *mut c_char, length: c_uint) {
        let (_, device) = device(own)?;
        let text = CStr::from_bytes_until_nul(&device.name).ok().and_then(|name| name.to_str().ok());
        put_text(name, length, text.ok_or(Status::UNKNOWN)?)
    }

    fn nvmlDeviceGetUUID(own: Handle, out: *mut c_char, length: c_uint)
        = put_text(out, length, &device_name(device(own)?.1.uuid));

    fn nvmlDeviceGetIndex(own: Handle, index: *mut c_uint) = put(index, device(own)?.0 as c_uint);
    fn nvmlDeviceGetMinorNumber(own: Handle, number: *mut c_uint) = put(number, device(own)?.0 as c_uint);

    fn nvmlDeviceGetMemoryInfo(own: Handle, memory: *mut Memory) {
        let (_, Device { total, free, .. }) = device(own)?;
        put(memory, Memory { total, free, used: total - free })
    }

    fn nvmlDeviceGetMemoryInfo_v2(own: Handle, memory: *mut MemoryV2) {
        const VERSION: c_uint = version_of::<MemoryV2>(2);
        let (_, Device { total, free, .. }) = device(own)?;
        if *memory.cast::<c_uint>().as_ref().ok_or(Status::INVALID_ARGUMENT)? != VERSION {
            return Err(Status::ARGUMENT_VERSION_MISMATCH);
        }
        put(memory, MemoryV2 { version: VERSION, total, reserved: 0, free, used: total - free })
    }

    fn nvmlDeviceGetComputeRunningProcesses(own: Handle, count: *mut c_uint, out: *mut Process)
        = list_processes(own, count, out, |process| process);

    older(nvmlDeviceGetComputeRunningProcesses_v2) fn nvmlDeviceGetComputeRunningProcesses_v3(
        own: Handle, count: *mut c_uint, out: *mut ProcessV2,
    ) {
        const NONE: c_uint = c_uint::MAX;
        let entry = |process| ProcessV2 { process, gpu_instance: NONE, compute_instance: NONE };
        list_processes(own, count, out, entry)
    }

    fn nvmlDeviceGetGpuFabricInfo(own: Handle, info: *mut FabricInfo) {
        device(own)?;
        put(info, FabricInfo::default())
    }

    fn nvmlDeviceGetGpuFabricInfoV(own: Handle, info: *mut FabricInfoV2) {
        const V2: c_uint = version_of::<FabricInfoV2>(2);
        const V3: c_uint = version_of::<FabricInfoV3>(3);
        device(own)?;
        match *info.cast::<c_uint>().as_ref().ok_or(Status::INVALID_ARGUMENT)? {
            V2 => put(info, FabricInfoV2 { version: V2, ..FabricInfoV2::default() }),
            V3 => {
                let v2 = FabricInfoV2 { version: V3, ..FabricInfoV2::default() };
                put(info.cast(), FabricInfoV3 { info: v2, health_summary: 0 })
            }
            _ => Err(Status::ARGUMENT_VERSION_MISMATCH),
        }
    }

    fn nvmlDeviceGetPciInfo_v3(own: Handle, info: *mut PciInfo) {
        let (_, Device { bus, .. }) = device(own)?;
        let mut found = PciInfo {
            bus_id_legacy: [0; 16], domain: 0, bus, device: 0, ids: [0; 2], bus_id: [0; 32],
        };
        put_text(found.bus_id_legacy.as_mut_ptr(), 16, &format!("0000:{bus:02X}:00.0"))?;
        put_text(found.bus_id.as_mut_ptr(), 32, &format!("00000000:{bus:02X}:00.0"))?;
        put(info, found)
    }

    fn nvmlDeviceGetCudaComputeCapability(own: Handle, major: *mut c_int, minor: *mut c_int) {
        let (_, device) = device(own)?;
        put(major, device.capability[0])?;
        put(minor, device.capability[1])
    }

    // There is no NVLink, and there are no atomics.
    fn nvmlDeviceGetP2PStatus(own: Handle, peer: Handle, capability: c_int, status: *mut c_int) {
        const READ: c_int = 0;
        const WRITE: c_int = 1;
        const CAPABILITIES: c_int = 5;
        const OK: c_int = 0;
        const NOT_SUPPORTED: c_int = 5;
        let ((one, _), (other, _)) = (device(own)?, device(peer)?);
        if one == other || !(READ..CAPABILITIES).contains(&capability) {
            return Err(Status::INVALID_ARGUMENT);
        }
        put(status, if capability <= WRITE { OK } else { NOT_SUPPORTED })
    }

    fn nvmlDeviceGetTopologyCommonAncestor(own: Handle, peer: Handle, level: *mut c_int) {
        const INTERNAL: c_int = 0;
        const SYSTEM: c_int = 50;
        let ((one, _), (other, _)) = (device(own)?, device(peer)?);
        put(level, if one == other { INTERNAL } else { SYSTEM })
    }

    fn nvmlDeviceOnSameBoard(own: Handle, peer: Handle, is_same: *mut c_int) {
        let ((one, _), (other, _)) = (device(own)?, device(peer)?);
        put(is_same, c_int::from(one == other))
    }

    fn nvmlDeviceIsMigDeviceHandle(own: Handle, is_mig: *mut c_uint) {
        device(own)?;
        put(is_mig, 0)
    }
}
