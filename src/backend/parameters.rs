//! The parameter functions, `ncclParam*`, and the parameters by which the CPU backend describes itself.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::ffi::CStr;
use std::fmt;
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::library::{Library, copy};
use crate::error::{Error, Result, ResultCode};
use crate::sys::device::{DeviceFunctions, ncclCommProperties_t};
use crate::sys::{Functions, NCCL_VERSION_CODE, ncclComm_t};

thread_local! {
    /// The libraries whose locks this thread holds.
    static HELD: RefCell<Vec<usize>> = const { RefCell::new(Vec::new()) };
}

/// Holds the lock of [`lock_parameters`] until it is dropped.
#[derive(Debug)]
pub struct ParameterGuard {
    key: usize,
    /// `None` if the thread holds the lock already.
    lock: Option<MutexGuard<'static, ()>>,
}

/// Locks the parameter functions of a library. When a program reads a parameter, NCCL stores its key in a table that has no lock.
/// Concurrent calls have crashed in NCCL 2.32.3.
///
/// The lock is reentrant, because an interposer may take it twice on one thread. The interposer locks before it forwards a call to
/// NCCL. If NCCL then calls another of its parameter functions, that call may enter the interposer, which locks again.
///
/// Each library has a separate lock. If a library was opened several times, its users share one lock.
pub fn lock_parameters(functions: &Functions) -> ParameterGuard {
    static LOCKS: Mutex<BTreeMap<usize, &'static Mutex<()>>> = Mutex::new(BTreeMap::new());
    let key = functions.ncclParamGetParameter.map_or(0, |function| function as usize);
    if HELD.try_with(|held| held.borrow().contains(&key)).unwrap_or(false) {
        return ParameterGuard { key, lock: None };
    }
    // Leaked, as libraries are never unloaded.
    let lock: &'static Mutex<()> = LOCKS
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .entry(key)
        .or_insert_with(|| Box::leak(Box::default()));
    let lock = lock.lock().unwrap_or_else(PoisonError::into_inner);
    let _ = HELD.try_with(|held| held.borrow_mut().push(key));
    ParameterGuard { key, lock: Some(lock) }
}

impl Drop for ParameterGuard {
    fn drop(&mut self) {
        if self.lock.is_some() {
            let _ = HELD.try_with(|held| held.borrow_mut().retain(|key| *key != self.key));
        }
    }
}

/// Returns a parameter of an implementation as text, or `None` if the implementation has no such parameter.
///
/// # Safety
/// As for [`memory_space`].
unsafe fn parameter(functions: &Functions, key: &CStr) -> Option<Box<str>> {
    let get_parameter = functions.ncclParamGetParameter?;
    let (mut value, mut length) = (std::ptr::null(), 0);
    let _one_at_a_time = lock_parameters(functions);
    // SAFETY: a C string and two valid out-parameters; the caller guarantees that this is NCCL's function. The lock keeps
    // other threads out of it.
    let code = ResultCode::from_raw(unsafe { get_parameter(key.as_ptr(), &raw mut value, &raw mut length) });
    // SAFETY: null or a string that is valid until this thread queries another parameter.
    code.is_success().then(|| unsafe { copy(value) })
}

/// The kind of memory of a communicator's buffers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum MemorySpace {
    /// Host memory, which the CPU backend uses without the CUDA emulation.
    Host,
    /// Device memory. With NCCL, this is GPU memory. With the CUDA emulation, it is emulated.
    Device,
}

impl fmt::Display for MemorySpace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Host => "host",
            Self::Device => "device",
        })
    }
}

/// Returns the memory space of an implementation: host memory if its parameter `LIBNCCL_MEMORY_SPACE` has the value `host`,
/// otherwise device memory. NCCL does not have this parameter.
///
/// # Safety
/// Every function of the table must have the signature and the contract that NCCL's header declares for its name.
#[must_use]
pub unsafe fn memory_space(functions: &Functions) -> MemorySpace {
    // SAFETY: the same contract. This is a parameter of the library, not an environment variable.
    let value = unsafe { parameter(functions, c"LIBNCCL_MEMORY_SPACE") };
    if value.as_deref() == Some("host") { MemorySpace::Host } else { MemorySpace::Device }
}

/// Returns the `commHash` of a communicator of the CPU backend. Returns `None` for other implementations, which are not queried:
/// NCCL's query allocates memory, and may wait for other ranks.
///
/// # Safety
/// As for [`memory_space`]. Also, the communicator must be live.
#[must_use]
pub unsafe fn comm_hash(
    functions: &Functions,
    device_functions: &DeviceFunctions,
    raw: ncclComm_t,
) -> Option<u64> {
    let query = device_functions.ncclCommQueryProperties?;
    // SAFETY: the same contract. This is a parameter of the library, not an environment variable. No safety depends on its
    // value.
    unsafe { parameter(functions, c"LIBNCCL_OPEN_GROUPS") }?;
    let mut properties = ncclCommProperties_t::initializer(NCCL_VERSION_CODE);
    // SAFETY: a live communicator, and a struct that is initialized for this version.
    let code = ResultCode::from_raw(unsafe { query(raw, &raw mut properties) });
    code.is_success().then_some(properties.commHash)
}

impl Library {
    /// In a debug build, checks that this crate's `own` groups are the only open groups on this thread. In a group that other
    /// code has opened, a call would return before it runs, and the borrow of its buffers would end too early.
    #[inline]
    pub(crate) fn check_open_groups(&self, call: &'static str, own: usize) -> Result<()> {
        if !cfg!(debug_assertions) || !self.has_open_groups.get_or_init(|| self.open_groups().is_some()) {
            return Ok(());
        }
        match self.open_groups() {
            Some(open) if open != own => {
                let open = open.saturating_sub(own);
                let problem = format!(
                    "other code has called ncclGroupStart on this thread {open} times without ncclGroupEnd, so that the \
                     call would return before it runs; expected only groups of this crate to be open"
                );
                Err(Error::usage(call, problem))
            }
            _ => Ok(()),
        }
    }

    /// Returns the number of groups that are open on this thread, or `None` if the implementation does not report it. Only the
    /// CPU backend does.
    fn open_groups(&self) -> Option<usize> {
        // SAFETY: the creator of the library has guaranteed that its functions are NCCL's.
        unsafe { parameter(&self.functions, c"LIBNCCL_OPEN_GROUPS") }?.parse().ok()
    }
}
