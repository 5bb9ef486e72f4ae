//! The text that `ncclGetLastError` returns: one buffer a process, as in NCCL.
//!
//! The caller reads the buffer without any lock, so it is made of atomic bytes, the last of which stays 0: a
//! reader that races with a writer sees a mixture of two texts and never runs out of the buffer.

use std::ffi::c_char;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU8, Ordering::Relaxed};

use crate::debug;

const SIZE: usize = 1024;

static TEXT: [AtomicU8; SIZE] = [const { AtomicU8::new(0) }; SIZE];
static WRITER: Mutex<()> = Mutex::new(());

/// Replaces the text, cut to what fits, and warns with all of it.
#[track_caller]
pub(crate) fn set(text: &str) {
    debug::warn(|| text.to_owned());
    let end = (0..SIZE).rev().find(|end| text.is_char_boundary(*end)).unwrap_or(0).min(text.len());
    let _one_at_a_time = WRITER.lock();
    for (cell, byte) in TEXT.iter().zip(text.as_bytes()[..end].iter().chain([&0])) {
        cell.store(*byte, Relaxed);
    }
}

/// The buffer, as C sees it.
pub(crate) fn pointer() -> *const c_char {
    TEXT.as_ptr().cast()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_text_is_cut_at_a_character_and_terminated() {
        set(&"ä".repeat(SIZE));
        let bytes: Vec<u8> =
            TEXT.iter().map(|cell| cell.load(Relaxed)).take_while(|byte| *byte != 0).collect();
        assert_eq!(String::from_utf8(bytes).unwrap(), "ä".repeat((SIZE - 1) / 2));
        assert_eq!(TEXT[SIZE - 1].load(Relaxed), 0);
    }
}
