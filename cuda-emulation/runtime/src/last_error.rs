//! The last error of each thread.

use std::cell::Cell;

use crate::driver;
use crate::status::{Result, Status};

thread_local! {
    static LAST: Cell<Status> = const { Cell::new(Status::SUCCESS) };
}

/// Returns the status of a call, and keeps it if it is an error: that something is not ready is none.
pub(crate) fn record(result: Result<()>) -> Status {
    match result {
        Ok(()) => Status::SUCCESS,
        Err(Status::NOT_READY) => Status::NOT_READY,
        Err(error) => {
            LAST.set(error);
            error
        }
    }
}

/// Forgets the thread's last error.
pub(crate) fn clear() {
    LAST.set(Status::SUCCESS);
}

/// Returns the thread's last error and forgets it, also if it ended the use of the device: the next call tells again.
#[unsafe(no_mangle)]
extern "C" fn cudaGetLastError() -> Status {
    // Without a driver every call fails, this one too.
    if let Err(error) = driver::get() {
        return error;
    }
    LAST.replace(Status::SUCCESS)
}

#[unsafe(no_mangle)]
extern "C" fn cudaPeekAtLastError() -> Status {
    driver::get().map_or_else(|error| error, |_| LAST.get())
}
