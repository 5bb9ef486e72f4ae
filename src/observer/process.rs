use std::sync::{Arc, PoisonError, RwLock};

use super::catch_panic::catch_panic;
use crate::observer::{Membership, Observer};

type Make = dyn Fn(&Membership) -> Option<Arc<dyn Observer>> + Send + Sync;

/// The functions that make observers for the communicators of this process.
static MAKERS: RwLock<Vec<Arc<Make>>> = RwLock::new(Vec::new());

/// Gives each communicator that is created in this process from now on the observer that `make` returns for it: one for all, or
/// one of its own.
///
/// ```
/// use std::sync::Arc;
///
/// use libnccl::{StreamRef, observer::{Membership, Observer, OperationEnd}};
///
/// /// Prints the operations that fail.
/// struct Failures;
///
/// impl Observer for Failures {
///     fn on_end(&self, end: &OperationEnd<'_>) {
///         let _ = end.result.inspect_err(|error| eprintln!("operation {}: {error}", end.first));
///     }
/// }
///
/// libnccl::observer::observe(|communicator: &Membership| (communicator.size > 1).then(|| Arc::new(Failures) as _));
/// libnccl_cpu::run_ranks(2, |comm| comm.barrier(&mut [0_u8], StreamRef::DEFAULT))?;
/// # Ok::<(), libnccl::Error>(())
/// ```
pub fn observe(make: impl Fn(&Membership) -> Option<Arc<dyn Observer>> + Send + Sync + 'static) {
    MAKERS.write().unwrap_or_else(PoisonError::into_inner).push(Arc::new(make));
}

pub(crate) fn of_process(communicator: &Membership) -> Vec<Arc<dyn Observer>> {
    // Not under the lock, as they may call `observe`.
    let makers = MAKERS.read().unwrap_or_else(PoisonError::into_inner).clone();
    makers.iter().filter_map(|make| catch_panic(|| make(communicator)).flatten()).collect()
}
