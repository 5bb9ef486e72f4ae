#![allow(unsafe_code)]

use std::ffi::c_void;
use std::marker::PhantomData;
use std::ops::BitOr;
use std::ptr;
use std::sync::Arc;

use super::registered_window::{Part, RegisteredWindow};
use crate::backend::{Library, call};
use crate::communicator::OutParam;
use crate::{
    Communicator, Element, Error, Group, Grouping, InvalidArgumentKind, NcclBuffer, Operation, Operations,
    Result, ResultCode, Version, sys,
};

/// Promises about the use of a [`Window`], combined with `|`.
///
/// ```
/// use libnccl::WindowFlags;
///
/// let flags = WindowFlags::COLL_SYMMETRIC | WindowFlags::STRICT_ORDERING;
/// assert!(flags.contains(WindowFlags::COLL_SYMMETRIC));
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct WindowFlags(u32);

impl WindowFlags {
    /// No promises: a collective may use any address inside the window. Since NCCL 2.27.3.
    #[doc(alias = "NCCL_WIN_DEFAULT")]
    pub const DEFAULT: Self = Self(sys::NCCL_WIN_DEFAULT);
    /// A promise that all ranks use the same offset from the start of their window in each collective. The fast
    /// symmetric kernels and one-sided operations require it. Cannot be combined with [`GIN_ONLY`](Self::GIN_ONLY) or
    /// [`CFT_COUNTED`](Self::CFT_COUNTED). Since NCCL 2.27.3.
    #[doc(alias = "NCCL_WIN_COLL_SYMMETRIC")]
    pub const COLL_SYMMETRIC: Self = Self(sys::NCCL_WIN_COLL_SYMMETRIC);
    /// Ordered arrival of remote writes through InfiniBand verbs; for memory that holds signals. Since NCCL 2.29.7.
    #[doc(alias = "NCCL_WIN_STRICT_ORDERING")]
    pub const STRICT_ORDERING: Self = Self(sys::NCCL_WIN_STRICT_ORDERING);
    /// Use by GPU-initiated networking (GIN) only, which saves the other registrations. Since NCCL 2.32.3.
    #[doc(alias = "NCCL_WIN_GIN_ONLY")]
    pub const GIN_ONLY: Self = Self(sys::NCCL_WIN_GIN_ONLY);
    /// Use by counted operations of the compute fabric transport (CFT) only. Since NCCL 2.32.3.
    #[doc(alias = "NCCL_WIN_CFT_COUNTED")]
    pub const CFT_COUNTED: Self = Self(sys::NCCL_WIN_CFT_COUNTED);

