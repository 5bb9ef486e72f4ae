//! Call stacks, which show the call site in the program.

#![allow(unsafe_code)]

use std::backtrace::Backtrace;
use std::ffi::{CStr, c_int, c_void};
use std::fs::File;
use std::io::{Read, Seek};
use std::os::fd::AsRawFd;

use rustix::fs::{MemfdFlags, memfd_create};

/// 1 to report findings with the stacks of the calls, which makes each call about ten microseconds slower. Default: 0.
pub const STACKS: &str = "LIBNCCL_CPU_STACKS";

/// A thread's stack during a CUDA or NCCL call.
#[derive(Debug)]
pub struct Stack {
    backtrace: Backtrace,
    /// Python's description of the thread's frames.
    python: String,
}

impl Stack {
    /// Captures this thread's stack. Function names are not resolved yet.
    pub fn capture() -> Self {
        Self { backtrace: Backtrace::force_capture(), python: python().unwrap_or_default() }
    }

    /// Returns the functions from the called CUDA or NCCL function up to `main`, with their lines if the program has line
    /// information. Python's frames replace the frames of its interpreter. Returns nothing on a thread that does not belong to
    /// the program.
    pub fn frames(&self) -> Vec<String> {
        frames(&self.backtrace.to_string(), &self.python)
    }
}

/// Returns Python's description of this thread's frames, if the thread runs Python 3.11 or 3.12. These versions export a function
/// for it that is made for signal handlers and needs no lock. Other functions need a lock that another thread may hold while it
/// waits for a lock held by this thread.
fn python() -> Option<String> {
    let find = |name: &CStr| {
        // SAFETY: a C string; functions are only looked up in loaded libraries.
        let found = unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) };
        (!found.is_null()).then_some(found)
    };
    let (write, thread) = (find(c"_Py_DumpTraceback")?, find(c"PyGILState_GetThisThreadState")?);
    // SAFETY: Python's function has this signature.
    let thread = unsafe { std::mem::transmute::<*mut c_void, unsafe extern "C" fn() -> *mut c_void>(thread) };
    // SAFETY: likewise.
    let write =
        unsafe { std::mem::transmute::<*mut c_void, unsafe extern "C" fn(c_int, *mut c_void)>(write) };
    // SAFETY: may be called on any thread, and returns null on threads that are not registered with Python.
    let state = unsafe { thread() };
    if state.is_null() {
        return None;
    }
    // Uses the system call, because glibc 2.17, which the wheel is linked for, has no function for it.
    let mut file = File::from(memfd_create("stack", MemfdFlags::CLOEXEC).ok()?);
    // SAFETY: an open file, and the state of this thread, which does not change its frames during the call.
    unsafe { write(file.as_raw_fd(), state) };
    let mut text = Vec::new();
    file.rewind().and_then(|()| file.read_to_end(&mut text)).ok()?;
    Some(String::from_utf8_lossy(&text).into_owned())
}

/// Returns the frames of a backtrace, followed by Python's frames. A backtrace has a line with a number and a function for each
/// frame, possibly followed by a line with its location.
fn frames(backtrace: &str, python: &str) -> Vec<String> {
    let mut frames = Vec::<(&str, Option<&str>)>::new();
    for line in backtrace.lines().map(str::trim_start) {
        if let Some(place) = line.strip_prefix("at ") {
            frames.last_mut().into_iter().for_each(|frame| frame.1 = Some(place));
        } else if let Some((_, function)) = line.split_once(": ") {
            frames.push((function, None));
        }
    }
    let name = |function: &str| function.rsplit("::").next().unwrap_or_default().to_owned();
    let Some(called) = frames.iter().rposition(|(function, _)| is_called(&name(function))) else {
        return vec![];
    };
    // The called function's location is not in the program. If the compiler merges it with its profiling variant, it has the
    // variant's name.
    let called_name = name(frames[called].0);
    let mut named = vec![called_name.strip_prefix('p').unwrap_or(&called_name).to_owned()];
    let python: Vec<_> = python.lines().filter_map(frame_of_python).collect();
    for (function, place) in &frames[called + 1..] {
        let is_interpreter = !python.is_empty() && function.starts_with("_PyEval_");
        if is_interpreter || function.starts_with("__libc_start") {
            break;
        }
        named.push(place.map_or_else(|| (*function).to_owned(), |place| format!("{function} at {place}")));
        if name(function) == "main" {
            break;
        }
    }
    named.into_iter().chain(python).collect()
}

/// Parses a line of Python's description: `File "train.py", line 12 in step`.
fn frame_of_python(line: &str) -> Option<String> {
    let (file, rest) = line.trim_start().strip_prefix("File \"")?.split_once("\", line ")?;
    let (number, function) = rest.split_once(" in ")?;
    Some(format!("{function} at {file}:{number}"))
}

/// Returns whether a function belongs to CUDA or NCCL.
fn is_called(function: &str) -> bool {
    let own = ["cuda", "cu", "nccl", "pnccl"].iter().filter_map(|prefix| function.strip_prefix(prefix));
    own.into_iter().any(|rest| rest.starts_with(|first: char| first.is_ascii_uppercase()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_are_those_from_the_call_to_main() {
        let own = "   0: std::backtrace::Backtrace::create\n             at /rustc/library/std/src/backtrace.rs:331:13\n   \
                   1: libnccl_cpu::abi::ncclSend\n   2: ncclGroupEnd\n   3: pncclGroupEnd\n             at ./lib.rs:19:26\n";
        let python = "Stack (most recent call first):\n  File \"./train.py\", line 12 in step\n  File \"x.py\", line 3 in <module>\n";
        let interpreter =
            "   4: ffi_call\n   5: _PyEval_EvalFrameDefault\n             at ceval.c:5376\n   6: main\n";
        for (of_program, python, expected) in [
            (
                "   4: step\n             at ./train.c:12:9\n   5: <unknown>\n   6: main\n             at ./train.c:30\n   7: _start\n",
                "",
                &["ncclGroupEnd", "step at ./train.c:12:9", "<unknown>", "main at ./train.c:30"][..],
            ),
            ("   4: train::main\n   5: std::rt::lang_start\n", "", &["ncclGroupEnd", "train::main"]),
            (
                "   4: <unknown>\n   5: __libc_start_main_impl\n   6: _start\n",
                "",
                &["ncclGroupEnd", "<unknown>"],
            ),
            (
                interpreter,
                python,
                &["ncclGroupEnd", "ffi_call", "step at ./train.py:12", "<module> at x.py:3"],
            ),
            (
                interpreter,
                "",
                &["ncclGroupEnd", "ffi_call", "_PyEval_EvalFrameDefault at ceval.c:5376", "main"],
            ),
        ] {
            assert_eq!(frames(&format!("{own}{of_program}"), python), expected);
        }
        assert_eq!(frames("   0: culprit\n   1: start_thread\n", python), Vec::<String>::new());
    }
}
