use super::*;
use crate::shm::process::Process;
use crate::sync::executor;
use std::process::{Child, Command};

const NONE: Exposed<'_> = Exposed { buffers: &[], windows: 0 };

#[test]
fn closed_window_waits_only_for_accesses_in_progress() {
    let state = SharedState::create(&[Process::current().unwrap(); 2]).unwrap().0;
    let window = state.open_window(0).unwrap();
    assert!(state.is_window_open(0, window) && !state.is_window_open(1, window));
    let access = state.begin_access(1).unwrap();
    std::thread::scope(|scope| {
        let close = scope.spawn(|| executor::run_one(state.close_window(0, window, NONE), 2, |_| ()));
        while state.is_window_open(0, window) {
            std::thread::yield_now();
        }
        // By then it has read which accesses have begun.
        std::thread::sleep(Duration::from_millis(100));
        assert!(!close.is_finished(), "accessed");
        drop(access);
        // Another access begins immediately.
        let _access = state.begin_access(1).unwrap();
        close.join().unwrap();
    });
    let next = state.open_window(0).unwrap();
    assert_eq!(next.index, window.index);
    assert!(!state.is_window_open(0, window) && state.is_window_open(0, next));
    let outside = WindowId { index: WINDOWS, serial: 0 };
    assert!(!state.is_window_open(0, outside));
}

/// An idle process that represents another rank, optionally stopped. It is killed on drop.
struct Other(Child);

impl Other {
    fn new(is_stopped: bool) -> (Self, Process) {
        let other = Self(Command::new("sleep").arg("600").spawn().unwrap());
        let process = Process::from_pid(other.0.id().into()).unwrap();
        if is_stopped {
            let pid = rustix::process::Pid::from_child(&other.0);
            rustix::process::kill_process(pid, rustix::process::Signal::STOP).unwrap();
            while !process.is_stopped() {
                std::thread::yield_now();
            }
        }
        (other, process)
    }
}

impl Drop for Other {
    fn drop(&mut self) {
        // Also kills a stopped process.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Runs `quiesce` while the other rank is in an access. Returns `false` if it does not return before the other process is
/// killed.
fn returns(is_stopped: bool, exposed: Exposed<'_>, limit: Duration) -> bool {
    let (other, process) = Other::new(is_stopped);
    let state = SharedState::create(&[Process::current().unwrap(), process]).unwrap().0;
    // On behalf of the other process.
    let access = state.begin_access(1).unwrap();
    let begin = Instant::now();
    let (mut other, mut returned) = (Some(other), true);
    executor::run_one(state.quiesce(0, exposed), 2, |_| {
        if begin.elapsed() > limit {
            // The death of the other process ends the wait.
            (other, returned) = (None, false);
        }
    });
    drop(access);
    returned
}

/// Runs `test` with memory that other processes can map, and a second mapping of it.
fn with_shared_memory(test: impl FnOnce(ReadBuf, *mut u8)) {
    const LENGTH: usize = 10_000;
    let memory = mem_alloc::allocate(LENGTH).unwrap().cast::<u8>();
    let handle = mem_alloc::find(memory, LENGTH).unwrap();
    let mapping = crate::shm::mapping::Mapping::open(&Process::current().unwrap(), handle.file).unwrap();
    // SAFETY: `LENGTH` bytes, which live until the end of this function.
    test(unsafe { ReadBuf::new(memory, LENGTH) }, mapping.start().as_ptr());
    // SAFETY: the memory is no longer used.
    unsafe { mem_alloc::free(memory.cast()) }.unwrap();
}

#[test]
fn memory_is_revoked_from_a_process_stopped_or_stuck_in_an_access() {
    for is_stopped in [true, false] {
        with_shared_memory(|buffer, there| {
            let exposed = Exposed { buffers: &[buffer], windows: 0 };
            assert!(returns(is_stopped, exposed, Duration::from_secs(60)), "stopped: {is_stopped}");
            // The other process now writes to the file only.
            // SAFETY: inside the mapping, and in the memory that `buffer` vouches for.
            let here = unsafe {
                there.write_volatile(7);
                buffer.start().read_volatile()
            };
            assert_eq!(here, 0);
        });
    }
}

#[test]
fn memory_that_cannot_be_revoked_is_waited_for() {
    let limit = PATIENCE + Duration::from_millis(500);
    with_shared_memory(|buffer, _| {
        let exposed = Exposed { buffers: &[buffer], windows: 0 };
        let _window = crate::shm::window_memory::WindowMemory::new(buffer.start(), 1);
        assert!(!returns(true, exposed, limit), "it is in a window");
        assert!(returns(true, Exposed { windows: 1, ..exposed }, Duration::from_secs(60)));
    });
    // Other processes cannot reach it at all.
    let bytes = [0_u8; 10];
    // SAFETY: `bytes` holds ten bytes.
    let private = [unsafe { ReadBuf::new(bytes.as_ptr(), 10) }];
    let exposed = Exposed { buffers: &private, windows: 0 };
    assert!(returns(true, exposed, Duration::from_secs(60)));
}

#[test]
fn process_stopped_in_an_access_is_described() {
    let (_other, process) = Other::new(true);
    let state = SharedState::create(&[Process::current().unwrap(), process]).unwrap().0;
    let text = state.describe_access(0, 1, Duration::from_secs(10), "why");
    let expected = format!(
        "rank 0 of 2 still waits for rank 1 (process {}, in state T), which is stopped by a signal or a debugger, to end an \
         access to the memory of rank 0, which cannot be taken back: why; continue or kill that process",
        process.pid
    );
    assert!(text.starts_with("after 10.0 s, in ") && text.ends_with(&expected), "{text}");
}
