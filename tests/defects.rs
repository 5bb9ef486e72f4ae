//! Defects that were found in other bindings of NCCL, and what shows that this one does not have them.

use std::fs;
use std::path::Path;

use libnccl::{Communicator, DataType, Element, Error, LoadError, Nccl};

/// What shows it.
enum Proof {
    /// The tests of these names, each anywhere in this workspace.
    Tests(&'static [&'static str]),
    /// The example in this file that must not compile, by a line of it.
    Refused(&'static str, &'static str),
    /// It cannot be: why.
    Cannot(&'static str),
    /// It is so here as well, on purpose: why.
    Chosen(&'static str),
}
use Proof::{Cannot, Chosen, Refused, Tests};

#[rustfmt::skip]
const DEFECTS: &[(&str, u32, &str, Proof)] = &[
    ("cudarc", 1, "libnccl.so.2 is never looked for",
        Tests(&["python_then_conda_then_the_toolkits", "load_lists_every_place_with_its_reason"])),
    ("cudarc", 2, "a missing library is a panic",
        Tests(&["load_takes_the_named_file_or_fails", "open_says_what_is_wrong_with_a_file"])),
    ("cudarc", 3, "a missing function is a panic",
        Tests(&["what_a_release_lacks_is_said_with_both_releases", "functions_that_the_library_lacks"])),
    ("cudarc", 4, "the error is no std::error::Error, and says nothing",
        Tests(&["errors_are_errors_and_threads_take_communicators", "texts"])),
    ("cudarc", 5, "an unknown code is success, or undefined",
        Tests(&["every_code_of_every_call", "known_and_unknown_codes"])),
    ("cudarc", 6, "a custom operator is an impossible value of an enum",
        Tests(&["every_method_makes_exactly_its_calls"])),
    ("cudarc", 7, "split is compiled for some CUDA releases only",
        Cannot("no part of the API depends on a CUDA release; what NCCL lacks is an error on call")),
    ("cudarc", 8, "receive buffers and roots are not checked",
        Tests(&["short_buffers_are_named_with_their_lengths", "roots_and_peers_out_of_range"])),
    ("cudarc", 9, "drop aborts work in flight",
        Chosen("a drop that waits may hang for ever; `destroy` waits (docs/design.md)")),
    ("cudarc", 10, "drop panics if the abort fails", Tests(&["every_end_whatever_nccl_answers"])),
    ("cudarc", 11, "a group's drop panics if its end fails, and may be forgotten",
        Tests(&["a_group_that_fails_starts_nothing_and_says_why", "a_group_that_panics_starts_nothing"])),
    ("cudarc", 12, "a buffer is freed before the group's end",
        Refused("src/group.rs", "let inside = vec![1.0_f32; 8];")),
    ("cudarc", 13, "a stream's context is not made current",
        Cannot("nothing here makes contexts or streams; a rank belongs to the thread's current device")),
    ("cudarc", 14, "any type can be an element by safe code; char is",
        Tests(&["only_unsafe_code_makes_elements", "all_are_nccls_in_nccls_order"])),
    ("cudarc", 15, "the exported macro does not compile for users",
        Tests(&["every_method_makes_exactly_its_calls"])),
    ("cudarc", 16, "a communicator cannot be sent to a thread",
        Tests(&["a_communicator_moves_to_another_thread"])),
    ("cudarc", 17, "a communicator in progress is taken for ready",
        Tests(&["every_code_of_every_call", "a_pending_one_is_waited_for"])),

    ("baracuda", 1, "abort frees what is then used and freed again",
        Tests(&["every_end_after_every_past", "an_abort_handle_races_with_work"])),
    ("baracuda", 2, "host and device scalars are mixed up",
        Tests(&["every_method_makes_exactly_its_calls"])),
    ("baracuda", 3, "a nonblocking initialisation fails and leaks", Tests(&["every_code_of_every_call"])),
    ("baracuda", 4, "a split without a color fails", Tests(&["every_method_makes_exactly_its_calls"])),
    ("baracuda", 5, "lengths are not checked, or by a panic",
        Tests(&["short_buffers_are_named_with_their_lengths"])),
    ("baracuda", 6, "buffers are not tied to the group or the stream",
        Refused("src/group.rs", "let inside = vec![1.0_f32; 8];")),
    ("baracuda", 7, "operators can be forged, and used with another communicator",
        Refused("src/communicator/pre_mul_sum.rs", "drop(halves);")),
    ("baracuda", 8, "the README's example does not compile", Tests(&["the_readme_is_compiled"])),
    ("baracuda", 9, "the example can deadlock, as it has no group", Tests(&["the_readme_is_compiled"])),

    ("ferrotorch", 1, "the feature does not build without others",
        Cannot("there is no dependency on a CUDA crate; CI builds each combination of features")),
    ("ferrotorch", 2, "the barrier does not wait", Tests(&["every_method_makes_exactly_its_calls"])),
    ("ferrotorch", 3, "two threads are inside one communicator",
        Refused("src/communicator/mod.rs", "std::thread::scope(|s| s.spawn(|| comm.rank()).join().unwrap());")),
    ("ferrotorch", 4, "synchronizing does nothing without a library",
        Cannot("nothing here synchronizes streams; that is for the CUDA crate of one's choice")),
    ("ferrotorch", 5, "the data type is guessed from the size, and sizes are not checked",
        Tests(&["every_method_makes_exactly_its_calls", "short_buffers_are_named_with_their_lengths"])),
    ("ferrotorch", 6, "a backend hides another", Cannot("there is one path, through one table")),
    ("ferrotorch", 7, "an id cannot be made from its bytes", Tests(&["bytes_text_and_c_form_round_trip"])),
    ("ferrotorch", 8, "codes are a closed enum; a raw stream in a safe function",
        Tests(&["known_and_unknown_codes", "raw_streams_are_unsafe"])),

    ("ztensor", 1, "a group may change its thread", Tests(&["groups_stay_on_their_thread"])),
    ("ztensor", 2, "destroying twice frees twice", Refused("src/communicator/mod.rs", "comm.destroy()?;")),
    ("ztensor", 3, "codes are compared in the width of a register",
        Tests(&["the_extern_block_and_the_loaded_struct_agree"])),
    ("ztensor", 4, "pointers pass through a variadic call as integers",
        Cannot("every function has its own type, from the header")),

    ("nccl4py", 1, "a plain initialisation needs 2.23", Tests(&["every_method_makes_exactly_its_calls"])),
    ("nccl4py", 2, "a scalar's type is not compared with the operator's",
        Refused("src/communicator/pre_mul_sum.rs", "let mut sum = [0.0_f64; 2];")),
    ("nccl4py", 3, "an exception starts half a group",
        Tests(&["a_group_that_fails_starts_nothing_and_says_why", "a_group_that_panics_starts_nothing"])),
    ("nccl4py", 4, "tensors that are not contiguous are accepted", Cannot("slices are contiguous")),
    ("nccl4py", 5, "abort first closes resources on a communicator that may hang",
        Tests(&["every_end_after_every_past", "an_abort_handle_ends_a_wait"])),

    ("cupy", 1, "codes above 6 are a KeyError", Tests(&["every_code_of_every_call"])),
    ("cupy", 2, "the results of destroy and abort are lost", Tests(&["every_code_of_every_call"])),

    ("monarch", 1, "codes above 7 are a panic", Tests(&["every_code_of_every_call"])),
    ("monarch", 2, "communicators leak", Tests(&["every_end_after_every_past"])),
    ("monarch", 3, "an early return leaves the group open",
        Tests(&["a_group_that_fails_starts_nothing_and_says_why"])),
    ("monarch", 4, "all_to_all does not check what it writes to",
        Tests(&["short_buffers_are_named_with_their_lengths"])),
    ("monarch", 5, "threads share a communicator at their own risk",
        Refused("src/communicator/mod.rs", "std::thread::scope(|s| s.spawn(|| comm.rank()).join().unwrap());")),
    ("monarch", 6, "colors are hashes, which may collide", Cannot("the caller's color goes to NCCL as it is")),

    ("cubecl, candle, mistral.rs", 1, "communicators leak", Tests(&["every_end_after_every_past"])),
    ("cubecl, candle, mistral.rs", 2, "Send and Sync without a reason",
        Refused("src/communicator/mod.rs", "std::thread::scope(|s| s.spawn(|| comm.rank()).join().unwrap());")),
    ("cubecl, candle, mistral.rs", 3, "ids are exchanged by hand", Tests(&["bytes_text_and_c_form_round_trip"])),
];

/// How many each has.
const COUNTS: &[(&str, u32)] = &[
    ("cudarc", 17),
    ("baracuda", 9),
    ("ferrotorch", 8),
    ("ztensor", 4),
    ("nccl4py", 5),
    ("cupy", 2),
    ("monarch", 6),
    ("cubecl, candle, mistral.rs", 3),
];

fn read(path: impl AsRef<Path>) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(path);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// The text of every Rust file below a directory.
fn sources(directory: &Path, text: &mut String) {
    for entry in fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            sources(&path, text);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            *text += &read(path);
        }
    }
}