    /// The flags that are newer than windows.
    const NEWER: [(Self, &'static str, Version); 3] = [
        (Self::STRICT_ORDERING, "NCCL_WIN_STRICT_ORDERING", Version::new(2, 29, 7)),
        (Self::GIN_ONLY, "NCCL_WIN_GIN_ONLY", Version::new(2, 32, 3)),
        (Self::CFT_COUNTED, "NCCL_WIN_CFT_COUNTED", Version::new(2, 32, 3)),
    ];

    /// Returns the bits of C.
    #[must_use]
    pub const fn bits(self) -> u32 {
        self.0
    }

    /// Returns `true` if all of `flags` are set.
    #[must_use]
    pub const fn contains(self, flags: Self) -> bool {
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

/// A window: a buffer of every rank that operations of all ranks can access; for an example, see
/// [`Communicator::register_window`]. Since NCCL 2.27.3.
///
/// It cannot outlive its communicator:
///
/// ```compile_fail,E0505
/// # use libnccl::WindowFlags;
/// let nccl = libnccl_cpu::nccl();
/// let comm = nccl.init_all(&[0])?.remove(0);
/// let mut buffer = nccl.alloc::<f32>(1024)?;
/// // SAFETY: it is the only rank.
/// let window = unsafe { comm.register_window(&mut buffer, WindowFlags::DEFAULT) }?;
/// comm.destroy()?;
/// drop(window);
/// # Ok::<(), libnccl::Error>(())
/// ```
///
/// Like a [`Registration`](crate::Registration), it does not borrow the buffer; the two share the memory. Other ranks
/// can access a window at any time, on the CPU implementation too. So if it is dropped before
/// [`NcclBuffer::assume_idle`] promises that they do not, the window lasts until the end of the communicator, and the
/// memory is leaked.
///
/// [`into_owned`](Self::into_owned) ends the borrow of the communicator, for a struct that holds both.
#[doc(alias = "ncclWindow_t")]
pub struct Window<'c, T> {
    pub(super) registered: RegisteredWindow<&'c Communicator>,
    element: PhantomData<T>,
}

impl Communicator {
    /// Registers `buffer` as a window: memory that symmetric collectives use in place, and that other ranks write with
    /// [`put_signal`](Self::put_signal). Since NCCL 2.27.3.
    ///
    /// All ranks call this, with the same length and the same flags, and deregister their windows once no rank uses them
    /// any more. A single thread with several ranks uses [`Group::register_window`].
    ///
    /// If this fails after NCCL was called, the buffer's memory is never freed, as other ranks may have the window.
    ///
    /// ```
    /// use libnccl::{Signal, StreamRef, WaitSignal, WindowFlags};
    ///
    /// let nccl = libnccl_cpu::nccl();
    /// libnccl_cpu::run_ranks(2, |comm| {
    /// #     fn synchronize() {}
    ///     let mut buffer = nccl.alloc::<f32>(1024)?;
    ///     // SAFETY: both ranks register as many elements.
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
    /// [`Error::InvalidArgument`] if the buffer is empty, in the wrong memory, or not at a multiple of 4096 bytes,
    /// or if the flags cannot be combined; [`Error::InvalidUsage`] while a group is open on this thread, or after
    /// one that failed; [`Error::Unsupported`]; [`Error::Nccl`]; [`Error::Timeout`].
    ///
    /// # Safety
    /// The buffers of all ranks have the same size in bytes. NCCL does not compare them, and what fits into this rank's
    /// part is written to the other ranks' parts too. (The CPU implementation does compare, in each put.)
    #[doc(alias = "ncclCommWindowRegister")]
    #[track_caller]
    pub unsafe fn register_window<T: Element>(
        &self,
        buffer: &mut NcclBuffer<T>,
        flags: WindowFlags,
    ) -> Result<Window<'_, T>> {
        // SAFETY: the caller guarantees the same size.
        unsafe { Window::register(self, self.operations(), buffer, flags) }
    }
}

impl<'scope, 'env> Group<'scope, 'env> {
    /// Registers a window as [`Communicator::register_window`] does, at the end of the group: for one thread that has
    /// several ranks. Since NCCL 2.27.3.
    ///
    /// ```
    /// # fn set_device(_: i32) {}
    /// use libnccl::WindowFlags;
    ///
    /// let nccl = libnccl_cpu::nccl();
    /// let comms = nccl.init_all(&[0, 1])?;
    /// let mut buffers = Vec::new();
    /// for comm in &comms {
    ///     set_device(comm.device()); // cudaSetDevice
    ///     buffers.push(nccl.alloc::<f32>(1024)?);
    /// }
    /// let windows = nccl.group(|g| {
    ///     // SAFETY: all ranks register as many elements.
    ///     let register = |(comm, buffer)| unsafe { g.register_window(comm, buffer, WindowFlags::DEFAULT) };
    ///     comms.iter().zip(&mut buffers).map(register).collect::<libnccl::Result<Vec<_>>>()
    /// })?;
    /// # Ok::<(), libnccl::Error>(())
    /// ```
    ///
    /// # Errors
    /// The errors of [`Communicator::register_window`].
    ///
    /// # Safety
    /// As for [`Communicator::register_window`].
    #[doc(alias = "ncclCommWindowRegister")]
    #[track_caller]
    pub unsafe fn register_window<T: Element>(
        &'scope self,
        communicator: &'env Communicator,
        buffer: &mut NcclBuffer<T>,
        flags: WindowFlags,
    ) -> Result<Window<'env, T>> {
        // SAFETY: the caller guarantees the same size.
        unsafe { Window::register(communicator, self.on(communicator), buffer, flags) }
    }
}

