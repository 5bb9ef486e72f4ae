//! Guarantees of the public API's types and signatures, and of the README.

use std::fs;
use std::path::Path;

use libnccl::{Communicator, DataType, Element, Error, LoadError, Nccl};

fn read(path: &str) -> String {
    fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(path)).unwrap()
}

// Regression: cudarc's error does not implement std::error::Error, and has no text.
#[test]
fn error_types_implement_error_and_handles_are_send() {
    fn error<T: std::error::Error + Send + Sync + 'static>() {}
    fn send<T: Send>() {}
    error::<Error>();
    error::<LoadError>();
    send::<Communicator>();
    send::<Nccl>();

    let failing = || -> Result<(), Box<dyn std::error::Error>> {
        libnccl_cpu::nccl().require("ncclNoSuchFunction")?;
        Ok(())
    };
    assert!(failing().unwrap_err().to_string().contains("ncclNoSuchFunction"));
}

/// Fails to compile if `Element` is a safe trait.
// Regression: cudarc lets safe code make any type an element, such as char.
#[test]
fn custom_element_by_unsafe_impl_is_reduced() {
    #[derive(Clone, Copy)]
    #[repr(transparent)]
    struct Meters(f32);

    // SAFETY: an f32.
    unsafe impl Element for Meters {
        const DATA_TYPE: DataType = f32::DATA_TYPE;
    }

    let comms = libnccl_cpu::nccl().init_all(&[0]).unwrap();
    let mut sum = [Meters(0.0)];
    comms[0]
        .all_reduce(&[Meters(2.0)], &mut sum, libnccl::ReduceOp::Sum, libnccl::StreamRef::DEFAULT)
        .unwrap();
    assert_eq!(sum[0].0, 2.0);
}

// Regression: ferrotorch takes a raw stream in a safe function.
#[test]
fn stream_from_raw_is_unsafe() {
    assert!(read("src/stream.rs").contains("pub const unsafe fn from_raw("));
}

/// For a type that is `Send`, `is_not_send` is ambiguous and does not compile.
// Regression: ztensor lets a group change its thread.
#[test]
fn group_and_pending_communicator_are_not_send() {
    trait Ambiguous<A> {
        fn is_not_send() {}
    }
    struct Sendable;
    impl<T: ?Sized> Ambiguous<()> for T {}
    impl<T: ?Sized + Send> Ambiguous<Sendable> for T {}
    <libnccl::Group<'_, '_> as Ambiguous<_>>::is_not_send();
    <libnccl::PendingCommunicator as Ambiguous<_>>::is_not_send();
}

// Regression: baracuda's README example does not compile.
// Regression: baracuda's README example can deadlock, as it has no group.
#[test]
fn readme_example_is_a_doctest() {
    assert!(read("src/lib.rs").contains("#![doc = include_str!(\"../README.md\")]"));
    let readme = read("README.md");
    let example = readme.split("```rust\n").nth(1).unwrap().split("```").next().unwrap();
    assert!(example.contains("fn main()") && example.contains("nccl.group(|g| {"), "{example}");
}