/// The examples in a file's documentation that must not compile.
fn refused(file: &str) -> Vec<String> {
    let text = read(file);
    let lines: Vec<_> = text.lines().map(|line| line.trim().trim_start_matches("///").trim()).collect();
    let starts = (0..lines.len()).filter(|index| lines[*index].starts_with("```compile_fail"));
    let example = |start| lines[start + 1..].iter().take_while(|line| **line != "```").copied();
    starts.map(|start| example(start).collect::<Vec<_>>().join("\n")).collect()
}

#[test]
fn every_defect_has_its_proof() {
    let mut text = String::new();
    for directory in ["src", "tests", "crates"] {
        sources(&Path::new(env!("CARGO_MANIFEST_DIR")).join(directory), &mut text);
    }
    for (binding, number, defect, proof) in DEFECTS {
        let context = format!("{binding} {number}, {defect}");
        match proof {
            Tests(names) => {
                for name in *names {
                    assert!(text.contains(&format!("fn {name}(")), "{context}: there is no test {name}");
                }
            }
            Refused(file, line) => {
                let found = refused(file).iter().any(|example| example.contains(line));
                assert!(found, "{context}: {file} has no example that must not compile with {line:?}");
            }
            Cannot(why) | Chosen(why) => assert!(!why.is_empty(), "{context}"),
        }
    }
    for (binding, count) in COUNTS {
        let numbers = DEFECTS.iter().filter(|(name, ..)| name == binding).map(|(_, number, ..)| *number);
        assert!(numbers.eq(1..=*count), "{binding}");
    }
}

#[test]
fn errors_are_errors_and_threads_take_communicators() {
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

/// `unsafe impl` of a safe trait would not compile.
#[test]
fn only_unsafe_code_makes_elements() {
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

#[test]
fn raw_streams_are_unsafe() {
    assert!(read("src/stream.rs").contains("pub const unsafe fn from_raw("));
}

/// `value.is_send()` is ambiguous, and does not compile, for a type that is `Send`.
#[test]
fn groups_stay_on_their_thread() {
    trait Ambiguous<A> {
        fn stays() {}
    }
    struct Sendable;
    impl<T: ?Sized> Ambiguous<()> for T {}
    impl<T: ?Sized + Send> Ambiguous<Sendable> for T {}
    <libnccl::Group<'_, '_> as Ambiguous<_>>::stays();
    <libnccl::PendingCommunicator as Ambiguous<_>>::stays();
}

#[test]
fn the_readme_is_compiled() {
    assert!(read("src/lib.rs").contains("#![doc = include_str!(\"../README.md\")]"));
    let readme = read("README.md");
    let example = readme.split("```rust\n").nth(1).unwrap().split("```").next().unwrap();
    assert!(example.contains("fn main()") && example.contains("nccl.group(|g| {"), "{example}");
}
