#![allow(unsafe_code)] // `open` and `from_table` are unsafe, and `unique_id` calls NCCL.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use crate::backend::{Backend, Found, Library, call};
use crate::buffer::{MemorySpace, NcclBuffer};
use crate::data_type::Element;
use crate::dynamic_linker::{mapped_file_at, mapped_files};
use crate::error::{Error, InvalidArgumentKind, LoadError, Result, ResultCode};
use crate::sys;
use crate::sys::device::DeviceFunctions;
use crate::unique_id::UniqueId;
use crate::version::Version;

/// An implementation of NCCL, and the entry point of this crate.
///
/// Cheap to clone. An implementation is never unloaded, because NCCL's own threads may still run in it.
///
/// ```
/// let nccl = libnccl_cpu::nccl(); // On a machine with GPUs: libnccl::Nccl::load()?
/// println!("NCCL {} from {}", nccl.version(), nccl.backend());
/// println!("buffers are in {} memory", nccl.memory_space());
/// let comms = nccl.init_all(&[0, 1])?;
/// # Ok::<(), libnccl::Error>(())
/// ```
///
/// # Groups of other code
/// Other code in the process, such as C++ or a user of [`as_raw`](Self::as_raw), can call C functions of the same library. Such
/// `unsafe` code must keep one rule, which is about threads, not communicators: **when a thread calls a method of this crate, no
/// group that other code has started is open on this thread**. That is, every `ncclGroupStart` has been followed by its
/// `ncclGroupEnd`. Otherwise an operation stays queued after its method has returned, and may use buffers that the program has
/// freed.
///
/// With the CPU backend, a method that is called in such a group returns [`Error::InvalidUsage`] in debug builds
/// (`debug_assertions`). NCCL itself cannot be queried for open groups.
#[derive(Debug, Clone)]
pub struct Nccl {
    pub(crate) library: Arc<Library>,
}

/// A function of NCCL's C API, and its presence in an implementation; see [`Nccl::functions`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Function {
    /// The C name of the function.
    pub name: &'static str,
    /// The first NCCL version that has the function.
    pub since: Version,
    /// Set if the implementation has the function.
    pub present: bool,
}

