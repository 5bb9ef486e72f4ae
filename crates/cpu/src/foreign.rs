//! Reading and writing the memory of another process: for what lies in no memory that both have.
#![allow(unsafe_code)]

use std::hint::black_box;
use std::io;
use std::ptr;
use std::sync::LazyLock;
use std::time::{Duration, Instant};

use libc::{iovec, pid_t, process_vm_readv, process_vm_writev};

use crate::buffer::{Source, Target};
use crate::process::Process;

/// Fills `target` with what lies at `address` in the process.
pub(crate) fn read(process: &Process, address: u64, target: Target) -> io::Result<()> {
    // SAFETY: the kernel writes to memory that is the operation's, and checks the other address itself.
    transfer(process, address, target.start(), target.length(), |pid, own, other| unsafe {
        process_vm_readv(pid, own, 1, other, 1, 0)
    })
}

/// Copies `source` to `address` in the process.
pub(crate) fn write(process: &Process, address: u64, source: Source) -> io::Result<()> {
    // SAFETY: the kernel reads memory that is the operation's, and checks the other address itself. That it is
    // to be written there, the other rank said.
    transfer(process, address, source.start().cast_mut(), source.length(), |pid, own, other| unsafe {
        process_vm_writev(pid, own, 1, other, 1, 0)
    })
}

/// Whether this process, `own`, may call [`write`] at all. Of whom it can read, the kernel lets it write, too; but a
/// filter of system calls can refuse one of the two, whomever it is about.
pub(crate) fn may_write(own: &Process) -> io::Result<()> {
    let (byte, mut place) = (0u8, 0u8);
    // SAFETY: one byte, there until the call has ended.
    let source = unsafe { Source::new(&raw const byte, 1) };
    write(own, (&raw mut place).expose_provenance() as u64, source)
}

/// How long it takes here to [`read`] a megabyte and to copy one, the best of three; nothing if it cannot be read.
/// Reading saves a copy, but the kernel looks up every page of the other process, and how long that takes differs
/// between machines by several times.
pub(crate) static COMPARED: LazyLock<Option<[Duration; 2]>> = LazyLock::new(|| {
    let own = Process::current().ok()?;
    let (from, mut to) = (vec![1u8; 1 << 20], vec![0u8; 1 << 20]);
    let mut best = [Duration::MAX; 2];
    for _ in 0..3 {
        let start = Instant::now();
        // SAFETY: as long as `to`, which nobody else uses before the call has ended.
        let target = unsafe { Target::new(to.as_mut_ptr(), to.len()) };
        read(&own, from.as_ptr().expose_provenance() as u64, target).ok()?;
        let read = Instant::now();
        black_box(&mut to).copy_from_slice(black_box(&from));
        best = [best[0].min(read - start), best[1].min(read.elapsed())];
    }
    Some(best)
});

/// Calls `call` until it has moved `length` bytes.
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
    fn memory_is_read_and_what_is_none_is_an_error() {
        // A process may read itself, which takes the same way.
        let own = Process::current().unwrap();
        let (source, mut bytes) = (*b"some bytes", [0; 10]);
        // SAFETY: ten bytes, used through this only.
        let target = unsafe { Target::new(bytes.as_mut_ptr(), bytes.len()) };
        read(&own, source.as_ptr().addr() as u64, target).unwrap();
        assert_eq!(bytes, source);
        // SAFETY: as above.
        let source = unsafe { Source::new(b"other".as_ptr(), 5) };
        write(&own, bytes.as_mut_ptr().expose_provenance() as u64, source).unwrap();
        assert_eq!(&bytes, b"otherbytes");
        may_write(&own).unwrap();
        assert!(read(&own, 8, target).is_err(), "nothing is mapped there");
        assert!(read(&Process { pid: u64::MAX, started: 0 }, 0, target).is_err());
    }
}
