//! The parameter functions, with a library that returns null pointers, invalid lengths and any bytes.
#![allow(unsafe_code)]

use std::thread;
use std::time::Duration;

use libnccl::buffer::MemorySpace;
use libnccl::error::ResultCode;
use libnccl::internal::interposer::{lock_parameters, memory_space};
use libnccl::{Nccl, Parameters};
use libnccl_test_support::fake_nccl::{FakeNccl, Output, Rule, SUCCESS};

fn open() -> (FakeNccl, Parameters) {
    let fake = FakeNccl::new();
    let parameters = fake.nccl().parameters().unwrap();
    (fake, parameters)
}

fn writes(function: &'static str, output: Output) -> Rule {
    Rule { output: Some(output), ..Rule::always(function, SUCCESS) }
}

#[test]
fn null_and_invalid_utf8_are_text() {
    let (fake, parameters) = open();
    assert_eq!(parameters.keys().unwrap(), ["KEY", "", "\u{fffd}\u{fffd} broken \u{fffd}"]);
    let get = || parameters.get::<String>("KEY").unwrap();
    assert_eq!(get().as_deref(), Some("value"));
    fake.add_rule(writes("ncclParamGetParameter", Output::Zeros));
    assert_eq!(get().as_deref(), Some(""));
}

#[test]
fn get_bytes_grows_its_buffer() {
    let (fake, parameters) = open();
    let get = || parameters.get::<Vec<u8>>("KEY");
    for length in [2, 64, 65, 1000] {
        fake.set(|fake| fake.parameter_bytes = length);
        assert_eq!(get().unwrap(), Some(vec![0xa5; length]));
    }
    fake.set(|fake| fake.parameter_bytes = i32::MAX as usize);
    assert_eq!(get().unwrap_err().code(), Some(ResultCode::INVALID_ARGUMENT));
    fake.set(|fake| fake.parameter_bytes = 0);
    fake.add_rule(writes("ncclParamGet", Output::Ones));
    assert_eq!(get().unwrap(), Some(Vec::new()), "a length of -1");
    fake.add_rule(writes("ncclParamBind", Output::Zeros));
    assert_eq!(get().unwrap(), None, "a handle that is null");
}

// Threads crashed in NCCL 2.32.3. The memory space is read through a parameter too.
#[test]
fn threads_call_the_parameter_functions_of_one_library_in_turn() {
    let fake = FakeNccl::new();
    fake.set(|fake| fake.delay = ("ncclParam", Duration::from_millis(1)));
    let calls: [fn(Nccl); 6] = [
        |nccl| assert!(nccl.parameters().unwrap().get::<String>("KEY").unwrap().is_some()),
        |nccl| assert!(nccl.parameters().unwrap().get::<Vec<u8>>("KEY").unwrap().is_some()),
        |nccl| assert_eq!(nccl.parameters().unwrap().keys().unwrap().len(), 3),
        |nccl| nccl.parameters().unwrap().dump().unwrap(),
        |nccl| assert_eq!(nccl.memory_space(), MemorySpace::Device),
        |nccl| assert!(!format!("{nccl:?}").is_empty()),
    ];
    thread::scope(|scope| {
        let load = || {
            fake.attach();
            fake.load().unwrap()
        };
        for call in calls {
            // Each opens the library, as it stores the memory space.
            scope.spawn(move || (0..20).for_each(|_| call(load())));
        }
        scope.spawn(move || {
            let nccl = load();
            for _ in 0..20 {
                let _locked = lock_parameters(nccl.as_raw());
                // The library may call a parameter function by name, and thereby an interposer, which locks again.
                // SAFETY: the fake's functions.
                let _ = unsafe { memory_space(nccl.as_raw()) };
                // SAFETY: has no arguments.
                unsafe { nccl.as_raw().ncclParamDumpAll.unwrap()() };
            }
        });
    });
    fake.assert_clean("threads");
}