impl Nccl {
    /// Loads the NCCL of this system: the linked one if linking was enabled at build time, otherwise the first one that a search
    /// finds. Later calls in the process return the same library.
    ///
    /// If `LIBNCCL_PATH` is set, only that file is tried. Otherwise the search covers, in this order, the dynamic linker's
    /// libraries, Python packages, `$NCCL_HOME`, CUDA toolkits, NVIDIA's HPC SDK, and AMD's RCCL.
    #[doc = concat!(
        "[All places](", env!("CARGO_PKG_REPOSITORY"), "/blob/HEAD/docs/building.md#which-library-is-loaded)."
    )]
    /// Set-uid programs ignore the environment.
    ///
    /// ```
    /// use libnccl::Nccl;
    ///
    /// match Nccl::load() {
    ///     Ok(nccl) => println!("NCCL {} from {}", nccl.version(), nccl.backend()),
    ///     Err(error) => eprintln!("{error}"), // Names every place that was searched.
    /// }
    /// ```
    ///
    /// # Errors
    /// - [`LoadError::NotFound`] if no library can be loaded. The error lists all failed attempts with their reasons.
    /// - [`LoadError::VersionQuery`] if the library's `ncclGetVersion` fails.
    /// - [`LoadError::NoBackend`] if this crate was built without a backend.
    /// - [`LoadError::UnsupportedPlatform`] on systems other than Linux.
    /// - [`LoadError::StaticProgram`] if the C library is linked statically into the program.
    pub fn load() -> Result<Self, LoadError> {
        Library::load().map(|library| Self { library })
    }

    /// Loads NCCL from the file `path`, without a search.
    ///
    /// ```no_run
    /// use libnccl::Nccl;
    ///
    /// // SAFETY: the file is NVIDIA's library.
    /// let nccl = unsafe { Nccl::open("/opt/nccl/lib/libnccl.so.2") }?;
    /// # Ok::<(), libnccl::Error>(())
    /// ```
    ///
    /// # Errors
    /// - [`LoadError::NotFound`] if the file cannot be loaded, for example because it is truncated.
    /// - [`LoadError::NotFound`] if another NCCL is linked into the program, or was loaded with `RTLD_GLOBAL`. (The library's
    ///   calls to its own functions would reach the other NCCL.)
    /// - [`LoadError::VersionQuery`] if the library's `ncclGetVersion` fails.
    ///
    /// # Safety
    /// Loading a library runs its code. If the file is a shared object with functions that have NCCL's names, these must have the
    /// signatures and contracts of NCCL's functions. No [group of other code](Self#groups-of-other-code) may be open on a thread
    /// that calls this crate.
    #[cfg(feature = "dlopen")]
    pub unsafe fn open(path: impl AsRef<std::path::Path>) -> Result<Self, LoadError> {
        // SAFETY: the caller guarantees that the file is an implementation of NCCL.
        unsafe { Library::open(path.as_ref()) }.map(|library| Self { library })
    }

    /// Returns the library that was linked at build time.
    ///
    /// # Errors
    /// [`LoadError::NoBackend`] if the program was built with `LIBNCCL_NO_LINK`; [`LoadError::NotFound`] if the shared library
    /// that contains `ncclGetVersion` cannot be determined; [`LoadError::VersionQuery`] if `ncclGetVersion` fails.
    #[cfg(feature = "link")]
    pub fn linked() -> Result<Self, LoadError> {
        cfg_if::cfg_if! {
            if #[cfg(nccl_linked)] {
                Library::linked().map(|library| Self { library })
            } else {
                Err(LoadError::NoBackend)
            }
        }
    }

    /// Wraps an implementation that is already in this process, such as the CPU backend (`libnccl-cpu`).
    ///
    /// ```
    /// use libnccl::Nccl;
    ///
    /// // SAFETY: the functions are an implementation of NCCL that is linked into this program.
    /// let nccl = unsafe { Nccl::from_table("the CPU backend", libnccl_cpu::TABLE) }?;
    /// assert_eq!(nccl.backend().to_string(), "the CPU backend");
    /// # Ok::<(), libnccl::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`LoadError::VersionQuery`] if the table has no `ncclGetVersion`, or if this function fails.
    ///
    /// # Safety
    /// - Every function of the table must have the signature and the contract of the NCCL function with its name, and must stay
    ///   callable until the process ends.
    /// - No [group of other code](Self#groups-of-other-code) may be open on a thread that calls this crate.
    /// - If the implementation has the parameter `LIBNCCL_MEMORY_SPACE` with the value `host`, its `ncclMemAlloc` must return
    ///   zeroed host memory.
    pub unsafe fn from_table(name: &'static str, functions: sys::Functions) -> Result<Self, LoadError> {
        let found = Found::new(functions, DeviceFunctions::EMPTY, true);
        // SAFETY: the caller guarantees signatures, contracts and lifetime of the functions.
        unsafe { Library::new(found, Backend::InProcess { name }) }.map(|library| Self { library })
    }

    /// Returns the version of the implementation, which may differ from [`Version::HEADER`].
    #[doc(alias = "ncclGetVersion")]
    #[must_use]
    pub fn version(&self) -> Version {
        self.library.version
    }

    /// Returns the backend: a linked library, a loaded library, or a function table.
    #[must_use]
    pub fn backend(&self) -> &Backend {
        &self.library.backend
    }

    /// Returns the memory space that buffers must be in.
    #[must_use]
    pub fn memory_space(&self) -> MemorySpace {
        self.library.memory_space()
    }

    /// Allocates `length` elements on the calling thread's current device. The CPU backend allocates them in host memory, set to
    /// zero. Since NCCL 2.19.3.
    ///
    /// NCCL rounds the size up to the granularity of the GPU, about 2 MiB, so prefer one large buffer to many small ones. For
    /// zero elements no memory is allocated.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if the size exceeds `isize::MAX` bytes; [`Error::Unsupported`] if the library is older than
    /// NCCL 2.19.3; [`Error::Nccl`] if NCCL fails, for example because memory is exhausted.
    #[doc(alias = "ncclMemAlloc")]
    pub fn alloc<T: Element>(&self, length: usize) -> Result<NcclBuffer<T>> {
        NcclBuffer::new("alloc", &self.library, length)
    }

    /// Returns all functions of the C API, in the header's order.
    pub fn functions(&self) -> impl Iterator<Item = Function> {
        let function = |(name, present)| Function { name, since: Version::since(name), present };
        self.library.functions.present().map(function)
    }

    /// Returns an error if the implementation lacks the C function with the name `function`.
    ///
    /// # Errors
    /// [`Error::Unsupported`] if the implementation lacks the function; [`Error::InvalidArgument`] if NCCL has no such function.
    pub fn require(&self, function: &str) -> Result<()> {
        let Some((name, present)) = self.library.functions.present().find(|(name, _)| *name == function)
        else {
            let problem = format!("nccl.h of {} has no {function}", Version::HEADER);
            return Err(Error::argument("require", InvalidArgumentKind::Value, problem));
        };
        self.library.function(name, present.then_some(()))
    }

    /// Returns the most recent error message, or an empty string.
    ///
    /// NCCL keeps one message for all threads and communicators; the CPU backend keeps one per thread. An [`Error::Nccl`] has
    /// its own copy.
    #[doc(alias = "ncclGetLastError")]
    #[must_use]
    pub fn last_error(&self) -> Box<str> {
        self.library.last_error()
    }

    /// Returns the other files mapped into the process that are named like NCCL. Two copies share neither state nor handles, and
    /// symbols of one may be resolved to the other.
    #[doc(hidden)]
    #[must_use]
    pub fn other_loaded_libraries(&self) -> Vec<PathBuf> {
        let own = mapped_file_at(self.library.own[0]);
        let is_nccl = |path: &PathBuf| {
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            name.starts_with("libnccl.so") || name.starts_with("librccl.so")
        };
        mapped_files().into_iter().filter(|path| is_nccl(path) && Some(path) != own.as_ref()).collect()
    }

    /// Returns the function table, for functions that have no method in this crate. If you call them, no [group of other
    /// code](Self#groups-of-other-code) may be open on a thread that calls this crate.
    ///
    /// ```
    /// let nccl = libnccl_cpu::nccl();
    /// let get_version = nccl.as_raw().ncclGetVersion.expect("every version has it");
    /// let mut code = 0;
    /// // SAFETY: a valid out-parameter.
    /// unsafe { get_version(&mut code) };
    /// assert_eq!(code as u32, nccl.version().code());
    /// ```
    #[must_use]
    pub fn as_raw(&self) -> &sys::Functions {
        &self.library.functions
    }

    /// Returns the table of the device API's host functions. Code that calls them must keep the rule for [groups of other
    /// code](Self#groups-of-other-code).
    #[cfg(feature = "device-api")]
    #[must_use]
    pub fn as_raw_device(&self) -> &DeviceFunctions {
        &self.library.device_functions
    }

    /// Creates the id of a new communicator. One rank calls this and sends the id to the others.
    ///
    /// NCCL keeps a thread and a listening socket for it in this process until all ranks have joined.
    ///
    /// ```
    /// use libnccl::UniqueId;
    ///
    /// let nccl = libnccl_cpu::nccl();
    /// let text = nccl.unique_id()?.to_string(); // On one rank, which sends it ...
    /// let id: UniqueId = text.parse().expect("sent by another rank"); // ... to the others.
    /// let comm = nccl.communicator(1, 0, &id).init()?;
    /// # Ok::<(), libnccl::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Nccl`] if NCCL fails, for example because no network interface can be used. Every later call in the process then
    /// returns the same error.
    #[doc(alias = "ncclGetUniqueId")]
    pub fn unique_id(&self) -> Result<UniqueId> {
        /// The failures, by the address of the function. In NCCL up to 2.21.5, a failed first call leaves a mutex locked, so
        /// that a second call would never return. Later versions return the same error by themselves.
        static FAILURES: Mutex<Vec<(usize, Error)>> = Mutex::new(Vec::new());
        let function = self.library.own[1];
        let mut failures = FAILURES.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, error)) = failures.iter().find(|(failed, _)| *failed == function) {
            return Err(error.clone());
        }
        // Zeroed: 2.16.5 to 2.22.3 write only the first 40 bytes.
        let mut id = sys::ncclUniqueId::default();
        // SAFETY: `id` is a valid out-parameter.
        let created = unsafe { call!(self.library, ncclGetUniqueId(&raw mut id)) };
        let created = created.and_then(|code| match code {
            // There is no communicator to wait for, and no id.
            ResultCode::IN_PROGRESS => Err(self.library.error("ncclGetUniqueId", code)),
            _ => Ok(()),
        });
        created.inspect_err(|error| failures.push((function, error.clone())))?;
        Ok(UniqueId::from_raw(id))
    }
}
