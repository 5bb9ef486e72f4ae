//! Windows: memory of every rank that operations of all ranks can access.
#![allow(unsafe_code)] // Calls C.

use std::ffi::c_void;
use std::fmt;
use std::marker::PhantomData;
use std::mem;
use std::ops::BitOr;
use std::ptr;
use std::sync::Arc;

use crate::backend::{Library, call};
use crate::buffer::NcclBuffer;
use crate::communicator::{CallGuard, Communicator, Handle, Object, OwnedObject, WindowHandle};
use crate::data_type::Element;
use crate::error::{Error, InvalidArgumentKind, Result, ResultCode};
use crate::group::Group;
use crate::observer::Operation;
use crate::operation::{Call, OnStream, WindowOffset};
use crate::stream::StreamRef;
use crate::sys;
use crate::version::Version;

/// Properties of a [`Window`], combined with `|`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct WindowFlags(u32);

impl WindowFlags {
    /// No flags. In a collective, the buffers may be at different offsets in the windows of the ranks. Since NCCL 2.27.3.
    #[doc(alias = "NCCL_WIN_DEFAULT")]
    pub const DEFAULT: Self = Self(sys::NCCL_WIN_DEFAULT);
    /// A promise that all ranks use the same offset from the start of their window in each collective. NCCL's fast symmetric
    /// kernels and one-sided operations require this flag. Cannot be combined with [`GIN_ONLY`](Self::GIN_ONLY) or
    /// [`CFT_COUNTED`](Self::CFT_COUNTED). Since NCCL 2.27.3.
    #[doc(alias = "NCCL_WIN_COLL_SYMMETRIC")]
    pub const COLL_SYMMETRIC: Self = Self(sys::NCCL_WIN_COLL_SYMMETRIC);
    /// A request that remote writes through InfiniBand verbs arrive in order. Use it for memory that holds signals. Since NCCL
    /// 2.29.7.
    #[doc(alias = "NCCL_WIN_STRICT_ORDERING")]
    pub const STRICT_ORDERING: Self = Self(sys::NCCL_WIN_STRICT_ORDERING);
    /// A promise that only GPU-initiated networking (GIN) uses the window, so that NCCL skips other registrations. Since NCCL
    /// 2.32.3.
    #[doc(alias = "NCCL_WIN_GIN_ONLY")]
    pub const GIN_ONLY: Self = Self(sys::NCCL_WIN_GIN_ONLY);
    /// A promise that the window is used only by counted operations of the compute fabric transport (CFT). Since NCCL 2.32.3.
    #[doc(alias = "NCCL_WIN_CFT_COUNTED")]
    pub const CFT_COUNTED: Self = Self(sys::NCCL_WIN_CFT_COUNTED);

    /// The flags that NCCL added after windows, with their first versions.
    const NEWER: [(Self, &'static str, Version); 3] = [
        (Self::STRICT_ORDERING, "NCCL_WIN_STRICT_ORDERING", Version::new(2, 29, 7)),
        (Self::GIN_ONLY, "NCCL_WIN_GIN_ONLY", Version::new(2, 32, 3)),
        (Self::CFT_COUNTED, "NCCL_WIN_CFT_COUNTED", Version::new(2, 32, 3)),
    ];

    const fn contains(self, flags: Self) -> bool {
        self.0 & flags.0 == flags.0
    }

    /// Returns an error if the flags cannot be combined, or if the library is older than one of them.
    fn check(self, call: &'static str, library: &Library) -> Result<()> {
        let newer = Self::NEWER.iter().filter(|(flag, ..)| self.contains(*flag));
        for &(flag, name, since) in newer {
            if self.contains(Self::COLL_SYMMETRIC) && flag != Self::STRICT_ORDERING {
                let problem = format!("{name} cannot be combined with NCCL_WIN_COLL_SYMMETRIC");
                return Err(Error::argument(call, InvalidArgumentKind::Value, problem));
            }
            let found = library.version;
            if found < since {
                let library = library.backend.to_string().into();
                return Err(Error::Unsupported { function: name, since, found, library });
            }
        }
        Ok(())
    }
}

impl BitOr for WindowFlags {
    type Output = Self;

