//! Objects created with a communicator: registrations, windows, custom reductions, and child communicators.
//!
//! Handles are never reused, so a stale or foreign handle causes an error, not a crash. The low bits of a handle encode the kind of its
//! object, so that the error for a handle passed to the wrong function can state the kind.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Mutex;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize};

use libnccl::sys::ncclRedOp_t;

use crate::bootstrap::unique_id::{UniqueId, comm_id};
use crate::comm::open_group;
use crate::diag::error::{Error, Result};
use crate::reduce::data_type::DataType;
use crate::reduce::reduction::Reduction;
use crate::shm::buffer::ReadBuf;
use crate::sync::lock;

/// Objects by handle.
pub(crate) struct Registry<T> {
    objects: Mutex<BTreeMap<usize, T>>,
    /// Set when the first object is added, and never cleared.
    any_added: AtomicBool,
}

/// An object that has a handle.
pub(crate) trait Object: Clone {
    const KIND: Kind;
}

/// A registered buffer.
impl Object for Range<usize> {
    const KIND: Kind = Kind::Registration;
}

impl<T> Default for Registry<T> {
    fn default() -> Self {
        Self { objects: Mutex::default(), any_added: AtomicBool::new(false) }
    }
}

/// The kind of an object. Its value is the low bits of the object's handle.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Communicator = 0,
    Registration = 1,
    Window = 2,
}

/// The last number assigned by any registry, without the bits of its [`Kind`].
static LAST: AtomicUsize = AtomicUsize::new(0);

/// The last serial number of a communicator, including those created by the processes from which this one was forked.
static LAST_COMMUNICATOR: AtomicUsize = AtomicUsize::new(0);

/// Number of bits of a communicator's serial number. Above them is the [generation](crate::shm::process::fork_generation) of its
/// process, which counts nested forks. Creating a communicator takes at least 10 us, so the serial numbers last for at least 120
/// days.
pub(crate) const SERIAL: u32 = usize::BITS - 24;

/// Returns the number of a new communicator in a process of this generation. The handle has 4 more low bits.
pub(super) fn communicator_number(generation: usize) -> usize {
    generation << SERIAL | (LAST_COMMUNICATOR.fetch_add(1, Relaxed) + 1)
}

impl Kind {
    /// Returns the kind of a handle. The handle may belong to another communicator or to an object that was destroyed.
    pub(crate) fn of(handle: usize) -> Option<Self> {
        let number = handle >> 4;
        let is_object = (1..=LAST.load(Relaxed)).contains(&number);
        let serial = number & ((1 << SERIAL) - 1);
        match handle & 0xf {
            0 => (1..=LAST_COMMUNICATOR.load(Relaxed)).contains(&serial).then_some(Self::Communicator),
            1 => is_object.then_some(Self::Registration),
            2 => is_object.then_some(Self::Window),
            _ => None,
        }
    }

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Communicator => "communicator",
            Self::Registration => "registration",
            Self::Window => "window",
        }
    }
}

impl<T: Object> Registry<T> {
    /// Adds `entry` and returns its number, which is neither zero nor an address.
    pub(crate) fn add(&self, entry: T) -> usize {
        self.any_added.store(true, Relaxed);
        let number = (LAST.fetch_add(1, Relaxed) + 1) << 4 | T::KIND as usize;
        lock(&self.objects).insert(number, entry);
        number
    }

    pub(crate) fn get(&self, number: usize) -> Result<T> {
        lock(&self.objects).get(&number).cloned().ok_or_else(|| Self::unknown(number))
    }

    pub(crate) fn remove(&self, number: usize) -> Result<T> {
        lock(&self.objects).remove(&number).ok_or_else(|| Self::unknown(number))
    }

    pub(crate) fn remove_all(&self) -> Vec<T> {
        std::mem::take(&mut *lock(&self.objects)).into_values().collect()
    }

    pub(crate) fn len(&self) -> usize {
        lock(&self.objects).len()
    }

    pub(crate) fn any_added(&self) -> bool {
        self.any_added.load(Relaxed)
    }

    pub(crate) fn find(&self, mut test: impl FnMut(&T) -> bool) -> Option<usize> {
        lock(&self.objects).iter().find(|(_, entry)| test(entry)).map(|(number, _)| *number)
    }

    fn unknown(number: usize) -> Error {
        let what = T::KIND.name();
        let cause = match Kind::of(number) {
            _ if number == 0 => open_group::explain_absence(what),
            Some(kind) if kind == T::KIND => ": it is another communicator's, or was destroyed".into(),
            Some(kind) => format!(": it is a {}", kind.name()),
            None => String::new(),
        };
        let number = if number == 0 { "NULL".into() } else { format!("{number:#x}") };
        Error::argument(format!("{number} is not a {what} of this communicator{cause}"))
    }
}

