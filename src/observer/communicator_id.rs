use std::fmt;
use std::num::NonZeroU64;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

use crate::unique_id::UniqueId;

/// The identity of a communicator in events, logs and recordings: the same on all its ranks, and most likely another one for
/// another communicator.
///
/// It is written as 16 hexadecimal digits. It is not known of communicators that other code has created, and of those that
/// have grown.
///
/// ```
/// use libnccl::{UniqueId, observer::CommunicatorId};
///
/// let unique_id = libnccl_cpu::nccl().unique_id()?;
/// let id = CommunicatorId::of_unique_id(&unique_id);
/// assert_eq!(id, CommunicatorId::of_unique_id(&unique_id));
/// assert_ne!(Some(id), id.of_child(0, 0).into());
/// assert_eq!(id.to_string().len(), 16);
/// # Ok::<(), libnccl::Error>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct CommunicatorId(NonZeroU64);

impl CommunicatorId {
    /// Returns that of the communicator that a unique id creates.
    #[must_use]
    pub fn of_unique_id(id: &UniqueId) -> Self {
        Self::hash(id.as_bytes())
    }

    /// Returns one for communicators that are created together in this process, as by `ncclCommInitAll`: another one each
    /// time.
    #[must_use]
    pub fn of_this_process() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let number = NEXT.fetch_add(1, Relaxed);
        Self::hash(&[u64::from(std::process::id()).to_le_bytes(), number.to_le_bytes()].concat())
    }

    /// Returns that of a child of this communicator: of the `number`th one, from 0, of this color, or 0 if there are no colors.
    #[must_use]
    pub fn of_child(self, number: u64, color: i32) -> Self {
        let parent = self.0.get().to_le_bytes();
        Self::hash(&[parent, number.to_le_bytes(), i64::from(color).to_le_bytes()].concat())
    }

    /// The hash FNV-1a of 64 bits: it need not withstand anyone.
    fn hash(bytes: &[u8]) -> Self {
        let hash = bytes.iter().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
            (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3)
        });
        Self(NonZeroU64::new(hash).unwrap_or(NonZeroU64::MIN))
    }
}

impl fmt::Display for CommunicatorId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}
