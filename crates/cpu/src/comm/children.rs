//! The ids of the communicators that are made from one.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::bootstrap::unique_id::{UniqueId, comm_id};
use crate::diag::error::{Error, Result};

#[derive(Debug, Default)]
pub(crate) struct Children {
    /// The number of child ids derived from the parent's id, for each set of ranks.
    numbers: Mutex<BTreeMap<Vec<usize>, u64>>,
    /// The id by which new ranks join, if one was created and has not been used.
    grow_id: Mutex<Option<UniqueId>>,
}

impl Children {
    /// Returns the number of the next child id of these ranks. They all derive theirs in the same order, and other
    /// ranks do not, so each set of ranks counts by itself.
    pub(crate) fn next_number(&self, ranks: &[usize]) -> u64 {
        let mut numbers = self.numbers.lock().unwrap_or_else(PoisonError::into_inner);
        let number = numbers.entry(ranks.to_vec()).or_insert(0);
        *number += 1;
        *number
    }

    /// Creates the id by which new ranks join. There is one at a time.
    pub(crate) fn create_grow_id(&self) -> Result<UniqueId> {
        if let Some(address) = comm_id() {
            return Err(Error::usage(format!(
                "ncclCommGetUniqueId cannot be used while NCCL_COMM_ID is set, here to {address:?}"
            )));
        }
        let mut grow_id = self.grow_id();
        if grow_id.is_some() {
            return Err(Error::usage(
                "the communicator already has an id for ncclCommGrow that has not been used",
            ));
        }
        let new = UniqueId::generate()?;
        *grow_id = Some(new);
        Ok(new)
    }

    pub(crate) fn grow_id(&self) -> MutexGuard<'_, Option<UniqueId>> {
        self.grow_id.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
