//! Programs that compile, and the compiler's messages for likely mistakes, which must say what to do instead.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

/// A statement that does not compile, and texts in the message.
#[rustfmt::skip]
const MISTAKES: &[(&str, &[&str])] = &[
    ("comm.recv(&mut ['a'], 0, StreamRef::DEFAULT)",
        &["NCCL has no data type for `char`", "elements are i8, u8"]),
    ("std::thread::scope(|s| drop(s.spawn(|| comm.rank())))",
        &["OneThreadAtATime", "cannot be shared between threads safely"]),
    ("comm.send(0x1000_u64, 0, StreamRef::DEFAULT)",
        &["`u64` is not a buffer that an operation can read", "`Slice::from_device_ptr(pointer, length)`"]),
    ("comm.send(std::ptr::null::<f32>(), 0, StreamRef::DEFAULT)",
        &["`*const f32` is not a buffer that an operation can read", "`Slice::from_device_ptr(pointer, length)`"]),
    ("comm.recv(std::ptr::null_mut::<f32>(), 0, StreamRef::DEFAULT)",
        &["`*mut f32` is not a buffer that an operation can write", "`SliceMut::from_device_ptr(pointer, length)`"]),
    ("comm.recv(&[0.0_f32], 0, StreamRef::DEFAULT)",
        &["`&[f32; 1]` is not a buffer that an operation can write", "pass a mutable reference"]),
    ("(|b: &mut NcclBuffer<f32>| { let _ = comm.recv(b, 0, StreamRef::DEFAULT); comm.recv(b, 0, StreamRef::DEFAULT) })",
        &["use of moved value: `b`", "consider creating a fresh reborrow of `b` here"]),
    ("comm.send(&String::new(), 0, StreamRef::DEFAULT)", &["`&String` is not a buffer that an operation can read", "`Buffer<'_>` is not implemented for `&String`"]),
];

/// The code that the functions below share.
const PRELUDE: &str = "
    const STREAM: StreamRef<'static> = StreamRef::DEFAULT;
    const SUM: ReduceOp = ReduceOp::Sum;
    fn step<'b, 'c, T: Element>(c: &'c Communicator, b: &'b mut [T], on: impl Into<OnStream<'b, 'c>>) -> Result<()> {
        c.all_reduce_in_place(b, SUM, on)
    }";

