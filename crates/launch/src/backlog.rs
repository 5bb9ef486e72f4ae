#![allow(unsafe_code)] // Calls listen(2).

use std::ffi::c_int;
use std::io;
use std::net::TcpListener;
use std::os::fd::AsRawFd;

// The standard library has no way to give the second argument.
unsafe extern "C" {
    fn listen(socket: c_int, backlog: c_int) -> c_int;
}

/// Lets as many connections wait to be accepted as the system allows, instead of the standard library's 128: those of a
/// thousand ranks come at once, and the system makes clients beyond the limit repeat theirs after a second.
pub(super) fn raise(listener: &TcpListener) -> io::Result<()> {
    // SAFETY: the descriptor is open for as long as the borrow, and listens already; the call reads no memory.
    if unsafe { listen(listener.as_raw_fd(), c_int::MAX) } == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}
