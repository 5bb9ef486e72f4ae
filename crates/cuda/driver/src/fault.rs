//! Faults: the report of device memory that the host touches, if it is asked for.
//!
//! The handler of the signal allocates nothing and takes no lock: it looks for the address in a list of atomics, and
//! writes to stderr. Then what would have happened without it happens: an earlier handler is called, or the process ends.

#![allow(unsafe_code)]

use std::ffi::{c_int, c_void};
use std::fmt::{self, Write};
use std::iter;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, RawFd};
use std::process;
use std::ptr;
use std::sync::OnceLock;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize};

use cudarc::driver::sys::CUresult;

use crate::error::Result;
use crate::finding::{self, Finding};

/// Device memory that the handler finds.
#[derive(Debug)]
struct Entry {
    /// Its first address; 0 if the entry is free, and [`FILLING`] while somebody fills it.
    start: AtomicUsize,
    length: AtomicUsize,
    allocation: AtomicU64,
    device: AtomicUsize,
    is_freed: AtomicBool,
}

const FILLING: usize = usize::MAX;

impl Entry {
    const fn free() -> Self {
        Self {
            start: AtomicUsize::new(0),
            length: AtomicUsize::new(0),
            allocation: AtomicU64::new(0),
            device: AtomicUsize::new(0),
            is_freed: AtomicBool::new(false),
        }
    }

    /// Returns the offset of an address, if it is in this memory.
    fn offset(&self, address: usize) -> Option<usize> {
        let start = self.start.load(Acquire);
        let offset = address.checked_sub(start).filter(|_| start != 0)?;
        (offset < self.length.load(Relaxed)).then_some(offset)
    }
}

/// Entries, and more of them if they do not suffice. They stay for as long as the process.
#[derive(Debug)]
struct List {
    entries: [Entry; 64],
    next: OnceLock<Box<List>>,
}

impl List {
    const fn new() -> Self {
        Self { entries: [const { Entry::free() }; 64], next: OnceLock::new() }
    }
}

static LIST: List = List::new();

/// The earlier action of the signal; set if faults are reported.
static EARLIER: OnceLock<libc::sigaction> = OnceLock::new();