/// Functions that compile: operations that start immediately borrow their buffers only during the call, and NCCL keeps
/// no caller's options.
#[rustfmt::skip]
const LEGAL: &[(&str, &str)] = &[
    ("options and a buffer of a loop", "fn f(c: &Communicator, cfg: &CollectiveConfig) -> Result<()> {
        let on = CallOptions::on(STREAM).config(cfg);
        (0..3).try_for_each(|_| { let mut b = [1.0f32]; c.all_reduce_in_place(&mut b, SUM, on) })
    }"),
    ("a temporary reduction", "fn f(c: &Communicator, b: &mut [f32]) -> Result<()> {
        c.all_reduce_in_place(b, &c.pre_mul_sum(0.5)?, STREAM)
    }"),
    ("a buffer that a function was given, borrowed by two operations", "fn f(c: &Communicator, b: &mut NcclBuffer<f32>) -> Result<()> {
        c.all_reduce_in_place(&mut *b, SUM, STREAM)?;
        c.all_reduce_in_place(b, SUM, STREAM)
    }"),
    // Regression: cudarc lets safe code make any type an element, such as char.
    ("an element type by an unsafe implementation", "#[derive(Clone, Copy)] #[repr(transparent)] struct Meters(f32);
    // SAFETY: an f32.
    unsafe impl Element for Meters { const DATA_TYPE: DataType = f32::DATA_TYPE; }
    fn f(c: &Communicator, b: &mut [Meters]) -> Result<()> { c.all_reduce_in_place(b, SUM, STREAM) }"),
    ("a function over every kind of buffer",
    "fn double<B: ?Sized>(c: &Communicator, b: &mut B) -> Result<()>
    where
        for<'a> &'a mut B: BufferMut<'a, Element = f32>,
    {
        c.all_reduce_in_place(b, &c.pre_mul_sum(2.0)?, STREAM)
    }
    fn sum<'b>(c: &Communicator, b: impl BufferMut<'b, Element = f32>) -> Result<()> {
        c.all_reduce_in_place(b, SUM, STREAM)
    }
    fn f(c: &Communicator, b: &mut NcclBuffer<f32>, v: &mut Vec<f32>) -> Result<()> {
        double(c, b)?;
        double(c, v)?;
        double(c, &mut v[..])?;
        sum(c, b.get_mut(..).unwrap())?;
        sum(c, b)?;
        sum(c, SliceMut::from(&mut *v))?;
        sum(c, v)
    }"),
    ("a function over streams now and in a group",
    "fn f(n: &Nccl, c: &Communicator, b: &mut [f32], p: &PreMulSum<'_, f32>) -> Result<()> {
        step(c, b, STREAM)?;
        step(c, b, STREAM)?;
        c.all_reduce_in_place(&mut *b, p, STREAM)?;
        n.group(|g| step(c, b, g.stream(STREAM)))
    }"),
];

/// Functions that do not compile: buffers must outlive the group, and can be in it only once.
#[rustfmt::skip]
const ILLEGAL: &[(&str, &str, &str)] = &[
    ("a buffer of the closure", "E0597", "fn f(n: &Nccl, c: &Communicator) -> Result<()> {
        n.group(|g| { let mut b = [1.0f32]; c.all_reduce_in_place(&mut b, SUM, g.stream(STREAM)) })
    }"),
    ("a buffer of the closure, by a function", "E0597", "fn f(n: &Nccl, c: &Communicator) -> Result<()> {
        n.group(|g| { let mut b = [1.0f32]; step(c, &mut b, g.stream(STREAM)) })
    }"),
    ("a buffer that is in the group twice", "E0499", "fn f(n: &Nccl, c: &Communicator, b: &mut [f32]) -> Result<()> {
        n.group(|g| {
            c.reduce_scatter_in_place(&mut *b, SUM, g.stream(STREAM))?;
            c.all_gather_in_place(&mut *b, g.stream(STREAM))
        })
    }"),
    ("a reduction of the closure", "E0716", "fn f(n: &Nccl, c: &Communicator, b: &mut [f32]) -> Result<()> {
        n.group(|g| c.all_reduce_in_place(b, &c.pre_mul_sum(0.5)?, g.stream(STREAM)))
    }"),
    ("a scalar that is dropped before its reduction", "E0505",
    "fn f(c: &Communicator, b: &mut [f32], scalar: Vec<f32>) -> Result<()> {
        let p = c.pre_mul_sum_device(&scalar)?;
        drop(scalar);
        c.all_reduce_in_place(b, &p, STREAM)
    }"),
    ("a reduction of another element type", "E0277",
    "fn f(c: &Communicator, b: &mut [f32], p: &PreMulSum<'static, f64>) -> Result<()> {
        c.all_reduce_in_place(b, p, STREAM)
    }"),
    ("options of the closure", "E0716", "fn f(n: &Nccl, c: &Communicator, b: &mut [f32]) -> Result<()> {
        n.group(|g| step(c, b, g.stream(CallOptions::on(STREAM).config(&CollectiveConfig::new().max_ctas(2)))))
    }"),
    ("a communicator of the closure", "E0597", "fn f(n: &Nccl, b: &mut [f32]) -> Result<()> {
        n.group(|g| { let comms = n.init_all(&[0])?; comms[0].all_gather_in_place(b, g.stream(STREAM)) })
    }"),
    ("a stream that leaves its group", "E0521", "fn f(n: &Nccl) -> Result<()> {
        let mut kept = None;
        n.group(|g| { kept = Some(g.stream(STREAM)); Ok(()) })
    }"),
    ("a stream of a group whose lifetime shrinks", "lifetime may not live long enough",
    "fn f<'long: 'short, 'short>(on: OnStream<'long, 'long>) -> OnStream<'short, 'long> { on }"),
    ("an element type by a safe implementation", "E0200",
    "#[derive(Clone, Copy)] struct Meters(f32);
    impl Element for Meters { const DATA_TYPE: DataType = f32::DATA_TYPE; }"),
    // Regression: ferrotorch takes a raw stream in a safe function.
    ("a raw stream in safe code", "E0133", "fn f() -> StreamRef<'static> { StreamRef::from_raw(std::ptr::null_mut()) }"),
    // Regression: ztensor lets a group change its thread.
    ("a group of another thread", "cannot be sent between threads safely",
    "fn send<T: Send>(_: T) {} fn f(group: Group<'static, 'static>) { send(group) }"),
    ("a pending communicator of another thread", "cannot be sent between threads safely",
    "fn send<T: Send>(_: T) {} fn f(pending: PendingCommunicator) { send(pending) }"),
    ("a communicator that is destroyed in the group", "E0505",
    "fn f(n: &Nccl, c: Communicator, b: &mut [f32]) -> Result<()> {
        n.group(|g| { c.all_gather_in_place(b, g.stream(STREAM))?; c.destroy() })
    }"),
];

/// Returns the newest library of this crate in the test program's directory.
fn library() -> PathBuf {
    let program = env::current_exe().unwrap();
    let files = fs::read_dir(program.parent().unwrap()).unwrap().map(|entry| entry.unwrap().path());
    let is_library = |path: &PathBuf| {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        name.starts_with("liblibnccl-") && name.ends_with(".rlib")
    };
    files.filter(is_library).max_by_key(|path| path.metadata().unwrap().modified().unwrap()).unwrap()
}

/// Compiles a program with some functions, and returns the compiler's success and messages.
fn compile(directory: &Path, functions: &str) -> (bool, String) {
    let program = format!(
        "#![allow(unused)]\nuse libnccl::{{buffer::*, communicator::*, config::*, error::*, observer::*, window::*, *}};\n{PRELUDE}\n{functions}\n"
    );
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
fn error_for_a_likely_mistake_names_the_fix() {
    let directory = tempfile::tempdir().unwrap();
    let compile = |statement: &str| {
        compile(directory.path(), &format!("pub fn f(comm: &Communicator) {{ let _ = {statement}; }}"))
    };
    let (compiles, messages) = compile("comm.send(&[1_u8], 0, StreamRef::DEFAULT)");
    assert!(compiles, "a statement without mistake:\n{messages}");
    for (statement, expected) in MISTAKES {
        let (compiles, messages) = compile(statement);
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
