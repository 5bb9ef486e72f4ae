//! The work of operations.

#![allow(unsafe_code)]

use std::ptr;
use std::sync::{Arc, OnceLock};
use std::time::Instant;

use crate::allocation::{Allocation, Part};
use crate::callback::{Callback, References};
use crate::event::SharedEvent;

#[derive(Clone)]
pub(crate) enum Place {
    Known(Part),
    Host(usize),
}

impl Place {
    fn byte(&self, offset: usize) -> *mut u8 {
        let address = match self {
            Self::Known(part) => part.allocation.alias(part.offset),
            Self::Host(address) => *address,
        };
        ptr::with_exposed_provenance_mut(address.wrapping_add(offset))
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Rows {
    pub(crate) width: usize,
    pub(crate) height: usize,
}

#[derive(Clone)]
pub(crate) enum Work {
    /// Does nothing: only the operation's order counts.
    Nothing,
    Record(Arc<OnceLock<Instant>>),
    Copy {
        to: Place,
        to_pitch: usize,
        from: Place,
        from_pitch: usize,
        rows: Rows,
    },
    /// Copies bytes that were read when the operation was enqueued.
    Put {
        to: Place,
        bytes: Box<[u8]>,
    },
    /// Fills rows with an element of 1, 2 or 4 bytes.
    Fill {
        to: Place,
        pitch: usize,
        rows: Rows,
        element: [u8; 4],
        size: usize,
    },
    /// Calls a function, which may use the allocations.
    Call {
        callback: Arc<Callback>,
        uses: Vec<Arc<Allocation>>,
    },
    Release(References),
    Free(Arc<Allocation>),
    Complete {
        shared: Arc<SharedEvent>,
        record: u64,
    },
    Await {
        shared: Arc<SharedEvent>,
        record: u64,
    },
}

impl Work {
    pub(crate) fn execute(self) {
        match self {
            Self::Nothing => {}
            Self::Release(references) => drop(references),
            Self::Free(allocation) => drop(allocation),
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
                (callback.function)();
                drop(uses);
            }
            Self::Complete { shared, record } => shared.complete(record),
            Self::Await { shared, record } => shared.wait(record),
        }
    }
}