    fn bitor(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

/// A window: one buffer on every rank, which operations of all ranks can access; for an example, see
/// [`Communicator::register_window`]. Since NCCL 2.27.3.
///
/// A window borrows neither the communicator nor the buffer, so that a struct can hold all three:
///
/// ```
/// use libnccl::{Communicator, NcclBuffer, ReduceOp, Result, StreamRef, window::{Window, WindowFlags}};
///
/// /// Declares the window first, as fields are dropped in this order.
/// struct Gradients {
///     window: Window<f32>,
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
/// let window = unsafe { comm.register_window(&mut buffer, WindowFlags::COLL_SYMMETRIC) }?;
/// let mut gradients = Gradients { window, buffer, comm };
/// gradients.sum()?;
/// // SAFETY: the work has run, and there is no other rank.
/// unsafe { gradients.buffer.assume_idle() };
/// # Ok::<(), libnccl::Error>(())
/// ```
///
/// # Drop
/// The window and the buffer share the memory. Other ranks can access it at any time, also on the CPU backend. Dropping a window,
/// on any thread, deregisters it. If the communicator is in a call or an open group, this happens when that call or group ends.
///
/// - A window that is dropped after [`finalize`](Communicator::finalize), or before [`NcclBuffer::assume_idle`] is called, may
///   stay registered until the teardown of the communicator.
/// - On host memory, if `assume_idle` was called, the memory of a dropped window and buffer is freed when the communicator is
///   freed, or earlier. Otherwise the memory is leaked.
/// - On a GPU, if a window is not deregistered before the teardown of the communicator, its memory is leaked.
#[doc(alias = "ncclWindow_t")]
pub struct Window<T> {
    object: OwnedObject,
    length: usize,
    element: PhantomData<T>,
}

impl Communicator {
    /// Registers `buffer` as a window: memory that symmetric collectives use in place, and that other ranks write with
    /// [`put_signal`](Self::put_signal). Since NCCL 2.27.3.
    ///
    /// All ranks must call this with the same length and the same flags. They must not deregister their windows before all ranks
    /// have stopped using them. A single thread with several ranks uses [`Group::register_window`].
    ///
    /// If this fails after NCCL was called, the buffer's memory is never freed, because other ranks may have created the window.
    ///
    /// ```
    /// use libnccl::{StreamRef, window::{Signal, WaitSignal, WindowFlags}};
    ///
    /// let nccl = libnccl_cpu::nccl();
    /// libnccl_cpu::run_ranks(2, |comm| {
    /// #     fn synchronize() {}
    ///     let mut buffer = nccl.alloc::<f32>(1024)?;
    ///     // SAFETY: both ranks register the same number of elements.
    ///     let window = unsafe { comm.register_window(&mut buffer, WindowFlags::COLL_SYMMETRIC) }?;
    ///     if comm.rank() == 0 {
    ///         // Write to the second half of rank 1's window.
    ///         let first_half = buffer.get(..512).expect("it has 1024 elements");
    ///         comm.put_signal(first_half, 1, window.at(512), Signal::default(), StreamRef::DEFAULT)?;
    ///     } else {
    ///         let signals = [WaitSignal { count: 1, peer: 0, signal: Signal::default() }];
    ///         comm.wait_signal(&signals, StreamRef::DEFAULT)?;
    ///     }
    ///     comm.barrier(&mut [0_u8], StreamRef::DEFAULT)?;
    ///     synchronize(); // cudaStreamSynchronize
    ///     // SAFETY: the work of all ranks was enqueued before the barrier, and neither uses the other's part again.
    ///     unsafe { buffer.assume_idle() };
    ///     window.deregister()?;
    ///     Ok(())
    /// })?;
    /// # Ok::<(), libnccl::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if the buffer is empty, in the wrong memory, or not aligned to 4096 bytes, or if the flags
    /// cannot be combined.
    ///
    /// # Safety
    /// The buffers of all ranks must have the same size in bytes. NCCL does not compare the sizes. A put is checked only against
    /// the size of this rank's buffer, but writes to the buffer of another rank. (The CPU backend compares the two sizes in each
    /// put.)
    #[doc(alias = "ncclCommWindowRegister")]
    #[track_caller]
    pub unsafe fn register_window<T: Element>(
        &self,
        buffer: &mut NcclBuffer<T>,
        flags: WindowFlags,
    ) -> Result<Window<T>> {
        // SAFETY: the caller guarantees the same size.
        unsafe { Window::register(self, StreamRef::DEFAULT.into(), buffer, flags) }
    }
}

impl<'scope> Group<'scope, '_> {
    /// Registers a window at the end of the group. One thread can thus register the window of several ranks. For the errors, see
    /// [`Communicator::register_window`]. Since NCCL 2.27.3.
    ///
    /// ```
    /// # fn set_device(_: i32) {}
    /// use libnccl::window::WindowFlags;
    ///
    /// let nccl = libnccl_cpu::nccl();
    /// let comms = nccl.init_all(&[0, 1])?;
    /// let mut buffers = Vec::new();
    /// for comm in &comms {
    ///     set_device(comm.device()); // cudaSetDevice
    ///     buffers.push(nccl.alloc::<f32>(1024)?);
    /// }
    /// let windows = nccl.group(|g| {
    ///     // SAFETY: all ranks register the same number of elements.
    ///     let register = |(comm, buffer)| unsafe { g.register_window(comm, buffer, WindowFlags::DEFAULT) };
    ///     comms.iter().zip(&mut buffers).map(register).collect::<libnccl::Result<Vec<_>>>()
    /// })?;
    /// # Ok::<(), libnccl::Error>(())
    /// ```
    ///
    /// # Safety
    /// The conditions of [`Communicator::register_window`] must hold.
    #[doc(alias = "ncclCommWindowRegister")]
    #[track_caller]
    pub unsafe fn register_window<T: Element>(
        &'scope self,
        communicator: &'scope Communicator,
        buffer: &mut NcclBuffer<T>,
        flags: WindowFlags,
    ) -> Result<Window<T>> {
        // SAFETY: the caller guarantees the same size.
        unsafe { Window::register(communicator, self.stream(StreamRef::DEFAULT), buffer, flags) }
    }
}

impl<T: Element> Window<T> {
    /// Registers the window. Other ranks may write to it from now on; the exclusive borrow ensures that no slice of `buffer`
    /// exists.
    ///
    /// # Safety
    /// The conditions of [`Communicator::register_window`] must hold.
    #[track_caller]
    unsafe fn register<'c>(
        communicator: &'c Communicator,
        on: OnStream<'c, 'c>,
        buffer: &mut NcclBuffer<T>,
        flags: WindowFlags,
    ) -> Result<Self> {
        const CALL: &str = "register_window";
        Self::check(CALL, communicator, buffer, flags).map_err(|error| on.refuse(error))?;
        let (length, memory) = (buffer.len(), buffer.allocation());
        let (address, bytes) = (memory.as_ptr(), memory.bytes());
        let library = communicator.library();
        let handle = WindowHandle::new(library);
        let mut shared = None;
        let call = Call::new(communicator, const { Operation::of(CALL) }, on);
        call.check()?;
        let registered = call.submit(0, |_| {
            let (raw, flags) = (communicator.raw(), flags.0.cast_signed());
            memory.open_window();
            shared = Some(Arc::clone(memory));
            // SAFETY: a live communicator, and memory of `bytes` bytes, which the window keeps allocated; all ranks give
            // the same size, as the caller guarantees. NCCL may write the handle at the end of the group; it is freed
            // once that is known to be over, and never if this fails.
            unsafe { call!(library, ncclCommWindowRegister(raw, address, bytes, handle.as_mut_ptr(), flags)) }
                // On a nonblocking communicator, NCCL returns success before it writes the handle.
                .map(|_| ResultCode::IN_PROGRESS)
        });
        if let Err(error) = call.end((), registered) {
            // Other ranks may have the window nevertheless, so the memory remains a window.
            mem::forget(shared);
            return Err(error);
        }
        match on.group {
            Some(group) => group.add_window(Arc::clone(&handle)),
            None => handle.resolve(),
        }
        let object = Object::new(Handle::Window(handle), shared);
        Ok(Self { object: OwnedObject::new(communicator.shared(), object), length, element: PhantomData })
    }

