//! Programs that compile, and the compiler's messages for likely mistakes, which say what to do instead.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

/// A statement that does not compile, and texts that the message has.
#[rustfmt::skip]
const MISTAKES: &[(&str, &[&str])] = &[
    ("comm.recv(&mut ['a'], 0, StreamRef::DEFAULT)",
        &["NCCL has no data type for `char`", "elements are i8, u8"]),
    ("std::thread::scope(|s| drop(s.spawn(|| comm.rank())))",
        &["OneThreadAtATime", "cannot be shared between threads safely"]),
    ("comm.send(0x1000_u64, 0, StreamRef::DEFAULT)",
        &["`u64` is not a buffer that an operation can read", "`DeviceSlice::from_raw_parts(pointer, length)`"]),
    ("comm.send(std::ptr::null::<f32>(), 0, StreamRef::DEFAULT)",
        &["`*const f32` is not a buffer that an operation can read", "`DeviceSlice::from_raw_parts(pointer, length)`"]),
    ("comm.recv(std::ptr::null_mut::<f32>(), 0, StreamRef::DEFAULT)",
        &["`*mut f32` is not a buffer that an operation can write", "`DeviceSliceMut::from_raw_parts(pointer, length)`"]),
    ("comm.recv(&[0.0_f32], 0, StreamRef::DEFAULT)",
        &["`&[f32; 1]` is not a buffer that an operation can write", "pass a mutable reference"]),
    ("(|b: &mut NcclBuffer<f32>| { let _ = comm.recv(b, 0, StreamRef::DEFAULT); comm.recv(b, 0, StreamRef::DEFAULT) })",
        &["use of moved value: `b`", "consider creating a fresh reborrow of `b` here"]),
    ("comm.send(&String::new(), 0, StreamRef::DEFAULT)", &["`&String` is not a buffer that an operation can read", "`Buffer` is not implemented for `String`"]),
];

/// Functions that compile: operations that start at once borrow their buffers for the call alone, and NCCL keeps
/// neither options nor signals of a caller.
const LEGAL: &[(&str, &str)] = &[
    (
        "operations used twice on one buffer",
        "fn f(c: &Communicator, cfg: &CollectiveConfig) -> Result<()> {
        let ops = c.operations().with(cfg);
        let mut b = [1.0f32];
        ops.all_reduce_in_place(&mut b, ReduceOp::Sum, StreamRef::DEFAULT)?;
        ops.broadcast_in_place(&mut b, 0, StreamRef::DEFAULT)
    }",
    ),
    (
        "operations and a buffer of a loop",
        "fn f(c: &Communicator, cfg: &CollectiveConfig) -> Result<()> {
        let ops = c.operations().with(cfg);
        for _ in 0..3 {
            let mut b = [1.0f32];
            ops.all_reduce_in_place(&mut b, ReduceOp::Sum, StreamRef::DEFAULT)?;
        }
        Ok(())
    }",
    ),
    (
        "temporary options in a group",
        "fn f(n: &Nccl, c: &Communicator, b: &mut [f32]) -> Result<()> {
        n.group(|g| {
            g.on(c).with(&CollectiveConfig::new().max_ctas(2))
                .all_reduce_in_place(b, ReduceOp::Sum, StreamRef::DEFAULT)
        })
    }",
    ),
    (
        "temporary signals in a group",
        "fn f(n: &Nccl, c: &Communicator, peer: u32) -> Result<()> {
        n.group(|g| {
            g.wait_signal(c, &[WaitSignal { count: 1, peer, signal: Signal::default() }], StreamRef::DEFAULT)
        })
    }",
    ),
    (
        "a function over operations used twice",
        "
    fn step<'s, T: Element>(ops: Operations<'s>, b: &'s mut [T]) -> Result<()> {
        ops.all_reduce_in_place(b, ReduceOp::Sum, StreamRef::DEFAULT)
    }
    fn f(c: &Communicator, b: &mut [f32]) -> Result<()> {
        step(c.operations(), b)?;
        step(c.operations(), b)
    }",
    ),
    (
        "a buffer that a function was given, lent to two operations",
        "fn f(c: &Communicator, b: &mut NcclBuffer<f32>) -> Result<()> {
        c.all_reduce_in_place(&mut *b, ReduceOp::Sum, StreamRef::DEFAULT)?;
        c.all_reduce_in_place(b, ReduceOp::Sum, StreamRef::DEFAULT)
    }",
    ),
    (
        "a group with an error type of the caller",
        "fn f(n: &Nccl, c: &Communicator, b: &mut [f32]) -> std::result::Result<(), Box<dyn std::error::Error>> {
        n.try_group(|g| {
            if b.is_empty() {
                return Err(\"no elements\".into());
            }
            g.all_gather_in_place(c, b, StreamRef::DEFAULT)?;
            Ok(())
        })
    }",
    ),
    (
        "a function over operations now and in a group",
        "
    fn step<'b, T: Element>(ops: Operations<'_, impl Grouping<'b>>, b: &'b mut [T]) -> Result<()> {
        ops.all_reduce_in_place(b, ReduceOp::Sum, StreamRef::DEFAULT)
    }
    fn f(n: &Nccl, c: &Communicator, b: &mut [f32], p: &PreMulSum<'_, f32>) -> Result<()> {
        step(c.operations(), b)?;
        step(c.operations(), b)?;
        let ops = p.operations();
        ops.all_reduce_in_place(&mut *b, StreamRef::DEFAULT)?;
        ops.all_reduce_in_place(&mut *b, StreamRef::DEFAULT)?;
        n.group(|g| step(g.on(c), b))
    }",
    ),
];

