//! Leaks: objects that exist when the process exits.

use std::ptr;
use std::sync::Mutex;

use cudarc::driver::result::{self, event, stream, stream::StreamKind};
use cudarc::driver::sys;

use crate::work::enter;

crate::tests! {
    leaked_objects_are_listed_in_strict_mode = leave [
        "libnccl: 200 bytes of device memory in 2 allocations, made on device 1, were not freed before \
         the process exits [leaked-device-memory]\n",
        "libnccl: 300 bytes of managed memory in 1 allocation, made on device 1, were not freed before \
         the process exits [leaked-device-memory]\n",
        "libnccl: 400 bytes of pinned host memory in 1 allocation, made on device 1, were not freed \
         before the process exits [leaked-host-memory]\n",
        "libnccl: 2 streams of device 1 were not destroyed before the process exits [leaked-stream]\n",
        "libnccl: 1 event of device 1 was not destroyed before the process exits [leaked-event]\n",
    ] { LIBNCCL_CPU_STRICT = "1" }
    ignored_leak_is_not_listed = leave {
        LIBNCCL_CPU_STRICT = "1",
        LIBNCCL_CPU_IGNORE = "leaked-device-memory,leaked-host-memory,leaked-stream,leaked-event"
    }
    leak_is_not_listed_unless_enabled = leave
    program_that_frees_everything_has_no_leaks = leave_nothing { LIBNCCL_CPU_STRICT = "1" }
    stream_destroyed_by_an_atexit_function_is_no_leak = destroy_at_exit { LIBNCCL_CPU_STRICT = "1" }
}

/// Leaks twice as many objects of each kind as it frees, except for one kind.
fn leave() {
    enter(1);
    let events = [(); 2].map(|()| event::create(sys::CUevent_flags::CU_EVENT_DEFAULT).expect("an event"));
    let streams = [(); 3].map(|()| stream::create(StreamKind::NonBlocking).expect("a stream"));
    // SAFETY: each is freed once at most.
    unsafe {
        let memory = [(); 3].map(|()| result::malloc_sync(100).expect("memory"));
        result::malloc_managed(300, sys::CUmemAttach_flags::CU_MEM_ATTACH_GLOBAL).expect("memory");
        result::malloc_host(400, 0).expect("memory");
        result::free_sync(memory[0]).expect("a free");
        event::destroy(events[0]).expect("an end");
        stream::destroy(streams[0]).expect("an end");
    }
}

fn leave_nothing() {
    enter(1);
    let own = stream::create(StreamKind::NonBlocking).expect("a stream");
    let done = event::create(sys::CUevent_flags::CU_EVENT_DEFAULT).expect("an event");
    // SAFETY: each is freed once, and the default stream of the thread has no handle.
    unsafe {
        let memory =
            [result::malloc_async(own, 100).expect("memory"), result::malloc_sync(100).expect("memory")];
        let of_thread = ptr::without_provenance_mut(2);
        result::memset_d8_async(memory[1], 1, 100, of_thread).expect("a memset");
        event::record(done, of_thread).expect("a record");
        stream::wait_event(own, done, sys::CUevent_wait_flags::CU_EVENT_WAIT_DEFAULT).expect("a wait");
        stream::synchronize(own).expect("its end");
        result::free_async(memory[0], own).expect("a free");
        result::free_sync(memory[1]).expect("a free");
        stream::destroy(own).expect("an end");
        event::destroy(done).expect("an end");
    }
}

/// Registers an exit handler that destroys a stream, before the library is loaded and can register its own.
fn destroy_at_exit() {
    static STREAM: Mutex<usize> = Mutex::new(0);
    extern "C" fn destroy() {
        let stream = *STREAM.lock().expect("no panic");
        // SAFETY: it is destroyed once.
        unsafe { stream::destroy(ptr::without_provenance_mut(stream)) }.expect("an end");
    }
    // SAFETY: the function does not unwind unless the test fails.
    assert_eq!(unsafe { libc::atexit(destroy) }, 0);
    enter(1);
    *STREAM.lock().expect("no panic") = stream::create(StreamKind::NonBlocking).expect("a stream").addr();
}