    fn check(
        call: &'static str,
        communicator: &Communicator,
        buffer: &NcclBuffer<T>,
        flags: WindowFlags,
    ) -> Result<()> {
        let library = communicator.library();
        communicator.check_registrable(call, buffer)?;
        flags.check(call, library)?;
        let address = buffer.allocation().as_ptr();
        if !address.addr().is_multiple_of(sys::NCCL_WIN_REQUIRED_ALIGNMENT as usize) {
            let multiple = sys::NCCL_WIN_REQUIRED_ALIGNMENT;
            let problem = format!("{address:p} is not a multiple of {multiple} bytes");
            return Err(Error::argument(call, InvalidArgumentKind::Address, problem));
        }
        library.function("ncclCommWindowRegister", library.functions.ncclCommWindowRegister).map(drop)
    }

    /// Returns the number of elements that each rank has in the window; at least 1.
    #[must_use]
    #[allow(clippy::len_without_is_empty)]
    pub fn len(&self) -> usize {
        self.length
    }

    /// Returns a position in the window, `offset` elements from its start, as the target of a
    /// [`put_signal`](Communicator::put_signal).
    #[must_use]
    pub fn at(&self, offset: usize) -> WindowOffset<'_, T> {
        let shared = self.object.shared();
        WindowOffset::new(shared, self.as_raw(), self.length, offset)
    }

