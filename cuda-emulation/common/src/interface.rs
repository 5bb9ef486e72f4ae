//! The functions that the emulated driver adds to CUDA's.

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};

/// The kind of memory behind an address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(i32)]
pub enum MemoryKind {
    /// Memory that no CUDA function has allocated or registered.
    Host,
    /// Memory of a device, which programs cannot access.
    Device,
    /// Host memory that CUDA has allocated or registered.
    Pinned,
    /// Memory that devices and the host share.
    Managed,
}

/// The memory behind an address.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct Memory {
    /// The kind of memory.
    pub kind: MemoryKind,
    /// The device of the allocation, or -1 if it has none.
    pub device: i32,
    /// The address at which this process can read and write the bytes.
    pub alias: *mut c_void,
    /// The unique number of the allocation, or 0 for memory that CUDA did not allocate or register.
    pub id: u64,
}

/// The kind of an operation's access to memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(i32)]
pub enum AccessKind {
    /// A read.
    Read,
    /// A possible write.
    Write,
    /// A possible write, of which another rank is notified.
    Put,
}

/// Memory that an operation reads or writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(C)]
pub struct Access {
    /// The address of the first byte: the one that the program uses, or the one at [`Memory::alias`].
    pub address: u64,
    /// The number of bytes.
    pub length: usize,
    /// The kind of access.
    pub kind: AccessKind,
}

/// A device.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct Device {
    /// The name, a C string.
    pub name: [u8; 64],
    /// The UUID.
    pub uuid: [u8; 16],
    /// The number of the PCI bus, in domain 0; the device is device 0 there.
    pub bus: u32,
    /// The compute capability, major and minor.
    pub capability: [i32; 2],
    /// The memory in bytes.
    pub total: u64,
    /// The bytes that this process can still allocate.
    pub free: u64,
}

/// Returns the name of the device with a UUID, as `nvidia-smi -L` prints it.
pub fn device_name(uuid: [u8; 16]) -> String {
    let bytes = uuid.iter().enumerate().map(|(index, byte)| {
        let dash = if [0, 4, 6, 8, 10].contains(&index) { "-" } else { "" };
        format!("{dash}{byte:02x}")
    });
    format!("GPU{}", bytes.collect::<String>())
}

/// A function that is called with the data of an operation.
pub type Work = unsafe extern "C" fn(*mut c_void);

/// A function that is called before memory is freed. Its arguments are the name of the CUDA function that the program has called,
/// the address and the number of bytes. If it does not return 0, the memory is not freed.
pub type FreeCheck = unsafe extern "C" fn(*const c_char, u64, usize) -> c_int;

/// The functions that the emulated driver adds to CUDA's. Its `libcuda.so.1` exports them as the static [`SYMBOL`](Self::SYMBOL).
///
/// Streams are CUDA's handles, addresses are `CUdeviceptr`, and every function returns a `CUresult`. A null output pointer causes
/// `CUDA_ERROR_INVALID_VALUE`.
#[derive(Debug)]
#[repr(C)]
pub struct Interface {
    /// [`VERSION`](Self::VERSION).
    pub version: u32,

    /// Describes a device without initializing CUDA, even in a forked child. A process that has only looked for devices can still
    /// fork and use CUDA in its children.
    ///
    /// A number that no device has causes `CUDA_ERROR_INVALID_DEVICE`.
    pub describe: unsafe extern "C" fn(device: c_int, out: *mut Device) -> c_uint,

    /// Finds the memory behind a range of addresses, which must lie in one allocation.
    ///
    /// Recently freed device memory causes `CUDA_ERROR_INVALID_VALUE`.
    pub resolve: unsafe extern "C" fn(address: u64, length: usize, out: *mut Memory) -> c_uint,

