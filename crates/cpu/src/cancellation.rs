//! Holding off `pthread_cancel`, for the functions that C calls.
//!
//! The C library unwinds a thread that is cancelled from the next cancellation point on, which is a sleep, a write, the end
//! of a file descriptor and many a thing more. Frames that catch panics do not let that pass, and the process ends. So no
//! cancellation acts in a call: it waits for the thread's next cancellation point after it.
//!
//! A thread holds it off in all of a call, but for the operations that run at once, which would take notably longer: in
//! these, it does where there is a cancellation point. Waits have it only once they have taken long.
#![allow(unsafe_code)]

use std::ffi::c_int;
use std::marker::PhantomData;

// The crate libc lacks it.
unsafe extern "C" {
    fn pthread_setcancelstate(state: c_int, before: *mut c_int) -> c_int;
}

/// `PTHREAD_CANCEL_DISABLE`, the same in glibc and in musl.
const DISABLE: c_int = 1;

/// No cancellation of the thread acts for as long as this lives.
#[derive(Debug)]
#[must_use]
pub(crate) struct NoCancellation {
    before: c_int,
    of_this_thread: PhantomData<*const ()>,
}

impl NoCancellation {
    pub(crate) fn new() -> Self {
        let mut before = 0;
        // SAFETY: the C library's function, which writes the thread's state to `before`.
        unsafe { pthread_setcancelstate(DISABLE, &raw mut before) };
        Self { before, of_this_thread: PhantomData }
    }
}

impl Drop for NoCancellation {
    fn drop(&mut self) {
        // SAFETY: as above, with a state that it has returned. A cancellation that has come meanwhile does not act here, unless
        // the program asked for asynchronous ones, which these functions are documented not to allow.
        unsafe { pthread_setcancelstate(self.before, &raw mut self.before) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the thread's state, which it sets to `state`.
    fn replace(state: c_int) -> c_int {
        let mut before = -1;
        // SAFETY: as above.
        unsafe { pthread_setcancelstate(state, &raw mut before) };
        before
    }

    #[test]
    fn state_of_the_thread_is_what_it_was_before() {
        const ENABLE: c_int = 0;
        let outer = NoCancellation::new();
        drop(NoCancellation::new());
        assert_eq!(replace(DISABLE), DISABLE, "an inner one leaves the outer one's");
        drop(outer);
        assert_eq!(replace(ENABLE), ENABLE);
    }
}