    /// Returns whether NCCL has created the window. On some systems NCCL returns success without creating it: collectives then
    /// work as without a window, and one-sided operations do not work. If a group registers the window, the window is not active
    /// before the group ends.
    #[must_use]
    pub fn is_active(&self) -> bool {
        !self.as_raw().is_null()
    }

    /// Returns the C handle of the window; null if the window is not [active](Self::is_active).
    #[must_use]
    pub fn as_raw(&self) -> sys::ncclWindow_t {
        match self.object.handle() {
            Some(Handle::Window(handle)) => handle.get().unwrap_or(ptr::null_mut()),
            _ => ptr::null_mut(),
        }
    }

    /// Returns the address that this rank has registered as its part of the window; null if the window is not
    /// [active](Self::is_active). Since NCCL 2.29.2.
    ///
    /// # Errors
    /// - [`Error::InvalidUsage`] while the communicator is in a call or an open group.
    /// - [`Error::Unsupported`] if the library is older than NCCL 2.29.2.
    /// - [`Error::Nccl`] if NCCL fails.
    /// - [`Error::Aborted`] after an abort.
    #[doc(alias = "ncclWinGetUserPtr")]
    pub fn user_ptr(&self) -> Result<*mut T> {
        let (shared, window) = (self.object.shared(), self.as_raw());
        let mut pointer: *mut c_void = ptr::null_mut();
        if !window.is_null() {
            let _guard = CallGuard::for_object(shared, "user_ptr")?;
            // SAFETY: a window of this live communicator, which no other thread uses, and a valid out-parameter.
            unsafe { call!(shared.library, ncclWinGetUserPtr(shared.raw, window, &raw mut pointer)) }?;
        }
        Ok(pointer.cast())
    }

    /// Deregisters this rank's part of the window, as a drop does, and returns errors; for an example, see
    /// [`Communicator::register_window`]. On the CPU backend, later puts into this part return an error. Since NCCL 2.27.3.
    ///
    /// # Errors
    /// - [`Error::InvalidUsage`] while the communicator is in a call or an open group. The window is then deregistered when the
    ///   call or group ends.
    /// - [`Error::InvalidUsage`] after [`finalize`](Communicator::finalize).
    /// - [`Error::InvalidUsage`] if work of this or another rank may still use the buffer.
    /// - [`Error::InvalidUsage`] if the group that registers the window has failed or has not ended.
    /// - [`Error::Aborted`] after the teardown of the communicator on a GPU, and after [`Communicator::into_raw`].
    /// - [`Error::Nccl`] if NCCL fails.
    ///
    /// After any of these errors except the first, the window may stay registered until the teardown of the communicator, and the
    /// memory may be leaked.
    #[doc(alias = "ncclCommWindowDeregister")]
    pub fn deregister(self) -> Result<()> {
        self.object.end("deregister")
    }
}

impl<T: Element> fmt::Debug for Window<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Window")
            .field("data_type", &T::DATA_TYPE)
            .field("length", &self.length)
            .field("is_active", &self.is_active())
            .finish_non_exhaustive()
    }
}
