//! Cross-memory attach: reading and writing another process's memory by `process_vm_readv` and `process_vm_writev`.
#![allow(unsafe_code)]

use std::io;
use std::ptr;

use libc::{iovec, pid_t, process_vm_readv, process_vm_writev};

use crate::shm::buffer::{ReadBuf, WriteBuf};
use crate::shm::process::Process;

/// Fills `to` from `address` in the process.
pub(crate) fn read(process: &Process, address: u64, to: WriteBuf) -> io::Result<()> {
    // SAFETY: the kernel writes to memory that `to` vouches for, and checks the other address itself.
    transfer(process, address, to.start(), to.length(), |pid, own, other| unsafe {
        process_vm_readv(pid, own, 1, other, 1, 0)
    })
}

/// Copies `from` to `address` in the process.
pub(crate) fn write(process: &Process, address: u64, from: ReadBuf) -> io::Result<()> {
    // SAFETY: the kernel reads memory that `from` vouches for, and checks the other address itself, which the other rank
    // published for writing.
    transfer(process, address, from.start().cast_mut(), from.length(), |pid, own, other| unsafe {
        process_vm_writev(pid, own, 1, other, 1, 0)
    })
}

/// Checks that this process, `own`, may call [`write`] at all. The kernel's permission is the same for reading and
/// writing, but a seccomp filter can refuse one of the two.
pub(crate) fn check_write(own: &Process) -> io::Result<()> {
    let (byte, mut copy) = (0u8, 0u8);
    // SAFETY: one byte, valid until the call has ended.
    let from = unsafe { ReadBuf::new(&raw const byte, 1) };
    write(own, (&raw mut copy).expose_provenance() as u64, from)
}

/// Returns the offset of the first byte in `length` bytes at `address` that cannot be read, if there is one.
pub(crate) fn first_unreadable(process: &Process, address: u64, length: usize) -> Option<usize> {
    const PAGE: usize = 4096;
    let to_next_page = PAGE - address as usize % PAGE;
    let mut pages = std::iter::once(0).chain((to_next_page..length).step_by(PAGE));
    pages.find(|at| {
        let mut byte = 0u8;
        // SAFETY: one byte, accessed through this only.
        let to = unsafe { WriteBuf::new(&raw mut byte, 1) };
        read(process, address + *at as u64, to).is_err()
    })
}

/// Returns whether this process can read the byte at an address. It only calls the kernel, so a signal handler may use it.
pub(crate) fn is_own_byte_readable(address: usize) -> bool {
    let mut byte = 0u8;
    let own = iovec { iov_base: (&raw mut byte).cast(), iov_len: 1 };
    let other = iovec { iov_base: ptr::without_provenance_mut(address), iov_len: 1 };
    // SAFETY: the kernel writes one byte, which is there, and checks the other address itself.
    unsafe { process_vm_readv(libc::getpid(), &raw const own, 1, &raw const other, 1, 0) == 1 }
}

/// Repeats `call` until it has transferred `length` bytes.
fn transfer(
    process: &Process,
    address: u64,
    own: *mut u8,
    length: usize,
    call: impl Fn(pid_t, *const iovec, *const iovec) -> isize,
) -> io::Result<()> {
    let pid = pid_t::try_from(process.pid).map_err(io::Error::other)?;
    let mut done = 0;
    while done < length {
        let rest =
            |start: *mut u8| iovec { iov_base: start.wrapping_add(done).cast(), iov_len: length - done };
        let (own, other) = (rest(own), rest(ptr::without_provenance_mut(address as usize)));
        match usize::try_from(call(pid, &raw const own, &raw const other)) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(moved) => done += moved,
            Err(_) => return Err(io::Error::last_os_error()),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn read_and_write_transfer_bytes_and_unmapped_memory_is_an_error() {
        // A process may read itself, by the same system call.
        let own = Process::current().unwrap();
        let (source, mut bytes) = (*b"some bytes", [0; 10]);
        // SAFETY: ten bytes, used through this only.
        let target = unsafe { WriteBuf::new(bytes.as_mut_ptr(), bytes.len()) };
        read(&own, source.as_ptr().addr() as u64, target).unwrap();
        assert_eq!(bytes, source);
        // SAFETY: as above.
        let source = unsafe { ReadBuf::new(b"other".as_ptr(), 5) };
        write(&own, bytes.as_mut_ptr().expose_provenance() as u64, source).unwrap();
        assert_eq!(&bytes, b"otherbytes");
        check_write(&own).unwrap();
        assert!(read(&own, 8, target).is_err(), "nothing is mapped there");
        assert!(is_own_byte_readable(bytes.as_ptr().addr()) && !is_own_byte_readable(8));
        let address = bytes.as_ptr().addr() as u64;
        assert_eq!(first_unreadable(&own, address, bytes.len()), None);
        assert_eq!(first_unreadable(&own, 8, 10), Some(0));
        assert!(read(&Process { pid: u64::MAX, identity: 0 }, 0, target).is_err());
    }
}
