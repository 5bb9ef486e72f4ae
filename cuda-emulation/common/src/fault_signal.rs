//! Signals of memory faults: a handler that reports a fault, after which the process continues as without the handler.
//!
//! The handler allocates nothing, takes no lock and needs little stack, because a handler's stack may have only a few kilobytes.

#![allow(unsafe_code)]

use std::ffi::{CString, c_int, c_void};
use std::fmt::{self, Write};
use std::fs::File;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStringExt;
use std::process;
use std::ptr;
use std::sync::OnceLock;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicUsize};

use crate::object_of;

/// A function that reports the fault at an address. `code` is the signal's `si_code`.
pub type Report = fn(address: usize, signal: c_int, code: c_int);

/// The signals and their earlier actions, which are stored when the handler is installed.
static EARLIER: [(c_int, OnceLock<libc::sigaction>); 2] =
    [(libc::SIGSEGV, OnceLock::new()), (libc::SIGBUS, OnceLock::new())];

/// The address of the function that the handler calls, or 0 if there is none.
static REPORT: AtomicUsize = AtomicUsize::new(0);

/// Installs `report` to be called at memory faults. Only the first call in a process has an effect.
///
/// # Errors
/// Returns the system's error if the handler cannot be installed.
pub fn install(report: Report) -> io::Result<()> {
    if REPORT.compare_exchange(0, report as usize, Relaxed, Relaxed).is_err() {
        return Ok(());
    }
    stay_loaded();
    for (signal, earlier) in &EARLIER {
        let mut action = MaybeUninit::<libc::sigaction>::zeroed();
        // SAFETY: a valid out-parameter; without a new action, nothing is changed.
        if unsafe { libc::sigaction(*signal, ptr::null(), action.as_mut_ptr()) } != 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: `sigaction` has written it; also, zero is a valid value of all its fields.
        let mut action = unsafe { action.assume_init() };
        let is_default = matches!(action.sa_sigaction, libc::SIG_DFL | libc::SIG_IGN);
        let _ = earlier.set(action);
        // An earlier handler keeps the stack and the blocked signals that it was installed with.
        let kept = libc::SA_ONSTACK | libc::SA_NODEFER | libc::SA_RESTART;
        let flags = if is_default { libc::SA_ONSTACK } else { action.sa_flags & kept };
        action.sa_flags = libc::SA_SIGINFO | flags;
        action.sa_sigaction = handle as extern "C" fn(c_int, *mut libc::siginfo_t, *mut c_void) as usize;
        // SAFETY: the handler is async-signal-safe, and this library is never unloaded.
        if unsafe { libc::sigaction(*signal, &raw const action, ptr::null_mut()) } != 0 {
            return Err(io::Error::last_os_error());
        }
    }
    Ok(())
}

/// Keeps the library with the handler loaded until the process ends.
pub fn stay_loaded() {
    let own = object_of(ptr::from_ref(&REPORT).addr());
    let Some(Ok(name)) = own.map(|own| CString::new(own.into_os_string().into_vec())) else { return };
    let mode = libc::RTLD_LAZY | libc::RTLD_NOLOAD | libc::RTLD_NODELETE;
    // SAFETY: only changes the mode of this library, which is loaded. A program is not a library, and is never unloaded.
    unsafe { libc::dlopen(name.as_ptr(), mode) };
}

