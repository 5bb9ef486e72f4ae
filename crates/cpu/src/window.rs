//! Windows: memory of every rank that all ranks know of, so that each can write into that of the others.
//!
//! That takes memory that all ranks can use directly. If one of them cannot, registering succeeds without making
//! a window, as it does in NCCL where a system has no symmetric memory.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use crate::debug::{self, Subsystem};
use crate::exchange::{Purpose, exchange};
use crate::failure::{Failure, Result};
use crate::reach::{Seat, Stretch, Whereabouts};
use crate::registry::Registry;

/// A rank's part of a window, as it tells the others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Part {
    pub(crate) place: Whereabouts,
    pub(crate) length: usize,
    pub(crate) flags: u32,
}

/// Words of a part: where it is, its length, its flags.
const WORDS: usize = Whereabouts::WORDS + 2;

#[derive(Debug)]
pub(crate) struct Window {
    rank: usize,
    parts: Vec<Stretch>,
    /// Of this rank's own part, as the caller gave it.
    start: usize,
}

/// The windows of a communicator.
#[derive(Debug)]
pub(crate) struct Windows {
    registry: Registry<Arc<Window>>,
    /// Whether there has ever been one.
    ever: AtomicBool,
}

impl Part {
    fn text(self) -> [u8; WORDS * size_of::<u64>()] {
        let [a, b, c, d] = self.place.words();
        let words = [a, b, c, d, self.length as u64, self.flags.into()];
        let mut text = [0; WORDS * size_of::<u64>()];
        for (bytes, word) in text.as_chunks_mut().0.iter_mut().zip(words) {
            *bytes = word.to_ne_bytes();
        }
        text
    }

    /// What another rank said; none if no rank says such a thing.
    fn from_text(text: &[u8]) -> Option<Self> {
        let (words, []) = text.as_chunks() else { return None };
        let [a, b, c, d, length, flags] = <[[u8; 8]; WORDS]>::try_from(words).ok()?.map(u64::from_ne_bytes);
        Some(Self {
            place: Whereabouts::from_words([a, b, c, d]),
            length: usize::try_from(length).ok()?,
            flags: u32::try_from(flags).ok()?,
        })
    }
}

impl Window {
    /// Registers `part`, together with all other ranks, of which each has its own. None if not all
    /// ranks can use all parts.
    pub(crate) async fn register(seat: Seat<'_>, start: usize, part: Part) -> Result<Option<Self>> {
        let Seat { world, rank, .. } = seat;
        let said = exchange(world, rank, Purpose::RegisterWindow, &part.text()).await?;
        let parts = said
            .iter()
            .enumerate()
            .map(|(owner, text)| {
                Part::from_text(text).ok_or_else(|| {
                    Failure::remote(format!("rank {owner} said what is no part of a window: {text:?}"))
                })
            })
            .collect::<Result<Vec<Part>>>()?;
        if let Some(other) = parts.iter().position(|other| other.flags != parts[0].flags) {
            return Err(Failure::usage(format!(
                "the ranks called ncclCommWindowRegister with different winFlags: rank {other} with {:#x}, \
                 rank 0 with {:#x}",
                parts[other].flags, parts[0].flags
            )));
        }
        let places: Vec<_> = parts.iter().enumerate().map(|(owner, part)| (owner, part.place)).collect();
        if !seat.everywhere(&places).await? {
            debug::info(Subsystem::Registration, || {
                let private = parts.iter().position(|part| !part.place.is_shared());
                let why = private.map_or("a rank cannot map another's memory".into(), |owner| {
                    format!("the memory of rank {owner} is not from ncclMemAlloc")
                });
                format!("No window for {} bytes of rank {rank}: {why}", part.length)
            });
            return Ok(None);
        }
        let stretch = |(owner, part): (usize, &Part)| {
            seat.stretch(owner, part.place, part.length).ok_or_else(|| {
                Failure::remote(format!(
                    "rank {owner} has not {} bytes where it says that its part of a window is",
                    part.length
                ))
            })
        };
        let parts = parts.iter().enumerate().map(stretch).collect::<Result<_>>()?;
        Ok(Some(Self { rank, parts, start }))
    }

    /// The address that this rank gave.
    pub(crate) fn start(&self) -> usize {
        self.start
    }

    /// The part of a rank.
    pub(crate) fn part(&self, rank: usize) -> &Stretch {
        &self.parts[rank]
    }

    /// Whether `length` bytes at `start` are in this rank's own part.
    fn holds(&self, start: usize, length: usize) -> bool {
        let own = self.part(self.rank).length();
        start.checked_sub(self.start).is_some_and(|at| at <= own && length <= own - at)
    }
}

impl Default for Windows {
    fn default() -> Self {
        Self { registry: Registry::new("window"), ever: AtomicBool::new(false) }
    }
}

impl Windows {
    /// Adds a window. The number is its handle.
    pub(crate) fn add(&self, window: Window) -> usize {
        self.ever.store(true, Relaxed);
        self.registry.add(Arc::new(window))
    }

    pub(crate) fn get(&self, handle: usize) -> Result<Arc<Window>> {
        self.registry.get(handle)
    }

    pub(crate) fn remove(&self, handle: usize) -> Result {
        self.registry.remove(handle).map(drop)
    }

    /// Whether there has ever been one.
    pub(crate) fn ever(&self) -> bool {
        self.ever.load(Relaxed)
    }

    /// Whether `length` bytes at `start` are in this rank's part of one of them.
    pub(crate) fn hold(&self, start: usize, length: usize) -> bool {
        self.registry.any(|window| window.holds(start, length))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_said_of_a_part_arrives() {
        let place = Whereabouts::from_words([1 << 40, 7, 3, 4096]);
        for place in [place, Whereabouts::from_words([5, 0, 0, 0])] {
            let part = Part { place, length: 8192, flags: 3 };
            assert_eq!(Part::from_text(&part.text()), Some(part));
        }
        assert_eq!(Part::from_text(&[0; 47]), None);
        assert_eq!(Part::from_text(&[0xff; 48]), None, "flags of 64 bits");
    }
}
