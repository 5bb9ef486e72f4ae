//! Checks by the kernel whether memory can be read.
#![allow(unsafe_code)]

use std::ptr;

use libc::{iovec, process_vm_readv};

/// Returns whether this process can read the byte at an address. It only calls the kernel, so a signal handler may use it.
pub(crate) fn is_own_byte_readable(address: usize) -> bool {
    let mut byte = 0u8;
    let own = iovec { iov_base: (&raw mut byte).cast(), iov_len: 1 };
    let other = iovec { iov_base: ptr::without_provenance_mut(address), iov_len: 1 };
    // SAFETY: the kernel writes one byte, which is there, and checks the other address itself.
    unsafe { process_vm_readv(libc::getpid(), &raw const own, 1, &raw const other, 1, 0) == 1 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn byte_of_this_process_is_readable_and_unmapped_memory_is_not() {
        let byte = 0u8;
        assert!(is_own_byte_readable((&raw const byte).addr()) && !is_own_byte_readable(8));
    }
}
