#![allow(unsafe_code)] // Implements `Send` and `Sync`.

use std::marker::PhantomData;
use std::sync::Arc;

use super::registered_window::RegisteredWindow;
use super::window::{Window, window};
use crate::communicator::Shared;
use crate::{Element, Result};

/// A [`Window`](crate::Window) that does not borrow its communicator, so that a struct can hold both. Since NCCL 2.27.3.
///
/// ```
/// use libnccl::{Communicator, NcclBuffer, OwnedWindow, ReduceOp, Result, StreamRef, WindowFlags};
///
/// /// Declares the window first, as fields are dropped in this order.
/// struct Gradients {
///     window: OwnedWindow<f32>,
///     buffer: NcclBuffer<f32>,
///     comm: Communicator,
/// }
///
/// impl Gradients {
///     fn sum(&mut self) -> Result<()> {
///         self.comm.all_reduce_in_place(&mut self.buffer, ReduceOp::Sum, StreamRef::DEFAULT)
///     }
/// }
///
/// let nccl = libnccl_cpu::nccl();
/// let comm = nccl.init_all(&[0])?.remove(0);
/// let mut buffer = nccl.alloc::<f32>(1024)?;
/// // SAFETY: it is the only rank.
/// let window = unsafe { comm.register_window(&mut buffer, WindowFlags::COLL_SYMMETRIC) }?.into_owned()?;
/// let mut gradients = Gradients { window, buffer, comm };
/// gradients.sum()?;
/// // SAFETY: the work has run, and there is no other rank.
/// unsafe { gradients.buffer.assume_idle() };
/// # Ok::<(), libnccl::Error>(())
/// ```
///
/// # Ending
/// A drop deregisters the window immediately, on any thread, unless the communicator is in a call or an open group. Then the
/// thread that leaves that call or group deregisters it.
///
/// - After [`finalize`](crate::Communicator::finalize), and before
///   [`NcclBuffer::assume_idle`](crate::NcclBuffer::assume_idle), the window lasts as long as the communicator.
/// - On host memory, the memory of a dropped window is freed with the communicator at the latest, if it is idle by then.
/// - On a GPU, the memory of a window that was not deregistered before the teardown of the communicator is leaked.
pub struct OwnedWindow<T> {
    registered: RegisteredWindow<Arc<Shared>>,
    element: PhantomData<T>,
}

// SAFETY: the handle is a name for NCCL; it is used together with the communicator, and by the end, for which the
// communicator's state lets one thread at a time into NCCL.
unsafe impl<T: Send> Send for OwnedWindow<T> {}
// SAFETY: a shared reference only gives the handle.
unsafe impl<T: Sync> Sync for OwnedWindow<T> {}

impl<T: Element> Window<'_, T> {
    /// Ends the borrow of the communicator, so that a struct can hold both; see [`OwnedWindow`].
    ///
    /// # Errors
    /// [`Error::InvalidUsage`](crate::Error::InvalidUsage) if the group that registers it has failed or has not ended, in
    /// which case the window lasts until the end of the communicator and the memory is leaked, or if the communicator is a
    /// [`BorrowedCommunicator`](crate::BorrowedCommunicator).
    pub fn into_owned(self) -> Result<OwnedWindow<T>> {
        const CALL: &str = "into_owned";
        let shared = self.registered.owner.shared().owned(CALL)?;
        Ok(OwnedWindow { registered: self.registered.into_owner(shared, CALL)?, element: PhantomData })
    }
}

impl<T: Element> OwnedWindow<T> {
    /// Ends this rank's part of the window, as dropping it does, and returns errors. Since NCCL 2.27.3.
    ///
    /// # Errors
    /// The errors of [`Window::deregister`](crate::Window::deregister); [`Error::InvalidUsage`](crate::Error::InvalidUsage)
    /// while the communicator is in a call or an open group, after which the window is deregistered;
    /// [`Error::Aborted`](crate::Error::Aborted) after the end of the communicator on a GPU, and after
    /// [`Communicator::into_raw`](crate::Communicator::into_raw).
    #[doc(alias = "ncclCommWindowDeregister")]
    pub fn deregister(mut self) -> Result<()> {
        self.registered.end()
    }
}

window!(OwnedWindow, OwnedWindow<T>);