/// Device memory in the list, until this is dropped.
#[derive(Debug)]
pub(crate) struct Listed(Option<&'static Entry>);

impl Listed {
    /// Lists the addresses of an allocation, if faults are reported.
    pub(crate) fn new(start: usize, length: usize, allocation: u64, device: usize) -> Self {
        if EARLIER.get().is_none() {
            return Self(None);
        }
        let mut list = &LIST;
        loop {
            let claim = |entry: &&Entry| entry.start.compare_exchange(0, FILLING, Acquire, Relaxed).is_ok();
            if let Some(entry) = list.entries.iter().find(claim) {
                entry.length.store(length, Relaxed);
                entry.allocation.store(allocation, Relaxed);
                entry.device.store(device, Relaxed);
                entry.is_freed.store(false, Relaxed);
                entry.start.store(start, Release);
                return Self(Some(entry));
            }
            list = list.next.get_or_init(|| Box::new(List::new()));
        }
    }

    /// Notes that it is freed.
    pub(crate) fn free(&self) {
        if let Some(entry) = self.0 {
            entry.is_freed.store(true, Relaxed);
        }
    }
}

impl Drop for Listed {
    fn drop(&mut self) {
        if let Some(entry) = self.0 {
            entry.start.store(0, Release);
        }
    }
}

/// Reports faults from now on.
pub(crate) fn report() -> Result<()> {
    if EARLIER.get().is_some() {
        return Ok(());
    }
    let mut earlier = MaybeUninit::<libc::sigaction>::zeroed();
    // SAFETY: a valid out-parameter; without a new action, nothing changes.
    let read = unsafe { libc::sigaction(libc::SIGSEGV, ptr::null(), earlier.as_mut_ptr()) };
    if read != 0 {
        return Err(CUresult::CUDA_ERROR_OPERATING_SYSTEM);
    }
    // SAFETY: it was written; besides, zero is a value of all its fields.
    if EARLIER.set(unsafe { earlier.assume_init() }).is_err() {
        return Ok(());
    }
    // SAFETY: zero is a value of all its fields.
    let mut action = unsafe { MaybeUninit::<libc::sigaction>::zeroed().assume_init() };
    action.sa_sigaction = handle as extern "C" fn(c_int, *mut libc::siginfo_t, *mut c_void) as usize;
    action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
    // SAFETY: the handler does only what a handler may, and this library is never unloaded: its threads run.
    match unsafe { libc::sigaction(libc::SIGSEGV, &raw const action, ptr::null_mut()) } {
        0 => Ok(()),
        _ => Err(CUresult::CUDA_ERROR_OPERATING_SYSTEM),
    }
}

extern "C" fn handle(signal: c_int, info: *mut libc::siginfo_t, context: *mut c_void) {
    if !info.is_null() {
        // SAFETY: the kernel passes the signal's information, which has an address for this signal.
        say(unsafe { (*info).si_addr() }.addr());
    }
    let Some(earlier) = EARLIER.get() else { return };
    match earlier.sa_sigaction {
        libc::SIG_DFL | libc::SIG_IGN => {
            // The access is made again when the handler returns, and is then what it would have been without it.
            // SAFETY: the action was in force before.
            unsafe { libc::sigaction(signal, earlier, ptr::null_mut()) };
        }
        function if earlier.sa_flags & libc::SA_SIGINFO != 0 => {
            type Function = extern "C" fn(c_int, *mut libc::siginfo_t, *mut c_void);
            // SAFETY: a handler with this flag has this signature.
            let function = unsafe { std::mem::transmute::<usize, Function>(function) };
            function(signal, info, context);
        }
        function => {
            // SAFETY: a handler without the flag has this signature.
            let function = unsafe { std::mem::transmute::<usize, extern "C" fn(c_int)>(function) };
            function(signal);
        }
    }
}

/// Says which device memory an address is in, if it is in any.
fn say(address: usize) {
    let lists = iter::successors(Some(&LIST), |list| list.next.get().map(|next| &**next));
    let mut entries = lists.flat_map(|list| &list.entries);
    let Some((entry, offset)) = entries.find_map(|entry| Some((entry, entry.offset(address)?))) else {
        return;
    };
    let length = entry.length.load(Relaxed);
    let (allocation, device) = (entry.allocation.load(Relaxed), entry.device.load(Relaxed));
    let state = if entry.is_freed.load(Relaxed) { ", which was freed" } else { "" };
    let name = Finding::DeviceMemoryTouched.name();
    // One, as the stack of a handler is small.
    let mut text = Text { bytes: [0; 640], length: 0 };
    let mut say = |file: RawFd, before: fmt::Arguments<'_>, after: fmt::Arguments<'_>| {
        text.length = 0;
        // It is long enough.
        let _ = writeln!(
            text,
            "{before}the host touched byte {offset} of allocation {allocation}, {length} bytes of device {device}{state}; copy it \
             with cuMemcpyDtoH or cuMemcpyHtoD, or allocate memory that the host can use with cuMemAllocManaged or \
             cuMemAllocHost{after}"
        );
        // SAFETY: as many bytes are there.
        unsafe { libc::write(file, text.bytes.as_ptr().cast(), text.length) };
    };
    say(libc::STDERR_FILENO, format_args!("libnccl: "), format_args!(" [{name}]"));
    if let Some(file) = finding::file() {
        // Nothing in the text has to be escaped.
        let process = process::id();
        say(
            file.as_raw_fd(),
            format_args!(r#"{{"count":1,"finding":"{name}","process":{process},"text":""#),
            format_args!("\"}}"),
        );
    }
}

/// A text that needs no allocation.
struct Text {
    bytes: [u8; 640],
    length: usize,
}

impl Write for Text {
    fn write_str(&mut self, more: &str) -> fmt::Result {
        let end = self.length + more.len();
        self.bytes.get_mut(self.length..end).ok_or(fmt::Error)?.copy_from_slice(more.as_bytes());
        self.length = end;
        Ok(())
    }
}