/// Functions that do not compile: buffers outlive the group, and are in it once.
const ILLEGAL: &[(&str, &str, &str)] = &[
    (
        "a buffer of the closure",
        "E0597",
        "fn f(n: &Nccl, c: &Communicator) -> Result<()> {
        n.group(|g| {
            let mut b = [1.0f32];
            g.all_reduce_in_place(c, &mut b, ReduceOp::Sum, StreamRef::DEFAULT)
        })
    }",
    ),
    (
        "a buffer of the closure, by a function",
        "E0597",
        "
    fn step<'b, T: Element>(ops: Operations<'_, impl Grouping<'b>>, b: &'b mut [T]) -> Result<()> {
        ops.all_reduce_in_place(b, ReduceOp::Sum, StreamRef::DEFAULT)
    }
    fn f(n: &Nccl, c: &Communicator) -> Result<()> {
        n.group(|g| {
            let mut b = [1.0f32];
            step(g.on(c), &mut b)
        })
    }",
    ),
    (
        "a buffer that is in the group twice",
        "E0499",
        "fn f(n: &Nccl, c: &Communicator, b: &mut [f32]) -> Result<()> {
        n.group(|g| {
            g.reduce_scatter_in_place(c, &mut *b, ReduceOp::Sum, StreamRef::DEFAULT)?;
            g.all_gather_in_place(c, &mut *b, StreamRef::DEFAULT)
        })
    }",
    ),
    (
        "an owned reduction that is dropped before its operations",
        "E0505",
        "fn f(c: &Communicator, p: OwnedPreMulSum<f32>, b: &mut [f32]) -> Result<()> {
        let ops = p.on(c.operations())?;
        drop(p);
        ops.all_reduce_in_place(b, StreamRef::DEFAULT)
    }",
    ),
    (
        "a communicator that ends in the group",
        "E0505",
        "fn f(n: &Nccl, c: Communicator, b: &mut [f32]) -> Result<()> {
        n.group(|g| {
            g.all_gather_in_place(&c, b, StreamRef::DEFAULT)?;
            c.destroy()
        })
    }",
    ),
];

/// Returns the newest library of this crate beside the test program.
fn library() -> PathBuf {
    let program = env::current_exe().unwrap();
    let files = fs::read_dir(program.parent().unwrap()).unwrap().map(|entry| entry.unwrap().path());
    let is_library = |path: &PathBuf| {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        name.starts_with("liblibnccl-") && name.ends_with(".rlib")
    };
    files.filter(is_library).max_by_key(|path| path.metadata().unwrap().modified().unwrap()).unwrap()
}

/// Compiles a program with one statement, and returns the compiler's success and messages.
fn compile_statement(directory: &Path, statement: &str) -> (bool, String) {
    compile(directory, &format!("pub fn f(comm: &Communicator) {{ let _ = {statement}; }}"))
}

/// Compiles a program with some functions, and returns the compiler's success and messages.
fn compile(directory: &Path, functions: &str) -> (bool, String) {
    let program = format!("#![allow(unused)]\nuse libnccl::*;\n{functions}\n");
    let (file, library) = (directory.join("mistake.rs"), library());
    fs::write(&file, program).unwrap();
    let output = Command::new(env::var_os("RUSTC").unwrap_or("rustc".into()))
        .args(["--edition=2024", "--crate-type=lib", "--emit=metadata", "--out-dir"])
        .arg(directory)
        .arg("-L")
        .arg(format!("dependency={}", library.parent().unwrap().display()))
        .arg("--extern")
        .arg(format!("libnccl={}", library.display()))
        .arg(&file)
        .output()
        .unwrap();
    (output.status.success(), String::from_utf8_lossy(&output.stderr).into_owned())
}

#[test]
fn likely_mistake_is_answered_with_what_to_do() {
    let directory = tempfile::tempdir().unwrap();
    let (compiles, messages) =
        compile_statement(directory.path(), "comm.send(&[1_u8], 0, StreamRef::DEFAULT)");
    assert!(compiles, "a statement without mistake:\n{messages}");
    for (statement, expected) in MISTAKES {
        let (compiles, messages) = compile_statement(directory.path(), statement);
        assert!(!compiles, "{statement} compiles");
        for text in *expected {
            assert!(messages.contains(text), "{statement}: no {text:?} in\n{messages}");
        }
        assert!(!messages.contains("RwLock"), "{statement}:\n{messages}");
    }
}

#[test]
fn buffer_is_borrowed_for_the_call_or_the_group() {
    let directory = tempfile::tempdir().unwrap();
    for (name, functions) in LEGAL {
        let (compiles, messages) = compile(directory.path(), functions);
        assert!(compiles, "{name}:\n{messages}");
    }
    for (name, code, functions) in ILLEGAL {
        let (compiles, messages) = compile(directory.path(), functions);
        assert!(!compiles, "{name} compiles");
        assert!(messages.contains(code), "{name}, expected {code}:\n{messages}");
    }
}