    /// Enqueues an operation: calls `run(data)` when all earlier work on the stream is complete, and finally `release(data)`.
    /// Both may be called on any thread.
    ///
    /// `run` may block; other streams continue meanwhile. If the operation is accepted, `run` is called once, even if the stream
    /// or context is destroyed, and the accessed memory lives until it returns. On a captured stream, `run` is called for each
    /// launch of the graph. `release` is called once, after the last call of `run`: when the operation is complete, or when its
    /// graph and everything instantiated from the graph are destroyed. If the operation is not accepted, neither is called.
    ///
    /// An operation may wait for other such operations on other streams and in other processes. When it completes, it is ordered
    /// after all work that precedes any such operation that had begun. Races on memory that CUDA did not allocate or register are
    /// not detected. `label` must be null or a C string: the functions that were called, `function(arguments) +
    /// function(arguments)`, and after a comma anything else worth reporting. Races of the same functions are reported once.
    /// `accesses` must be valid for `count` reads.
    pub enqueue: unsafe extern "C" fn(
        stream: *mut c_void,
        accesses: *const Access,
        count: usize,
        label: *const c_char,
        run: Option<Work>,
        release: Option<Work>,
        data: *mut c_void,
    ) -> c_uint,

    /// Waits for a stream if `CUDA_LAUNCH_BLOCKING=1` is set. Called once all operations of an NCCL call are enqueued,
    /// because an operation of one rank may wait for an operation of another. Does nothing if the stream is captured.
    pub launched: unsafe extern "C" fn(stream: *mut c_void) -> c_uint,

    /// Makes all calls in a context return `error` until [`recover`](Self::recover) is called with the same number. The context
    /// is that of the operation that this thread executes, or else the current one. Does nothing if failures are only to be
    /// reported.
    ///
    /// A code unknown to CUDA becomes `CUDA_ERROR_UNKNOWN`. `reason` must be null or a C string that names the operation; the
    /// exported function `libnccl_cuda_failure` returns it.
    pub fail: unsafe extern "C" fn(number: u64, error: c_uint, reason: *const c_char) -> c_uint,

    /// Removes the errors that were set with a number, in all contexts.
    pub recover: unsafe extern "C" fn(number: u64) -> c_uint,

    /// Registers `check`, which is called before CUDA memory is freed, unregistered or unmapped, on any thread and until the
    /// process ends. If it does not return 0, the program's call fails with `CUDA_ERROR_INVALID_VALUE`.
    pub on_free: unsafe extern "C" fn(check: Option<FreeCheck>) -> c_uint,

    /// Allocates device memory in the current context, backed by an open memory file of at least `length` bytes; `cuMemFree`
    /// frees it.
    pub alloc_shared: unsafe extern "C" fn(memfd: c_int, length: usize, out: *mut u64) -> c_uint,
}

impl Interface {
    /// The version, which changes with every change of a type in this file.
    pub const VERSION: u32 = 5;

    /// The name of the static.
    pub const SYMBOL: &CStr = c"libnccl_cuda_interface";

    /// Returns the interface of a loaded `libcuda.so.1`, or `None` if that is not the emulated driver.
    ///
    /// # Errors
    /// Returns an error if the library has a different version of the interface. The error contains that version.
    ///
    /// # Safety
    /// `library` must be a handle from `dlopen`, and the library must never be unloaded.
    #[allow(unsafe_code)]
    pub unsafe fn of(library: *mut c_void) -> Result<Option<&'static Self>, String> {
        // SAFETY: a valid handle and a C string.
        let symbol = unsafe { libc::dlsym(library, Self::SYMBOL.as_ptr()) };
        if symbol.is_null() {
            return Ok(None);
        }
        // SAFETY: in every version, the static of this name begins with the version.
        let version = unsafe { symbol.cast::<u32>().read() };
        if version != Self::VERSION {
            return Err(format!("its interface has version {version}, expected {}", Self::VERSION));
        }
        // SAFETY: in this version, the static has this type; the caller guarantees that it stays loaded.
        Ok(Some(unsafe { &*symbol.cast() }))
    }
}

// Other libraries are compiled separately: a change here requires a new version.
const _: () = {
    assert!(Interface::VERSION == 5 && size_of::<Interface>() == 9 * 8);
    assert!(size_of::<Memory>() == 24 && size_of::<Access>() == 24 && size_of::<Device>() == 112);
};