impl<'c, T: Element> Window<'c, T> {
    /// Registers the window. Other ranks may write it from now on; the exclusive borrow ensures that no slice of
    /// `buffer` exists.
    ///
    /// # Safety
    /// As for [`Communicator::register_window`].
    #[track_caller]
    unsafe fn register<'b>(
        communicator: &'c Communicator,
        operations: Operations<'_, impl Grouping<'b>>,
        buffer: &mut NcclBuffer<T>,
        flags: WindowFlags,
    ) -> Result<Self> {
        const CALL: &str = "register_window";
        let library = communicator.library();
        communicator.check_registrable(CALL, buffer)?;
        flags.check(CALL, library)?;
        let (length, memory) = (buffer.len(), buffer.allocation());
        let (address, bytes) = (memory.as_ptr(), memory.bytes());
        if !address.addr().is_multiple_of(sys::NCCL_WIN_REQUIRED_ALIGNMENT as usize) {
            let multiple = sys::NCCL_WIN_REQUIRED_ALIGNMENT;
            let problem = format!("{address:p} is not a multiple of {multiple} bytes");
            return Err(Error::argument(CALL, InvalidArgumentKind::Address, problem));
        }
        library.function("ncclCommWindowRegister", library.functions.ncclCommWindowRegister)?;
        let handle = OutParam::new(library);
        let mut shared = None;
        let operation = const { Operation::of(CALL) };
        let registered = operations.run(operation, || {
            let (raw, flags) = (communicator.raw(), flags.bits().cast_signed());
            memory.open_window();
            shared = Some(Arc::clone(memory));
            // SAFETY: a live communicator, and memory of `bytes` bytes, which the window keeps allocated; all ranks give
            // the same size, as the caller guarantees. NCCL may write the handle at the end of the group; it is freed
            // once that is known to be over, and never if this fails.
            unsafe { call!(library, ncclCommWindowRegister(raw, address, bytes, handle.as_mut_ptr(), flags)) }
                // On a nonblocking communicator, NCCL returns success before it writes the handle.
                .map(|_| ResultCode::IN_PROGRESS)
        });
        match registered {
            Ok(()) => {
                let part = shared.map(|memory| Part { handle, memory });
                let registered = RegisteredWindow { owner: communicator, length, part };
                Ok(Self { registered, element: PhantomData })
            }
            Err(error) => {
                // Other ranks may have the window nevertheless, so the memory is one for good.
                std::mem::forget(shared);
                Err(error)
            }
        }
    }

    /// Returns the address that NCCL has for this rank's part of the window; null if it is not active. Since NCCL
    /// 2.29.2.
    ///
    /// # Errors
    /// [`Error::Unsupported`], [`Error::Nccl`], [`Error::Aborted`] after an abort.
    #[doc(alias = "ncclWinGetUserPtr")]
    pub fn user_ptr(&self) -> Result<*mut T> {
        let (communicator, window) = (self.registered.owner, self.as_raw());
        let mut pointer: *mut c_void = ptr::null_mut();
        if !window.is_null() {
            communicator.query("user_ptr", || {
                let (library, raw) = (communicator.library(), communicator.raw());
                // SAFETY: a window of this live communicator and a valid out-parameter.
                unsafe { call!(library, ncclWinGetUserPtr(raw, window, &raw mut pointer)) }
            })?;
        }
        Ok(pointer.cast())
    }

    /// Ends this rank's part of the window, as dropping it does, and returns errors; for an example, see
    /// [`Communicator::register_window`]. On the CPU implementation, a put into it is an error from then on. Since NCCL
    /// 2.27.3.
    ///
    /// # Errors
    /// [`Error::InvalidUsage`] if work may still use the buffer, this rank's or another's, or if the group that
    /// registers it has failed or has not ended; [`Error::Nccl`]. In all cases the window lasts until the end of
    /// the communicator, and the memory is leaked.
    #[doc(alias = "ncclCommWindowDeregister")]
    pub fn deregister(mut self) -> Result<()> {
        self.registered.end()
    }
}

/// What a window has in common, whether it borrows its communicator or not.
macro_rules! window {
    ($window:ident, $type:ty) => {
        impl<T: Element> $type {
            /// Returns the number of elements that each rank has in it.
            #[must_use]
            pub fn len(&self) -> usize {
                self.registered.length
            }

            /// Returns `false`: a window is never empty.
            #[must_use]
            pub fn is_empty(&self) -> bool {
                self.registered.length == 0
            }

            /// Returns the offset, in elements, as the target of a [`put_signal`](crate::Communicator::put_signal).
            #[must_use]
            pub fn at(&self, offset: usize) -> crate::WindowOffset<'_, T> {
                crate::WindowOffset::new(self.registered.target(offset))
            }

            /// Returns `true` if NCCL has created the window. On some systems NCCL returns success without a window:
            /// collectives then work as before, and one-sided operations do not work. A window is not active before the
            /// end of the group that registers it.
            #[must_use]
            pub fn is_active(&self) -> bool {
                !self.as_raw().is_null()
            }

            /// Returns the C handle; null if the window is not [active](Self::is_active).
            #[must_use]
            pub fn as_raw(&self) -> crate::sys::ncclWindow_t {
                self.registered.raw()
            }
        }

        impl<T: Element> std::fmt::Debug for $type {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.debug_struct(stringify!($window))
                    .field("data_type", &T::DATA_TYPE)
                    .field("length", &self.len())
                    .field("is_active", &self.is_active())
                    .finish_non_exhaustive()
            }
        }
    };
}
pub(super) use window;

window!(Window, Window<'_, T>);
