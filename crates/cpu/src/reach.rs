//! Which memory of other ranks this rank can use directly.
//!
//! That of its own process, and, of other processes, what comes from `ncclMemAlloc`. The rest it can read, where
//! the host lets a process read another one's memory. All ranks have to come to the same answer: each sees what
//! all others say of their buffers, and before an allocation is used for the first time they tell each other
//! whether they could map it.
#![allow(unsafe_code)]

use std::collections::HashMap;
use std::sync::atomic::{AtomicU8, Ordering::Relaxed};
use std::sync::{Arc, LazyLock, Mutex, OnceLock, PoisonError};

use crate::buffer::{Source, Target};
use crate::debug::{self, Subsystem};
use crate::failure::{Failure, Result};
use crate::foreign;
use crate::mapping::Mapping;
use crate::memory::{self, Place};
use crate::world::World;

/// Allocations of other ranks that are known, and of other processes that stay mapped.
const MOST: usize = 256;

/// As in NCCL, `NCCL_P2P_DISABLE=1` keeps ranks out of each other's memory: everything is staged.
static DISABLED: LazyLock<bool> =
    LazyLock::new(|| is_set("NCCL_P2P_DISABLE", "no rank uses another's memory"));

/// As in NCCL, `NCCL_SHM_DISABLE=1` keeps bytes from being staged in memory that ranks share, where there is another way.
static NOT_STAGED: LazyLock<bool> =
    LazyLock::new(|| is_set("NCCL_SHM_DISABLE", "nothing is staged that can be read"));

fn is_set(name: &str, meaning: &str) -> bool {
    let set = std::env::var_os(name).is_some_and(|value| value == "1");
    if set {
        debug::info(Subsystem::Environment, || format!("{name} set by environment to 1: {meaning}"));
    }
    set
}

/// What a rank says of one of its buffers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Whereabouts {
    address: u64,
    /// Its place in a shared allocation, if it has one.
    place: Option<Place>,
}

/// An allocation: its owner's rank and its number there.
type Key = (usize, u64);

/// The allocations of other ranks that have been looked at.
#[derive(Debug, Default)]
pub(crate) struct Reach {
    /// All ranks know the same.
    known: Mutex<HashMap<Key, Access>>,
    /// This rank's mappings, also of what is no other rank's business, and what could not be mapped.
    mappings: Mutex<HashMap<Key, Option<Arc<Mapping>>>>,
    /// Whether every rank may read and write the memory of every other's process.
    readable: OnceLock<bool>,
    /// The ways to get a call done that debug output has told of, a bit each.
    told: AtomicU8,
}

/// A rank among the others, and what it can use of their memory.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Seat<'a> {
    pub(crate) reach: &'a Reach,
    pub(crate) world: &'a World,
    pub(crate) rank: usize,
}

/// A stretch of a rank's memory, in reach for as long as this is there.
#[derive(Debug)]
pub(crate) struct Stretch {
    memory: Memory,
    length: usize,
}

#[derive(Debug)]
enum Memory {
    /// At an address of this process.
    Here(u64),
    /// From an offset on.
    There(Arc<Mapping>, u64),
}

#[derive(Debug)]
enum Access {
    /// It is this process's own.
    Own,
    Mapped(Arc<Mapping>),
    /// To all ranks or to some.
    No,
}

impl Whereabouts {
    pub(crate) const WORDS: usize = 4;

    /// Of `length` bytes at `start`, with their place if `others` need it.
    pub(crate) fn new(start: *const u8, length: usize, others: bool) -> Self {
        if *DISABLED {
            return Self { address: 0, place: None };
        }
        let place = if others && length > 0 { memory::locate(start, length) } else { None };
        Self { address: start.expose_provenance() as u64, place }
    }

    /// Whether its owner lets others use it.
    pub(crate) fn is_told(self) -> bool {
        self.address != 0
    }

    /// Whether other processes can map it, as far as its owner knows.
    pub(crate) fn is_shared(self) -> bool {
        self.place.is_some()
    }

    pub(crate) fn words(self) -> [u64; Self::WORDS] {
        let Place { allocation, file, offset } =
            self.place.unwrap_or(Place { allocation: 0, file: 0, offset: 0 });
        [self.address, allocation, file.into(), offset]
    }

    pub(crate) fn from_words([address, allocation, file, offset]: [u64; Self::WORDS]) -> Self {
        let place = Place { allocation, file: file as u32, offset };
        Self { address, place: (allocation != 0).then_some(place) }
    }
}

impl Reach {
    /// Whether this is asked for the first time of `way`.
    pub(crate) fn is_new(&self, way: u8) -> bool {
        // Nearly always not, and then nothing is written.
        let bit = 1 << way;
        self.told.load(Relaxed) & bit == 0 && self.told.fetch_or(bit, Relaxed) & bit == 0
    }