extern "C" fn handle(signal: c_int, info: *mut libc::siginfo_t, context: *mut c_void) {
    let code = match info.is_null() {
        true => 0,
        // SAFETY: the kernel passes the signal's information.
        false => unsafe { (*info).si_code },
    };
    let report = REPORT.load(Relaxed);
    // A signal sent by a process is not a fault.
    let is_fault = code > 0;
    if is_fault && report != 0 {
        // SAFETY: `install` has stored a function of this type.
        let report = unsafe { std::mem::transmute::<usize, Report>(report) };
        // SAFETY: a fault has an address.
        report(unsafe { (*info).si_addr() }.addr(), signal, code);
    }
    let earlier = EARLIER.iter().find(|(number, _)| *number == signal).and_then(|(_, action)| action.get());
    let Some(earlier) = earlier else { return };
    match earlier.sa_sigaction {
        libc::SIG_IGN if !is_fault => {}
        libc::SIG_DFL | libc::SIG_IGN => {
            // The access is retried when the handler returns, and then has the same effect as without the handler.
            // SAFETY: the action was in force before.
            unsafe { libc::sigaction(signal, earlier, ptr::null_mut()) };
            if !is_fault {
                // SAFETY: raises the signal again, which is blocked until the handler returns.
                unsafe { libc::raise(signal) };
            }
        }
        function => {
            if earlier.sa_flags & libc::SA_RESETHAND != 0 {
                // SAFETY: zero is a valid value of all fields, and means the default action.
                let default = unsafe { MaybeUninit::<libc::sigaction>::zeroed().assume_init() };
                // SAFETY: a valid action.
                unsafe { libc::sigaction(signal, &raw const default, ptr::null_mut()) };
            }
            if earlier.sa_flags & libc::SA_SIGINFO != 0 {
                type Function = extern "C" fn(c_int, *mut libc::siginfo_t, *mut c_void);
                // SAFETY: a handler with this flag has this signature.
                let function = unsafe { std::mem::transmute::<usize, Function>(function) };
                function(signal, info, context);
            } else {
                // SAFETY: a handler without the flag has this signature.
                let function = unsafe { std::mem::transmute::<usize, extern "C" fn(c_int)>(function) };
                function(signal);
            }
        }
    }
}

/// Writes a finding with this name to stderr, after `prefix`, and to the findings file. `text` must not need escaping in JSON.
/// Simultaneous faults of several threads are reported once.
pub fn say(name: &str, prefix: &str, file: Option<&File>, text: fmt::Arguments<'_>) {
    if IS_WRITING.swap(true, Acquire) {
        wait_for(&IS_WRITING, false);
        return;
    }
    write(libc::STDERR_FILENO, format_args!("{prefix}: {text} [{name}]\n"));
    if let Some(file) = file {
        let process = process::id();
        write(
            file.as_raw_fd(),
            format_args!(
                "{{\"count\":1,\"finding\":\"{name}\",\"process\":{process},\"text\":\"{text}\"}}\n"
            ),
        );
    }
    IS_WRITING.store(false, Release);
}

/// Waits until another thread has written its line and set `flag` to `value`. Otherwise, this thread's fault may end the process
/// first. The limit of one second covers a fault during the write.
pub fn wait_for(flag: &AtomicBool, value: bool) {
    for _ in 0..1000 {
        if flag.load(Acquire) == value {
            return;
        }
        let millisecond = libc::timespec { tv_sec: 0, tv_nsec: 1_000_000 };
        // SAFETY: a valid time; the remaining time is not requested.
        unsafe { libc::nanosleep(&raw const millisecond, ptr::null_mut()) };
    }
}

/// The line to write. It is not on the handler's stack, which may have only a few kilobytes.
static LINE: [AtomicU8; 640] = [const { AtomicU8::new(0) }; 640];

static IS_WRITING: AtomicBool = AtomicBool::new(false);

fn write(file: c_int, text: fmt::Arguments<'_>) {
    let mut line = Line(0);
    // The line is long enough.
    let _ = line.write_fmt(text);
    // SAFETY: `LINE` holds `line.0` bytes.
    unsafe { libc::write(file, LINE.as_ptr().cast(), line.0) };
}

/// The number of bytes of text in [`LINE`].
struct Line(usize);

impl Write for Line {
    fn write_str(&mut self, more: &str) -> fmt::Result {
        for byte in more.as_bytes() {
            LINE.get(self.0).ok_or(fmt::Error)?.store(*byte, Relaxed);
            self.0 += 1;
        }
        Ok(())
    }
}