/// The custom reductions of a communicator, by NCCL's number.
#[derive(Default)]
pub(crate) struct CustomReductions(Mutex<BTreeMap<u32, CustomReduction>>);

/// A reduction, its type, and the location of its scalar if the scalar is read when an operation runs.
type CustomReduction = (DataType, Reduction, Option<ReadBuf>);

impl CustomReductions {
    /// Creates a reduction that multiplies this rank's inputs by the element at `place`, or else in the first bytes of `scalar`.
    pub(crate) fn create(
        &self,
        data_type: DataType,
        scalar: [u8; 8],
        place: Option<ReadBuf>,
    ) -> Result<ncclRedOp_t> {
        static NEXT: AtomicU32 = AtomicU32::new(ncclRedOp_t::ncclNumOps.0);
        let number = next_reduction(&NEXT)?;
        lock(&self.0).insert(number, (data_type, Reduction::PreMulSum(scalar), place));
        Ok(ncclRedOp_t(number))
    }

    pub(crate) fn destroy(&self, op: ncclRedOp_t) -> Result {
        match lock(&self.0).remove(&op.0) {
            Some(_) => Ok(()),
            None => Err(Error::argument(format!("reduction {} was not created by this communicator", op.0))),
        }
    }

    pub(crate) fn len(&self) -> usize {
        lock(&self.0).len()
    }

    /// Returns the reduction, and the location of its scalar if the scalar is read when the operation runs.
    pub(crate) fn get(&self, op: ncclRedOp_t, data_type: DataType) -> Result<(Reduction, Option<ReadBuf>)> {
        if let Some(reduction) = Reduction::built_in(op) {
            return Ok((reduction, None));
        }
        match lock(&self.0).get(&op.0) {
            Some((own, reduction, place)) if *own == data_type => Ok((*reduction, *place)),
            Some((own, ..)) => Err(Error::argument(format!(
                "reduction {} was created for {own:?}, not for {data_type:?}",
                op.0
            ))),
            None => Err(Error::argument(format!("reduction {} is unknown to this communicator", op.0))),
        }
    }
}

/// Returns the next number of a custom reduction. Numbers are never reused, so that a destroyed reduction, or a reduction of another
/// communicator, is detected. They never equal the number of a built-in reduction.
fn next_reduction(next: &AtomicU32) -> Result<u32> {
    const MAX: u32 = ncclRedOp_t::ncclMaxRedOp.0;
    let increment = |number| (number <= MAX).then_some(number + 1);
    next.fetch_update(Relaxed, Relaxed, increment).map_err(|_| {
        let created = MAX - ncclRedOp_t::ncclNumOps.0 + 1;
        Error::usage(format!(
            "the process has created {created} custom reductions, and there are no more numbers"
        ))
    })
}

#[derive(Default)]
pub(crate) struct Children {
    /// The number of child ids derived from the parent's id, for each set of ranks.
    numbers: Mutex<BTreeMap<Vec<usize>, u64>>,
    /// The id with which new ranks join, if one was created and has not been used.
    pub(crate) grow_id: Mutex<Option<UniqueId>>,
    /// Counter of the children, for their hashes.
    pub(crate) hashes: libnccl::observer::Children,
}

impl Children {
    /// Returns the number of the next child id of these ranks. Each set of ranks has a separate counter, because only these ranks
    /// derive these ids, all in the same order.
    pub(crate) fn next_number(&self, ranks: &[usize]) -> u64 {
        let mut numbers = lock(&self.numbers);
        let number = numbers.entry(ranks.to_vec()).or_insert(0);
        *number += 1;
        *number
    }

    /// Creates the id with which new ranks join. There is at most one at a time.
    pub(crate) fn create_grow_id(&self) -> Result<UniqueId> {
        if let Some(address) = comm_id() {
            return Err(Error::usage(format!(
                "ncclCommGetUniqueId cannot be used while NCCL_COMM_ID is set, here to {address:?}"
            )));
        }
        let mut grow_id = lock(&self.grow_id);
        if grow_id.is_some() {
            return Err(Error::usage(
                "the communicator already has an id for ncclCommGrow that has not been used",
            ));
        }
        let new = UniqueId::generate()?;
        *grow_id = Some(new);
        Ok(new)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_reductions_end_with_an_error_and_are_not_reused() {
        let next = AtomicU32::new(ncclRedOp_t::ncclMaxRedOp.0);
        assert_eq!(next_reduction(&next).unwrap(), ncclRedOp_t::ncclMaxRedOp.0);
        for _ in 0..2 {
            assert!(next_reduction(&next).unwrap_err().text.contains("2147483643 custom reductions"));
        }
    }
}