    fn known(&self) -> std::sync::MutexGuard<'_, HashMap<Key, Access>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Seat<'_> {
    fn is_near(self, owner: usize) -> bool {
        self.world.process(owner) == self.world.process(self.rank)
    }

    /// Whether every rank can use all `buffers`, given with their owners, as `rank`; all ranks call this with
    /// the same buffers and get the same answer.
    pub(crate) async fn everywhere(self, buffers: &[(usize, Whereabouts)]) -> Result<bool> {
        if buffers.iter().any(|(_, buffer)| !buffer.is_told()) {
            return Ok(false);
        }
        if self.world.is_one_process() {
            return Ok(true);
        }
        let Some(places) = buffers
            .iter()
            .map(|(owner, buffer)| Some((*owner, buffer.place?)))
            .collect::<Option<Vec<(usize, Place)>>>()
        else {
            return Ok(false);
        };
        let unknown = |known: &HashMap<_, _>| {
            places.iter().filter(|(owner, place)| !known.contains_key(&(*owner, place.allocation))).count()
        };
        if unknown(&self.reach.known()) > 0 {
            self.look(&places).await?;
        }
        let known = self.reach.known();
        Ok(places
            .iter()
            .all(|(owner, place)| !matches!(known.get(&(*owner, place.allocation)), None | Some(Access::No))))
    }

    /// Maps what is new of `places` and tells the other ranks whether that went well.
    async fn look(self, places: &[(usize, Place)]) -> Result {
        let mut new = HashMap::new();
        {
            let mut known = self.reach.known();
            if known.len() + places.len() > MOST {
                // All ranks know the same, so all forget at the same time.
                known.clear();
            }
            for (owner, place) in places {
                let key = (*owner, place.allocation);
                if !known.contains_key(&key) && !new.contains_key(&key) {
                    new.insert(key, self.access(*owner, *place));
                }
            }
        }
        let possible = !new.values().any(|access| matches!(access, Access::No));
        let possible = self.all_can(possible).await?;
        let new = new.into_iter().map(|(key, access)| (key, if possible { access } else { Access::No }));
        self.reach.known().extend(new);
        Ok(())
    }

    /// Whether every rank can [`read`](Self::read) and [`write`](Self::write) `buffers`, given with their owners, faster
    /// than have them staged; all ranks call this with the same buffers and get the same answer, the first time by
    /// trying.
    pub(crate) async fn readable(self, buffers: &[(usize, Whereabouts)]) -> Result<bool> {
        if buffers.iter().any(|(_, buffer)| !buffer.is_told()) {
            return Ok(false);
        }
        if let Some(readable) = self.reach.readable.get() {
            return Ok(*readable);
        }
        let mut byte = [0];
        // SAFETY: one byte, used through this only.
        let target = unsafe { Target::new(byte.as_mut_ptr(), 1) };
        let mut others = buffers.iter().filter(|(owner, _)| !self.is_near(*owner));
        let unread = others.find_map(|(owner, buffer)| {
            let error = foreign::read(&self.world.process(*owner), buffer.address, target).err()?;
            Some(format!("memory of rank {owner} cannot be read and is staged: {error}"))
        });
        let unwritten = || {
            let error = foreign::may_write(&self.world.process(self.rank)).err()?;
            Some(format!("memory of other ranks cannot be written and is staged: {error}"))
        };
        let slow = || {
            if *NOT_STAGED {
                return None;
            }
            let [read, copied] = (*foreign::COMPARED)?;
            (read > 2 * copied).then(|| {
                format!(
                    "memory of other ranks is staged: reading a megabyte takes {read:?}, copying it twice {:?}",
                    2 * copied
                )
            })
        };
        let failure = unread.or_else(unwritten).or_else(slow);
        if let Some(failure) = &failure {
            debug::info(Subsystem::SharedMemory, || failure.clone());
        }
        let readable = self.all_can(failure.is_none()).await?;
        Ok(*self.reach.readable.get_or_init(|| readable))
    }

    /// Copies what lies `offset` bytes into `buffer` of `owner`, which is in another process or in this one.
    pub(crate) fn read(self, owner: usize, buffer: Whereabouts, offset: usize, target: Target) -> Result {
        let address = buffer.address + offset as u64;
        if self.is_near(owner) {
            let start = std::ptr::with_exposed_provenance(address as usize);
            // SAFETY: as in `source`.
            target.copy(unsafe { Source::new(start, target.length()) }, false);
            return Ok(());
        }
        foreign::read(&self.world.process(owner), address, target).map_err(|error| {
            Failure::remote(format!("{} bytes of rank {owner} cannot be read: {error}", target.length()))
        })
    }

    /// Copies `source` to `offset` bytes into `buffer` of `owner`.
    pub(crate) fn write(self, owner: usize, buffer: Whereabouts, offset: usize, source: Source) -> Result {
        let address = buffer.address + offset as u64;
        if self.is_near(owner) {
            let start = std::ptr::with_exposed_provenance_mut(address as usize);
            // SAFETY: as in `target`.
            unsafe { Target::new(start, source.length()) }.copy(source, false);
            return Ok(());
        }
        foreign::write(&self.world.process(owner), address, source).map_err(|error| {
            Failure::remote(format!("{} bytes of rank {owner} cannot be written: {error}", source.length()))
        })
    }

    /// `length` bytes that `owner` said are at `buffer`, to read.
    pub(crate) fn source(self, owner: usize, buffer: Whereabouts, length: usize) -> Result<Source> {
        let start = self.start(owner, buffer, length)?;
        // SAFETY: `start` is where they are here, and `owner`, or its caller, vouched for them in the call of
        // which this is a part. It does not return from that before all ranks have said that they are done.
        Ok(unsafe { Source::new(start, length) })
    }

    /// `length` bytes that `owner` said are at `buffer`, to write.
    pub(crate) fn target(self, owner: usize, buffer: Whereabouts, length: usize) -> Result<Target> {
        let start = self.start(owner, buffer, length)?;
        // SAFETY: as for `source`; which rank writes which part, the collective settles.
        Ok(unsafe { Target::new(start, length) })
    }

    fn start(self, owner: usize, buffer: Whereabouts, length: usize) -> Result<*mut u8> {
        if self.is_near(owner) {
            return Ok(std::ptr::with_exposed_provenance_mut(buffer.address as usize));
        }
        let lost = || Failure::internal(format!("memory of rank {owner} that was mapped is not"));
        let place = buffer.place.ok_or_else(lost)?;
        let known = self.reach.known();
        let Some(Access::Mapped(mapping)) = known.get(&(owner, place.allocation)) else { return Err(lost()) };
        let part = mapping.part(place.offset, length);
        part.map(std::ptr::NonNull::as_ptr).ok_or_else(|| {
            Failure::remote(format!(
                "rank {owner} has not {length} bytes at {} of an allocation",
                place.offset
            ))
        })
    }

    /// `length` bytes that `owner` said are at `buffer`; none if this rank cannot use them. No other rank is
    /// asked.
    pub(crate) fn stretch(self, owner: usize, buffer: Whereabouts, length: usize) -> Option<Stretch> {
        if !buffer.is_told() {
            return None;
        }
        let memory = if self.is_near(owner) {
            Memory::Here(buffer.address)
        } else {
            let place = buffer.place?;
            let mapping = self.map(owner, place)?;
            mapping.part(place.offset, length)?;
            Memory::There(mapping, place.offset)
        };
        Some(Stretch { memory, length })
    }

    fn access(self, owner: usize, place: Place) -> Access {
        if self.is_near(owner) {
            return Access::Own;
        }
        self.map(owner, place).map_or(Access::No, Access::Mapped)
    }

    /// Another process's allocation.
    fn map(self, owner: usize, place: Place) -> Option<Arc<Mapping>> {
        let mut mappings = self.reach.mappings.lock().unwrap_or_else(PoisonError::into_inner);
        let key = (owner, place.allocation);
        if mappings.len() >= MOST && !mappings.contains_key(&key) {
            // Those in use stay for as long as they are.
            mappings.clear();
        }
        let opened = || match Mapping::open(&self.world.process(owner), place.file) {
            Ok(mapping) => Some(Arc::new(mapping)),
            Err(failure) => {
                debug::info(Subsystem::SharedMemory, || {
                    format!("memory of rank {owner} is not used directly: {}", failure.text)
                });
                None
            }
        };
        mappings.entry(key).or_insert_with(opened).clone()
    }

    /// Whether `can` holds at every rank.
    async fn all_can(self, can: bool) -> Result<bool> {
        let Self { world, rank, .. } = self;
        let step = world.next_step(rank).await?;
        world.say(rank, step, [can.into(), 0], &[], None);
        world.all(rank, step).await?;
        Ok((0..world.ranks()).all(|rank| world.common(rank, step)[0] != 0))
    }
}

impl Stretch {
    pub(crate) fn length(&self) -> usize {
        self.length
    }

    /// `length` bytes from `at` on, if there are so many.
    pub(crate) fn source(&self, at: usize, length: usize) -> Option<Source> {
        // SAFETY: `start` checks the bounds; for the rest the owner vouched when it said where they are, and it
        // keeps them until nobody uses them any more.
        self.start(at, length).map(|start| unsafe { Source::new(start, length) })
    }

    /// The same, to write.
    pub(crate) fn target(&self, at: usize, length: usize) -> Option<Target> {
        // SAFETY: as for `source`; who writes which part when, the ranks settle between them.
        self.start(at, length).map(|start| unsafe { Target::new(start, length) })
    }

    fn start(&self, at: usize, length: usize) -> Option<*mut u8> {
        if length > self.length.checked_sub(at)? {
            return None;
        }
        match &self.memory {
            Memory::Here(address) => {
                Some(std::ptr::with_exposed_provenance_mut((*address as usize).checked_add(at)?))
            }
            Memory::There(mapping, offset) => {
                mapping.part(offset.checked_add(at as u64)?, length).map(std::ptr::NonNull::as_ptr)
            }
        }
    }
}
