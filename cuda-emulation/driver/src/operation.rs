//! The work of operations.

#![allow(unsafe_code)]

use std::ffi::c_void;
use std::ptr;
use std::sync::{Arc, OnceLock};
use std::time::Instant;

use crate::allocation::{Allocation, Part};
use crate::interprocess::SharedEvent;
use crate::user_object::References;

/// A place of bytes.
#[derive(Debug, Clone)]
pub(crate) enum Place {
    /// Memory that CUDA knows.
    Known(Part),
    /// The address of other memory of the program.
    Host(usize),
}

impl Place {
    /// The address of the byte at an offset.
    fn byte(&self, offset: usize) -> *mut u8 {
        let address = match self {
            Self::Known(part) => part.allocation.alias(part.offset),
            Self::Host(address) => *address,
        };
        ptr::with_exposed_provenance_mut(address.wrapping_add(offset))
    }
}

/// Rows of bytes at equal distances.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Rows {
    /// Bytes of a row.
    pub(crate) width: usize,
    /// The number of rows.
    pub(crate) height: usize,
}

/// A function that is called with data of the program.
pub(crate) type Function = unsafe extern "C" fn(data: *mut c_void);

/// A function of the program and what it is called with.
#[derive(Debug)]
pub(crate) struct Callback {
    function: Function,
    data: *mut c_void,
    /// Called with the data when this is dropped.
    release: Option<Function>,
}

// SAFETY: whoever makes a `Callback` grants that any thread may make the calls.
unsafe impl Send for Callback {}
// SAFETY: likewise.
unsafe impl Sync for Callback {}

impl Callback {
    /// Creates a call. What drops the last reference must not hold the driver's lock: `release` may call CUDA.
    ///
    /// # Safety
    ///
    /// The function may be called with the data, on any thread, for each execution of the operation that is made of
    /// this: one, or if the operation is captured, one for each launch of its graph. After all that, `release` may be
    /// called with it, once.
    pub(crate) unsafe fn new(function: Function, data: *mut c_void, release: Option<Function>) -> Arc<Self> {
        Arc::new(Self { function, data, release })
    }

    /// Calls it.
    pub(crate) fn call(&self) {
        // SAFETY: `new` was promised that this is allowed for each execution.
        unsafe { (self.function)(self.data) }
    }

    /// Leaves the data to whoever made this, as its operation was not accepted.
    pub(crate) fn refuse(self: Arc<Self>) {
        std::mem::forget(Arc::into_inner(self));
    }
}

impl Drop for Callback {
    fn drop(&mut self) {
        if let Some(release) = self.release {
            // SAFETY: `new` was promised that this is allowed, once; no execution is left that has a reference.
            unsafe { release(self.data) }
        }
    }
}

/// The work of an operation.
#[derive(Debug, Clone)]
pub(crate) enum Work {
    /// Nothing: its place in the order counts.
    Nothing,
    /// Notes when it is executed.
    Record(Arc<OnceLock<Instant>>),
    /// Copies rows.
    Copy { to: Place, to_pitch: usize, from: Place, from_pitch: usize, rows: Rows },
    /// Copies bytes that were taken when it was enqueued.
    Put { to: Place, bytes: Box<[u8]> },
    /// Fills rows with an element of 1, 2 or 4 bytes.
    Fill { to: Place, pitch: usize, rows: Rows, element: [u8; 4], size: usize },
    /// Calls a function, which may use the allocations.
    Call { callback: Arc<Callback>, uses: Vec<Arc<Allocation>> },
    /// Gives up references to user objects.
    Release(References),
    /// Frees memory.
    Free(Arc<Allocation>),
    /// Tells other processes that a record of an event is complete.
    Complete { shared: Arc<SharedEvent>, record: u64 },
    /// Waits until a record of an event is complete in whatever process.
    Await { shared: Arc<SharedEvent>, record: u64 },
}

impl Work {
    /// Does it.
    pub(crate) fn execute(self) {
        match self {
            Self::Nothing => {}
            Self::Record(time) => {
                let _ = time.set(Instant::now());
            }
            Self::Copy { to, to_pitch, from, from_pitch, rows } => {
                for row in 0..rows.height {
                    let (from, to) = (from.byte(row * from_pitch), to.byte(row * to_pitch));
                    // SAFETY: known memory is as long as was checked when this was enqueued, and kept alive by its
                    // `Part`; that other memory is, the caller of the C function promised.
                    unsafe { ptr::copy(from, to, rows.width) };
                }
            }
            Self::Put { to, bytes } => {
                // SAFETY: as above, for the bytes' length.
                unsafe { ptr::copy(bytes.as_ptr(), to.byte(0), bytes.len()) };
            }
            Self::Fill { to, pitch, rows, element, size } => {
                for row in 0..rows.height {
                    let row = to.byte(row * pitch);
                    if element[..size].iter().all(|&byte| byte == element[0]) {
                        // SAFETY: as above, for the width of a row.
                        unsafe { ptr::write_bytes(row, element[0], rows.width) };
                        continue;
                    }
                    for at in (0..rows.width).step_by(size) {
                        // SAFETY: as above; the width is a multiple of the size.
                        unsafe { ptr::copy(element.as_ptr(), row.add(at), size) };
                    }
                }
            }
            Self::Call { callback, uses } => {
                callback.call();
                drop(uses);
            }
            Self::Release(references) => drop(references),
            Self::Free(allocation) => drop(allocation),
            Self::Complete { shared, record } => shared.complete(record),
            Self::Await { shared, record } => shared.wait(record),
        }
    }
}

/// Takes bytes of the program.
///
/// # Safety
///
/// The memory is valid for reads.
pub(crate) unsafe fn take_bytes(from: usize, length: usize) -> Box<[u8]> {
    let mut bytes = vec![0; length].into_boxed_slice();
    // SAFETY: the caller promises that the bytes can be read, and the box is as long.
    unsafe { ptr::copy(ptr::with_exposed_provenance(from), bytes.as_mut_ptr(), length) };
    bytes
}
