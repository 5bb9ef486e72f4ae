//! Defects of other Rust and Python bindings of NCCL that this one must not have.
//!
//! A test that shows the absence of one has a comment `// Regression: ...`; an example that must not compile shows the
//! absence of others. This file lists them all, so that none of these tests and examples disappears unnoticed.
//!
//! Not tested:
//!
//! - cudarc compiles `split` for some CUDA releases only. Here, nothing depends on a CUDA release: what an NCCL lacks
//!   is an error on call.
//! - cudarc does not make a stream's context current. Nothing here creates contexts or streams; a rank belongs to the
//!   thread's current device.
//! - cudarc aborts work in flight on drop. So does this crate, on purpose: a drop that waits may hang for ever, and
//!   `destroy` waits (docs/design.md).
//! - ferrotorch's feature does not build without others. Here, no CUDA crate is needed, and CI builds each combination
//!   of features.
//! - ferrotorch's synchronization does nothing without a library. Nothing here synchronizes streams.
//! - A backend of ferrotorch hides another. Here, there is one path, through one table.
//! - ztensor passes pointers through a variadic call as integers. Here, every function has its own type, from the
//!   header.
//! - nccl4py accepts tensors that are not contiguous. Slices are contiguous.
//! - monarch's colors are hashes, which may collide. Here, the caller's color goes to NCCL unchanged.

use std::fs;
use std::path::{Path, PathBuf};

/// Each sentence of a `Regression` comment, and the number of tests that have it.
#[rustfmt::skip]
const TESTED: &[(&str, usize)] = &[
    ("cudarc never looks for libnccl.so.2.", 2),
    ("cudarc panics when no library is found.", 2),
    ("cudarc panics when the library lacks a function.", 2),
    ("cudarc's error does not implement std::error::Error, and has no text.", 2),
    ("cudarc takes an unknown result code for success, or is undefined.", 2),
    ("cudarc puts a custom operator into an enum without such a value.", 1),
    ("cudarc checks neither receive buffers nor roots.", 2),
    ("cudarc panics in drop if the abort fails.", 1),
    ("cudarc panics in drop if a group's end fails, and the end may be forgotten.", 2),
    ("cudarc lets safe code make any type an element, such as char.", 2),
    ("cudarc exports a macro that does not compile for users.", 1),
    ("cudarc cannot send a communicator to another thread.", 1),
    ("cudarc takes a communicator in progress for ready.", 2),
    ("baracuda uses and frees a communicator again after its abort.", 2),
    ("baracuda confuses host and device scalars.", 1),
    ("baracuda fails and leaks on a nonblocking initialisation.", 1),
    ("baracuda fails on a split without a color.", 1),
    ("baracuda does not check lengths, or panics.", 1),
    ("baracuda's README example does not compile.", 1),
    ("baracuda's README example can deadlock, as it has no group.", 1),
    ("ferrotorch's barrier does not wait.", 2),
    ("ferrotorch guesses the data type from the size, and checks no sizes.", 2),
    ("ferrotorch cannot make an id from its bytes.", 2),
    ("ferrotorch's result codes are a closed enum.", 1),
    ("ferrotorch takes a raw stream in a safe function.", 1),
    ("ztensor lets a group change its thread.", 1),
    ("ztensor compares codes in the width of a register.", 1),
    ("nccl4py needs NCCL 2.23 for a plain initialisation.", 1),
    ("nccl4py starts half a group after an exception.", 2),
    ("nccl4py closes resources on a hanging communicator before it aborts.", 2),
    ("cupy raises a KeyError for codes above 6.", 1),
    ("cupy loses the results of destroy and abort.", 1),
    ("monarch panics on codes above 7.", 1),
    ("monarch, cubecl, candle and mistral.rs leak communicators.", 1),
    ("monarch leaves a group open on an early return.", 1),
    ("monarch's all_to_all does not check what it writes to.", 1),
    ("cubecl, candle and mistral.rs exchange ids by hand.", 2),
];

/// Each defect that does not compile here, and a line of the example that shows it.
#[rustfmt::skip]
const REJECTED: &[(&str, &str)] = &[
    ("cudarc lets a buffer be freed before its group ends.", "let inside = vec![1.0_f32; 8];"),
    ("baracuda does not tie buffers to their group.", "let inside = vec![1.0_f32; 8];"),
    ("baracuda lets an operator outlive its communicator.", "drop(halves);"),
    ("nccl4py does not compare a scalar's type with its operator's.", "let mut sum = [0.0_f64; 2];"),
    ("ferrotorch, monarch, cubecl, candle and mistral.rs let threads share a communicator.",
        "std::thread::scope(|s| s.spawn(|| comm.rank()).join().unwrap());"),
    ("ztensor frees a communicator twice if it is destroyed twice.", "comm.destroy()?;"),
];

/// Returns every Rust file below a directory of this repository.
fn sources(directory: impl AsRef<Path>) -> Vec<PathBuf> {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join(directory);
    let paths = fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path());
    paths
        .flat_map(|path| match path.is_dir() {
            true => sources(path),
            false if path.extension().is_some_and(|extension| extension == "rs") => vec![path],
            false => Vec::new(),
        })
        .collect()
}

/// Returns the sentences of the `Regression` comments in a file, each of which stands above a function.
fn regression_comments(path: &Path) -> Vec<String> {
    let text = fs::read_to_string(path).unwrap();
    let lines: Vec<&str> = text.lines().map(str::trim).collect();
    let comments = lines.iter().enumerate().filter_map(|(index, line)| {
        let sentence = line.strip_prefix("// Regression: ")?;
        let next = lines[index..].iter().find(|line| !line.starts_with("//") && !line.starts_with("#["));
        assert!(next.is_some_and(|line| line.starts_with("fn ")), "{}: no test: {line}", path.display());
        Some(sentence.to_string())
    });
    comments.collect()
}

/// Returns the examples in a file's documentation that must not compile.
fn rejected_examples(path: &Path) -> Vec<String> {
    let text = fs::read_to_string(path).unwrap();
    let lines: Vec<_> = text.lines().map(|line| line.trim().trim_start_matches("///").trim()).collect();
    let starts = (0..lines.len()).filter(|index| lines[*index].starts_with("```compile_fail"));
    let example = |start| lines[start + 1..].iter().take_while(|line| **line != "```").copied();
    starts.map(|start| example(start).collect::<Vec<_>>().join("\n")).collect()
}

#[test]
fn every_listed_regression_has_its_tests() {
    let files = ["src", "tests", "crates"].into_iter().flat_map(sources);
    let comments: Vec<_> = files.flat_map(|path| regression_comments(&path)).collect();
    for (sentence, expected) in TESTED {
        let found = comments.iter().filter(|comment| comment == sentence).count();
        assert_eq!(found, *expected, "tests with `// Regression: {sentence}`");
    }
    for comment in comments {
        let is_listed = TESTED.iter().any(|(sentence, _)| *sentence == comment);
        assert!(is_listed, "`// Regression: {comment}` is not in the list of {}", file!());
    }
}

#[test]
fn every_listed_regression_has_its_rejected_example() {
    let examples: Vec<_> = sources("src").iter().flat_map(|path| rejected_examples(path)).collect();
    for (sentence, line) in REJECTED {
        let found = examples.iter().any(|example| example.contains(line));
        assert!(found, "{sentence} There is no example that must not compile with {line:?}");
    }
}
