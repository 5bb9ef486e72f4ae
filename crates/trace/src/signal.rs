//! The signals at which the recording is written.

use std::ffi::c_int;
use std::mem::MaybeUninit;
use std::ptr;
use std::sync::atomic::AtomicI32;
use std::sync::atomic::Ordering::Relaxed;
use std::thread;

use libnccl::internal::environment::variable;
use libnccl_observe::variables;

/// The end of the pipe to which the signal handler writes; -1 before the pipe exists.
static PIPE: AtomicI32 = AtomicI32::new(-1);

/// Calls `write` on a separate thread when `SIGTERM`, `SIGINT` or the signal in `LIBNCCL_RECORDER_SIGNAL` arrives, unless the
/// program handles or ignores it. `SIGTERM` and `SIGINT` then terminate the process.
pub(crate) fn watch(write: fn()) {
    let mut pipe = [-1; 2];
    // SAFETY: an array of two, which the call fills.
    if unsafe { libc::pipe2(pipe.as_mut_ptr(), libc::O_CLOEXEC) } != 0 {
        return;
    }
    PIPE.store(pipe[1], Relaxed);
    let mut signals = MaybeUninit::uninit();
    let mut before = MaybeUninit::uninit();
    // The program's signals are not delivered to this thread. SAFETY: both sets are filled before they are read.
    unsafe {
        libc::sigfillset(signals.as_mut_ptr());
        libc::pthread_sigmask(libc::SIG_SETMASK, signals.as_ptr(), before.as_mut_ptr());
    }
    // `nccl recorder diff --pid` looks for the name.
    let thread = thread::Builder::new().name("libnccl-signal".into());
    let started = thread.spawn(move || {
        let mut signal = 0_u8;
        loop {
            // SAFETY: a descriptor that nobody closes, and a byte.
            match unsafe { libc::read(pipe[0], (&raw mut signal).cast(), 1) } {
                1 => {
                    write();
                    end_by(c_int::from(signal));
                }
                0 => return,
                _ => {}
            }
        }
    });
    // SAFETY: the mask that this thread had before.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, before.as_ptr(), ptr::null_mut()) };
    if started.is_err() {
        return;
    }
    for signal in ENDING {
        handle(signal, libc::SA_RESETHAND);
    }
    let asked = variable(variables::RECORDER_SIGNAL);
    match asked.as_deref().and_then(|name| name.to_str()).map(|name| name.trim_start_matches("SIG")) {
        Some("USR1") => handle(libc::SIGUSR1, 0),
        Some("USR2") => handle(libc::SIGUSR2, 0),
        _ => {}
    }
}

const ENDING: [c_int; 2] = [libc::SIGTERM, libc::SIGINT];

/// Installs the handler for a signal that has its default action.
fn handle(signal: c_int, flags: c_int) {
    if action(signal) != Some(libc::SIG_DFL) {
        return;
    }
    // SAFETY: a struct of numbers and a function pointer that may be absent.
    let mut new: libc::sigaction = unsafe { MaybeUninit::zeroed().assume_init() };
    new.sa_sigaction = on_signal as *const () as usize;
    new.sa_flags = flags | libc::SA_RESTART;
    // SAFETY: the handler calls only `write`, which a handler may.
    unsafe { libc::sigaction(signal, &raw const new, ptr::null_mut()) };
}

/// Returns the handler of a signal.
fn action(signal: c_int) -> Option<usize> {
    let mut old = MaybeUninit::<libc::sigaction>::uninit();
    // SAFETY: changes nothing; fills the struct if it succeeds.
    unsafe {
        (libc::sigaction(signal, ptr::null(), old.as_mut_ptr()) == 0).then(|| old.assume_init().sa_sigaction)
    }
}

extern "C" fn on_signal(signal: c_int) {
    // SAFETY: the C library's place for the error of this thread.
    let error = unsafe { libc::__errno_location() };
    let byte = signal as u8;
    // SAFETY: as above; a byte, and a descriptor that nobody closes. A pipe that is full has recordings enough to write.
    unsafe {
        let before = *error;
        libc::write(PIPE.load(Relaxed), (&raw const byte).cast(), 1);
        *error = before;
    }
}

/// Sends `SIGTERM` or `SIGINT` again. The default action then terminates the process.
fn end_by(signal: c_int) {
    // The handler was reset when it ran. The program may have set another one since.
    if ENDING.contains(&signal) {
        // SAFETY: no memory is involved. Another thread takes it, or, if all block it, it waits as it would have.
        unsafe { libc::kill(libc::getpid(), signal) };
    }
}

/// Resets the handlers in a forked child, which lacks the thread.
pub(crate) fn forget() {
    PIPE.store(-1, Relaxed);
    for signal in [libc::SIGTERM, libc::SIGINT, libc::SIGUSR1, libc::SIGUSR2] {
        if action(signal) == Some(on_signal as *const () as usize) {
            // SAFETY: a handler may be reset at any time.
            unsafe { libc::signal(signal, libc::SIG_DFL) };
        }
    }
}
