use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

use crate::UniqueId;

/// The identity of a communicator in the dumps of its ranks: a number that is the same on all ranks, and most likely another
/// one for another communicator; 0 if it is not known.
#[derive(Debug, Default)]
pub(crate) struct Identity {
    number: AtomicU64,
    /// The number of children so far, which is the same on all ranks too.
    children: AtomicU64,
}

impl Identity {
    pub(crate) fn get(&self) -> Option<u64> {
        Some(self.number.load(Relaxed)).filter(|number| *number != 0)
    }

    /// Returns it as recordings have it: 16 hexadecimal digits.
    pub(crate) fn to_text(&self) -> Option<String> {
        self.get().map(|number| format!("{number:016x}"))
    }

    pub(crate) fn set(&self, number: u64) {
        self.number.store(number, Relaxed);
    }

    /// Returns the identity of the next child, of a color if there are several.
    pub(crate) fn of_child(&self, color: i32) -> u64 {
        let child = self.children.fetch_add(1, Relaxed);
        let parent = self.number.load(Relaxed);
        if parent == 0 {
            return 0;
        }
        hash(&[parent.to_le_bytes(), child.to_le_bytes(), i64::from(color).to_le_bytes()].concat())
    }
}

/// Returns the identity of communicators that an id creates.
pub(crate) fn of_unique_id(id: &UniqueId) -> u64 {
    hash(id.as_bytes())
}

/// Returns an identity for communicators that are created together in this process.
pub(crate) fn of_this_process() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let number = NEXT.fetch_add(1, Relaxed);
    hash(&[u64::from(std::process::id()).to_le_bytes(), number.to_le_bytes()].concat())
}

/// The hash FNV-1a of 64 bits: it need not withstand anyone.
fn hash(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3)
    })
}
